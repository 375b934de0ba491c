package main

import (
	"bytes"
	"fmt"
	"go/format"
	"go/token"
	"go/types"
	"math"
)

// neon writes functions for arm64 as text, because avo does not support it. Vectors are four
// float32 in registers V0 to V31. The Go assembler knows few of the vector instructions; the others
// are emitted as words, encoded as in the Arm Architecture Reference Manual for A-profile, section
// C7.2.
//
// Methods that are named like instructions take the destination first. Integer registers are
// allocated from R0 up and vector registers from V0 up. Both are free again in the next function,
// and the vector registers of a loop's step in the next step. R24 points to the constants; the
// generator itself uses R25 and R26.
type neon struct {
	text, stubs bytes.Buffer
	words       []uint32       // constants, each in four lanes
	offsets     map[uint32]int // of a constant in their table
	labels      int

	layout  map[string]int // of the parameters of the function, from the frame's start
	integer int            // next register
	free    []int          // vector registers
}

const (
	neonLanes = 4
	neonBytes = 4 * neonLanes
)

type (
	gp  int // R register
	vec int // V register
)

func (r gp) String() string  { return fmt.Sprintf("R%d", int(r)) }
func (v vec) String() string { return fmt.Sprintf("F%d", int(v)) }

func (g *neon) emit(form string, args ...any) { fmt.Fprintf(&g.text, "\t"+form+"\n", args...) }

// function starts a function of the given signature, documented in the declarations.
func (g *neon) function(name, signature, doc string) {
	t, err := types.Eval(token.NewFileSet(), nil, token.NoPos, signature)
	if err != nil {
		panic(err)
	}
	f := t.Type.(*types.Signature)
	var fields []*types.Var
	for i := range f.Params().Len() {
		fields = append(fields, f.Params().At(i))
	}
	if f.Results().Len() > 0 { // they start at a multiple of the word size
		fields = append(fields, types.NewVar(0, nil, "", types.NewArray(types.Typ[types.Uint64], 0)))
	}
	for i := range f.Results().Len() {
		fields = append(fields, f.Results().At(i))
	}
	g.layout = map[string]int{}
	sizes := types.SizesFor("gc", "arm64")
	offsets := sizes.Offsetsof(fields)
	for i, field := range fields {
		g.layout[field.Name()] = int(offsets[i])
	}
	g.integer = 0
	g.reset(0)
	end := offsets[len(offsets)-1] + sizes.Sizeof(fields[len(fields)-1].Type())
	fmt.Fprintf(&g.text, "\n// func %s%s\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", name, signature[len("func"):], name, end)
	g.emit("MOVD $words<>(SB), R24")
	fmt.Fprintf(&g.stubs, "\n// %s %s\n//\n//go:noescape\nfunc %s%s\n", name, doc, name, signature[len("func"):])
}

// reset makes the vector registers from the given one on free.
func (g *neon) reset(first int) {
	g.free = nil
	for v := first; v < 32; v++ {
		g.free = append(g.free, v)
	}
}

func (g *neon) ret() { g.emit("RET") }

func (g *neon) gp() gp {
	g.integer++
	return gp(g.integer - 1)
}

// vec returns a free register.
func (g *neon) vec() vec {
	v := g.free[0]
	g.free = g.free[1:]
	return vec(v)
}

// drop frees registers.
func (g *neon) drop(vs ...vec) {
	for _, v := range vs {
		g.free = append([]int{int(v)}, g.free...)
	}
}

func (g *neon) label(what string) string {
	g.labels++
	return fmt.Sprintf("%s%d", what, g.labels)
}

func (g *neon) at(label string) { fmt.Fprintf(&g.text, "%s:\n", label) }

// base, length, whole and broadcast load parameters.
func (g *neon) base(param string) gp {
	r := g.gp()
	g.emit("MOVD %s_base+%d(FP), %v", param, g.layout[param], r)
	return r
}

func (g *neon) length(param string) gp {
	r := g.gp()
	g.emit("MOVD %s_len+%d(FP), %v", param, g.layout[param]+8, r)
	return r
}

func (g *neon) whole(param string) gp {
	r := g.gp()
	g.emit("MOVD %s+%d(FP), %v", param, g.layout[param], r)
	return r
}

func (g *neon) broadcast(param string) vec {
	v := g.vec()
	g.emit("FMOVS %s+%d(FP), %v", param, g.layout[param], v)
	g.word(0x4e040400, v, v, 0, "DUP")
	return v
}

func (g *neon) result(v vec, name string) { g.emit("FMOVS %v, %s+%d(FP)", v, name, g.layout[name]) }

// word emits an instruction of three registers by its code.
func (g *neon) word(code uint32, d, n, m vec, comment string) {
	g.emit("WORD $%#x // %s V%d, V%d, V%d", code|uint32(m)<<16|uint32(n)<<5|uint32(d), comment, d, n, m)
}

func (g *neon) add(d, a, b vec)    { g.word(0x4e20d400, d, a, b, "FADD") }
func (g *neon) sub(d, a, b vec)    { g.word(0x4ea0d400, d, a, b, "FSUB") }
func (g *neon) mul(d, a, b vec)    { g.word(0x6e20dc00, d, a, b, "FMUL") }
func (g *neon) div(d, a, b vec)    { g.word(0x6e20fc00, d, a, b, "FDIV") }
func (g *neon) max(d, a, b vec)    { g.word(0x4e20f400, d, a, b, "FMAX") }
func (g *neon) min(d, a, b vec)    { g.word(0x4ea0f400, d, a, b, "FMIN") }
func (g *neon) mla(d, a, b vec)    { g.word(0x4e20cc00, d, a, b, "FMLA") } // d += a*b
func (g *neon) mls(d, a, b vec)    { g.word(0x4ea0cc00, d, a, b, "FMLS") } // d -= a*b
func (g *neon) and(d, a, b vec)    { g.word(0x4e201c00, d, a, b, "AND") }
func (g *neon) xor(d, a, b vec)    { g.word(0x6e201c00, d, a, b, "EOR") }
func (g *neon) move(d, a vec)      { g.word(0x4ea01c00, d, a, a, "MOV") }
func (g *neon) addInt(d, a, b vec) { g.word(0x4ea08400, d, a, b, "ADD") }

// selects sets d to a where the mask d is all ones and to b elsewhere; insertUnless sets d to a where the mask is zero.
func (g *neon) selects(d, a, b vec)         { g.word(0x6e601c00, d, a, b, "BSL") }
func (g *neon) insertUnless(d, a, mask vec) { g.word(0x6ee01c00, d, a, mask, "BIF") }

func (g *neon) pairs(d, a, b vec)    { g.word(0x6e20d400, d, a, b, "FADDP") }
func (g *neon) pairsMax(d, a, b vec) { g.word(0x6e20f400, d, a, b, "FMAXP") }
func (g *neon) add64(d, a, b vec)    { g.word(0x4e60d400, d, a, b, "FADD.2D") }
func (g *neon) mla64(d, a, b vec)    { g.word(0x4e60cc00, d, a, b, "FMLA.2D") }
func (g *neon) pairs64(d, a, b vec)  { g.word(0x6e60d400, d, a, b, "FADDP.2D") }

func (g *neon) sqrt(d, a vec)     { g.word(0x6ea1f800, d, a, 0, "FSQRT") }
func (g *neon) round(d, a vec)    { g.word(0x4e218800, d, a, 0, "FRINTN") }
func (g *neon) toInt(d, a vec)    { g.word(0x4e21a800, d, a, 0, "FCVTNS") }
func (g *neon) abs(d, a vec)      { g.word(0x4ea0f800, d, a, 0, "FABS") }
func (g *neon) negate(d, a vec)   { g.word(0x6ea0f800, d, a, 0, "FNEG") }
func (g *neon) negative(d, a vec) { g.word(0x4ea0a800, d, a, 0, "CMLT") } // all ones where the sign is set
func (g *neon) lower64(d, a vec)  { g.word(0x0e617800, d, a, 0, "FCVTL") }
func (g *neon) upper64(d, a vec)  { g.word(0x4e617800, d, a, 0, "FCVTL2") }
func (g *neon) shift23(d, a vec)  { g.word(0x4f005400|(32+23)<<16, d, a, 0, "SHL23") }

// zeros returns n registers of zeros.
func (g *neon) zeros(n int) []vec {
	vs := make([]vec, n)
	for i := range vs {
		vs[i] = g.vec()
		g.xor(vs[i], vs[i], vs[i])
	}
	return vs
}

// constant returns a new register of c in every lane.
func (g *neon) constant(c float64) vec { return g.bits(math.Float32bits(float32(c))) }

// bits returns a new register of a word in every lane.
func (g *neon) bits(word uint32) vec {
	at, ok := g.offsets[word]
	if !ok {
		at = neonBytes * len(g.words)
		g.offsets[word] = at
		g.words = append(g.words, word)
	}
	v := g.vec()
	g.emit("FMOVQ %d(R24), %v", at, v)
	return v
}

// poly returns the polynomial of x with the given coefficients, highest power first.
func (g *neon) poly(x vec, coefficients []float64) vec {
	y := g.constant(coefficients[0])
	for _, c := range coefficients[1:] {
		next := g.constant(c)
		g.mla(next, y, x)
		g.drop(y)
		y = next
	}
	return y
}

// neonStep is one vector of a loop: part numbers the vectors of an unrolled body; the tail has
// count elements.
type neonStep struct {
	g     *neon
	part  int
	tail  bool
	count gp
}

// peek loads the step's vector of an operand, with zeros beyond its end. load and store also
// advance the base to the next step.
func (s *neonStep) peek(base gp) vec {
	v := s.g.vec()
	if s.tail {
		s.g.xor(v, v, v)
		s.lanes("VLD1 (%[1]v), V%[2]d.S[%[3]d]", base, v)
	} else {
		s.g.emit("FMOVQ (%v), %v", base, v)
	}
	return v
}

func (s *neonStep) load(base gp) vec {
	if s.tail {
		return s.peek(base)
	}
	v := s.g.vec()
	s.g.emit("FMOVQ.P %d(%v), %v", neonBytes, base, v)
	return v
}

func (s *neonStep) store(v vec, base gp) {
	if s.tail {
		s.lanes("VST1 V%[2]d.S[%[3]d], (%[1]v)", base, v)
	} else {
		s.g.emit("FMOVQ.P %v, %d(%v)", v, neonBytes, base)
	}
}

// lanes emits an instruction for each of the one to three lanes of the tail.
func (s *neonStep) lanes(form string, base gp, v vec) {
	g, done := s.g, s.g.label("lanes")
	g.emit(form, base, int(v), 0)
	g.emit("CMP $2, %v", s.count)
	g.emit("BLT %s", done)
	g.emit("ADD $4, %v, R26", base)
	g.emit(form, gp(26), int(v), 1)
	g.emit("BEQ %s", done)
	g.emit("ADD $8, %v, R26", base)
	g.emit(form, gp(26), int(v), 2)
	g.at(done)
}

// fill sets the lanes of v beyond the operands' end to those of with, or to zero if with is -1.
func (s *neonStep) fill(v, with vec) {
	if !s.tail {
		return
	}
	g, mask := s.g, s.g.vec()
	g.emit("MOVD $masks<>+12(SB), R26")
	g.emit("SUB %v<<2, R26, R26", s.count)
	g.emit("FMOVQ (R26), %v", mask)
	if with < 0 {
		g.and(v, v, mask)
	} else {
		g.insertUnless(v, with, mask)
	}
	g.drop(mask)
}

// each emits a loop over n elements: unroll vectors at a time, then one, then the tail. It overwrites n.
func (g *neon) each(n gp, unroll int, body func(s *neonStep)) {
	held := g.free
	run := func(s neonStep) {
		g.free = append([]int(nil), held...)
		s.g, s.count = g, n
		body(&s)
	}
	for _, vectors := range []int{unroll, 1} {
		loop, done := g.label("loop"), g.label("done")
		g.emit("SUBS $%d, %v", vectors*neonLanes, n)
		g.emit("BLT %s", done)
		g.at(loop)
		for part := range vectors {
			run(neonStep{part: part})
		}
		g.emit("SUBS $%d, %v", vectors*neonLanes, n)
		g.emit("BGE %s", loop)
		g.at(done)
		g.emit("ADD $%d, %v", vectors*neonLanes, n)
		if unroll == 1 {
			break
		}
	}
	end := g.label("end")
	g.emit("CBZ %v, %s", n, end)
	run(neonStep{tail: true})
	g.at(end)
	g.free = held
}

// generateNEON returns the generated files for arm64 by name.
func generateNEON() (map[string][]byte, error) {
	g := &neon{offsets: map[uint32]int{}}
	g.product()
	g.vectors()
	g.reductions()
	g.exponentials()
	g.norms()
	g.optimizer()
	g.data("words", g.words, neonLanes)
	g.data("masks", []uint32{math.MaxUint32, math.MaxUint32, math.MaxUint32, 0, 0, 0, 0}, 1)

	const header = "// Code generated by command: go run ./runtime/cpu/kernel/asm. DO NOT EDIT.\n\n"
	stubs, err := format.Source([]byte(header + "package kernel\n" + g.stubs.String()))
	return map[string][]byte{
		"asm_arm64.s":  []byte(header + "#include \"textflag.h\"\n" + g.text.String()),
		"asm_arm64.go": stubs,
	}, err
}

// data emits a table of words, each repeated.
func (g *neon) data(name string, words []uint32, times int) {
	fmt.Fprintln(&g.text)
	for i, w := range words {
		for t := range times {
			fmt.Fprintf(&g.text, "DATA %s<>+%d(SB)/4, $%#08x\n", name, 4*(i*times+t), w)
		}
	}
	fmt.Fprintf(&g.text, "GLOBL %s<>(SB), RODATA|NOPTR, $%d\n", name, 4*times*len(words))
}
