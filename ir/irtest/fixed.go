package irtest

import "github.com/autopar/autopar/ir"

// fixedMotif sums over a batch in fixed point, adds sums, and takes a norm.
func fixedMotif(b *graphBuilder) {
	x := b.fresh(b.size(), b.size(), b.size())
	shape := x.Type.Shape
	read := func(args ...*ir.Value) *ir.Value {
		sum := args[0]
		if len(args) > 1 {
			sum = b.op(ir.OpAddN, nil, args...)[0]
		}
		return b.op(ir.OpFromFixed, ir.FixedAttr{Frac: ir.GradientFrac}, sum)[0]
	}
	w := b.op(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulTN, K: 2, Frac: ir.GradientFrac}, b.fresh(shape...), x)[0]
	rows := shape[2]
	ids := b.ids(0, rows, shape[0], shape[1])
	table := b.op(ir.OpEmbeddingGrad, ir.EmbeddingGradAttr{Rows: rows, Frac: ir.GradientFrac}, ids, b.fresh(shape...))[0]
	g := read(w, table)
	read(b.op(ir.OpSumTo, ir.SumToAttr{Keep: 1, Frac: ir.GradientFrac}, x)[0])
	squares := b.op(ir.OpFixedSquares, nil, g)[0]
	b.op(ir.OpFixedRoot, nil, b.op(ir.OpAddN, nil, squares, b.op(ir.OpFixedSquares, nil, x)[0])[0])
}
