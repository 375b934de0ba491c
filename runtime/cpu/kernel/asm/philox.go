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
		bits := g.x86.GP32()
		g.x86.MOVL(operand.U32(0xaaaa), bits)
		p.high = g.x86.K()
		g.x86.KMOVW(bits, p.high)
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
	g.x86.VPBROADCASTQ(g.address("block"), ids[0])
	g.x86.VPADDQ(g.table("counters"+g.set()), ids[0], ids[0])
	g.x86.VPADDQ(g.table("advance"+g.set()), ids[0], ids[1])
	elements := 2 * g.lanes() // of a register of counters
	out := func(i int) operand.Mem { return operand.Mem{Base: dst, Disp: 4 * elements * i} }

	loop, last, done := g.label("loop"), g.label("last"), g.label("done")
	g.x86.Label(loop)
	g.x86.CMPQ(n, operand.Imm(uint64(2*elements)))
	g.x86.JLT(to(last))
	p.factors(ids, out)
	for _, id := range ids {
		for range ids {
			g.x86.VPADDQ(g.table("advance"+g.set()), id, id)
		}
	}
	g.x86.ADDQ(operand.U32(uint32(2*elements*4)), dst)
	g.x86.SUBQ(operand.Imm(uint64(2*elements)), n)
	g.x86.JMP(to(loop))
	g.x86.Label(last)
	if g.wide { // otherwise two are the least there is
		g.x86.TESTQ(n, n)
		g.x86.JZ(to(done))
		p.factors(ids[:1], out)
		g.x86.Label(done)
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
		id, row, block, skip := g.register(), g.x86.GP64(), g.x86.GP64(), g.x86.GP64()
		g.x86.MOVQ(start, block)
		g.x86.SHRQ(operand.Imm(2), block)
		g.x86.VPBROADCASTQ(block, id)
		g.x86.VPADDQ(g.table("counters"+g.set()), id, id)
		g.x86.MOVQ(start, skip)
		g.x86.ANDQ(operand.Imm(3), skip)
		g.x86.NEGQ(skip)
		g.x86.LEAQ(operand.Mem{Base: dst, Index: skip, Scale: 4, Disp: 4 * scoreAlign}, row)
		ids, rows = append(ids, id), append(rows, row)
		g.x86.ADDQ(stride, start)
		g.x86.LEAQ(operand.Mem{Base: dst, Index: ld, Scale: 4}, dst)
	}
	p := g.philox()
	loop := g.label("loop")
	g.x86.Label(loop)
	p.factors(ids, func(i int) operand.Mem { return operand.Mem{Base: rows[i]} })
	for i := range ids {
		g.x86.VPADDQ(g.table("advance"+g.set()), ids[i], ids[i])
		g.x86.ADDQ(operand.U32(2*4*widest), rows[i])
	}
	g.x86.SUBQ(operand.Imm(2*widest), n)
	g.x86.JGT(to(loop))
	g.end()
}

// schedule emits the computation of the keys of all rounds.
func (p *philox) schedule() {
	p.keys = p.x86.AllocLocal(2 * rounds * 4)
	seed := p.x86.Load(p.x86.Param("seed"), p.x86.GP64()).(reg.GPVirtual)
	for word, inc := range []uint32{inc0, inc1} {
		key := p.x86.GP32()
		p.x86.MOVL(seed.As32(), key)
		for round := range rounds {
			p.x86.MOVL(key, p.key(round, word))
			p.x86.ADDL(operand.U32(inc), key)
		}
		p.x86.SHRQ(operand.Imm(32), seed)
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
		p.x86.VMOVUPS(id, c[i][0])
		p.x86.VPSRLQ(operand.Imm(32), id, c[i][1])
		p.x86.VBROADCASTSS(p.address("op"), c[i][2])
		p.x86.VBROADCASTSS(p.address("step"), c[i][3])
	}
	for round := range rounds {
		for i := range c {
			products := [2]reg.VecVirtual{p.register(), p.register()}
			p.x86.VPMULUDQ(p.bits(mul0), c[i][0], products[0])
			p.x86.VPMULUDQ(p.bits(mul1), c[i][2], products[1])
			c[i][0] = p.mix(products[1], c[i][1], p.key(round, 0))
			c[i][2] = p.mix(products[0], c[i][3], p.key(round, 1))
			c[i][1], c[i][3] = products[1], products[0]
		}
	}
	for i := range c {
		p.pair(c[i][0], c[i][1])
		p.pair(c[i][2], c[i][3])
		for half, unpack := range []func(ops ...operand.Op){p.x86.VPUNPCKLQDQ, p.x86.VPUNPCKHQDQ} {
			words := p.register()
			unpack(c[i][2], c[i][0], words)
			p.x86.VMOVUPS(p.kept(words), dst(i).Offset(4*p.lanes()*half))
		}
	}
}

// mix returns the exclusive or of a word, a key and the high half of a product.
func (p *philox) mix(product, word reg.VecVirtual, key operand.Mem) reg.VecVirtual {
	high := p.register()
	p.x86.VPSRLQ(operand.Imm(32), product, high)
	if p.wide {
		p.x86.VPTERNLOGD_BCST(operand.Imm(0x96), key, word, high)
		return high
	}
	k := p.register()
	p.x86.VPBROADCASTD(key, k)
	p.x86.VPXOR(k, word, word)
	p.x86.VPXOR(word, high, high)
	return high
}

// pair puts the word in the low half of each lane of b beside that of a.
func (p *philox) pair(a, b reg.VecVirtual) {
	if p.wide {
		p.x86.VPSHUFD(operand.Imm(0xa0), b, p.high, a)
		return
	}
	p.x86.VPSLLQ(operand.Imm(32), b, b)
	p.x86.VPBLENDD(operand.Imm(0xaa), b, a, a)
}

// kept returns the scale for words that are not below the threshold and zero for others.
func (p *philox) kept(words reg.VecVirtual) reg.VecVirtual {
	if p.wide {
		const notLess = 5
		keep := p.x86.K()
		p.x86.VPCMPUD(operand.Imm(notLess), p.threshold, words, keep)
		p.x86.VMOVAPS_Z(p.scale, keep, words)
		return words
	}
	kept := p.register()
	p.x86.VPMAXUD(p.threshold, words, kept)
	p.x86.VPCMPEQD(words, kept, kept)
	p.x86.VPAND(p.scale, kept, kept)
	return kept
}
