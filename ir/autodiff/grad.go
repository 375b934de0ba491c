// Package autodiff appends the backward pass to a graph, as ordinary nodes of
// the same graph: reverse-mode differentiation with one rule per op (rules.go).
//
// A gradient node is named after the forward node that it differentiates, as in
// h.3.mlp.c_fc/matmul@dx, so it belongs to the same block and source line.
package autodiff

import (
	"fmt"

	"github.com/autopar/autopar/ir"
)

// Grad appends to g the nodes that compute the gradient of loss, an f32 scalar,
// with respect to each of wrt, and returns the gradients by value, each with the
// type of its value.
//
// wide is the type in which contributions to the gradient of a parameter are added, over its uses and later
// over micro-batches. The sum is then cast to the type of the parameter. [ir.F32] loses no precision; the
// parameter's own type takes less memory.
//
// Nodes come in reverse order of the forward pass, in phase Backward. Contributions to the gradient of an
// activation are added pairwise as they arise. Contributions to that of a parameter with several uses (a tied
// table) are added by one add_n in phase Update, <param>@grad, so that each of them can first be accumulated
// over micro-batches and reduced over stages by itself. Nothing is emitted for values that the loss does not
// use or that depend on none of wrt.
//
// It returns an error if loss is not a scalar, if it does not depend on one of wrt, or if a path between them
// passes through an op that has no gradient. g then holds part of a backward pass and must be discarded.
func Grad(g *ir.Graph, loss *ir.Value, wrt []*ir.Value, wide ir.DType) (map[*ir.Value]*ir.Value, error) {
	if !loss.Type.Equal(ir.Type{DType: ir.F32}) {
		return nil, fmt.Errorf("autodiff: loss %s is %s, want f32[]", loss.Name(), loss.Type)
	}
	b := &backward{
		graph: g,
		needs: dependents(g, wrt),
		grads: make([][]*ir.Value, g.IDs()),
		wide:  wide,
	}
	forward := g.Nodes[:len(g.Nodes):len(g.Nodes)]
	if err := b.seed(loss); err != nil {
		return nil, err
	}
	for i := len(forward) - 1; i >= 0; i-- {
		if err := b.node(forward[i]); err != nil {
			return nil, fmt.Errorf("autodiff: %s%s: %w", forward[i].Name, at(forward[i].Pos), err)
		}
	}
	return b.collect(wrt)
}

func at(pos string) string {
	if pos == "" {
		return ""
	}
	return " (" + pos + ")"
}

// dependents returns wrt and every value computed from one of them, by ID.
func dependents(g *ir.Graph, wrt []*ir.Value) []bool {
	needs := make([]bool, g.IDs())
	for _, v := range wrt {
		needs[v.ID] = true
	}
	for _, n := range g.Nodes {
		for _, a := range n.Args {
			if !needs[a.ID] {
				continue
			}
			for _, r := range n.Results {
				needs[r.ID] = true
			}
			break
		}
	}
	return needs
}

// backward is the state of one reverse sweep.
type backward struct {
	graph *ir.Graph
	// needs and grads are indexed by the ID of a value of the forward pass.
	needs []bool
	// grads holds the contributions to the gradient of each value, in the order in which they arose: all of
	// them for a parameter, their running sum for other values.
	grads [][]*ir.Value
	wide  ir.DType
	// fwd and dy are the current forward node and the gradient of its result 0.
	fwd *ir.Node
	dy  *ir.Value
}

func (b *backward) seed(loss *ir.Value) error {
	one, err := b.graph.Leaf(ir.OpConst, loss.Name()+"@seed", ir.Type{DType: ir.F32}, ir.ConstAttr{Value: 1})
	if err != nil {
		return fmt.Errorf("autodiff: %w", err)
	}
	one.Def.Phase, one.Def.Pos = ir.Backward, loss.Def.Pos
	b.grads[loss.ID] = []*ir.Value{one}
	return nil
}

// node differentiates one forward node, if the loss depends on it and it depends on one of wrt.
func (b *backward) node(n *ir.Node) error {
	if n.Op.Class() == ir.Leaf {
		return nil
	}
	reached := false
	for i, r := range n.Results {
		if len(b.grads[r.ID]) == 0 || !b.needs[r.ID] {
			continue
		}
		if i > 0 {
			return fmt.Errorf("the loss depends on result %d of %s; gradients flow through result 0 only", i, n.Op)
		}
		reached = true
	}
	inner := false
	for _, a := range n.Args {
		inner = inner || b.needs[a.ID]
	}
	if !reached || !inner {
		return nil
	}
	rule, ok := rules[n.Op]
	if !ok {
		return fmt.Errorf("no gradient flows through %s", n.Op)
	}
	b.fwd, b.dy = n, b.grads[n.Results[0].ID][0]
	return rule(b)
}

// want reports whether operand i of the current node needs a gradient.
func (b *backward) want(i int) bool { return i < len(b.fwd.Args) && b.needs[b.fwd.Args[i].ID] }

// add appends a gradient node named <forward>@<suffix>.
func (b *backward) add(op ir.Op, attr ir.Attr, suffix string, args ...*ir.Value) (*ir.Node, error) {
	n, err := b.graph.Add(op, attr, b.fwd.Name+"@"+suffix, ir.Backward, args...)
	if err != nil {
		return nil, err
	}
	n.Pos = b.fwd.Pos
	return n, nil
}

// give adds d to the gradient of v.
func (b *backward) give(v, d *ir.Value) error {
	if !b.needs[v.ID] {
		return nil
	}
	if !v.Type.Equal(d.Type) {
		panic(fmt.Sprintf("BUG: gradient of %s %s has type %s", v.Name(), v.Type, d.Type))
	}
	sofar := b.grads[v.ID]
	if v.Def.Op == ir.OpParam && v.Type.DType.Half() && v.Type.DType != b.wide {
		n, err := b.graph.Add(ir.OpCast, ir.CastAttr{To: b.wide}, d.Name()+"@wide", ir.Backward, d)
		if err != nil {
			return err
		}
		n.Pos, d = b.fwd.Pos, n.Results[0]
	}
	if len(sofar) == 0 || v.Def.Op == ir.OpParam {
		b.grads[v.ID] = append(sofar, d)
		return nil
	}
	// The sum is named after the use that completed it, not after v. So it is made in the consumer's block, and
	// only one value crosses the border between blocks.
	n, err := b.add(ir.OpAdd, nil, "add", sofar[0], d)
	if err != nil {
		return err
	}
	b.grads[v.ID] = []*ir.Value{n.Results[0]}
	return nil
}

// emit appends a node and gives its first result to operand i, if that needs a gradient.
func (b *backward) emit(i int, op ir.Op, attr ir.Attr, suffix string, args ...*ir.Value) error {
	if !b.want(i) {
		return nil
	}
	n, err := b.add(op, attr, suffix, args...)
	if err != nil {
		return err
	}
	return b.give(b.fwd.Args[i], n.Results[0])
}

// collect returns one gradient for each of wrt, from its contributions.
func (b *backward) collect(wrt []*ir.Value) (map[*ir.Value]*ir.Value, error) {
	out := make(map[*ir.Value]*ir.Value, len(wrt))
	for _, v := range wrt {
		terms := b.grads[v.ID]
		switch {
		case out[v] != nil: // listed twice
		case len(terms) == 0:
			return nil, fmt.Errorf("autodiff: the loss does not depend on %s%s", v.Name(), at(v.Def.Pos))
		case len(terms) == 1:
			out[v] = terms[0]
		default:
			n, err := b.graph.Add(ir.OpAddN, nil, v.Name()+"@grad", ir.Update, terms...)
			if err != nil {
				return nil, fmt.Errorf("autodiff: %w", err)
			}
			n.Pos = v.Def.Pos
			out[v] = n.Results[0]
		}
		if sum := out[v]; sum.Type.DType != v.Type.DType {
			n, err := b.graph.Add(ir.OpCast, ir.CastAttr{To: v.Type.DType}, v.Name()+"@narrow", ir.Update, sum)
			if err != nil {
				return nil, fmt.Errorf("autodiff: %w", err)
			}
			n.Pos = v.Def.Pos
			out[v] = n.Results[0]
		}
	}
	return out, nil
}
