// Softmax cross-entropy in steps that can be split over the vocabulary. A block has one row of cols
// logits, which are columns first to first+cols of all. A target in another rank's columns has no
// effect, a negative target is ignored, and one beyond the vocabulary makes NaN.

// each_of_row is each over the block's row. With two-byte types it skips to the first 16-byte
// boundary. With f32 it does not: train.reproducible needs the sums of a row to have the same bits
// wherever the row lies.
template <class F> DEVICE void each_of_row(i64 cols, F f) {
	const int width = 16 / sizeof(T);
	if (width == 4) {
		each<T>(cols, lines_up<T>(cols), thread(), threads(), f);
		return;
	}
	i64 head = (width - block_x() * cols % width) % width;
	if (head > cols) head = cols;
	if (thread() < head) f(Int<1>(), thread());
	each<T>(cols - head, true, thread(), threads(), [&](auto taken, i64 i) { f(taken, head + i); });
}

// exponential is e^x. For two-byte types it is as exact as they need, with a third of the
// instructions.
DEVICE float exponential(float x) {
	if constexpr (sizeof(T) == 2) return exp2_fast(x * 1.44269504f);
	else return expf(x);
}

KERNEL(row_max, 256)(float* out, const T* x, i64 cols) {
	x += block_x() * cols;
	float top = -INF;
	each_of_row(cols, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = load<w>(x + i);
		for (int j = 0; j < w; j++) top = fmaxf(top, z[j]);
	});
	top = block_reduce(top, [](float a, float b) { return fmaxf(a, b); });
	if (thread() == 0) out[block_x()] = top;
}

KERNEL(row_sum_exp, 256)(float* out, const T* x, const float* max, i64 cols) {
	x += block_x() * cols;
	float top = max[block_x()], sum = 0;
	each_of_row(cols, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = load<w>(x + i);
		for (int j = 0; j < w; j++) sum += exponential(z[j] - top);
	});
	sum = block_reduce(sum, [](float a, float b) { return a + b; });
	if (thread() == 0) out[block_x()] = sum;
}

// row_max_sum_exp computes both in one pass (Milakov and Gimelshein, "Online normalizer calculation
// for softmax", 2018).
KERNEL(row_max_sum_exp, 256)(float* max, float* out, const T* x, i64 cols) {
	x += block_x() * cols;
	float top = -INF, sum = 0;
	each_of_row(cols, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = load<w>(x + i);
		float peak = top;
		for (int j = 0; j < w; j++) peak = fmaxf(peak, z[j]);
		if (peak > top) sum *= exponential(top - peak), top = peak;
		float base = top > -INF ? top : 0; // avoids NaN while all logits so far are -INF
		for (int j = 0; j < w; j++) sum += exponential(z[j] - base);
	});
	float all = block_reduce(top, [](float a, float b) { return fmaxf(a, b); });
	sum = block_reduce(top > -INF ? sum * exponential(top - all) : sum, [](float a, float b) { return a + b; });
	if (thread() == 0) max[block_x()] = all, out[block_x()] = sum;
}

KERNEL(row_pick, 256)(float* out, const T* x, const int* targets, i64 rows, i64 cols, int first, int all) {
	i64 r = (i64)block_x() * threads() + thread();
	if (r >= rows) return;
	int target = targets[r], at = target - first;
	out[r] = target >= all ? NAN_ : target >= 0 && at >= 0 && at < cols ? wide(x[r * cols + at]) : 0;
}

// dx of cross_entropy_grad may be at the place of x.
KERNEL(cross_entropy_grad, 256)(T* dx, const T* x, const float* max, const float* sum, const int* targets, const float* dnll, i64 cols, int first, int all) {
	i64 r = block_x();
	x += r * cols, dx += r * cols;
	int target = targets[r];
	float top = max[r], d = target >= all ? NAN_ : dnll[r], by = d / sum[r];
	i64 at = target - first;
	each_of_row(cols, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = load<w>(x + i);
		int here = at >= i && at < i + w ? (int)(at - i) : -1;
		for (int j = 0; j < w; j++) {
			z[j] = target < 0 ? 0 : exponential(z[j] - top) * by - (j == here ? d : 0);
		}
		store(dx + i, z);
	});
}
