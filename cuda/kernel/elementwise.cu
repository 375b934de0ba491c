// Elementwise ops.

KERNEL(add, 256)(T* y, const T* a, const T* b, i64 n) {
	each_of_all<T>(n, true, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> x = load<w>(a + i), z = load<w>(b + i);
		for (int j = 0; j < w; j++) x[j] += z[j];
		store(y + i, x);
	});
}

// add_rows adds b, which has cols elements, to every row of a.
KERNEL(add_rows, 256)(T* y, const T* a, const T* b, i64 n, i64 cols) {
	each_of_all<T>(n, lines_up<T>(cols), [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> x = load<w>(a + i), z = load<w>(b + i % cols);
		for (int j = 0; j < w; j++) x[j] += z[j];
		store(y + i, x);
	});
}

KERNEL(scale, 256)(T* y, const T* x, const float* s, i64 n) {
	float by = *s;
	each_of_all<T>(n, true, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = load<w>(x + i);
		for (int j = 0; j < w; j++) z[j] *= by;
		store(y + i, z);
	});
}

// One launch casts many tensors. Tensor t has n elements, in blocks of 4096, and its first block is
// number first.
template <class X> struct Cast {
	T* y;
	const X* x;
	i64 n, first;
};
template <class X> struct Casts { Cast<X> of[120]; };

// convert sets every y to x, or adds x to it. The two may overlap only at the same place, with
// types of one size.
template <class X> DEVICE void convert(int add, int count, const Casts<X>& all) {
	int at = 0;
	while (at + 1 < count && all.of[at + 1].first <= block_x()) at++;
	const Cast<X>& t = all.of[at];
	i64 start = (block_x() - t.first) * 4096, left = t.n - start;
	each<float>(left < 4096 ? left : 4096, true, thread(), threads(), [&](auto width, i64 i) { // four at a time whatever the types
		constexpr int w = decltype(width)::value;
		i += start;
		Pack<w> z = load<w>(t.x + i);
		if (add) {
			Pack<w> was = load<w>(t.y + i);
			for (int j = 0; j < w; j++) z[j] += was[j];
		}
		store(t.y + i, z);
	});
}
KERNEL(cast_f32, 256)(int add, int count, Casts<float> all) { convert(add, count, all); }
KERNEL(cast_bf16, 256)(int add, int count, Casts<bf16> all) { convert(add, count, all); }
KERNEL(cast_f16, 256)(int add, int count, Casts<f16> all) { convert(add, count, all); }

// combine reduces up to 16 inputs in order. y may be one of them.
template <class F>
DEVICE void combine(T* y, const T* const (&x)[16], i64 n, int count, F f) {
	i64 places = (i64)y; // shares and runs of a collective may start anywhere
	for (int k = 0; k < count; k++) places |= (i64)x[k];
	each_of_all<T>(n, places % 16 == 0, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> sum = load<w>(x[0] + i);
#pragma unroll
		for (int k = 1; k < 16; k++) {
			if (k < count) {
				Pack<w> next = load<w>(x[k] + i);
				for (int j = 0; j < w; j++) sum[j] = f(sum[j], next[j]);
			}
		}
		store(y + i, sum);
	});
}
struct Inputs { const T* x[16]; };
KERNEL(reduce_sum, 256)(T* y, i64 n, int count, Inputs from) {
	combine(y, from.x, n, count, [](float a, float b) { return a + b; });
}
KERNEL(reduce_max, 256)(T* y, i64 n, int count, Inputs from) {
	combine(y, from.x, n, count, [](float a, float b) { return fmaxf(a, b); });
}

// GELU (Hendrycks and Gimpel, 2016): exact with Erf, the approximation by tanh with Tanh.
struct Erf {
	// tail is the normal distribution function at -|x|, within 1e-7 (Abramowitz and Stegun,
	// 7.1.26). It also sets e to exp(-x^2/2).
	DEVICE static float tail(float x, float& e) {
		float t = reciprocal_fast(1 + 0.23164189f * fmaxf(x, -x));
		e = exp2_fast(-0.72134752f * x * x);
		return t * (0.12741480f + t * (-0.14224837f + t * (0.71070687f + t * (-0.72657601f + t * 0.53070271f)))) * e;
	}
	DEVICE static float value(float x) {
		float e, p = tail(x, e);
		return x * (x < 0 ? p : 1 - p);
	}
	DEVICE static float slope(float x) {
		float e, p = tail(x, e);
		return (x < 0 ? p : 1 - p) + x * e * 0.39894228f;
	}
};
struct Tanh {
	DEVICE static float inner(float x) { return tanhf(0.79788456f * (x + 0.044715f * x * x * x)); }
	DEVICE static float value(float x) { return 0.5f * x * (1 + inner(x)); }
	DEVICE static float slope(float x) {
		float t = inner(x);
		return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.79788456f * (1 + 3 * 0.044715f * x * x);
	}
};
template <class F> DEVICE void gelu(T* y, const T* x, i64 n) {
	each_of_all<T>(n, true, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = load<w>(x + i);
		for (int j = 0; j < w; j++) z[j] = F::value(z[j]);
		store(y + i, z);
	});
}
template <class F> DEVICE void gelu_grad(T* dx, const T* dy, const T* x, i64 n) {
	each_of_all<T>(n, true, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z = load<w>(x + i), d = load<w>(dy + i);
		for (int j = 0; j < w; j++) d[j] *= F::slope(z[j]);
		store(dx + i, d);
	});
}
KERNEL(gelu_erf, 256)(T* y, const T* x, i64 n) { gelu<Erf>(y, x, n); }
KERNEL(gelu_tanh, 256)(T* y, const T* x, i64 n) { gelu<Tanh>(y, x, n); }
KERNEL(gelu_grad_erf, 256)(T* dx, const T* dy, const T* x, i64 n) { gelu_grad<Erf>(dx, dy, x, n); }
KERNEL(gelu_grad_tanh, 256)(T* dx, const T* dy, const T* x, i64 n) { gelu_grad<Tanh>(dx, dy, x, n); }

// SwiGLU (Shazeer, 2020). Rows of x are gate and up, cols elements each.
KERNEL(swiglu, 256)(T* y, const T* x, i64 n, i64 cols) {
	each_of_all<T>(n, lines_up<T>(cols), [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		i64 at = i + i / cols * cols;
		Pack<w> gate = load<w>(x + at), up = load<w>(x + at + cols);
		for (int j = 0; j < w; j++) up[j] *= gate[j] / (1 + expf(-gate[j]));
		store(y + i, up);
	});
}
// dx of swiglu_grad may be at the place of x.
KERNEL(swiglu_grad, 256)(T* dx, const T* x, const T* dy, i64 n, i64 cols) {
	each_of_all<T>(n, lines_up<T>(cols), [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		i64 at = i + i / cols * cols;
		Pack<w> gate = load<w>(x + at), up = load<w>(x + at + cols), d = load<w>(dy + i);
		for (int j = 0; j < w; j++) {
			float s = 1 / (1 + expf(-gate[j]));
			float silu = gate[j] * s;
			gate[j] = d[j] * up[j] * (s + silu * (1 - s));
			up[j] = d[j] * silu;
		}
		store(dx + at, gate);
		store(dx + at + cols, up);
	});
}

// dropout multiplies elements by their mask. The elements are in runs of length run that are
// contiguous in the whole tensor. The first is at index first of the whole and at start of the
// part. Runs are numbered by up to four outer dimensions, the innermost with size n1; w1 is its
// stride in the whole and l1 that in the part, and so on.
KERNEL(dropout, 256)(T* y, const T* x, const int* seed, const int* step, u32 op, u64 threshold, float scale, i64 run, i64 runs, u64 first, i64 start,
	i64 n1, i64 w1, i64 l1, i64 n2, i64 w2, i64 l2, i64 n3, i64 w3, i64 l3, i64 w4, i64 l4) {
	Mask mask = {(u32)*seed, op, (u32)*step, threshold, scale};
	i64 quads = (run + 3) / 4;
	for (i64 at = (i64)block_x() * threads() + thread(); at < runs * quads; at += (i64)blocks_x() * threads()) {
		i64 r = at / quads, j = at % quads * 4;
		i64 a1 = r % n1, a2 = r / n1 % n2, a3 = r / n1 / n2 % n3, a4 = r / n1 / n2 / n3;
		i64 local = start + a1 * l1 + a2 * l2 + a3 * l3 + a4 * l4 + j;
		float f[4];
		mask.factors<4>(first + a1 * w1 + a2 * w2 + a3 * w3 + a4 * w4 + j, f);
		if (local % 4 == 0 && j + 4 <= run) {
			Pack<4> z = load<4>(x + local);
			for (int k = 0; k < 4; k++) z[k] = f[k] == 0 ? 0 : z[k] * f[k];
			store(y + local, z);
		} else {
#pragma unroll
			for (int k = 0; k < 4; k++) {
				if (j + k < run) narrow(y[local + k], f[k] == 0 ? 0 : wide(x[local + k]) * f[k]);
			}
		}
	}
}
