package planner

import (
	"slices"

	"github.com/autopar/autopar/codegen"
)

// This file bounds from below the peak memory of a stage with any number of blocks and any recomputation, from programs with
// one block (measure.go, held.go, updatememory.go). recomputation.go asks it which recomputations may fit, cut.go and
// certify_cuts.go whether any cut may, and leanest.go for the cut whose largest stage is smallest.

// stageMemory bounds from below the arena of a stage with n blocks. It adds up buffers whose lifetimes overlap, without the gaps
// that packing leaves, so it never exceeds what codegen allocates. It only prunes: cuts that may win are laid out exactly.
// Arrays are indexed by the extent to which blocks are recomputed.
type stageMemory struct {
	// With one block:
	persist int64 // weights, gradients, optimizer state; and by how much the devices have less than the limit (pools.go)
	// sums are gradients that take the place of activations in the slot, once these have been read: see [codegen.SumsOn]. Only
	// a plan with one stage and one micro-batch has them; elsewhere gradients are part of persist.
	sums memoryShare
	// afterHead is by how much the slot has grown when the backward pass gets to the blocks: by gradients of the head in it,
	// less the activations of the head that are dead by then.
	afterHead       [extents]int64
	slot            [extents]int64
	temp            [extents]int64
	tempNotBackward [extents]int64 // temp, outside of the backward pass
	// tempInner is temp while a block runs that is not the last one: without what the head leaves behind, which only the last
	// block still meets.
	tempInner [extents]int64
	// tempMiddle is temp while a block runs between two others, of which the communication stream has something. 0 without overlap.
	tempMiddle [extents]int64
	update     memoryShare // temp of many blocks, in the update: see updating
	inbox      int64       // for the activation that the stage before sends
	// lastSlot and lastInbox are of the last chunk of several; slot and inbox are of the first.
	lastSlot    [extents]int64
	lastInbox   int64
	morePersist int64          // for each further block
	moreSlot    [extents]int64 // for each further block, with its result, which the next block keeps
	// apart is what the weight gradients of a block read, under a zero-bubble schedule, which computes them in a pass of their
	// own; apartFixed is what those outside of blocks read. A slot has both from the end of its backward pass on.
	apart      [extents]int64
	apartFixed int64
}

// atLeast returns the bound for n blocks, recomputed as r says. Slots peak at one of three moments: when each of them has the
// activations of a micro-batch, or what its weight gradients read; in the update; or when the backward pass gets from the
// head to the blocks.
func (m *stageMemory) atLeast(n int, r recomputation, c codegen.Chunk) int64 {
	slot, temp := m.kept(&m.slot, n, r)
	slots := max(int64(c.Slots)*max(slot, m.afterBackward(n, r)), m.sums.of(n), slot+m.afterHead[r.last(n)])
	return m.persist + int64(n-1)*m.morePersist + slots + int64(c.Inboxes)*m.inbox + temp
}

// keepSums makes gradients persistent, where they do not lie in the slot.
func (m *stageMemory) keepSums() {
	m.persist += m.sums.bytes()
	m.morePersist += m.sums.block
	m.sums, m.afterHead = memoryShare{}, [extents]int64{}
}

// afterBackward is the bytes of a slot after its backward pass.
func (m *stageMemory) afterBackward(n int, r recomputation) int64 {
	apart := m.apartFixed
	for e, count := range r.counts(n) {
		apart += int64(count) * m.apart[e]
	}
	return apart
}

// kept returns the bytes that n blocks, recomputed as r says, keep for a micro-batch, and the temporary bytes besides. one has
// the slot of a stage of one block.
func (m *stageMemory) kept(one *[extents]int64, n int, r recomputation) (slot, temp int64) {
	first, last := r.first(), r.last(n)
	slot = one[first] - m.moreSlot[first]
	for e, count := range r.counts(n) {
		slot += int64(count) * m.moreSlot[e]
		switch {
		case extent(e) == last:
			temp = max(temp, m.temp[e])
		case count > 0:
			temp = max(temp, m.tempInner[e])
		}
		if count > 2 { // one of them is between two others
			temp = max(temp, m.tempMiddle[e])
		}
	}
	return slot, max(temp, m.update.of(n))
}

// memoryOf bounds the stages of a skeleton at a micro-batch size. What a further block keeps is read off the program of one
// stage: there the block's result has a reader that keeps it, as in a row of blocks.
func (s *skeleton) memoryOf(microBatch int) []stageMemory {
	s = s.on(microBatch)
	if known := s.memory[microBatch]; known != nil {
		return known
	}
	mesh := s.mesh(microBatch)
	var more, apart [extents]int64
	var sizes []int64
	for e := range s.most + 1 {
		got := s.inner.measure(e, 0, mesh, &sizes)
		more[e], apart[e] = got.slot[0].block, got.apart
	}
	if s.inner != s.of {
		sizes = nil
	}
	chunks := int64(s.of.plan.Chunks())
	var few []stageMemory  // by position of the blueprint
	var update memoryShare // the most that blocks alone need in an update, at any position
	for i := range s.of.plan.PP() {
		m := stageMemory{moreSlot: more, apart: apart}
		for e := range s.most + 1 {
			got := s.of.measure(e, i, mesh, &sizes)
			m.persist, m.morePersist = got.persist.bytes(), got.persist.block/chunks
			m.persist += (int64(s.plan.Chunks()) - chunks) * m.morePersist
			m.sums, m.afterHead[e] = got.sums, got.afterHead
			m.slot[e], m.temp[e], m.tempNotBackward[e], m.tempInner[e] = got.slot[0].bytes(), got.temp, got.tempNotBackward, got.tempInner
			m.tempMiddle[e] = got.tempMiddle
			m.lastSlot[e] = got.slot[fewChunks-1].bytes()
			m.inbox, m.lastInbox = got.inbox[0], got.inbox[fewChunks-1]
		}
		for e := s.most + 1; e < extents; e++ {
			m.moreSlot[e], m.apart[e], m.slot[e], m.afterHead[e] = more[s.most], apart[s.most], m.slot[s.most], m.afterHead[s.most]
			m.temp[e], m.tempNotBackward[e], m.tempInner[e], m.lastSlot[e] = m.temp[s.most], m.tempNotBackward[s.most], m.tempInner[s.most], m.lastSlot[s.most]
			m.tempMiddle[e] = m.tempMiddle[s.most]
		}
		var blocks memoryShare
		if m.update, blocks = s.of.updating(i, sizes); blocks.block > update.block {
			update = blocks
		}
		if codegen.SumsOn(mesh) == codegen.Persist {
			m.keepSums()
		}
		few = append(few, m)
	}
	for i := range few { // positions between the ends have nothing but blocks, and update them in the same order
		if few[i].update.block < update.block {
			few[i].update = update
		}
	}
	all := make([]stageMemory, s.plan.PP())
	for i := range all {
		position, _ := s.of.plan.Position(s.like[i])
		all[i] = few[position]
		if s.lacks != nil {
			all[i].persist += s.lacks[i]
		}
	}
	s.memory[microBatch] = all
	return all
}

// shells bounds stages whatever their blocks recompute, from programs that recompute nothing: with all that is persistent, and
// in slots so much for each block as any extent of recomputation keeps at least.
func (s *skeleton) shells(microBatch int, slot int64) []stageMemory {
	all := slices.Clone(s.memoryOf(microBatch))
	for i := range all {
		all[i].leaveSlots(slot)
	}
	return all
}

// leaveSlots reduces slots to so much for each block, and temporary values of the passes to nothing.
func (m *stageMemory) leaveSlots(slot int64) {
	for e := range extents {
		m.slot[e], m.lastSlot[e], m.moreSlot[e] = slot, slot, slot
	}
	m.temp, m.tempInner, m.tempMiddle = [extents]int64{}, [extents]int64{}, [extents]int64{}
	m.afterHead, m.apart, m.apartFixed = [extents]int64{}, [extents]int64{}, 0
}

// measureInOrder lowers temporary bytes to those of programs in which nothing runs beside collectives. These recompute nothing,
// which leaves the least that is temporary.
func (p *pipeline) measureInOrder() {
	of, mesh := p.skel.of.zeroBubble(), p.skel.mesh(p.template.MicroBatch)
	var sizes []int64
	var tempNotBackward []int64 // by position of the blueprint
	for i := range of.plan.PP() {
		tempNotBackward = append(tempNotBackward, of.measure(kept, i, mesh, &sizes).tempNotBackward)
	}
	for i := range p.memory {
		position, _ := of.plan.Position(p.skel.like[i])
		for e := range p.most + 1 {
			p.memory[i].temp[e] = min(p.memory[i].temp[e], tempNotBackward[position])
			p.memory[i].tempInner[e] = min(p.memory[i].tempInner[e], tempNotBackward[position])
		}
	}
}

// measureApart measures what slots have from the end of their backward pass on, with programs that run it in two passes.
// Programs with one pass do not show all that weight gradients read of what is recomputed.
func (p *pipeline) measureApart() {
	if !p.template.Schedule.SplitsBackward() || p.measured {
		return
	}
	p.measured = true
	s := p.skel
	of, mesh := s.of.zeroBubble(), s.mesh(p.template.MicroBatch)
	var sizes []int64
	for e := range p.most + 1 {
		all, fixed := make([]measured, s.of.plan.PP()), make([]int64, s.of.plan.PP())
		for i := range all {
			all[i] = of.measure(e, i, mesh, &sizes)
			all[i].apart, fixed[i] = of.crossing(e, i, mesh)
		}
		for i := range p.memory {
			position, _ := s.of.plan.Position(s.like[i])
			m, got := &p.memory[i], &all[position]
			m.apart[e], m.temp[e], m.tempInner[e], m.tempMiddle[e] = got.apart, got.temp, got.tempInner, got.tempMiddle
			if e == kept {
				m.apartFixed = fixed[position]
			}
			m.apartFixed = min(m.apartFixed, fixed[position])
		}
	}
}
