// The gradient of attention_mma.cu, in the two passes of attention_grad.cu, where the formulas are.
// In both, each warp of a block has 16 rows. The block visits the rows of the other side step at a
// time, and loads the next ones meanwhile.

// attention_mma_dq is the pass for queries: it has queries and visits keys.
template <int width, int step, int groups>
DEVICE void attention_mma_dq(T* dq, i64 row_dq, const T* dout, const T* q, const T* k, const T* v, const float* lse, const float* delta,
	const Heads& s) {
	const int tile = 64 * groups;
	SHARED(T, memory);
	T *queries = memory, *douts = queries + tile * width, *visited = douts + tile * width; // visited: keys and values, double-buffered
	int first = (blocks_x() - 1 - block_x()) * tile, mine = warp() * 16, head = block_y(), b = block_z(), h = head % s.heads;
	int last = s.last_position(first, tile), last_mine = s.last_position(first + mine / 64 * 64, 64); // of the block, of the group
	i64 row_do = (i64)s.groups * s.heads * width;
	q += b * s.rows * s.row_q + head * width, dq += b * s.rows * row_dq + head * width, dout += b * s.rows * row_do + head * width;
	k += b * s.keys * s.row_kv + h * width, v += b * s.keys * s.row_kv + h * width;

	auto here = [&](int r) { return first + r < s.rows ? first + r : -1; };
	load_tile<width, tile, groups>(queries, q, s.row_q, here);
	load_tile<width, tile, groups>(douts, dout, row_do, here);
	auto load = [&](int j0) {
		T* to = visited + j0 / step % 2 * 2 * step * width;
		load_keys<width, step, groups>(to, k, s, j0);
		load_keys<width, step, groups>(to + step * width, v, s, j0);
		copy_commit();
	};
	load(0);
	float out[width / 8][4] = {}, log_sum[2], d_i[2], scale = s.scale * LOG2E;
	int at[2];
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int row = first + mine + 8 * i + lane() / 4;
		bool valid = row < s.rows;
		i64 statistic = s.log_sum(b, head, row);
		at[i] = valid ? s.position(row) : -1;
		log_sum[i] = valid ? lse[statistic] * LOG2E : 0;
		d_i[i] = valid ? delta[statistic] : 0;
	}
	int least = at[0] < at[1] ? at[0] : at[1];
	copy_wait<0>();
	sync_block();
	Rows<T, width, true> my_queries(queries, mine), my_douts(douts, mine);
	for (int j0 = 0; j0 <= last; j0 += step) {
		copy_wait<0>();
		show_copies();
		sync_block(); // keys have arrived, and no warp reads the ones before
		if (j0 + step <= last) load(j0 + step);
		if (j0 > last_mine) continue;
		const T *keys = visited + j0 / step % 2 * 2 * step * width, *values = keys + step * width;
		float score[step / 8][4], d[step / 8][4];
		my_queries.times(score, keys);
		my_douts.times(d, values);
		settled<1>(score);
#pragma unroll
		for (int n = 0; n < step / 8; n++) {
#pragma unroll
			for (int e = 0; e < 4; e++) score[n][e] = exp2_fast(score[n][e] * scale - log_sum[e / 2]);
		}
		if (j0 + step - 1 > least) hide(score, at, j0, 0);
		settled<0>(d);
		if (s.threshold) { // the mask is rare, and registers are few
			u64 mask_row = s.mask_row(b, head) + j0;
			drop(d, kept<step / 8>(s.mask(), mask_row + (u64)at[0] * s.keys, mask_row + (u64)at[1] * s.keys), s.keep);
		}
#pragma unroll
		for (int n = 0; n < step / 8; n++) {
#pragma unroll
			for (int e = 0; e < 4; e++) score[n][e] *= d[n][e] - d_i[e / 2];
		}
		u32 a[step / 16][4];
		as_lefts(T(), a, score);
		add_weighted<width, step>(out, a, keys);
		settled<0>(out, a);
	}
	write_rows<width>(dq, row_dq, queries, mine, out, s.scale, s.scale, here);
}

// attention_mma_dkv is the pass for keys and values: it has keys and visits the queries of all
// groups. Its scores are transposed: [key][query].
template <int width, int step, int groups>
DEVICE void attention_mma_dkv(T* dk, T* dv, i64 row_dkv, const T* dout, const T* q, const T* k, const T* v, const float* lse, const float* delta,
	const Heads& s) {
	const int tile = 64 * groups;
	SHARED(T, memory);
	T *keys = memory, *values = keys + tile * width, *visited = values + tile * width; // visited: queries and gradients, double-buffered
	float* statistics = (float*)(visited + 4 * step * width); // log-sum, delta and position of queries, double-buffered
	int j0 = block_x() * tile, mine = warp() * 16, h = block_y(), b = block_z(), j = j0 + mine + lane() / 4; // the thread's keys are j and j+8
	int j_mine = j0 + mine / 64 * 64; // the first key of the group
	i64 row_do = (i64)s.groups * s.heads * width;
	q += b * s.rows * s.row_q, dout += b * s.rows * row_do;
	k += b * s.keys * s.row_kv + h * width, v += b * s.keys * s.row_kv + h * width;

	auto place = [&](int r) { return j0 + r < s.keys ? s.row_of(j0 + r) : -1; };
	load_keys<width, tile, groups>(keys, k, s, j0);
	load_keys<width, tile, groups>(values, v, s, j0);
	// Visits are numbered through all groups. Without folding, the first queries see none of the
	// keys and are skipped.
	int skipped = s.parts <= 1 && j0 > s.row0 ? (j0 - s.row0) / step : 0;
	int visits = (s.rows + step - 1) / step - skipped, all = visits > 0 ? visits * s.groups : 0;
	float log_sum_of = 0, delta_of = 0; // statistics of this thread's query of the visit that is being loaded
	int at_of = -1;
	auto load = [&](int visit, int head, int first) {
		T* to = visited + visit % 2 * 2 * step * width;
		auto here = [&](int r) { return first + r < s.rows ? first + r : -1; };
		load_tile<width, step, groups>(to, q + head * width, s.row_q, here);
		load_tile<width, step, groups>(to + step * width, dout + head * width, row_do, here);
		copy_commit();
		int row = first + thread();
		bool valid = thread() < step && row < s.rows;
		i64 from = s.log_sum(b, head, row);
		log_sum_of = valid ? lse[from] : 0, delta_of = valid ? delta[from] : 0, at_of = valid ? s.position(row) : -1;
	};
	// Statistics are stored in the middle of the current visit, so that no thread waits for their loads.
	auto store_statistics = [&](int visit) {
		if (thread() >= step) return;
		float* of = statistics + visit % 2 * 3 * step;
		of[thread()] = log_sum_of * LOG2E, of[step + thread()] = delta_of;
		((int*)of)[2 * step + thread()] = at_of;
	};
	int head = h, first = skipped * step;
	if (all > 0) load(0, head, first);
	else copy_commit();
	store_statistics(0);
	float out_k[width / 8][4] = {}, out_v[width / 8][4] = {}, scale = s.scale * LOG2E;

	copy_wait<0>();
	sync_block();
	Rows<T, width, width == 64> my_keys(keys, mine), my_values(values, mine);
	for (int visit = 0; visit < all; visit++) {
		int now = first;
		first = now + step < s.rows ? now + step : skipped * step, head = now + step < s.rows ? head : head + s.heads;
		copy_wait<0>();
		show_copies();
		sync_block(); // queries have arrived, and no warp reads the ones before
		if (visit + 1 < all) load(visit + 1, head, first);
		if (s.parts <= 1 && s.row0 + now + step <= j_mine) { // they see no key of the group
			store_statistics(visit + 1);
			continue;
		}
		const T *queries = visited + visit % 2 * 2 * step * width, *douts = queries + step * width;
		const float *log_sum = statistics + visit % 2 * 3 * step, *d_i = log_sum + step;
		const int* at = (const int*)(d_i + step);
		float score[step / 8][4], d[step / 8][4];
		my_keys.times(score, queries);
		my_values.times(d, douts);
		settled<1>(score);
#pragma unroll
		for (int n = 0; n < step / 8; n++) {
			Pack<2> sums = ::load<2>(log_sum + column_of(n));
#pragma unroll
			for (int e = 0; e < 4; e++) score[n][e] = exp2_fast(score[n][e] * scale - sums[e % 2]);
		}
		if (s.parts > 1 || now + step > s.rows || s.row0 + now < j_mine + 63) {
#pragma unroll
			for (int n = 0; n < step / 8; n++) {
#pragma unroll
				for (int e = 0; e < 4; e++) score[n][e] = j + e / 2 * 8 <= at[column_of(n) + e % 2] ? score[n][e] : 0;
			}
		}
		settled<0>(d);
		store_statistics(visit + 1);
		u32 kept = 0;
		if (s.threshold) {
			Mask mask = s.mask();
			u64 mask_key = s.mask_row(b, h + visit / (all / s.groups) * s.heads) + j;
#pragma unroll 1
			for (int i = 0; i < step / 2; i++) {
				kept |= mask.kept<1>(mask_key + (u64)at[column_of(i / 4) + i % 2] * s.keys + i / 2 % 2 * 8) << i;
			}
			drop(d, kept, s.keep);
		}
#pragma unroll
		for (int n = 0; n < step / 8; n++) {
			Pack<2> deltas = ::load<2>(d_i + column_of(n));
#pragma unroll
			for (int e = 0; e < 4; e++) d[n][e] = score[n][e] * (d[n][e] - deltas[e % 2]);
		}
		u32 a[step / 16][4], a2[step / 16][4];
		as_lefts(T(), a, d);
		add_weighted<width, step>(out_k, a, queries);
		if (s.threshold) drop(score, kept, s.keep);
		as_lefts(T(), a2, score);
		add_weighted<width, step>(out_v, a2, douts);
		settled<0>(out_k, out_v, a, a2);
	}
	i64 to = b * s.keys * row_dkv + h * width;
	write_rows<width>(dk + to, row_dkv, keys, mine, out_k, s.scale, s.scale, place);
	write_rows<width>(dv + to, row_dkv, values, mine, out_v, 1, 1, place);
}
#define GRAD(width, step, groups, blocks) \
	SHARED_KERNEL(attention_mma_dq_##width, 128 * groups, warpgroups ? blocks : 1)(T* dq, i64 row_dq, const T* dout, const T* q, const T* k, const T* v, const float* lse, \
		const float* delta, HEADS_PARAMS) { \
		attention_mma_dq<width, step, groups>(dq, row_dq, dout, q, k, v, lse, delta, HEADS); \
	} \
	SHARED_KERNEL(attention_mma_dkv_##width, 128 * groups, warpgroups ? blocks : 1)(T* dk, T* dv, i64 row_dkv, const T* dout, const T* q, const T* k, const T* v, const float* lse, \
		const float* delta, HEADS_PARAMS) { \
		attention_mma_dkv<width, step, groups>(dk, dv, row_dkv, dout, q, k, v, lse, delta, HEADS); \
	}
GRAD(64, 32, 2, 2)
GRAD(128, 32, 1, 1)
#undef GRAD
