package cpu

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// Ops of train.reproducible, whose sums are in fixed point: each sequence's term is summed in
// float32 and added as an integer (package ir/exact).

// fixed returns the elements of a fixed-point tensor.
func (d *Device) fixed(t runtime.Tensor) []int64 {
	if t.DType != ir.Q64 {
		panic(fmt.Sprintf("BUG: cpu: tensor of %s read as q64", t.DType))
	}
	x := d.words(t)
	return unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(x))), len(x)/2)
}

// fixedSum is result i of an op that is summed in fixed point.
type fixedSum struct {
	sum  []int64
	term []float32 // scratch for the term of one sequence
	frac int       // number of fraction bits
}

// fixedSum starts the sum of result i, at zero unless the kernel accumulates. Its scratch belongs
// to the device and is valid until the next sum of that index.
func (d *Device) fixedSum(k *runtime.Kernel, i int) fixedSum {
	s := fixedSum{sum: d.fixed(k.Results[i]), frac: ir.Frac(k.Node.Attr)}
	if !k.Accum[i] {
		clear(s.sum)
	}
	for len(d.terms) <= i {
		d.terms = append(d.terms, nil)
	}
	if n := len(s.sum); cap(d.terms[i]) < n {
		d.terms[i] = make([]float32, n)
	}
	s.term = d.terms[i][:len(s.sum)]
	return s
}

// FixedError says that a number is not finite, or more than the fixed point of train.reproducible holds. The same batch gives it again.
type FixedError struct{ Msg string }

func (e *FixedError) Error() string { return e.Msg }

func fixedErrorf(format string, args ...any) error { return &FixedError{fmt.Sprintf(format, args...)} }

// add adds the term of one sequence. The error says what overflows.
func (d *Device) add(s fixedSum, term []float32) error {
	if kernel.AddAsFixed(d.pool, s.sum, term, s.frac) {
		return nil
	}
	limit := math.Ldexp(1, 63-s.frac)
	for i, x := range term {
		if !(math.Abs(float64(x)) < limit) {
			return fixedErrorf("element %d of a sequence's term is %v: fixed point of %d fraction bits (train.reproducible) holds numbers below %g",
				i, x, s.frac, limit)
		}
	}
	return fixedErrorf("a sum exceeds %g, the most that fixed point of %d fraction bits (train.reproducible) holds", limit, s.frac)
}

var errFixedSum = fixedErrorf("a sum exceeds what fixed point (train.reproducible) holds")

// reduceFixed sets dst to the sum over the members of len(dst) elements of their operands, from
// index from on.
func (d *Device) reduceFixed(c *runtime.Collective, dst []int64, from int) error {
	if d.block == nil {
		d.block = make([]int64, blockElems)
	}
	for len(dst) > 0 {
		acc := d.block[:min(len(dst), blockElems)]
		for i, m := range c.Members {
			in := d.backend.devices[m.Rank].fixed(m.In)[from:][:len(acc)]
			if i == 0 {
				copy(acc, in)
			} else if !kernel.AddFixed(d.pool, acc, in) {
				return errFixedSum
			}
		}
		copy(dst, acc)
		dst, from = dst[len(acc):], from+len(acc)
	}
	return nil
}

// sequences returns how many sequences the first operand has here, and the rows of each: the
// product of the dimensions from 1 up to end.
func sequences(k *runtime.Kernel, end int) (n, rows int) {
	local := k.Args[0].Slab.Local
	return local[0], int(ir.Elems(local[1:end]))
}

// matMulFixed is matMul of form TN, one sequence at a time.
func matMulFixed(d *Device, k *runtime.Kernel) error {
	contracted := k.Node.Attr.(ir.MatMulAttr).K
	batch, inner := sequences(k, contracted)
	_, m := split(k.Args[0], len(k.Args[0].Slab.Local)-contracted)
	_, n := split(k.Args[1], len(k.Args[1].Slab.Local)-contracted)
	a, b, s := d.arg(k, 0), d.arg(k, 1), d.fixedSum(k, 0)
	for i := range batch {
		at, end := i*inner, (i+1)*inner
		kernel.MatMulTN(d.pool, m, n, inner, a[at*m:end*m], b[at*n:end*n], s.term, false)
		if err := d.add(s, s.term); err != nil {
			return err
		}
	}
	return nil
}

// sumToFixed is sumTo, one sequence at a time.
func sumToFixed(d *Device, k *runtime.Kernel) error {
	x, s := d.arg(k, 0), d.fixedSum(k, 0)
	batch, rows := sequences(k, len(k.Args[0].Slab.Local)-k.Node.Attr.(ir.SumToAttr).Keep)
	n := len(s.sum)
	for i := range batch {
		of := x[i*rows*n : (i+1)*rows*n]
		if n == 1 {
			s.term[0] = kernel.Sum(d.pool, of)
		} else {
			kernel.ColSum(d.pool, rows, n, s.term, of, false)
		}
		if err := d.add(s, s.term); err != nil {
			return err
		}
	}
	return nil
}

// layerNormGradFixed is layerNormGrad, one sequence at a time.
func layerNormGradFixed(d *Device, k *runtime.Kernel) error {
	x, w, mean, rstd := d.arg(k, 1), d.arg(k, 2), d.arg(k, 3), d.arg(k, 4)
	return d.normGradFixed(k, func(dx, dy []float32, dw [2][]float32, n, at, end int) {
		kernel.LayerNormGrad(d.pool, end-at, n, dx, dw[0], dw[1], dy, x[at*n:end*n], w, mean[at:end], rstd[at:end], false)
	})
}

// rmsNormGradFixed is rmsNormGrad, one sequence at a time.
func rmsNormGradFixed(d *Device, k *runtime.Kernel) error {
	x, w, rstd := d.arg(k, 1), d.arg(k, 2), d.arg(k, 3)
	return d.normGradFixed(k, func(dx, dy []float32, dw [2][]float32, n, at, end int) {
		kernel.RMSNormGrad(d.pool, end-at, n, dx, dw[0], dy, x[at*n:end*n], w, rstd[at:end], false)
	})
}

// normGradFixed computes the gradient of a norm over n elements sequence by sequence, and adds up
// the terms that grad leaves in dw for weight and bias. A sequence has rows at to end.
func (d *Device) normGradFixed(k *runtime.Kernel, grad func(dx, dy []float32, dw [2][]float32, n, at, end int)) error {
	shape := k.Args[0].Slab.Local
	batch, rows := sequences(k, len(shape)-1)
	n, dx, dy := shape[len(shape)-1], d.result(k, 0), d.arg(k, 0)
	sums := make([]fixedSum, 0, 2)
	var dw [2][]float32
	for i := 1; i < len(k.Results); i++ {
		sums = append(sums, d.fixedSum(k, i))
		dw[i-1] = sums[i-1].term
	}
	for i := range batch {
		at, end := i*rows, (i+1)*rows
		grad(dx[at*n:end*n], dy[at*n:end*n], dw, n, at, end)
		for _, s := range sums {
			if err := d.add(s, s.term); err != nil {
				return err
			}
		}
	}
	return nil
}

// embeddingGradFixed is embeddingGrad with every row of dy as a term of its own, because a sequence
// touches few rows of the table.
func embeddingGradFixed(d *Device, k *runtime.Kernel) error {
	table, ids := k.Results[0], d.ints(k.Args[0])
	if err := checkIDs("id", ids, 0, table.Slab.Global[0]); err != nil {
		return err
	}
	n, first := table.Slab.Local[1], table.Slab.Offset[0]
	dy, s := d.arg(k, 1), d.fixedSum(k, 0)
	whole := s
	for r, id := range ids {
		if at := (int(id) - first) * n; at >= 0 && at < len(whole.sum) {
			s.sum = whole.sum[at : at+n]
			if err := d.add(s, dy[r*n:(r+1)*n]); err != nil {
				return err
			}
		}
	}
	return nil
}

func fromFixed(d *Device, k *runtime.Kernel) error {
	kernel.FromFixed(d.result(k, 0), d.fixed(k.Args[0]), k.Node.Attr.(ir.FixedAttr).Frac)
	return nil
}

func fixedSquares(d *Device, k *runtime.Kernel) error {
	y := d.fixed(k.Results[0])
	var ok bool
	if y[0], y[1], ok = kernel.FixedSquares(d.pool, d.arg(k, 0), ir.SquareFrac); !ok {
		return fixedErrorf("a gradient's norm exceeds %g, the most that fixed point (train.reproducible) holds",
			math.Sqrt(math.Ldexp(1, 63-ir.SquareFrac)))
	}
	return nil
}

func fixedRoot(d *Device, k *runtime.Kernel) error {
	x := d.fixed(k.Args[0])
	sum := math.Ldexp(float64(x[0]), -ir.SquareFrac) + math.Ldexp(float64(x[1]), -2*ir.SquareFrac)
	d.result(k, 0)[0] = float32(math.Sqrt(sum))
	return nil
}

// addNFixed is addN of fixed-point values.
func addNFixed(d *Device, k *runtime.Kernel) error {
	y := d.fixed(k.Results[0])
	copy(y, d.fixed(k.Args[0]))
	for _, a := range k.Args[1:] {
		if !kernel.AddFixed(d.pool, y, d.fixed(a)) {
			return errFixedSum
		}
	}
	return nil
}

func accumulateFixed(d *Device, k *runtime.Kernel) error {
	y, x := d.fixed(k.Results[0]), d.fixed(k.Args[0])
	if !k.Accum[0] {
		copy(y, x)
	} else if !kernel.AddFixed(d.pool, y, x) {
		return errFixedSum
	}
	return nil
}
