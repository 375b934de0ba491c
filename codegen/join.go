package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// join buckets collectives of the update, in plans where [stageBuilder.overlap] does not. In the graph the
// gradient of each parameter is reduced, and each updated parameter gathered, by a collective of its own. Most
// of these are so small that their latency exceeds the transfer itself (DDP buckets gradients for the same
// reason: Li et al. VLDB'20, section 3.2.3).
//
// A collective joins the last bucket of its op, axis and block if its operand is made before that bucket, and
// no send or receive lies in between. A bucket never spans blocks, as in overlap: every inner block then adds
// the same instructions to the update, whatever the sizes, which the planner relies on.
//
// With pipeline parallelism nothing is joined. The stages reach the update at different times, and where their
// ranks share cores, steps take 3 to 5 % longer with buckets, mostly at the gathers (nanoGPT's model for a CPU,
// dp 2, pp 2 on two cores, 2026-11-22).
func (b *stageBuilder) join() {
	if b.prog.Plan.Overlap || b.prog.Plan.PP() > 1 {
		return
	}
	type kind struct {
		op          ir.Op
		axis, block string
		chunk       int
	}
	var places []int         // indices in b.nodes of the update's nodes
	var nodes []*ir.Node     // those nodes
	group, groups := b.at, 0 // by node: its group, counted from 1; 0 is before the update
	open := map[kind]int{}   // the last bucket of each kind: it may still grow
	next := func(n *ir.Node) {
		groups++
		group[n.ID()] = groups
	}
	for i, n := range b.nodes {
		if n.Phase != ir.Update || n.Op.Class() == ir.Leaf {
			continue
		}
		places, nodes = append(places, i), append(nodes, n)
		if n.Op == ir.OpSend || n.Op == ir.OpRecv {
			clear(open)
		}
		if !Collective(n.Op) {
			next(n)
			continue
		}
		k := kind{n.Op, n.Attr.(ir.CommAttr).Axis, n.Block(), b.chunk(n)}
		if at := open[k]; at > group[n.Args[0].Def.ID()] {
			group[n.ID()] = at
			b.fused[n.ID()] = true
			continue
		}
		next(n)
		open[k] = groups
	}
	slices.SortStableFunc(nodes, func(x, y *ir.Node) int { return group[x.ID()] - group[y.ID()] })
	for i, n := range nodes {
		b.nodes[places[i]] = n
	}
}
