// The gradient of attention.cu, in two passes that recompute probabilities from log-sums. In the
// pass for queries a block has 32 queries and visits all keys. In the pass for keys and values a
// block has 32 keys and visits all queries of its head. So each sum is taken by one block, in a
// fixed order.

// dots sets x to the dot product of a1 and b1, and y to that of a2 and b2.
DEVICE void dots(float& x, float& y, const float* a1, const float* b1, const float* a2, const float* b2, int n) {
	x = y = 0;
	for (int i = 0; i < n; i++) x += a1[i] * b1[i], y += a2[i] * b2[i];
}

// attention_dq: dq_i = scale * sum over j of ds_ij k_j, with ds_ij = p_ij (m_ij do_i*v_j - delta_i). Rows of dq are row_dq apart.
template <int per>
DEVICE void attention_dq(T* dq, i64 row_dq, const T* dout, const T* q, const T* k, const T* v, const float* lse, const float* delta, const Heads& s) {
	SHARED(float, memory);
	int ld = s.width + 1;
	float *queries = memory, *douts = queries + 32 * ld, *keys = douts + 32 * ld, *values = keys + 32 * ld, *grads = values + 32 * ld;
	int tile = (blocks_x() - 1 - block_x()) * 32, head = block_y(), b = block_z(), h = head % s.heads;
	int r = thread() / 8, c = thread() % 8, row = tile + r, i = row < s.rows ? s.position(row) : -1;
	i64 row_do = (i64)s.groups * s.heads * s.width, statistic = s.log_sum(b, head, row);
	q += b * s.rows * s.row_q + head * s.width, dq += b * s.rows * row_dq + head * s.width;
	k += b * s.keys * s.row_kv + h * s.width, v += b * s.keys * s.row_kv + h * s.width;
	dout += b * s.rows * row_do + head * s.width;
	Mask mask = s.mask();
	u64 mask_row = s.mask_row(b, head) + (u64)i * s.keys;
	float log_sum = i < 0 ? 0 : lse[statistic], d_i = i < 0 ? 0 : delta[statistic];

	auto here = [&](int r) { return tile + r < s.rows ? tile + r : -1; };
	load_rows(queries, q, s.row_q, s.width, here);
	load_rows(douts, dout, row_do, s.width, here);
	float out[per] = {};
	for (int j0 = 0, last = s.last_position(tile, 32); j0 <= last; j0 += 32) {
		auto place = [&](int r) { return j0 + r < s.keys ? s.row_of(j0 + r) : -1; };
		sync_block();
		load_rows(keys, k, s.row_kv, s.width, place);
		load_rows(values, v, s.row_kv, s.width, place);
		sync_block();
		for (int n = 0; n < 4; n++) {
			int j = c + 8 * n;
			float score, d, f = 1;
			dots(score, d, queries + r * ld, keys + j * ld, douts + r * ld, values + j * ld, s.width);
			if (s.threshold) mask.factors<1>(mask_row + j0 + j, &f);
			grads[r * 33 + j] = j0 + j <= i ? expf(score * s.scale - log_sum) * (f * d - d_i) * s.scale : 0;
		}
		sync_block();
		add_product(out, grads + r * 33, keys + c, s.width - c, ld);
	}
	if (i < 0) return;
#pragma unroll
	for (int n = 0; n < per; n++) {
		if (c + 8 * n < s.width) narrow(dq[row * row_dq + c + 8 * n], out[n]);
	}
}

// attention_dkv: dk_j = scale * sum over i of ds_ij q_i and dv_j = sum over i of m_ij p_ij do_i,
// over the queries of all groups. Rows of dk and dv are row_dkv apart.
template <int per>
DEVICE void attention_dkv(T* dk, T* dv, i64 row_dkv, const T* dout, const T* q, const T* k, const T* v, const float* lse, const float* delta,
	const Heads& s) {
	SHARED(float, memory);
	int ld = s.width + 1;
	float *keys = memory, *values = keys + 32 * ld, *queries = values + 32 * ld, *douts = queries + 32 * ld;
	float *grads = douts + 32 * ld, *probs = grads + 32 * 33, *sums = probs + 32 * 33, *deltas = sums + 32; // grads and probs are [key][query]
	int* at = (int*)(deltas + 32); // positions of the queries
	int j0 = block_x() * 32, h = block_y(), b = block_z(), r = thread() / 8, c = thread() % 8, j = j0 + r;
	i64 row_do = (i64)s.groups * s.heads * s.width;
	q += b * s.rows * s.row_q, dout += b * s.rows * row_do;
	k += b * s.keys * s.row_kv + h * s.width, v += b * s.keys * s.row_kv + h * s.width;
	dk += b * s.keys * row_dkv + h * s.width, dv += b * s.keys * row_dkv + h * s.width;
	Mask mask = s.mask();

	auto place = [&](int r) { return j0 + r < s.keys ? s.row_of(j0 + r) : -1; };
	load_rows(keys, k, s.row_kv, s.width, place);
	load_rows(values, v, s.row_kv, s.width, place);
	float out_k[per] = {}, out_v[per] = {};
	for (int g = 0; g < s.groups; g++) {
		int head = g * s.heads + h;
		for (int tile = 0; tile < s.rows; tile += 32) {
			if (s.last_position(tile, 32) < j0) continue;
			sync_block();
			auto here = [&](int r) { return tile + r < s.rows ? tile + r : -1; };
			load_rows(queries, q + head * s.width, s.row_q, s.width, here);
			load_rows(douts, dout + head * s.width, row_do, s.width, here);
			if (thread() < 32) {
				int row = tile + thread();
				bool valid = row < s.rows;
				i64 statistic = s.log_sum(b, head, row);
				at[thread()] = valid ? s.position(row) : -1;
				sums[thread()] = valid ? lse[statistic] : 0;
				deltas[thread()] = valid ? delta[statistic] : 0;
			}
			sync_block();
			for (int n = 0; n < 4; n++) {
				int i = c + 8 * n;
				float score, d, f = 1;
				dots(score, d, queries + i * ld, keys + r * ld, douts + i * ld, values + r * ld, s.width);
				if (s.threshold) mask.factors<1>(s.mask_row(b, head) + (u64)at[i] * s.keys + j, &f);
				float p = j <= at[i] ? expf(score * s.scale - sums[i]) : 0;
				probs[r * 33 + i] = p * f;
				grads[r * 33 + i] = p * (f * d - deltas[i]) * s.scale;
			}
			sync_block();
			add_product(out_k, grads + r * 33, queries + c, s.width - c, ld);
			add_product(out_v, probs + r * 33, douts + c, s.width - c, ld);
		}
	}
	if (j >= s.keys) return;
	int row = s.row_of(j);
#pragma unroll
	for (int n = 0; n < per; n++) {
		if (c + 8 * n < s.width) {
			narrow(dk[row * row_dkv + c + 8 * n], out_k[n]);
			narrow(dv[row * row_dkv + c + 8 * n], out_v[n]);
		}
	}
}
#define ATTENTION_GRAD(most) \
	LARGE_KERNEL(attention_dq_##most, 256)(T* dq, i64 row_dq, const T* dout, const T* q, const T* k, const T* v, const float* lse, const float* delta, \
		HEADS_PARAMS) { \
		attention_dq<most / 8>(dq, row_dq, dout, q, k, v, lse, delta, HEADS); \
	} \
	LARGE_KERNEL(attention_dkv_##most, 256)(T* dk, T* dv, i64 row_dkv, const T* dout, const T* q, const T* k, const T* v, const float* lse, \
		const float* delta, HEADS_PARAMS) { \
		attention_dkv<most / 8>(dk, dv, row_dkv, dout, q, k, v, lse, delta, HEADS); \
	}
ATTENTION_GRAD(64)
ATTENTION_GRAD(128)
ATTENTION_GRAD(256)
#undef ATTENTION_GRAD
