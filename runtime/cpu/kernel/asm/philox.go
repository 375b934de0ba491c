package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// dropout emits Philox4x32-10 on eight counters at a time, and the comparison that makes a mask of its output. Each 32-bit
// word of a counter lives in the low half of a 64-bit lane, four counters to a register, because the multiplication takes
// the low halves and fills the lane: what is in the high halves never matters.
func (g *generator) dropout() {
	const (
		mul0, mul1 = 0xD2511F53, 0xCD9E8D57
		inc0, inc1 = 0x9E3779B9, 0xBB67AE85
		rounds     = 10
	)
	g.function("dropoutFactorsAVX2", "func(dst []float32, block, seed uint64, op, step, threshold uint32, scale float32)",
		"is isa.dropoutFactors for lengths that are multiples of 32.")
	dst, n := g.base("dst"), g.length("dst")

	// The keys of all rounds.
	stack := g.AllocLocal(2 * rounds * vector)
	key := func(round, word int) operand.Mem { return stack.Offset((2*round + word) * vector) }
	seed := g.Load(g.Param("seed"), g.GP64())
	for word, inc := range []uint32{inc0, inc1} {
		k := g.YMM()
		g.VMOVD(seed.(reg.GPVirtual).As32(), k.AsX())
		g.VPBROADCASTD(k.AsX(), k)
		for round := range rounds {
			g.VMOVDQU(k, key(round, word))
			g.VPADDD(g.bits(inc), k, k)
		}
		g.SHRQ(operand.Imm(32), seed)
	}

	word := func(param string) reg.VecVirtual {
		b, err := g.Param(param).Resolve()
		if err != nil {
			panic(err)
		}
		y := g.YMM()
		g.VBROADCASTSS(b.Addr, y)
		return y
	}
	threshold, scale := word("threshold"), word("scale")
	block, err := g.Param("block").Resolve()
	if err != nil {
		panic(err)
	}
	ids := g.YMM()
	g.VPBROADCASTQ(block.Addr, ids)
	g.VPADDQ(operand.NewDataAddr(operand.Symbol{Name: "quads", Static: true}, 0), ids, ids)

	loop, done := g.label("loop"), g.label("done")
	g.Label(loop)
	g.CMPQ(n, operand.Imm(32))
	g.JLT(to(done))
	for half := range 2 {
		var c [4]reg.VecVirtual
		for i := range c {
			c[i] = g.YMM()
		}
		g.VMOVDQA(ids, c[0])
		g.VPSRLQ(operand.Imm(32), ids, c[1])
		c[2], c[3] = word("op"), word("step")
		g.VPADDQ(operand.NewDataAddr(operand.Symbol{Name: "four", Static: true}, 0), ids, ids)
		for round := range rounds {
			p0, p1, t0, t1 := g.YMM(), g.YMM(), g.YMM(), g.YMM()
			g.VPMULUDQ(g.bits(mul0), c[0], p0)
			g.VPMULUDQ(g.bits(mul1), c[2], p1)
			g.VPSRLQ(operand.Imm(32), p1, t0)
			g.VPXOR(key(round, 0), c[1], c[1])
			g.VPXOR(c[1], t0, t0)
			g.VPSRLQ(operand.Imm(32), p0, t1)
			g.VPXOR(key(round, 1), c[3], c[3])
			g.VPXOR(c[3], t1, t1)
			c = [4]reg.VecVirtual{t0, p1, t1, p0}
		}
		// Words 0 and 1 of a block side by side, then words 0 to 3.
		g.VPSLLQ(operand.Imm(32), c[1], c[1])
		g.VPBLENDD(operand.Imm(0xaa), c[1], c[0], c[0])
		g.VPSLLQ(operand.Imm(32), c[3], c[3])
		g.VPBLENDD(operand.Imm(0xaa), c[3], c[2], c[2])
		even, odd := g.YMM(), g.YMM()
		g.VPUNPCKLQDQ(c[2], c[0], even)
		g.VPUNPCKHQDQ(c[2], c[0], odd)
		for i, order := range []uint64{0x20, 0x31} {
			x, kept := g.YMM(), g.YMM()
			g.VPERM2I128(operand.Imm(order), odd, even, x)
			g.VPMAXUD(threshold, x, kept)
			g.VPCMPEQD(x, kept, kept)
			g.VPAND(scale, kept, kept)
			g.VMOVDQU(kept, operand.Mem{Base: dst, Disp: (2*half + i) * vector})
		}
	}
	g.ADDQ(operand.U32(32*4), dst)
	g.SUBQ(operand.Imm(32), n)
	g.JMP(to(loop))
	g.Label(done)
	g.end()
}
