package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// halves emits the conversions between float32 and the two-byte formats. They process whole vectors
// of eight. The caller does the rest in Go, with the same results, because rounding is exact.
func (g *generator) halves() {
	const signature = "func(wide []float32, half []uint16)"

	g.function("widenBF16AVX2", signature, "is isa.widen of bfloat16, but for the last len%8 elements.")
	g.eights(func(wide, half operand.Mem) {
		y := g.YMM()
		g.VPMOVZXWD(half, y)
		g.VPSLLD(operand.Imm(16), y, y)
		g.VMOVUPS(y, wide)
	})

	g.function("narrowBF16AVX2", signature, "is isa.narrow of bfloat16, but for the last len%8 elements.")
	round, one, quiet := g.words(0x7fff), g.words(1), g.words(0x40)
	g.eights(func(wide, half operand.Mem) {
		x, kept, nan, isNaN := g.YMM(), g.YMM(), g.YMM(), g.YMM()
		g.VMOVUPS(wide, x)
		g.VCMPPS(operand.Imm(3), x, x, isNaN) // unordered
		g.VPSRLD(operand.Imm(16), x, kept)
		g.VPOR(quiet, kept, nan)
		g.VPAND(one, kept, kept)
		g.VPADDD(round, x, x)
		g.VPADDD(kept, x, x)
		g.VPSRLD(operand.Imm(16), x, x)
		g.VBLENDVPS(isNaN, nan, x, x)
		high := g.XMM()
		g.VEXTRACTI128(operand.Imm(1), x, high)
		g.VPACKUSDW(high, x.AsX(), high)
		g.VMOVDQU(high, half)
	})

	g.function("widenF16C", signature, "is isa.widen of binary16, but for the last len%8 elements.")
	g.eights(func(wide, half operand.Mem) {
		y := g.YMM()
		g.VCVTPH2PS(half, y)
		g.VMOVUPS(y, wide)
	})

	g.function("narrowF16C", signature, "is isa.narrow of binary16, but for the last len%8 elements.")
	g.eights(func(wide, half operand.Mem) {
		x := g.YMM()
		g.VMOVUPS(wide, x)
		g.VCVTPS2PH(operand.Imm(0), x, half) // to nearest even
	})
}

// eights emits a loop over the elements of half, eight at a time, and ends the function.
func (g *generator) eights(body func(wide, half operand.Mem)) {
	wide, half, n := g.base("wide"), g.base("half"), g.length("half")
	loop, done := g.label("eights"), g.label("done")
	at := g.GP64()
	g.XORQ(at, at)
	g.Label(loop)
	g.CMPQ(n, operand.Imm(lanes))
	g.JLT(to(done))
	body(operand.Mem{Base: wide, Index: at, Scale: 4}, operand.Mem{Base: half, Index: at, Scale: 2})
	g.ADDQ(operand.Imm(lanes), at)
	g.SUBQ(operand.Imm(lanes), n)
	g.JMP(to(loop))
	g.Label(done)
	g.end()
}

// words returns a register of eight times a word.
func (g *generator) words(word uint32) reg.VecVirtual {
	y := g.YMM()
	g.VMOVUPS(g.bits(word), y)
	return y
}
