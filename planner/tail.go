package planner

import (
	"slices"

	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// This file bounds from below the time from the last pass of a stage to the end of the step, for newBounds (bound.go). Updates
// wait for each other: all stages need the norm of all gradients before they change a weight, and of a table that the first
// and the last stage share (tied embeddings), one sums the gradient and sends back the weights. A tail is the longest chain of
// events from the update of a stage to the end of the step. Other stages on that chain count with one block: they have at
// least that.

// tails are the tails of a pipeline's stages.
type tails struct {
	pipe  *pipeline
	parts [][]line             // of updates, by stage: transfers, and what lies between them
	known [][]cost.Picoseconds // by stage and part: see from, with one block; nil until it is asked for
	alone [][]cost.Picoseconds // by stage and part: see own, with one block
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
				parts[k] = parts[k].plus(s.update[k].slow)
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

// inOrder is what the update of a stage with n blocks has to do in order: no tail is shorter.
func (t *tails) inOrder(stage, n int) cost.Picoseconds {
	var order cost.Picoseconds
	for k := range t.parts[stage] {
		order += t.parts[stage][k].at(n, recomputation{})
	}
	return order
}

// own returns, for each part of the update of a stage with n blocks, the time from its start on if the stage waits for
// nobody: in order, or until its stream is done.
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

// from returns the time from part k of the update of a stage with one block to the end of the step.
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

// sent is the time from the receive of part k, at the stage that it is sent to, to the end of the step; 0 for other parts.
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
