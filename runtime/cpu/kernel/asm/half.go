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
		y := g.x86.YMM()
		g.x86.VPMOVZXWD(half, y)
		g.x86.VPSLLD(operand.Imm(16), y, y)
		g.x86.VMOVUPS(y, wide)
	})

	g.function("narrowBF16AVX2", signature, "is isa.narrow of bfloat16, but for the last len%8 elements.")
	round, one, quiet := g.words(0x7fff), g.words(1), g.words(0x40)
	g.eights(func(wide, half operand.Mem) {
		x, kept, nan, isNaN := g.x86.YMM(), g.x86.YMM(), g.x86.YMM(), g.x86.YMM()
		g.x86.VMOVUPS(wide, x)
		g.x86.VCMPPS(operand.Imm(3), x, x, isNaN) // unordered
		g.x86.VPSRLD(operand.Imm(16), x, kept)
		g.x86.VPOR(quiet, kept, nan)
		g.x86.VPAND(one, kept, kept)
		g.x86.VPADDD(round, x, x)
		g.x86.VPADDD(kept, x, x)
		g.x86.VPSRLD(operand.Imm(16), x, x)
		g.x86.VBLENDVPS(isNaN, nan, x, x)
		high := g.x86.XMM()
		g.x86.VEXTRACTI128(operand.Imm(1), x, high)
		g.x86.VPACKUSDW(high, x.AsX(), high)
		g.x86.VMOVDQU(high, half)
	})

	g.function("widenF16C", signature, "is isa.widen of binary16, but for the last len%8 elements.")
	g.eights(func(wide, half operand.Mem) {
		y := g.x86.YMM()
		g.x86.VCVTPH2PS(half, y)
		g.x86.VMOVUPS(y, wide)
	})

	g.function("narrowF16C", signature, "is isa.narrow of binary16, but for the last len%8 elements.")
	g.eights(func(wide, half operand.Mem) {
		x := g.x86.YMM()
		g.x86.VMOVUPS(wide, x)
		g.x86.VCVTPS2PH(operand.Imm(0), x, half) // to nearest even
	})
}

// eights emits a loop over the elements of half, eight at a time, and ends the function.
func (g *generator) eights(body func(wide, half operand.Mem)) {
	wide, half, n := g.base("wide"), g.base("half"), g.length("half")
	loop, done := g.label("eights"), g.label("done")
	at := g.x86.GP64()
	g.x86.XORQ(at, at)
	g.x86.Label(loop)
	g.x86.CMPQ(n, operand.Imm(lanes))
	g.x86.JLT(to(done))
	body(operand.Mem{Base: wide, Index: at, Scale: 4}, operand.Mem{Base: half, Index: at, Scale: 2})
	g.x86.ADDQ(operand.Imm(lanes), at)
	g.x86.SUBQ(operand.Imm(lanes), n)
	g.x86.JMP(to(loop))
	g.x86.Label(done)
	g.end()
}

// words returns a register of eight times a word.
func (g *generator) words(word uint32) reg.VecVirtual {
	y := g.x86.YMM()
	g.x86.VMOVUPS(g.bits(word), y)
	return y
}
