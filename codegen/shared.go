package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// sharedFirst puts what blocks share and is made of no batch, such as the positions of a rank's tokens, before the first block that
// reads it, where anything runs beside something else. Inside that block it would be between nodes that in all others are next to
// each other, and part of what one block hides alone; the first block of a stage must be like the others. It comes before overlap,
// which then has it head the block's segment and wait for what is gathered for that.
func (b *stageBuilder) sharedFirst() {
	if !b.prog.Plan.Overlap && !b.prog.Plan.OverlapTP {
		return
	}
	b.leavesFirst()
	read := make([]bool, len(b.of)) // by a block, or what of such nodes is
	shared := func(n *ir.Node) bool {
		return n.Block() == "" && n.Phase <= ir.Backward && launched(n) && read[n.Results[0].ID] && b.movable(n) && b.ofWeights(n)
	}
	for _, n := range slices.Backward(b.nodes) {
		if n.Block() != "" || shared(n) {
			for _, a := range n.Args {
				read[a.ID] = true
			}
		}
	}
	from := 0 // of the block
	for i := 1; i < len(b.nodes); i++ {
		before, n := b.nodes[i-1], b.nodes[i]
		together := before.Op != ir.OpRecv && before.Phase == n.Phase && before.Stage == n.Stage
		switch {
		case together && before.Block() != "" && shared(n) && !readsAny(n, b.nodes[from:i]):
			copy(b.nodes[from+1:i+1], b.nodes[from:i])
			b.nodes[from] = n
			from++
		case !together || before.Block() != n.Block():
			from = i
		}
	}
}
