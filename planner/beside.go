package planner

import (
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
)

// Floors know what runs beside the collectives of tensor-parallel ranks. The programs that they come from say
// so, but for what is put off in the trunk's (package codegen, beside.go), where the nearest product may be taken
// by a collective that some outlines do not have: a weight that is whole under ZeRO is not gathered.

// exchanges is what of these times is that of collectives. With parts, what may be made in parts with the product next to it
// takes what that leaves of it.
func (w *work) exchanges(mesh ir.Mesh, kinds cost.Kinds, parts bool) [2]workTimes {
	prices := w.on(kinds)
	var beside, all workTimes
	for i := range w.instrs {
		in := &w.instrs[i]
		if in.Node.Op.Class() != ir.Comm {
			continue
		}
		time := least(prices, in, mesh)
		inParts := cost.Picoseconds(0)
		if parts {
			inParts = kernels(prices, in.product, mesh)
		}
		exposed := max(0, time-max(hides(prices, in, mesh), inParts))
		beside.add(in, exposed)
		if in.Parts > 0 { // whose other parts are beside it under every schedule
			time = exposed
		}
		all.add(in, max(0, time-inParts))
	}
	return [2]workTimes{beside, all}
}

// hides is the time of what runs beside an instruction, nothing unless it is a collective of
// tensor-parallel ranks: with all of the model's parameters that adds to gradients, and so as
// long as it ever takes.
func hides(prices []*cost.Program, in *workInstr, mesh ir.Mesh) cost.Picoseconds {
	return kernels(prices, in.beside, mesh)
}

// kernels is the time of kernels that something may run beside, nothing where nothing may.
func kernels(prices []*cost.Program, instrs []codegen.Instr, mesh ir.Mesh) cost.Picoseconds {
	if len(instrs) == 0 || !prices[0].Overlaps() {
		return 0
	}
	return prices[0].InOrder(instrs, mesh, ir.Coord{})
}

// mayBePutOff returns the kernels before a collective of a block's pass that may be put off beside
// it in the programs of some outlines, though not in the trunk's, where they run beside a collective that those
// outlines do not have, or beside none: those that it does not wait for. In a forward pass a product that the trunk makes in
// parts may be whole, while what an adapter leaves is gathered. Nothing is put off to where the
// gradient of the block comes in.
func (w *work) mayBePutOff(instrs []codegen.Instr, i int) (late []codegen.Instr) {
	n := instrs[i].Node
	needed := map[*ir.Node]bool{}
	for _, v := range n.Args {
		if v.Def.Phase == n.Phase && v.Def.Op.Class() != ir.Leaf && v.Def.Block() != n.Block() {
			return nil
		}
		needed[v.Def] = true
	}
	for k, in := range slices.Backward(instrs[:i]) {
		switch {
		case needed[in.Node]:
			for _, v := range in.Node.Args {
				needed[v.Def] = true
			}
		case in.Node.Op.Class() == ir.Compute && in.Parts == 0 && in.Node.Block() == n.Block() && !w.taken(instrs[:i], k):
			late = append(late, in)
		}
	}
	return late
}

// taken reports whether an instruction runs beside a collective that all outlines of the family have.
func (w *work) taken(instrs []codegen.Instr, k int) bool {
	i := k - 1
	for i >= 0 && instrs[i].Node.Op.Class() != ir.Comm {
		i--
	}
	if i < 0 || k > i+instrs[i].Beside {
		return false
	}
	follows, _ := w.shares(instrs[i:][:1])
	return follows
}
