package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// Context parallelism stores sequences folded: their rows are in another order than their positions. In
// expressions a folded value is fold(x), where x is the value of the traced graph. Ops that do not depend on
// the order of rows commute with fold. Dropout and attention do if their attributes name the same fold.
// Anything else that reads a folded value yields an expression that the traced graph does not have, so the
// proof fails.

// fold returns the expression of a value with dimension dim folded in a number of parts.
func (x *expressions) fold(of *expr, dim, parts int) *expr {
	return x.intern(exprKey{op: ir.OpFold, attr: ir.CommAttr{Dim: dim, Parts: parts}}, []*expr{of}, of.name+"@fold")
}

// unfolded returns the value that a folded expression is the fold of, and the dimension and parts of the fold.
func unfolded(e *expr) (of *expr, how ir.CommAttr, ok bool) {
	if e.op != ir.OpFold {
		return e, ir.CommAttr{}, false
	}
	return e.args[0], e.attr.(ir.CommAttr), true
}

// ofFolded returns the expression of result i of a node that folds, unfolds or reads something folded. ok is
// false for other nodes, and for nodes that do not commute with the fold.
func (x *expressions) ofFolded(n *ir.Node, i int, args []*expr) (result *expr, ok bool) {
	if n.Op == ir.OpFold || n.Op == ir.OpUnfold {
		attr := n.Attr.(ir.CommAttr)
		attr = ir.CommAttr{Dim: attr.Dim, Parts: attr.Parts}
		if n.Op == ir.OpFold {
			return x.fold(args[0], attr.Dim, attr.Parts), true
		}
		if of, how, folded := unfolded(args[0]); folded && how == attr {
			return of, true
		}
		return x.intern(exprKey{op: n.Op, attr: attr}, args, n.Name), true
	}
	if n.Op.Class() == ir.Comm || !slices.ContainsFunc(args, func(e *expr) bool { return e.op == ir.OpFold }) {
		return nil, false
	}
	sig := ir.SignatureOf(n)
	dims, parts, ok := foldedDims(sig, args)
	if !ok || !commutes(n, sig, dims) {
		return nil, false
	}
	attr := n.Attr
	if a, told := attr.(ir.DropoutAttr); told {
		attr = positional(n, sig, a, dims, parts)
	}
	inner := make([]*expr, len(args))
	for k, a := range args {
		inner[k], _, _ = unfolded(a)
	}
	if result, ok = x.ofParts(n, i, attr, inner); !ok {
		if result, ok = x.inPlaceOf(n, i, attr, inner); !ok {
			return nil, false
		}
	}
	for at, d := range sig.Results[i] {
		if dims[d] {
			return x.fold(result, at, parts), true
		}
	}
	return result, true
}

// foldedDims returns the dimensions of the signature that are folded in the operands, and the number of parts.
// ok is false unless all operands with such a dimension have it folded in the same number of parts.
func foldedDims(sig *ir.Signature, args []*expr) (dims map[int]bool, parts int, ok bool) {
	dims = map[int]bool{}
	for k, a := range args {
		if _, how, folded := unfolded(a); folded {
			dims[sig.Args[k][how.Dim]] = true
			if parts != 0 && how.Parts != parts {
				return nil, 0, false
			}
			parts = how.Parts
		}
	}
	for k, a := range args {
		_, how, folded := unfolded(a)
		for at, d := range sig.Args[k] {
			if dims[d] && !(folded && how.Dim == at) {
				return nil, 0, false
			}
		}
	}
	return dims, parts, true
}

// commutes reports whether a node applied to folded operands yields the fold of what it yields for the
// operands, provided that its attributes name the fold where they must.
func commutes(n *ir.Node, sig *ir.Signature, dims map[int]bool) bool {
	if n.Op == ir.OpAttentionKV || n.Op == ir.OpAttentionKVGrad {
		for d, dim := range sig.Dims { // exactly the positions of queries and of keys must be folded
			if (dim.Name == "t" || dim.Name == "s") != dims[d] {
				return false
			}
		}
		return true
	}
	for d := range dims {
		// v is the dimension that ids and targets index.
		if sig.Dims[d].Frozen || sig.Dims[d].Name == "v" {
			return false
		}
	}
	return len(dims) == 1
}

// positional returns the attributes of dropout or attention as the traced graph has them, if they name the
// fold. Otherwise it returns attributes that the traced graph never has.
func positional(n *ir.Node, sig *ir.Signature, a ir.DropoutAttr, dims map[int]bool, parts int) ir.DropoutAttr {
	if a.Fold != parts || n.Op == ir.OpDropout && (a.Dim >= len(sig.Args[0]) || !dims[sig.Args[0][a.Dim]]) {
		a.Fold = -1 - a.Fold
		return a
	}
	a.Fold, a.Dim = 0, 0
	return a
}

// inPlaceOf returns the expression that the traced graph has for result i of a node, given unfolded operands.
func (x *expressions) inPlaceOf(n *ir.Node, i int, attr ir.Attr, args []*expr) (*expr, bool) {
	name := n.Results[i].Name()
	keysOf := func(kv, qkv *expr) bool { return kv.op == ir.OpKeysValues && kv.args[0] == qkv }
	switch n.Op {
	case ir.OpAddN:
		return x.sum(args, n.Name), true
	case ir.OpCast:
		return x.cast(n, args[0]), true
	case ir.OpAttentionKV:
		qkv, kv := args[0], args[1]
		return x.intern(exprKey{op: ir.OpAttention, attr: attr, index: i}, slices.Concat(args[:1], args[2:]), name), keysOf(kv, qkv)
	case ir.OpAttentionKVGrad: // its two results are joined below
		qkv, kv := args[1], args[2]
		return x.intern(exprKey{op: n.Op, attr: attr, index: i}, slices.Concat(args[:2], args[3:]), name), keysOf(kv, qkv)
	case ir.OpJoinQKV:
		dq, dkv := args[0], args[1]
		if dq.op == ir.OpAttentionKVGrad && dkv.op == dq.op && dq.index == 0 && dkv.index == 1 && dq.attr == dkv.attr && slices.Equal(dq.args, dkv.args) {
			return x.intern(exprKey{op: ir.OpAttentionGrad, attr: dq.attr}, dq.args, name), true
		}
	}
	return x.intern(exprKey{op: n.Op, attr: attr, index: i}, args, name), true
}
