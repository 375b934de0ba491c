package partition

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// splitBackward moves the nodes found by [WeightGrads] to the phase [ir.WeightGrad], after the rest of the
// backward pass, so that a zero-bubble schedule may run them later.
func splitBackward(g *ir.Graph) {
	moved := WeightGrads(g)
	last := 0
	for i, n := range g.Nodes {
		if n.Phase == ir.Backward {
			last = i
		}
	}
	var before, after []*ir.Node
	for i, n := range g.Nodes {
		switch {
		case moved[n]:
			n.Phase = ir.WeightGrad
			after = append(after, n)
		case i <= last:
			before = append(before, n)
		default:
			after = append(after, n)
		}
	}
	g.Nodes = append(before, after...)
	g.Renumber()
}

// WeightGrads finds the nodes of the backward pass of a partitioned graph that only serve gradients of
// parameters (Qi et al. 2024, section 2): nodes whose results reach exactly one gradient, and no other stage. A
// node that reaches several gradients is part of the path of gradients back through the model, which other
// stages wait for.
//
// Two kinds of nodes stay on that path although they reach only one gradient or none, so that all blocks of a
// stage are alike: what a block computes for the embedding alone, where another block would compute it for the
// block before, and the gradient of the first block's input if the embedding is frozen, which nothing reads.
func WeightGrads(g *ir.Graph) map[*ir.Node]bool {
	reach, passed := reaches(g)
	found := map[*ir.Node]bool{}
	waited := make([]bool, g.IDs()) // read by a node that stays in the backward pass
	for _, n := range slices.Backward(g.Nodes) {
		if n.Phase != ir.Backward {
			continue
		}
		of := reach[n.ID()]
		handsOn := of > 0 && n.Op.Class() == ir.Compute && n.Block() != "" && n.Block() != g.Nodes[of-1].Block()
		if of != many && !passed[n.ID()] && !waited[n.ID()] && !handsOn {
			found[n] = true
			continue
		}
		for _, a := range n.Args {
			waited[a.Def.ID()] = true
		}
	}
	// An accumulation goes with the kernel that makes its operand, which may do the adding.
	for n := range found {
		if n.Op == ir.OpAccumulate && !found[n.Args[0].Def] {
			delete(found, n)
		}
	}
	return found
}

// many stands for several gradients.
const many = -1

// reaches returns, by the ID of a node of the backward phase, what the results of the node reach. reach is 0 for
// no gradient, k if it is only the one that node k-1 of the graph accumulates, or many. passed says whether they
// reach another stage, or nothing at all.
func reaches(g *ir.Graph) (reach []int, passed []bool) {
	reach, passed = make([]int, g.IDs()), make([]bool, g.IDs())
	read := make([]bool, g.IDs())    // nodes that any node reads
	escapes := make([]bool, g.IDs()) // values that are read in the update phase
	for _, n := range g.Nodes {
		for _, a := range n.Args {
			read[a.Def.ID()] = true
			escapes[a.ID] = escapes[a.ID] || n.Phase == ir.Update
		}
	}
	for _, o := range g.Outputs {
		escapes[o.Value.ID], read[o.Value.Def.ID()] = true, true
	}
	join := func(id, other int) {
		switch {
		case reach[id] == 0:
			reach[id] = other
		case other != 0 && other != reach[id]:
			reach[id] = many
		}
	}
	// Propagate backward: what a node reaches, the nodes that make its operands reach too.
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		n := g.Nodes[i]
		if n.Phase != ir.Backward {
			continue
		}
		id := n.ID()
		passed[id] = passed[id] || n.Op == ir.OpSend || n.Op == ir.OpRecv || !read[id]
		if n.Op == ir.OpAccumulate || slices.ContainsFunc(n.Results, func(r *ir.Value) bool { return escapes[r.ID] }) {
			join(id, i+1)
		}
		for _, a := range n.Args {
			of := a.Def.ID()
			join(of, reach[id])
			passed[of] = passed[of] || passed[id]
		}
	}
	return reach, passed
}
