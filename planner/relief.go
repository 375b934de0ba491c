package planner

import (
	"math"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
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
	// rouse leaves idle all sizes but those of which plans without what p spares are slowed
	// down by the limit, even with what p copies for an offload.
	rouse := func(p *pending, what partition.Offload) bool {
		limit, gain := s.found.limitOf(p.degrees), s.found.gainOf(p.degrees)
		for i := range p.left {
			if x := &p.left[i]; x.least() <= limit {
				x.idle = !p.base.slowed(x, p.pieces, gain, what)
			}
		}
		return p.floor() <= limit
	}
	for _, p := range s.pending {
		for i := range p.left {
			p.left[i].idle = false
		}
	}
	return s.sight(true,
		func(p *pending) bool { return rouse(p, partition.OffloadNone) },
		func(p *pending) bool { return rouse(p, p.offload) })
}

// slowed reports whether the limit on memory slows down plans of an outline with the size
// and schedule of x, and so many parts, so that they do not take at most the given time, with what they would
// copy for an offload.
func (p *pending) slowed(x *sized, pieces int, time cost.Picoseconds, what partition.Offload) bool {
	for _, q := range p.parts {
		if (pieces == anyPieces || q.pieces == pieces) && q.slowed(x, pieces, time, what) {
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
		return t.MicroBatch == x.size && t.Schedule == x.schedule && mine.slowed(time, what)
	})
}

// held reports whether plans that might take at most the given time take longer because of
// the limit on memory, or do not fit.
func (x *sized) held(time cost.Picoseconds) bool { return x.free <= time && x.floor > time }

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
	if c.pipe.stages == nil {
		c.pipe.stages = c.pipe.skel.times(c.pipe.template.MicroBatch, c.pipe.template.Schedule)
	}
	like := c.pipe
	if what.Moves() {
		like = c.pipe.offloaded(what)
	}
	f := &freed{}
	if c.chunks() > 1 {
		f.least = like.time(like.interleavedCut(c.search.opts.recompute(like.skel.outline.replicate), make([]int, len(c.choice))))
	} else {
		b := newBounds(like, 1<<62, c.search.opts, nil) // a block that gathers ahead may be faster recomputed
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
// stage waits for it longer than it does; an update that does not wait for the norm of gradients copies
// before it does wait for others, or is taken not to copy. Like all that passes do, on a crowded machine
// it takes the share of its time that is left by ranks which wait.
func (p *pipeline) offloaded(what partition.Offload) *pipeline {
	q := *p
	q.stages, q.frame = nil, nil
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
		for _, pass := range []ir.Phase{ir.Forward, ir.Backward, input, ir.WeightGrad} {
			for size := range 2 {
				b := &t.pass(pass)[size]
				*b = append(slices.Clip(*b), all[pass].scaled(busy))
			}
		}
		if at := p.skel.copiesAt(i, t.update); at >= 0 {
			t.update = slices.Insert(slices.Clip(t.update), at, all[ir.Update])
		}
	}
	return &q
}

// copiesAt returns where the update of a position copies at the earliest, with every part before that others wait for; -1 if it
// waits between those.
func (s *skeleton) copiesAt(position int, update body) int {
	is := func(op ir.Op) func(codegen.Instr) bool {
		return func(in codegen.Instr) bool { return in.Node.Op == op }
	}
	instrs := s.stage(kept, position, ir.Update)
	first := slices.IndexFunc(instrs, is(ir.OpAdamW))
	if first < 0 || !slices.ContainsFunc(instrs[first:], is(ir.OpRecv)) {
		return len(update)
	}
	at := len(update)
	for at > 0 && update[at-1].kind != sim.Send {
		at--
	}
	if slices.ContainsFunc(update[:at], func(p part) bool { return p.kind == sim.Recv }) {
		return -1
	}
	return at
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
