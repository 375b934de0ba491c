// Softmax cross-entropy in steps that can be split over the vocabulary. A block has one row of cols
// logits, which are columns first to first+cols of all. A target in another rank's columns has no
// effect, a negative target is ignored, and one beyond the vocabulary makes NaN.

// Loops over a part of a row skip to the first 16-byte boundary with two-byte types. With f32 they
// do not: train.reproducible needs the sums of a row to have the same bits wherever the row lies.
constexpr bool skips = sizeof(T) == 2;

// head_of is how many of n elements, from number start on, are skipped.
DEVICE i64 head_of(i64 start, i64 n) {
	const int width = 16 / sizeof(T);
	i64 head = skips ? (width - start % width) % width : 0;
	return head < n ? head : n;
}
DEVICE bool packs_follow(i64 cols) { return skips || lines_up<T>(cols); }

// each_of_row is each over the block's row.
template <class F> DEVICE void each_of_row(i64 cols, F f) {
	i64 head = head_of(block_x() * cols, cols);
	if (thread() < head) f(Int<1>(), thread());
	each<T>(cols - head, packs_follow(cols), thread(), threads(), [&](auto taken, i64 i) { f(taken, head + i); });
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

// dx of cross_entropy_grad may be at the place of x. A row has pieces blocks, with piece elements
// each: blocks that run at a time have neighboring memory, as those of elementwise ops do.
KERNEL(cross_entropy_grad, 256)(T* dx, const T* x, const float* max, const float* sum, const int* targets, const float* dnll, i64 cols, int first, int all,
	int pieces, int piece) {
	i64 r = block_x() / pieces, from = block_x() % pieces * (i64)piece, start = r * cols + from;
	int n = cols - from < piece ? (int)(cols - from) : piece, head = (int)head_of(start, n);
	x += start + head, dx += start + head;
	int target = targets[r];
	float top = max[r], d = target >= all ? NAN_ : dnll[r], by = d / sum[r];
	int at = (int)(target - first - from - head);
	auto read = [&](auto width, int i) { return words<decltype(width)::value>(x + i); };
	auto write = [&](auto width, int i, auto was) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = numbers<w, T>(was);
		for (int j = 0; j < w; j++) z[j] = exponential(z[j] - top) * by;
		if ((u32)(at - i) < w) { // one pack of the row
			for (int j = 0; j < w; j++) {
				if (j == at - i) z[j] = sum_of(z[j], -d);
			}
		}
		if (target < 0) z = {}; // even if a logit is infinite
		store(dx + i, z);
	};
	if (thread() < head) write(Int<1>(), thread() - head, read(Int<1>(), thread() - head));
	each_ahead<T, 4>(n - head, packs_follow(cols), thread(), threads(), read, write);
}
