package planner

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
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
	// during is what a slot has of a block at some time of its backward pass, and across what it has all that time
	// of what blocks neither make nor read: 0 unless gradients of weights are apart.
	during [extents]int64
	across int64
}

// atLeast returns the bound for n blocks, r of them recomputed.
func (m *stageMemory) atLeast(n int, r recomputation, c codegen.Chunk) int64 {
	return m.holding(n, r, c, max(m.passing(n, r), m.around(n, r)))
}

// before is atLeast but for what is in slots during a backward pass.
func (m *stageMemory) before(n int, r recomputation, c codegen.Chunk) int64 {
	return m.holding(n, r, c, m.around(n, r))
}

// holding is the bound where a slot has so much at some time.
func (m *stageMemory) holding(n int, r recomputation, c codegen.Chunk, slot int64) int64 {
	kept, temp := m.kept(&m.slot, n, r)
	slots := max(int64(c.Slots)*slot, m.sums.of(n), kept+m.crest[r.last(n)])
	return m.persist + int64(n-1)*m.morePersist + slots + int64(c.Inboxes)*m.inbox + temp
}

// keepSums keeps gradients throughout the step.
func (m *stageMemory) keepSums() {
	m.persist += m.sums.bytes()
	m.morePersist += m.sums.block
	m.sums, m.crest = memoryShare{}, [extents]int64{}
}

// around is the most that a slot has before a backward pass, or after it.
func (m *stageMemory) around(n int, r recomputation) int64 {
	slot, _ := m.kept(&m.slot, n, r)
	apart := m.left
	for e, count := range r.counts(n) {
		apart += int64(count) * m.apart[e]
	}
	return max(slot, apart)
}

// passing is the most that a slot has during a backward pass: when that is at a block, those before it have what they
// kept, and those after it what gradients of their weights read.
func (m *stageMemory) passing(n int, r recomputation) (most int64) {
	if m.during == [extents]int64{} {
		return 0
	}
	var kept, read int64 // of blocks before and after
	counts := r.counts(n)
	for e, count := range counts {
		read += int64(count) * m.apart[e]
	}
	for _, e := range []extent{full, selective, pointwise, 0} { // as they stand in a stage
		count := int64(counts[e])
		if count == 0 {
			continue
		}
		most = max(most, kept+m.during[e]+read-m.apart[e]) // at the first of them
		kept, read = kept+count*m.moreSlot[e], read-count*m.apart[e]
		most = max(most, kept-m.moreSlot[e]+m.during[e]+read) // at the last
	}
	return most + m.across
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
// lasts, and what is temporary then, which is the least, but for zero-bubble schedules, under which that may lie in slots. Of those
// they have what any block keeps.
func (s *skeleton) shells(microBatch int, schedule partition.Schedule, slot int64) []stageMemory {
	all := slices.Clone(s.memoryOf(microBatch))
	for i := range all {
		all[i].leaveSlots(slot)
		if schedule == partition.ZeroBubble {
			all[i].temp, all[i].between = [extents]int64{}, [extents]int64{}
		}
	}
	return all
}

// leaveSlots leaves of slots so much for each block.
func (m *stageMemory) leaveSlots(slot int64) {
	for e := range extents {
		m.slot[e], m.lastSlot[e], m.moreSlot[e] = slot, slot, slot
	}
	m.crest, m.apart, m.during, m.left, m.across = [extents]int64{}, [extents]int64{}, [extents]int64{}, 0, 0
}

// measured is what a stage of a program with one block keeps.
type measured struct {
	persist memoryShare
	sums    memoryShare
	crest   int64
	slot    [fewChunks]memoryShare // by chunk
	inbox   [fewChunks]int64
	temp    int64 // the most live at one instruction
	calm    int64 // of those outside the backward pass
	between int64 // of what blocks have, and of the rest what is there during all of the block
	apart   int64 // what gradients of weights of a block read that others made
}

// memoryShare is bytes outside the blocks, and of the block.
type memoryShare struct{ fixed, block int64 }

func (m memoryShare) bytes() int64 { return m.of(1) }

// add adds bytes, of the block or not.
func (m *memoryShare) add(bytes int64, block bool) {
	if block {
		m.block += bytes
	} else {
		m.fixed += bytes
	}
}

// above reports whether it is more than another where blocks are many.
func (m memoryShare) above(other memoryShare) bool {
	return m.block > other.block || m.block == other.block && m.fixed > other.fixed
}

// of is that of n blocks.
func (m memoryShare) of(n int) int64 { return m.fixed + int64(n)*m.block }

// align is codegen's: buffers lie on lines of 64 bytes.
func align(n int64) int64 { return (n + 63) / 64 * 64 }

// held is a buffer of a stage that takes memory of the device.
type held struct {
	*codegen.Buffer
	block bool
	apart bool // gradients of weights of a block read it, besides what else it is
	kind  int  // of those that are as large: see sizesOn
}

// heldKind is what the size of a buffer follows from.
type heldKind struct {
	shape string
	dtype ir.DType
	spec  ir.ShardSpec
	view  bool // of a value placed so:
	of    ir.ShardSpec
}

// kindValues is one value of a kind, and of a view that of which it is a part.
type kindValues struct{ part, whole *ir.Value }

// kindOf returns the kind of a buffer, and keeps the values of one of each.
func (b *blueprint) kindOf(st *codegen.Stage, x *codegen.Buffer) int {
	var shape [32]byte
	v := x.Value
	key, values := heldKind{dtype: v.Type.DType, spec: v.Spec, view: x.View}, kindValues{part: v}
	if x.View {
		values.whole = st.Buffers[x.Of].Value
		key.of = values.whole.Spec
	}
	text := shape[:0]
	for _, d := range v.Type.Shape {
		text = binary.AppendUvarint(text, uint64(d))
	}
	key.shape = string(text)
	kind, known := b.kinds[key]
	if !known {
		kind = len(b.kindValues)
		b.kinds[key], b.kindValues = kind, append(b.kindValues, values)
	}
	return kind
}

// sizesOn returns the bytes of each kind of buffer on a mesh.
func (b *blueprint) sizesOn(mesh ir.Mesh, sizes []int64) []int64 {
	for _, values := range b.kindValues[len(sizes):] {
		v, size := values.part, int64(0)
		if values.whole == nil || !codegen.Fits(mesh, values.whole, v) {
			size = align(mesh.LocalElems(v.Type.Shape, v.Spec, ir.Coord{}) * v.Type.DType.Size())
		}
		sizes = append(sizes, size)
	}
	return sizes
}

// heldBy lists the buffers of a stage that take memory of the device.
func (b *blueprint) heldBy(st *codegen.Stage) []held {
	used := usedBuffers(st)
	forward := len(st.Bodies[ir.Forward].Instrs)
	var all []held
	for _, id := range b.readApart(st) {
		x := &st.Buffers[id]
		all = append(all, held{x, true, true, b.kindOf(st, x)})
	}
	for id := range st.Buffers {
		x := &st.Buffers[id]
		switch {
		case !used[id] && x.Value.Def.Op.Class() != ir.Leaf:
		case x.Region == codegen.Host:
		case x.Region == codegen.Slot && (x.From >= forward || x.To < forward): // not there between forward and backward
		case x.Region == codegen.Temp && x.From < 0:
		default:
			all = append(all, held{x, x.Value.Def.Block() != "" && x.Value.Def.Op != ir.OpRecv, false, b.kindOf(st, x)})
		}
	}
	return all
}

// readApart lists the buffers that gradients of weights of a block read and others have
// made: the block itself, or in the backward pass the one after it.
func (b *blueprint) readApart(st *codegen.Stage) []int {
	var all []int
	for _, in := range st.Bodies[ir.Backward].Instrs {
		if !b.ofWeight[in.Node] || !b.ofBlock[in.Node] {
			continue
		}
		for i, v := range in.Node.Args {
			id, def := in.Args[i], v.Def
			region := st.Buffers[id].Region
			near := def.Block() == in.Node.Block() || def.Phase == ir.Backward
			if near && !b.ofWeight[def] && (region == codegen.Slot || region == codegen.Temp) && !slices.Contains(all, id) {
				all = append(all, id)
			}
		}
	}
	return all
}

// holds lists the buffers that a position of the blueprint has, and adds to the sizes that are known on a mesh.
func (b *blueprint) holds(e extent, position int, mesh ir.Mesh, sizes *[]int64) []held {
	if st := b.prog(e).Stages[position]; b.held[e][position] == nil {
		b.held[e][position] = b.heldBy(st)
	}
	*sizes = b.sizesOn(mesh, *sizes)
	return b.held[e][position]
}

// measure measures a position of the blueprint on a mesh, on which sizes are known so far.
func (b *blueprint) measure(e extent, position int, mesh ir.Mesh, sizes *[]int64) measured {
	all, st := b.holds(e, position, mesh, sizes), b.prog(e).Stages[position]
	var m measured
	var live, between [ir.NumPhases][]int64 // changes of live bytes by body and position
	var from, to [ir.NumPhases]int          // of the block
	for phase, body := range st.Bodies {
		live[phase], between[phase] = make([]int64, len(body.Instrs)+1), make([]int64, len(body.Instrs)+1)
		ofBlock := func(in codegen.Instr) bool { return b.ofBlock[in.Node] }
		if from[phase] = slices.IndexFunc(body.Instrs, ofBlock); from[phase] >= 0 {
			for to[phase] = len(body.Instrs) - 1; !ofBlock(body.Instrs[to[phase]]); to[phase]-- {
			}
		}
	}
	streams := b.plan.Overlap // otherwise nothing waits while a block runs
	blocks := len(st.Bodies[ir.Forward].Instrs) + slices.IndexFunc(st.Bodies[ir.Backward].Instrs, func(in codegen.Instr) bool { return b.ofBlock[in.Node] })
	for i := range all {
		b := &all[i]
		size := (*sizes)[b.kind]
		if b.apart {
			m.apart += size
			continue
		}
		share := &m.persist
		switch b.Region {
		case codegen.Sums:
			if share = &m.sums; b.From <= blocks {
				m.crest += size
			}
		case codegen.Slot:
			if share = &m.slot[b.Chunk]; b.To < blocks {
				m.crest -= size
			}
		case codegen.Inbox:
			m.inbox[b.Chunk] += size
			continue
		case codegen.Temp:
			live[b.Body][b.From] += size
			live[b.Body][b.To+1] -= size
			if !streams || b.block || b.From <= from[b.Body] && b.To >= to[b.Body] {
				between[b.Body][b.From] += size
				between[b.Body][b.To+1] -= size
			}
			continue
		}
		share.add(size, b.block)
	}
	for phase, changes := range live {
		var now, then int64
		for k, c := range changes {
			now, then = now+c, then+between[phase][k]
			m.temp, m.between = max(m.temp, now), max(m.between, then)
			if ir.Phase(phase) != ir.Backward {
				m.calm = max(m.calm, now)
			}
		}
	}
	return m
}

// measureInOrder bounds what stages need beside slots by programs in which nothing runs beside collectives: with
// every block kept, which is when least of it is temporary.
func (p *pipeline) measureInOrder() {
	of, mesh := p.skel.of.split(), p.skel.mesh(p.template.MicroBatch)
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
	of, mesh := s.of.split(), s.mesh(p.template.MicroBatch)
	var sizes []int64
	for e := range p.most + 1 {
		all := make([]crossing, s.of.plan.PP())
		for i := range all {
			got := of.measure(e, i, mesh, &sizes)
			all[i] = of.crossing(e, i, mesh)
			all[i].temp, all[i].between = got.temp, got.between
		}
		for i := range p.memory {
			position, _ := s.of.plan.Position(s.like[i])
			m, x := &p.memory[i], &all[position]
			m.apart[e], m.during[e], m.temp[e], m.between[e] = x.apart, x.during, x.temp, x.between
			if e == kept {
				m.left, m.across = x.left, x.across
			}
			m.left, m.across = min(m.left, x.left), min(m.across, x.across)
		}
	}
}

// crossing is what a stage with one block keeps for a micro-batch when gradients of weights are apart.
type crossing struct {
	apart, left    int64 // from the backward pass on, of the block and of others
	during, across int64 // at some time of the backward pass of the block, of the block, and all that time of others
	temp, between  int64 // as measured
}

// crossing measures what a position of the blueprint keeps for a micro-batch for the gradients of weights, which are apart in
// its programs: of a block what those of the block read that it has made, or in the backward pass the one after it, and outside
// of blocks what others read of each other. What the first block hands to the embedding is there once, and left out.
func (b *blueprint) crossing(e extent, position int, mesh ir.Mesh) (x crossing) {
	st := b.prog(e).Stages[position]
	size := func(buf *codegen.Buffer) int64 {
		return align(mesh.LocalElems(buf.Value.Type.Shape, buf.Value.Spec, ir.Coord{}) * buf.Value.Type.DType.Size())
	}
	forward, backward := len(st.Bodies[ir.Forward].Instrs), st.Bodies[ir.Backward].Instrs
	at := forward + len(backward)
	read := make([]bool, len(st.Buffers)) // by gradients of weights, or by the block
	for _, ofBlocks := range []bool{true, false} {
		for _, in := range st.Bodies[ir.WeightGrad].Instrs {
			if b.ofBlock[in.Node] != ofBlocks {
				continue
			}
			for i, id := range in.Args {
				buf, def := &st.Buffers[id], in.Node.Args[i].Def
				if read[id] || buf.Region != codegen.Slot || buf.From >= at || buf.To < at {
					continue
				}
				read[id] = true
				switch {
				case ofBlocks && (def.Block() == in.Node.Block() || def.Phase == ir.Backward):
					x.apart += size(buf)
				case !ofBlocks && def.Block() == "":
					x.left += size(buf)
				}
			}
		}
	}
	from, to := -1, at // of the block's backward pass, until it has read what another has made in the forward pass
	last := 0
	for k := range backward {
		if !b.ofBlock[backward[k].Node] {
			continue
		}
		if last = forward + k; from < 0 {
			from = last
		}
		for i, id := range backward[k].Args {
			if def := backward[k].Node.Args[i].Def; def.Block() == "" || def.Op == ir.OpRecv {
				if read[id] = true; def.Phase == ir.Forward && def.Op.Class() != ir.Leaf {
					to = min(to, st.Buffers[id].To)
				}
			}
		}
	}
	if from < 0 {
		return x
	}
	to = min(to, last)
	used := usedBuffers(st)
	live := make([]int64, at+2) // changes
	for id := range st.Buffers {
		buf := &st.Buffers[id]
		switch {
		case buf.Region != codegen.Slot || buf.View || !used[id]:
		case buf.Value.Def.Block() != "" && buf.Value.Def.Op != ir.OpRecv:
			live[min(buf.From, at+1)] += size(buf)
			live[min(buf.To+1, at+1)] -= size(buf)
		case !read[id] && buf.From <= from && buf.To >= last:
			x.across += size(buf)
		}
	}
	now := int64(0)
	for k := range to + 1 {
		if now += live[k]; k >= from {
			x.during = max(x.during, now)
		}
	}
	return x
}

// updating bounds what is temporary in the update of a position with many blocks, from that of one which is measured, with one
// block of each chunk. What a block keeps for or from its AdamW while others do something, all blocks keep then, as each does what comes
// before, and none what comes after: gradients that are reduced or narrowed before all are clipped. The block that is updated
// first, or last, has besides what that AdamW reads and writes.
// So it is with what a stream that nobody waits for still has to do with when all is updated. blocks is that of the blocks alone.
func (b *blueprint) updating(position int, sizes []int64) (most, blocks memoryShare) {
	st := b.prog(kept).Stages[position]
	body := st.Bodies[ir.Update].Instrs
	if b.plan.Chunks() > 1 {
		return b.updatingChunks(position, sizes)
	}
	var updates []int // of the block
	for k := range body {
		if n := body[k].Node; n.Op == ir.OpAdamW && n.Block() != "" {
			updates = append(updates, k)
		}
	}
	if len(updates) == 0 {
		return most, blocks
	}
	first, last := updates[0], updates[len(updates)-1]
	var temp []*held
	live := make([]memoryShare, len(body)+1) // changes, by instruction
	for i := range b.held[kept][position] {
		x := &b.held[kept][position][i]
		if x.Region != codegen.Temp || x.Body != ir.Update {
			continue
		}
		temp = append(temp, x)
		if !x.block || x.From <= last && x.To >= first {
			live[x.From].add(sizes[x.kind], x.block)
			live[x.To+1].add(-sizes[x.kind], x.block)
		}
	}
	var now memoryShare
	var there func(*held) bool // what all blocks have then
	for k := range body {
		now = memoryShare{now.fixed + live[k].fixed, now.block + live[k].block}
		if now.above(most) && body[k].Node.Block() == "" {
			most, there = now, func(x *held) bool { return x.From <= k && k <= x.To }
		}
	}
	if running := b.running(position, first); running != nil {
		var left memoryShare
		for _, x := range temp {
			if running[x.Buffer] {
				left.add(sizes[x.kind], x.block)
			}
		}
		if left.above(most) {
			most, there = left, func(x *held) bool { return running[x.Buffer] }
		}
	}
	if most.block == 0 {
		return most, blocks
	}
	for _, k := range updates {
		with, alone := -most.block, -most.block
		for _, x := range temp {
			mine := func(id int) bool { return x.block && &st.Buffers[id] == x.Buffer }
			if x.From <= k && k <= x.To && (there(x) || slices.ContainsFunc(body[k].Args, mine) || slices.ContainsFunc(body[k].Results, mine)) {
				with += sizes[x.kind]
				if x.block {
					alone += sizes[x.kind]
				}
			}
		}
		most.fixed, blocks.fixed = max(most.fixed, with), max(blocks.fixed, alone)
	}
	blocks.block = most.block
	return most, blocks
}

// updatingChunks is updating with several chunks, of whose blocks each has at least what a block of any chunk has.
func (b *blueprint) updatingChunks(position int, sizes []int64) (most, blocks memoryShare) {
	st := b.prog(kept).Stages[position]
	body := st.Bodies[ir.Update].Instrs
	var updates [fewChunks][]int // AdamW, by chunk
	for k := range body {
		if n := body[k].Node; n.Op == ir.OpAdamW && n.Block() != "" {
			chunk := b.chunkOf[n.Block()]
			updates[chunk] = append(updates[chunk], k)
		}
	}
	var temp [fewChunks][]*held
	var live [1 + fewChunks][]int64 // changes, by chunk and of what is not of blocks
	for i := range live {
		live[i] = make([]int64, len(body)+1)
	}
	for i := range b.held[kept][position] {
		x := &b.held[kept][position][i]
		if x.Region != codegen.Temp || x.Body != ir.Update {
			continue
		}
		of := fewChunks
		if x.block {
			of = b.chunkOf[x.Value.Def.Block()]
			if temp[of] = append(temp[of], x); x.From > updates[of][len(updates[of])-1] || x.To < updates[of][0] {
				continue
			}
		}
		live[of][x.From] += sizes[x.kind]
		live[of][x.To+1] -= sizes[x.kind]
	}
	var now [1 + fewChunks]int64
	at := -1
	for k := range body {
		for i := range now {
			now[i] += live[i][k]
		}
		if block := slices.Min(now[:fewChunks]); block > most.block && body[k].Node.Block() == "" {
			most, at = memoryShare{now[fewChunks], block}, k
		}
	}
	if at < 0 {
		return most, blocks
	}
	least := int64(math.MaxInt64) // by chunk, the most that a block has at one of its AdamW
	for chunk, updates := range updates {
		alone := int64(0)
		for _, k := range updates {
			var bytes int64
			for _, x := range temp[chunk] {
				mine := func(id int) bool { return &st.Buffers[id] == x.Buffer }
				if x.From <= k && k <= x.To && (x.From <= at && at <= x.To || slices.ContainsFunc(body[k].Args, mine) || slices.ContainsFunc(body[k].Results, mine)) {
					bytes += sizes[x.kind]
				}
			}
			alone = max(alone, bytes)
		}
		least = min(least, alone)
	}
	return most, memoryShare{least - most.block, most.block}
}

// running is what the streams of an update have to do with from an instruction on, to its end if nothing waits for them; nil if
// something does.
func (b *blueprint) running(position, from int) map[*codegen.Buffer]bool {
	st := b.prog(kept).Stages[position]
	body := st.Bodies[ir.Update].Instrs
	running := map[*codegen.Buffer]bool{}
	for i := range body[from:] {
		switch in := &body[from+i]; {
		case in.Await > 0:
			return nil
		case in.Async:
			for _, id := range slices.Concat(in.Args, in.Results) {
				running[&st.Buffers[id]] = true
			}
		}
	}
	return running
}

// usedBuffers tells, by buffer, whether any instruction names it. What none does was
// merged into another.
func usedBuffers(st *codegen.Stage) []bool {
	used := make([]bool, len(st.Buffers))
	for _, body := range st.Bodies {
		for _, in := range body.Instrs {
			for _, id := range in.Args {
				used[id] = true
			}
			for _, id := range in.Results {
				used[id] = true
			}
		}
	}
	return used
}
