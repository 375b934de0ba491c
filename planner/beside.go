package planner

import (
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// This file is the part of floors (floor.go) that says how much of a tensor-parallel collective kernels can hide. Package
// codegen (beside.go) runs kernels beside such a collective: products that follow it, or the nearest product before it,
// put off. A trunk's program shows what runs beside what, except for products that are put off: in it the nearest product
// may be taken by a collective that some outlines do not have, such as the gather of a weight that lies whole. For the
// bound to be admissible a collective then counts as hidden by all that may be put off to run beside it. At least it delays
// what it runs beside (see [cost.Model.Slows]).

// exchanges prices the collectives, in the order of [ordered]. With parts, a collective that may be made in parts with the
// products next to it counts only the time by which it outlasts them.
func (w *work) exchanges(mesh ir.Mesh, at spot, parts bool) [2]workTimes {
	prices := w.on(at)
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
		slow := prices[0].Slows(time)
		if parts && in.Parts == 0 { // what each part delays is rounded down
			slow = max(0, slow-partition.MaxTPPieces)
		}
		exposed := max(slow, time-max(hides(prices, in, mesh), inParts))
		beside.add(in, exposed)
		if in.Parts > 0 { // the kernels beside it are its own other parts, under every schedule
			time = exposed
		}
		all.add(in, max(slow, time-inParts))
	}
	return [2]workTimes{beside, all}
}

// hides is the time of the kernels that run beside a collective. It includes adding up gradients for all parameters, and so is
// no less than in any plan.
func hides(prices []*cost.Program, in *workInstr, mesh ir.Mesh) cost.Picoseconds {
	return kernels(prices, in.beside, mesh)
}

// kernels is the time of kernels that may run beside a collective; 0 where ranks share a device, as nothing overlaps there.
func kernels(prices []*cost.Program, instrs []codegen.Instr, mesh ir.Mesh) cost.Picoseconds {
	if len(instrs) == 0 || !prices[0].Overlaps() {
		return 0
	}
	return prices[0].InOrder(instrs, mesh, ir.Coord{})
}

// mayBePutOff returns the kernels before collective i, in a pass of a block, that programs of some outlines may put off to run
// beside it: those that it does not wait for, unless they run beside a collective that all outlines have. In a forward pass
// an adapter's collective may thus hide a product, whole in an outline, that the trunk makes in parts. Nothing is put off
// beside the collective with which the gradient of the block comes in.
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

// taken reports whether instruction k runs beside a collective that all outlines of the family have.
func (w *work) taken(instrs []codegen.Instr, k int) bool {
	i := k - 1
	for i >= 0 && instrs[i].Node.Op.Class() != ir.Comm {
		i--
	}
	if i < 0 || k > i+instrs[i].Beside {
		return false
	}
	ofBatch, _ := w.shares(instrs[i:][:1])
	return ofBatch
}
