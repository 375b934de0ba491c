package main

import (
	"encoding/binary"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// AMX has eight tile registers of 16 rows of 64 bytes. Products keep four of sums, two of the
// left-hand and two of the right-hand matrix. Neither avo nor the assembler knows the instructions,
// so they are emitted as bytes: see Intel, "Architecture Instruction Set Extensions Programming
// Reference", chapter 3. Register allocation does not see which registers such bytes use, so
// functions that contain them use only physical registers.

// tileSide is the number of rows of a tile, and of float32 in one of its rows.
const tileSide = 16

// tileBytes is the size of a tile, tileStep that of the six tiles of one step: two for each part of
// the numbers.
const (
	tileBytes = 64 * tileSide
	tileStep  = 6 * tileBytes
)

// code emits an instruction by its bytes.
func (g *generator) code(bytes ...byte) {
	for _, b := range bytes {
		g.x86.Instruction(&ir.Instruction{Opcode: "BYTE", Operands: []operand.Op{operand.U8(b)}})
	}
}

// Second byte of a VEX prefix with map 0F38 and no extended register, and third byte by mandatory prefix.
const (
	vexMap = 0xe2
	vexNP  = 0x78
	vexF3  = 0x7a
	vexF2  = 0x7b
)

func (g *generator) tileZero(t byte) { g.code(0xc4, vexMap, vexF2, 0x49, 0xc0|t<<3) }
func (g *generator) tileRelease()    { g.code(0xc4, vexMap, vexNP, 0x49, 0xc0) }
func (g *generator) tileConfig()     { g.code(0xc4, vexMap, vexNP, 0x49, rax) } // from the 64 bytes at RAX
func (g *generator) tileDot(c, a, b byte) { // c += a b, of pairs of bf16
	g.code(0xc4, vexMap, (15-b)<<3|0x02, 0x5c, 0xc0|c<<3|a)
}

// Numbers of the registers that tiles are addressed with.
const (
	rax, rcx, rdx, rbx = 0, 1, 2, 3
	rsi, rdi           = 6, 7
)

// tileMemory emits a load, or with vexF3 a store, of a tile whose rows are stride bytes apart,
// starting at base+disp.
func (g *generator) tileMemory(prefix, t, base, stride byte, disp int) {
	g.code(0xc4, vexMap, prefix, 0x4b, 0x84|t<<3, stride<<3|base)
	g.code(binary.LittleEndian.AppendUint32(nil, uint32(disp))...)
}

func (g *generator) tiles() {
	g.tileProducts()
	g.splitTiles()
}

// tileProducts emits the product of 32 rows and any number of panels of 32 columns.
func (g *generator) tileProducts() {
	g.function("tileProducts", "func(panels, steps int, a, b []float32, gap int, c []float32, ldc int, acc bool, next []float32, lines, ldNext, rate int)",
		"is isa.tileProducts.")
	g.x86.LEAQ(g.table("tileShapes"), reg.RAX)
	g.tileConfig()
	g.x86.Load(g.x86.Param("panels"), reg.R8)
	g.x86.Load(g.x86.Param("a").Base(), reg.R9)
	g.x86.Load(g.x86.Param("b").Base(), reg.RBX)
	g.x86.Load(g.x86.Param("gap"), reg.R14)
	g.x86.SHLQ(operand.Imm(2), reg.R14)
	g.x86.Load(g.x86.Param("c").Base(), reg.RDX)
	g.x86.Load(g.x86.Param("ldc"), reg.RSI)
	g.x86.SHLQ(operand.Imm(2), reg.RSI)
	g.x86.MOVQ(reg.RSI, reg.RDI)
	g.x86.SHLQ(operand.Imm(4), reg.RDI)
	g.x86.ADDQ(reg.RDX, reg.RDI) // row 16
	g.x86.MOVQ(operand.U32(64), reg.RCX)
	g.x86.Load(g.x86.Param("next").Base(), reg.R12)
	g.x86.Load(g.x86.Param("lines"), reg.R13)

	panel, sum, start, step := g.label("panel"), g.label("sum"), g.label("start"), g.label("step")
	g.x86.Label(panel)
	g.x86.Load(g.x86.Param("acc"), reg.AL)
	g.x86.TESTB(reg.AL, reg.AL)
	g.x86.JNZ(to(sum))
	for t := range byte(4) {
		g.tileZero(t)
	}
	g.x86.JMP(to(start))
	g.x86.Label(sum)
	g.tileCorners(vexF2)
	g.x86.Label(start)
	g.x86.Load(g.x86.Param("steps"), reg.R10)
	g.x86.MOVQ(reg.R9, reg.RAX)
	g.x86.Label(step)
	g.tileFetches()
	g.tileTerms()
	g.x86.ADDQ(operand.U32(tileStep), reg.RAX)
	g.x86.ADDQ(operand.U32(tileStep), reg.RBX)
	g.x86.DECQ(reg.R10)
	g.x86.JNZ(to(step))
	g.tileCorners(vexF3)
	g.x86.ADDQ(reg.R14, reg.RBX)
	g.x86.ADDQ(operand.U32(2*64), reg.RDX)
	g.x86.ADDQ(operand.U32(2*64), reg.RDI)
	g.x86.DECQ(reg.R8)
	g.x86.JNZ(to(panel))
	g.tileRelease()
	g.end()
}

// tileFetches emits the prefetches of one step: lines of the next left-hand rows, at R12. R13
// counts those left in the row.
func (g *generator) tileFetches() {
	line, same, done := g.label("line"), g.label("same"), g.label("done")
	g.x86.Load(g.x86.Param("rate"), reg.R11)
	g.x86.Label(line)
	g.x86.DECQ(reg.R11)
	g.x86.JLT(to(done))
	g.x86.PREFETCHT1(operand.Mem{Base: reg.R12})
	g.x86.ADDQ(reg.RCX, reg.R12)
	g.x86.DECQ(reg.R13)
	g.x86.JNZ(to(same))
	g.x86.Load(g.x86.Param("lines"), reg.R13)
	g.x86.SHLQ(operand.Imm(6), reg.R13)
	g.x86.SUBQ(reg.R13, reg.R12)
	g.x86.Load(g.x86.Param("ldNext"), reg.R13)
	g.x86.LEAQ(operand.Mem{Base: reg.R12, Index: reg.R13, Scale: 4}, reg.R12)
	g.x86.Load(g.x86.Param("lines"), reg.R13)
	g.x86.Label(same)
	g.x86.JMP(to(line))
	g.x86.Label(done)
}

// tileTerms emits the 24 products of one step. Each number is the sum of a high, a middle and a low
// part. Of the nine products of parts the six largest count, in an order in which only one side
// changes from one to the next.
func (g *generator) tileTerms() {
	const high, middle, low = 0, 2 * tileBytes, 4 * tileBytes
	left := func(half byte, part int) { g.tileMemory(vexF2, 4+half, rax, rcx, part+int(half)*tileBytes) }
	right := func(half byte, part int) { g.tileMemory(vexF2, 6+half, rbx, rcx, part+int(half)*tileBytes) }
	changeLeft := func(part int) {
		left(0, part)
		g.tileDot(0, 4, 6)
		g.tileDot(1, 4, 7)
		left(1, part)
		g.tileDot(2, 5, 6)
		g.tileDot(3, 5, 7)
	}
	changeRight := func(part int) {
		right(0, part)
		g.tileDot(0, 4, 6)
		g.tileDot(2, 5, 6)
		right(1, part)
		g.tileDot(1, 4, 7)
		g.tileDot(3, 5, 7)
	}
	right(0, high)
	right(1, high)
	changeLeft(low)
	changeLeft(high)
	changeRight(low)
	changeRight(middle)
	changeLeft(middle)
	changeRight(high)
}

// tileCorners loads or stores the four tiles of sums.
func (g *generator) tileCorners(prefix byte) {
	g.tileMemory(prefix, 0, rdx, rsi, 0)
	g.tileMemory(prefix, 1, rdx, rsi, 64)
	g.tileMemory(prefix, 2, rdi, rsi, 0)
	g.tileMemory(prefix, 3, rdi, rsi, 64)
}

// splitTiles emits the split of numbers into parts of eight significant bits, packed as tiles.
func (g *generator) splitTiles() {
	g.function("splitTiles", "func(dst, src []float32, ld, pair, step, steps int)",
		"is isa.splitTiles.")
	dst, src := g.base("dst"), g.base("src")
	ld, pair, step, steps := g.integer("ld"), g.integer("pair"), g.integer("step"), g.integer("steps")
	for _, r := range []reg.Register{ld, pair, step} {
		g.x86.SHLQ(operand.Imm(2), r)
	}
	half, upper := g.x86.ZMM(), g.x86.ZMM()
	word := g.x86.GP32()
	g.x86.MOVL(operand.U32(0x8000), word)
	g.x86.VPBROADCASTD(word, half)
	g.x86.MOVL(operand.U32(0xffff0000), word)
	g.x86.VPBROADCASTD(word, upper)
	loop := g.label("step")
	g.x86.Label(loop)
	p := g.x86.GP64()
	g.x86.MOVQ(src, p)
	rows := g.x86.GP64()
	g.x86.MOVQ(operand.U32(tileSide), rows)
	row := g.label("row")
	g.x86.Label(row)
	x := [2]reg.VecVirtual{g.x86.ZMM(), g.x86.ZMM()}
	g.x86.VMOVUPS(operand.Mem{Base: p}, x[0])
	g.x86.VMOVUPS(operand.Mem{Base: p, Index: pair, Scale: 1}, x[1])
	for part := range 3 {
		var word [2]reg.VecVirtual
		for i := range word {
			if part == 2 {
				word[i] = x[i] // the remainder has no more bits, except for denormal numbers
				continue
			}
			word[i] = g.x86.ZMM()
			g.x86.VPADDD(half, x[i], word[i])
			g.x86.VPANDD(upper, word[i], word[i])
			g.x86.VSUBPS(word[i], x[i], x[i])
		}
		g.x86.VPSRLD(operand.Imm(16), word[0], word[0])
		const firstOrBoth = 0xea // word[0], and of word[1] what is in upper
		g.x86.VPTERNLOGD(operand.Imm(firstOrBoth), word[0], upper, word[1])
		g.x86.VMOVUPS(word[1], operand.Mem{Base: dst, Disp: 2 * tileBytes * part})
	}
	g.x86.ADDQ(ld, p)
	g.x86.ADDQ(operand.Imm(64), dst)
	g.x86.DECQ(rows)
	g.x86.JNZ(to(row))
	g.x86.ADDQ(step, src)
	g.x86.ADDQ(operand.U32(tileStep-tileBytes), dst)
	g.x86.DECQ(steps)
	g.x86.JNZ(to(loop))
	g.end()
}

// tileShapes is the configuration of the tile registers: all of 16 rows of 64 bytes.
func (g *generator) tileShapes() []uint32 {
	var c [64]byte
	c[0] = 1 // palette
	for t := range 8 {
		c[16+2*t] = 64
		c[48+t] = tileSide
	}
	words := make([]uint32, 16)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(c[4*i:])
	}
	return words
}
