// Kernels for sums in fixed point: see q64.cu.

KERNEL(from_fixed, 256)(T* y, const i64* x, i64 n, double scale) {
	each_of_all<T>(n, false, [&](auto, i64 i) { narrow(y[i], x[i] == OVERFLOW_ ? NAN_ : (float)x[i] * (float)scale); });
}

// y of add_fixed may be at the place of a or b.
KERNEL(add_fixed, 256)(i64* y, const i64* a, const i64* b, i64 n) {
	each_of_all<T>(n, false, [&](auto, i64 i) { y[i] = fixed_sum(a[i], b[i]); });
}

// reduce_fixed adds up to 16 inputs. y may be one of them.
struct Terms { const i64* x[16]; };
KERNEL(reduce_fixed, 256)(i64* y, i64 n, int count, Terms from) {
	each_of_all<T>(n, false, [&](auto, i64 i) {
		i64 sum = from.x[0][i];
		for (int k = 1; k < count; k++) sum = fixed_sum(sum, from.x[k][i]);
		y[i] = sum;
	});
}

// exceeds sets the flag if any number exceeds the limit. Several threads may set it at once.
KERNEL(exceeds, 256)(i64* flag, const i64* x, i64 n, i64 limit) {
	each_of_all<T>(n, false, [&](auto, i64 i) {
		if (x[i] > limit || x[i] < -limit) *flag = 1;
	});
}
KERNEL(void_fixed, 256)(const i64* flag, i64* x, i64 n) {
	if (*flag) each_of_all<T>(n, false, [&](auto, i64 i) { x[i] = OVERFLOW_; });
}

// add_as_fixed adds terms in f32 to y, or sets y to them.
KERNEL(add_as_fixed, 256)(i64* y, const T* term, i64 n, double scale, int add) {
	each_of_all<T>(n, false, [&](auto, i64 i) {
		i64 x = to_fixed(wide(term[i]), scale);
		y[i] = add ? fixed_sum(y[i], x) : x;
	});
}

// fixed_squares sums squares in two parts: rounded to multiples of 1/scale, and what that rounding
// leaves, rounded to multiples of 1/scale^2. Each block stores its sums in part[blocks, 2].
KERNEL(fixed_squares, 256)(i64* part, const T* x, i64 n, double scale) {
	i64 coarse = 0, fine = 0;
	each_of_all<T>(n, false, [&](auto, i64 i) {
		double y = (double)wide(x[i]) * (double)wide(x[i]) * scale, whole = rint(y); // exact: 48 bits
		coarse = fixed_sum(coarse, y < 0x1p63 ? (i64)whole : OVERFLOW_);
		fine += y < 0x1p63 ? (i64)rint((y - whole) * scale) : 0;
	});
	coarse = block_reduce(coarse, [](i64 a, i64 b) { return fixed_sum(a, b); });
	fine = block_reduce(fine, [](i64 a, i64 b) { return a + b; });
	if (thread() == 0) part[2 * block_x()] = coarse, part[2 * block_x() + 1] = fine;
}
// fixed_squares_last adds up part. It runs as one block.
KERNEL(fixed_squares_last, 256)(i64* y, const i64* part, int n) {
	i64 coarse = 0, fine = 0;
	for (int i = thread(); i < n; i += threads()) coarse = fixed_sum(coarse, part[2 * i]), fine += part[2 * i + 1];
	coarse = block_reduce(coarse, [](i64 a, i64 b) { return fixed_sum(a, b); });
	fine = block_reduce(fine, [](i64 a, i64 b) { return a + b; });
	if (thread() == 0) y[0] = coarse, y[1] = fine;
}

KERNEL(fixed_root, 1)(float* y, const i64* x, double unit) {
	*y = x[0] == OVERFLOW_ ? NAN_ : (float)sqrt((double)x[0] * unit + (double)x[1] * unit * unit);
}

// embedding_grad_fixed is embedding_grad of embedding.cu, with every row of dy a term of its own. A
// block has one row of the table and 256 columns.
KERNEL(embedding_grad_fixed, 256)(i64* dtable, const T* dy, const int* ids, i64 n, i64 cols, int first, double scale, int add) {
	i64 column = (i64)block_y() * 256 + thread();
	if (column >= cols) return;
	i64* to = dtable + block_x() * cols + column;
	i64 sum = add ? *to : 0;
	for (i64 r = 0; r < n; r++) {
		if (ids[r] - first == block_x()) sum = fixed_sum(sum, to_fixed(wide(dy[r * cols + column]), scale));
	}
	*to = sum;
}
