package codegen

import "github.com/autopar/autopar/ir"

// join puts collectives of the update of a stage together, where [stageBuilder.overlap]
// has not. The gradient of every parameter is reduced, and every updated one gathered, by
// itself in the graph: most are small, and then for ranks to meet, or a message to go round
// them, takes longer than what they do when they have met (DDP puts gradients in buckets
// for the same reason: Li et al. VLDB'20, section 3.2.3).
//
// A collective is made with the ones before it of its kind, axis and block, if what it reads
// has been made by then, and nothing is sent to another stage or received in between. Buckets
// are of one block, or of what is in none, as those of overlap: every inner block then adds
// the same instructions to the update, whatever the sizes, and the planner counts on it.
//
// In a pipeline all are made one by one: its stages come to the update at different times, and
// where their ranks share cores, steps take 3 to 5 % longer with buckets (nanoGPT's model for a
// CPU, dp 2, pp 2 on two cores, 2026-11-22), most of it at the gathers.
func (b *stageBuilder) join() {
	if b.prog.Plan.Overlap || b.prog.Plan.PP() > 1 {
		return
	}
	type kind struct {
		op          ir.Op
		axis, block string
		chunk       int
	}
	var places []int        // of the update in the stage's nodes
	var groups [][]*ir.Node // what is there now, and then goes there, in order
	group := b.at           // by node, from 1 on: 0 is before the update
	open := map[kind]int{}  // the last bucket of a kind that may grow
	next := func(n *ir.Node) {
		groups = append(groups, []*ir.Node{n})
		group[n.ID()] = len(groups)
	}
	for i, n := range b.nodes {
		if n.Phase != ir.Update || n.Op.Class() == ir.Leaf {
			continue
		}
		places = append(places, i)
		if n.Op == ir.OpSend || n.Op == ir.OpRecv {
			clear(open)
		}
		if !Collective(n.Op) {
			next(n)
			continue
		}
		k := kind{n.Op, n.Attr.(ir.CommAttr).Axis, n.Block(), b.chunk(n)}
		if at := open[k]; at > group[n.Args[0].Def.ID()] {
			groups[at-1] = append(groups[at-1], n)
			group[n.ID()] = at
			b.fused[n.ID()] = true
			continue
		}
		next(n)
		open[k] = len(groups)
	}
	for _, nodes := range groups {
		for _, n := range nodes {
			b.nodes[places[0]] = n
			places = places[1:]
		}
	}
}
