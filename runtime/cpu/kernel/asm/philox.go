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

// philox emits Philox4x32-10, on as many counters at a time as a register has 64-bit lanes, and the
// comparison that makes a mask of its output. Each 32-bit word of a counter is in the low half of a
// lane, because the multiplication takes the low halves and fills the lane; the high halves never
// matter. The counters in a register are ordered so that their words are in order once those of
// each lane are put side by side.
type philox struct {
	*generator
	keys      operand.Mem // of the rounds, two words each
	threshold reg.VecVirtual
	scale     reg.VecVirtual
	high      reg.Register // AVX-512's mask of the high halves
}

// philox emits the setup that comes before counters.
func (g *generator) philox() *philox {
	p := &philox{generator: g}
	p.schedule()
	p.threshold, p.scale = g.broadcast("threshold"), g.broadcast("scale")
	if g.wide {
		bits := g.GP32()
		g.MOVL(operand.U32(0xaaaa), bits)
		p.high = g.K()
		g.KMOVW(bits, p.high)
	}
	return p
}

// dropout emits isa.dropoutFactors and, in AVX-512, isa.dropoutRows.
func (g *generator) dropout() {
	g.dropoutFactors()
	if g.wide {
		g.dropoutRows()
	}
}

func (g *generator) dropoutFactors() {
	g.function("dropoutFactors"+g.set(), "func(dst []float32, block, seed uint64, op, step, threshold uint32, scale float32)",
		"is isa.dropoutFactors for lengths that are multiples of 32.")
	dst, n, p := g.base("dst"), g.length("dst"), g.philox()
	// Two registers of counters at a time, so that neither waits for its multiplications alone.
	ids := []reg.VecVirtual{g.register(), g.register()}
	g.VPBROADCASTQ(g.address("block"), ids[0])
	g.VPADDQ(g.table("counters"+g.set()), ids[0], ids[0])
	g.VPADDQ(g.table("advance"+g.set()), ids[0], ids[1])
	elements := 2 * g.lanes() // of a register of counters
	out := func(i int) operand.Mem { return operand.Mem{Base: dst, Disp: 4 * elements * i} }

	loop, last, done := g.label("loop"), g.label("last"), g.label("done")
	g.Label(loop)
	g.CMPQ(n, operand.Imm(uint64(2*elements)))
	g.JLT(to(last))
	p.factors(ids, out)
	for _, id := range ids {
		for range ids {
			g.VPADDQ(g.table("advance"+g.set()), id, id)
		}
	}
	g.ADDQ(operand.U32(uint32(2*elements*4)), dst)
	g.SUBQ(operand.Imm(uint64(2*elements)), n)
	g.JMP(to(loop))
	g.Label(last)
	if g.wide { // otherwise two are the least there is
		g.TESTQ(n, n)
		g.JZ(to(done))
		p.factors(ids[:1], out)
		g.Label(done)
	}
	g.end()
}

// dropoutRows has a register of counters for each of four rows.
func (g *generator) dropoutRows() {
	g.function("dropoutRows"+g.set(), "func(dst []float32, ld, n int, start, stride, seed uint64, op, step, threshold uint32, scale float32)",
		"is isa.dropoutRows.")
	const scoreAlign = 16
	dst, ld, n := g.base("dst"), g.integer("ld"), g.integer("n")
	start, stride := g.integer("start"), g.integer("stride")
	var ids []reg.VecVirtual
	var rows []reg.Register
	for range quad {
		id, row, block, skip := g.register(), g.GP64(), g.GP64(), g.GP64()
		g.MOVQ(start, block)
		g.SHRQ(operand.Imm(2), block)
		g.VPBROADCASTQ(block, id)
		g.VPADDQ(g.table("counters"+g.set()), id, id)
		g.MOVQ(start, skip)
		g.ANDQ(operand.Imm(3), skip)
		g.NEGQ(skip)
		g.LEAQ(operand.Mem{Base: dst, Index: skip, Scale: 4, Disp: 4 * scoreAlign}, row)
		ids, rows = append(ids, id), append(rows, row)
		g.ADDQ(stride, start)
		g.LEAQ(operand.Mem{Base: dst, Index: ld, Scale: 4}, dst)
	}
	p := g.philox()
	loop := g.label("loop")
	g.Label(loop)
	p.factors(ids, func(i int) operand.Mem { return operand.Mem{Base: rows[i]} })
	for i := range ids {
		g.VPADDQ(g.table("advance"+g.set()), ids[i], ids[i])
		g.ADDQ(operand.U32(2*4*widest), rows[i])
	}
	g.SUBQ(operand.Imm(2*widest), n)
	g.JGT(to(loop))
	g.end()
}

// schedule emits the computation of the keys of all rounds.
func (p *philox) schedule() {
	p.keys = p.AllocLocal(2 * rounds * 4)
	seed := p.Load(p.Param("seed"), p.GP64()).(reg.GPVirtual)
	for word, inc := range []uint32{inc0, inc1} {
		key := p.GP32()
		p.MOVL(seed.As32(), key)
		for round := range rounds {
			p.MOVL(key, p.key(round, word))
			p.ADDL(operand.U32(inc), key)
		}
		p.SHRQ(operand.Imm(32), seed)
	}
}

func (p *philox) key(round, word int) operand.Mem { return p.keys.Offset(4 * (2*round + word)) }

// factors emits the factors for registers of counters, each stored at its own place.
func (p *philox) factors(ids []reg.VecVirtual, dst func(i int) operand.Mem) {
	c := make([][4]reg.VecVirtual, len(ids))
	for i, id := range ids {
		for w := range c[i] {
			c[i][w] = p.register()
		}
		p.VMOVUPS(id, c[i][0])
		p.VPSRLQ(operand.Imm(32), id, c[i][1])
		p.VBROADCASTSS(p.address("op"), c[i][2])
		p.VBROADCASTSS(p.address("step"), c[i][3])
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
			p.VMOVUPS(p.kept(words), dst(i).Offset(4*p.lanes()*half))
		}
	}
}

// mix returns the exclusive or of a word, a key and the high half of a product.
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
