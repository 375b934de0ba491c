package main

import (
	"github.com/mmcloughlin/avo/reg"
)

const siluMax = 80

// sigmoidParts returns e = exp(-x) and 1 + e.
func (g *generator) sigmoidParts(x reg.VecVirtual) (e, sum reg.VecVirtual) {
	e = g.register()
	if g.wide {
		g.VPXORD(g.bits(1<<31), x, e)
	} else {
		g.VXORPS(g.bits(1<<31), x, e)
	}
	e = g.exp(e)
	sum = g.register()
	g.VADDPS(g.constant(1), e, sum)
	return e, sum
}

func (g *generator) swiglus() {
	g.function("swiglu"+g.set(), "func(y, gate, up []float32)", "is isa.swiglu.")
	y, gate, up := g.base("y"), g.base("gate"), g.base("up")
	g.each(g.length("y"), 1, func(s *step) {
		v := s.load(gate)
		_, sum := g.sigmoidParts(v)
		g.VDIVPS(sum, v, v)
		g.VMULPS(s.load(up), v, v)
		s.store(v, y)
	})
	g.end()

	g.function("swigluGrad"+g.set(), "func(dgate, dup, dy, gate, up []float32)", "is isa.swigluGrad.")
	dgate, dup, dy := g.base("dgate"), g.base("dup"), g.base("dy")
	gate, up = g.base("gate"), g.base("up")
	g.each(g.length("dy"), 1, func(s *step) {
		v := s.load(gate)
		g.VMAXPS(v, g.constantIn(-siluMax), v) // a NaN, the second source, passes
		e, sum := g.sigmoidParts(v)
		sigma := g.constantIn(1)
		g.VDIVPS(sum, sigma, sigma)
		g.VMULPS(sigma, e, e) // 1 - sigma
		g.VMULPS(sigma, v, v) // silu
		d, slope := s.load(dy), s.load(up)
		g.VFMADD231PS(e, v, sigma) // the derivative of silu
		g.VMULPS(d, slope, slope)
		g.VMULPS(sigma, slope, slope)
		g.VMULPS(d, v, v)
		s.store(slope, dgate)
		s.store(v, dup)
	})
	g.end()
}

func (g *generator) rotation() {
	g.function("rotate"+g.set(), "func(lo, hi, a, b, cosines, sines []float32)", "is isa.rotate.")
	lo, hi, a, b := g.base("lo"), g.base("hi"), g.base("a"), g.base("b")
	cosines, sines := g.base("cosines"), g.base("sines")
	g.each(g.length("lo"), 2, func(s *step) {
		x, y := s.load(a), s.load(b)
		c, sn := s.load(cosines), s.load(sines)
		low, high := g.register(), g.register()
		g.VMULPS(c, x, low)
		g.VFNMADD231PS(sn, y, low)
		g.VMULPS(c, y, high)
		g.VFMADD231PS(sn, x, high)
		s.store(low, lo)
		s.store(high, hi)
	})
	g.end()
}
