package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// unrolled is how many vectors a loop of few instructions processes together: as many dependency
// chains of additions hide the latency of one.
const unrolled = 4

// vectors emits the element-wise loops of one or two operations.
func (g *generator) vectors() {
	for _, f := range []struct {
		name string
		op   func(ops ...operand.Op)
	}{{"add", g.x86.VADDPS}, {"mul", g.x86.VMULPS}, {"max", g.x86.VMAXPS}} {
		g.function(f.name+g.set(), "func(dst, a, b []float32)", "is isa."+f.name+".")
		dst, a, b := g.base("dst"), g.base("a"), g.base("b")
		g.each(g.length("dst"), unrolled, func(s *step) {
			x, y := s.load(a), s.load(b)
			f.op(y, x, x)
			s.store(x, dst)
		})
		g.end()
	}

	g.function("scale"+g.set(), "func(dst, x []float32, s float32)", "is isa.scale.")
	dst, x, factor := g.base("dst"), g.base("x"), g.broadcast("s")
	g.each(g.length("dst"), unrolled, func(s *step) {
		y := s.load(x)
		g.x86.VMULPS(factor, y, y)
		s.store(y, dst)
	})
	g.end()

	g.function("axpy"+g.set(), "func(dst, x []float32, s float32)", "is isa.axpy.")
	dst, x, factor = g.base("dst"), g.base("x"), g.broadcast("s")
	g.each(g.length("dst"), unrolled, func(s *step) {
		y, z := s.load(dst), s.load(x)
		g.x86.VFMADD231PS(factor, z, y)
		s.store(y, dst)
	})
	g.end()
}

// reductions emits sums and maxima.
func (g *generator) reductions() {
	g.function("dotAVX2", "func(a, b []float32) float32", "is isa.dot.")
	a, b := g.base("a"), g.base("b")
	acc := g.zeros(unrolled)
	g.each(g.length("a"), unrolled, func(s *step) {
		g.x86.VFMADD231PS(s.load(a), s.load(b), acc[s.part])
	})
	g.returnSum(acc, 0)
	g.end()

	g.function("sumAVX2", "func(x []float32) float32", "is isa.sum.")
	x := g.base("x")
	acc = g.zeros(unrolled)
	g.each(g.length("x"), unrolled, func(s *step) {
		g.x86.VADDPS(s.load(x), acc[s.part], acc[s.part])
	})
	g.returnSum(acc, 0)
	g.end()

	g.function("sumSquaresAboutAVX2", "func(x []float32, mean float32) float32", "is isa.sumSquaresAbout.")
	x = g.base("x")
	mean := g.broadcast("mean")
	acc = g.zeros(unrolled)
	g.each(g.length("x"), unrolled, func(s *step) {
		y := s.load(x)
		g.x86.VSUBPS(mean, y, y)
		s.clip(y)
		g.x86.VFMADD231PS(y, y, acc[s.part])
	})
	g.returnSum(acc, 0)
	g.end()

	g.function("maxOfAVX2", "func(x []float32) float32", "is isa.maxOf.")
	x = g.base("x")
	least := g.constantIn(math.Inf(-1))
	for i := range acc {
		acc[i] = g.x86.YMM()
		g.x86.VMOVAPS(least, acc[i])
	}
	g.each(g.length("x"), unrolled, func(s *step) {
		y := s.load(x)
		if s.masked {
			g.x86.VBLENDVPS(s.mask, y, least, y)
		}
		g.x86.VMAXPS(y, acc[s.part], acc[s.part])
	})
	top := g.across(fold(acc, g.x86.VMAXPS), g.x86.VMAXPS)
	g.x86.Store(top.AsX(), g.x86.ReturnIndex(0))
	g.end()

	for _, f := range []struct {
		name   string
		square bool
	}{{"sum64", false}, {"sumSquares", true}} {
		g.function(f.name+"AVX2", "func(x []float32) float64", "is isa."+f.name+".")
		x := g.base("x")
		acc := g.zeros(2 * unrolled)
		g.each(g.length("x"), unrolled, func(s *step) {
			y, half := s.load(x), g.x86.XMM()
			g.x86.VEXTRACTF128(operand.Imm(1), y, half)
			lo, hi := g.x86.YMM(), g.x86.YMM()
			g.x86.VCVTPS2PD(y.AsX(), lo)
			g.x86.VCVTPS2PD(half, hi)
			for i, d := range []reg.VecVirtual{lo, hi} {
				sum := acc[2*s.part+i]
				if f.square {
					g.x86.VFMADD231PD(d, d, sum)
				} else {
					g.x86.VADDPD(d, sum, sum)
				}
			}
		})
		total := fold(acc, g.x86.VADDPD)
		half := g.x86.XMM()
		g.x86.VEXTRACTF128(operand.Imm(1), total, half)
		g.x86.VADDPD(half, total.AsX(), total.AsX())
		g.x86.VUNPCKHPD(total.AsX(), total.AsX(), half)
		g.x86.VADDPD(half, total.AsX(), total.AsX())
		g.x86.Store(total.AsX(), g.x86.ReturnIndex(0))
		g.end()
	}

	g.function("colSumAVX2", "func(dst, x []float32, rows, ld int)", "is isa.colSum.")
	dst, ld := g.base("dst"), g.integer("ld")
	x = g.base("x")
	n := g.length("dst")
	g.x86.SHLQ(operand.Imm(2), ld)
	// All rows of four vectors of columns, then of one, then of the rest.
	columns := func(vectors int, mask reg.Register) {
		sums := g.zeros(vectors)
		p, rows := g.x86.GP64(), g.integer("rows")
		g.x86.MOVQ(x, p)
		loop, done := g.label("row"), g.label("done")
		g.x86.Label(loop)
		g.x86.TESTQ(rows, rows)
		g.x86.JZ(to(done))
		for v, sum := range sums {
			mem := operand.Mem{Base: p, Disp: vector * v}
			if mask == nil {
				g.x86.VADDPS(mem, sum, sum)
				continue
			}
			y := g.x86.YMM()
			g.x86.VMASKMOVPS(mem, mask, y)
			g.x86.VADDPS(y, sum, sum)
		}
		g.x86.ADDQ(ld, p)
		g.x86.DECQ(rows)
		g.x86.JMP(to(loop))
		g.x86.Label(done)
		for v, sum := range sums {
			mem := operand.Mem{Base: dst, Disp: vector * v}
			if mask == nil {
				g.x86.VADDPS(mem, sum, sum)
				g.x86.VMOVUPS(sum, mem)
				continue
			}
			y := g.x86.YMM()
			g.x86.VMASKMOVPS(mem, mask, y)
			g.x86.VADDPS(y, sum, sum)
			g.x86.VMASKMOVPS(sum, mask, mem)
		}
		g.x86.ADDQ(operand.U32(uint32(vectors*vector)), dst)
		g.x86.ADDQ(operand.U32(uint32(vectors*vector)), x)
	}
	many, one, tail, done := g.label("many"), g.label("one"), g.label("tail"), g.label("done")
	g.x86.Label(many)
	g.x86.CMPQ(n, operand.Imm(unrolled*lanes))
	g.x86.JLT(to(one))
	columns(unrolled, nil)
	g.x86.SUBQ(operand.Imm(unrolled*lanes), n)
	g.x86.JMP(to(many))
	g.x86.Label(one)
	g.x86.CMPQ(n, operand.Imm(lanes))
	g.x86.JLT(to(tail))
	columns(1, nil)
	g.x86.SUBQ(operand.Imm(lanes), n)
	g.x86.JMP(to(one))
	g.x86.Label(tail)
	g.x86.TESTQ(n, n)
	g.x86.JZ(to(done))
	columns(1, g.mask(n))
	g.x86.Label(done)
	g.end()
}

// returnSum stores the sum of all lanes of the accumulators as result number i.
func (g *generator) returnSum(acc []reg.VecVirtual, i int) {
	total := g.across(fold(acc, g.x86.VADDPS), g.x86.VADDPS)
	g.x86.Store(total.AsX(), g.x86.ReturnIndex(i))
}

// normalization emits the loops of layer norm, the softmax gradient and their like: rows with row-wide scalars.
func (g *generator) normalization() {
	g.function("normalize"+g.set(), "func(y, x, w, b []float32, mean, rstd float32)", "is isa.normalize.")
	y, x, w, b := g.base("y"), g.base("x"), g.base("w"), g.base("b")
	mean, rstd := g.broadcast("mean"), g.broadcast("rstd")
	g.each(g.length("y"), 2, func(s *step) {
		hat := s.normalized(x, mean, rstd)
		out := s.load(b)
		g.x86.VFMADD231PS(s.load(w), hat, out)
		s.store(out, y)
	})
	g.end()

	g.function("normGradSums"+g.set(), "func(dy, x, w []float32, mean, rstd float32) (sumG, sumGX float32)", "is isa.normGradSums.")
	dy, x, w := g.base("dy"), g.base("x"), g.base("w")
	mean, rstd = g.broadcast("mean"), g.broadcast("rstd")
	sums, products := g.zeros(2), g.zeros(2)
	g.each(g.length("dy"), 2, func(s *step) {
		hat, d := s.normalized(x, mean, rstd), s.load(dy)
		g.x86.VMULPS(s.load(w), d, d)
		g.x86.VADDPS(d, sums[s.part], sums[s.part])
		g.x86.VFMADD231PS(d, hat, products[s.part]) // d is zero beyond the end
	})
	g.returnSum(sums, 0)
	g.returnSum(products, 1)
	g.end()

	g.function("normGradRow"+g.set(), "func(dx, dy, x, w []float32, mean, rstd, meanG, meanGX float32)", "is isa.normGradRow.")
	dx, dy, x, w := g.base("dx"), g.base("dy"), g.base("x"), g.base("w")
	mean, rstd = g.broadcast("mean"), g.broadcast("rstd")
	shift, slope := g.broadcast("meanG"), g.broadcast("meanGX")
	g.each(g.length("dx"), 2, func(s *step) {
		hat, d := s.normalized(x, mean, rstd), s.load(dy)
		g.x86.VFMSUB132PS(s.load(w), shift, d)
		g.x86.VFNMADD231PS(slope, hat, d)
		g.x86.VMULPS(rstd, d, d)
		s.store(d, dx)
	})
	g.end()

	g.function("normGradParams"+g.set(), "func(dw, db, dy, x []float32, mean, rstd float32)", "is isa.normGradParams.")
	dw, db, dy, x := g.base("dw"), g.base("db"), g.base("dy"), g.base("x")
	mean, rstd = g.broadcast("mean"), g.broadcast("rstd")
	g.each(g.length("dw"), 2, func(s *step) {
		hat, d := s.normalized(x, mean, rstd), s.load(dy)
		sum := s.load(dw)
		g.x86.VFMADD231PS(d, hat, sum)
		s.store(sum, dw)
		g.x86.VADDPS(s.load(db), d, d)
		s.store(d, db)
	})
	g.end()

	g.function("softmaxGrad"+g.set(), "func(ds, p, dp []float32, delta, scale float32)", "is isa.softmaxGrad.")
	ds, p, dp := g.base("ds"), g.base("p"), g.base("dp")
	delta, scale := g.broadcast("delta"), g.broadcast("scale")
	g.each(g.length("ds"), 2, func(s *step) {
		prob, grad := s.load(p), s.load(dp)
		g.x86.VMULPS(scale, prob, prob)
		g.x86.VSUBPS(delta, grad, grad)
		g.x86.VMULPS(prob, grad, grad)
		s.store(grad, ds)
	})
	g.end()
}

// normalized returns (x - mean) * rstd.
func (s *step) normalized(x reg.Register, mean, rstd reg.VecVirtual) reg.VecVirtual {
	y := s.load(x)
	s.g.x86.VSUBPS(mean, y, y)
	s.g.x86.VMULPS(rstd, y, y)
	return y
}
