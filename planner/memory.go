package planner

import (
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/partition"
)

// stageMemory bounds from below the arena of a stage with n blocks. What must be
// there at once is counted, the gaps that packing leaves are not, so the bound
// never exceeds what codegen allocates; it prunes, and the finalists are
// allocated for real.
type stageMemory struct {
	// With one block, by how much of it is recomputed.
	persist int64 // weights, gradients, optimizer state; and what the devices lack to the limit
	// sums is gradients where slots have them, which they do after what the passes keep: of the only micro-batch of a stage
	// by itself.
	sums memoryShare
	// crest is by how much more than slot a slot has when the backward pass gets to the blocks: sums, of the head.
	crest [extents]int64
	slot  [extents]int64
	temp  [extents]int64
	calm  [extents]int64 // temp, but for the backward pass
	// between is temp of a block after which others come: without what the head still has while the last block waits for nothing.
	between [extents]int64
	update  memoryShare // temp, in the update of many blocks: see updating
	inbox   int64       // for what the stage before sends
	// lastSlot and lastInbox are those of the last of several chunks, of which slot and inbox are the first's.
	lastSlot    [extents]int64
	lastInbox   int64
	morePersist int64          // for every further block
	moreSlot    [extents]int64 // for every further block, with its result, which the next one keeps
	// apart is what the gradients of weights of each block read, where they are apart, and left what
	// others do: a slot has it from the end of its backward pass on.
	apart [extents]int64
	left  int64
}

// atLeast returns the bound for n blocks, r of them recomputed.
func (m *stageMemory) atLeast(n int, r recomputation, c codegen.Chunk) int64 {
	slot, temp := m.kept(&m.slot, n, r)
	slots := max(int64(c.Slots)*max(slot, m.after(n, r)), m.sums.of(n), slot+m.crest[r.last(n)])
	return m.persist + int64(n-1)*m.morePersist + slots + int64(c.Inboxes)*m.inbox + temp
}

// keepSums keeps gradients throughout the step.
func (m *stageMemory) keepSums() {
	m.persist += m.sums.bytes()
	m.morePersist += m.sums.block
	m.sums, m.crest = memoryShare{}, [extents]int64{}
}

// after is what a slot has after a backward pass.
func (m *stageMemory) after(n int, r recomputation) int64 {
	apart := m.left
	for e, count := range r.counts(n) {
		apart += int64(count) * m.apart[e]
	}
	return apart
}

// kept returns what n blocks, r of them recomputed, keep for a micro-batch where a stage of
// one keeps so much, and what they need beside.
func (m *stageMemory) kept(one *[extents]int64, n int, r recomputation) (slot, temp int64) {
	first, last := r.first(), r.last(n)
	slot = one[first] - m.moreSlot[first]
	for e, count := range r.counts(n) {
		slot += int64(count) * m.moreSlot[e]
		switch {
		case extent(e) == last:
			temp = max(temp, m.temp[e])
		case count > 0:
			temp = max(temp, m.between[e])
		}
	}
	return slot, max(temp, m.update.of(n))
}

// memoryOf bounds the stages of a skeleton at a size of micro-batch. What a
// further block keeps is read off a program of one stage, where the result of
// the block has a reader that keeps it.
func (s *skeleton) memoryOf(microBatch int) []stageMemory {
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
	var update memoryShare // of blocks
	for i := range s.of.plan.PP() {
		m := stageMemory{moreSlot: more, apart: apart}
		for e := range s.most + 1 {
			got := s.of.measure(e, i, mesh, &sizes)
			m.persist, m.morePersist = got.persist.bytes(), got.persist.block/chunks
			m.persist += (int64(s.plan.Chunks()) - chunks) * m.morePersist
			m.sums, m.crest[e] = got.sums, got.crest
			m.slot[e], m.temp[e], m.calm[e], m.between[e] = got.slot[0].bytes(), got.temp, got.calm, got.between
			m.lastSlot[e] = got.slot[fewChunks-1].bytes()
			m.inbox, m.lastInbox = got.inbox[0], got.inbox[fewChunks-1]
		}
		for e := s.most + 1; e < extents; e++ {
			m.moreSlot[e], m.apart[e], m.slot[e], m.crest[e] = more[s.most], apart[s.most], m.slot[s.most], m.crest[s.most]
			m.temp[e], m.calm[e], m.between[e], m.lastSlot[e] = m.temp[s.most], m.calm[s.most], m.between[s.most], m.lastSlot[s.most]
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
	for i := range few { // between its ends a pipeline has nothing but blocks, which are updated in the same order
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

// shells bounds from below what stages have whatever their blocks recompute, by programs in which they recompute nothing: all that
// lasts, and in slots what any block keeps.
func (s *skeleton) shells(microBatch int, slot int64) []stageMemory {
	all := slices.Clone(s.memoryOf(microBatch))
	for i := range all {
		all[i].leaveSlots(slot)
	}
	return all
}

// leaveSlots leaves of slots so much for each block, and nothing of what is temporary in a pass.
func (m *stageMemory) leaveSlots(slot int64) {
	for e := range extents {
		m.slot[e], m.lastSlot[e], m.moreSlot[e] = slot, slot, slot
	}
	m.temp, m.between = [extents]int64{}, [extents]int64{}
	m.crest, m.apart, m.left = [extents]int64{}, [extents]int64{}, 0
}

// measureInOrder bounds what stages need beside slots by programs in which nothing runs beside collectives: with
// every block kept, which is when least of it is temporary.
func (p *pipeline) measureInOrder() {
	of, mesh := p.skel.of.zeroBubble(), p.skel.mesh(p.template.MicroBatch)
	var sizes []int64
	var calm []int64 // by position of the blueprint
	for i := range of.plan.PP() {
		calm = append(calm, of.measure(kept, i, mesh, &sizes).calm)
	}
	for i := range p.memory {
		position, _ := of.plan.Position(p.skel.like[i])
		for e := range p.most + 1 {
			p.memory[i].temp[e] = min(p.memory[i].temp[e], calm[position])
			p.memory[i].between[e] = min(p.memory[i].between[e], calm[position])
		}
	}
}

// measureApart bounds what slots have from the end of their backward pass on by programs that have it
// in two: those of others do not show all of what gradients of weights read of what is recomputed.
func (p *pipeline) measureApart() {
	if p.template.Schedule != partition.ZeroBubble || p.measured {
		return
	}
	p.measured = true
	s := p.skel
	of, mesh := s.of.zeroBubble(), s.mesh(p.template.MicroBatch)
	var sizes []int64
	for e := range p.most + 1 {
		all, left := make([]measured, s.of.plan.PP()), make([]int64, s.of.plan.PP())
		for i := range all {
			all[i] = of.measure(e, i, mesh, &sizes)
			all[i].apart, left[i] = of.crossing(e, i, mesh)
		}
		for i := range p.memory {
			position, _ := s.of.plan.Position(s.like[i])
			m, got := &p.memory[i], &all[position]
			m.apart[e], m.temp[e], m.between[e] = got.apart, got.temp, got.between
			if e == kept {
				m.left = left[position]
			}
			m.left = min(m.left, left[position])
		}
	}
}
