// Package half converts to and from the two floating-point formats of 16 bits:
// bfloat16 (8 bits of exponent, 8 of precision: the upper half of a binary32) and
// IEEE 754 binary16 (5 of exponent, 11 of precision). All rounding is to nearest,
// ties to even. A NaN stays a NaN.
package half

import "math"

// BF16 rounds x to bfloat16.
func BF16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40 // quiet; the payload's low bits may be all there was
	}
	// Adding half a unit carries into the kept bits when the rest is more than
	// half, or just half and the last kept bit is odd.
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// FromBF16 returns the value of a bfloat16.
func FromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F16 rounds x to binary16. What rounds to 65536 or more is infinite.
func F16(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 | uint16(b>>13&0x3ff)
	case b >= 0x477ff000: // 65520: half a unit above the largest, 65504
		return sign | 0x7c00
	case b >= 0x38800000: // 2^-14: normal
		b += 0xfff + b>>13&1
		return sign | uint16((b-0x38000000)>>13) // the exponent is biased by 15, not 127
	case b <= 0x33000000: // 2^-25, half of the smallest, which ties to even 0
		return sign
	}
	// Subnormal: the significand counts units of 2^-24.
	shift := 126 - b>>23
	m := b&0x7fffff | 0x800000
	half := uint32(1) << (shift - 1)
	return sign | uint16((m+half-1+m>>shift&1)>>shift)
}

// FromF16 returns the value of a binary16.
func FromF16(h uint16) float32 {
	sign, exp, frac := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0:
		return math.Float32frombits(math.Float32bits(float32(frac)*0x1p-24) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// RoundBF16 rounds a float64 to the nearest bfloat16, in one rounding.
func RoundBF16(x float64) float64 { return round(x, 8, -133, 0x1p128) }

// RoundF16 rounds a float64 to the nearest binary16, in one rounding.
func RoundF16(x float64) float64 { return round(x, 11, -24, 0x1p16) }

// round is the definition: the nearest multiple of the last bit's value, which is
// 2^least for subnormals; from limit on it is infinite.
func round(x float64, precision, least int, limit float64) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	_, exp := math.Frexp(x) // 2^(exp-1) <= |x| < 2^exp
	unit := max(exp-precision, least)
	y := math.Ldexp(math.RoundToEven(math.Ldexp(x, -unit)), unit)
	if math.Abs(y) >= limit {
		return math.Inf(int(math.Copysign(1, x)))
	}
	return y
}
