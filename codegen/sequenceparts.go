package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// With partition.Plan.SequenceParts the batch has several rows for each sequence, the parts of it. In expressions a
// value of such rows is inParts(x), where x is the value of the traced graph. It is the same numbers in the same
// order, so what an op makes of each position by itself is in parts, too, and what it adds up over all positions of
// all sequences is what the traced graph adds up. Attention is told by its attributes how many rows are a sequence.
//
// Positions, and what is made of them alone, the traced graph has once for all sequences, and the program for each row:
// that is spread(x). It may be added to what is in parts, and the gradient of a table that is read at such positions
// adds up all rows at once.

// inParts returns the expression of a value whose sequences are several rows each.
func (x *expressions) inParts(of *expr, parts int) *expr {
	return x.intern(exprKey{op: ir.OpRows, attr: ir.DropoutAttr{Parts: parts}}, []*expr{of}, of.name)
}

// spread returns the expression of a value of positions that is given for each row.
func (x *expressions) spread(of *expr, parts int) *expr {
	return x.intern(exprKey{op: ir.OpExpand, attr: ir.DropoutAttr{Parts: parts}}, []*expr{of}, of.name)
}

// ofRows takes apart an expression in parts (op is OpRows) or one that is spread (OpExpand). ok is false for others.
func ofRows(e *expr, op ir.Op) (of *expr, parts int, ok bool) {
	if parts = ir.SequenceParts(e.attr); e.op != op || parts == 0 {
		return e, 0, false
	}
	return e.args[0], parts, true
}

// inRows returns the expression of an input of the program that has rows for parts of sequences: that of the traced graph
// has sequences or positions there. ok is false for other leaves.
func (x *expressions) inRows(v *ir.Value) (of *expr, ok bool) {
	traced := x.inputs[partition.BaseName(v.Def.Name)]
	if v.Def.Op != ir.OpInput || traced == nil || traced.Type.DType != v.Type.DType || len(v.Type.Shape) != 2 {
		return nil, false
	}
	rows, tokens := v.Type.Shape[0], v.Type.Shape[1]
	switch shape := traced.Type.Shape; {
	case len(shape) == 2 && shape[1] > tokens && shape[1]%tokens == 0 && rows == shape[0]*(shape[1]/tokens):
		return x.inParts(x.leaf(traced), shape[1]/tokens), true
	case len(shape) == 1 && shape[0] > tokens && shape[0]%tokens == 0:
		return x.spread(x.leaf(traced), shape[0]/tokens), true
	}
	return nil, false
}

// ofParts returns the expression of result i of a node with these attributes that reads parts of sequences. ok is false for
// other nodes, and for nodes that do not commute with making parts.
func (x *expressions) ofParts(n *ir.Node, i int, attr ir.Attr, args []*expr) (result *expr, ok bool) {
	if n.Op.Class() == ir.Comm {
		return nil, false
	}
	parts, rowed, spreads := 0, 0, 0 // the latter two count operands
	inner := slices.Clone(args)
	isRows := make([]bool, len(args))
	for k, a := range args {
		for _, op := range []ir.Op{ir.OpRows, ir.OpExpand} {
			of, count, rows := ofRows(a, op)
			if !rows {
				continue
			}
			if parts != 0 && count != parts {
				return nil, false
			}
			inner[k], isRows[k], parts = of, true, count
			rowed++
			if op == ir.OpExpand {
				spreads++
			}
		}
	}
	if parts == 0 {
		return nil, false
	}
	sig := ir.SignatureOf(n)
	at, attr, ok := rowDimsOf(n.Op, attr, sig, isRows, parts)
	if !ok {
		return nil, false
	}
	positions := spreads == rowed // what the node makes is of positions alone
	switch {
	case spreads == 0, positions:
	case n.Op == ir.OpEmbeddingGrad && !isSpread(args[1]):
		inner[1] = x.intern(exprKey{op: ir.OpSumTo, attr: ir.SumToAttr{Keep: len(n.Args[1].Type.Shape) - 1}}, inner[1:], n.Name)
	case n.Op == ir.OpAdd && !isSpread(args[0]), n.Op == ir.OpRoPE && !isSpread(args[0]):
	default:
		return nil, false
	}
	result, ok = x.inPlaceOf(n, i, attr, inner)
	if !ok {
		return nil, false
	}
	row, position := at.in(sig, sig.Results[i])
	first, second := row >= 0, position >= 0
	switch {
	case first != second, positions && !first: // the latter would add up positions once for each sequence
		return nil, false
	case !first:
		return result, true
	case positions:
		return x.spread(result, parts), true
	}
	return x.inParts(result, parts), true
}

func isSpread(e *expr) bool {
	_, _, ok := ofRows(e, ir.OpExpand)
	return ok
}

// rowDims are the dimensions of a signature that are rows and their positions.
type rowDims struct{ row, position int }

// in returns where a value has them, -1 for nowhere. Keys that are apart from queries have positions of their own, of the
// same sequences.
func (at rowDims) in(sig *ir.Signature, dims []int) (row, position int) {
	return slices.Index(dims, at.row), slices.IndexFunc(dims, func(d int) bool { return d == at.position || sig.Dims[d].Name == "s" })
}

// rowDimsOf returns the dimensions of a node's signature that are rows and their positions, and the attributes, of those of
// the node, that it has in the traced graph. ok is false unless exactly the operands that are rows have them, and the op
// takes each position by itself.
func rowDimsOf(op ir.Op, attr ir.Attr, sig *ir.Signature, isRows []bool, parts int) (at rowDims, traced ir.Attr, ok bool) {
	_, attends := attr.(ir.DropoutAttr)
	attends = attends && op != ir.OpDropout
	k := slices.Index(isRows, true)
	if len(sig.Args[k]) < 2 {
		return at, nil, false
	}
	at = rowDims{sig.Args[k][0], sig.Args[k][1]}
	switch a := attr.(type) {
	case ir.DropoutAttr:
		if attends && a.Parts != parts {
			return at, nil, false
		}
		a.Parts = 0
		attr = a
	case ir.RoPEAttr:
		if !a.Rows {
			return at, nil, false
		}
		a.Rows = false
		attr = a
	}
	for k, dims := range sig.Args {
		first, second := at.in(sig, dims)
		// Attention's logarithms of sums have positions last.
		if rows := first == 0 && (second == 1 || attends && second == len(dims)-1); rows != isRows[k] || !rows && max(first, second) >= 0 {
			return at, nil, false
		}
	}
	return at, attr, !sig.Dims[at.row].Frozen && (attends || !sig.Dims[at.position].Frozen)
}
