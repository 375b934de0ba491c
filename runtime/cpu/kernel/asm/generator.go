package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// lanes is the number of float32 in a vector register of AVX2, vector its bytes.
const (
	lanes  = 8
	vector = 4 * lanes
)

// widest is the number of float32 in the widest register: that of AVX-512.
const widest = 2 * lanes

// generator emits functions.
type generator struct {
	// x86 has a method for every instruction, with operands in Go's order: sources reversed, destination last. Embedded, it would
	// cost each type around it thousands of methods, and a build from nothing a tenth of its time.
	x86       *build.Context
	constants map[uint32]string // symbol of each constant used, by bits
	order     []uint32
	labels    int
	wide      bool // loops are emitted for AVX-512, not AVX2
	ahead     int  // if positive, loops prefetch what they read and write, this many bytes ahead
}

// fetching emits loops over long vectors that come from memory, with prefetches. By itself the
// processor stops prefetching at the end of each page and looks only a few iterations ahead, and
// reaches half the speed.
func (g *generator) fetching(loops ...func()) func() {
	return func() {
		g.ahead = 2048
		for _, f := range loops {
			f()
		}
		g.ahead = 0
	}
}

// both emits loops for AVX2 and for AVX-512.
func (g *generator) both(loops ...func()) {
	for _, g.wide = range []bool{false, true} {
		for _, f := range loops {
			f()
		}
	}
	g.wide = false
}

// set returns the suffix of the names of loops.
func (g *generator) set() string {
	if g.wide {
		return "AVX512"
	}
	return "AVX2"
}

// lanes returns the number of float32 in a register of the loop.
func (g *generator) lanes() int {
	if g.wide {
		return widest
	}
	return lanes
}

// register returns a new register of the loop's width.
func (g *generator) register() reg.VecVirtual {
	if g.wide {
		return g.x86.ZMM()
	}
	return g.x86.YMM()
}

// function starts a function and documents it.
func (g *generator) function(name, signature, doc string) {
	g.x86.Function(name)
	g.x86.Attributes(attr.NOSPLIT)
	g.x86.SignatureExpr(signature)
	g.x86.Doc(name + " " + doc)
}

func (g *generator) end() {
	g.x86.VZEROUPPER()
	g.x86.RET()
}

// label returns a label that is new in this file.
func (g *generator) label(what string) string {
	g.labels++
	return fmt.Sprintf("%s%d", what, g.labels)
}

func to(label string) operand.LabelRef { return operand.LabelRef(label) }

// base loads the address of a slice's first element.
func (g *generator) base(param string) reg.Register {
	return g.x86.Load(g.x86.Param(param).Base(), g.x86.GP64())
}

// length loads the length of a slice.
func (g *generator) length(param string) reg.Register {
	return g.x86.Load(g.x86.Param(param).Len(), g.x86.GP64())
}

// integer loads an int.
func (g *generator) integer(param string) reg.Register {
	return g.x86.Load(g.x86.Param(param), g.x86.GP64())
}

// broadcast loads a parameter of 32 bits into all lanes.
func (g *generator) broadcast(param string) reg.VecVirtual {
	y := g.register()
	g.x86.VBROADCASTSS(g.address(param), y)
	return y
}

// address returns the address of a parameter.
func (g *generator) address(param string) operand.Mem {
	b, err := g.x86.Param(param).Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

// table returns a memory operand of the table of that name: see tables.
func (g *generator) table(name string) operand.Mem {
	return operand.NewDataAddr(operand.Symbol{Name: name, Static: true}, 0)
}

// constantPrefix begins the names of constants. A constant is as many equal elements as a register
// of AVX2 has; [embedBroadcasts] handles wider registers.
const constantPrefix = "word"

// constant returns a memory operand of c in every lane.
func (g *generator) constant(c float64) operand.Mem { return g.bits(math.Float32bits(float32(c))) }

// bits returns a memory operand of the given word in every lane.
func (g *generator) bits(word uint32) operand.Mem {
	name, ok := g.constants[word]
	if !ok {
		name = fmt.Sprintf("%s%08x", constantPrefix, word)
		g.constants[word] = name
		g.order = append(g.order, word)
	}
	return g.table(name)
}

// constantIn returns a register of c in every lane.
func (g *generator) constantIn(c float64) reg.VecVirtual {
	y := g.register()
	g.x86.VMOVUPS(g.constant(c), y)
	return y
}

// tables emits the constants that functions use, and the tables that masks are loaded from.
func (g *generator) tables() {
	data := func(name string, words []uint32) {
		g.x86.StaticGlobal(name)
		g.x86.DataAttributes(attr.RODATA | attr.NOPTR)
		for i, w := range words {
			g.x86.AddDatum(4*i, operand.U32(w))
		}
	}
	for _, w := range g.order {
		data(g.constants[w], slices.Repeat([]uint32{w}, lanes))
	}
	masks := make([]uint32, 2*lanes)
	for i := range lanes {
		masks[i] = math.MaxUint32
	}
	data("masks", masks)
	data("tileShapes", g.tileShapes())
	data("indices", []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	// 64-bit numbers for philox.
	data("countersAVX2", []uint32{0, 0, 2, 0, 1, 0, 3, 0})
	data("countersAVX512", []uint32{0, 0, 4, 0, 1, 0, 5, 0, 2, 0, 6, 0, 3, 0, 7, 0})
	data("advanceAVX2", slices.Repeat([]uint32{4, 0}, 4))
	data("advanceAVX512", slices.Repeat([]uint32{8, 0}, 8))
}

// mask returns a register whose first n lanes are all ones, for n in a register, from 0 to 8. It overwrites n.
func (g *generator) mask(n reg.Register) reg.VecVirtual {
	table, y := g.x86.GP64(), g.x86.YMM()
	g.x86.LEAQ(g.table("masks"), table)
	g.x86.NEGQ(n)
	g.x86.VMOVUPS(operand.Mem{Base: table, Index: n, Scale: 4, Disp: vector}, y)
	return y
}

// bitMask returns a mask register whose first n bits are ones. It overwrites n.
func (g *generator) bitMask(n reg.Register) reg.Register {
	bits, mask := g.x86.GP64(), g.x86.K()
	g.x86.MOVQ(operand.U32(1), bits)
	g.x86.SHLXQ(n, bits, bits)
	g.x86.DECQ(bits)
	g.x86.KMOVW(bits.As32(), mask)
	return mask
}

// step is one vector of a loop: part numbers the vectors of an unrolled body, masked says that it
// is the tail.
type step struct {
	g      *generator
	at     reg.Register // bytes from the start of each operand
	part   int
	masked bool
	mask   reg.Register

	fetched []reg.Register
}

func (s *step) mem(base reg.Register) operand.Mem {
	return operand.Mem{Base: base, Index: s.at, Scale: 1, Disp: 4 * s.g.lanes() * s.part}
}

// fetch prefetches what a later step needs, once for each operand.
func (s *step) fetch(base reg.Register) {
	if s.g.ahead == 0 || s.masked || slices.Contains(s.fetched, base) {
		return
	}
	s.fetched = append(s.fetched, base)
	s.g.x86.PREFETCHT0(s.mem(base).Offset(s.g.ahead))
}

// load loads the step's vector of an operand, with zeros beyond its end.
func (s *step) load(base reg.Register) reg.VecVirtual {
	y := s.g.register()
	s.fetch(base)
	switch {
	case !s.masked:
		s.g.x86.VMOVUPS(s.mem(base), y)
	case s.g.wide:
		s.g.x86.VMOVUPS_Z(s.mem(base), s.mask, y)
	default:
		s.g.x86.VMASKMOVPS(s.mem(base), s.mask, y)
	}
	return y
}

func (s *step) store(y reg.VecVirtual, base reg.Register) {
	s.fetch(base)
	switch {
	case !s.masked:
		s.g.x86.VMOVUPS(y, s.mem(base))
	case s.g.wide:
		s.g.x86.VMOVUPS(y, s.mask, s.mem(base))
	default:
		s.g.x86.VMASKMOVPS(y, s.mask, s.mem(base))
	}
}

// clip clears the lanes of y beyond the operands' end.
func (s *step) clip(y reg.VecVirtual) {
	switch {
	case s.masked && s.g.wide:
		s.g.x86.VMOVAPS_Z(y, s.mask, y)
	case s.masked:
		s.g.x86.VANDPS(s.mask, y, y)
	}
}

// each emits a loop over n elements: unroll vectors at a time, then one, then the masked tail. It overwrites n.
func (g *generator) each(n reg.Register, unroll int, body func(s *step)) {
	many, one, tail, done := g.label("many"), g.label("one"), g.label("tail"), g.label("done")
	at, lanes := g.x86.GP64(), g.lanes()
	vector := 4 * lanes
	g.x86.XORQ(at, at)
	if unroll > 1 {
		g.x86.Label(many)
		g.x86.CMPQ(n, operand.Imm(uint64(lanes*unroll)))
		g.x86.JLT(to(one))
		for part := range unroll {
			body(&step{g: g, at: at, part: part})
		}
		g.x86.ADDQ(operand.U32(uint32(vector*unroll)), at)
		g.x86.SUBQ(operand.Imm(uint64(lanes*unroll)), n)
		g.x86.JMP(to(many))
	}
	g.x86.Label(one)
	g.x86.CMPQ(n, operand.Imm(uint64(lanes)))
	g.x86.JLT(to(tail))
	body(&step{g: g, at: at})
	g.x86.ADDQ(operand.Imm(uint64(vector)), at)
	g.x86.SUBQ(operand.Imm(uint64(lanes)), n)
	g.x86.JMP(to(one))
	g.x86.Label(tail)
	g.x86.TESTQ(n, n)
	g.x86.JZ(to(done))
	var mask reg.Register
	if g.wide {
		mask = g.bitMask(n)
	} else {
		mask = g.mask(n)
	}
	body(&step{g: g, at: at, masked: true, mask: mask})
	g.x86.Label(done)
}

// zeros returns n registers of zeros.
func (g *generator) zeros(n int) []reg.VecVirtual {
	acc := make([]reg.VecVirtual, n)
	for i := range acc {
		acc[i] = g.register()
		if g.wide {
			g.x86.VPXORD(acc[i], acc[i], acc[i])
		} else {
			g.x86.VXORPS(acc[i], acc[i], acc[i])
		}
	}
	return acc
}

// fold combines accumulators pairwise into the first.
func fold(acc []reg.VecVirtual, op func(ops ...operand.Op)) reg.VecVirtual {
	for n := len(acc); n > 1; n /= 2 {
		for i := range n / 2 {
			op(acc[i+n/2], acc[i], acc[i])
		}
	}
	return acc[0]
}

// across combines the lanes of y and returns the result in lane 0.
func (g *generator) across(y reg.VecVirtual, op func(ops ...operand.Op)) reg.VecVirtual {
	if g.wide {
		upper := g.x86.YMM()
		g.x86.VEXTRACTF64X4(operand.Imm(1), y, upper)
		op(upper, y.AsY(), y.AsY())
	}
	x, half := y.AsX(), g.x86.XMM()
	g.x86.VEXTRACTF128(operand.Imm(1), y.AsY(), half)
	op(half, x, x)
	g.x86.VMOVHLPS(x, x, half)
	op(half, x, x)
	g.x86.VMOVSHDUP(x, half)
	op(half, x, x)
	return y
}
