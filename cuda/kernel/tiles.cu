// Tiles of two-byte elements in shared memory, and how products of them are taken. A block has one
// or more groups of 4 warps.

#define LOG2E 1.4426950408889634f

// place is the index of elements 8*chunk, ... of a row. Of eight rows, first all chunks of columns 0
// to 63 lie together, then those of the others. They are permuted so that the same column of chunks
// of eight rows lies in different banks.
template <int width> DEVICE int place(int row, int chunk) {
	return row / 8 * 8 * width + chunk / 8 * 512 + row % 8 * 64 + (chunk % 8 ^ row % 8) * 8;
}

// load_tile starts to copy rows to a tile, with all groups of a block. Row r of the tile is row
// at(r) of the tensor, or zeros if that is negative.
template <int width, int rows, int groups, int at_once = 4, class H, class At> DEVICE void load_tile(H* tile, const H* from, i64 row, At at) {
	const int chunks = width / 8, lines = 128 * groups / chunks;
	static_assert(rows % lines == 0, "all threads copy the same number of chunks");
	int first = (u32)thread() / chunks, c = (u32)thread() % chunks, bytes = (int)row * (int)sizeof(H);
	tile += place<width>(first, c), from += c * 8;
#pragma unroll at_once
	for (int r = 0; r < rows; r += lines) { // lines is a multiple of 8, so the permutation of chunks stays the same
		int source = at(first + r);
		copy_async(tile + r * width, (const u8*)from + (i64)(source < 0 ? 0 : source) * bytes, source >= 0);
	}
}

// load_keys does so for the keys or values of positions from j0 on. row_of is long code, so the
// loop for folded sequences is not unrolled.
template <int width, int rows, int groups, class H> DEVICE void load_keys(H* tile, const H* from, const Heads& s, int j0) {
	if (s.parts <= 1) load_tile<width, rows, groups>(tile, from, s.row_kv, [&](int r) { return j0 + r < s.keys ? j0 + r : -1; });
	else load_tile<width, rows, groups, 1>(tile, from, s.row_kv, [&](int r) { return j0 + r < s.keys ? s.row_of(j0 + r) : -1; });
}

// left loads a[16,16] of mma: rows from row on, columns from 16*k on.
template <int width, class H> DEVICE void left(u32 (&a)[4], const H* tile, int row, int k) {
	load_matrices(a, tile + place<width>(row + lane() % 16, 2 * k + lane() / 16));
}
// right loads two operands b[16,8]. Columns of b are rows of the tile from row on, rows of b are
// its columns from 16*k on.
template <int width, class H> DEVICE void right(u32 (&b)[4], const H* tile, int row, int k) {
	load_matrices(b, tile + place<width>(row + lane() % 8 + lane() / 16 * 8, 2 * k + lane() / 8 % 2));
}
// right_rows loads two operands b[16,8]. Rows of b are rows of the tile from row on, columns of b
// its columns from 16*n on.
template <int width, class H> DEVICE void right_rows(u32 (&b)[4], const H* tile, int row, int n) {
	load_transposed(b, tile + place<width>(row + lane() % 16, 2 * n + lane() / 16));
}

// Of an accumulator c[16,8], a thread has elements (lane/4, column) and (lane/4+8, column), where
// column is lane%4*2 or the next one.
DEVICE int column_of(int n) { return n * 8 + lane() % 4 * 2; }

// hide sets accumulators to x where the column, counted from j0, lies after the position of the
// row.
template <int n8> DEVICE void hide(float (&c)[n8][4], const int (&at)[2], int j0, float x) {
#pragma unroll
	for (int n = 0; n < n8; n++) {
#pragma unroll
		for (int e = 0; e < 4; e++) c[n][e] = j0 + column_of(n) + e % 2 <= at[e / 2] ? c[n][e] : x;
	}
}

// kept returns a word with bit 4*n+e set if a mask keeps the element of accumulator c[n][e]. first
// and second are the mask indexes of column 0 of the thread's two rows. The loop is not unrolled,
// so that its long code is compiled once.
template <int n8> DEVICE u32 kept(const Mask& mask, u64 first, u64 second) {
	u32 bits = 0;
#pragma unroll 1
	for (int i = 0; i < 2 * n8; i++) bits |= mask.kept<2>((i % 2 ? second : first) + column_of(i / 2)) << 2 * i;
	return bits;
}

// drop multiplies accumulators by the factors of a mask, given the bits of kept.
template <int n8> DEVICE void drop(float (&c)[n8][4], u32 kept, float scale) {
#pragma unroll
	for (int n = 0; n < n8; n++) {
#pragma unroll
		for (int e = 0; e < 4; e++) c[n][e] *= kept >> (4 * n + e) & 1 ? scale : 0;
	}
}

// as_left rounds two neighbouring accumulators to an operand a[16,16].
template <class H> DEVICE void as_left(H, u32 (&a)[4], const float (&x)[4], const float (&y)[4]) {
	a[0] = pack(H(), x[0], x[1]), a[1] = pack(H(), x[2], x[3]);
	a[2] = pack(H(), y[0], y[1]), a[3] = pack(H(), y[2], y[3]);
}

// mma_pair is mma into two neighbouring accumulators.
template <class H> DEVICE void mma_pair(H, float (&x)[4], float (&y)[4], const u32 (&a)[4], const u32 (&b)[4]) {
	mma(H(), x, a, b[0], b[1]);
	mma(H(), y, a, b[2], b[3]);
}

// Products of a group's rows a, of which each warp has 16, and tiles: by warpgroups, or where the
// device has none by mma. A product of warpgroups is only started: see grouped_begin. Then
// settled<n> waits until all but the last n are done. The other products are done at once.

// Rows is 16 rows of a tile, as operand a. For mma they are held in registers, or if there are too
// few registers loaded at each use. Warpgroups read them in the tile.
template <class H, int width, bool held> struct Rows {
	const H* tile;
	int first;
	u32 a[width / 16][4];

	DEVICE Rows(const H* tile, int first) : tile(tile), first(first) {
		if constexpr (held && !warpgroups) {
#pragma unroll
			for (int k = 0; k < width / 16; k++) left<width>(a[k], tile, first, k);
		}
	}
	DEVICE void get(u32 (&x)[4], int k) const {
		if constexpr (held && !warpgroups) {
			for (int i = 0; i < 4; i++) x[i] = a[k][i];
		} else {
			left<width>(x, tile, first, k);
		}
	}
	// times sets c to the products of the rows with all rows of tile b.
	template <int n8> DEVICE void times(float (&c)[n8][4], const H* b) const {
		if constexpr (warpgroups) {
			const H* rows = tile + group() * 64 * width;
			grouped_begin();
#pragma unroll
			for (int k = 0; k < width / 16; k++) grouped_mma_of_tiles<width / 64>(c, rows, b, k, k > 0);
			grouped_end();
		} else {
#pragma unroll
			for (int n = 0; n < n8; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
#pragma unroll
			for (int k = 0; k < width / 16; k++) {
				u32 x[4], y[4];
				get(x, k);
#pragma unroll
				for (int n = 0; n < n8 / 2; n++) {
					right<width>(y, b, 16 * n, k);
					mma_pair(H(), c[2 * n], c[2 * n + 1], x, y);
				}
			}
		}
	}
};

// add_weighted adds to c the rows of a tile, weighted with rows a.
template <int width, int rows, class H> DEVICE void add_weighted(float (&c)[width / 8][4], const u32 (&a)[rows / 16][4], const H* tile) {
	if constexpr (warpgroups) {
		grouped_begin();
#pragma unroll
		for (int k = 0; k < rows / 16; k++) {
			grouped_mma<width / 64, 0>(H(), c, a[k], tile, k);
			if constexpr (width == 128) grouped_mma<width / 64, 8>(H(), c, a[k], tile, k);
		}
		grouped_end();
	} else {
#pragma unroll
		for (int k = 0; k < rows / 16; k++) {
#pragma unroll
			for (int n = 0; n < width / 16; n++) {
				u32 b[4];
				right_rows<width>(b, tile, 16 * k, n);
				mma_pair(H(), c[2 * n], c[2 * n + 1], a[k], b);
			}
		}
	}
}

template <int n, class... X> DEVICE void settled(X&... of) {
	if constexpr (warpgroups) {
		grouped_wait<n>();
		(settle(of), ...);
	}
}

// as_lefts is as_left of a row of accumulators.
template <class H, int n8> DEVICE void as_lefts(H, u32 (&a)[n8 / 2][4], const float (&c)[n8][4]) {
#pragma unroll
	for (int k = 0; k < n8 / 2; k++) as_left(H(), a[k], c[2 * k], c[2 * k + 1]);
}

// write_rows multiplies the accumulators [16,width] of a warp by a factor for each of a thread's
// two rows, and stores them in rows of a tensor: row r in row at(r), unless that is negative. It
// goes through the tile's rows from first on, which only this warp uses.
template <int width, class H, class At>
DEVICE void write_rows(H* to, i64 row, H* tile, int first, const float (&c)[width / 8][4], float factor0, float factor1, At at) {
	const int chunks = width / 8;
	sync_warp();
#pragma unroll
	for (int n = 0; n < chunks; n++) {
		int r = first + lane() / 4, e = lane() % 4 * 2;
		*(u32*)(tile + place<width>(r, n) + e) = pack(H(), c[n][0] * factor0, c[n][1] * factor0);
		*(u32*)(tile + place<width>(r + 8, n) + e) = pack(H(), c[n][2] * factor1, c[n][3] * factor1);
	}
	sync_warp();
#pragma unroll 4
	for (int i = lane(); i < 16 * chunks; i += WARP) {
		int r = first + i / chunks, target = at(r);
		if (target >= 0) *(Words<16>*)(to + target * row + i % chunks * 8) = *(const Words<16>*)(tile + place<width>(r, i % chunks));
	}
}

// sum_of_4 and max_of_4 combine the four lanes that share a row of an accumulator.
DEVICE float sum_of_4(float x) {
	x += shuffle_xor(x, 1);
	return x + shuffle_xor(x, 2);
}
DEVICE float max_of_4(float x) {
	x = fmaxf(x, shuffle_xor(x, 1));
	return fmaxf(x, shuffle_xor(x, 2));
}
