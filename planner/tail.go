package planner

import (
	"slices"

	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// tails bounds from below what a step takes from the passes of a stage on. Updates wait for
// each other: all stages need the norm of all gradients before they change a weight, and of a
// table that the first stage and the last one have, one sums the gradient and hands back the
// weights. So the end of the step is as far from a stage as the longest chain of events is
// that leads there from its update, on which other stages have a block each.
type tails struct {
	pipe  *pipeline
	known [][]cost.Picoseconds // by stage and part of its update; -1 where nobody has asked
}

func newTails(p *pipeline) *tails {
	t := &tails{pipe: p}
	for _, s := range p.stages {
		t.known = append(t.known, slices.Repeat([]cost.Picoseconds{-1}, len(s.update)))
	}
	return t
}

// of returns the tail of a stage with n blocks.
func (t *tails) of(stage, n int) cost.Picoseconds {
	update := t.pipe.stages[stage].update
	left := cost.Picoseconds(0)
	for k := len(update) - 1; k >= 0; k-- {
		left = max(left, t.sent(stage, &update[k])) + update[k].at(n, recomputation{})
	}
	return left
}

// from is what is left of the update of a stage with a block from its part k on, and what
// waits for that.
func (t *tails) from(stage, k int) cost.Picoseconds {
	update := t.pipe.stages[stage].update
	if k == len(update) {
		return 0
	}
	if t.known[stage][k] < 0 {
		t.known[stage][k] = max(t.from(stage, k+1), t.sent(stage, &update[k])) + update[k].at(1, recomputation{})
	}
	return t.known[stage][k]
}

// sent is what follows for the other stage when a part has been sent to it, nothing if the
// part is no transfer.
func (t *tails) sent(stage int, x *part) cost.Picoseconds {
	if x.kind != sim.Send {
		return 0
	}
	k := slices.IndexFunc(t.pipe.stages[stage+x.hop].update, func(y part) bool {
		return y.kind == sim.Recv && y.hop == -x.hop && y.wire == x.wire
	})
	return t.from(stage+x.hop, k)
}
