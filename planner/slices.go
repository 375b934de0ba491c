package planner

import (
	"errors"
	"maps"
	"slices"
	"sort"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// This file searches the number of slices of the loss (chunked cross entropy: [partition.Plan.LossSlices]). Slices spare
// memory of the last position, as logits are there for one slice at a time. They cost time: products of fewer rows take no
// less for as many rows, the gradient of the head's weight is added up once a slice, and there is more to launch. So a plan
// with 2, 4, 8 or 16 slices is in the space only if the same plan with half as many does not fit.
//
// The search looks at twice as many slices beside a pipeline (slice) where the memory limit slows down its last position: by
// the bound of its memory (withoutHead), or by its exact layout, which is made only if more slices might beat the best plan
// (unlaid, layLast). What has led there holds for any number of slices: floors leave out what differs outside of blocks
// (work.sliced), and the recomputation that they add is necessary for blocks alone. In time, more slices save at most inHead.

// mostSlices is the most slices that are searched, in powers of two.
const mostSlices = 16

// slicesOf is the number of slices of a plan as outlines have it, 0 for one.
func slicesOf(p *partition.Plan) int {
	if p.LossSlices > 1 {
		return p.LossSlices
	}
	return 0
}

// slices is the number that the options fix, 0 for one.
func (o Options) slices() int {
	if o.LossSlices > 1 {
		return o.LossSlices
	}
	return 0
}

// checkSlices checks that a graph, and that of the evaluation, can have the slices that the options fix.
func (o Options) checkSlices(g *ir.Graph) error {
	for _, g := range []*ir.Graph{g, o.Eval} {
		_, err := partition.SliceLoss(g, o.LossSlices)
		var bad *partition.PlanError // about the key of a plan
		if errors.As(err, &bad) {
			return optionErrorf("loss-slices", "%s", bad.Msg)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// searchesSlices reports whether the options leave the number of slices open.
func (o Options) searchesSlices() bool { return o.LossSlices == 0 && o.Policy == AutoDist }

// sliceCounts lists the numbers of slices that the search tries besides one.
func (s *searcher) sliceCounts() []int {
	if s.counts != nil || !s.opts.searchesSlices() {
		return s.counts
	}
	s.counts = []int{}
	of := []*shrunken{s.graphs}
	if s.opts.Eval != nil {
		of = append(of, s.evaluation())
	}
	for n := 2; n <= mostSlices; n *= 2 {
		for _, x := range of {
			one := x.with(x.scale)
			if cut, err := partition.SliceLoss(one, n); err != nil || len(cut.Nodes) == len(one.Nodes) {
				return s.counts // slices would be unequal, or there is no loss
			}
		}
		s.counts = append(s.counts, n)
	}
	return s.counts
}

// slicesBeside lists the numbers of slices that the space has besides that of an outline.
func (s *searcher) slicesBeside(o outline) []int {
	if o.cp > 1 {
		return nil
	}
	return s.sliceCounts()
}

// slice adds to what is pending outlines with twice as many slices, for points where the memory limit slows down the last
// position and that might then beat the best plan of the same degrees. It reports whether it added any.
func (s *searcher) slice(points []*point) bool {
	before := len(s.pending)
	for _, p := range points {
		if p.sliced || p.cp > 1 || !s.opts.searchesSlices() {
			continue
		}
		if p.rough && p.lastRoomy() {
			p.sliced = true // it needs none
			continue
		}
		if p.rough { // its bound is without the recomputation that memory makes necessary, which can only raise it
			if p.bare == 0 {
				p.bare = p.least - p.inHead()
			}
			if p.bare > s.found.gainOf(p.degrees) {
				continue
			}
			p.settle()
		}
		gain := s.found.gainOf(p.degrees)
		// Layouts may show that more plans do not fit. Those that cannot beat the best of all degrees are not worth one.
		for p.withoutHead() > gain && p.layLast(s.found.gain()) {
		}
		if p.withoutHead() > gain {
			continue
		}
		least := min(p.withoutHead(), p.unlaid())
		p.sliced = true
		o, t := p.outline(), &p.pipe.template
		if o.slices = 2 * max(1, o.slices); !slices.Contains(s.sliceCounts(), o.slices) {
			continue
		}
		s.pending = append(s.pending, &pending{
			outline: o, spared: true, // what spares memory beside one slice has slices, too
			left: []sized{{size: t.MicroBatch, schedule: t.Schedule, free: least, floor: least, level: refinedLimited}},
		})
	}
	return len(s.pending) > before
}

// withoutHead bounds plans with more slices, given that they do not fit with the number of the pipeline. It counts the memory
// that the last position has without the head, and the time that plans take with this number of slices, less inHead: no
// number of slices has less of either. It is never where there are no such plans: the last position fits without recomputation.
func (c *cutter) withoutHead() cost.Picoseconds {
	knows := len(c.learned) // and what is recomputed: the bound follows from both, which only grow
	for _, n := range c.choice {
		knows += n
	}
	if c.bare == 0 || c.knew != knows {
		c.bare, c.knew = c.leastWithoutHead(), knows
	}
	return c.bare
}

// leastWithoutHead computes withoutHead, which remembers it until more is known.
func (c *cutter) leastWithoutHead() cost.Picoseconds {
	last := c.pipe.template.PP() - 1
	if c.shell {
		if c.shelled() && !c.pipe.fits(c.shellsWithoutHead(), c.search.limit) {
			return never
		}
		c.complete()
	}
	p := *c.pipe
	lastShort := c.lastShort()
	if !slices.Contains(lastShort, true) {
		return never
	}
	p.memory = slices.Clone(p.memory)
	p.headless = true
	p.leaveHead()
	p.stages = nil // they are priced once it fits, as in settle
	if !p.mayFit(c.search.limit) {
		return never
	}
	p.stages = p.skel.times(p.template.MicroBatch, p.template.Schedule)
	var least cost.Picoseconds
	if c.chunks() > 1 {
		like := *c
		like.pipe, like.choice = &p, slices.Clone(c.choice)
		if like.choice[last] = 0; !like.choose() || c.least < never && slices.Equal(like.choice, c.choice) {
			return never
		}
		least = p.time(p.interleavedCut(c.recompute(), like.choice))
	} else {
		others := maps.Clone(c.learned)
		maps.DeleteFunc(others, func(t tried, _ bool) bool { return t.stage == last })
		b := newBounds(&p, c.search.limit, c.search.opts, others)
		b.leave(last, lastShort)
		if least = b.best(); least < never {
			least = b.ofAll()
		}
	}
	if least < never {
		least -= c.inHead()
	}
	return least
}

// shellsWithoutHead is shells without what the head and the loss have at the last position.
func (c *cutter) shellsWithoutHead() []stageMemory {
	p := *c.pipe
	p.memory = c.shells()
	m := &p.memory[len(p.memory)-1]
	slot := m.moreSlot[kept]
	p.leaveHead()
	m.leaveSlots(slot)
	return p.memory
}

// lastShort tells, by number of blocks less one, whether the last position must recompute something with so many, or does not
// fit, among the numbers that the other positions leave to it. Interleaved schedules have one number.
func (c *cutter) lastShort() []bool {
	p, last := c.pipe, c.pipe.template.PP()-1
	if c.chunks() > 1 {
		return []bool{c.least == never || c.choice[last] > 0}
	}
	all := make([]bool, p.skel.blocks-last)
	left := p.skel.blocks // left for the last position
	for i := range last {
		m := &p.memory[i]
		n := sort.Search(p.skel.blocks-last, func(n int) bool { return m.least(n+1, p.room[i]) > c.search.limit })
		if n == 0 {
			return all
		}
		left -= n
	}
	for n := max(1, left); n <= p.skel.blocks-last; n++ {
		r := c.recompute().choices(n)[0]
		all[n-1] = p.memory[last].atLeast(n, r, p.room[last]) > c.search.limit || c.learned[tried{last, n, r}]
	}
	return all
}

// unlaid bounds plans with more slices that with the number of the pipeline fit by the bound of their memory, but have no
// exact layout yet, as they take no less than the best. If the layout shows that such a plan does not fit, it is in the space
// with more slices, and may take less there by inHead. It is never where there are none.
func (c *cutter) unlaid() cost.Picoseconds {
	least := never
	if c.chunks() > 1 {
		if !c.laid[0] {
			least = c.least
		}
	} else if c.bounds != nil {
		last := c.pipe.template.PP() - 1
		for i, floor := range c.bounds.stages[last].floor {
			if floor < least && c.ofUnlaid(i+1) {
				least = min(least, c.bounds.time(last, i+1))
			}
		}
		if least < never {
			least = max(least, c.bounds.ofAll())
		}
	}
	if least < never {
		least -= c.inHead()
	}
	return least
}

// inHead is that of the pipeline; under gpipe it adds the forward pass of the head, which slices make later. That is not needed
// where the schedule is searched, as the same plan under 1f1b takes no longer and keeps no more.
func (c *cutter) inHead() cost.Picoseconds {
	if c.head == never {
		if c.head = c.pipe.inHead(); c.search.opts.Schedule == partition.GPipe && slicesOf(&c.pipe.template) == 0 {
			c.head += c.pipe.headForward()
		}
	}
	return c.head
}

// ofUnlaid reports whether the last position fits with n blocks by the bound, but has no layout yet.
func (c *cutter) ofUnlaid(n int) bool {
	return !c.laid[n] && !c.learned[c.lastWith(n)] && c.bounds.time(c.pipe.template.PP()-1, n) < never
}

// lastWith is the last position with n blocks and the least recomputation that the options have.
func (c *cutter) lastWith(n int) tried {
	return tried{c.pipe.template.PP() - 1, n, c.recompute().choices(n)[0]}
}

// layLast lays out the last position of plans that with more slices might take at most a time. It reports whether there were
// any.
func (c *cutter) layLast(time cost.Picoseconds) bool {
	if c.unlaid() > time {
		return false
	}
	time += c.inHead()
	if c.chunks() > 1 {
		c.solveInterleaved(time)
		return true
	}
	few, last := c.pipe.skel.blocks, c.pipe.template.PP()-1 // few: the least that the others leave to it
	for i := range last {
		few -= c.bounds.most(i, time)
	}
	var all []tried
	for n := max(1, few); n <= c.bounds.most(last, time); n++ {
		if c.ofUnlaid(n) && c.bounds.time(last, n) <= time {
			all = append(all, c.lastWith(n))
		}
	}
	for _, last := range all {
		if c.roomy(last) {
			c.laid[last.blocks] = true
			continue
		}
		first := c.pipe.skel.blocks - last.blocks
		plan := c.pipe.plan(append(evenCut(first, last.stage, func(int) extent { return kept }), last.recomputed.stage(first, last.blocks)))
		if c.search.fits(plan, last.stage) {
			c.laid[last.blocks] = true
		} else {
			c.learned[last] = true
		}
	}
	return len(all) > 0
}

// roomy reports whether a stage surely fits: half of the limit has room for all its buffers, each in a place of its own. That
// needs no program of so many blocks. (The other half is more than an evaluation needs, whose values a step has, too.)
func (c *cutter) roomy(t tried) bool {
	s, limit := c.pipe.skel, c.search.limit
	if t.recomputed.counts(t.blocks)[kept] < t.blocks {
		return false
	}
	if s.lacks != nil {
		limit -= s.lacks[t.stage]
	}
	limit /= 2
	of, room := s.of, &c.pipe.room[t.stage]
	position, _ := of.plan.Position(s.like[t.stage])
	mesh := s.mesh(c.pipe.template.MicroBatch)
	st := of.prog(kept).Stages[position]
	for i := range st.Buffers {
		b := &st.Buffers[i]
		if b.View || b.Region == codegen.Host {
			continue
		}
		bytes := align(mesh.LocalElems(b.Value.Type.Shape, b.Value.Spec, ir.Coord{}) * b.Value.Type.DType.Size())
		if b.Value.Def.Block() != "" {
			bytes *= int64(t.blocks)
		}
		switch b.Region {
		case codegen.Temp:
			if c.pipe.template.Schedule.SplitsBackward() { // it may be kept for the pass for weight gradients
				bytes *= int64(room.Slots)
			}
		case codegen.Slot:
			bytes *= int64(room.Slots)
		case codegen.Inbox:
			bytes *= int64(room.Inboxes)
		}
		if limit -= bytes; limit < 0 {
			return false
		}
	}
	return true
}

// lastRoomy reports whether the last position surely fits with any number of blocks.
func (c *cutter) lastRoomy() bool {
	return c.chunks() == 1 && c.roomy(c.lastWith(c.pipe.skel.blocks-c.pipe.template.PP()+1))
}

// leaveHead reduces the memory of the last position to what it has with any number of slices: that of blocks, and what lasts.
func (p *pipeline) leaveHead() {
	s, m := p.skel, &p.memory[len(p.memory)-1]
	of, last := s.of, s.of.plan.PP()-1
	mesh := s.mesh(p.template.MicroBatch)
	var sizes []int64
	for e := range s.most + 1 {
		got := of.measure(e, last, mesh, &sizes)
		m.lastSlot[e] = got.slot[fewChunks-1].block
		if p.template.Chunks() == 1 {
			m.slot[e] = got.slot[0].block
		}
		m.temp[e], m.tempMiddle[e] = 0, 0
		if !p.template.Schedule.SplitsBackward() { // under which temporary values may lie in slots
			m.temp[e], m.tempMiddle[e] = of.tempOfBlocks(e, last, sizes), got.tempAmong
		}
		m.tempInner[e] = min(m.tempInner[e], m.temp[e])
	}
	m.apartFixed, m.update.fixed, m.afterHead = 0, 0, [extents]int64{}
	// A gradient of which each tensor-parallel rank has a term may with slices be summed, and cut, in the pass. Then a rank has
	// a part of it, or where it lies as another gradient of the same parameter, only their sum (see joined).
	tp, joined := mesh.Axis(partition.AxisTP), of.joined(last)
	for i := range of.held[kept][last] {
		x := &of.held[kept][last][i]
		if x.block || x.Value.Def.Phase != ir.Backward || x.Value.Spec[tp].Kind != ir.Partial {
			continue
		}
		less := sizes[x.kind] - sizes[x.kind]/int64(mesh.Axes[tp].Size)
		if joined[x.Value.Def] {
			less = sizes[x.kind]
		}
		switch {
		case x.Region == codegen.Sums && codegen.SumsOn(mesh) == codegen.Slot:
			m.sums.fixed -= less
		case x.Region == codegen.Sums || x.Region == codegen.Persist:
			m.persist -= less
		}
	}
}

// joined are the sums over micro-batches that the update adds to others of the same parameter, the table that embedding and
// head share. If both lay alike, they would be one.
func (b *blueprint) joined(position int) map[*ir.Node]bool {
	all := map[*ir.Node]bool{}
	for _, in := range b.prog(kept).Stages[position].Bodies[ir.Update].Instrs {
		if in.Node.Op != ir.OpAddN || in.Node.Results[0].Type.Elems() == 1 { // or it is of the gradient norm
			continue
		}
		for _, v := range in.Node.Args {
			for v.Def.Op != ir.OpAccumulate && len(v.Def.Args) == 1 {
				v = v.Def.Args[0]
			}
			all[v.Def] = true
		}
	}
	return all
}

// tempOfBlocks is the most that temporary values of blocks take at one instruction of a position of the blueprint, which has
// been measured.
func (b *blueprint) tempOfBlocks(e extent, position int, sizes []int64) int64 {
	return b.mostTemp(e, position, sizes, func(x *held) (from, to int) {
		if !x.block {
			return 1, 0
		}
		return x.From, x.To
	})
}

// mostTemp is the most that temporary values take at one instruction of a body. life gives their lifetimes, none by from > to.
func (b *blueprint) mostTemp(e extent, position int, sizes []int64, life func(*held) (from, to int)) (most int64) {
	for phase, body := range b.prog(e).Stages[position].Bodies {
		live := make([]int64, len(body.Instrs)+1)
		for i := range b.held[e][position] {
			x := &b.held[e][position][i]
			if x.Region != codegen.Temp || x.apart || x.Body != ir.Phase(phase) {
				continue
			}
			if from, to := life(x); from <= to {
				live[from] += sizes[x.kind]
				live[to+1] -= sizes[x.kind]
			}
		}
		var now int64
		for _, change := range live {
			now += change
			most = max(most, now)
		}
	}
	return most
}

// inHead bounds from above by how much less a step may take with more slices. What is communicated or copied outside of blocks,
// in the passes or for the loss, may run beside products of other slices, or once instead of twice. The gradient of a head
// whose weight is whole is summed over tensor-parallel ranks in the pass instead of the update. And the values of a slice may
// lie in a cache that is too small for all. Only this last is left where there are slices already, with no module whole or on a
// grid: what they communicate, and when, does not depend on how many there are. Where tensor-parallel ranks hold all of the
// head's weight, or it is on a grid, they may share the products of fewer rows in another way: nothing of the head is sure.
func (p *pipeline) inHead() cost.Picoseconds {
	under, _ := p.skel.under(p.template.Schedule) // on a crowded machine prices depend on the schedule
	s := *p.skel
	s.price = under.price
	last, sliced := len(s.plan.Stages)-1, slicesOf(&p.template) > 0 && p.skel.outline.split == split{}
	mesh, near := s.mesh(p.template.MicroBatch), s.price.As(last).Near()
	var sum, all cost.Picoseconds
	unsure := p.skel.outline.rows > 0
	for _, phase := range []ir.Phase{ir.Forward, ir.Backward, ir.WeightGrad} {
		for _, x := range s.prices(kept, last, phase, whole, mesh, ir.Coord{}) {
			if s.of.ofBlock[x.Node] {
				continue
			}
			all += x.time
			unsure = unsure || readsWhole(x.Node, mesh)
			switch {
			case phase == ir.WeightGrad:
			case variesBySlices(x.Node):
				if !sliced {
					sum += x.time
				}
			case x.Node.Op.Class() != ir.Comm:
				time, _ := near.Instr(x.Instr, mesh, ir.Coord{})
				sum += max(0, x.time-time)
			}
		}
	}
	if unsure {
		sum = all
	}
	sum *= cost.Picoseconds(p.microBatches)
	if sliced {
		return sum
	}
	for _, stage := range []int{0, last} {
		for _, x := range s.prices(kept, stage, ir.Update, whole, mesh, ir.Coord{}) {
			if !s.of.ofBlock[x.Node] && variesBySlices(x.Node) {
				sum += x.time
			}
		}
	}
	return sum
}

// readsWhole reports whether a node is a product with a weight of which all tensor-parallel ranks, of several, hold all.
func readsWhole(n *ir.Node, mesh ir.Mesh) bool {
	tp := mesh.Axis(partition.AxisTP)
	if n.Op != ir.OpMatMul || mesh.Axes[tp].Size == 1 {
		return false
	}
	return slices.ContainsFunc(n.Args, func(v *ir.Value) bool {
		way := wayTo(v.Def)
		return way[len(way)-1].Op == ir.OpParam && v.Spec[tp].Kind != ir.Shard
	})
}

// headForward is the forward pass of the head over all micro-batches. With slices it is part of the backward passes, so that
// under gpipe the first position may begin with those so much earlier.
func (p *pipeline) headForward() cost.Picoseconds {
	if p.template.PP() == 1 {
		return 0
	}
	sum := cost.Picoseconds(0)
	under, _ := p.skel.under(p.template.Schedule)
	for _, x := range under.prices(kept, len(p.skel.plan.Stages)-1, ir.Forward, whole, p.skel.mesh(p.template.MicroBatch), ir.Coord{}) {
		if !p.skel.of.ofBlock[x.Node] {
			sum += x.time
		}
	}
	return sum * cost.Picoseconds(p.microBatches)
}

// variesBySlices reports whether what a node outside of blocks communicates or copies may happen at another time, or less often,
// with another number of slices: all of it in the passes; in the update the sum of the loss, what tensor-parallel ranks sum, and
// additions of what they have summed.
func variesBySlices(n *ir.Node) bool {
	if n.Phase == ir.Update {
		return n.Op == ir.OpAddN && n.Results[0].Type.Elems() > 1 || codegen.Collective(n.Op) && (ofTP(n) || n.Results[0].Type.Elems() == 1)
	}
	return codegen.Collective(n.Op) || codegen.HostCopy(n.Op)
}

// ofTP reports whether a node is a collective of tensor-parallel ranks.
func ofTP(n *ir.Node) bool {
	attr, ok := n.Attr.(ir.CommAttr)
	return ok && (attr.Axis == partition.AxisTP || attr.Axis == partition.AxisTPR)
}
