package planner

import (
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// This file keeps floors admissible where the program of an outline makes gradients in another way than the trunk's. Under
// sequence or batch parallelism tensor-parallel ranks have tokens of their own. The gradient of a weight that they all hold
// whole is then made in one of three ways: (1) every rank gathers the tokens of all, and makes the whole gradient, or a share
// that is then gathered; (2) each rank makes the terms of its own tokens, which are summed; (3) under ZeRO, each rank makes
// the share that it will update. Package partition takes the way that moves the fewest bytes. That may be (1) in a trunk's
// program, which has no ZeRO, and another one in the program of an outline. So trunks do not count what is special to (1).

// gathers reports whether a node makes the gradient, or a share, of a weight that tensor-parallel ranks hold whole, from what
// all of them have: way (1).
func (w *work) gathers(n *ir.Node) bool {
	tp := w.mesh.Axis(partition.AxisTP)
	return tp >= 0 && w.mesh.Axes[tp].Size > 1 && w.of.ofWhole[n] && w.of.ofWeight[n] && n.Results[0].Spec[tp].Kind != ir.Partial
}

// noteWhole finds the nodes that make gradients of weights which tensor-parallel ranks hold whole, for b.ofWhole: products,
// and the sums over tokens of an embedding; both where a tied table adds them. If under ZeRO each rank updates a share of the
// weight, only those sums count, and only if they are not cut like it.
func (b *blueprint) noteWhole(prog *codegen.Program) {
	tp := prog.Mesh.Axis(partition.AxisTP)
	for _, n := range prog.Graph.Nodes {
		if n.Op != ir.OpAdamW {
			continue
		}
		cut := n.Results[0].Spec[tp].Kind == ir.Shard
		makers := []*ir.Node{last(wayTo(n.Args[3].Def))}
		if sum := makers[0]; sum.Op == ir.OpAddN {
			for _, a := range sum.Args {
				makers = append(makers, last(wayTo(a.Def)))
			}
		}
		for _, maker := range makers {
			switch maker.Op {
			case ir.OpMatMul:
				b.ofWhole[maker] = !cut
			case ir.OpEmbeddingGrad:
				b.ofWhole[maker] = !cut || maker.Results[0].Spec[tp].Kind != ir.Shard
			}
		}
	}
}

func last(way []*ir.Node) *ir.Node { return way[len(way)-1] }

// wayTo lists a node and those before it that only move, add up or convert its value, back to the one that makes it.
func wayTo(of *ir.Node) (way []*ir.Node) {
	for ; ; of = of.Args[0].Def {
		way = append(way, of)
		if of.Op.Class() != ir.Comm && of.Op != ir.OpAccumulate && of.Op != ir.OpCast && of.Op != ir.OpFromFixed {
			return way
		}
	}
}

// gathersFor reports whether a collective is of way (1) too: all that reads its result gathers.
func (w *work) gathersFor(n *ir.Node, instrs []codegen.Instr) bool {
	if n.Op != ir.OpAllGather || !w.of.ofWeight[n] {
		return false
	}
	reads := func(in codegen.Instr) bool { return slices.Contains(in.Node.Args, n.Results[0]) }
	return !slices.ContainsFunc(instrs, func(in codegen.Instr) bool { return reads(in) && !w.gathers(in.Node) }) && slices.ContainsFunc(instrs, reads)
}

// gathered reports whether a buffer of the trunk's program is read in way (1), directly or after a collective. In other plans
// only a share of it may be read.
func (w *work) gathered(e extent, x *codegen.Buffer) bool {
	st := w.of.prog(e).Stages[0]
	backward := st.Bodies[ir.Backward].Instrs
	return slices.ContainsFunc(backward, func(in codegen.Instr) bool {
		reads := slices.ContainsFunc(in.Args, func(id int) bool { return &st.Buffers[id] == x })
		return reads && (w.gathers(in.Node) || w.gathersFor(in.Node, backward))
	})
}
