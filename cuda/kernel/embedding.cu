// Rows of a table by number. The rank's part of the table has rows first to first+local of all. An
// id in another part gives zeros, an id out of range NaN.

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

// embedding_grad sums the rows of dy with the same id, in their order. A block has 8*mine rows of
// the table, mine for each of its 8 warps, and 256 columns. It goes through the ids 4096 at a time:
// first the warps list the ids of the block's rows, in order; then each adds up the rows of dy for
// its own rows.
template <int mine> DEVICE void embedding_grad(T* dtable, const T* dy, const int* ids, i64 n, i64 cols, int first, int local, int add) {
	const int span = 4096, per = 8, rows = 8 * mine; // ids at a time; columns of a thread; table rows of a block
	__shared__ int found[span]; // index of the id, and in the low bits its row of the block
	__shared__ int counts[8];
	int low = block_x() * rows, here = local - low < rows ? local - low : rows;
	bool packed = (u64)ids % 16 == 0;
	i64 column = (i64)block_y() * 256 + lane() * per;
	bool aligned = lines_up<T>(cols) && column + per <= cols;
	float sum[mine][per];
#pragma unroll
	for (int k = 0; k < mine; k++) {
		int row = low + warp() + 8 * k;
		for (int j = 0; j < per; j++) sum[k][j] = add && row < local && column + j < cols ? wide(dtable[row * cols + column + j]) : 0;
	}
	for (i64 start = 0; start < n; start += span) {
		// Each warp has 512 ids, and a lane four at a time. It notes and counts its hits first, so that all know where to list theirs.
		u32 hits = 0;
		int count = 0;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			i64 at = start + warp() * 512 + i * 128 + lane() * 4;
			Words<16> four;
			if (packed && at + 4 <= n) {
				four = *(const Words<16>*)(ids + at);
			} else {
				for (int j = 0; j < 4; j++) four.w[j] = at + j < n ? ids[at + j] : first - 1;
			}
			u32 some = 0;
			for (int j = 0; j < 4; j++) some |= (u32)(four.w[j] - (u32)(first + low) < (u32)here) << j;
			hits |= some << (4 * i);
			if (ballot(some != 0)) {
				for (int j = 0; j < 4; j++) count += popcount(ballot(some >> j & 1));
			}
		}
		if (lane() == 0) counts[warp()] = count;
		sync_block();
		int before = 0, total = 0;
		for (int w = 0; w < 8; w++) {
			if (w < warp()) before += counts[w];
			total += counts[w];
		}
		for (int i = 0; count > 0 && i < 4; i++) {
			u32 some = hits >> (4 * i) & 15;
			int to = before;
			for (int j = 0; j < 4; j++) {
				u32 lanes = ballot(some >> j & 1);
				to += popcount(lanes & ((1u << lane()) - 1));
				before += popcount(lanes);
			}
			for (int j = 0; j < 4; j++) {
				int at = warp() * 512 + i * 128 + lane() * 4 + j;
				if (some >> j & 1) found[to++] = at << 6 | (ids[start + at] - first - low);
			}
		}
		sync_block();
		for (int f = 0; f < total; f += WARP) {
			int entry = f + lane() < total ? found[f + lane()] : -1;
			if (ballot(entry >= 0 && entry % 8 == warp()) == 0) continue;
#pragma unroll
			for (int k = 0; k < mine; k++) {
				u32 lanes = ballot(entry >= 0 && (entry & 63) == warp() + 8 * k);
				while (lanes) {
					Pack<per> z[4]; // several loads in flight at once
#pragma unroll
					for (int m = 0; m < 4; m++) {
						for (int j = 0; j < per; j++) z[m][j] = 0;
						if (!lanes) continue;
						const T* from = dy + (start + (found[f + first_bit(lanes)] >> 6)) * cols + column;
						lanes &= lanes - 1;
						if (aligned) {
							for (int j = 0; j < per; j += 16 / sizeof(T)) {
								Pack<16 / sizeof(T)> some = load<16 / sizeof(T)>(from + j);
								for (int l = 0; l < 16 / sizeof(T); l++) z[m][j + l] = some[l];
							}
						} else {
							for (int j = 0; j < per; j++) {
								if (column + j < cols) z[m][j] = wide(from[j]);
							}
						}
					}
					for (int m = 0; m < 4; m++) {
						for (int j = 0; j < per; j++) sum[k][j] += z[m][j];
					}
				}
			}
		}
		sync_block(); // before the lists are overwritten
	}
#pragma unroll
	for (int k = 0; k < mine; k++) {
		int row = low + warp() + 8 * k;
		for (int j = 0; j < per; j++) {
			if (row < local && column + j < cols) narrow(dtable[row * cols + column + j], sum[k][j]);
		}
	}
}
KERNEL(embedding_grad, 256)(T* dtable, const T* dy, const int* ids, i64 n, i64 cols, int first, int local, int add) {
	embedding_grad<8>(dtable, dy, ids, n, cols, first, local, add);
}
// embedding_grad_few is for tables of few rows with many ids each: it shares the sums among more
// warps.
KERNEL(embedding_grad_few, 256)(T* dtable, const T* dy, const int* ids, i64 n, i64 cols, int first, int local, int add) {
	embedding_grad<1>(dtable, dy, ids, n, cols, first, local, add);
}
