package planner

import (
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Under sequence or batch parallelism the gradient of a weight that tensor-parallel ranks hold whole is made in one of three ways: every rank
// gathers what all have, and makes all of it or a share, which is gathered then, or each makes what its own tokens add, and that is
// reduced, or under ZeRO each makes the share that it will update. The one that moves fewest bytes is taken, and that may be the first in a
// trunk's program, where all ranks want the whole gradient, and another under ZeRO. So a trunk does not have the first.

// gathers reports whether a node of a trunk makes the gradient, or a share, of a weight that tensor-parallel ranks hold whole from
// what all of them have.
func (w *work) gathers(n *ir.Node) bool {
	tp := w.mesh.Axis(partition.AxisTP)
	return tp >= 0 && w.mesh.Axes[tp].Size > 1 && w.of.ofWhole[n] && w.of.ofWeight[n] && n.Results[0].Spec[tp].Kind != ir.Partial
}

// noteWhole finds what makes gradients of weights which tensor-parallel ranks hold whole: products, and sums over the tokens of an
// embedding, also if under ZeRO each rank updates its share, and if another gradient of a tied table is added.
func (b *blueprint) noteWhole(prog *codegen.Program) {
	tp := prog.Mesh.Axis(partition.AxisTP)
	for _, n := range prog.Graph.Nodes {
		if n.Op != ir.OpAdamW {
			continue
		}
		cut := n.Results[0].Spec[tp].Kind == ir.Shard
		last := func(way []*ir.Node) *ir.Node { return way[len(way)-1] }
		makers := []*ir.Node{last(gradientWay(n))}
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

// gradientWay lists the nodes through which the gradient of an AdamW comes, with the one that makes it last.
func gradientWay(n *ir.Node) []*ir.Node { return wayTo(n.Args[3].Def) }

// wayTo lists a node and those before it through which what it has comes, with the one that makes it last.
func wayTo(of *ir.Node) (way []*ir.Node) {
	for ; ; of = of.Args[0].Def {
		way = append(way, of)
		if of.Op.Class() != ir.Comm && of.Op != ir.OpAccumulate && of.Op != ir.OpCast && of.Op != ir.OpFromFixed {
			return way
		}
	}
}

// gathersFor reports whether all that reads a collective's result are such nodes.
func (w *work) gathersFor(n *ir.Node, instrs []codegen.Instr) bool {
	if n.Op != ir.OpAllGather || !w.of.ofWeight[n] {
		return false
	}
	reads := func(in codegen.Instr) bool { return slices.Contains(in.Node.Args, n.Results[0]) }
	return !slices.ContainsFunc(instrs, func(in codegen.Instr) bool { return reads(in) && !w.gathers(in.Node) }) && slices.ContainsFunc(instrs, reads)
}

// gathered reports whether such nodes read a buffer of the trunk's program, or what is gathered from it: in other plans they have
// shares of that.
func (w *work) gathered(e extent, x *codegen.Buffer) bool {
	st := w.of.prog(e).Stages[0]
	backward := st.Bodies[ir.Backward].Instrs
	return slices.ContainsFunc(backward, func(in codegen.Instr) bool {
		reads := slices.ContainsFunc(in.Args, func(id int) bool { return &st.Buffers[id] == x })
		return reads && (w.gathers(in.Node) || w.gathersFor(in.Node, backward))
	})
}
