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
		return g.x86.ZMM()
	}
	return g.x86.YMM()
}

func (s tileShape) zero(g *generator) reg.VecVirtual {
	y := s.register(g)
	if s.lanes == 16 {
		g.x86.VPXORD(y, y, y)
	} else {
		g.x86.VXORPS(y, y, y)
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
			g.x86.CMPQ(n, operand.Imm(uint64(vectors*s.lanes)))
			g.x86.JGT(to(wider))
		}
		for rows := 1; rows <= s.rows; rows++ {
			more := g.label("more")
			if rows < s.rows {
				g.x86.CMPQ(m, operand.Imm(uint64(rows)))
				g.x86.JGT(to(more))
			}
			g.tile(s, rows, vectors)
			g.x86.Label(more)
		}
		g.x86.Label(wider)
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
	g.x86.SHLQ(operand.Imm(2), rsa)
	g.x86.SHLQ(operand.Imm(2), csa)
	bases := []reg.Register{a}
	for r := 3; r < rows; r += 3 {
		base := g.x86.GP64()
		g.x86.LEAQ(operand.Mem{Base: rsa, Index: rsa, Scale: 2}, base)
		g.x86.ADDQ(bases[len(bases)-1], base)
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
			g.x86.VMOVUPS(operand.Mem{Base: b, Disp: s.bytes() * (u*s.vectors + v)}, row[v])
		}
		// Two rows at a time: in this order the processor divides the multiply-adds evenly between
		// its two units.
		for r := 0; r < rows; r += 2 {
			x := make([]reg.VecVirtual, min(2, rows-r))
			for i := range x {
				x[i] = s.register(g)
				g.x86.VBROADCASTSS(element(r+i, u), x[i])
			}
			for v := range row {
				for i := range x {
					g.x86.VFMADD231PS(row[v], x[i], sums[r+i][v])
				}
			}
		}
	}
	// terms emits a loop of unroll terms at a time, which advances the bases in moved by step bytes
	// per term. Within an iteration addresses are offsets: computing them would take time in the
	// multiply-add units.
	terms := func(unroll int, element func(r, u int) operand.Mem, step int, moved ...reg.Register) {
		many, few := g.label("many"), g.label("few")
		g.x86.SUBQ(operand.Imm(uint64(unroll)), k)
		g.x86.JLT(to(few))
		g.x86.Label(many)
		for u := range unroll {
			term(u, element)
		}
		for _, base := range moved {
			g.x86.ADDQ(operand.U32(uint32(unroll*step)), base)
		}
		g.x86.ADDQ(operand.U32(uint32(unroll*s.vectors*s.bytes())), b)
		g.x86.SUBQ(operand.Imm(uint64(unroll)), k)
		g.x86.JGE(to(many))
		g.x86.Label(few)
		g.x86.ADDQ(operand.Imm(uint64(unroll)), k)
	}
	one, done := g.label("one"), g.label("done")
	if rows == s.rows { // the others are edges
		apart := g.label("apart")
		g.x86.CMPQ(csa, operand.Imm(4))
		g.x86.JNE(to(apart))
		terms(4, strided(4), 4, bases...)
		g.x86.JMP(to(one))
		g.x86.Label(apart)
		g.x86.CMPQ(csa, operand.Imm(uint64(4*rows)))
		g.x86.JNE(to(one))
		terms(4, packed, 4*rows, a)
		for r, base := range bases[1:] {
			g.x86.LEAQ(operand.Mem{Base: a, Disp: 12 * (r + 1)}, base)
		}
	}
	g.x86.Label(one)
	g.x86.TESTQ(k, k)
	g.x86.JZ(to(done))
	term(0, strided(0))
	for _, base := range bases {
		g.x86.ADDQ(csa, base)
	}
	g.x86.ADDQ(operand.U32(uint32(s.vectors*s.bytes())), b)
	g.x86.DECQ(k)
	g.x86.JMP(to(one))
	g.x86.Label(done)

	// The last vector of a row may be partly outside; the others are whole.
	n := g.integer("n")
	if vectors > 1 {
		g.x86.SUBQ(operand.Imm(uint64(s.lanes*(vectors-1))), n)
	}
	acc, add := g.x86.Load(g.x86.Param("acc"), g.x86.GP8()), g.label("add")
	if s.lanes == 16 {
		bits, mask := g.x86.GP64(), g.x86.K()
		g.x86.MOVQ(operand.U32(1), bits)
		g.x86.SHLXQ(n, bits, bits)
		g.x86.DECQ(bits)
		g.x86.KMOVW(bits.As32(), mask)
		g.x86.TESTB(acc, acc)
		g.x86.JNZ(to(add))
		g.output(s, sums, false, mask)
		g.x86.Label(add)
		g.output(s, sums, true, mask)
		return
	}
	whole, addWhole := g.label("whole"), g.label("addWhole")
	g.x86.CMPQ(n, operand.Imm(uint64(s.lanes)))
	g.x86.JEQ(to(whole))
	mask := g.mask(n)
	g.x86.TESTB(acc, acc)
	g.x86.JNZ(to(add))
	g.output(s, sums, false, mask)
	g.x86.Label(add)
	g.output(s, sums, true, mask)
	g.x86.Label(whole)
	g.x86.TESTB(acc, acc)
	g.x86.JNZ(to(addWhole))
	g.output(s, sums, false, nil)
	g.x86.Label(addWhole)
	g.output(s, sums, true, nil)
}

// output emits the end of a tile, which stores its sums in c or adds them to it, the last vector of
// each row through mask unless that is nil.
func (g *generator) output(s tileShape, sums [][]reg.VecVirtual, add bool, mask reg.Register) {
	c, ldc := g.base("c"), g.integer("ldc")
	g.x86.SHLQ(operand.Imm(2), ldc)
	for r, row := range sums {
		if r > 0 {
			g.x86.ADDQ(ldc, c)
		}
		for v, sum := range row {
			mem := operand.Mem{Base: c, Disp: s.bytes() * v}
			if mask == nil || v < len(row)-1 {
				if add {
					g.x86.VADDPS(mem, sum, sum)
				}
				g.x86.VMOVUPS(sum, mem)
				continue
			}
			if add {
				old := s.register(g)
				if s.lanes == 16 {
					g.x86.VMOVUPS_Z(mem, mask, old)
				} else {
					g.x86.VMASKMOVPS(mem, mask, old)
				}
				g.x86.VADDPS(old, sum, sum)
			}
			if s.lanes == 16 {
				g.x86.VMOVUPS(sum, mask, mem)
			} else {
				g.x86.VMASKMOVPS(sum, mask, mem)
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
			g.x86.CMPQ(width, operand.Imm(uint64(vectors*lanes)))
			g.x86.JGT(to(wider))
		}
		g.packRows(vectors)
		g.x86.Label(wider)
	}

	g.function("packColsAVX2", "func(dst, src []float32, ld, k, width int)",
		"sets dst[q*width+j] = src[j*ld+q] for q < k and j < 8: eight columns of isa.packCols.")
	dst, src, ld, k := g.base("dst"), g.base("src"), g.integer("ld"), g.integer("k")
	width = g.integer("width")
	g.x86.SHLQ(operand.Imm(2), ld)
	g.x86.SHLQ(operand.Imm(2), width)
	many, tail, done := g.label("many"), g.label("tail"), g.label("done")
	g.x86.Label(many)
	g.x86.CMPQ(k, operand.Imm(lanes))
	g.x86.JLT(to(tail))
	for _, y := range g.transpose(g.loadRows(src, ld, nil)) {
		g.x86.VMOVUPS(y, operand.Mem{Base: dst})
		g.x86.ADDQ(width, dst)
	}
	g.x86.ADDQ(operand.Imm(vector), src)
	g.x86.SUBQ(operand.Imm(lanes), k)
	g.x86.JMP(to(many))
	g.x86.Label(tail)
	g.x86.TESTQ(k, k)
	g.x86.JZ(to(done))
	count := g.x86.GP64()
	g.x86.MOVQ(k, count)
	mask := g.mask(count)
	for _, y := range g.transpose(g.loadRows(src, ld, mask)) {
		g.x86.VMOVUPS(y, operand.Mem{Base: dst})
		g.x86.ADDQ(width, dst)
		g.x86.DECQ(k)
		g.x86.JZ(to(done))
	}
	g.x86.Label(done)
	g.end()
}

func (g *generator) packRows(vectors int) {
	dst, src, ld, k := g.base("dst"), g.base("src"), g.integer("ld"), g.integer("k")
	width := g.integer("width")
	g.x86.SHLQ(operand.Imm(2), ld)
	g.x86.SHLQ(operand.Imm(2), width)
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
				g.x86.PREFETCHT0(ahead)
			}
			y := g.x86.YMM()
			g.x86.VMASKMOVPS(mem, mask, y)
			store(v, y)
		}
	}
	loop, last := g.label("row"), g.label("last")
	g.x86.Label(loop)
	g.x86.DECQ(k)
	g.x86.JZ(to(last))
	row(func(v int, y reg.VecVirtual) { g.x86.VMOVUPS(y, operand.Mem{Base: dst, Disp: vector * v}) })
	g.x86.ADDQ(ld, src)
	g.x86.ADDQ(width, dst)
	g.x86.JMP(to(loop))
	g.x86.Label(last) // others write beyond their end, where the next row then follows
	row(func(v int, y reg.VecVirtual) {
		g.x86.VMASKMOVPS(y, g.maskOf("width", v), operand.Mem{Base: dst, Disp: vector * v})
	})
	g.end()
}

// maskOf returns the mask of vector number v, for the number of elements in a parameter.
func (g *generator) maskOf(count string, v int) reg.VecVirtual {
	n, bound := g.integer(count), g.x86.GP64()
	g.x86.SUBQ(operand.Imm(uint64(v*lanes)), n)
	g.x86.XORQ(bound, bound)
	g.x86.CMPQ(n, bound)
	g.x86.CMOVQLT(bound, n)
	g.x86.MOVQ(operand.U32(lanes), bound)
	g.x86.CMPQ(n, bound)
	g.x86.CMOVQGT(bound, n)
	return g.mask(n)
}

// loadRows loads a vector from each of eight rows.
func (g *generator) loadRows(src, ld reg.Register, mask reg.Register) [lanes]reg.VecVirtual {
	var rows [lanes]reg.VecVirtual
	p := g.x86.GP64()
	g.x86.MOVQ(src, p)
	for r := range rows {
		rows[r] = g.x86.YMM()
		if mask == nil {
			g.x86.VMOVUPS(operand.Mem{Base: p}, rows[r])
		} else {
			g.x86.VMASKMOVPS(operand.Mem{Base: p}, mask, rows[r])
		}
		g.x86.ADDQ(ld, p)
	}
	return rows
}

// transpose returns the columns of an 8 by 8 block given by rows.
func (g *generator) transpose(rows [lanes]reg.VecVirtual) [lanes]reg.VecVirtual {
	var pairs, quads, cols [lanes]reg.VecVirtual
	for i := 0; i < lanes; i += 2 {
		pairs[i], pairs[i+1] = g.x86.YMM(), g.x86.YMM()
		g.x86.VUNPCKLPS(rows[i+1], rows[i], pairs[i])
		g.x86.VUNPCKHPS(rows[i+1], rows[i], pairs[i+1])
	}
	for i := 0; i < lanes; i += 4 {
		for j := range 2 {
			quads[i+2*j], quads[i+2*j+1] = g.x86.YMM(), g.x86.YMM()
			g.x86.VSHUFPS(operand.Imm(0x44), pairs[i+2+j], pairs[i+j], quads[i+2*j])
			g.x86.VSHUFPS(operand.Imm(0xee), pairs[i+2+j], pairs[i+j], quads[i+2*j+1])
		}
	}
	for i := range lanes / 2 {
		cols[i], cols[i+4] = g.x86.YMM(), g.x86.YMM()
		g.x86.VPERM2F128(operand.Imm(0x20), quads[i+4], quads[i], cols[i])
		g.x86.VPERM2F128(operand.Imm(0x31), quads[i+4], quads[i], cols[i+4])
	}
	return cols
}
