package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The formulas and constants below are those of math_generic.go in package kernel, where they are explained.

var expPoly = []float64{1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5, 1, 1}

// exp replaces x by e**x.
func (g *generator) exp(x reg.VecVirtual) reg.VecVirtual {
	g.bound(x, -87.3, 89)
	n := g.register()
	g.x86.VMULPS(g.constant(math.Log2E), x, n)
	if g.wide {
		g.x86.VRNDSCALEPS(operand.Imm(8), n, n)
	} else {
		g.x86.VROUNDPS(operand.Imm(8), n, n)
	}
	g.x86.VFNMADD231PS(g.constant(0.693359375), n, x)
	g.x86.VFNMADD231PS(g.constant(-2.12194440e-4), n, x)
	y := g.poly(x, expPoly)
	g.x86.VCVTPS2DQ(n, n)
	g.x86.VPADDD(g.bits(126), n, n)
	g.x86.VPSLLD(operand.Imm(23), n, n)
	g.x86.VMULPS(n, y, y)
	g.x86.VADDPS(y, y, y)
	return y
}

// bound has x be at least one number and at most another.
func (g *generator) bound(x reg.VecVirtual, least, most float64) {
	// With x as the second source a NaN passes.
	g.x86.VMAXPS(x, g.constantIn(least), x)
	g.x86.VMINPS(x, g.constantIn(most), x)
}

// poly returns the polynomial of x with the given coefficients, highest power first.
func (g *generator) poly(x reg.VecVirtual, coefficients []float64) reg.VecVirtual {
	y := g.constantIn(coefficients[0])
	for _, c := range coefficients[1:] {
		g.x86.VFMADD213PS(g.constant(c), x, y)
	}
	return y
}

func (g *generator) exponentials() {
	g.function("expSum"+g.set(), "func(dst, x []float32, scale, shift float32) float32", "is isa.expSum.")
	dst, x := g.base("dst"), g.base("x")
	scale, shift := g.broadcast("scale"), g.broadcast("shift")
	sums := g.zeros(2)
	g.each(g.length("dst"), 2, func(s *step) {
		y := s.load(x)
		g.x86.VFMSUB213PS(shift, scale, y)
		y = g.exp(y)
		s.store(y, dst)
		s.clip(y)
		g.x86.VADDPS(y, sums[s.part], sums[s.part])
	})
	g.returnSum(sums, 0)
	g.end()

	g.function("expMul"+g.set(), "func(dst, x []float32, shift, mul float32)", "is isa.expMul.")
	dst, x = g.base("dst"), g.base("x")
	shift, mul := g.broadcast("shift"), g.broadcast("mul")
	g.each(g.length("dst"), 2, func(s *step) {
		y := s.load(x)
		g.x86.VSUBPS(shift, y, y)
		y = g.exp(y)
		g.x86.VMULPS(mul, y, y)
		s.store(y, dst)
	})
	g.end()
}

var phiPoly = []float64{
	-0.00198568785339 / 2, -0.132757619333 / 2, 0.48180957449 / 2, -0.3912887357 / 2, 0.44449238113 / 2,
	0.0287429686229 / 2, 0.205101388281 / 2, 0.180839629119 / 2, 0.185046060333 / 2,
}

const (
	phiScale   = 0.3275911 / math.Sqrt2
	invSqrt2Pi = 0.3989422804014327

	geluA   = -2 * 0.7978845608028654
	geluB   = geluA * 0.044715
	geluMax = 9.6
)

// normalCDF returns Phi(x) and exp(-x*x/2).
func (g *generator) normalCDF(x reg.VecVirtual) (phi, e reg.VecVirtual) {
	e = g.register()
	g.x86.VMULPS(g.constant(-0.5), x, e)
	g.x86.VMULPS(x, e, e)
	e = g.exp(e)
	q, one := g.register(), g.constantIn(1)
	if g.wide {
		g.x86.VPANDD(g.bits(math.MaxInt32), x, q)
	} else {
		g.x86.VANDPS(g.bits(math.MaxInt32), x, q)
	}
	g.x86.VFMADD213PS(one, g.constantIn(phiScale), q)
	g.x86.VDIVPS(q, one, q)
	phi = g.poly(q, phiPoly)
	g.x86.VMULPS(q, phi, phi)
	g.x86.VMULPS(e, phi, phi)
	above := g.register()
	g.x86.VSUBPS(phi, one, above)
	if g.wide { // by the sign of x
		below := g.x86.K()
		g.x86.VPTESTMD(g.bits(1<<31), x, below)
		g.x86.VMOVAPS(phi, below, above)
		return above, e
	}
	g.x86.VBLENDVPS(x, phi, above, phi)
	return phi, e
}

// logistic returns 1/(1 + e) and e = exp(-2u) of the tanh form.
func (g *generator) logistic(x, square reg.VecVirtual) (s, e reg.VecVirtual) {
	e = g.constantIn(geluB)
	g.x86.VFMADD213PS(g.constant(geluA), square, e)
	g.x86.VMULPS(x, e, e)
	e = g.exp(e)
	s, one := g.register(), g.constantIn(1)
	g.x86.VADDPS(one, e, s)
	g.x86.VDIVPS(s, one, s)
	return s, e
}

func (g *generator) gelus() {
	g.function("gelu"+g.set(), "func(y, x []float32)", "is isa.gelu.")
	y, x := g.base("y"), g.base("x")
	g.each(g.length("y"), 1, func(s *step) {
		v := s.load(x)
		phi, _ := g.normalCDF(v)
		g.x86.VMULPS(v, phi, phi)
		s.store(phi, y)
	})
	g.end()

	g.function("geluGrad"+g.set(), "func(dx, dy, x []float32)", "is isa.geluGrad.")
	dx, dy, x := g.base("dx"), g.base("dy"), g.base("x")
	g.each(g.length("dx"), 1, func(s *step) {
		v := s.load(x)
		phi, e := g.normalCDF(v)
		g.x86.VMULPS(g.constant(invSqrt2Pi), v, v)
		g.x86.VFMADD231PS(e, v, phi)
		g.x86.VMULPS(s.load(dy), phi, phi)
		s.store(phi, dx)
	})
	g.end()

	g.function("geluTanh"+g.set(), "func(y, x []float32)", "is isa.geluTanh.")
	y, x = g.base("y"), g.base("x")
	g.each(g.length("y"), 1, func(s *step) {
		v, square := s.load(x), g.register()
		g.x86.VMULPS(v, v, square)
		logistic, _ := g.logistic(v, square)
		g.x86.VMULPS(v, logistic, logistic)
		s.store(logistic, y)
	})
	g.end()

	g.function("geluTanhGrad"+g.set(), "func(dx, dy, x []float32)", "is isa.geluTanhGrad.")
	dx, dy, x = g.base("dx"), g.base("dy"), g.base("x")
	g.each(g.length("dx"), 1, func(s *step) {
		v, square := s.load(x), g.register()
		g.bound(v, -geluMax, geluMax)
		g.x86.VMULPS(v, v, square)
		logistic, e := g.logistic(v, square)
		slope := g.constantIn(3 * geluB)
		g.x86.VFMADD213PS(g.constant(geluA), square, slope)
		g.x86.VMULPS(v, slope, slope)
		g.x86.VMULPS(logistic, e, e)
		g.x86.VMULPS(logistic, e, e)
		g.x86.VFNMADD213PS(logistic, e, slope)
		g.x86.VMULPS(s.load(dy), slope, slope)
		s.store(slope, dx)
	})
	g.end()
}

func (g *generator) adamw() {
	g.function("adamw"+g.set(), "func(w, m, v, grad []float32, c *[9]float32)", "is isa.adamw.")
	w, m, v, grad := g.base("w"), g.base("m"), g.base("v"), g.base("grad")
	factors := g.x86.Load(g.x86.Param("c"), g.x86.GP64())
	var c [9]reg.VecVirtual
	for i := range c {
		c[i] = g.register()
		g.x86.VBROADCASTSS(operand.Mem{Base: factors, Disp: 4 * i}, c[i])
	}
	gradScale, beta1, gain1, beta2, gain2, decay, rate, rootBias, eps := c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]
	g.each(g.length("w"), 1, func(s *step) {
		gi := s.load(grad)
		g.x86.VMULPS(gradScale, gi, gi)
		mi := s.load(m)
		g.x86.VMULPS(beta1, mi, mi)
		g.x86.VFMADD231PS(gain1, gi, mi)
		s.store(mi, m)
		vi := s.load(v)
		g.x86.VMULPS(gi, gi, gi)
		g.x86.VMULPS(beta2, vi, vi)
		g.x86.VFMADD231PS(gain2, gi, vi)
		s.store(vi, v)
		g.x86.VSQRTPS(vi, vi)
		g.x86.VFMADD213PS(eps, rootBias, vi)
		g.x86.VMULPS(rate, mi, mi)
		g.x86.VDIVPS(vi, mi, mi)
		wi := s.load(w)
		g.x86.VFMSUB213PS(mi, decay, wi)
		s.store(wi, w)
	})
	g.end()
}
