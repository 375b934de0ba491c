package kernel

import "math"

// Error bounds of the functions below, in units in the last place (ulp) of the result, in every
// instruction set and for every float32 (TestMathBounds):
//
//	exp(x)                        2
//	GELU by erf, x Phi(x)         9, for x < 0: 9 + x^2/2
//	GELU by tanh, x/(1+exp(-2u))  3, for x < 0: 3 + 3|2u|
//	SwiGLU's x/(1+exp(-x))        3, for x < 0: 3 + |x|
//
// Below zero the last three are nearly exponentials with a rounded exponent: their absolute error
// is some 1e-7 times the largest exponential, which is 1. Results below 2^-121 may be zero, because
// exponentials below 2^-125.5 are zero and those above the largest float32 infinite; at minus
// infinity the result is zero or NaN. Square roots are correctly rounded, and logarithms are those
// of package math.

// Constants of the exponential: exp(x) = 2^n exp(r), n = round(x log2(e)), |r| <= ln(2)/2, with ln(2) in two parts so that
// the reduction is exact, and the polynomial of Cephes' expf for exp(r).
const (
	log2e = math.Log2E
	ln2Hi = 0.693359375
	ln2Lo = -2.12194440e-4

	// Beyond these bounds the result is zero or infinite in any case.
	expMin, expMax = -87.3, 89
)

var expPoly = [...]float32{1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5, 1, 1}

// exp32 returns e**x: at most 2 units in the last place off, zero where the result would be below 2**-125.5, +Inf above
// the largest float32, NaN for NaN.
func exp32(x float32) float32 {
	switch {
	case x < expMin:
		return 0
	case x > expMax:
		return float32(math.Inf(1))
	case x != x:
		return x
	}
	n := int32(math.RoundToEven(float64(x * log2e)))
	r := x - float32(n)*ln2Hi
	r -= float32(n) * ln2Lo
	y := expPoly[0]
	for _, c := range expPoly[1:] {
		y = y*r + c
	}
	// 2^n in two steps, as 2^128 is no float32. The first exponent field is 0 for n = -126: the result is then zero.
	return y * math.Float32frombits(uint32(n+126)<<23) * 2
}

func expSumGeneric(dst, x []float32, scale, shift float32) float32 {
	var s [4]float32
	x = x[:len(dst)]
	for i := range dst {
		e := exp32(scale*x[i] - shift)
		dst[i] = e
		s[i&3] += e
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

func expMulGeneric(dst, x []float32, shift, mul float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] = mul * exp32(x[i]-shift)
	}
}

// Constants of GELU in its exact form, x*Phi(x) with Phi the normal distribution function. For x <= 0
//
//	Phi(x) = erfc(|x|/sqrt(2))/2 = exp(-x*x/2) * q * P(q),  q = 1/(1 + phiScale*|x|),
//
// where P is the Chebyshev fit of degree 8 on |x| <= 14, off by less than 2.1e-8 absolutely, that is 2.3e-7 of the result
// at worst; beyond, Phi is zero in float32. The form is that of Abramowitz and Stegun 7.1.26.
const (
	phiScale   = 0.3275911 / math.Sqrt2
	invSqrt2Pi = 0.3989422804014327
)

var phiPoly = [...]float32{
	-0.00198568785339 / 2, -0.132757619333 / 2, 0.48180957449 / 2, -0.3912887357 / 2, 0.44449238113 / 2,
	0.0287429686229 / 2, 0.205101388281 / 2, 0.180839629119 / 2, 0.185046060333 / 2,
}

// normalCDF returns Phi(x) and exp(-x*x/2).
func normalCDF(x float32) (phi, e float32) {
	e = exp32(-0.5 * x * x)
	q := 1 / (1 + phiScale*float32(math.Abs(float64(x))))
	p := phiPoly[0]
	for _, c := range phiPoly[1:] {
		p = p*q + c
	}
	phi = e * (q * p)
	if x >= 0 {
		phi = 1 - phi
	}
	return phi, e
}

func geluGeneric(y, x []float32) {
	x = x[:len(y)]
	for i, v := range x {
		phi, _ := normalCDF(v)
		y[i] = v * phi
	}
}

func geluGradGeneric(dx, dy, x []float32) {
	dy, x = dy[:len(dx)], x[:len(dx)]
	for i, v := range x {
		phi, e := normalCDF(v)
		dx[i] = dy[i] * (phi + v*invSqrt2Pi*e)
	}
}

// Constants of GELU in its tanh form, x/2 (1 + tanh(u)) = x/(1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3):
// geluA and geluB give -2u = x (geluA + geluB x^2).
const (
	geluA = -2 * 0.7978845608028654
	geluB = geluA * 0.044715

	geluMax = 9.6 // bound of |x| in the gradient: there it is 0 or 1, exp(-2u) still finite, and x^3 times it nothing
)

func geluTanhGeneric(y, x []float32) {
	x = x[:len(y)]
	for i, v := range x {
		y[i] = v / (1 + exp32(v*(geluA+geluB*(v*v))))
	}
}

func geluTanhGradGeneric(dx, dy, x []float32) {
	dy, x = dy[:len(dx)], x[:len(dx)]
	for i, v := range x {
		v = min(max(v, -geluMax), geluMax)
		e := exp32(v * (geluA + geluB*(v*v)))
		s := 1 / (1 + e)                     // the logistic function of 2u
		slope := v * (geluA + 3*geluB*(v*v)) // x times the derivative of -2u
		dx[i] = dy[i] * (s - s*(e*s)*slope)  // e*s is 1-s without cancellation
	}
}

// siluMax bounds -gate in the gradient of SwiGLU: there it is 0, exp(-gate) still finite, and gate times it nothing.
const siluMax = 80

func swigluGeneric(y, gate, up []float32) {
	gate, up = gate[:len(y)], up[:len(y)]
	for i, v := range gate {
		y[i] = v / (1 + exp32(-v)) * up[i]
	}
}

func swigluGradGeneric(dgate, dup, dy, gate, up []float32) {
	dup, gate, up = dup[:len(dy)], gate[:len(dy)], up[:len(dy)]
	for i, d := range dy {
		v, u := max(gate[i], -siluMax), up[i]
		e := exp32(-v)
		s := 1 / (1 + e)
		dgate[i] = d * u * (s + s*(e*s)*v) // e*s is 1-s without cancellation
		dup[i] = d * (v * s)
	}
}
