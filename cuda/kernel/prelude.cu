// What all programs share, on top of primitives.cu. T is the element type for which a program is
// compiled: float, bf16 or f16.

#define INF as_float(0x7f800000)
#define NAN_ as_float(0x7fc00000)
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
// KERNEL begins a function that the host launches, for this element type, in blocks of at most most
// threads.
#define KERNEL(name, most) extern "C" __global__ void __launch_bounds__(most) JOIN(name, TYPE)
// SHARED_KERNEL is KERNEL for functions of which so many blocks share the registers of a
// multiprocessor; with LARGE_KERNEL, one block may use all of them.
#define SHARED_KERNEL(name, most, blocks) extern "C" __global__ void __launch_bounds__(most, blocks) JOIN(name, TYPE)
#define LARGE_KERNEL(name, most) SHARED_KERNEL(name, most, 1)
#define WARP 32

DEVICE int lane() { return thread() & (WARP - 1); }
DEVICE int warp() { return thread() / WARP; }

// first_bit is the number of the lowest set bit of x, which must not be 0.
DEVICE int first_bit(u32 x) { return popcount((x & (0u - x)) - 1); }

DEVICE float wide(float x) { return x; }
DEVICE void narrow(float& y, float x) { y = x; }
template <class H> DEVICE void narrow(H& y, float x) { y.bits = (u16)pack(H(), x, 0.0f); }

// rounded rounds x to type H.
template <class H> DEVICE float rounded(float x) {
	H y;
	narrow(y, x);
	return wide(y);
}

// Pack is n numbers that were loaded together, in f32.
template <int n> struct Pack {
	float v[n];
	DEVICE float& operator[](int i) { return v[i]; }
	DEVICE float operator[](int i) const { return v[i]; }
};

template <int bytes> struct __attribute__((aligned(bytes))) Words { u32 w[bytes / 4]; };

DEVICE void unpack(bf16, u32 w, float* to) { to[0] = as_float(w << 16), to[1] = as_float(w & 0xffff0000); }
DEVICE void unpack(f16, u32 w, float* to) { to[0] = wide(f16{(u16)w}), to[1] = wide(f16{(u16)(w >> 16)}); }

// words reads n elements in one access, and numbers makes numbers of them. A thread that reads long
// before it computes keeps the words, which take half the registers if the type has two bytes.
template <int n, class H> DEVICE auto words(const H* p) {
	if constexpr (n * sizeof(H) < 4) return *p;
	else return *(const Words<n * (int)sizeof(H)>*)p;
}
template <int n, class H, class W> DEVICE Pack<n> numbers(const W& words) {
	Pack<n> x;
	if constexpr (n * sizeof(H) < 4) {
		x[0] = wide(words);
	} else if constexpr (sizeof(H) == 4) {
		for (int i = 0; i < n; i++) x[i] = as_float(words.w[i]);
	} else {
		for (int i = 0; i < n / 2; i++) unpack(H(), words.w[i], x.v + 2 * i);
	}
	return x;
}

// load and store move n elements in one access. The address must be a multiple of its size.
template <int n, class H> DEVICE Pack<n> load(const H* p) { return numbers<n, H>(words<n>(p)); }
template <int n> DEVICE void store(float* p, const Pack<n>& x) {
	Words<4 * n> raw;
	for (int i = 0; i < n; i++) raw.w[i] = as_bits(x[i]);
	*(Words<4 * n>*)p = raw;
}
template <int n, class H> DEVICE void store(H* p, const Pack<n>& x) {
	if constexpr (n == 1) {
		narrow(*p, x[0]);
	} else {
		Words<2 * n> raw;
		for (int i = 0; i < n / 2; i++) raw.w[i] = pack(H(), x[2 * i], x[2 * i + 1]);
		*(Words<2 * n>*)p = raw;
	}
}

// Int tells a generic lambda how many elements to take at a time.
template <int n> struct Int { static const int value = n; };

// each visits n elements with many threads; the calling one is number at. It calls f(Int, i) for
// elements i, i+1, ...: 16 bytes of H at a time if they are aligned, and one by one for those at the
// end, or for all if they are not aligned.
template <class H, class N, class F> DEVICE void each(N n, bool aligned, decltype(n) at, decltype(n) many, F f) {
	const int width = 16 / sizeof(H);
	N packs = aligned ? n / width : 0;
	for (N i = at; i < packs; i += many) f(Int<width>(), i * width);
	for (N i = packs * width + at; i < n; i += many) f(Int<1>(), i);
}

// each_ahead is each for what is read and then written: write(Int, i, x) gets the x that read(Int, i)
// has returned. A thread reads up to few times before it writes, so that it waits for all of these
// together. The compiler could not do so, because a write may be to the place of the next read.
template <class H, int few, class N, class R, class W> DEVICE void each_ahead(N n, bool aligned, decltype(n) at, decltype(n) many, R read, W write) {
	const int width = 16 / sizeof(H);
	const Int<width> taken;
	N packs = aligned ? n / width : 0, i = at;
	for (; i + (few - 1) * many < packs; i += few * many) {
		decltype(read(taken, i)) x[few];
#pragma unroll
		for (int k = 0; k < few; k++) x[k] = read(taken, (i + k * many) * width);
#pragma unroll
		for (int k = 0; k < few; k++) write(taken, (i + k * many) * width, x[k]);
	}
	for (; i < packs; i += many) write(taken, i * width, read(taken, i * width));
	for (i = packs * width + at; i < n; i += many) write(Int<1>(), i, read(Int<1>(), i));
}

// each_of_all is each with all threads of the launch.
template <class H, class F> DEVICE void each_of_all(i64 n, bool aligned, F f) {
	each<H>(n, aligned, (i64)block_x() * threads() + thread(), (i64)blocks_x() * threads(), f);
}

// lines_up reports whether every row of cols elements starts at a multiple of 16 bytes if the first
// one does.
template <class H> DEVICE bool lines_up(i64 cols) { return cols % (16 / sizeof(H)) == 0; }

DEVICE float warp_sum(float x) {
	for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
	return x;
}
DEVICE float warp_max(float x) {
	for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
	return x;
}

// block_reduce combines one number of each thread, in a fixed order, and returns the result to all
// threads. The number of threads must be a power of two, at most 256.
template <class N, class F> DEVICE N block_reduce(N x, F combine) {
	__shared__ N of[256];
	sync_block();
	of[thread()] = x;
	for (int half = threads() / 2; half > 0; half /= 2) {
		sync_block();
		if (thread() < half) of[thread()] = combine(of[thread()], of[thread() + half]);
	}
	sync_block();
	return of[0];
}

// Mask is a dropout mask: see ir/philox. Element i of the whole tensor is kept if its random bits
// reach the threshold.
struct Mask {
	u32 seed, op, step;
	u64 threshold;
	float scale; // of kept elements

	// block computes the random bits of elements 4*n to 4*n+3 (Philox 4x32-10).
	DEVICE void block(u64 n, u32 (&c)[4]) const {
		c[0] = (u32)n, c[1] = (u32)(n >> 32), c[2] = op, c[3] = step;
		u32 key0 = seed, key1 = 0;
#pragma unroll
		for (int round = 0; round < 10; round++) {
			u64 p0 = (u64)0xD2511F53u * c[0], p1 = (u64)0xCD9E8D57u * c[2];
			u32 c0 = (u32)(p1 >> 32) ^ c[1] ^ key0, c2 = (u32)(p0 >> 32) ^ c[3] ^ key1;
			c[0] = c0, c[1] = (u32)p1, c[2] = c2, c[3] = (u32)p0;
			key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
		}
	}
	DEVICE float of(u32 bits) const { return bits >= threshold ? scale : 0.0f; }

	// kept returns a word with bit j set if element i+j is kept, for j < n.
	template <int n> DEVICE u32 kept(u64 i) const {
		u32 bits = 0;
		float f[n];
		factors<n>(i, f);
#pragma unroll
		for (int j = 0; j < n; j++) bits |= (u32)(f[j] != 0) << j;
		return bits;
	}

	// factors sets f to the factors of elements i, i+1, ...: scale if kept, else 0.
	template <int n> DEVICE void factors(u64 i, float* f) const {
		u32 c[4];
		block(i / 4, c);
#pragma unroll
		for (int j = 0; j < n; j++) {
			int at = (int)((i + j) % 4);
			if (j > 0 && at == 0) block((i + j) / 4, c);
			f[j] = of(at == 0 ? c[0] : at == 1 ? c[1] : at == 2 ? c[2] : c[3]);
		}
	}
};
