// Rotary position embedding (Su et al., 2021). Elements i and i+width/2 of each head of queries and
// keys are a pair, which is rotated by position*theta^(-2i/width). With a factor, long waves are longer:
// see ir.RoPEAttr. A block has one position of a sequence. The length is that of a sequence, or of all
// together if each has positions of its own. Heads that are rotated come before those that are copied.
KERNEL(rope, 256)(T* y, const T* x, const int* positions, int length, int turned, int copied, int width, double theta, double factor,
	double low, double high, double original, int inverse) {
	SHARED(float, table); // cosines, then sines
	int half = width / 2;
	double at = positions[block_x() % length];
	for (int i = thread(); i < half; i += threads()) {
		double sine, cosine, frequency = pow(theta, -2.0 * i / width);
		if (factor > 0) {
			double turns = original * frequency / 6.283185307179586;
			double part = fmin(fmax((turns - low) / (high - low), 0.0), 1.0);
			frequency *= part + (1 - part) / factor;
		}
		sincos(at * frequency, &sine, &cosine);
		table[i] = (float)cosine;
		table[half + i] = (float)(inverse ? -sine : sine);
	}
	sync_block();
	i64 row = (i64)(turned + copied) * width;
	x += block_x() * row, y += block_x() * row;
	for (i64 i = thread(); i < (i64)turned * half; i += threads()) {
		int k = (int)(i % half);
		i64 a = i / half * width + k, b = a + half;
		float u = wide(x[a]), v = wide(x[b]), c = table[k], s = table[half + k];
		narrow(y[a], u * c - v * s);
		narrow(y[b], v * c + u * s);
	}
	for (i64 i = (i64)turned * width + thread(); i < row; i += threads()) y[i] = x[i];
}
