package kernel

import "github.com/autopar/autopar/ir/half"

// Format is a two-byte floating-point format.
type Format uint8

// The formats.
const (
	BF16 Format = iota
	F16
)

// Widen sets dst to the values of src.
func Widen(p *Pool, f Format, dst []float32, src []uint16) {
	checkLen("Widen", "src", src, len(dst))
	p = p.orInline()
	p.task.half = halfTask{wide: dst, narrow: src, f: p.isa.widen[f]}
	p.run(&p.task.half, len(dst), grainLight)
}

// Narrow sets dst to src, rounded to nearest, ties to even.
func Narrow(p *Pool, f Format, dst []uint16, src []float32) {
	checkLen("Narrow", "src", src, len(dst))
	p = p.orInline()
	p.task.half = halfTask{wide: src, narrow: dst, f: p.isa.narrow[f]}
	p.run(&p.task.half, len(dst), grainLight)
}

type halfTask struct {
	wide   []float32
	narrow []uint16
	f      func(wide []float32, narrow []uint16)
}

func (t *halfTask) do(_ *worker, lo, hi int) { t.f(t.wide[lo:hi], t.narrow[lo:hi]) }

func widenBF16Generic(dst []float32, src []uint16) {
	for i, h := range src {
		dst[i] = half.FromBF16(h)
	}
}

func narrowBF16Generic(src []float32, dst []uint16) {
	for i, x := range src {
		dst[i] = half.BF16(x)
	}
}

func widenF16Generic(dst []float32, src []uint16) {
	for i, h := range src {
		dst[i] = half.FromF16(h)
	}
}

func narrowF16Generic(src []float32, dst []uint16) {
	for i, x := range src {
		dst[i] = half.F16(x)
	}
}
