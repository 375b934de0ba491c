package planner

import (
	"slices"

	"github.com/autopar/autopar/ir"
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
		gain := limit
		if mine := best[p.degrees]; mine != nil {
			gain = min(gain, mine.time-1)
		}
		if p.offload != partition.OffloadNone && s.opts.Offload == "" {
			return slices.ContainsFunc(points, func(base *point) bool {
				t := &base.pipe.template
				same := sharding{t.ZeRO, t.ZeROGroup, t.SequenceParallel, p.offload}
				return base.degrees == p.degrees && t.Offload == partition.OffloadNone && same == p.sharding && base.slowed(gain, base.pipe.offloaded(p.sharding))
			})
		}
		f := family{p.degrees, p.sequence}
		yes, known := slowed[f]
		if !known {
			yes = slices.ContainsFunc(points, func(base *point) bool {
				return base.degrees == f.degrees && base.pipe.template.SequenceParallel == f.sequence && base.slowed(gain, base.pipe)
			})
			slowed[f] = yes
		}
		return yes
	})
}

// addCopies adds to the times of stages what a plan of the same degrees copies
// between device and host at least: moments in and out once a step, and parameters
// too, and in once more in each pass. Latencies are left out, and shards taken to
// be even.
func (s *skeleton) addCopies(times []stageTimes, sh sharding) {
	mesh := s.progs[kept].Mesh
	shards := func(from int) int64 {
		switch {
		case sh.zero < from:
			return 1
		case sh.group > 0:
			return int64(sh.group)
		}
		return int64(s.plan.DataParallel())
	}
	for i := range times {
		var bytes memoryShare // of the parameters, but for ZeRO
		for _, n := range s.progs[kept].Graph.Nodes {
			attr, ok := n.Attr.(ir.ParamAttr)
			if !ok || attr.State || n.Stage != i {
				continue
			}
			v := n.Results[0]
			spec := v.Spec
			spec[mesh.Axis(partition.AxisDP)] = ir.Placement{}
			size := mesh.Local(v.Type.Shape, spec, ir.Coord{}).Elems() * v.Type.DType.Size()
			if s.ofBlock[n] {
				bytes.block += size
			} else {
				bytes.fixed += size
			}
		}
		add := func(b body, copies, parts int64) body {
			time := func(size int64) cost.Picoseconds {
				return max(0, s.price.HostCopy(copies*size/parts)-s.price.HostCopy(0)-1)
			}
			p := part{line: line{fixed: time(bytes.fixed)}}
			for e := range extents {
				p.block[e] = time(bytes.block)
			}
			return append(b, p)
		}
		t := &times[i]
		t.update = add(t.update, 4, shards(1))
		if sh.offload != partition.OffloadParams {
			continue
		}
		t.update = add(t.update, 2, shards(3))
		for size := range 2 {
			t.forward[size] = add(t.forward[size], 1, shards(3))
			t.backward[size] = add(t.backward[size], 1, shards(3))
		}
	}
}

// slowed reports whether with memory without limit there could be plans of the
// pipeline that take at most the given time, with the work of like, which has that
// of the pipeline and perhaps more, and do not fit.
func (c *cutter) slowed(time cost.Picoseconds, like *pipeline) bool {
	opts := c.search.opts
	if opts.Recompute == RecomputeSearched {
		opts.Recompute = RecomputeNone // the least work
	}
	free := newBounds(like, 1<<62, opts, nil)
	if free.best() > time {
		return false
	}
	own := free
	if like != c.pipe {
		own = newBounds(c.pipe, 1<<62, opts, nil)
	}
	for i := range free.time {
		for n, t := range free.time[i] {
			if t <= time && c.bounds.time[i][n] > own.time[i][n] {
				return true
			}
		}
	}
	return false
}

// offloaded returns the pipeline with the copies of another sharding of the same
// degrees.
func (p *pipeline) offloaded(sh sharding) *pipeline {
	q := *p
	q.stages = slices.Clone(p.stages)
	for i := range q.stages {
		t := &q.stages[i]
		t.update = slices.Clip(t.update)
		for size := range 2 {
			t.forward[size], t.backward[size] = slices.Clip(t.forward[size]), slices.Clip(t.backward[size])
		}
	}
	p.skel.addCopies(q.stages, sh)
	return &q
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
