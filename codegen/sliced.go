package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// The head and the loss may run in slices of the positions of sequences (see partition.Plan.LossSlices). In
// expressions what a slice makes is rows(x), where x is the value of the traced graph. An op commutes with
// taking rows if, by its signature, each position of the result depends only on the same position of the
// operands. If an op sums over positions, a slice makes a part of the sum. All rows joined, and the sum of all
// parts, are the whole value again.

// partOf returns the expression of the part of a sum over positions that a slice makes.
func (x *expressions) partOf(sum *expr, rows ir.RowsAttr) *expr {
	return x.intern(exprKey{op: ir.OpToPartial, attr: rows}, []*expr{sum}, sum.name+"@slice")
}

// rowsOf returns the expression of the given rows of a value.
func (x *expressions) rowsOf(of *expr, rows ir.RowsAttr) *expr {
	return x.intern(exprKey{op: ir.OpRows, attr: rows}, []*expr{of}, of.name+"@slice")
}

// sliced takes apart the expression of some rows (op is OpRows) or of a part of a sum (OpToPartial). ok is
// false for other expressions.
func sliced(e *expr, op ir.Op) (of *expr, rows ir.RowsAttr, ok bool) {
	rows, ok = e.attr.(ir.RowsAttr)
	if !ok || e.op != op {
		return e, ir.RowsAttr{}, false
	}
	return e.args[0], rows, true
}

// ofSliced returns the expression of result i of a node that takes, joins or reads rows. ok is false for other
// nodes, and for nodes that do not commute with taking rows.
func (x *expressions) ofSliced(n *ir.Node, i int, args []*expr) (result *expr, ok bool) {
	switch n.Op {
	case ir.OpRows:
		return x.rowsOf(args[0], n.Attr.(ir.RowsAttr)), true
	case ir.OpJoinRows:
		whole, _, _ := sliced(args[0], ir.OpRows)
		for part, a := range args {
			if of, rows, ok := sliced(a, ir.OpRows); !ok || of != whole || rows != (ir.RowsAttr{Part: part, Parts: len(args)}) {
				return nil, false
			}
		}
		return whole, true
	case ir.OpCast:
		if of, rows, ok := sliced(args[0], ir.OpToPartial); ok {
			return x.partOf(x.cast(n, of), rows), true
		}
	}
	if n.Op.Class() == ir.Comm || !slices.ContainsFunc(args, func(e *expr) bool { _, _, ok := sliced(e, ir.OpRows); return ok }) {
		return nil, false
	}
	sig := ir.SignatureOf(n)
	dim, parts := -1, ir.RowsAttr{}
	inner := slices.Clone(args)
	for k, a := range args {
		of, rows, ok := sliced(a, ir.OpRows)
		if !ok {
			continue
		}
		if d := sig.Args[k][1]; dim < 0 {
			dim, parts = d, rows
		} else if d != dim || rows != parts {
			return nil, false
		}
		inner[k] = of
	}
	places, results, splits := sig.Rule(dim)
	if !splits {
		return nil, false
	}
	for k, a := range args { // operands that have positions must all be the slice's
		if _, _, ok := sliced(a, ir.OpRows); ok != (places[k] == ir.ShardOn(1)) {
			return nil, false
		}
	}
	result = x.whole(n, i, inner)
	switch results[i] {
	case ir.ShardOn(1):
		return x.rowsOf(result, parts), true
	case ir.PartialOf(ir.Sum):
		return x.partOf(result, parts), true
	}
	return nil, false
}

// whole returns the expression of result i of a node for whole operands.
func (x *expressions) whole(n *ir.Node, i int, args []*expr) *expr {
	if parts, ok := x.ofParts(n, i, n.Attr, args); ok {
		return parts
	}
	if n.Op == ir.OpCast {
		return x.cast(n, args[0])
	}
	return x.intern(exprKey{op: n.Op, attr: n.Attr, index: i}, args, n.Results[i].Name())
}

// joined replaces complete sets of parts among the terms of a sum by the sum that they are parts of.
func (x *expressions) joined(terms []*expr) []*expr {
	type key struct {
		of    *expr
		parts int
	}
	found := map[key][]*expr{}
	for _, t := range terms {
		if of, rows, ok := sliced(t, ir.OpToPartial); ok {
			k := key{of, rows.Parts}
			if !slices.Contains(found[k], t) {
				found[k] = append(found[k], t)
			}
		}
	}
	for _, t := range terms {
		of, rows, ok := sliced(t, ir.OpToPartial)
		k := key{of, rows.Parts}
		if !ok || len(found[k]) < rows.Parts {
			continue
		}
		for _, part := range found[k] { // one term for each part
			at := slices.Index(terms, part)
			terms = slices.Delete(slices.Clone(terms), at, at+1)
		}
		return x.joined(append(terms, of))
	}
	return terms
}
