// Layer norm (Ba, Kiros and Hinton, 2016), and RMS norm (Zhang and Sennrich, 2019), which is it without mean. A warp has a row.

KERNEL(norm, 256)(T* y, float* mean, float* rstd, const T* x, const T* weight, const T* bias, i64 rows, i64 cols, float eps) {
	i64 r = (i64)block_x() * (threads() / WARP) + warp();
	if (r >= rows) return;
	x += r * cols, y += r * cols;
	bool aligned = lines_up<T>(cols);
	float m = 0;
	if (mean) {
		float sum = 0;
		each<T>(cols, aligned, lane(), WARP, [&](auto width, i64 i) {
			constexpr int w = decltype(width)::value;
			Pack<w> z = load<w>(x + i);
			for (int j = 0; j < w; j++) sum += z[j];
		});
		m = warp_sum(sum) / cols;
	}
	float squares = 0;
	each<T>(cols, aligned, lane(), WARP, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = load<w>(x + i);
		for (int j = 0; j < w; j++) squares += (z[j] - m) * (z[j] - m);
	});
	float s = 1 / sqrtf(warp_sum(squares) / cols + eps);
	each<T>(cols, aligned, lane(), WARP, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = load<w>(x + i), scale = load<w>(weight + i), shift = {};
		if (bias) shift = load<w>(bias + i);
		for (int j = 0; j < w; j++) z[j] = (z[j] - m) * s * scale[j] + shift[j];
		store(y + i, z);
	});
	if (lane() == 0) {
		if (mean) mean[r] = m;
		rstd[r] = s;
	}
}

// norm_grad sets dx: with n = (x - mean)*rstd and d = dy*weight it is rstd*(d - avg(d) - n*avg(d*n)), without avg(d) for RMS.
KERNEL(norm_grad, 256)(T* dx, const T* dy, const T* x, const T* weight, const float* mean, const float* rstd, i64 rows, i64 cols) {
	i64 r = (i64)block_x() * (threads() / WARP) + warp();
	if (r >= rows) return;
	x += r * cols, dy += r * cols, dx += r * cols;
	bool aligned = lines_up<T>(cols);
	float m = mean ? mean[r] : 0, s = rstd[r], sum = 0, along = 0;
	each<T>(cols, aligned, lane(), WARP, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = load<w>(x + i), d = load<w>(dy + i), scale = load<w>(weight + i);
		for (int j = 0; j < w; j++) {
			float g = d[j] * scale[j];
			sum += g;
			along += g * (z[j] - m) * s;
		}
	});
	sum = mean ? warp_sum(sum) / cols : 0;
	along = warp_sum(along) / cols;
	each<T>(cols, aligned, lane(), WARP, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = load<w>(x + i), d = load<w>(dy + i), scale = load<w>(weight + i);
		for (int j = 0; j < w; j++) d[j] = s * (d[j] * scale[j] - sum - (z[j] - m) * s * along);
		store(dx + i, d);
	});
}

// norm_params sums the gradients of weight and bias over chunks of rows, into part[chunks, 2, cols]; columns_last of sum.cu
// adds them up. Block y has chunk y.
KERNEL(norm_params, 128)(float* part, const T* dy, const T* x, const float* mean, const float* rstd, i64 rows, i64 cols, i64 chunk) {
	i64 first = block_y() * chunk, end = first + chunk < rows ? first + chunk : rows;
	part += block_y() * 2 * cols;
	each_of_all<T>(cols, lines_up<T>(cols), [&](auto width, i64 c) {
		constexpr int w = decltype(width)::value;
		Pack<w> scale = {}, shift = {};
		for (i64 r = first; r < end; r++) {
			Pack<w> z = load<w>(x + r * cols + c), d = load<w>(dy + r * cols + c);
			float m = mean ? mean[r] : 0, s = rstd[r];
			for (int j = 0; j < w; j++) {
				scale[j] += d[j] * (z[j] - m) * s;
				shift[j] += d[j];
			}
		}
		for (int j = 0; j < w; j++) part[c + j] = scale[j], part[cols + c + j] = shift[j];
	});
}
