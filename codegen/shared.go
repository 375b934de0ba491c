package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// sharedFirst moves nodes that blocks share and that do not depend on what is computed, such as the positions of a
// rank's tokens, in front of the first block that reads them. It does so only in plans that overlap something, or make products in parts.
// Inside that block such a node would stand between nodes that are adjacent in all other blocks, and would
// count as work that this block alone can hide communication behind; but the planner needs the first block of a
// stage to be like the others. It runs before overlap, which then puts the node at the head of the block's
// segment and makes it wait for what is gathered for the segment.
func (b *stageBuilder) sharedFirst() {
	if p := b.prog.Plan; !p.Overlap && !p.OverlapTP && p.TPPieces <= 1 {
		return
	}
	b.leavesFirst()
	blocks := make([]string, len(b.of)) // of nodes, each of which is asked for several times
	for _, n := range b.nodes {
		blocks[n.ID()] = n.Block()
	}
	read := make([]bool, len(b.of)) // values read by a block, or by a shared node that a block reads
	shared := func(n *ir.Node) bool {
		switch {
		case blocks[n.ID()] != "" || n.Phase > ir.Backward || !read[n.Results[0].ID]:
			return false
		case n.Op == ir.OpInput:
			return true
		}
		return launched(n) && b.movable(n) && (b.ofWeights(n) || ofInput(n))
	}
	for _, n := range slices.Backward(b.nodes) {
		if blocks[n.ID()] != "" || shared(n) {
			for _, a := range n.Args {
				read[a.ID] = true
			}
		}
	}
	from := 0 // first node of the current block
	for i := 1; i < len(b.nodes); i++ {
		before, n := b.nodes[i-1], b.nodes[i]
		together := before.Op != ir.OpRecv && before.Phase == n.Phase && before.Stage == n.Stage
		switch {
		case together && blocks[before.ID()] != "" && shared(n) && !readsAny(n, b.nodes[from:i]):
			copy(b.nodes[from+1:i+1], b.nodes[from:i])
			b.nodes[from] = n
			from++
		case !together || blocks[before.ID()] != blocks[n.ID()]:
			from = i
		}
	}
}

// ofInput reports whether a node only cuts an input of the batch: positions, where each row has its own.
func ofInput(n *ir.Node) bool {
	for n.Op == ir.OpSlice || n.Op == ir.OpFold {
		n = n.Args[0].Def
	}
	return n.Op == ir.OpInput
}

// leavesFirst moves nodes without an instruction to the front, so that they do not stand between nodes that
// have one. Weights that ZeRO shards are an example.
func (b *stageBuilder) leavesFirst() {
	at := func(n *ir.Node) int {
		if b.silent(n) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(b.nodes, func(x, y *ir.Node) int { return at(x) - at(y) })
}
