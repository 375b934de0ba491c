package main

import "math"

// The loops below are those of vector.go and math.go, and their formulas those of math_generic.go in package kernel.

func (g *neon) vectors() {
	for _, f := range []struct {
		name string
		op   func(d, a, b vec)
	}{{"add", g.add}, {"mul", g.mul}, {"max", g.max}} {
		g.function(f.name+"NEON", "func(dst, a, b []float32)", "is isa."+f.name+".")
		dst, a, b := g.base("dst"), g.base("a"), g.base("b")
		g.each(g.length("dst"), unrolled, func(s *neonStep) {
			x, y := s.load(a), s.load(b)
			f.op(x, x, y)
			s.store(x, dst)
		})
		g.ret()
	}

	g.function("scaleNEON", "func(dst, x []float32, s float32)", "is isa.scale.")
	dst, x, factor := g.base("dst"), g.base("x"), g.broadcast("s")
	g.each(g.length("dst"), unrolled, func(s *neonStep) {
		y := s.load(x)
		g.mul(y, y, factor)
		s.store(y, dst)
	})
	g.ret()

	g.function("axpyNEON", "func(dst, x []float32, s float32)", "is isa.axpy.")
	dst, x, factor = g.base("dst"), g.base("x"), g.broadcast("s")
	g.each(g.length("dst"), unrolled, func(s *neonStep) {
		y, z := s.peek(dst), s.load(x)
		g.mla(y, z, factor)
		s.store(y, dst)
	})
	g.ret()

	g.function("rotateNEON", "func(lo, hi, a, b, cos, sin []float32)", "is isa.rotate.")
	lo, hi, a, b, cos, sin := g.base("lo"), g.base("hi"), g.base("a"), g.base("b"), g.base("cos"), g.base("sin")
	g.each(g.length("lo"), 1, func(s *neonStep) {
		x, y, c, si := s.load(a), s.load(b), s.load(cos), s.load(sin)
		u, v := g.vec(), g.vec()
		g.mul(u, x, c)
		g.mls(u, y, si)
		g.mul(v, y, c)
		g.mla(v, x, si)
		s.store(u, lo)
		s.store(v, hi)
	})
	g.ret()
}

// fold combines accumulators pairwise into the first.
func (g *neon) fold(acc []vec, op func(d, a, b vec)) vec {
	for n := len(acc); n > 1; n /= 2 {
		for i := range n / 2 {
			op(acc[i], acc[i], acc[i+n/2])
		}
	}
	return acc[0]
}

// returnSum stores the sum of all lanes of the accumulators as a result.
func (g *neon) returnSum(acc []vec, name string) {
	total := g.fold(acc, g.add)
	g.pairs(total, total, total)
	g.pairs(total, total, total)
	g.result(total, name)
}

func (g *neon) reductions() {
	g.function("dotNEON", "func(a, b []float32) (s float32)", "is isa.dot.")
	a, b, acc := g.base("a"), g.base("b"), g.zeros(unrolled)
	g.each(g.length("a"), unrolled, func(s *neonStep) { g.mla(acc[s.part], s.load(a), s.load(b)) })
	g.returnSum(acc, "s")
	g.ret()

	g.function("sumNEON", "func(x []float32) (s float32)", "is isa.sum.")
	x, acc := g.base("x"), g.zeros(unrolled)
	g.each(g.length("x"), unrolled, func(s *neonStep) { g.add(acc[s.part], acc[s.part], s.load(x)) })
	g.returnSum(acc, "s")
	g.ret()

	g.function("sumSquaresAboutNEON", "func(x []float32, mean float32) (s float32)", "is isa.sumSquaresAbout.")
	x, acc = g.base("x"), g.zeros(unrolled)
	mean := g.broadcast("mean")
	g.each(g.length("x"), unrolled, func(s *neonStep) {
		y := s.load(x)
		g.sub(y, y, mean)
		s.fill(y, -1)
		g.mla(acc[s.part], y, y)
	})
	g.returnSum(acc, "s")
	g.ret()

	g.function("maxOfNEON", "func(x []float32) (top float32)", "is isa.maxOf.")
	x, acc = g.base("x"), nil
	least := g.constant(math.Inf(-1))
	for range unrolled {
		acc = append(acc, g.vec())
		g.move(acc[len(acc)-1], least)
	}
	g.each(g.length("x"), unrolled, func(s *neonStep) {
		y := s.load(x)
		s.fill(y, least)
		g.max(acc[s.part], acc[s.part], y)
	})
	top := g.fold(acc, g.max)
	g.pairsMax(top, top, top)
	g.pairsMax(top, top, top)
	g.result(top, "top")
	g.ret()

	for _, f := range []struct {
		name   string
		square bool
	}{{"sum64", false}, {"sumSquares", true}} {
		g.function(f.name+"NEON", "func(x []float32) (s float64)", "is isa."+f.name+".")
		x, acc := g.base("x"), g.zeros(2*unrolled)
		g.each(g.length("x"), unrolled, func(s *neonStep) {
			y, lo, hi := s.load(x), g.vec(), g.vec()
			g.lower64(lo, y)
			g.upper64(hi, y)
			for i, d := range []vec{lo, hi} {
				sum := acc[2*s.part+i]
				if f.square {
					g.mla64(sum, d, d)
				} else {
					g.add64(sum, sum, d)
				}
			}
		})
		total := g.fold(acc, g.add64)
		g.pairs64(total, total, total)
		g.emit("FMOVD %v, s+%d(FP)", total, g.layout["s"])
		g.ret()
	}

	g.function("colSumNEON", "func(dst, x []float32, rows, ld int)", "is isa.colSum.")
	dst, x, rows, ld := g.base("dst"), g.base("x"), g.whole("rows"), g.whole("ld")
	p, left := g.gp(), g.gp()
	g.emit("LSL $2, %v", ld)
	g.each(g.length("dst"), 1, func(s *neonStep) {
		sum := g.zeros(1)[0]
		row, done := g.label("row"), g.label("rows")
		g.emit("MOVD %v, %v", x, p)
		g.emit("MOVD %v, %v", rows, left)
		g.emit("CBZ %v, %s", left, done)
		g.at(row)
		g.add(sum, sum, s.peek(p))
		g.emit("ADD %v, %v", ld, p)
		g.emit("SUBS $1, %v", left)
		g.emit("BNE %s", row)
		g.at(done)
		g.emit("ADD $%d, %v", neonBytes, x)
		g.add(sum, sum, s.peek(dst))
		s.store(sum, dst)
	})
	g.ret()
}

// exp replaces x by e**x.
func (g *neon) exp(x vec) vec {
	g.bound(x, g.max, -87.3)
	g.bound(x, g.min, 89)
	n := g.constant(math.Log2E)
	g.mul(n, x, n)
	g.round(n, n)
	for _, part := range []float64{0.693359375, -2.12194440e-4} {
		c := g.constant(part)
		g.mls(x, n, c)
		g.drop(c)
	}
	y := g.poly(x, expPoly)
	g.drop(x)
	g.toInt(n, n)
	bias := g.bits(126)
	g.addInt(n, n, bias)
	g.shift23(n, n)
	g.mul(y, y, n)
	g.add(y, y, y)
	g.drop(n, bias)
	return y
}

// bound sets x to the larger or smaller of it and a number. A NaN passes.
func (g *neon) bound(x vec, op func(d, a, b vec), number float64) {
	bound := g.constant(number)
	op(x, x, bound)
	g.drop(bound)
}

// normalCDF returns Phi(x) and exp(-x*x/2).
func (g *neon) normalCDF(x vec) (phi, e vec) {
	e = g.constant(-0.5)
	g.mul(e, e, x)
	g.mul(e, e, x)
	e = g.exp(e)
	q, one, scale := g.vec(), g.constant(1), g.constant(phiScale)
	g.abs(q, x)
	g.mul(q, q, scale)
	g.add(q, q, one)
	g.div(q, one, q)
	phi = g.poly(q, phiPoly)
	g.mul(phi, phi, q)
	g.mul(phi, phi, e)
	below := q
	g.negative(below, x)
	g.sub(one, one, phi)
	g.selects(below, phi, one)
	g.drop(phi, one, scale)
	return below, e
}

// logistic returns 1/(1 + e) and e = exp(-2u) of the tanh form.
func (g *neon) logistic(x, square vec) (s, e vec) {
	b := g.constant(geluB)
	e = g.constant(geluA)
	g.mla(e, b, square)
	g.mul(e, e, x)
	g.drop(b)
	return g.inverse(e)
}

// inverse returns 1/(1 + exp(x)) and exp(x).
func (g *neon) inverse(x vec) (s, e vec) {
	e = g.exp(x)
	s = g.vec()
	one := g.constant(1)
	g.add(s, e, one)
	g.div(s, one, s)
	g.drop(one)
	return s, e
}

func (g *neon) exponentials() {
	g.function("expSumNEON", "func(dst, x []float32, scale, shift float32) (s float32)", "is isa.expSum.")
	dst, x := g.base("dst"), g.base("x")
	scale, shift := g.broadcast("scale"), g.broadcast("shift")
	sums := g.zeros(2)
	g.each(g.length("dst"), 2, func(s *neonStep) {
		y := s.load(x)
		g.mul(y, y, scale)
		g.sub(y, y, shift)
		y = g.exp(y)
		s.store(y, dst)
		s.fill(y, -1)
		g.add(sums[s.part], sums[s.part], y)
	})
	g.returnSum(sums, "s")
	g.ret()

	g.function("expMulNEON", "func(dst, x []float32, shift, mul float32)", "is isa.expMul.")
	dst, x = g.base("dst"), g.base("x")
	shift, mul := g.broadcast("shift"), g.broadcast("mul")
	g.each(g.length("dst"), 2, func(s *neonStep) {
		y := s.load(x)
		g.sub(y, y, shift)
		y = g.exp(y)
		g.mul(y, y, mul)
		s.store(y, dst)
	})
	g.ret()

	g.function("geluNEON", "func(y, x []float32)", "is isa.gelu.")
	y, x := g.base("y"), g.base("x")
	g.each(g.length("y"), 1, func(s *neonStep) {
		v := s.load(x)
		phi, _ := g.normalCDF(v)
		g.mul(phi, phi, v)
		s.store(phi, y)
	})
	g.ret()

	g.function("geluGradNEON", "func(dx, dy, x []float32)", "is isa.geluGrad.")
	dx, dy, x := g.base("dx"), g.base("dy"), g.base("x")
	g.each(g.length("dx"), 1, func(s *neonStep) {
		v := s.load(x)
		phi, e := g.normalCDF(v)
		g.mul(v, v, g.constant(invSqrt2Pi))
		g.mla(phi, v, e)
		g.mul(phi, phi, s.load(dy))
		s.store(phi, dx)
	})
	g.ret()

	g.function("geluTanhNEON", "func(y, x []float32)", "is isa.geluTanh.")
	y, x = g.base("y"), g.base("x")
	g.each(g.length("y"), 1, func(s *neonStep) {
		v, square := s.load(x), g.vec()
		g.mul(square, v, v)
		logistic, _ := g.logistic(v, square)
		g.mul(logistic, logistic, v)
		s.store(logistic, y)
	})
	g.ret()

	g.function("geluTanhGradNEON", "func(dx, dy, x []float32)", "is isa.geluTanhGrad.")
	dx, dy, x = g.base("dx"), g.base("dy"), g.base("x")
	g.each(g.length("dx"), 1, func(s *neonStep) {
		v, square := s.load(x), g.vec()
		g.bound(v, g.max, -geluMax)
		g.bound(v, g.min, geluMax)
		g.mul(square, v, v)
		logistic, e := g.logistic(v, square)
		slope := g.constant(geluA)
		g.mla(slope, square, g.constant(3*geluB))
		g.mul(slope, slope, v)
		g.mul(e, e, logistic)
		g.mul(e, e, logistic)
		g.mls(logistic, e, slope)
		g.mul(logistic, logistic, s.load(dy))
		s.store(logistic, dx)
	})
	g.ret()

	g.function("swigluNEON", "func(y, gate, up []float32)", "is isa.swiglu.")
	y, gate, up := g.base("y"), g.base("gate"), g.base("up")
	g.each(g.length("y"), 1, func(s *neonStep) {
		v, e := s.load(gate), g.vec()
		g.negate(e, v)
		logistic, _ := g.inverse(e)
		g.mul(v, v, logistic)
		g.mul(v, v, s.load(up))
		s.store(v, y)
	})
	g.ret()

	g.function("swigluGradNEON", "func(dgate, dup, dy, gate, up []float32)", "is isa.swigluGrad.")
	dgate, dup, dy, gate, up := g.base("dgate"), g.base("dup"), g.base("dy"), g.base("gate"), g.base("up")
	g.each(g.length("dy"), 1, func(s *neonStep) {
		d, v, u, e := s.load(dy), s.load(gate), s.load(up), g.vec()
		g.bound(v, g.max, -siluMax)
		g.negate(e, v)
		logistic, e := g.inverse(e)
		g.mul(u, u, d)
		g.mul(d, d, v)
		g.mul(d, d, logistic) // d * (v*s)
		g.mul(e, e, logistic)
		g.mul(e, e, logistic)
		g.mla(logistic, e, v)
		g.mul(u, u, logistic)
		s.store(u, dgate)
		s.store(d, dup)
	})
	g.ret()

	g.function("softmaxGradNEON", "func(ds, p, dp []float32, delta, scale float32)", "is isa.softmaxGrad.")
	ds, p, dp := g.base("ds"), g.base("p"), g.base("dp")
	delta, scale := g.broadcast("delta"), g.broadcast("scale")
	g.each(g.length("ds"), 2, func(s *neonStep) {
		prob, grad := s.load(p), s.load(dp)
		g.mul(prob, prob, scale)
		g.sub(grad, grad, delta)
		g.mul(grad, grad, prob)
		s.store(grad, ds)
	})
	g.ret()
}

// normalized returns (x - mean) * rstd.
func (s *neonStep) normalized(x gp, mean, rstd vec) vec {
	y := s.load(x)
	s.g.sub(y, y, mean)
	s.g.mul(y, y, rstd)
	return y
}

func (g *neon) norms() {
	g.function("normalizeNEON", "func(y, x, w, b []float32, mean, rstd float32)", "is isa.normalize.")
	y, x, w, b := g.base("y"), g.base("x"), g.base("w"), g.base("b")
	mean, rstd := g.broadcast("mean"), g.broadcast("rstd")
	g.each(g.length("y"), 2, func(s *neonStep) {
		hat, out := s.normalized(x, mean, rstd), s.load(b)
		g.mla(out, hat, s.load(w))
		s.store(out, y)
	})
	g.ret()

	g.function("normGradSumsNEON", "func(dy, x, w []float32, mean, rstd float32) (sumG, sumGX float32)", "is isa.normGradSums.")
	dy, x, w := g.base("dy"), g.base("x"), g.base("w")
	mean, rstd = g.broadcast("mean"), g.broadcast("rstd")
	sums, products := g.zeros(2), g.zeros(2)
	g.each(g.length("dy"), 2, func(s *neonStep) {
		hat, d := s.normalized(x, mean, rstd), s.load(dy)
		g.mul(d, d, s.load(w)) // zero beyond the end
		g.add(sums[s.part], sums[s.part], d)
		g.mla(products[s.part], d, hat)
	})
	g.returnSum(sums, "sumG")
	g.returnSum(products, "sumGX")
	g.ret()

	g.function("normGradRowNEON", "func(dx, dy, x, w []float32, mean, rstd, meanG, meanGX float32)", "is isa.normGradRow.")
	dx, dy, x, w := g.base("dx"), g.base("dy"), g.base("x"), g.base("w")
	mean, rstd = g.broadcast("mean"), g.broadcast("rstd")
	shift, slope := g.broadcast("meanG"), g.broadcast("meanGX")
	g.each(g.length("dx"), 2, func(s *neonStep) {
		hat, d := s.normalized(x, mean, rstd), s.load(dy)
		g.mul(d, d, s.load(w))
		g.sub(d, d, shift)
		g.mls(d, hat, slope)
		g.mul(d, d, rstd)
		s.store(d, dx)
	})
	g.ret()

	g.function("normGradParamsNEON", "func(dw, db, dy, x []float32, mean, rstd float32)", "is isa.normGradParams.")
	dw, db, dy, x := g.base("dw"), g.base("db"), g.base("dy"), g.base("x")
	mean, rstd = g.broadcast("mean"), g.broadcast("rstd")
	g.each(g.length("dw"), 2, func(s *neonStep) {
		hat, d, sum := s.normalized(x, mean, rstd), s.load(dy), s.peek(dw)
		g.mla(sum, d, hat)
		s.store(sum, dw)
		g.add(d, d, s.peek(db))
		s.store(d, db)
	})
	g.ret()
}

func (g *neon) optimizer() {
	g.function("adamwNEON", "func(w, m, v, grad []float32, c *[9]float32)", "is isa.adamw.")
	w, m, v, grad, factors := g.base("w"), g.base("m"), g.base("v"), g.base("grad"), g.whole("c")
	var c [9]vec
	for i := range c {
		c[i] = g.vec()
		g.emit("FMOVS %d(%v), %v", 4*i, factors, c[i])
		g.word(0x4e040400, c[i], c[i], 0, "DUP")
	}
	gradScale, beta1, gain1, beta2, gain2, decay, rate, rootBias, eps := c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]
	g.each(g.length("w"), 1, func(s *neonStep) {
		gi, mi, vi := s.load(grad), s.peek(m), s.peek(v)
		g.mul(gi, gi, gradScale)
		g.mul(mi, mi, beta1)
		g.mla(mi, gi, gain1)
		s.store(mi, m)
		g.mul(gi, gi, gi)
		g.mul(vi, vi, beta2)
		g.mla(vi, gi, gain2)
		s.store(vi, v)
		g.sqrt(vi, vi)
		g.mul(vi, vi, rootBias)
		g.add(vi, vi, eps)
		g.mul(mi, mi, rate)
		g.div(mi, mi, vi)
		wi := s.peek(w)
		g.mul(wi, wi, decay)
		g.sub(wi, wi, mi)
		s.store(wi, w)
	})
	g.ret()
}
