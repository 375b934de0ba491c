package planner

import (
	"slices"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// This file decides when the search looks at outlines that only spare memory: with offload, or with stages that wait for what
// they send. With the same cut a step takes no less time than without, as it is the same step with copies or waits in between.
// So such an outline is of use only where the memory limit slows down the outline without, its base. explore.go calls relieve
// when nothing else is left.

// relieves reports whether an outline only spares memory: it has offload, or stages that wait, and the options leave that open.
// If they ask for it, there is no base to compare with, and it is an outline like others.
func (s *searcher) relieves(o outline) bool { return s.base(o) != o }

// base returns an outline without what only spares memory.
func (s *searcher) base(o outline) outline {
	if s.opts.Offload == "" {
		o.offload = partition.OffloadNone
	}
	if s.opts.OverlapP2P == "" {
		o.waits = false
	}
	return o
}

// sparing lists the outlines beside one that spare memory. They take no less than that does with unlimited memory.
func (s *searcher) sparing(p *pending) []*pending {
	if s.relieves(p.outline) {
		return nil
	}
	waits := []bool{p.waits}
	if p.pp > 1 && s.opts.OverlapP2P == "" {
		waits = []bool{false, true}
	}
	var all []*pending
	beside := p.outline
	for _, beside.offload = range offloads(s.opts, s.cluster) {
		for _, beside.waits = range waits {
			if beside != p.outline && beside.among(s.opts) {
				all = append(all, &pending{outline: beside, base: p, left: p.free()})
			}
		}
	}
	return all
}

// relieve lists the pending outlines that spare memory and may have plans of interest: where the memory limit slows down their
// base with the same micro-batches and schedule, and without it the base could be as good as the best plan of the same degrees.
// It marks the others idle.
func (s *searcher) relieve() []*pending {
	for _, p := range s.pending {
		if p.base == nil {
			continue
		}
		limit := s.found.limitOf(p.degrees)
		for i := range p.left {
			x := &p.left[i]
			x.idle = x.floor <= limit && !p.base.slowed(x, p.pieces, limit)
		}
	}
	return s.openList(true)
}

// slowed reports whether plans of an outline, with the size and schedule of x and so many parts, might take at most the given
// time with unlimited memory but not under the limit.
func (p *pending) slowed(x *sized, pieces int, time cost.Picoseconds) bool {
	for _, q := range p.parts {
		if (pieces == anyPieces || q.pieces == pieces) && q.slowed(x, pieces, time) {
			return true
		}
	}
	for _, mine := range p.rest() {
		if mine.size == x.size && mine.schedule == x.schedule {
			return mine.held(time)
		}
	}
	return slices.ContainsFunc(p.points, func(mine *point) bool {
		t := &mine.pipe.template
		return t.MicroBatch == x.size && t.Schedule == x.schedule && mine.slowed(time)
	})
}

// held reports whether plans might take at most the given time with unlimited memory, but take longer under the limit or do not
// fit.
func (x *sized) held(time cost.Picoseconds) bool { return x.free <= time && x.floor > time }

// slowed reports whether plans of the pipeline might take at most the given time with unlimited memory, but not under the
// limit: some stage with some number of blocks and some recomputation does not fit. (That its bound is larger with what does fit
// is not asked for, as bounds may be equal where times are not.)
func (c *cutter) slowed(time cost.Picoseconds) bool {
	if c.rough && c.chunks() == 1 {
		if c.least > time {
			return false
		}
		c.settle()
	}
	if c.pipe.stages == nil {
		return true // no cut fits
	}
	if c.chunks() > 1 {
		if !c.rough && c.least != never && slices.Max(c.choice) == 0 {
			return false
		}
		return c.freed().least <= time
	}
	free := c.freed()
	if free.least > time {
		return false
	}
	if c.bounds == nil {
		return true // no cut fits
	}
	for i := range free.bounds.stages {
		for n := free.bounds.stages[i].most(time); n > 0; n-- {
			for _, o := range free.bounds.options(i, n) {
				if o.time <= time && !c.bounds.fits(i, n, o.recomputation, c.learned) {
					return true
				}
			}
		}
	}
	return false
}

// freed are bounds of a pipeline with unlimited memory.
type freed struct {
	least  cost.Picoseconds
	bounds *bounds // nil with interleaving
}

// freed bounds the plans of the pipeline with unlimited memory.
func (c *cutter) freed() *freed {
	if c.free != nil {
		return c.free
	}
	c.free = &freed{}
	if p := c.pipe; c.chunks() > 1 {
		c.free.least = p.time(p.interleavedCut(c.recompute(), make([]int, len(c.choice))))
	} else {
		c.free.bounds = newBounds(p, 1<<62, c.search.opts, nil) // with recomputation too: a block that gathers ahead may be faster
		c.free.least = c.free.bounds.best()
	}
	return c.free
}

func (c *cutter) chunks() int { return c.pipe.template.Chunks() }
