package interp

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/ir"
)

// Context parallelism stores a sequence folded: its rows are in another order than its positions (see
// ir.FoldRuns). Ops that depend on the order are defined here by unfolding, computing on positions, and folding
// again.

// moveRows returns x with row r of dimension dim taken from row from(r).
func moveRows(x Tensor, dim int, from func(row int) int) Tensor {
	outer, inner := int(ir.Elems(x.Shape[:dim])), int(ir.Elems(x.Shape[dim+1:]))
	y := Zeros(x.Type())
	for b := range outer {
		for r := range x.Shape[dim] {
			to, at := (b*x.Shape[dim]+r)*inner, (b*x.Shape[dim]+from(r))*inner
			if x.I != nil {
				copy(y.I[to:to+inner], x.I[at:])
			} else {
				copy(y.F[to:to+inner], x.F[at:])
			}
		}
	}
	return y
}

// folded returns x with dimension dim in folded order; unfolded returns it in the order of positions.
func folded(x Tensor, dim, parts int) Tensor {
	positions := ir.FoldedPositions(x.Shape[dim], parts)
	return moveRows(x, dim, func(row int) int { return positions[row] })
}

func unfolded(x Tensor, dim, parts int) Tensor {
	rows := make([]int, x.Shape[dim])
	for row, pos := range ir.FoldedPositions(x.Shape[dim], parts) {
		rows[pos] = row
	}
	return moveRows(x, dim, func(pos int) int { return rows[pos] })
}

// fold: y_row = x_position(row) in one dimension; unfold is its inverse.
func fold(n *ir.Node, in, out []Tensor) error {
	attr := n.Attr.(ir.CommAttr)
	if attr.Dim >= len(in[0].Shape) {
		return fmt.Errorf("there is no dimension %d in %v", attr.Dim, in[0].Shape)
	}
	if n.Op == ir.OpUnfold {
		out[0] = unfolded(in[0], attr.Dim, attr.Parts)
		return nil
	}
	out[0] = folded(in[0], attr.Dim, attr.Parts)
	return nil
}

// copyParts copies n parts of a packed tensor to another, for all positions and heads.
func copyParts(to Tensor, toPart int, from Tensor, fromPart, n int) {
	dst, src := packed{to}, packed{from}
	for b := range to.Shape[0] {
		for t := range to.Shape[1] {
			for part := range n {
				for h := range to.Shape[3] {
					for d := range to.Shape[4] {
						to.F[dst.at(b, t, toPart+part, h, d)] = from.F[src.at(b, t, fromPart+part, h, d)]
					}
				}
			}
		}
	}
}

// asPacked returns queries [B,T,NH,D], one per head, as [B,T,1,NH,D].
func asPacked(x Tensor) Tensor {
	if len(x.Shape) == 4 {
		x.Shape = slices.Insert(slices.Clone(x.Shape), 2, 1)
	}
	return x
}

// keysValues: kv = (k, v) of (q, k, v).
func keysValues(_ *ir.Node, in, out []Tensor) error {
	copyParts(out[0], 0, in[0], packed{in[0]}.group(), 2)
	return nil
}

// joinQKV: (q, k, v) of q and (k, v).
func joinQKV(_ *ir.Node, in, out []Tensor) error {
	group := packed{out[0]}.group()
	copyParts(out[0], 0, asPacked(in[0]), 0, group)
	copyParts(out[0], group, in[1], 0, 2)
	return nil
}

// unfoldedQKV packs the queries of qkv and the keys and values of kv, all in the order of positions.
func unfoldedQKV(n *ir.Node, qkv, kv Tensor) (Tensor, error) {
	if qkv.Shape[1] != kv.Shape[1] {
		return Tensor{}, fmt.Errorf("%d positions attend to %d: the definition has all of a sequence", qkv.Shape[1], kv.Shape[1])
	}
	all, group := Zeros(qkv.Type()), packed{qkv}.group()
	copyParts(all, 0, qkv, 0, group)
	copyParts(all, group, kv, 0, 2)
	return unfolded(all, 1, n.Attr.(ir.DropoutAttr).Fold), nil
}

// attentionKV is attention with keys and values as a separate operand.
func attentionKV(n *ir.Node, in, out []Tensor) error {
	qkv, err := unfoldedQKV(n, in[0], in[1])
	if err != nil {
		return err
	}
	o, lse := Zeros(out[0].Type()), Zeros(out[1].Type())
	if err := attention(n, []Tensor{qkv, in[2], in[3]}, []Tensor{o, lse}); err != nil {
		return err
	}
	parts := n.Attr.(ir.DropoutAttr).Fold
	out[0], out[1] = folded(o, 1, parts), folded(lse, len(lse.Shape)-1, parts)
	return nil
}

// attentionKVGrad is attentionGrad with keys and values, and their gradients, as separate values.
func attentionKVGrad(n *ir.Node, in, out []Tensor) error {
	qkv, err := unfoldedQKV(n, in[1], in[2])
	if err != nil {
		return err
	}
	parts := n.Attr.(ir.DropoutAttr).Fold
	do, o, lse := unfolded(in[0], 1, parts), unfolded(in[3], 1, parts), unfolded(in[4], len(in[4].Shape)-1, parts)
	dqkv := Zeros(qkv.Type())
	if err := attentionGrad(n, []Tensor{do, qkv, o, lse, in[5], in[6]}, []Tensor{dqkv}); err != nil {
		return err
	}
	dqkv = folded(dqkv, 1, parts)
	group := packed{dqkv}.group()
	copyParts(asPacked(out[0]), 0, dqkv, 0, group)
	copyParts(out[1], 0, dqkv, group, 2)
	return nil
}
