// Causal attention in tiles of 32 queries by 32 keys (Dao et al., "FlashAttention", 2022), for any
// type and heads of up to 256 elements. 8 threads share a query: each has every 8th key of a tile
// and every 8th element of the result.

DEVICE float dot(const float* a, const float* b, int n) {
	float sum = 0;
	for (int i = 0; i < n; i++) sum += a[i] * b[i];
	return sum;
}

// The 8 threads of a query are lanes of the same warp.
DEVICE float sum_of_8(float x) {
	for (int mask = 4; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
	return x;
}
DEVICE float max_of_8(float x) {
	for (int mask = 4; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
	return x;
}

// per is how many elements of the result a thread has.
template <int per> DEVICE void attention(T* o, float* lse, const T* q, const T* k, const T* v, const Heads& s) {
	SHARED(float, memory);
	int ld = s.width + 1;
	float *queries = memory, *keys = queries + 32 * ld, *probs = keys + 32 * ld; // keys holds keys, then values; rows of probs are 33 apart
	int tile = (blocks_x() - 1 - block_x()) * 32, head = block_y(), b = block_z(), h = head % s.heads;
	int r = thread() / 8, c = thread() % 8, row = tile + r, i = row < s.rows ? s.position(row) : -1;
	q += b * s.rows * s.row_q + head * s.width;
	k += b * s.keys * s.row_kv + h * s.width, v += b * s.keys * s.row_kv + h * s.width;
	Mask mask = s.mask();
	u64 mask_row = s.mask_row(b, head) + (u64)i * s.keys;

	load_rows(queries, q, s.row_q, s.width, [&](int r) { return tile + r < s.rows ? tile + r : -1; });
	float out[per] = {}, top = -INF, total = 0;
	for (int j0 = 0, last = s.last_position(tile, 32); j0 <= last; j0 += 32) {
		auto place = [&](int r) { return j0 + r < s.keys ? s.row_of(j0 + r) : -1; };
		sync_block();
		load_rows(keys, k, s.row_kv, s.width, place);
		sync_block();
		float score[4], peak = top;
		for (int n = 0; n < 4; n++) {
			score[n] = j0 + c + 8 * n <= i ? dot(queries + r * ld, keys + (c + 8 * n) * ld, s.width) * s.scale : -INF;
			peak = fmaxf(peak, score[n]);
		}
		peak = max_of_8(peak);
		float shrink = expf(top - peak), sum = 0;
		for (int n = 0; n < 4; n++) {
			int j = c + 8 * n;
			float p = expf(score[n] - peak);
			sum += p;
			if (s.threshold) {
				float f;
				mask.factors<1>(mask_row + j0 + j, &f);
				p *= f;
			}
			probs[r * 33 + j] = p;
		}
		total = total * shrink + sum_of_8(sum);
		top = peak;
		sync_block();
		load_rows(keys, v, s.row_kv, s.width, place);
		sync_block();
#pragma unroll
		for (int n = 0; n < per; n++) out[n] *= shrink;
		add_product(out, probs + r * 33, keys + c, s.width - c, ld);
	}
	if (i < 0) return;
	o += ((i64)(b * s.rows + row) * s.groups * s.heads + head) * s.width;
#pragma unroll
	for (int n = 0; n < per; n++) {
		if (c + 8 * n < s.width) narrow(o[c + 8 * n], out[n] / total);
	}
	if (c == 0) lse[s.log_sum(b, head, row)] = top + logf(total);
}
#define ATTENTION(most) \
	LARGE_KERNEL(attention_##most, 256)(T* o, float* lse, const T* q, const T* k, const T* v, HEADS_PARAMS) { \
		attention<most / 8>(o, lse, q, k, v, HEADS); \
	}
ATTENTION(64)
ATTENTION(128)
ATTENTION(256)
#undef ATTENTION

// attention_decode attends from one new position of each sequence to the cached keys [batch, keys,
// 2, heads, width] and to itself, and stores its key and value in the cache at pos. A warp has a
// query head. A position beyond the cache makes NaN.
KERNEL(attention_decode, 32)(T* o, T* cache, const T* qkv, const int* pos, int keys, int heads, int groups, int width, float scale) {
	int head = block_x(), b = block_y(), h = head % heads, at = *pos, part = heads * width;
	const T *q = qkv + (i64)b * (groups + 2) * part + head * width, *k = qkv + ((i64)b * (groups + 2) + groups) * part + h * width, *v = k + part;
	cache += (i64)b * keys * 2 * part + h * width;
	float out[8] = {}, top = -INF, total = at >= 0 && at < keys ? 0 : NAN_;
	for (int j = 0; j <= at && at < keys; j++) {
		const T *key = j < at ? cache + (i64)j * 2 * part : k, *value = j < at ? key + part : v;
		float sum = 0;
		for (int d = lane(); d < width; d += WARP) sum += wide(q[d]) * wide(key[d]);
		float score = warp_sum(sum) * scale, peak = fmaxf(top, score), shrink = expf(top - peak), p = expf(score - peak);
		top = peak;
		total = total * shrink + p;
		for (int n = 0, d = lane(); n < 8 && d < width; n++, d += WARP) out[n] = out[n] * shrink + p * wide(value[d]);
	}
	for (int n = 0, d = lane(); n < 8 && d < width; n++, d += WARP) {
		narrow(o[((i64)b * groups * heads + head) * width + d], out[n] / total);
		if (head < heads && at >= 0 && at < keys) {
			cache[(i64)at * 2 * part + d] = k[d];
			cache[((i64)at * 2 + 1) * part + d] = v[d];
		}
	}
}
