// What the attention programs share. Queries lie in rows of q, row_q elements apart; keys and
// values in rows of k and v, row_kv apart. With grouped queries, each head of keys and values is
// shared by one query head of every group: query head g*heads + h attends to head h. Results and
// their gradients are dense [batch, rows, groups*heads, width]; log-sums of exponentials are
// [batch, groups*heads, rows]. If a sequence is several rows of a batch, each of length queries here and
// of whole keys, all lies as it does otherwise, except for log-sums: [batch*rows/length, groups*heads,
// length].
//
// Rows are positions, or with context parallelism the rows of a sequence that is folded for several
// parts (FoldRuns in package ir). The queries here start at row row0. Keys are visited by position;
// row_of says in which row they lie. A sequence that is several rows of a batch is folded in each of
// them, in which the queries here start at row0.

#define HEADS_PARAMS \
	i64 row_q, i64 row_kv, int rows, int keys, int heads, int groups, int width, int row0, int parts, float scale, const int *seed, const int *step, \
		u32 op, u64 threshold, float keep, int first_group, int all_groups, int first_head, int all_heads, int first_batch, \
		int length, int whole
#define HEADS {row_q, row_kv, rows, keys, heads, groups, width, row0, parts, scale, seed, step, op, threshold, keep, \
	first_group, all_groups, first_head, all_heads, first_batch, length, whole}

struct Heads {
	i64 row_q, row_kv;
	int rows, keys, heads, groups, width, row0, parts;
	float scale; // of scores
	const int *seed, *step;
	u32 op;
	u64 threshold; // 0 is no dropout
	float keep;
	int first_group, all_groups, first_head, all_heads, first_batch, length, whole;

	DEVICE Mask mask() const { return {(u32)*seed, op, (u32)*step, threshold, keep}; }

	// mask_row is the index in the whole tensor of the probability of a query head at position 0 to
	// key 0.
	DEVICE u64 mask_row(int b, int head) const {
		u64 g = first_group + head / heads, h = first_head + head % heads;
		return (((u64)(first_batch + b) * all_groups + g) * all_heads + h) * keys * keys;
	}

	// log_sum is the index of the log-sum of a query row of a head.
	DEVICE i64 log_sum(int b, int head, int row) const {
		int all = groups * heads;
		i64 at = (i64)b * all * rows + (i64)head * length + row;
		if (length < rows) at += (i64)(row / length) * (all - 1) * length;
		return at;
	}

	// position maps a query row to its position, row_of a position to its row.
	DEVICE int position(int row) const {
		if (parts <= 1) return row0 + row;
		return row / length * whole + unfolded(row0 + row % length, whole);
	}
	DEVICE int row_of(int position) const {
		if (parts <= 1) return position;
		return position / whole * whole + folded(position % whole, whole);
	}

	// unfolded maps a row of size folded ones to its position, folded the other way round. Row r
	// belongs to part r / (rows of a part); the first rest parts have one row more. Of a part's rows
	// the first half, rounded up, come from the front of the sequence, and the others from its back.
	DEVICE int unfolded(int row, int size) const {
		int less = size / parts, rest = size % parts;
		int part = row < rest * (less + 1) ? row / (less + 1) : (row - rest) / less;
		int longer = part < rest ? part : rest, shorter = part - longer, own = less + (part < rest);
		int at = row - part * less - longer, early = (own + 1) / 2;
		if (at < early) return longer * ((less + 2) / 2) + shorter * ((less + 1) / 2) + at;
		return size - longer * ((less + 1) / 2) - shorter * (less / 2) - own + at;
	}
	DEVICE int folded(int position, int size) const {
		int less = size / parts, rest = size % parts;
		int long_early = (less + 2) / 2, early = (less + 1) / 2, long_late = (less + 1) / 2, late = less / 2;
		int part, at;
		if (position < rest * long_early + (parts - rest) * early) {
			part = position < rest * long_early ? position / long_early : rest + (position - rest * long_early) / early;
			int longer = part < rest ? part : rest;
			at = position - longer * long_early - (part - longer) * early;
		} else {
			int back = size - 1 - position;
			part = back < rest * long_late ? back / long_late : rest + (back - rest * long_late) / late;
			int longer = part < rest ? part : rest;
			at = less + (part < rest) - 1 - (back - longer * long_late - (part - longer) * late);
		}
		return part * less + (part < rest ? part : rest) + at;
	}

	// last_position is the largest position of the queries in a tile of size rows from first on.
	// All lanes of a warp call it.
	DEVICE int last_position(int first, int size) const {
		int end = first + size < rows ? first + size : rows, last = 0;
		if (parts <= 1) return row0 + end - 1;
		for (int r = first + lane(); r < end; r += WARP) {
			int p = position(r);
			last = p > last ? p : last;
		}
		for (int mask = 16; mask > 0; mask /= 2) {
			int p = as_bits(shuffle_xor(as_float(last), mask));
			last = p > last ? p : last;
		}
		return last;
	}
};

// load_rows copies 32 rows of a head to shared memory, width+1 apart, with 256 threads. Where at
// returns -1 it stores zeros.
template <class H, class At> DEVICE void load_rows(float* to, const H* from, i64 row, int width, At at) {
	for (int i = thread(); i < 32 * width; i += 256) {
		int r = i / width, d = i % width, source = at(r);
		to[r * (width + 1) + d] = source < 0 ? 0 : wide(from[source * row + d]);
	}
}

// add_product adds to every 8th element of a row the product of 32 factors and 32 rows, ld apart. n
// is how many elements the rows have from here on.
template <int per> DEVICE void add_product(float (&out)[per], const float* factors, const float* rows, int n, int ld) {
#pragma unroll 2
	for (int j = 0; j < 32; j++) {
#pragma unroll
		for (int m = 0; m < per; m++) {
			if (8 * m < n) out[m] += factors[j] * rows[j * ld + 8 * m];
		}
	}
}
