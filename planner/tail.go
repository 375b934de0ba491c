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
	parts [][]line             // of the updates, by stage
	known [][]cost.Picoseconds // by stage and part, with a block: see from; nil where nobody has asked
	alone [][]cost.Picoseconds // the same: see own
}

func newTails(p *pipeline) *tails {
	t := &tails{pipe: p, known: make([][]cost.Picoseconds, len(p.stages)), alone: make([][]cost.Picoseconds, len(p.stages))}
	for i, s := range p.stages {
		var parts []line
		if i > 0 && s == p.stages[i-1] {
			parts = t.parts[i-1]
		} else {
			parts = make([]line, len(s.update))
			for k := range parts {
				parts[k].add(&s.update[k])
			}
		}
		t.parts = append(t.parts, parts)
	}
	return t
}

// of returns the tail of a stage with n blocks.
func (t *tails) of(stage, n int) cost.Picoseconds {
	own, left := t.own(stage, n), cost.Picoseconds(0)
	for k := len(own) - 1; k >= 0; k-- {
		left = max(own[k], max(left, t.sent(stage, k))+t.parts[stage][k].at(n, recomputation{}))
	}
	return left
}

// own is what a stage with n blocks takes from each part of its update on, if nobody waits:
// in order, or until its stream is done.
func (t *tails) own(stage, n int) []cost.Picoseconds {
	update := t.pipe.stages[stage].update
	stream := update[0].flow.outlasts(tally{n}, recomputation{})
	own, order := make([]cost.Picoseconds, len(update)), cost.Picoseconds(0)
	for k := len(update) - 1; k >= 0; k-- {
		order += t.parts[stage][k].at(n, recomputation{})
		if own[k] = order; stream != nil && update[k].kind == sim.Work {
			own[k] += stream[update[k].nth]
		}
	}
	return own
}

// from is what is left of the update of a stage with a block from its part k on, and what
// waits for that.
func (t *tails) from(stage, k int) cost.Picoseconds {
	if k == len(t.parts[stage]) {
		return 0
	}
	if t.known[stage] == nil {
		t.known[stage] = slices.Repeat([]cost.Picoseconds{-1}, len(t.parts[stage]))
		t.alone[stage] = t.own(stage, 1)
	}
	if t.known[stage][k] < 0 {
		t.known[stage][k] = max(t.alone[stage][k], max(t.from(stage, k+1), t.sent(stage, k))+t.parts[stage][k].at(1, recomputation{}))
	}
	return t.known[stage][k]
}

// sent is what follows for the stage that part k is sent to, nothing if it is no transfer.
func (t *tails) sent(stage, k int) cost.Picoseconds {
	x := &t.pipe.stages[stage].update[k]
	if x.kind != sim.Send {
		return 0
	}
	to := t.pipe.stages[stage+x.hop].update
	for k := range to {
		if y := &to[k]; y.kind == sim.Recv && y.hop == -x.hop && y.wire == x.wire {
			return t.from(stage+x.hop, k)
		}
	}
	panic("BUG: nobody receives what an update sends")
}
