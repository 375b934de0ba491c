package partition

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// splitBackward moves the nodes that [WeightGrads] finds to the phase
// [ir.WeightGrad], behind the rest of the backward pass, so that a schedule may run
// them later.
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

// WeightGrads finds what of the backward pass of a partitioned graph only makes
// gradients of parameters (Qi et al. 2024, section 2): every node whose results
// reach one gradient and nothing else, no other stage in particular. What reaches
// several gradients is on the way back through the model, which other stages wait
// for.
func WeightGrads(g *ir.Graph) map[*ir.Node]bool {
	const many = -1
	reach := map[*ir.Node]int{}        // 0: nothing; k: the gradient that node k-1 sums; many
	passed := map[*ir.Node]bool{}      // reaches another stage
	escapes := map[*ir.Value]bool{}    // read in the update phase
	users := map[*ir.Node][]*ir.Node{} // in the backward phase
	for _, n := range g.Nodes {
		for _, a := range n.Args {
			switch {
			case n.Phase == ir.Update:
				escapes[a] = true
			case n.Phase == ir.Backward:
				users[a.Def] = append(users[a.Def], n)
			}
		}
	}
	for _, o := range g.Outputs {
		escapes[o.Value] = true
	}
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		n := g.Nodes[i]
		if n.Phase != ir.Backward {
			continue
		}
		join := func(other int) {
			switch {
			case reach[n] == 0:
				reach[n] = other
			case other != 0 && other != reach[n]:
				reach[n] = many
			}
		}
		passed[n] = n.Op == ir.OpSend || n.Op == ir.OpRecv
		if n.Op == ir.OpAccumulate || slices.ContainsFunc(n.Results, func(r *ir.Value) bool { return escapes[r] }) {
			join(i + 1)
		}
		for _, u := range users[n] {
			join(reach[u])
			passed[n] = passed[n] || passed[u]
		}
	}
	found := map[*ir.Node]bool{}
	for _, n := range g.Nodes {
		if n.Phase == ir.Backward {
			// A sum goes with the kernel that makes its terms, which may do the adding.
			with := n.Op != ir.OpAccumulate || found[n.Args[0].Def]
			found[n] = reach[n] != many && !passed[n] && with
		}
	}
	return found
}
