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
	orders  [][]codegen.Task      // by position
	blocks  []int                 // by stage
	arrives [2][]cost.Picoseconds // by stage and micro-batch: when it has what it goes forward with, and back; 0 until it is sent
	at      []rehearsing          // by position
}

// rehearsing is a position in a rehearsal.
type rehearsing struct {
	streamed
	ahead cost.Picoseconds // see aheadOf
	free  cost.Picoseconds // when it has done its tasks so far
	done  int              // number of those
}

// rehearse returns the least time of a step of an interleaved outline, without what it may have to recompute. It is 0 where the
// schedule is not rehearsed.
func (s *searcher) rehearse(p *passage) cost.Picoseconds {
	if p.chunks == anyChunks || 2*p.m*p.stages() > mostRehearsed {
		return 0
	}
	r := s.rehearsal(p)
	r.passage = p
	for way := range r.arrives {
		clear(r.arrives[way])
	}
	for at := range r.at {
		first, last := p.position(at)
		r.at[at] = rehearsing{streamed: s.streamed(p, &first[inBlock]), ahead: aheadOf(first, last)}
	}
	for moved := true; moved; {
		moved = false
		for at := range r.at {
			for r.run(at, r.orders[at][r.at[at].done]) {
				r.at[at].done++
				moved = true
			}
		}
	}
	var bound cost.Picoseconds
	for at := range r.at {
		bound = max(bound, r.end(at))
	}
	return bound
}

// rehearsal returns that of all outlines with as many positions, chunks and micro-batches.
func (s *searcher) rehearsal(p *passage) *rehearsal {
	key := roomsKey{p.schedule, p.pp, p.chunks, p.m}
	r := s.rehearsals[key]
	if r != nil {
		return r
	}
	stages := p.stages()
	r = &rehearsal{at: make([]rehearsing, p.pp)}
	for k := range stages {
		r.blocks = append(r.blocks, evenShare(s.graphs.blocks, stages, k))
	}
	for way := range r.arrives {
		r.arrives[way] = make([]cost.Picoseconds, stages*p.m)
	}
	plan := &partition.Plan{Schedule: p.schedule, Interleave: p.chunks, Stages: make([]partition.Stage, stages)}
	for at := range p.pp {
		r.orders = append(r.orders, codegen.Order(plan, at, p.m, true))
	}
	s.rehearsals[key] = r
	return r
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
	of, last := r.position(at)
	size := whole
	if t.MicroBatch == r.m-1 {
		of, size = last, rest
	}
	// What the pass does: up to what it sends, to its end, and on the stream.
	var sends, ends, stream cost.Picoseconds
	add := func(x *partTimes, n cost.Picoseconds) {
		if way == 0 {
			sends += n * (x.forward - x.moved)
			ends += n * (x.forward - x.moved)
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
	x := &r.at[at]
	var lead, late, ahead cost.Picoseconds // see [streamed.within], and aheadOf
	switch {
	case way == 0 && stage > 0:
		lead, ahead = x.firstGather(), 2*x.slow.gather
	case way == 1:
		if ahead = x.ahead; stage < stages-1 {
			lead = x.firstRegather()
		}
		if stage > 0 {
			late = x.lastReduce()
		}
	}
	began := x.free
	from := max(began+lead, arrived-ahead)
	out := from + sends
	x.free = max(from+ends+late, began+stream)
	if next >= 0 && next < stages {
		transfer := r.transfer(at, size, way)
		if out += transfer; !r.posts {
			x.free = max(x.free, from+ends+transfer)
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
	_, last := r.position(at)
	n := 0
	for stage := at; stage < len(r.blocks); stage += r.pp {
		n += r.blocks[stage]
	}
	return r.at[at].free + r.finish(at, n, false) - cost.Picoseconds(n)*last[inBlock].closing
}
