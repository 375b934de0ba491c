package codegen

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// expr is a value as an expression over parameters, inputs and constants. Expressions are interned: equal ones
// are the same pointer.
type expr struct {
	id    int
	op    ir.Op
	attr  ir.Attr
	index int // index of the result of op
	args  []*expr
	name  string   // name of the first value found to be this expression
	made  site     // where a program first computed it
	known bool     // whether a value of the traced graph is this expression
	from  ir.DType // of a cast: the type that it casts
}

// site is a place in a program.
type site struct {
	rank, stage int
	task        Task
	instr       string
}

// exprKey identifies an expression.
type exprKey struct {
	op    ir.Op
	attr  ir.Attr
	index int
	leaf  string // for a leaf: its type, and its name unless it is a constant
	args  string // ids of the operands
}

// expressions interns expressions (hash-consing). Seven rewrites make equal what a partition may write in
// several ways:
//
//   - Communication is the identity: it moves parts of a value, but the value stays the same. (What it does to
//     placements is checked separately.) The exception is the fold of context parallelism: see ofFolded.
//   - add_n is a flat multiset of terms, so that the sum of the stages' sums equals the sum of all terms.
//   - A cast of a sum is the sum of the casts, up to rounding: stages cast their terms before they exchange
//     them.
//   - With one micro-batch, where nothing is added up between them, a cast to f32 and back is the identity.
//   - Sequences may be several rows each: see ofParts.
//   - What a slice of the loss makes is part of what the whole loss makes: see ofSliced.
//   - Constants are their value, and the copies name@sN of a leaf are the leaf.
type expressions struct {
	table map[exprKey]*expr
	key   []byte
	lone  bool // there is one micro-batch
	// inputs are those of the traced graph, by name.
	inputs map[string]*ir.Value
}

func newExpressions(lone bool) *expressions {
	return &expressions{table: map[exprKey]*expr{}, lone: lone, inputs: map[string]*ir.Value{}}
}

// leaf returns the expression of a parameter, input or constant.
func (x *expressions) leaf(v *ir.Value) *expr {
	n := v.Def
	k := exprKey{op: n.Op, attr: n.Attr, leaf: v.Type.String()}
	if attr, ok := n.Attr.(ir.ParamAttr); ok {
		attr.Host = false // where it is stored does not change what it is
		k.attr = attr
	}
	if n.Op != ir.OpConst {
		k.leaf += partition.BaseName(n.Name)
	}
	if of, ok := x.inRows(v); ok {
		return of
	}
	return x.intern(k, nil, partition.BaseName(n.Name))
}

// result returns the expression of result i of a node, given those of its operands.
func (x *expressions) result(n *ir.Node, i int, args []*expr) *expr {
	if sliced, ok := x.ofSliced(n, i, args); ok {
		return sliced
	}
	if folded, ok := x.ofFolded(n, i, args); ok {
		return folded
	}
	parts, ok := x.ofParts(n, i, n.Attr, args)
	switch {
	case ok:
		return parts
	case n.Op.Class() == ir.Comm:
		return args[0]
	case n.Op == ir.OpAddN:
		return x.sum(args, n.Name)
	case n.Op == ir.OpCast:
		return x.cast(n, args[0])
	}
	return x.intern(exprKey{op: n.Op, attr: n.Attr, index: i}, args, n.Results[i].Name())
}

// sum returns the expression of a sum of terms.
func (x *expressions) sum(terms []*expr, name string) *expr {
	var flat []*expr
	for _, t := range terms {
		if t.op == ir.OpAddN {
			flat = append(flat, t.args...)
		} else {
			flat = append(flat, t)
		}
	}
	if flat = x.joined(flat); len(flat) == 1 {
		return flat[0]
	}
	slices.SortFunc(flat, func(a, b *expr) int { return a.id - b.id })
	return x.intern(exprKey{op: ir.OpAddN}, flat, name)
}

func (x *expressions) intern(k exprKey, args []*expr, name string) *expr {
	x.key = x.key[:0]
	for _, a := range args {
		x.key = binary.AppendUvarint(x.key, uint64(a.id))
	}
	k.args = string(x.key)
	e, ok := x.table[k]
	if !ok {
		e = &expr{id: len(x.table), op: k.op, attr: k.attr, index: k.index, args: slices.Clone(args), name: name, made: site{rank: -1}}
		x.table[k] = e
	}
	return e
}

// trace interns every value of an unpartitioned graph and marks it as known.
func (x *expressions) trace(g *ir.Graph) map[*ir.Value]*expr {
	of := map[*ir.Value]*expr{}
	for _, n := range g.Nodes {
		args := make([]*expr, len(n.Args))
		for i, a := range n.Args {
			args[i] = of[a]
		}
		for i, r := range n.Results {
			if n.Op.Class() == ir.Leaf {
				of[r] = x.leaf(r)
				if n.Op == ir.OpInput {
					x.inputs[of[r].name] = r
				}
			} else {
				of[r] = x.result(n, i, args)
			}
			of[r].known = true
		}
	}
	return of
}

// difference returns the deepest sub-expression at which found departs from want, and what is wrong there. It
// does not descend into operands that the traced graph has too: those are right by themselves and only stand in
// the wrong place.
func difference(want, found *expr) (at *expr, why string) {
	for {
		switch {
		case found.known:
			return found, fmt.Sprintf("is %s, want %s", found.name, want.name)
		case want.op != found.op:
			return found, fmt.Sprintf("is %s, want %s", found, want)
		case want.op == ir.OpAddN:
			missing, extra := without(want.args, found.args), without(found.args, want.args)
			if len(missing) == 1 && len(extra) == 1 && !extra[0].known {
				want, found = missing[0], extra[0]
				continue
			}
			return found, fmt.Sprintf("sums %d terms, want %d: misses %s, has besides %s", len(found.args), len(want.args), list(missing), list(extra))
		case want.attr != found.attr:
			return found, fmt.Sprintf("has attributes %+v, want %+v", found.attr, want.attr)
		case want.index != found.index:
			return found, fmt.Sprintf("is result %d of %s, want result %d", found.index, found.op, want.index)
		case len(want.args) != len(found.args):
			return found, fmt.Sprintf("has %d operands, want %d", len(found.args), len(want.args))
		}
		next := -1
		for i := range want.args {
			if want.args[i] == found.args[i] {
				continue
			}
			if next < 0 || found.args[next].known && !found.args[i].known {
				next = i
			}
		}
		if next < 0 { // leaves with one op and attribute: the name or the type differs
			return found, fmt.Sprintf("is %s, want %s", found.name, want.name)
		}
		if found.args[next].known {
			return found, fmt.Sprintf("has operand %d %s, want %s", next, found.args[next].name, want.args[next].name)
		}
		want, found = want.args[next], found.args[next]
	}
}

// without returns the terms that others lacks, as multisets.
func without(terms, others []*expr) []*expr {
	count := map[*expr]int{}
	for _, o := range others {
		count[o]++
	}
	var rest []*expr
	for _, t := range terms {
		if count[t]--; count[t] < 0 {
			rest = append(rest, t)
		}
	}
	return rest
}

func list(terms []*expr) string {
	if len(terms) == 0 {
		return "nothing"
	}
	text := terms[0].name
	for _, t := range terms[1:] {
		text += ", " + t.name
	}
	return text
}

// String prints an expression one level deep.
func (e *expr) String() string {
	if len(e.args) == 0 {
		return e.name
	}
	text := e.op.String() + "("
	for i, a := range e.args {
		if i > 0 {
			text += ", "
		}
		text += a.name
	}
	return text + ")"
}

// cast is a cast, of a sum term by term.
func (x *expressions) cast(n *ir.Node, of *expr) *expr {
	from, to := n.Args[0].Type.DType, n.Results[0].Type.DType
	one := func(e *expr) *expr {
		if x.lone && e.op == ir.OpCast && e.from == to && to.Half() && from == ir.F32 {
			return e.args[0]
		}
		c := x.intern(exprKey{op: n.Op, attr: n.Attr}, []*expr{e}, n.Results[0].Name())
		c.from = from
		return c
	}
	if of.op != ir.OpAddN {
		return one(of)
	}
	casts := make([]*expr, len(of.args))
	for i, t := range of.args {
		casts[i] = one(t)
	}
	return x.sum(casts, n.Name)
}
