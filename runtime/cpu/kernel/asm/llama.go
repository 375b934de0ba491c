package main

import (
	"github.com/mmcloughlin/avo/reg"
)

const siluMax = 80

// sigmoidParts returns e = exp(-x) and 1 + e.
func (g *generator) sigmoidParts(x reg.VecVirtual) (e, sum reg.VecVirtual) {
	e = g.register()
	if g.wide {
		g.x86.VPXORD(g.bits(1<<31), x, e)
	} else {
		g.x86.VXORPS(g.bits(1<<31), x, e)
	}
	e = g.exp(e)
	sum = g.register()
	g.x86.VADDPS(g.constant(1), e, sum)
	return e, sum
}

func (g *generator) swiglus() {
	g.function("swiglu"+g.set(), "func(y, gate, up []float32)", "is isa.swiglu.")
	y, gate, up := g.base("y"), g.base("gate"), g.base("up")
	g.each(g.length("y"), 1, func(s *step) {
		v := s.load(gate)
		_, sum := g.sigmoidParts(v)
		g.x86.VDIVPS(sum, v, v)
		g.x86.VMULPS(s.load(up), v, v)
		s.store(v, y)
	})
	g.end()

	g.function("swigluGrad"+g.set(), "func(dgate, dup, dy, gate, up []float32)", "is isa.swigluGrad.")
	dgate, dup, dy := g.base("dgate"), g.base("dup"), g.base("dy")
	gate, up = g.base("gate"), g.base("up")
	g.each(g.length("dy"), 1, func(s *step) {
		v := s.load(gate)
		g.x86.VMAXPS(v, g.constantIn(-siluMax), v) // a NaN, the second source, passes
		e, sum := g.sigmoidParts(v)
		sigma := g.constantIn(1)
		g.x86.VDIVPS(sum, sigma, sigma)
		g.x86.VMULPS(sigma, e, e) // 1 - sigma
		g.x86.VMULPS(sigma, v, v) // silu
		d, slope := s.load(dy), s.load(up)
		g.x86.VFMADD231PS(e, v, sigma) // the derivative of silu
		g.x86.VMULPS(d, slope, slope)
		g.x86.VMULPS(sigma, slope, slope)
		g.x86.VMULPS(d, v, v)
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
		g.x86.VMULPS(c, x, low)
		g.x86.VFNMADD231PS(sn, y, low)
		g.x86.VMULPS(c, y, high)
		g.x86.VFMADD231PS(sn, x, high)
		s.store(low, lo)
		s.store(high, hi)
	})
	g.end()
}
