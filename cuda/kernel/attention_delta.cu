// The dot product of each query's result with its gradient, which both passes of attention's
// gradient need.

// attention_delta stores them in delta, which has the shape of the log-sums. A block has rows of
// one head of a sequence. 2^split threads share a row: as many as take 16 bytes each.
KERNEL(attention_delta, 256)(float* delta, const T* dout, const T* o, int rows, int heads, int width, int split) {
	int row = block_x() * (256 >> split) + (thread() >> split), head = block_y(), b = block_z();
	int many = 1 << split, at = thread() & (many - 1);
	float sum = 0;
	if (row < rows) {
		i64 from = (((i64)b * rows + row) * heads + head) * width;
		dout += from, o += from;
		each<T>(width, lines_up<T>(width), at, many, [&](auto taken, int i) {
			constexpr int w = decltype(taken)::value;
			Pack<w> x = load<w>(dout + i), y = load<w>(o + i);
			for (int j = 0; j < w; j++) sum += x[j] * y[j];
		});
	}
	for (int mask = many / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
	if (row < rows && at == 0) delta[((i64)b * heads + head) * rows + row] = sum;
}
