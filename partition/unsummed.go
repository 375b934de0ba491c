package partition

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// Gradients of two-byte parameters are cast to f32 to be added up, and the sum is cast back. In a step of one
// micro-batch there is nothing to add: both casts together change no value, so unsummed leaves them out, and the
// gradient is kept in the type in which it was made.

// unsummed rewrites a staged graph for steps of one micro-batch. The terms of a parameter with several uses are
// still added in f32.
func unsummed(g *ir.Graph) {
	made := map[*ir.Value]*ir.Value{} // by narrowed gradient: the one that was widened
	spare := map[*ir.Value]bool{}     // wide gradients that nothing else reads
	for _, n := range g.Nodes {
		if wide := n.Args; n.Op == ir.OpCast && n.Phase == ir.Update && WidensGradient(wide[0].Def) && n.Results[0].Type.Equal(wide[0].Def.Args[0].Type) {
			made[n.Results[0]], spare[wide[0]] = wide[0].Def.Args[0], true
		}
	}
	read := func(v **ir.Value) {
		if from := made[*v]; from != nil {
			*v = from
		}
		delete(spare, *v)
	}
	for _, n := range g.Nodes {
		if made[n.Results[0]] != nil {
			continue
		}
		for i := range n.Args {
			read(&n.Args[i])
		}
	}
	for i := range g.Outputs {
		read(&g.Outputs[i].Value)
	}
	g.Nodes = slices.DeleteFunc(g.Nodes, func(n *ir.Node) bool { return made[n.Results[0]] != nil || spare[n.Results[0]] })
}

// WidensGradients reports whether a training step casts gradients that it may be made without where it has one
// micro-batch.
func WidensGradients(g *ir.Graph) bool { return slices.ContainsFunc(g.Nodes, WidensGradient) }

// WidensGradient reports whether a node casts a gradient to f32.
func WidensGradient(n *ir.Node) bool {
	return n.Op == ir.OpCast && n.Phase == ir.Backward && n.Results[0].Type.DType == ir.F32 && n.Args[0].Type.DType.Half()
}
