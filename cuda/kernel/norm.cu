// Layer norm (Ba, Kiros and Hinton, 2016), and RMS norm (Zhang and Sennrich, 2019), which is the
// same without mean. A warp has a row. Functions with a number are for rows of whole packs of 16
// bytes, that many or fewer for a lane, which the warp reads once and keeps in registers. The host
// chooses by the type and the number of columns alone.

// norm normalizes x, or if more is set x + more, which it also stores in sums. All results except
// the statistics may be at the places of x and more.
KERNEL(norm, 256)(T* y, T* sums, float* mean, float* rstd, const T* x, const T* more, const T* weight, const T* bias, i64 rows, i64 cols, float eps) {
	i64 r = (i64)block_x() * (threads() / WARP) + warp();
	if (r >= rows) return;
	x += r * cols, more += more ? r * cols : 0, y += r * cols, sums += r * cols;
	bool aligned = lines_up<T>(cols);
	auto row = [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = load<w>(x + i);
		if (more) {
			Pack<w> add = load<w>(more + i);
			for (int j = 0; j < w; j++) z[j] = rounded<T>(z[j] + add[j]);
		}
		return z;
	};
	float m = 0;
	if (mean) {
		float sum = 0;
		each<T>(cols, aligned, lane(), WARP, [&](auto width, i64 i) {
			constexpr int w = decltype(width)::value;
			Pack<w> z = row(width, i);
			for (int j = 0; j < w; j++) sum += z[j];
		});
		m = warp_sum(sum) / cols;
	}
	float squares = 0;
	each<T>(cols, aligned, lane(), WARP, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = row(width, i);
		for (int j = 0; j < w; j++) squares += (z[j] - m) * (z[j] - m);
	});
	float s = 1 / sqrtf(warp_sum(squares) / cols + eps);
	each<T>(cols, aligned, lane(), WARP, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = row(width, i), scale = load<w>(weight + i), shift = {};
		if (bias) shift = load<w>(bias + i);
		if (more) store(sums + i, z);
		for (int j = 0; j < w; j++) z[j] = (z[j] - m) * s * scale[j] + shift[j];
		store(y + i, z);
	});
	if (lane() == 0) {
		if (mean) mean[r] = m;
		rstd[r] = s;
	}
}

// each_kept calls f(k, i) for the packs of a row that a lane keeps: number k starts at element i. Only
// the last may be beyond the row.
template <int packs, class F> DEVICE void each_kept(i64 cols, F f) {
	const int width = 16 / sizeof(T);
#pragma unroll
	for (int k = 0; k < packs; k++) {
		int i = (k * WARP + lane()) * width;
		if (k + 1 < packs || i < cols) f(k, i);
	}
}

template <int packs>
DEVICE void norm_kept(T* y, T* sums, float* mean, float* rstd, const T* x, const T* more, const T* weight, const T* bias, i64 rows, i64 cols, float eps) {
	constexpr int w = 16 / sizeof(T);
	i64 r = (i64)block_x() * (threads() / WARP) + warp();
	if (r >= rows) return;
	x += r * cols, more += more ? r * cols : 0, y += r * cols, sums += r * cols;
	Pack<w> z[packs];
	if (more) {
		decltype(words<w>(x)) a[packs], b[packs];
		each_kept<packs>(cols, [&](int k, int i) { a[k] = words<w>(x + i), b[k] = words<w>(more + i); });
		each_kept<packs>(cols, [&](int k, int i) {
			z[k] = numbers<w, T>(a[k]);
			Pack<w> add = numbers<w, T>(b[k]);
			for (int j = 0; j < w; j++) z[k][j] = rounded<T>(z[k][j] + add[j]);
			store(sums + i, z[k]);
		});
	} else {
		each_kept<packs>(cols, [&](int k, int i) { z[k] = load<w>(x + i); });
	}
	float m = 0, squares = 0;
	if (mean) {
		float sum = 0;
		each_kept<packs>(cols, [&](int k, int) {
			for (int j = 0; j < w; j++) sum += z[k][j];
		});
		m = warp_sum(sum) / cols;
	}
	each_kept<packs>(cols, [&](int k, int) {
		for (int j = 0; j < w; j++) squares += (z[k][j] - m) * (z[k][j] - m);
	});
	float s = 1 / sqrtf(warp_sum(squares) / cols + eps);
	each_kept<packs>(cols, [&](int k, int i) {
		Pack<w> scale = load<w>(weight + i), shift = {};
		if (bias) shift = load<w>(bias + i);
		for (int j = 0; j < w; j++) z[k][j] = (z[k][j] - m) * s * scale[j] + shift[j];
		store(y + i, z[k]);
	});
	if (lane() == 0) {
		if (mean) mean[r] = m;
		rstd[r] = s;
	}
}
#define NORM(packs) \
	KERNEL(norm_##packs, 256)(T* y, T* sums, float* mean, float* rstd, const T* x, const T* more, const T* weight, const T* bias, i64 rows, i64 cols, float eps) { \
		norm_kept<packs>(y, sums, mean, rstd, x, more, weight, bias, rows, cols, eps); \
	}
NORM(1)
NORM(2)
NORM(3)
NORM(4)
#undef NORM

// add_to adds x to numbers in shared memory, or sets them to x, 16 bytes at a time.
template <int w> DEVICE void add_to(float* to, const Pack<w>& x, bool add) {
	constexpr int n = w < 4 ? w : 4;
	for (int j = 0; j < w; j += n) {
		Pack<n> sum = {};
		if (add) sum = load<n>(to + j);
		for (int i = 0; i < n; i++) sum[i] = add ? sum[i] + x[j + i] : x[j + i];
		store(to + j, sum);
	}
}

// norm_grad sets dx to rstd*(d - avg(d) - n*avg(d*n)) with n = (x - mean)*rstd and d = dy*weight;
// RMS norm has no avg(d). If more is set it is added, and dx may be at its place. Gradients of
// weight and bias are summed over chunks of rows, into part[chunks, 2, cols], which columns_last of
// sum.cu adds up. A block has a chunk, and takes as many rows at a time as it has warps: first each
// warp has a row, then each thread has columns.
KERNEL(norm_grad, 256)(T* dx, float* part, const T* dy, const T* x, const T* more, const T* weight, const float* mean, const float* rstd, i64 rows,
	i64 cols, i64 chunk) {
	__shared__ float averages[8][2];
	SHARED(float, params); // [2, cols]; one thread has a column
	i64 first = block_x() * chunk, end = first + chunk < rows ? first + chunk : rows;
	int many = threads() / WARP;
	bool aligned = lines_up<T>(cols);
	for (i64 base = first; base < end; base += many) {
		i64 r = base + warp();
		if (r < end) {
			float m = mean ? mean[r] : 0, s = rstd[r], sum = 0, along = 0;
			each<T>(cols, aligned, lane(), WARP, [&](auto width, i64 i) {
				constexpr int w = decltype(width)::value;
				Pack<w> z = load<w>(x + r * cols + i), d = load<w>(dy + r * cols + i), scale = load<w>(weight + i);
				for (int j = 0; j < w; j++) {
					float g = d[j] * scale[j];
					sum += g;
					along += g * (z[j] - m) * s;
				}
			});
			sum = warp_sum(sum), along = warp_sum(along);
			if (lane() == 0) averages[warp()][0] = mean ? sum / cols : 0, averages[warp()][1] = along / cols;
		}
		sync_block();
		int here = (int)(end - base < many ? end - base : many);
		each<T>(cols, aligned, thread(), threads(), [&](auto width, i64 c) {
			constexpr int w = decltype(width)::value;
			Pack<w> scale = load<w>(weight + c), by = {}, shift = {};
#pragma unroll 2
			for (int k = 0; k < here; k++) {
				i64 r = base + k, i = r * cols + c;
				float m = mean ? mean[r] : 0, s = rstd[r], sum = averages[k][0], along = averages[k][1];
				Pack<w> z = load<w>(x + i), d = load<w>(dy + i), add = {};
				if (more) add = load<w>(more + i);
				for (int j = 0; j < w; j++) {
					float n = (z[j] - m) * s;
					by[j] += d[j] * n;
					shift[j] += d[j];
					d[j] = s * (d[j] * scale[j] - sum - n * along);
					if (more) d[j] = sum_of(rounded<T>(d[j]), add[j]);
				}
				store(dx + i, d);
			}
			add_to(params + c, by, base > first), add_to(params + cols + c, shift, base > first);
		});
		sync_block();
	}
	for (i64 i = thread(); i < 2 * cols; i += threads()) part[block_x() * 2 * cols + i] = params[i];
}

// norm_grad_kept is norm_grad with the same columns of every row for a lane, so that their sums are in
// registers too. The warps of a block take turns with the rows of its chunk, and meet only at the end,
// where they have given[threads/WARP/2, 2, cols] in shared memory.
template <int packs>
DEVICE void norm_grad_kept(float* given, T* dx, float* part, const T* dy, const T* x, const T* more, const T* weight, const float* mean,
	const float* rstd, i64 rows, i64 cols, i64 chunk) {
	constexpr int w = 16 / sizeof(T);
	i64 first = block_x() * chunk, end = first + chunk < rows ? first + chunk : rows;
	Pack<w> by[packs] = {}, shift[packs] = {};
	for (i64 r = first + warp(); r < end; r += threads() / WARP) {
		i64 start = r * cols;
		decltype(words<w>(x)) from[packs], down[packs], add[packs];
		each_kept<packs>(cols, [&](int k, int i) {
			from[k] = words<w>(x + start + i), down[k] = words<w>(dy + start + i);
			if (more) add[k] = words<w>(more + start + i);
		});
		float m = mean ? mean[r] : 0, s = rstd[r], sum = 0, along = 0;
		each_kept<packs>(cols, [&](int k, int i) {
			Pack<w> z = numbers<w, T>(from[k]), d = numbers<w, T>(down[k]), scale = load<w>(weight + i);
			for (int j = 0; j < w; j++) {
				float n = (z[j] - m) * s, g = d[j] * scale[j];
				by[k][j] += d[j] * n;
				shift[k][j] += d[j];
				sum += g;
				along += g * n;
			}
		});
		sum = mean ? warp_sum(sum) / cols : 0, along = warp_sum(along) / cols;
		each_kept<packs>(cols, [&](int k, int i) {
			Pack<w> z = numbers<w, T>(from[k]), d = numbers<w, T>(down[k]), scale = load<w>(weight + i), next = {};
			if (more) next = numbers<w, T>(add[k]);
			for (int j = 0; j < w; j++) {
				d[j] = s * (d[j] * scale[j] - sum - (z[j] - m) * s * along);
				if (more) d[j] = sum_of(rounded<T>(d[j]), next[j]);
			}
			store(dx + start + i, d);
		});
	}
	// The upper half of the warps gives its sums to the lower half, until one warp has all.
	for (int half = threads() / WARP / 2; half > 0; half /= 2) {
		float* at = given + warp() % half * 2 * cols;
		if (warp() >= half && warp() < 2 * half) {
			each_kept<packs>(cols, [&](int k, int i) { add_to(at + i, by[k], false), add_to(at + cols + i, shift[k], false); });
		}
		sync_block();
		if (warp() < half) {
			each_kept<packs>(cols, [&](int k, int i) {
				for (int j = 0; j < w; j++) by[k][j] += at[i + j], shift[k][j] += at[cols + i + j];
			});
		}
		sync_block();
	}
	if (warp() > 0) return;
	part += block_x() * 2 * cols;
	each_kept<packs>(cols, [&](int k, int i) { add_to(part + i, by[k], false), add_to(part + cols + i, shift[k], false); });
}
#define NORM_GRAD(packs) \
	KERNEL(norm_grad_##packs, 128)(T* dx, float* part, const T* dy, const T* x, const T* more, const T* weight, const float* mean, const float* rstd, \
		i64 rows, i64 cols, i64 chunk) { \
		SHARED(float, given); \
		norm_grad_kept<packs>(given, dx, part, dy, x, more, weight, mean, rstd, rows, cols, chunk); \
	}
NORM_GRAD(1)
NORM_GRAD(2)
NORM_GRAD(3)
NORM_GRAD(4)
#undef NORM_GRAD
