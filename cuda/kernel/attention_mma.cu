// Causal attention on tensor cores, for two-byte types and heads of 64 or 128 elements (Dao,
// "FlashAttention-2", 2023). Each warp of a block has 16 queries. The block visits keys 64 at a time,
// and loads the next ones meanwhile. Probabilities stay in registers.

template <int width, int groups> DEVICE void attention_mma(T* o, float* lse, const T* q, const T* k, const T* v, const Heads& s) {
	const int tile = 64 * groups, step = 64;
	SHARED(T, memory);
	T *queries = memory, *visited = queries + tile * width; // visited: keys and values, double-buffered
	int first = (blocks_x() - 1 - block_x()) * tile, mine = warp() * 16, head = block_y(), b = block_z(), h = head % s.heads;
	int last = s.last_position(first, tile), last_mine = s.last_position(first + mine / 64 * 64, 64); // of the block, of the group
	q += b * s.rows * s.row_q + head * width;
	k += b * s.keys * s.row_kv + h * width, v += b * s.keys * s.row_kv + h * width;

	auto here = [&](int r) { return first + r < s.rows ? first + r : -1; };
	load_tile<width, tile, groups>(queries, q, s.row_q, here);
	auto load = [&](int j0) {
		T* to = visited + j0 / step % 2 * 2 * step * width;
		load_keys<width, step, groups>(to, k, s, j0);
		load_keys<width, step, groups>(to + step * width, v, s, j0);
		copy_commit();
	};
	load(0);

	float out[width / 8][4] = {}, top[2], total[2] = {}; // totals of the columns of this thread
	int at[2]; // positions of the thread's rows
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int row = first + mine + 8 * i + lane() / 4;
		at[i] = row < s.rows ? s.position(row) : -1;
		top[i] = -INF;
	}
	int least = at[0] < at[1] ? at[0] : at[1];
	float scale = s.scale * LOG2E;

	copy_wait<0>();
	sync_block();
	Rows<T, width, true> my_queries(queries, mine);
	for (int j0 = 0; j0 <= last; j0 += step) {
		copy_wait<0>();
		show_copies();
		sync_block(); // keys have arrived, and no warp reads the ones before
		if (j0 + step <= last) load(j0 + step);
		if (j0 > last_mine) continue;
		const T *keys = visited + j0 / step % 2 * 2 * step * width, *values = keys + step * width;
		float score[step / 8][4];
		my_queries.times(score, keys);
		settled<0>(score);

		if (j0 + step - 1 > least) hide(score, at, j0, -INF);
		// Scores are taken relative to top, which need not be the largest one so far: it follows when
		// that is 2^8 times as much, so that the results so far are seldom scaled.
		float peak[2];
		bool higher = false;
#pragma unroll
		for (int i = 0; i < 2; i++) {
			peak[i] = -INF;
#pragma unroll
			for (int n = 0; n < step / 8; n++) peak[i] = fmaxf(peak[i], fmaxf(score[n][2 * i], score[n][2 * i + 1]));
			peak[i] = max_of_4(peak[i]);
			higher |= (peak[i] - top[i]) * scale > 8;
		}
		if (ballot(higher)) {
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float next = fmaxf(top[i], peak[i]), shrink = top[i] == -INF ? 0 : exp2_fast((top[i] - next) * scale);
				top[i] = next, total[i] *= shrink;
#pragma unroll
				for (int n = 0; n < width / 8; n++) out[n][2 * i] *= shrink, out[n][2 * i + 1] *= shrink;
			}
		}
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float base = top[i] == -INF ? 0 : top[i] * scale, sum[2] = {};
#pragma unroll
			for (int n = 0; n < step / 8; n++) {
#pragma unroll
				for (int e = 0; e < 2; e++) {
					float& x = score[n][2 * i + e];
					x = exp2_fast(x * scale - base);
					sum[e] += x;
				}
			}
			total[i] += sum[0] + sum[1];
		}
		if (s.threshold) { // the mask is rare, and registers are few
			u64 mask_row = s.mask_row(b, head) + j0;
			drop(score, kept<step / 8>(s.mask(), mask_row + (u64)at[0] * s.keys, mask_row + (u64)at[1] * s.keys), s.keep);
		}
		u32 probs[step / 16][4];
		as_lefts(T(), probs, score);
		add_weighted<width, step>(out, probs, values);
		settled<0>(out, probs);
	}

	i64 row_o = (i64)s.groups * s.heads * width;
	o += b * s.rows * row_o + head * width;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		total[i] = sum_of_4(total[i]);
		int row = first + mine + 8 * i + lane() / 4;
		if (row < s.rows && lane() % 4 == 0) lse[s.log_sum(b, head, row)] = top[i] * s.scale + logf(total[i]);
	}
	write_rows<width>(o, row_o, queries, mine, out, 1 / total[0], 1 / total[1], here);
}
#define FORWARD(width, groups, blocks) \
	SHARED_KERNEL(attention_mma_##width, 128 * groups, warpgroups ? blocks : 1)(T* o, float* lse, const T* q, const T* k, const T* v, HEADS_PARAMS) { \
		attention_mma<width, groups>(o, lse, q, k, v, HEADS); \
	}
FORWARD(64, 2, 2)
FORWARD(128, 2, 1)
#undef FORWARD
