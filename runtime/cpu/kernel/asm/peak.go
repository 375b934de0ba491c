package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// peakChains is how many independent sums a multiply-add loop in registers needs to hide the
// latency of the units.
const peakChains = 12

// peak emits a loop of multiply-adds in registers: what a product could reach if its operands cost nothing.
func (g *generator) peak(s tileShape) {
	g.function("multiplyAdd"+s.set, "func(rounds int)", "is isa.multiplyAdd.")
	rounds := g.integer("rounds")
	factor := s.zero(g)
	var sums [peakChains]reg.VecVirtual
	for i := range sums {
		sums[i] = s.zero(g)
	}
	loop := g.label("loop")
	g.x86.Label(loop)
	for _, sum := range sums {
		g.x86.VFMADD231PS(factor, factor, sum)
	}
	g.x86.SUBQ(operand.Imm(1), rounds)
	g.x86.JGT(to(loop))
	g.end()
}
