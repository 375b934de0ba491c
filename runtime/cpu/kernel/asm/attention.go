package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// quad is how many rows of scores a loop processes together, so that as many dependency chains
// overlap.
const quad = 4

// scoreRows is a loop over the vectors of four rows, ld apart. The first row has seen elements that
// count, each later row one more, and none more than m.
type scoreRows struct {
	*generator
	counts  [quad]reg.VecVirtual
	indices reg.VecVirtual // of the elements of the vector
	ld, ld3 reg.Register   // in bytes
	m       reg.Register
}

// scoreRows emits the loops over rows of attention scores, in AVX-512.
func (g *generator) scoreRows() {
	g.wide = true
	g.maxRows()
	g.expRows()
	g.gradRows()
	g.wide = false
}

// rows loads the sizes that the loops over rows of scores share.
func (g *generator) rows() *scoreRows {
	s := &scoreRows{generator: g, ld: g.integer("ld"), m: g.integer("m"), indices: g.register()}
	s.ld3 = g.stride3(s.ld)
	seen := g.integer("seen")
	for r := range s.counts {
		s.counts[r] = g.register()
		g.x86.VPBROADCASTD(seen.(reg.GPVirtual).As32(), s.counts[r])
		g.x86.INCQ(seen)
	}
	g.x86.VMOVUPS(g.table("indices"), s.indices)
	return s
}

// stride3 converts a stride in numbers to bytes, and returns three times that.
func (g *generator) stride3(ld reg.Register) reg.Register {
	g.x86.SHLQ(operand.Imm(2), ld)
	three := g.x86.GP64()
	g.x86.LEAQ(operand.Mem{Base: ld, Index: ld, Scale: 2}, three)
	return three
}

// row returns the address of the current vector of row r.
func row(base, ld, ld3 reg.Register, r int) operand.Mem {
	switch r {
	case 0:
		return operand.Mem{Base: base}
	case 3:
		return operand.Mem{Base: base, Index: ld3, Scale: 1}
	default:
		return operand.Mem{Base: base, Index: ld, Scale: uint8(r)}
	}
}

// each emits the loop over the vectors in which elements of the last row count, and then one that
// clears the remaining elements up to m. Both advance the bases.
func (s *scoreRows) each(body func(r int, counts reg.Register), clear []reg.Register, bases ...reg.Register) {
	left := s.integer("seen") // of the last row
	s.x86.ADDQ(operand.Imm(quad-1), left)
	s.x86.CMPQ(left, s.m)
	s.x86.CMOVQGT(s.m, left)
	loop, rest, zeros, done := s.label("vector"), s.label("rest"), s.label("zeros"), s.label("done")
	advance := func() {
		for _, base := range bases {
			s.x86.ADDQ(operand.Imm(64), base)
		}
		s.x86.SUBQ(operand.Imm(widest), s.m)
	}
	limit := s.register() // beyond m nothing counts
	s.x86.VPBROADCASTD(s.m.(reg.GPVirtual).As32(), limit)
	for r := range s.counts {
		s.x86.VPMINSD(limit, s.counts[r], s.counts[r])
	}
	step := s.register()
	words := s.x86.GP32()
	s.x86.MOVL(operand.U32(widest), words)
	s.x86.VPBROADCASTD(words, step)
	s.x86.Label(loop)
	s.x86.TESTQ(left, left)
	s.x86.JLE(to(rest))
	for r := range quad {
		const less = 1
		counts := s.x86.K()
		s.x86.VPCMPD(operand.Imm(less), s.counts[r], s.indices, counts)
		body(r, counts)
	}
	s.x86.VPADDD(step, s.indices, s.indices)
	advance()
	s.x86.SUBQ(operand.Imm(widest), left)
	s.x86.JMP(to(loop))
	s.x86.Label(rest)
	if len(clear) == 0 {
		return
	}
	zero := s.zeros(1)[0]
	s.x86.Label(zeros)
	s.x86.TESTQ(s.m, s.m)
	s.x86.JLE(to(done))
	for r := range quad {
		for _, base := range clear {
			s.x86.VMOVUPS(zero, row(base, s.ld, s.ld3, r))
		}
	}
	advance()
	s.x86.JMP(to(zeros))
	s.x86.Label(done)
}

func (g *generator) maxRows() {
	g.function("maxRowsAVX512", "func(top, x []float32, ld, seen, m int)", "is isa.maxRows.")
	s, x := g.rows(), g.base("x")
	acc := [quad]reg.VecVirtual{}
	for r := range acc {
		acc[r] = g.constantIn(math.Inf(-1))
	}
	s.each(func(r int, counts reg.Register) {
		g.x86.VMAXPS(row(x, s.ld, s.ld3, r), acc[r], counts, acc[r])
	}, nil, x)
	top := g.base("top")
	for r := range acc {
		g.x86.VMOVSS(g.across(acc[r], g.x86.VMAXPS).AsX(), operand.Mem{Base: top, Disp: 4 * r})
	}
	g.end()
}

// fromParam returns, for each row, a register with the row's element of a slice in all lanes.
func (g *generator) fromParam(param string) (values [quad]reg.VecVirtual) {
	base := g.base(param)
	for r := range values {
		values[r] = g.register()
		g.x86.VBROADCASTSS(operand.Mem{Base: base, Disp: 4 * r}, values[r])
	}
	return values
}

// withFactors emits the rest of a function twice: for rows that are multiplied by factors, and for
// others.
func (g *generator) withFactors(rest func(factor func(r int) operand.Mem, bases ...reg.Register)) {
	f, plain := g.base("f"), g.label("plain")
	n := g.length("f")
	g.x86.TESTQ(n, n)
	g.x86.JZ(to(plain))
	ldf := g.integer("ldf")
	ldf3 := g.stride3(ldf)
	rest(func(r int) operand.Mem { return row(f, ldf, ldf3, r) }, f)
	g.x86.Label(plain)
	rest(nil)
}

func (g *generator) expRows() {
	g.function("expRowsAVX512", "func(x []float32, ld, seen, m int, scale float32, shifts, sums, f []float32, ldf int)", "is isa.expRows.")
	g.withFactors(func(factor func(r int) operand.Mem, bases ...reg.Register) {
		s, x := g.rows(), g.base("x")
		scale, shifts := g.broadcast("scale"), g.fromParam("shifts")
		acc := g.zeros(quad)
		s.each(func(r int, counts reg.Register) {
			y := g.register()
			g.x86.VMOVUPS_Z(row(x, s.ld, s.ld3, r), counts, y)
			g.x86.VFMSUB213PS(shifts[r], scale, y)
			y = g.exp(y)
			g.x86.VMOVAPS_Z(y, counts, y)
			g.x86.VADDPS(y, acc[r], acc[r])
			if factor != nil {
				g.x86.VMULPS_Z(factor(r), y, counts, y)
			}
			g.x86.VMOVUPS(y, row(x, s.ld, s.ld3, r))
		}, []reg.Register{x}, append(bases, x)...)
		sums := g.base("sums")
		for r := range acc {
			g.x86.VMOVSS(g.across(acc[r], g.x86.VADDPS).AsX(), operand.Mem{Base: sums, Disp: 4 * r})
		}
		g.end()
	})
}

func (g *generator) gradRows() {
	g.function("gradRowsAVX512", "func(p, dp []float32, ld, seen, m int, scale float32, lse, delta, f []float32, ldf int)", "is isa.gradRows.")
	g.withFactors(func(factor func(r int) operand.Mem, bases ...reg.Register) {
		s, p, dp := g.rows(), g.base("p"), g.base("dp")
		scale, lse, delta := g.broadcast("scale"), g.fromParam("lse"), g.fromParam("delta")
		s.each(func(r int, counts reg.Register) {
			y, grad, kept := g.register(), g.register(), g.register()
			g.x86.VMOVUPS_Z(row(p, s.ld, s.ld3, r), counts, y)
			g.x86.VFMSUB213PS(lse[r], scale, y)
			y = g.exp(y)
			g.x86.VMOVAPS_Z(y, counts, y)
			g.x86.VMOVUPS_Z(row(dp, s.ld, s.ld3, r), counts, grad)
			if factor != nil {
				g.x86.VMOVUPS_Z(factor(r), counts, kept)
				g.x86.VMULPS(kept, grad, grad)
				g.x86.VMULPS(y, kept, kept)
				g.x86.VMOVUPS(kept, row(p, s.ld, s.ld3, r))
			} else {
				g.x86.VMOVUPS(y, row(p, s.ld, s.ld3, r))
			}
			g.x86.VSUBPS(delta[r], grad, grad)
			g.x86.VMULPS(scale, y, y)
			g.x86.VMULPS_Z(y, grad, counts, grad)
			g.x86.VMOVUPS(grad, row(dp, s.ld, s.ld3, r))
		}, []reg.Register{p, dp}, append(bases, p, dp)...)
		g.end()
	})
}
