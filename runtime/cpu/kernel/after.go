package kernel

import "fmt"

// After is an element-wise operation on the result of a product or of a norm's gradient, done to each block of it when it is
// finished, while it is near. A and B are that result, those of operations before this one, or other matrices of its size; Dst
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

// blockAfter does operations to m rows from i on, n columns from j on, of matrices of so many columns.
func (w *worker) blockAfter(after []After, i, m, j, n, cols int) {
	for k := range after {
		x := &after[k]
		for r := i*cols + j; r < (i+m)*cols; r += cols {
			x.row(w.isa, r, r+n, j)
		}
	}
}

// row does the operation to the elements [lo, hi), the first of which is in column j.
func (x *After) row(set *isa, lo, hi, j int) {
	dst, a := x.Dst[lo:hi], x.A[lo:hi]
	switch x.Op {
	case AfterAdd:
		set.add(dst, a, x.B[lo:hi])
	case AfterBias:
		set.add(dst, a, x.B[j:j+hi-lo])
	case AfterGELU:
		set.gelu(dst, a)
	case AfterGELUTanh:
		set.geluTanh(dst, a)
	case AfterGELUGrad:
		set.geluGrad(dst, a, x.B[lo:hi])
	case AfterGELUTanhGrad:
		set.geluTanhGrad(dst, a, x.B[lo:hi])
	default:
		panic(fmt.Sprintf("BUG: kernel: operation %d after another", x.Op))
	}
}
