package main

import "fmt"

// The tile of a matrix product on NEON: of 32 registers, 24 sums leave 4 for a row of b and 4 for elements of a.
const neonRows, neonVectors = 6, 4

// product emits the tile: a block of code for each number of rows and of column vectors. It loads
// an element of a into all lanes, from a base per row that advances by the stride of the terms.
func (g *neon) product() {
	g.function("productNEON", "func(m, n, k int, a []float32, rsa, csa int, b, c []float32, ldc int, acc bool)",
		fmt.Sprintf("is isa.product for tiles of %d by %d.", neonRows, neonVectors*neonLanes))
	m, n, k, a := g.whole("m"), g.whole("n"), g.whole("k"), g.base("a")
	rsa, csa, b, c := g.whole("rsa"), g.whole("csa"), g.base("b"), g.base("c")
	ldc, acc := g.whole("ldc"), g.gp()
	g.emit("MOVBU acc+%d(FP), %v", g.layout["acc"], acc)
	for _, stride := range []gp{rsa, csa, ldc} {
		g.emit("LSL $2, %v", stride)
	}
	bases := []gp{a}
	for range neonRows - 1 {
		bases = append(bases, g.gp())
		g.emit("ADD %v, %v, %v", rsa, bases[len(bases)-2], bases[len(bases)-1])
	}
	for vectors := 1; vectors <= neonVectors; vectors++ {
		wider := g.label("wider")
		if vectors < neonVectors {
			g.emit("CMP $%d, %v", vectors*neonLanes, n)
			g.emit("BGT %s", wider)
		}
		for rows := 1; rows <= neonRows; rows++ {
			more := g.label("more")
			if rows < neonRows {
				g.emit("CMP $%d, %v", rows, m)
				g.emit("BGT %s", more)
			}
			g.reset(0)
			sums := g.zeros(rows * vectors)
			loop, done := g.label("loop"), g.label("done")
			g.emit("CBZ %v, %s", k, done)
			g.at(loop)
			row := make([]vec, vectors)
			for v := range row {
				row[v] = g.vec()
				g.emit("FMOVQ %d(%v), %v", neonBytes*v, b, row[v])
			}
			g.emit("ADD $%d, %v", neonBytes*neonVectors, b)
			for r := range rows {
				x := g.vec()
				g.emit("VLD1R.P (%v)(%v), [V%d.S4]", bases[r], csa, int(x))
				for v := range row {
					g.mla(sums[r*vectors+v], row[v], x)
				}
				g.free = append(g.free, int(x)) // the next row gets another
			}
			g.drop(row...)
			g.emit("SUBS $1, %v", k)
			g.emit("BNE %s", loop)
			g.at(done)
			g.output(sums, vectors, n, c, ldc, acc)
			if rows < neonRows {
				g.at(more)
			}
		}
		if vectors < neonVectors {
			g.at(wider)
		}
	}

	g.reset(0)
	g.function("multiplyAddNEON", "func(rounds int)", "is isa.multiplyAdd.")
	rounds, sums := g.whole("rounds"), g.zeros(neonRows*neonVectors+1)
	loop := g.label("loop")
	g.at(loop)
	for _, sum := range sums[1:] {
		g.mla(sum, sums[0], sums[0])
	}
	g.emit("SUBS $1, %v", rounds)
	g.emit("BGT %s", loop)
	g.ret()
}

// output emits the end of a tile, which stores its sums in c or adds them to it. The last vector of
// a row may be partly outside.
func (g *neon) output(sums []vec, vectors int, n, c, ldc, acc gp) {
	whole := g.label("whole")
	g.emit("SUB $%d, %v", neonLanes*(vectors-1), n)
	g.emit("CMP $%d, %v", neonLanes, n)
	g.emit("BEQ %s", whole)
	for _, tail := range []bool{true, false} {
		add := g.label("add")
		g.emit("CBNZ %v, %s", acc, add)
		for _, adds := range []bool{false, true} {
			for i := range sums {
				s := neonStep{g: g, tail: tail && i%vectors == vectors-1, count: n}
				g.emit("ADD $%d, %v, R25", neonBytes*(i%vectors), c)
				if adds {
					old := s.peek(25)
					g.add(sums[i], sums[i], old)
					g.drop(old)
				}
				s.store(sums[i], 25)
				if i%vectors == vectors-1 {
					g.emit("ADD %v, %v", ldc, c)
				}
			}
			g.ret()
			if !adds {
				g.at(add)
			}
		}
		if tail {
			g.at(whole)
		}
	}
}
