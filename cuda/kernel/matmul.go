package kernel

import (
	"math"

	"github.com/autopar/autopar/ir"
)

// matMul launches products of which each number has the same bits whatever else is in the product,
// as train.reproducible needs. A library's products are tuned, but sum in an order that depends on
// the sizes of the whole product.
func matMul(l *list) error {
	attr := l.Node.Attr.(ir.MatMulAttr)
	a, b, y := l.Args[0], l.Args[1], l.Results[0]
	d, err := l.elem(a)
	if err != nil {
		return err
	}
	kept := len(a.Slab.Local) - attr.K
	var m, n, inner, am, ak, bk, bn int64 // sizes, and distances between elements
	switch attr.Form {
	case ir.MatMulNT:
		m, inner = split(a, attr.K)
		n, _ = split(b, attr.K)
		am, ak, bk, bn = inner, 1, 1, inner
	case ir.MatMulNN:
		m, inner = split(a, attr.K)
		_, n = split(b, len(b.Slab.Local)-attr.K)
		am, ak, bk, bn = inner, 1, n, 1
	case ir.MatMulTN:
		inner, m = split(a, kept)
		_, n = split(b, len(b.Slab.Local)-attr.K)
		am, ak, bk, bn = 1, m, n, 1
	}
	const tile = 64
	grid := blocks(m, tile)
	grid[1] = blocks(n, tile)[0]
	args := []any{l.result(0), l.arg(0), l.arg(1), m, n}
	switch {
	case b.DType != d:
		return l.errorf(" of %s and %s", d, b.DType)
	case attr.Frac > 0:
		sequences, rows := int64(a.Slab.Local[0]), ir.Elems(a.Slab.Local[1:attr.K])
		l.run("matmul.cu", "matmul_fixed", d, grid, block256, 0, append(args, rows, sequences, math.Ldexp(1, attr.Frac), l.accum(0))...)
	case y.DType == d:
		l.run("matmul.cu", "matmul", d, grid, block256, 0, append(args, inner, am, ak, bk, bn, l.accum(0))...)
	case y.DType == ir.F32:
		l.run("matmul.cu", "matmul_wide", d, grid, block256, 0, append(args, inner, am, ak, bk, bn, l.accum(0))...)
	default:
		return l.errorf(" of %s to %s", d, y.DType)
	}
	return nil
}
