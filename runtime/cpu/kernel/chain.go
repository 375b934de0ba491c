package kernel

import "fmt"

// Step is one of several element-wise operations on matrices of one size: A and B are given, or what steps before have made; Dst may
// be any of them. Every element is computed as the function of that name computes it.
type Step struct {
	Op        StepOp
	Dst, A, B []float32
}

// StepOp says what a step sets its Dst to.
type StepOp uint8

// The operations.
const (
	StepAdd          StepOp = iota // A + B: [Add]
	StepBias                       // A + B, which is one row: [AddBias]
	StepGELU                       // GELU of A: [GELU]
	StepGELUTanh                   // likewise, by tanh
	StepGELUGrad                   // A times the derivative of GELU at B: [GELUGrad]
	StepGELUTanhGrad               // likewise, by tanh
)

// Chain does all steps to some rows of matrices of so many rows and columns while they are near, before it goes on to the next.
func Chain(p *Pool, rows, cols int, steps ...Step) {
	checkSteps("Chain", rows, cols, steps)
	p = p.orInline()
	p.task.chain = chainTask{steps, cols}
	p.run(&p.task.chain, rows, rowGrain(cols, grainHeavy))
}

// checkSteps panics on operands of the wrong size.
func checkSteps(function string, rows, cols int, steps []Step) {
	for _, s := range steps {
		checkLen(function, "Dst", s.Dst, rows*cols)
		checkLen(function, "A", s.A, rows*cols)
		switch s.Op {
		case StepAdd, StepGELUGrad, StepGELUTanhGrad:
			checkLen(function, "B", s.B, rows*cols)
		case StepBias:
			checkLen(function, "B", s.B, cols)
		}
	}
}

type chainTask struct {
	steps []Step
	cols  int
}

func (t *chainTask) do(w *worker, lo, hi int) { w.steps(t.steps, lo, hi, t.cols) }

// steps does steps to rows [lo, hi).
func (w *worker) steps(steps []Step, lo, hi, cols int) {
	lo, hi = lo*cols, hi*cols
	for i := range steps {
		s := &steps[i]
		dst, a := s.Dst[lo:hi], s.A[lo:hi]
		switch s.Op {
		case StepAdd:
			w.isa.add(dst, a, s.B[lo:hi])
		case StepBias:
			for r := 0; r < len(dst); r += cols {
				w.isa.add(dst[r:r+cols], a[r:r+cols], s.B)
			}
		case StepGELU:
			w.isa.gelu(dst, a)
		case StepGELUTanh:
			w.isa.geluTanh(dst, a)
		case StepGELUGrad:
			w.isa.geluGrad(dst, a, s.B[lo:hi])
		case StepGELUTanhGrad:
			w.isa.geluTanhGrad(dst, a, s.B[lo:hi])
		default:
			panic(fmt.Sprintf("BUG: kernel: step %d", s.Op))
		}
	}
}
