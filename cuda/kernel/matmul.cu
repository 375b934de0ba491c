// Matrix products of which each number has the same bits whatever else is in the product: it is
// summed over k in order. Those of a library depend on the sizes of the whole product. A matrix is
// given by the distances of its elements along both dimensions.

#define TILE 64  // rows and columns of y per block of 256 threads
#define DEEP 16  // elements of k at a time
#define EACH 4   // rows and columns of y per thread, TILE / EACH apart

// fill loads a tile of x to shared memory: rows from i0 on, k from k0 on. Neighbouring threads read
// neighbouring elements.
DEVICE void fill(float (&tile)[DEEP][TILE + 1], const T* x, i64 i0, i64 many, i64 apart, i64 k0, i64 inner, i64 deep) {
	for (int at = thread(); at < DEEP * TILE; at += 256) {
		int k = deep == 1 ? at % DEEP : at / TILE, i = deep == 1 ? at / DEEP : at % TILE;
		bool in = i0 + i < many && k0 + k < inner;
		tile[k][i] = in ? wide(x[(i0 + i) * apart + (k0 + k) * deep]) : 0.0f;
	}
}

// product computes the block's tile of a[m,k] b[k,n] in f32. sum[i][j] belongs to the thread's row
// i and column j.
DEVICE void product(float (&sum)[EACH][EACH], const T* a, const T* b, i64 m, i64 n, i64 inner, i64 am, i64 ak, i64 bk, i64 bn) {
	__shared__ float left[DEEP][TILE + 1], right[DEEP][TILE + 1];
	int row = thread() / (TILE / EACH), col = thread() % (TILE / EACH);
	for (int i = 0; i < EACH; i++)
		for (int j = 0; j < EACH; j++) sum[i][j] = 0;
	for (i64 k0 = 0; k0 < inner; k0 += DEEP) {
		sync_block();
		fill(left, a, (i64)block_x() * TILE, m, am, k0, inner, ak);
		fill(right, b, (i64)block_y() * TILE, n, bn, k0, inner, bk);
		sync_block();
		for (int k = 0; k < DEEP; k++)
			for (int i = 0; i < EACH; i++)
				for (int j = 0; j < EACH; j++) sum[i][j] += left[k][row + i * (TILE / EACH)] * right[k][col + j * (TILE / EACH)];
	}
}

// each_of_tile calls f for every number of the thread with its index in y[m,n], i and j.
template <class F> DEVICE void each_of_tile(i64 m, i64 n, F f) {
	i64 row = (i64)block_x() * TILE + thread() / (TILE / EACH), col = (i64)block_y() * TILE + thread() % (TILE / EACH);
	for (int i = 0; i < EACH; i++)
		for (int j = 0; j < EACH; j++) {
			i64 r = row + i * (TILE / EACH), c = col + j * (TILE / EACH);
			if (r < m && c < n) f(r * n + c, i, j);
		}
}

template <class Y> DEVICE void matmul(Y* y, const T* a, const T* b, i64 m, i64 n, i64 inner, i64 am, i64 ak, i64 bk, i64 bn, int add) {
	float sum[EACH][EACH];
	product(sum, a, b, m, n, inner, am, ak, bk, bn);
	each_of_tile(m, n, [&](i64 at, int i, int j) { narrow(y[at], add ? wide(y[at]) + sum[i][j] : sum[i][j]); });
}
KERNEL(matmul, 256)(T* y, const T* a, const T* b, i64 m, i64 n, i64 inner, i64 am, i64 ak, i64 bk, i64 bn, int add) {
	matmul(y, a, b, m, n, inner, am, ak, bk, bn, add);
}
// matmul_wide has a result in f32.
KERNEL(matmul_wide, 256)(float* y, const T* a, const T* b, i64 m, i64 n, i64 inner, i64 am, i64 ak, i64 bk, i64 bn, int add) {
	matmul(y, a, b, m, n, inner, am, ak, bk, bn, add);
}

// matmul_fixed adds the products of several sequences to y in fixed point. Each sequence has inner
// rows of a and b.
LARGE_KERNEL(matmul_fixed, 256)(i64* y, const T* a, const T* b, i64 m, i64 n, i64 inner, i64 sequences, double scale, int add) {
	i64 total[EACH][EACH];
	each_of_tile(m, n, [&](i64 at, int i, int j) { total[i][j] = add ? y[at] : 0; });
	for (i64 s = 0; s < sequences; s++) {
		float sum[EACH][EACH];
		product(sum, a + s * inner * m, b + s * inner * n, m, n, inner, 1, m, n, 1);
		each_of_tile(m, n, [&](i64, int i, int j) { total[i][j] = fixed_sum(total[i][j], to_fixed(sum[i][j], scale)); });
	}
	each_of_tile(m, n, [&](i64 at, int i, int j) { y[at] = total[i][j]; });
}
#undef TILE
#undef DEEP
#undef EACH
