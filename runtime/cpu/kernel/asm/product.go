package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tileShape is the tile of a matrix product. Its sums stay in registers: enough to hide the latency
// of the multiply-add units, with registers left for the operands.
type tileShape struct {
	set           string // suffix of the function's name
	rows, vectors int    // a row has this many vectors
	lanes         int    // float32 in a vector
}

// Of 16 registers, 12 hold sums, 2 a row of b and 2 elements of a. Of 32 registers, 24 hold sums.
var (
	avx2Tile   = tileShape{set: "AVX2", rows: 6, vectors: 2, lanes: 8}
	avx512Tile = tileShape{set: "AVX512", rows: 12, vectors: 2, lanes: 16}
)

func (s tileShape) bytes() int { return 4 * s.lanes }

// register returns a new vector register, zero a cleared one.
func (s tileShape) register(g *generator) reg.VecVirtual {
	if s.lanes == 16 {
		return g.ZMM()
	}
	return g.YMM()
}

func (s tileShape) zero(g *generator) reg.VecVirtual {
	y := s.register(g)
	if s.lanes == 16 {
		g.VPXORD(y, y, y)
	} else {
		g.VXORPS(y, y, y)
	}
	return y
}

// product emits the tile of a matrix product: a block of code for each number of rows and of column
// vectors.
func (g *generator) product(s tileShape) {
	g.function("product"+s.set, "func(m, n, k int, a []float32, rsa, csa int, b, c []float32, ldc int, acc bool)",
		fmt.Sprintf("is isa.product for tiles of %d by %d.", s.rows, s.vectors*s.lanes))
	m, n := g.integer("m"), g.integer("n")
	for vectors := 1; vectors <= s.vectors; vectors++ {
		wider := g.label("wider")
		if vectors < s.vectors {
			g.CMPQ(n, operand.Imm(uint64(vectors*s.lanes)))
			g.JGT(to(wider))
		}
		for rows := 1; rows <= s.rows; rows++ {
			more := g.label("more")
			if rows < s.rows {
				g.CMPQ(m, operand.Imm(uint64(rows)))
				g.JGT(to(more))
			}
			g.tile(s, rows, vectors)
			g.Label(more)
		}
		g.Label(wider)
	}
}

// tile emits the block for one size, up to its return.
func (g *generator) tile(s tileShape, rows, vectors int) {
	sums := make([][]reg.VecVirtual, rows)
	for r := range sums {
		for range vectors {
			sums[r] = append(sums[r], s.zero(g))
		}
	}

	// Three rows share a base address, from which they are 0, 1 and 2 row strides away.
	a, rsa, csa := g.base("a"), g.integer("rsa"), g.integer("csa")
	b, k := g.base("b"), g.integer("k")
	g.SHLQ(operand.Imm(2), rsa)
	g.SHLQ(operand.Imm(2), csa)
	bases := []reg.Register{a}
	for r := 3; r < rows; r += 3 {
		base := g.GP64()
		g.LEAQ(operand.Mem{Base: rsa, Index: rsa, Scale: 2}, base)
		g.ADDQ(bases[len(bases)-1], base)
		bases = append(bases, base)
	}
	// The address of an element of a for the term u after the bases. If a is packed, all rows use
	// the first base.
	strided := func(step int) func(r, u int) operand.Mem {
		return func(r, u int) operand.Mem {
			m := operand.Mem{Base: bases[r/3], Disp: u * step}
			if by := r % 3; by > 0 {
				m.Index, m.Scale = rsa, uint8(by)
			}
			return m
		}
	}
	packed := func(r, u int) operand.Mem { return operand.Mem{Base: a, Disp: 4 * (u*rows + r)} }
	term := func(u int, element func(r, u int) operand.Mem) {
		row := make([]reg.VecVirtual, vectors)
		for v := range row {
			row[v] = s.register(g)
			g.VMOVUPS(operand.Mem{Base: b, Disp: s.bytes() * (u*s.vectors + v)}, row[v])
		}
		// Two rows at a time: in this order the processor divides the multiply-adds evenly between
		// its two units.
		for r := 0; r < rows; r += 2 {
			x := make([]reg.VecVirtual, min(2, rows-r))
			for i := range x {
				x[i] = s.register(g)
				g.VBROADCASTSS(element(r+i, u), x[i])
			}
			for v := range row {
				for i := range x {
					g.VFMADD231PS(row[v], x[i], sums[r+i][v])
				}
			}
		}
	}
	// terms emits a loop of unroll terms at a time, which advances the bases in moved by step bytes
	// per term. Within an iteration addresses are offsets: computing them would take time in the
	// multiply-add units.
	terms := func(unroll int, element func(r, u int) operand.Mem, step int, moved ...reg.Register) {
		many, few := g.label("many"), g.label("few")
		g.SUBQ(operand.Imm(uint64(unroll)), k)
		g.JLT(to(few))
		g.Label(many)
		for u := range unroll {
			term(u, element)
		}
		for _, base := range moved {
			g.ADDQ(operand.U32(uint32(unroll*step)), base)
		}
		g.ADDQ(operand.U32(uint32(unroll*s.vectors*s.bytes())), b)
		g.SUBQ(operand.Imm(uint64(unroll)), k)
		g.JGE(to(many))
		g.Label(few)
		g.ADDQ(operand.Imm(uint64(unroll)), k)
	}
	one, done := g.label("one"), g.label("done")
	if rows == s.rows { // the others are edges
		apart := g.label("apart")
		g.CMPQ(csa, operand.Imm(4))
		g.JNE(to(apart))
		terms(4, strided(4), 4, bases...)
		g.JMP(to(one))
		g.Label(apart)
		g.CMPQ(csa, operand.Imm(uint64(4*rows)))
		g.JNE(to(one))
		terms(4, packed, 4*rows, a)
		for r, base := range bases[1:] {
			g.LEAQ(operand.Mem{Base: a, Disp: 12 * (r + 1)}, base)
		}
	}
	g.Label(one)
	g.TESTQ(k, k)
	g.JZ(to(done))
	term(0, strided(0))
	for _, base := range bases {
		g.ADDQ(csa, base)
	}
	g.ADDQ(operand.U32(uint32(s.vectors*s.bytes())), b)
	g.DECQ(k)
	g.JMP(to(one))
	g.Label(done)

	// The last vector of a row may be partly outside; the others are whole.
	n := g.integer("n")
	if vectors > 1 {
		g.SUBQ(operand.Imm(uint64(s.lanes*(vectors-1))), n)
	}
	acc, add := g.Load(g.Param("acc"), g.GP8()), g.label("add")
	if s.lanes == 16 {
		bits, mask := g.GP64(), g.K()
		g.MOVQ(operand.U32(1), bits)
		g.SHLXQ(n, bits, bits)
		g.DECQ(bits)
		g.KMOVW(bits.As32(), mask)
		g.TESTB(acc, acc)
		g.JNZ(to(add))
		g.output(s, sums, false, mask)
		g.Label(add)
		g.output(s, sums, true, mask)
		return
	}
	whole, addWhole := g.label("whole"), g.label("addWhole")
	g.CMPQ(n, operand.Imm(uint64(s.lanes)))
	g.JEQ(to(whole))
	mask := g.mask(n)
	g.TESTB(acc, acc)
	g.JNZ(to(add))
	g.output(s, sums, false, mask)
	g.Label(add)
	g.output(s, sums, true, mask)
	g.Label(whole)
	g.TESTB(acc, acc)
	g.JNZ(to(addWhole))
	g.output(s, sums, false, nil)
	g.Label(addWhole)
	g.output(s, sums, true, nil)
}

// output emits the end of a tile, which stores its sums in c or adds them to it, the last vector of
// each row through mask unless that is nil.
func (g *generator) output(s tileShape, sums [][]reg.VecVirtual, add bool, mask reg.Register) {
	c, ldc := g.base("c"), g.integer("ldc")
	g.SHLQ(operand.Imm(2), ldc)
	for r, row := range sums {
		if r > 0 {
			g.ADDQ(ldc, c)
		}
		for v, sum := range row {
			mem := operand.Mem{Base: c, Disp: s.bytes() * v}
			if mask == nil || v < len(row)-1 {
				if add {
					g.VADDPS(mem, sum, sum)
				}
				g.VMOVUPS(sum, mem)
				continue
			}
			if add {
				old := s.register(g)
				if s.lanes == 16 {
					g.VMOVUPS_Z(mem, mask, old)
				} else {
					g.VMASKMOVPS(mem, mask, old)
				}
				g.VADDPS(old, sum, sum)
			}
			if s.lanes == 16 {
				g.VMOVUPS(sum, mask, mem)
			} else {
				g.VMASKMOVPS(sum, mask, mem)
			}
		}
	}
	g.end()
}

// packs emits the copies into panels.
func (g *generator) packs() {
	const widest = 4 // vectors
	g.function("packRowsAVX2", "func(dst, src []float32, ld, k, n, width int)",
		fmt.Sprintf("is isa.packRows for width up to %d.", widest*lanes))
	width := g.integer("width")
	for vectors := 1; vectors <= widest; vectors++ {
		wider := g.label("wider")
		if vectors < widest {
			g.CMPQ(width, operand.Imm(uint64(vectors*lanes)))
			g.JGT(to(wider))
		}
		g.packRows(vectors)
		g.Label(wider)
	}

	g.function("packColsAVX2", "func(dst, src []float32, ld, k, width int)",
		"sets dst[q*width+j] = src[j*ld+q] for q < k and j < 8: eight columns of isa.packCols.")
	dst, src, ld, k := g.base("dst"), g.base("src"), g.integer("ld"), g.integer("k")
	width = g.integer("width")
	g.SHLQ(operand.Imm(2), ld)
	g.SHLQ(operand.Imm(2), width)
	many, tail, done := g.label("many"), g.label("tail"), g.label("done")
	g.Label(many)
	g.CMPQ(k, operand.Imm(lanes))
	g.JLT(to(tail))
	for _, y := range g.transpose(g.loadRows(src, ld, nil)) {
		g.VMOVUPS(y, operand.Mem{Base: dst})
		g.ADDQ(width, dst)
	}
	g.ADDQ(operand.Imm(vector), src)
	g.SUBQ(operand.Imm(lanes), k)
	g.JMP(to(many))
	g.Label(tail)
	g.TESTQ(k, k)
	g.JZ(to(done))
	count := g.GP64()
	g.MOVQ(k, count)
	mask := g.mask(count)
	for _, y := range g.transpose(g.loadRows(src, ld, mask)) {
		g.VMOVUPS(y, operand.Mem{Base: dst})
		g.ADDQ(width, dst)
		g.DECQ(k)
		g.JZ(to(done))
	}
	g.Label(done)
	g.end()
}

func (g *generator) packRows(vectors int) {
	dst, src, ld, k := g.base("dst"), g.base("src"), g.integer("ld"), g.integer("k")
	width := g.integer("width")
	g.SHLQ(operand.Imm(2), ld)
	g.SHLQ(operand.Imm(2), width)
	masks := make([]reg.VecVirtual, vectors)
	for v := range masks {
		masks[v] = g.maskOf("n", v)
	}
	row := func(store func(v int, y reg.VecVirtual)) {
		for v, mask := range masks {
			mem := operand.Mem{Base: src, Disp: vector * v}
			if v%2 == 0 { // a row that is used later: rows are too far apart for the hardware prefetcher
				ahead := mem
				ahead.Index, ahead.Scale = ld, 8
				g.PREFETCHT0(ahead)
			}
			y := g.YMM()
			g.VMASKMOVPS(mem, mask, y)
			store(v, y)
		}
	}
	loop, last := g.label("row"), g.label("last")
	g.Label(loop)
	g.DECQ(k)
	g.JZ(to(last))
	row(func(v int, y reg.VecVirtual) { g.VMOVUPS(y, operand.Mem{Base: dst, Disp: vector * v}) })
	g.ADDQ(ld, src)
	g.ADDQ(width, dst)
	g.JMP(to(loop))
	g.Label(last) // others write beyond their end, where the next row then follows
	row(func(v int, y reg.VecVirtual) {
		g.VMASKMOVPS(y, g.maskOf("width", v), operand.Mem{Base: dst, Disp: vector * v})
	})
	g.end()
}

// maskOf returns the mask of vector number v, for the number of elements in a parameter.
func (g *generator) maskOf(count string, v int) reg.VecVirtual {
	n, bound := g.integer(count), g.GP64()
	g.SUBQ(operand.Imm(uint64(v*lanes)), n)
	g.XORQ(bound, bound)
	g.CMPQ(n, bound)
	g.CMOVQLT(bound, n)
	g.MOVQ(operand.U32(lanes), bound)
	g.CMPQ(n, bound)
	g.CMOVQGT(bound, n)
	return g.mask(n)
}

// loadRows loads a vector from each of eight rows.
func (g *generator) loadRows(src, ld reg.Register, mask reg.Register) [lanes]reg.VecVirtual {
	var rows [lanes]reg.VecVirtual
	p := g.GP64()
	g.MOVQ(src, p)
	for r := range rows {
		rows[r] = g.YMM()
		if mask == nil {
			g.VMOVUPS(operand.Mem{Base: p}, rows[r])
		} else {
			g.VMASKMOVPS(operand.Mem{Base: p}, mask, rows[r])
		}
		g.ADDQ(ld, p)
	}
	return rows
}

// transpose returns the columns of an 8 by 8 block given by rows.
func (g *generator) transpose(rows [lanes]reg.VecVirtual) [lanes]reg.VecVirtual {
	var pairs, quads, cols [lanes]reg.VecVirtual
	for i := 0; i < lanes; i += 2 {
		pairs[i], pairs[i+1] = g.YMM(), g.YMM()
		g.VUNPCKLPS(rows[i+1], rows[i], pairs[i])
		g.VUNPCKHPS(rows[i+1], rows[i], pairs[i+1])
	}
	for i := 0; i < lanes; i += 4 {
		for j := range 2 {
			quads[i+2*j], quads[i+2*j+1] = g.YMM(), g.YMM()
			g.VSHUFPS(operand.Imm(0x44), pairs[i+2+j], pairs[i+j], quads[i+2*j])
			g.VSHUFPS(operand.Imm(0xee), pairs[i+2+j], pairs[i+j], quads[i+2*j+1])
		}
	}
	for i := range lanes / 2 {
		cols[i], cols[i+4] = g.YMM(), g.YMM()
		g.VPERM2F128(operand.Imm(0x20), quads[i+4], quads[i], cols[i])
		g.VPERM2F128(operand.Imm(0x31), quads[i+4], quads[i], cols[i+4])
	}
	return cols
}
