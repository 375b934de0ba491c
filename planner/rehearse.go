package planner

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// This file bounds interleaved plans with few micro-batches. Their cut is even and the order of their tasks is known, so the
// schedule is rehearsed with what each task takes at least. A step takes no less: a task that takes longer delays others or
// nothing. With many micro-batches the closed forms of leastOfEven are nearly as good.

// mostRehearsed is the most passes that are rehearsed.
const mostRehearsed = 4096

// rehearsal is a schedule that is rehearsed.
type rehearsal struct {
	*passage
	blocks  []int                 // by stage
	streams []streamed            // by position
	arrives [2][]cost.Picoseconds // by stage and micro-batch: when it has what it goes forward with, and back; 0 until it is sent
	ahead   []cost.Picoseconds    // by position: see aheadOf
	free    []cost.Picoseconds    // by position: when it has done its tasks so far
}

// rehearse returns the least time of a step of an interleaved outline, without what it may have to recompute. It is 0 where the
// schedule is not rehearsed.
func (s *searcher) rehearse(p *passage) cost.Picoseconds {
	stages := p.stages()
	if p.chunks == anyChunks || 2*p.m*stages > mostRehearsed {
		return 0
	}
	r := &rehearsal{passage: p, free: make([]cost.Picoseconds, p.pp)}
	for k := range stages {
		r.blocks = append(r.blocks, evenShare(s.graphs.blocks, stages, k))
	}
	for way := range r.arrives {
		r.arrives[way] = make([]cost.Picoseconds, stages*p.m)
	}
	orders := make([][]codegen.Task, p.pp)
	plan := &partition.Plan{Schedule: p.schedule, Interleave: p.chunks, Stages: make([]partition.Stage, stages)}
	for at := range p.pp {
		first, last := p.at(at)
		r.streams = append(r.streams, s.streamed(p, &first[inBlock]))
		r.ahead = append(r.ahead, aheadOf(first, last))
		orders[at] = codegen.Order(plan, at, p.m, true)
	}
	for moved := true; moved; {
		moved = false
		for at := range orders {
			for r.run(at, orders[at][0]) {
				orders[at], moved = orders[at][1:], true
			}
		}
	}
	var bound cost.Picoseconds
	for at := range orders {
		bound = max(bound, r.end(at))
	}
	return bound
}

// run does a task if what it needs is there.
func (r *rehearsal) run(at int, t codegen.Task) bool {
	if t.Phase == ir.Update {
		return false
	}
	stage, stages := t.Chunk*r.pp+at, len(r.blocks)
	way, next := 0, stage+1
	if t.Phase == ir.Backward {
		way, next = 1, stage-1
	}
	arrived := r.arrives[way][stage*r.m+t.MicroBatch]
	if arrived == 0 && (way == 1 || stage > 0) {
		return false
	}
	of, last := r.at(at)
	size := whole
	if t.MicroBatch == r.m-1 {
		of, size = last, rest
	}
	// What the pass does: up to what it sends, to its end, and on the stream.
	var sends, ends, stream cost.Picoseconds
	add := func(x *partTimes, n cost.Picoseconds) {
		if way == 0 {
			sends += n * x.forward
			ends += n * x.forward
			stream += n * x.gathers
			return
		}
		sends += n * (x.way - x.forward)
		ends += n * (x.all - x.forward)
		stream += n * (x.regathers + x.reduces)
	}
	add(&of[inBlock], cost.Picoseconds(r.blocks[stage]))
	if stage == 0 {
		add(&of[beforeBlocks], 1)
	}
	if stage == stages-1 {
		add(&of[afterBlocks], 1)
	}
	x := &r.streams[at]
	var lead, late, ahead cost.Picoseconds // the first gather, and the last reduction, which nothing hides
	switch {
	case way == 0 && stage > 0:
		lead = max(0, x.gather-2*x.slow.gather)
	case way == 1:
		if ahead = r.ahead[at]; stage < stages-1 {
			lead = max(0, x.regather-2*x.slow.regather)
		}
		if stage > 0 {
			late = max(0, x.reduce-x.slow.reduce-x.late)
		}
	}
	began := r.free[at]
	from := max(began+lead, arrived-ahead)
	out := from + sends
	r.free[at] = max(from+ends+late, began+stream)
	if next >= 0 && next < stages {
		transfer := r.transfer(at, size, way)
		if out += transfer; !r.posts {
			r.free[at] = max(r.free[at], from+ends+transfer)
		}
	} else if next == stages { // the last stage goes back at once
		next, way = stage, 1
	}
	if next >= 0 {
		r.arrives[way][next*r.m+t.MicroBatch] = max(1, out)
	}
	return true
}

// transfer is the time in which a position sends to the next stage or to the one before: see sends.
func (r *rehearsal) transfer(at, size, way int) cost.Picoseconds {
	all, n := r.sent[size][at].forward, r.chunks
	if way == 1 {
		all = r.sent[size][at].returned()
	}
	if way == 0 && at == r.pp-1 || way == 1 && at == 0 {
		n--
	}
	return all / cost.Picoseconds(n)
}

// end is when a step ends by what a position has left to do after its passes. What of its update may run in passes already may have
// been done while the position waited.
func (r *rehearsal) end(at int) cost.Picoseconds {
	_, last := r.at(at)
	n := 0
	for stage := at; stage < len(r.blocks); stage += r.pp {
		n += r.blocks[stage]
	}
	return r.free[at] + r.finish(at, n) - cost.Picoseconds(n)*last[inBlock].closing
}
