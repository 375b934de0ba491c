// Sums in fixed point: see ir/fixed.go. A sum that overflows becomes OVERFLOW_ and stays that in
// every later sum. It becomes NaN when it is converted to a number.

#define OVERFLOW_ ((i64)((u64)1 << 63))

DEVICE i64 fixed_sum(i64 a, i64 b) {
	i64 sum = (i64)((u64)a + (u64)b);
	return a == OVERFLOW_ || b == OVERFLOW_ || ((a ^ sum) & (b ^ sum)) < 0 ? OVERFLOW_ : sum;
}

DEVICE i64 to_fixed(float x, double scale) {
	double y = rint((double)x * scale);
	return y < 0x1p63 && y > -0x1p63 ? (i64)y : OVERFLOW_;
}
