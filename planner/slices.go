package planner

import (
	"maps"
	"slices"
	"sort"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// The loss in slices spares memory of the last position: logits are there for one slice only. Products of
// fewer rows take no less time for as many, the gradient of the head's weight is added up once a slice and
// there is more to launch, so that several slices are of use only where fewer do not fit: a plan
// is in the space with 2 to 16 of them where the same plan with half as many needs more than the limit.
//
// So they are looked at where the limit on memory slows down the last position of a pipeline with half as many, by the bound of
// its memory or, of what may take less with more slices than the best, as it is laid out. The
// floors that have led to that hold for any number of slices. Recomputation that they know to be necessary is that of
// blocks; and of the head they have no more than all slices do, see [pipeline.inHead].

// mostSlices is up to how many slices of the loss are searched, powers of two.
const mostSlices = 16

// slicesOf is how an outline has the slices of a plan.
func slicesOf(p *partition.Plan) int {
	if p.LossSlices > 1 {
		return p.LossSlices
	}
	return 0
}

// slices is how many the options fix, 0 for one.
func (o Options) slices() int {
	if o.LossSlices > 1 {
		return o.LossSlices
	}
	return 0
}

// checkSlices checks that a graph, and the evaluation's, has as many slices of the loss as the options fix.
func (o Options) checkSlices(g *ir.Graph) error {
	for _, g := range []*ir.Graph{g, o.Eval} {
		if _, err := partition.SliceLoss(g, o.LossSlices); err != nil {
			return err
		}
	}
	return nil
}

// searchesSlices reports whether the options leave the number of slices open.
func (o Options) searchesSlices() bool { return o.LossSlices == 0 && o.Policy == AutoDist }

// sliceCounts lists the numbers of slices that the search tries beside one.
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
				return s.counts // or there is no loss
			}
		}
		s.counts = append(s.counts, n)
	}
	return s.counts
}

// slicesBeside lists the numbers of slices in the space beside an outline with the number that the options have.
func (s *searcher) slicesBeside(o outline) []int {
	if o.cp > 1 {
		return nil
	}
	return s.sliceCounts()
}

// slice adds outlines with twice as many slices of the loss to what is pending, beside points which the limit on memory
// slows down in the last position, so that they may leave time to gain on the best of the same degrees.
// It reports whether there are any.
func (s *searcher) slice(points []*point) bool {
	before := len(s.pending)
	for _, p := range points {
		if p.sliced || p.cp > 1 || !s.opts.searchesSlices() {
			continue
		}
		if p.rough { // it takes no less with what is necessary to recompute
			if p.bare == 0 {
				p.bare = p.least - p.inHead()
			}
			if p.bare > s.found.gainOf(p.degrees) {
				continue
			}
			p.settle()
		}
		gain := s.found.gainOf(p.degrees)
		for p.withoutHead() > gain && p.layLast(s.found.gain()) { // alternatives are not worth a layout
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

// withoutHead bounds plans of the pipeline with more slices of the loss that do not fit with as many as there are: in memory the
// last position has no more than it has without the head, in time no less than it has with one. It is never where there
// are none, as the last position fits without recomputation.
func (c *cutter) withoutHead() cost.Picoseconds {
	knows := len(c.learned) // and what is recomputed, both of which only grow
	for _, n := range c.choice {
		knows += n
	}
	if c.bare == 0 || c.knew != knows {
		c.bare, c.knew = c.leastWithoutHead(), knows
	}
	return c.bare
}

func (c *cutter) leastWithoutHead() cost.Picoseconds {
	last := c.pipe.template.PP() - 1
	if c.shell {
		if c.shelled() && !c.pipe.fits(c.shellsWithoutHead(), c.search.limit) {
			return never
		}
		c.complete()
	}
	p := *c.pipe
	crammed := c.crammed()
	if !slices.Contains(crammed, true) {
		return never
	}
	p.memory = slices.Clone(p.memory)
	p.headless = true
	p.leaveHead()
	p.stages = nil // as in settle
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
		b.leave(last, crammed)
		if least = b.best(); least < never {
			least = b.ofAll()
		}
	}
	if least < never {
		least -= c.inHead()
	}
	return least
}

// shellsWithoutHead is shells but for what the loss has at the last position.
func (c *cutter) shellsWithoutHead() []stageMemory {
	p := *c.pipe
	p.memory = c.shells()
	m := &p.memory[len(p.memory)-1]
	slot := m.moreSlot[kept]
	p.leaveHead()
	m.leaveSlots(slot)
	return p.memory
}

// crammed tells, by number of blocks less one, with which the last position has to recompute something, or does not fit, of
// those of which the others can hold the rest; with several chunks there is one number.
func (c *cutter) crammed() []bool {
	p, last := c.pipe, c.pipe.template.PP()-1
	if c.chunks() > 1 {
		return []bool{c.least == never || c.choice[last] > 0}
	}
	all := make([]bool, p.skel.blocks-last)
	left := p.skel.blocks // for the last position
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

// unlaid bounds plans with more slices of the loss which with as many as there are fit by the bound of their memory, but are not laid
// out, as they take no less than the best. If one does not fit, it is in the space with more slices, which may take less by what
// they spare in the head: where they lie in a cache, or under gpipe. It is never where there are none.
func (c *cutter) unlaid() cost.Picoseconds {
	least := never
	if c.chunks() > 1 {
		if !c.laid[0] {
			least = c.least
		}
	} else if c.bounds != nil {
		c.eachUnlaid(func(n int, time cost.Picoseconds) { least = min(least, time) })
		if least < never {
			least = max(least, c.bounds.ofAll())
		}
	}
	if least < never {
		least -= c.inHead()
	}
	return least
}

// inHead is that of the pipeline, and under gpipe what may be made later. But where the schedule is searched the same plan under
// 1f1b, which takes no longer and has no more to keep, is in the space as well.
func (c *cutter) inHead() cost.Picoseconds {
	if c.head == never {
		if c.head = c.pipe.inHead(); c.search.opts.Schedule == partition.GPipe {
			c.head += c.pipe.headForward()
		}
	}
	return c.head
}

// eachUnlaid calls f with the numbers of blocks with which the last position fits by its bound, and the time of those plans.
func (c *cutter) eachUnlaid(f func(n int, time cost.Picoseconds)) {
	last := c.pipe.template.PP() - 1
	for i, time := range c.bounds.time[last] {
		if time < never && !c.laid[i+1] && !c.learned[c.lastWith(i+1)] {
			f(i+1, time)
		}
	}
}

// lastWith is the last position with n blocks and no more recomputation than the options have.
func (c *cutter) lastWith(n int) tried {
	return tried{c.pipe.template.PP() - 1, n, c.recompute().choices(n)[0]}
}

// layLast lays out the last position as it is in plans which with more slices may take at most a time. It reports whether there
// were any.
func (c *cutter) layLast(time cost.Picoseconds) bool {
	if c.unlaid() > time {
		return false
	}
	time += c.inHead()
	if c.chunks() > 1 {
		c.solveInterleaved(time)
		return true
	}
	few := c.pipe.skel.blocks // that the others leave to it
	for i := range c.pipe.template.PP() - 1 {
		few -= c.bounds.most(i, time)
	}
	var all []tried
	c.eachUnlaid(func(n int, least cost.Picoseconds) {
		if least <= time && n >= few {
			all = append(all, c.lastWith(n))
		}
	})
	for _, last := range all {
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

// leaveHead leaves of the memory of the last position what blocks have and what lasts, which any number of slices have.
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
		m.temp[e] = 0
		if p.template.Schedule != partition.ZeroBubble { // under which temporary values may lie in slots
			m.temp[e] = of.tempOfBlocks(e, last, sizes)
		}
		m.between[e] = min(m.between[e], m.temp[e])
	}
	m.left, m.update.fixed, m.crest = 0, 0, [extents]int64{}
	// A gradient that every tensor-parallel rank has a term of may be summed, and cut, in the pass, and lie as another term then.
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

// joined are the sums over micro-batches that the update of a position adds to others of the same parameter, that of a table which
// embedding and head share: they would be one if both lay alike.
func (b *blueprint) joined(position int) map[*ir.Node]bool {
	all := map[*ir.Node]bool{}
	for _, in := range b.prog(kept).Stages[position].Bodies[ir.Update].Instrs {
		if in.Node.Op != ir.OpAddN || in.Node.Results[0].Type.Elems() == 1 { // as for their norm
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

// tempOfBlocks is the most that temporary values of blocks take at one instruction of a position of the blueprint that is
// measured.
func (b *blueprint) tempOfBlocks(e extent, position int, sizes []int64) int64 {
	return b.mostTemp(e, position, sizes, func(x *held) (from, to int) {
		if !x.block {
			return 1, 0
		}
		return x.From, x.To
	})
}

// mostTemp is the most that temporary values take at one instruction, while they live: those that begin after they end do not count.
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

// inHead bounds from above by how much less a step may take with the loss in more slices. What is communicated or copied outside
// of blocks, in the passes or for the loss, may run beside products of other slices or once instead of twice; the gradient of a head whose
// weight is whole is summed over tensor-parallel ranks in the pass, not in the update; and values of a slice lie in a cache that is
// too small for all.
func (p *pipeline) inHead() cost.Picoseconds {
	under, _ := p.skel.under(p.template.Schedule) // whose ranks may crowd a machine
	s := *p.skel
	s.price = under.price
	last := len(s.plan.Stages) - 1
	mesh, near, sum := s.mesh(p.template.MicroBatch), s.price.As(last).Near(), cost.Picoseconds(0)
	for _, phase := range []ir.Phase{ir.Forward, ir.Backward} {
		for _, x := range s.prices(kept, last, phase, whole, mesh, ir.Coord{}) {
			switch {
			case s.of.ofBlock[x.Node]:
			case variesBySlices(x.Node):
				sum += x.time
			case x.Node.Op.Class() != ir.Comm:
				time, _ := near.Instr(x.Instr, mesh, ir.Coord{})
				sum += max(0, x.time-time)
			}
		}
	}
	sum *= cost.Picoseconds(p.microBatches)
	for _, stage := range []int{0, last} {
		for _, x := range s.prices(kept, stage, ir.Update, whole, mesh, ir.Coord{}) {
			if !s.of.ofBlock[x.Node] && variesBySlices(x.Node) {
				sum += x.time
			}
		}
	}
	return sum
}

// headForward is what the forward passes make for the loss, which with several slices of it is part of the backward passes: under
// gpipe the first position may begin with those so much earlier.
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

// variesBySlices reports whether what a node outside of blocks communicates or copies may be done at another time, or less
// often, with the loss in another number of slices: in the update the loss itself, and what tensor-parallel ranks sum, or add up
// of what they have summed.
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
