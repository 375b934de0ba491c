// Sums over many elements in two launches: partial sums, then their sum. How elements are divided
// depends on sizes alone.

// One launch sums many tensors. Each has blocks blocks, from number first on.
struct Sum {
	const T* x;
	void* y;
	i64 n;
	int first, blocks;
};
struct Sums { Sum of[120]; };

// sum_part sums, in f64, the elements of each block, or their squares.
template <class F> DEVICE void sum_part(double* part, int count, const Sums& all, F f) {
	int at = 0;
	while (at + 1 < count && all.of[at + 1].first <= block_x()) at++;
	const Sum& t = all.of[at];
	double sum = 0;
	each<T>(t.n, true, (i64)(block_x() - t.first) * threads() + thread(), (i64)t.blocks * threads(), [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = load<w>(t.x + i);
		for (int j = 0; j < w; j++) sum += f(z[j]);
	});
	sum = block_reduce(sum, [](double a, double b) { return a + b; });
	if (thread() == 0) part[block_x()] = sum;
}
KERNEL(sum_part, 256)(double* part, int count, Sums all) {
	sum_part(part, count, all, [](float x) { return (double)x; });
}
KERNEL(squares_part, 256)(double* part, int count, Sums all) {
	sum_part(part, count, all, [](float x) { return (double)x * x; });
}
// sum_last has a block for each tensor. Its results are of type T.
KERNEL(sum_last, 256)(const double* part, int add, Sums all) {
	const Sum& t = all.of[block_x()];
	T* y = (T*)t.y;
	double sum = 0;
	for (int i = thread(); i < t.blocks; i += threads()) sum += part[t.first + i];
	sum = block_reduce(sum, [](double a, double b) { return a + b; });
	if (thread() == 0) narrow(*y, add ? wide(*y) + (float)sum : (float)sum);
}

// columns_part sums chunks of rows of x. Block y has chunk y; each thread has a column, or 16 bytes
// of columns.
KERNEL(columns_part, 128)(float* part, const T* x, i64 rows, i64 cols, i64 chunk) {
	i64 first = block_y() * chunk, end = first + chunk < rows ? first + chunk : rows;
	each_of_all<T>(cols, lines_up<T>(cols), [&](auto width, i64 c) {
		constexpr int w = decltype(width)::value;
		Pack<w> sum = {};
#pragma unroll 4
		for (i64 r = first; r < end; r++) {
			Pack<w> z = load<w>(x + r * cols + c);
			for (int j = 0; j < w; j++) sum[j] += z[j];
		}
		for (int j = 0; j < w; j++) part[block_y() * cols + c + j] = sum[j];
	});
}
// columns_last adds up partial sums, apart elements apart. A block has 32 columns; each of its 16
// warps has every 16th partial sum.
KERNEL(columns_last, 512)(T* y, const float* part, i64 parts, i64 cols, i64 apart, int add) {
	__shared__ float of[16][WARP];
	i64 c = (i64)block_x() * WARP + lane();
	float sum = 0;
#pragma unroll 8
	for (i64 p = warp(); p < parts && c < cols; p += 16) sum += part[p * apart + c];
	of[warp()][lane()] = sum;
	sync_block();
	if (warp() > 0 || c >= cols) return;
	for (int w = 1; w < 16; w++) sum += of[w][lane()];
	narrow(y[c], add ? wide(y[c]) + sum : sum);
}
