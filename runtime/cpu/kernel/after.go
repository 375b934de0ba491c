package kernel

import "fmt"

// After is an element-wise operation on the result of a product or of a norm's gradient. All that come after are done to some rows
// while these are near, before the next rows. A and B are that result, those of operations before this one, or other matrices of its size; Dst
// may be any of them. Every element is computed as the function of that name computes it.
type After struct {
	Op        AfterOp
	Dst, A, B []float32
}

// AfterOp says what an operation sets its Dst to.
type AfterOp uint8

// The operations.
const (
	AfterAdd          AfterOp = iota // A + B: [Add]
	AfterBias                        // A + B, which is one row: [AddBias]
	AfterGELU                        // GELU of A: [GELU]
	AfterGELUTanh                    // likewise, by tanh
	AfterGELUGrad                    // A times the derivative of GELU at B: [GELUGrad]
	AfterGELUTanhGrad                // likewise, by tanh
)

// checkAfter panics on operands of the wrong size.
func checkAfter(function string, rows, cols int, after []After) {
	for _, x := range after {
		checkLen(function, "Dst", x.Dst, rows*cols)
		checkLen(function, "A", x.A, rows*cols)
		switch x.Op {
		case AfterAdd, AfterGELUGrad, AfterGELUTanhGrad:
			checkLen(function, "B", x.B, rows*cols)
		case AfterBias:
			checkLen(function, "B", x.B, cols)
		}
	}
}

// after does operations to matrices of so many rows and columns, all of them to some rows before the next.
func (p *Pool) after(rows, cols int, after []After) {
	if len(after) > 0 {
		p.task.after = afterTask{after, cols}
		p.run(&p.task.after, rows, rowGrain(cols, grainHeavy))
	}
}

type afterTask struct {
	after []After
	cols  int
}

func (t *afterTask) do(w *worker, lo, hi int) { w.after(t.after, lo, hi, t.cols) }

// after does operations to rows [lo, hi).
func (w *worker) after(after []After, lo, hi, cols int) {
	lo, hi = lo*cols, hi*cols
	for i := range after {
		x := &after[i]
		dst, a := x.Dst[lo:hi], x.A[lo:hi]
		switch x.Op {
		case AfterAdd:
			w.isa.add(dst, a, x.B[lo:hi])
		case AfterBias:
			for r := 0; r < len(dst); r += cols {
				w.isa.add(dst[r:r+cols], a[r:r+cols], x.B)
			}
		case AfterGELU:
			w.isa.gelu(dst, a)
		case AfterGELUTanh:
			w.isa.geluTanh(dst, a)
		case AfterGELUGrad:
			w.isa.geluGrad(dst, a, x.B[lo:hi])
		case AfterGELUTanhGrad:
			w.isa.geluTanhGrad(dst, a, x.B[lo:hi])
		default:
			panic(fmt.Sprintf("BUG: kernel: operation %d after another", x.Op))
		}
	}
}
