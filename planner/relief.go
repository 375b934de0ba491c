package planner

import (
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// Some ways to shard spare memory and nothing else: whatever the cut, their steps
// take no less time than those of plans of the same degrees without them. They are
// of use only where those others do not fit as they would like to.
//
//   - Offload, against the same plan without: it is that plan with copies in
//     between.
//   - ZeRO over groups of ranks, against ZeRO 1 over all of them. Both reduce and
//     gather once a step the same bytes on every link: a ring over n ranks moves
//     (n-1)/n of the value, and rings over groups of g and over n/g copies of a
//     g-th move (g-1)/g + (n/g-1)/(n/g)/g = (n-1)/n. From stage 2 on a group does
//     part of that in every micro-batch, at stage 3 it gathers twice. What a group
//     does save is the latency of one scalar's sum between nodes, the gradient
//     norm's, once a step: for that alone none is built.

// relieves reports whether an outline only spares memory, of those that the
// options leave. Where they leave nothing to compare it with it is one like others.
func (s *searcher) relieves(o outline) bool {
	grouped := o.group > 0 && s.opts.ZeROGroup == 0 && s.opts.ZeRO == nil
	return grouped || o.offload != partition.OffloadNone && s.opts.Offload == ""
}

// relieve looks at the pending outlines that spare memory and may have plans of
// at most the given time: where the limit on memory slows down plans of the same
// degrees that are known already, and leaves time to gain on the best of them.
func (s *searcher) relieve(points []*point, limit cost.Picoseconds, best map[degrees]*candidate) []*point {
	type family struct {
		degrees
		sequence bool
	}
	slowed := map[family]bool{}
	return s.add(points, func(p pending) bool {
		if !p.relief || p.floor > limit {
			return false
		}
		f := family{p.degrees, p.sequence}
		yes, known := slowed[f]
		if !known {
			gain := limit
			if mine := best[p.degrees]; mine != nil {
				gain = min(gain, mine.time-1)
			}
			for _, base := range points {
				yes = yes || base.degrees == f.degrees && base.pipe.template.SequenceParallel == f.sequence && base.slowed(gain)
			}
			slowed[f] = yes
		}
		return yes
	})
}

// slowed reports whether with memory without limit there could be plans of the
// pipeline that take at most the given time and do not fit.
func (c *cutter) slowed(time cost.Picoseconds) bool {
	opts := c.search.opts
	if opts.Recompute == RecomputeSearched {
		opts.Recompute = RecomputeNone // the least work
	}
	free := newBounds(c.pipe, 1<<62, opts, nil)
	if free.best() > time {
		return false
	}
	for i := range free.time {
		for n, t := range free.time[i] {
			if t <= time && c.bounds.time[i][n] > t {
				return true
			}
		}
	}
	return false
}

// noGroup says why no plan has ZeRO groups of a size.
func (s *searcher) noGroup(g int) error {
	o := s.opts
	o.ZeROGroup = 0
	most := 0
	for _, d := range allDegrees(o, s.graphs.blocks, s.batch, s.cluster) {
		most = max(most, d.dp*(o.RuntimeNGPUs/d.plan))
	}
	if most < 2 {
		return optionErrorf("zero-group", "%d needs data-parallel ranks; no dp x tp x pp of %s devices in %d has any with %d blocks and a global batch of %d",
			g, degree(o.PlanNGPUs), o.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	return optionErrorf("zero-group", "%d divides the data-parallel ranks of no dp x tp x pp of %s devices in %d; the nearest groups of %d ranks: %s",
		g, degree(o.PlanNGPUs), o.RuntimeNGPUs, most, partition.NearestGroups(most, g))
}
