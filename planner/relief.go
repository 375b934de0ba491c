package planner

import (
	"slices"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// An offload spares memory and nothing else: whatever the cut, a step takes no less time
// than that of the same plan without it, which it is with copies in between. So it is of
// use only where the other does not fit as it would like to.

// relieves reports whether an outline only spares memory, of those that the
// options leave. Where they leave nothing to compare it with it is one like others.
func (s *searcher) relieves(o outline) bool {
	return o.offload != partition.OffloadNone && s.opts.Offload == ""
}

// sparing lists the outlines that spare memory beside one that is looked at, which take no
// less time than that with memory without limit.
func (s *searcher) sparing(p *pending) []*pending {
	var all []*pending
	for _, x := range offloads(s.opts, s.cluster) {
		beside := p.outline
		beside.offload = x
		if p.offload == partition.OffloadNone && s.relieves(beside) && beside.among(s.opts) {
			all = append(all, &pending{outline: beside, base: p, left: p.free()})
		}
	}
	return all
}

// relieve lists the pending outlines that spare memory and may have plans of
// interest: where the limit on memory slows down the same plans without
// what they spare, and leaves time to gain on the best of the same degrees.
func (s *searcher) relieve() []*pending {
	for _, p := range s.pending {
		if p.base == nil {
			continue
		}
		limit, gain := s.found.limitOf(p.degrees), s.found.gainOf(p.degrees)
		for i := range p.left {
			x := &p.left[i]
			x.idle = x.floor <= limit && !p.base.slowed(x, p.pieces, gain)
		}
	}
	return s.openList(true)
}

// slowed reports whether the limit on memory slows down plans of an outline with the size
// and schedule of x, and so many parts, so that they do not take at most the given time.
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

// held reports whether plans that might take at most the given time take longer because of
// the limit on memory, or do not fit.
func (x *sized) held(time cost.Picoseconds) bool { return x.free <= time && x.floor > time }

// slowed reports whether with memory without limit there could be plans of the
// pipeline that take at most the given time, and with it do not fit.
func (c *cutter) slowed(time cost.Picoseconds) bool {
	if c.rough && c.chunks() == 1 {
		if c.least > time {
			return false
		}
		c.settle()
	}
	if c.pipe.stages == nil {
		return true // it does not fit at all
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
		return true // it does not fit at all
	}
	for i, times := range free.time {
		for n, t := range times {
			if t <= time && c.bounds.time[i][n] > t {
				return true
			}
		}
	}
	return false
}

// freed is what bounds a pipeline with memory without limit.
type freed struct {
	least cost.Picoseconds
	time  [][]cost.Picoseconds // that of [bounds]; nil with interleaving
}

// freed bounds the plans of the pipeline with memory without limit.
func (c *cutter) freed() *freed {
	if c.free != nil {
		return c.free
	}
	c.free = &freed{}
	if p := c.pipe; c.chunks() > 1 {
		c.free.least = p.time(p.interleavedCut(c.recompute(), make([]int, len(c.choice))))
	} else {
		b := newBounds(p, 1<<62, c.search.opts, nil) // a block that gathers ahead may be faster recomputed
		c.free.least, c.free.time = b.best(), b.time
	}
	return c.free
}

func (c *cutter) chunks() int { return c.pipe.template.Chunks() }

// noGroup says why no plan has ZeRO groups of a size.
func (s *searcher) noGroup(g int) error {
	o := s.opts
	o.ZeROGroup = 0
	most := 0
	for _, d := range allDegrees(o, s.graphs.blocks, s.batch, s.contexts, s.cluster) {
		most = max(most, d.dp*(o.RuntimeNGPUs/d.plan))
	}
	if most < 2 {
		return optionErrorf("zero-group", "%d needs data-parallel ranks; no dp x tp x pp of %s devices in %d has any with %d blocks and a global batch of %d",
			g, degree(o.PlanNGPUs), o.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	return optionErrorf("zero-group", "%d divides the data-parallel ranks of no dp x tp x pp of %s devices in %d; the nearest groups of %d ranks: %s",
		g, degree(o.PlanNGPUs), o.RuntimeNGPUs, most, partition.NearestGroups(most, g))
}
