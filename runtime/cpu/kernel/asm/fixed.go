package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// roundedBy, added to a float64 below 2^51 in magnitude, rounds it to an integer, ties to even,
// which is then in the low bits.
const roundedBy = 1.5 * (1 << 52)

const (
	notLess = 0x15 // comparison predicate that is also true for NaN

	smallSquare = 1 << 48 // fixedSquaresAVX2 gives up if a square times scale is this large
)

// quad returns a register of four times a float64.
func (g *generator) quad(c float64) reg.VecVirtual { return g.quadBits(math.Float64bits(c)) }

func (g *generator) quadBits(bits uint64) reg.VecVirtual {
	word, y := g.x86.GP64(), g.x86.YMM()
	g.x86.MOVQ(operand.U64(bits), word)
	g.x86.VMOVQ(word, y.AsX())
	g.x86.VPBROADCASTQ(y.AsX(), y)
	return y
}

// doubles returns the step's eight elements of x in two registers of float64.
func (s *step) doubles(x reg.Register) [2]reg.VecVirtual {
	y, half := s.load(x), s.g.x86.XMM()
	s.g.x86.VEXTRACTF128(operand.Imm(1), y, half)
	lo, hi := s.g.x86.YMM(), s.g.x86.YMM()
	s.g.x86.VCVTPS2PD(y.AsX(), lo)
	s.g.x86.VCVTPS2PD(half, hi)
	return [2]reg.VecVirtual{lo, hi}
}

// doubleParam loads a float64 parameter into all lanes.
func (g *generator) doubleParam(param string) reg.VecVirtual {
	b, err := g.x86.Param(param).Resolve()
	if err != nil {
		panic(err)
	}
	y := g.x86.YMM()
	g.x86.VBROADCASTSD(b.Addr, y)
	return y
}

// returnClear stores, as result i, whether the sign bits of all four lanes of flags are clear.
func (g *generator) returnClear(flags reg.VecVirtual, i int) {
	signs, clear := g.x86.GP32(), g.x86.GP8()
	g.x86.VMOVMSKPD(flags, signs)
	g.x86.TESTL(signs, signs)
	g.x86.SETEQ(clear)
	g.x86.Store(clear, g.x86.ReturnIndex(i))
}

func (g *generator) fixed() {
	g.addAsFixed()
	g.fixedSquares()
}

// addAsFixed converts in two halves, because AVX2 has no conversion to 64-bit integers: y =
// high*2^32 + low, each rounded by an addition.
func (g *generator) addAsFixed() {
	g.function("addAsFixedAVX2", "func(dst []int64, x []float32, scale float64) bool", "is isa.addAsFixed.")
	dst, x, scale := g.base("dst"), g.base("x"), g.doubleParam("scale")
	round, up, down := g.quad(roundedBy), g.quad(1<<32), g.quad(1./(1<<32))
	magnitude, limit := g.quadBits(math.MaxInt64), g.quad(1<<63)
	flags := g.zeros(1)[0]
	g.each(g.length("dst"), 1, func(s *step) {
		for half, y := range s.doubles(x) {
			g.x86.VMULPD(scale, y, y)
			large := g.x86.YMM()
			g.x86.VANDPD(magnitude, y, large)
			g.x86.VCMPPD(operand.Imm(notLess), limit, large, large)
			g.x86.VORPD(large, flags, flags)

			high, whole := g.x86.YMM(), g.x86.YMM()
			g.x86.VMOVAPD(y, high)
			g.x86.VFMADD213PD(round, down, high)
			g.x86.VSUBPD(round, high, whole)
			g.x86.VFNMADD231PD(up, whole, y)
			g.x86.VADDPD(round, y, y)
			g.x86.VPSUBQ(round, y, y)                 // the low half
			g.x86.VPSLLQ(operand.Imm(32), high, high) // the bits of round are shifted out
			g.x86.VPADDQ(high, y, y)

			mem := operand.Mem{Base: dst, Index: s.at, Scale: 2, Disp: vector * half}
			old, sum := g.x86.YMM(), g.x86.YMM()
			var mask reg.VecVirtual
			if s.masked {
				mask = g.x86.YMM()
				part := s.mask.(reg.VecVirtual).AsX()
				if half == 1 {
					part = g.x86.XMM()
					g.x86.VEXTRACTF128(operand.Imm(1), s.mask, part)
				}
				g.x86.VPMOVSXDQ(part, mask)
				g.x86.VPMASKMOVQ(mem, mask, old)
			} else {
				g.x86.VMOVDQU(mem, old)
			}
			g.x86.VPADDQ(old, y, sum)
			if s.masked {
				g.x86.VPMASKMOVQ(sum, mask, mem)
			} else {
				g.x86.VMOVDQU(sum, mem)
			}
			// If both have one sign and the sum the other, it has wrapped.
			g.x86.VPXOR(sum, old, old)
			g.x86.VPXOR(sum, y, y)
			g.x86.VPAND(old, y, y)
			g.x86.VPOR(y, flags, flags)
		}
	})
	g.returnClear(flags, 0)
	g.end()
}

func (g *generator) fixedSquares() {
	g.function("fixedSquaresAVX2", "func(x []float32, scale float64) (coarse, fine int64, small bool)",
		"is isa.fixedSquares for up to 8192 elements, if small: squares times scale are less than 2^48.")
	x, scale := g.base("x"), g.doubleParam("scale")
	round, limit := g.quad(roundedBy), g.quad(smallSquare)
	sums := g.zeros(3)
	coarse, fine, flags := sums[0], sums[1], sums[2]
	g.each(g.length("x"), 1, func(s *step) {
		for _, y := range s.doubles(x) {
			g.x86.VMULPD(y, y, y)
			g.x86.VMULPD(scale, y, y)
			large := g.x86.YMM()
			g.x86.VCMPPD(operand.Imm(notLess), limit, y, large)
			g.x86.VORPD(large, flags, flags)
			whole, rounded := g.x86.YMM(), g.x86.YMM()
			g.x86.VADDPD(round, y, whole)
			g.x86.VSUBPD(round, whole, rounded)
			g.x86.VSUBPD(rounded, y, y)
			g.x86.VFMADD213PD(round, scale, y)
			g.x86.VPSUBQ(round, whole, whole)
			g.x86.VPADDQ(whole, coarse, coarse)
			g.x86.VPSUBQ(round, y, y)
			g.x86.VPADDQ(y, fine, fine)
		}
	})
	g.returnClear(flags, 2)
	for i, sum := range sums[:2] {
		half := g.x86.XMM()
		g.x86.VEXTRACTI128(operand.Imm(1), sum, half)
		g.x86.VPADDQ(half, sum.AsX(), sum.AsX())
		g.x86.VPUNPCKHQDQ(sum.AsX(), sum.AsX(), half)
		g.x86.VPADDQ(half, sum.AsX(), sum.AsX())
		total := g.x86.GP64()
		g.x86.VMOVQ(sum.AsX(), total)
		g.x86.Store(total, g.x86.ReturnIndex(i))
	}
	g.end()
}
