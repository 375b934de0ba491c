// Rows of a table by their number. The part of the table has rows first to first+local of all; an id of another part gives
// zeros, one of none NaN.

KERNEL(embedding, 256)(T* y, const T* table, const int* ids, i64 rows, i64 cols, int first, int local, int all) {
	i64 r = (i64)block_x() * (threads() / WARP) + warp();
	if (r >= rows) return;
	int id = ids[r], at = id - first;
	bool here = at >= 0 && at < local;
	float fill = id >= 0 && id < all ? 0 : NAN_;
	each<T>(cols, lines_up<T>(cols), lane(), WARP, [&](auto width, i64 i) {
		constexpr int w = decltype(width)::value;
		Pack<w> z;
		if (here) {
			z = load<w>(table + at * cols + i);
		} else {
			for (int j = 0; j < w; j++) z[j] = fill;
		}
		store(y + r * cols + i, z);
	});
}

// embedding_grad sums the rows of dy with the same id, in their order. A block has 16 rows of the table and 256 columns: all
// its threads look for ids, 256 at a time, and note those found in order; then each of the 8 warps adds up two rows.
KERNEL(embedding_grad, 256)(T* dtable, const T* dy, const int* ids, i64 n, i64 cols, int first, int local, int add) {
	__shared__ int found[256]; // at: index of the id, its row of the block in the high bits
	__shared__ int counts[8];
	const int per = 8; // columns of a thread
	int low = block_x() * 16;
	i64 column = (i64)block_y() * 256 + lane() * per;
	bool aligned = lines_up<T>(cols) && column + per <= cols;
	float sum[2][per];
	for (int k = 0; k < 2; k++) {
		int row = low + warp() * 2 + k;
		for (int j = 0; j < per; j++) {
			bool old = add && row < local && column + j < cols;
			sum[k][j] = old ? wide(dtable[row * cols + column + j]) : 0;
		}
	}
	for (i64 start = 0; start < n; start += 256) {
		i64 i = start + thread();
		int row = i < n ? ids[i] - first - low : -1;
		bool hit = row >= 0 && row < 16 && low + row < local;
		u32 lanes = ballot(hit);
		if (lane() == 0) counts[warp()] = popcount(lanes);
		sync_block();
		int before = popcount(lanes & ((1u << lane()) - 1)), total = 0;
		for (int w = 0; w < 8; w++) {
			if (w < warp()) before += counts[w];
			total += counts[w];
		}
		if (hit) found[before] = row << 8 | thread();
		sync_block();
		for (int f = 0; f < total; f++) {
			int k = (found[f] >> 8) - warp() * 2;
			if (k != 0 && k != 1) continue;
			const T* from = dy + (start + (found[f] & 255)) * cols + column;
			Pack<per> z = {};
			if (aligned) {
				for (int j = 0; j < per; j += 16 / sizeof(T)) {
					Pack<16 / sizeof(T)> some = load<16 / sizeof(T)>(from + j);
					for (int l = 0; l < 16 / sizeof(T); l++) z[j + l] = some[l];
				}
			} else {
				for (int j = 0; j < per; j++) {
					if (column + j < cols) z[j] = wide(from[j]);
				}
			}
			for (int j = 0; j < per; j++) {
				if (k == 0) sum[0][j] += z[j];
				else sum[1][j] += z[j];
			}
		}
		sync_block();
	}
	for (int k = 0; k < 2; k++) {
		int row = low + warp() * 2 + k;
		for (int j = 0; j < per; j++) {
			if (row < local && column + j < cols) narrow(dtable[row * cols + column + j], sum[k][j]);
		}
	}
}
