// Sums in fixed point: see ir/fixed.go. What does not fit becomes OVERFLOW_, and stays it in every later sum, until a number is
// made of it, which is NaN.

#define OVERFLOW_ ((i64)((u64)1 << 63))

DEVICE i64 fixed_sum(i64 a, i64 b) {
	i64 sum = (i64)((u64)a + (u64)b);
	return a == OVERFLOW_ || b == OVERFLOW_ || ((a ^ sum) & (b ^ sum)) < 0 ? OVERFLOW_ : sum;
}

DEVICE i64 to_fixed(float x, double scale) {
	double y = rint((double)x * scale);
	return y < 0x1p63 && y > -0x1p63 ? (i64)y : OVERFLOW_;
}
