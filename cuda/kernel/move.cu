// Copies of parts: runs of n0 contiguous units, one for each index of four outer dimensions n1 to
// n4. f1 to f4 are the strides in the source, t1 to t4 those in the target.
template <class U>
DEVICE void move(U* to, const U* from, u32 n0, u32 n1, i64 f1, i64 t1, u32 n2, i64 f2, i64 t2, u32 n3, i64 f3, i64 t3, u32 n4, i64 f4, i64 t4) {
	u64 all = (u64)n0 * n1 * n2 * n3 * n4;
	for (u64 i = (u64)block_x() * threads() + thread(); i < all; i += (u64)blocks_x() * threads()) {
		u32 at = (u32)i, a0 = at % n0, a1 = (at /= n0) % n1, a2 = (at /= n1) % n2, a3 = (at /= n2) % n3, a4 = at / n3;
		U unit = {};
		if (from) unit = from[a0 + a1 * f1 + a2 * f2 + a3 * f3 + a4 * f4];
		to[a0 + a1 * t1 + a2 * t2 + a3 * t3 + a4 * t4] = unit;
	}
}
#define MOVE(bytes, U) \
	KERNEL(move_##bytes, 256)(U* to, const U* from, u32 n0, u32 n1, i64 f1, i64 t1, u32 n2, i64 f2, i64 t2, u32 n3, i64 f3, i64 t3, u32 n4, i64 f4, i64 t4) { \
		move(to, from, n0, n1, f1, t1, n2, f2, t2, n3, f3, t3, n4, f4, t4); \
	}
MOVE(2, u16)
MOVE(4, u32)
MOVE(8, Words<8>)
MOVE(16, Words<16>)
#undef MOVE
