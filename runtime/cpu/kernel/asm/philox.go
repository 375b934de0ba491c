package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Multipliers and key increments of Philox4x32, and its rounds: see package philox.
const (
	mul0, mul1 = 0xD2511F53, 0xCD9E8D57
	inc0, inc1 = 0x9E3779B9, 0xBB67AE85
	rounds     = 10
)

// philox emits Philox4x32-10 on as many counters at a time as a register has 64-bit lanes, and the comparison that makes a mask
// of its output. Each 32-bit word of a counter lives in the low half of a lane, because the multiplication takes the low halves
// and fills the lane: what is in the high halves never matters. The counters of a register are in the order that leaves their
// words in order when those of a lane are put side by side.
type philox struct {
	*generator
	dst, n    reg.Register
	keys      operand.Mem // of the rounds, two words each
	ids       reg.VecVirtual
	threshold reg.VecVirtual
	scale     reg.VecVirtual
	high      reg.Register // AVX-512's mask of the high halves
}

// dropout emits isa.dropoutFactors.
func (g *generator) dropout() {
	g.function("dropoutFactors"+g.set(), "func(dst []float32, block, seed uint64, op, step, threshold uint32, scale float32)",
		"is isa.dropoutFactors for lengths that are multiples of 32.")
	p := philox{generator: g, dst: g.base("dst"), n: g.length("dst")}
	p.schedule()
	p.threshold, p.scale, p.ids = g.broadcast("threshold"), g.broadcast("scale"), g.register()
	g.VPBROADCASTQ(g.address("block"), p.ids)
	g.VPADDQ(g.table("counters"+g.set()), p.ids, p.ids)
	if g.wide {
		bits := g.GP32()
		g.MOVL(operand.U32(0xaaaa), bits)
		p.high = g.K()
		g.KMOVW(bits, p.high)
	}

	// Two registers of counters at a time: alone, each would wait for its multiplications.
	loop, last, done := g.label("loop"), g.label("last"), g.label("done")
	elements := 2 * g.lanes() // of a register of counters
	g.Label(loop)
	g.CMPQ(p.n, operand.Imm(uint64(2*elements)))
	g.JLT(to(last))
	p.factors(2)
	g.ADDQ(operand.U32(uint32(2*elements*4)), p.dst)
	g.SUBQ(operand.Imm(uint64(2*elements)), p.n)
	g.JMP(to(loop))
	g.Label(last)
	if g.wide { // otherwise two are the least there is
		g.TESTQ(p.n, p.n)
		g.JZ(to(done))
		p.factors(1)
		g.Label(done)
	}
	g.end()
}

// schedule emits the computation of the keys of all rounds.
func (p *philox) schedule() {
	p.keys = p.AllocLocal(2 * rounds * 4)
	for word, inc := range []uint32{inc0, inc1} {
		key := p.GP32()
		p.MOVL(p.address("seed").Offset(4*word), key)
		for round := range rounds {
			p.MOVL(key, p.key(round, word))
			p.ADDL(operand.U32(inc), key)
		}
	}
}

func (p *philox) key(round, word int) operand.Mem { return p.keys.Offset(4 * (2*round + word)) }

// factors emits the factors of so many registers of counters.
func (p *philox) factors(registers int) {
	c := make([][4]reg.VecVirtual, registers)
	for i := range c {
		for w := range c[i] {
			c[i][w] = p.register()
		}
		p.VMOVUPS(p.ids, c[i][0])
		p.VPSRLQ(operand.Imm(32), p.ids, c[i][1])
		p.VBROADCASTSS(p.address("op"), c[i][2])
		p.VBROADCASTSS(p.address("step"), c[i][3])
		p.VPADDQ(p.table("advance"+p.set()), p.ids, p.ids)
	}
	for round := range rounds {
		for i := range c {
			products := [2]reg.VecVirtual{p.register(), p.register()}
			p.VPMULUDQ(p.bits(mul0), c[i][0], products[0])
			p.VPMULUDQ(p.bits(mul1), c[i][2], products[1])
			c[i][0] = p.mix(products[1], c[i][1], p.key(round, 0))
			c[i][2] = p.mix(products[0], c[i][3], p.key(round, 1))
			c[i][1], c[i][3] = products[1], products[0]
		}
	}
	for i := range c {
		p.pair(c[i][0], c[i][1])
		p.pair(c[i][2], c[i][3])
		for half, unpack := range []func(ops ...operand.Op){p.VPUNPCKLQDQ, p.VPUNPCKHQDQ} {
			words := p.register()
			unpack(c[i][2], c[i][0], words)
			p.VMOVUPS(p.kept(words), operand.Mem{Base: p.dst, Disp: 4 * p.lanes() * (2*i + half)})
		}
	}
}

// mix returns the high half of a product, and of it and a word and a key one bit in each place where one or all three have one.
func (p *philox) mix(product, word reg.VecVirtual, key operand.Mem) reg.VecVirtual {
	high := p.register()
	p.VPSRLQ(operand.Imm(32), product, high)
	if p.wide {
		p.VPTERNLOGD_BCST(operand.Imm(0x96), key, word, high)
		return high
	}
	k := p.register()
	p.VPBROADCASTD(key, k)
	p.VPXOR(k, word, word)
	p.VPXOR(word, high, high)
	return high
}

// pair puts the word in the low half of each lane of b beside that of a.
func (p *philox) pair(a, b reg.VecVirtual) {
	if p.wide {
		p.VPSHUFD(operand.Imm(0xa0), b, p.high, a)
		return
	}
	p.VPSLLQ(operand.Imm(32), b, b)
	p.VPBLENDD(operand.Imm(0xaa), b, a, a)
}

// kept returns the scale for words that are not below the threshold and zero for others.
func (p *philox) kept(words reg.VecVirtual) reg.VecVirtual {
	if p.wide {
		const notLess = 5
		keep := p.K()
		p.VPCMPUD(operand.Imm(notLess), p.threshold, words, keep)
		p.VMOVAPS_Z(p.scale, keep, words)
		return words
	}
	kept := p.register()
	p.VPMAXUD(p.threshold, words, kept)
	p.VPCMPEQD(words, kept, kept)
	p.VPAND(p.scale, kept, kept)
	return kept
}
