// Causal attention on tensor cores, for two-byte types and heads of 64 or 128 elements (Dao,
// "FlashAttention-2", 2023). A block has 4 warps with 16*per queries each, and visits keys 64 at a
// time. Probabilities stay in registers.

template <int width, int per> DEVICE void attention_mma(T* o, float* lse, const T* q, const T* k, const T* v, const Heads& s) {
	const int tile = 64 * per, step = 64;
	SHARED(T, memory);
	T *queries = memory, *keys = queries + tile * width, *values = keys + step * width;
	int first = (blocks_x() - 1 - block_x()) * tile, mine = warp() * 16 * per, head = block_y(), b = block_z(), h = head % s.heads;
	int last = s.last_position(first, tile);
	q += b * s.rows * s.row_q + head * width;
	k += b * s.keys * s.row_kv + h * width, v += b * s.keys * s.row_kv + h * width;

	load_tile<width, tile>(queries, q, s.row_q, [&](int r) { return first + r < s.rows ? first + r : -1; });
	auto load = [&](T* to, const T* from, int j0) {
		load_keys<width, step>(to, from, s, j0);
		copy_commit();
	};
	load(keys, k, 0);

	float out[per][width / 8][4] = {}, top[per][2], total[per][2] = {}; // totals of the columns of this thread
	int at[per][2], least = s.keys; // positions of the thread's rows
#pragma unroll
	for (int m = 0; m < per; m++) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			int row = first + mine + 16 * m + 8 * i + lane() / 4;
			at[m][i] = row < s.rows ? s.position(row) : -1;
			least = at[m][i] < least ? at[m][i] : least;
			top[m][i] = -INF;
		}
	}
	float scale = s.scale * LOG2E;
	Mask mask = s.mask();
	u64 mask_row = s.mask_row(b, head);

	copy_wait<0>();
	sync_block();
	u32 query[width / 16][per][4];
#pragma unroll
	for (int c = 0; c < width / 16; c++) {
#pragma unroll
		for (int m = 0; m < per; m++) left<width>(query[c][m], queries, mine + 16 * m, c);
	}
	for (int j0 = 0; j0 <= last; j0 += step) {
		copy_wait<0>();
		sync_block(); // keys have arrived, and no warp reads values any more
		load(values, v, j0);
		float score[per][step / 8][4] = {};
#pragma unroll
		for (int c = 0; c < width / 16; c++) {
#pragma unroll
			for (int n = 0; n < step / 16; n++) {
				u32 b[4];
				right<width>(b, keys, 16 * n, c);
#pragma unroll
				for (int m = 0; m < per; m++) mma_pair(T(), score[m][2 * n], score[m][2 * n + 1], query[c][m], b);
			}
		}
		copy_wait<0>();
		sync_block(); // values have arrived, and no warp reads keys any more
		if (j0 + step <= last) load(keys, k, j0 + step);

		if (j0 + step - 1 > least) {
#pragma unroll
			for (int m = 0; m < per; m++) hide(score[m], at[m], j0, -INF);
		}
#pragma unroll
		for (int m = 0; m < per; m++) {
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float peak = top[m][i];
#pragma unroll
				for (int n = 0; n < step / 8; n++) peak = fmaxf(peak, fmaxf(score[m][n][2 * i], score[m][n][2 * i + 1]));
				peak = max_of_4(peak);
				float base = peak == -INF ? 0 : peak * scale, shrink = exp2_fast(top[m][i] * scale - base), sum = 0;
				top[m][i] = peak;
#pragma unroll
				for (int n = 0; n < step / 8; n++) {
#pragma unroll
					for (int e = 0; e < 2; e++) {
						float& x = score[m][n][2 * i + e];
						x = exp2_fast(x * scale - base);
						sum += x;
					}
				}
				total[m][i] = total[m][i] * shrink + sum;
#pragma unroll
				for (int n = 0; n < width / 8; n++) out[m][n][2 * i] *= shrink, out[m][n][2 * i + 1] *= shrink;
			}
		}
		if (s.threshold) {
#pragma unroll
			for (int m = 0; m < per; m++) {
				u64 row0 = mask_row + (u64)at[m][0] * s.keys + j0, row1 = mask_row + (u64)at[m][1] * s.keys + j0;
				drop(score[m], kept<step / 8>(mask, row0, row1), s.keep);
			}
		}
#pragma unroll
		for (int c = 0; c < step / 16; c++) {
			u32 a[per][4];
#pragma unroll
			for (int m = 0; m < per; m++) as_left(T(), a[m], score[m][2 * c], score[m][2 * c + 1]);
#pragma unroll
			for (int n = 0; n < width / 16; n++) {
				u32 b[4];
				right_rows<width>(b, values, 16 * c, n);
#pragma unroll
				for (int m = 0; m < per; m++) mma_pair(T(), out[m][2 * n], out[m][2 * n + 1], a[m], b);
			}
		}
	}

	i64 row_o = (i64)s.groups * s.heads * width;
	o += b * s.rows * row_o + head * width;
	lse += ((i64)b * s.groups * s.heads + head) * s.rows;
#pragma unroll
	for (int m = 0; m < per; m++) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			total[m][i] = sum_of_4(total[m][i]);
			int row = first + mine + 16 * m + 8 * i + lane() / 4;
			if (row < s.rows && lane() % 4 == 0) lse[row] = top[m][i] * s.scale + logf(total[m][i]);
		}
		write_rows<width>(o, row_o, queries, mine + 16 * m, out[m], 1 / total[m][0], 1 / total[m][1],
			[&](int r) { return first + r < s.rows ? first + r : -1; });
	}
}
LARGE_KERNEL(attention_mma_64, 128)(T* o, float* lse, const T* q, const T* k, const T* v, HEADS_PARAMS) {
	attention_mma<64, 2>(o, lse, q, k, v, HEADS);
}
LARGE_KERNEL(attention_mma_128, 128)(T* o, float* lse, const T* q, const T* k, const T* v, HEADS_PARAMS) {
	attention_mma<128, 1>(o, lse, q, k, v, HEADS);
}
