package planner

import (
	"math"
	"slices"

	"github.com/autopar/autopar/codegen"
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
//     norm's, once a step: for that alone none is built. That holds for one chunk
//     per rank: of several, those that are done early may reduce while the rank
//     would wait. Beside interleaving groups are not searched. With overlap what is
//     moved in every micro-batch may cost nothing, and groups are as others.

// relieves reports whether an outline only spares memory, of those that the
// options leave. Where they leave nothing to compare it with it is one like others.
func (s *searcher) relieves(o outline) bool {
	grouped := o.group > 0 && !o.overlap && s.opts.ZeROGroup == 0 && s.opts.ZeRO == nil
	return grouped || o.offload != partition.OffloadNone && s.opts.Offload == ""
}

// sparing lists the outlines that spare memory beside one that is looked at.
func (s *searcher) sparing(o outline) []*pending {
	var all []*pending
	groups := []int{o.group}
	replicas := o.dp * (s.opts.RuntimeNGPUs / o.plan)
	if o.group == 0 && o.offload == partition.OffloadNone {
		groups = zeroGroups(s.opts, o.degrees, o.zero, replicas, o.chunks, s.cluster)
	}
	for _, group := range groups {
		for _, offload := range offloads(s.opts, s.cluster) {
			x := o
			x.group, x.offload = group, offload
			if x != o && x.among(s.opts) && s.relieves(x) && o.offload == partition.OffloadNone && (x.group == o.group || x.offload == o.offload) {
				all = append(all, &pending{outline: x, relief: true, left: slices.Clone(s.sizedOf(x))})
			}
		}
	}
	return all
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
	held := map[degrees][]*pending{}
	for _, p := range s.pending {
		if p.sighted {
			held[p.degrees] = append(held[p.degrees], p)
		}
	}
	of := map[degrees][]*point{}
	for _, p := range points {
		of[p.degrees] = append(of[p.degrees], p)
	}
	// base reports whether a plan without what p spares is slowed down by the limit,
	// even with what p copies for an offload.
	base := func(p *pending, what partition.Offload) bool {
		gain := limit
		if mine := best[p.degrees]; mine != nil {
			gain = min(gain, mine.time-1)
		}
		if p.offload != partition.OffloadNone && s.opts.Offload == "" {
			bare := p.outline
			bare.offload = partition.OffloadNone
			if slices.ContainsFunc(held[p.degrees], func(base *pending) bool { return base.outline == bare && base.held(gain) }) {
				return true
			}
			return slices.ContainsFunc(of[p.degrees], func(base *point) bool {
				t := &base.pipe.template
				same := sharding{t.ZeRO, t.ZeROGroup, t.SequenceParallel, t.Overlap, p.offload}
				return t.Offload == partition.OffloadNone && same == p.sharding && base.chunks() == max(p.chunks, 1) && base.slowed(gain, what)
			})
		}
		f := family{p.degrees, p.sequence}
		yes, known := slowed[f]
		if !known {
			yes = slices.ContainsFunc(held[p.degrees], func(base *pending) bool {
				return base.chunks <= 1 && base.sequence == f.sequence && base.held(gain)
			}) || slices.ContainsFunc(of[p.degrees], func(base *point) bool {
				return base.chunks() == 1 && base.pipe.template.SequenceParallel == f.sequence && base.slowed(gain, partition.OffloadNone)
			})
			slowed[f] = yes
		}
		return yes
	}
	return s.add(points, limit, true,
		func(p *pending) bool { return base(p, partition.OffloadNone) },
		func(p *pending) bool { return base(p, p.offload) })
}

// held reports whether plans of an outline that might take at most the given time take
// longer because of the limit on memory, or do not fit.
func (p *pending) held(time cost.Picoseconds) bool {
	return slices.ContainsFunc(p.left, func(x sized) bool { return x.free <= time && x.floor > time })
}

// copies is what a stage copies between device and host, as times of stretches of
// work.
type copies [ir.NumPhases + 1]part // by phase; input is the backward pass without weight

// copiesOf prices what the stages of a skeleton without offload copy with it. In the
// backward pass a block that is recomputed is fetched before its gradient comes, so
// one block may be ahead of the rest: its copies are left out.
func (s *skeleton) copiesOf(what partition.Offload) []copies {
	if all, known := s.copies[what]; known {
		return all
	}
	few := map[cost.Kinds][]copies{}
	g := partition.Offloaded(s.of.prog(kept).Graph, what)
	var all []copies
	for stage, like := range s.like {
		kinds := s.price.Kinds(stage)
		if few[kinds] == nil {
			few[kinds] = s.copiesOn(g, s.price.OnKinds(kinds))
		}
		all = append(all, few[kinds][like])
	}
	s.copies[what] = all
	return all
}

// copiesOn prices what the stages of the blueprint copy, by stage.
func (s *skeleton) copiesOn(g *ir.Graph, price *cost.Program) []copies {
	few := make([]copies, len(s.of.plan.Stages))
	mesh := s.mesh(s.batch)
	apart := partition.WeightGrads(g)
	for _, n := range g.Nodes {
		if !codegen.HostCopy(n.Op) {
			continue
		}
		v := n.Results[0]
		time := price.HostCopy(mesh.Local(v.Type.Shape, v.Spec, ir.Coord{}).Elems() * v.Type.DType.Size())
		passes := []ir.Phase{n.Phase}
		switch {
		case n.Phase == ir.Backward && apart[n]:
			passes = append(passes, ir.WeightGrad)
		case n.Phase == ir.Backward:
			passes = append(passes, input)
		}
		for _, pass := range passes {
			p := &few[n.Stage][pass]
			switch block := n.Block(); {
			case block == "":
				p.fixed += time
			case n.Phase == ir.Update && s.plan.Chunks() > 1:
				p.chunks[s.of.chunkOf[block]] += time
			default:
				for e := range extents {
					p.block[e] += time
				}
				if n.Phase == ir.Backward {
					p.fixed -= time
				}
			}
		}
	}
	return few
}

// slowed reports whether with memory without limit there could be plans of the
// pipeline, with what they copy for an offload, that take at most the given time,
// and without that offload do not fit.
func (c *cutter) slowed(time cost.Picoseconds, what partition.Offload) bool {
	if c.pipe.stages == nil {
		return true // it does not fit at all
	}
	if c.chunks() > 1 {
		if c.least != never && slices.Max(c.choice) == 0 {
			return false
		}
		return c.freed(what).least <= time
	}
	if c.freed(partition.OffloadNone).least > time || c.freed(what).least > time {
		return false
	}
	if c.bounds == nil {
		return true // it does not fit at all
	}
	free := c.freed(partition.OffloadNone).time
	for i, times := range c.freed(what).time {
		for n, t := range times {
			if t <= time && c.bounds.time[i][n] > free[i][n] {
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

// freed bounds the plans of the pipeline with memory without limit, with what they copy
// for an offload.
func (c *cutter) freed(what partition.Offload) *freed {
	if known := c.free[what]; known != nil {
		return known
	}
	opts := c.search.opts
	if c.pipe.stages == nil {
		c.pipe.stages = c.pipe.skel.times(c.pipe.template.MicroBatch, c.pipe.template.Schedule)
	}
	like := c.pipe
	if what.Moves() {
		like = c.pipe.offloaded(what)
	}
	f := &freed{}
	if c.chunks() > 1 {
		f.least = like.time(like.interleavedCut(opts.Recompute, make([]int, len(c.choice))))
	} else {
		if opts.Recompute == RecomputeSearched {
			opts.Recompute = RecomputeNone // the least work
		}
		b := newBounds(like, 1<<62, opts, nil)
		f.least, f.time = b.best(), b.time
	}
	if c.free == nil {
		c.free = map[partition.Offload]*freed{}
	}
	c.free[what] = f
	return f
}

// offloaded returns the pipeline with what copies take at least when the same plans
// are offloaded. Here a pass copies at its end, behind its transfers, so that no other
// stage waits for it longer than it does. Like all that passes do, on a crowded machine
// it takes the share of its time that is left by ranks which wait.
func (p *pipeline) offloaded(what partition.Offload) *pipeline {
	q := *p
	q.stages = nil
	type alike struct {
		times *stageTimes
		like  int
	}
	known := map[alike]*stageTimes{}
	busy := p.skel.price.Busy(p.template.Schedule, p.template.PP(), p.template.Chunks(), p.microBatches)
	for i, all := range p.skel.copiesOf(what) {
		key := alike{p.stages[i], p.skel.like[i]}
		if t := known[key]; t != nil {
			q.stages = append(q.stages, t)
			continue
		}
		t := new(stageTimes)
		*t = *p.stages[i]
		known[key] = t
		q.stages = append(q.stages, t)
		for _, pass := range passes() {
			for size := range 2 {
				b := &t.pass(pass)[size]
				*b = append(slices.Clip(*b), all[pass].scaled(busy))
			}
		}
		t.update = append(slices.Clip(t.update), all[ir.Update])
	}
	return &q
}

// scaled returns the times multiplied by a share, rounded down.
func (p part) scaled(share float64) part {
	if share == 1 {
		return p
	}
	scale := func(t cost.Picoseconds) cost.Picoseconds { return cost.Picoseconds(math.Floor(float64(t) * share)) }
	p.fixed = scale(p.fixed)
	for e := range extents {
		p.block[e] = scale(p.block[e])
	}
	return p
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
