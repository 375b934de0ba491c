package planner

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// The bounds of this file need no program but those of one block: the trunk that all
// outlines with the same tensor and context parallelism have, with all of it recomputed and
// with nothing, from which that of a part follows. What else an outline does, gathers, reductions and copies of parameters,
// is added from their sizes.

// shelf is what a block keeps at least, on a rank, whatever data-parallel ranks share, but
// for micro-batches.
type shelf struct {
	weights, gradients, state int64
	whole                     int64 // of gradients, those of which each tensor-parallel rank has all
	reduced                   int64 // gradients, wherever else tensor-parallel ranks hold them: as evenly as can be
	other                     int64 // of what lasts as long as they do
	shared                    []shared
}

// slots are what a block keeps at least for a micro-batch in flight, by how much is recomputed.
type slots struct {
	slot, apart [extents]int64 // see stageMemory
	temp        int64          // beside, in a pass, whatever is recomputed
}

// flight is what recomputation adds to the backward pass of a block at least.
type flight [extents]cost.Picoseconds

// flightKey is what a flight follows from.
type flightKey struct {
	size    int
	inOrder bool // see [sizeOn]
	parts   bool // something may be made in parts
}

// shared is a weight, its gradient or a state of the optimizer, which data-parallel ranks
// all have.
type shared struct {
	value           *ir.Value
	like            *ir.Value // which lies as it does under ZeRO: of a gradient, its weight
	bytes           int64
	state, gradient bool
	frozen          bool               // a weight that has neither
	read            [ir.NumPhases]bool // of a weight, by the passes that read it when nothing is recomputed
	// wide is set of a gradient that is cast to be added up: reduced in every micro-batch,
	// it is waited for (see codegen's overlap).
	wide bool
}

// persist returns the bytes that last under an outline, in which ZeRO shards over so many data-parallel ranks; without gradients
// where slots have them.
func (b *shelf) persist(o outline, replicas int, alone bool) int64 {
	weights, gradients, state := b.weights, b.gradients, b.state
	ranks := int64(o.sharers(replicas))
	if o.zero >= 1 {
		state /= ranks
		gradients -= b.whole - b.whole/int64(o.sharers(1)) // each may add up the share that it will update
	}
	if o.zero >= 2 { // reduced in every micro-batch, they lie as their weights do
		gradients = b.reduced / ranks
	}
	if o.zero >= 3 {
		weights /= ranks
	}
	if alone {
		gradients = 0
	}
	switch o.offload {
	case partition.OffloadParams:
		return gradients
	case partition.OffloadOptimizer:
		return weights + gradients
	}
	return weights + gradients + state + b.other
}

// slotsOf returns what a block of the trunk keeps for a micro-batch of a size.
func (w *work) slotsOf(size, batch int) *slots {
	if known := w.slots[size]; known != nil {
		return known
	}
	mesh := w.meshOf(size, batch)
	all := &slots{}
	var sizes []int64
	for e := range extents {
		like := e
		if e.partial() {
			like = kept
		}
		held := w.of.holds(like, 0, mesh, &sizes)
		for i := range held {
			x := &held[i]
			switch sequences := x.Value.Spec[mesh.Axis(partition.AxisMB)].Kind == ir.Shard; {
			case !sequences: // made of weights, which ZeRO may gather again
			case e.partial() && e.drops(x.Value):
			case x.apart && w.gathered(like, x.Buffer): // in other plans the products that read it have shares of that
			case x.apart:
				all.apart[e] += sizes[x.kind]
			case x.Region == codegen.Slot && x.block:
				all.slot[e] += sizes[x.kind]
			}
		}
	}
	all.temp = min(w.of.tempOfSequences(kept, mesh, sizes), w.of.tempOfSequences(full, mesh, sizes))
	w.slots[size] = all
	return all
}

// flightOf returns what recomputation adds for a micro-batch of a size.
func (w *work) flightOf(key flightKey, batch int) *flight {
	if known := w.flights[key]; known != nil {
		return known
	}
	mesh := w.meshOf(key.size, batch)
	var both [2]flight       // by [ordered]
	var plain [][2]workTimes // of a backward pass without recomputation, by kinds of devices
	for e := range extents {
		for i, kinds := range w.everywhere() {
			times := w.passOf(e).times(mesh, kinds, key.parts)
			if e == kept {
				plain = append(plain, times)
			}
			for k := range both {
				time := times[k][inBlock].all
				switch {
				case e == kept:
					time = 0
				case e == full:
					time = max(0, time-plain[i][k][inBlock].all)
				}
				if i == 0 || time < both[k][e] {
					both[k][e] = time
				}
			}
		}
	}
	for _, inOrder := range []bool{false, true} {
		w.flights[flightKey{key.size, inOrder, key.parts}] = &both[ordered(inOrder)]
	}
	return w.flights[key]
}

// tempOfSequences is the most that temporary values of blocks take at one instruction of a pass of one stage that is measured,
// but for those that are made of weights alone, whatever runs beside the collectives of other outlines: see [held].
func (b *blueprint) tempOfSequences(e extent, mesh ir.Mesh, sizes []int64) int64 {
	mb := mesh.Axis(partition.AxisMB)
	return b.mostTemp(e, 0, sizes, func(x *held) (from, to int) {
		if !x.block || x.Body == ir.Update || x.Value.Spec[mb].Kind != ir.Shard {
			return 1, 0
		}
		return x.from, x.to
	})
}

// passOf returns the work of a block's backward pass with recomputation. What blocks that are
// recomputed in part do besides that of one that keeps everything, and keep less, is seen from
// the program of the latter: here it is that work alone.
func (w *work) passOf(e extent) *work {
	if w.again[e] != nil {
		return w.again[e]
	}
	pass := *w
	pass.instrs, pass.rest, pass.pairs = nil, nil, nil
	if e.partial() {
		for _, in := range w.of.prog(kept).Stages[0].Bodies[ir.Forward].Instrs {
			if e.covers(in.Node.Op) {
				pass.collect([]codegen.Instr{in}, ir.Forward, true)
			}
		}
	} else {
		pass.collect(w.of.prog(e).Stages[0].Bodies[ir.Backward].Instrs, ir.Backward, true)
		for i := range pass.instrs {
			if in := &pass.instrs[i]; e == kept && in.putOff { // it is taken away, and so no less than it may be
				in.beside, in.product, in.putOff = nil, nil, false
			}
		}
	}
	w.again[e] = &pass
	return w.again[e]
}

// shelfOf returns what a block of the trunk keeps.
func (w *work) shelfOf(batch int) *shelf {
	if w.shelf != nil {
		return w.shelf
	}
	mesh := w.meshOf(batch, batch)
	b := &shelf{}
	weights := map[*ir.Node]*ir.Value{} // by what their gradients come through
	for _, n := range w.of.progs[kept].Graph.Nodes {
		if n.Op == ir.OpAdamW {
			for _, of := range gradientWay(n) {
				weights[of] = n.Args[0]
			}
		}
	}
	var sizes []int64
	held := w.of.holds(kept, 0, mesh, &sizes)
	for i := range held {
		x := &held[i]
		if x.Region != codegen.Persist && x.Region != codegen.Sums || !x.block {
			continue
		}
		n := x.Value.Def
		attr, _ := n.Attr.(ir.ParamAttr)
		sum := &b.other
		switch {
		case n.Op == ir.OpParam && !attr.State:
			sum = &b.weights
		case n.Op == ir.OpParam:
			sum = &b.state
		case n.Op.Class() != ir.Leaf && n.Phase == ir.Backward:
			sum = &b.gradients
		}
		*sum += sizes[x.kind]
		if sum == &b.gradients {
			if tp := mesh.Axis(partition.AxisTP); tp >= 0 && x.Value.Spec[tp].Kind != ir.Shard {
				b.whole += sizes[x.kind]
			}
			even := x.Value.Type.Bytes()
			for axis, a := range mesh.Axes {
				if x.Value.Spec[axis].Kind == ir.Shard {
					even /= int64(a.Size)
				}
			}
			b.reduced += min(sizes[x.kind], even)
		}
		v := shared{value: x.Value, like: x.Value, state: attr.State, gradient: sum == &b.gradients, frozen: attr.Frozen}
		switch {
		case n.Op == ir.OpParam:
			for _, reader := range w.of.progs[kept].Graph.Nodes {
				if slices.Contains(reader.Args, x.Value) {
					v.read[reader.Phase] = true
				}
			}
		case v.gradient:
			if of := weights[n]; of != nil {
				v.like = of
			}
			if n.Op == ir.OpAccumulate {
				n = n.Args[0].Def
			}
			if v.wide = n.Op == ir.OpCast; v.wide {
				v.value = n.Args[0]
			}
		default:
			continue
		}
		v.bytes = mesh.LocalElems(v.value.Type.Shape, v.value.Spec, ir.Coord{}) * v.value.Type.DType.Size()
		b.shared = append(b.shared, v)
	}
	w.shelf = b
	return b
}

// moved bounds from below what an outline does for a block besides the trunk, in order
// but for what is beside: what data-parallel ranks communicate, what is copied between
// device and host, and work on gradients and weights. The gradients of a step are summed
// once, or from ZeRO stage 2 on in every micro-batch; what then lies on several ranks is
// gathered: the new weights, or those of stage 3 in every pass. With overlap the new weights
// of a block are gathered beside the update of the next.
func (s *searcher) moved(o outline) *workTimes {
	way := s.waysOf(o)
	o.pieces = 0 // whatever they are
	if known := way.moved[o.sharding]; known != nil {
		return known
	}
	trunk := s.trunk(o)
	replicas := o.dp * (s.opts.RuntimeNGPUs / o.plan)
	ranks := cmp.Or(o.group, replicas)
	t := trunk.apart(o.zero, o.sharers(ranks))
	each := &t[inBlock]
	// Bytes of a block that are communicated together: beside a pass, and in the update, but in
	// a pipeline (see codegen's join).
	var gathered [ir.NumPhases]int64
	joined, reduced, renewed := map[ir.Op]int64{}, map[ir.Op]int64{}, int64(0)
	once := func(op ir.Op, bytes int64) {
		if o.pp == 1 {
			joined[op] += bytes
		} else {
			each.update += way.collective(op, bytes)
		}
	}
	tp := trunk.mesh.Axis(partition.AxisTP)
	for _, v := range trunk.shelfOf(s.batch).shared {
		if o.zero > 0 && v.value.Spec[tp].Kind != ir.Shard {
			v.bytes /= int64(o.sharers(1)) // before they are communicated, or after
		}
		cut := o.zero > 0 && partition.ReplicaDim(ranks, v.like.Spec, v.like.Type.Shape) >= 0
		part := v.bytes
		if cut {
			part /= int64(ranks)
		}
		switch {
		case v.state && o.offload.Moves():
			each.update += 2 * way.hostCopy(part) // there and back
		case v.state || replicas == 1:
		case v.gradient && cut && o.zero >= 2 && (v.wide || !o.overlap):
			reduce := way.collective(ir.OpReduceScatter, v.bytes)
			each.all += reduce
			each.weight += reduce
		case v.gradient:
		case cut && o.zero == 3 && o.overlap:
			for pass := range gathered {
				if v.read[pass] {
					gathered[pass] += v.bytes
				}
			}
		case cut && o.zero == 3:
			gather := way.collective(ir.OpAllGather, v.bytes)
			if v.read[ir.Forward] {
				each.forward += gather
				each.way += gather
				each.all += gather
			}
			if v.read[ir.Backward] { // perhaps by what is recomputed first
				each.all += gather
				each.ahead += gather
			}
		case v.frozen: // it is not made anew
		case o.overlap && o.zero == 0:
			reduced[ir.OpAllReduce] += v.bytes
		case o.overlap && cut:
			if o.zero == 1 {
				reduced[ir.OpReduceScatter] += v.bytes
			}
			renewed += v.bytes
		case o.overlap:
		case o.zero == 0:
			once(ir.OpAllReduce, v.bytes)
		case cut && o.zero == 1:
			once(ir.OpReduceScatter, v.bytes)
			once(ir.OpAllGather, v.bytes)
		case cut && o.zero == 2:
			once(ir.OpAllGather, v.bytes)
		}
		if o.offload == partition.OffloadParams && !v.state && !v.gradient {
			copied := way.hostCopy(part)
			if v.read[ir.Forward] {
				each.forward += copied
				each.way += copied
				each.all += copied
			}
			if v.read[ir.Backward] {
				each.all += copied
				each.ahead += copied
			}
		}
	}
	for _, pass := range []ir.Phase{ir.Forward, ir.Backward} {
		if gathered[pass] > 0 {
			each.beside += way.collective(ir.OpAllGather, gathered[pass])
		}
	}
	for op, bytes := range joined {
		each.update += way.collective(op, bytes)
	}
	for op, bytes := range reduced {
		each.once += way.collective(op, bytes)
	}
	if renewed > 0 {
		each.update = max(each.update, way.collective(ir.OpAllGather, renewed))
	}
	way.moved[o.sharding] = &t
	return &t
}

// apart bounds from below what the trunk's plan does for a block but does not have for
// each micro-batch anew, under a ZeRO stage over so many ranks: it narrows and adds up
// gradients, which are whole up to stage 1, and updates, a part of the weights from stage 1
// on. Of kernels on a part of the data none takes less than that part of the time that the
// whole would take in the cache, where the part may fit when the whole does not.
func (w *work) apart(zero, ranks int) workTimes {
	if w.steady == nil {
		w.steady, w.near = w.steadily(func(p *cost.Program) *cost.Program { return p }), w.steadily((*cost.Program).Near)
	}
	t := *w.steady
	block := &t[inBlock]
	if zero >= 1 {
		near := &w.near[inBlock]
		block.update, block.closing = near.update/cost.Picoseconds(ranks), near.closing/cost.Picoseconds(ranks)
	}
	if zero >= 2 {
		*block = partTimes{update: block.update, closing: block.closing}
	}
	return t
}

// steadily returns the time of the rest on the fastest kinds of devices, by prices made of
// those of the work.
func (w *work) steadily(by func(*cost.Program) *cost.Program) *workTimes {
	var least *workTimes
	for _, kinds := range w.everywhere() {
		t, price := &workTimes{}, by(w.on(kinds)[0])
		for i := range w.rest {
			time, _ := price.Instr(w.rest[i].Instr, w.mesh, ir.Coord{})
			t.add(&w.rest[i], time)
		}
		if least == nil {
			least = t
		}
		least.fastest(t)
	}
	return least
}

// again returns what recomputation a limit on memory makes necessary under an outline,
// with micro-batches of a size and a schedule.
func (s *searcher) again(o outline, size int, schedule partition.Schedule) *again {
	trunk := s.trunk(o)
	if trunk == nil {
		return nil
	}
	persist, slots, temp := s.kept(o, size, schedule)
	return &again{
		limit: s.limit - temp, persist: persist, slots: slots, more: *trunk.flightOf(flightKey{size, inOrder(schedule), size > 1 && o.pieces > 0}, s.batch),
		among: s.opts.recompute(o.replicate).extents(), alike: o.chunks > 1,
	}
}

// kept bounds from below what a block keeps under an outline that has a trunk: what lasts, what slots have
// for a micro-batch in flight at several moments, and what is temporary besides; 0 where that may lie in slots.
func (s *searcher) kept(o outline, size int, schedule partition.Schedule) (persist int64, slots [][extents]int64, temp int64) {
	trunk := s.trunk(o)
	all := trunk.slotsOf(size, s.batch)
	slots = [][extents]int64{all.slot}
	if schedule == partition.ZeroBubble {
		slots = append(slots, all.apart)
	}
	if !inOrder(schedule) {
		temp = all.temp
	}
	m, _ := s.split(o, size)
	return trunk.shelfOf(s.batch).persist(o, s.shardedOver(o), m == 1 && o.stages() == 1), slots, temp
}

// shardedOver is over how many data-parallel ranks ZeRO shards.
func (s *searcher) shardedOver(o outline) int { return cmp.Or(o.group, s.replicas(o)) }

// again bounds from below what recomputation adds to a backward pass of a position: so
// much that what its blocks keep fits.
type again struct {
	limit   int64                     // but for what is temporary
	persist int64                     // of a block
	slots   [][extents]int64          // for a micro-batch in flight, at several moments
	more    [extents]cost.Picoseconds // work of a block
	among   []extent                  // that blocks may be recomputed to
	alike   bool                      // all blocks of the position are recomputed as much
}

// time returns the work for n blocks, which keep something for so many micro-batches in
// flight between them; never where they do not fit. Of blocks that differ the part
// that is recomputed may be any: a lower bound that does not decrease with n.
func (a *again) time(n, flights int) cost.Picoseconds {
	if a == nil {
		return 0
	}
	room := float64(a.limit-int64(n)*a.persist) / float64(flights) // for a block and a micro-batch
	most := cost.Picoseconds(0)
	for i := range a.slots {
		most = max(most, a.of(&a.slots[i], room))
	}
	if most == never {
		return never
	}
	return cost.Picoseconds(n) * most
}

// of returns the work of a block on average when there is so much room for it.
func (a *again) of(slot *[extents]int64, room float64) cost.Picoseconds {
	least := never
	for i, e := range a.among {
		if float64(slot[e]) <= room {
			least = min(least, a.more[e])
		}
		if a.alike {
			continue
		}
		for _, f := range a.among[:i] {
			// Some blocks of one extent, the others of the other.
			x, y := e, f
			if slot[x] > slot[y] {
				x, y = y, x
			}
			if low, high := float64(slot[x]), float64(slot[y]); low <= room && room < high {
				part := (high - room) / (high - low) // of extent x
				mixed := part*float64(a.more[x]) + (1-part)*float64(a.more[y])
				least = min(least, cost.Picoseconds(mixed*(1-1e-9)))
			}
		}
	}
	return least
}

// keeps bounds from below what the fullest rank keeps under an outline, however its blocks
// are cut and recomputed.
func (s *searcher) keeps(o outline, size int, schedule partition.Schedule) int64 {
	if s.trunk(o) == nil {
		return 0
	}
	persist, slot, temp := s.keepsLeast(o, size, schedule)
	m, _ := s.split(o, size)
	each := make([]int64, o.pp) // of a block
	for at, room := range s.rooms(o, m, schedule) {
		flights := m
		for _, chunk := range room {
			flights = min(flights, chunk.Slots)
		}
		each[at] = persist + int64(flights)*slot
	}
	blocks := s.graphs.blocks
	if o.pp == 1 || o.chunks > 1 {
		return temp + int64(blocks/o.pp)*slices.Max(each)
	}
	most := int64(blocks) * slices.Max(each)
	return temp + int64(sort.Search(int(most), func(bytes int) bool {
		left := int64(blocks)
		for _, b := range each {
			left -= int64(bytes) / b
		}
		return left <= 0
	}))
}

// keepsLeast is kept of a block that is recomputed as slots have the least with it, at the moment at which that is the most.
func (s *searcher) keepsLeast(o outline, size int, schedule partition.Schedule) (persist, slot, temp int64) {
	persist, slots, temp := s.kept(o, size, schedule)
	for _, at := range slots {
		least := int64(math.MaxInt64)
		for _, e := range s.opts.recompute(o.replicate).extents() {
			least = min(least, at[e])
		}
		slot = max(slot, least)
	}
	return persist, slot, temp
}

// keepsOfOne is keeps with one micro-batch in flight, whatever the number of chunks is.
func (s *searcher) keepsOfOne(o outline, size int, schedule partition.Schedule) int64 {
	if s.trunk(o) == nil {
		return 0
	}
	persist, slot, temp := s.keepsLeast(o, size, schedule)
	return temp + int64((s.graphs.blocks+o.pp-1)/o.pp)*(persist+slot)
}

// leastKept is the least of those of all micro-batches and schedules: of the smallest, or where all of a step is one, which
// has no room for gradients besides.
func (s *searcher) leastKept(o outline) int64 {
	least := int64(math.MaxInt64)
	sizes := s.sizes(o)
	if o.pp > 1 {
		sizes = sizes[:min(1, len(sizes))]
	}
	for _, schedule := range schedules(s.opts, o.pp, o.chunks) {
		for _, b := range sizes {
			least = min(least, s.keepsOfOne(o, b, schedule))
		}
	}
	return least
}

// mayFit reports whether some outline may have a plan that fits, by what blocks keep of one micro-batch.
func (s *searcher) mayFit() bool {
	return slices.ContainsFunc(s.tracts, func(t *tract) bool {
		return s.leastKept(t.outline) <= s.limit || slices.ContainsFunc(s.sparing(t.pending), func(p *pending) bool { return s.leastKept(p.outline) <= s.limit })
	})
}

// rooms lists the room of every position and chunk of an outline.
func (s *searcher) rooms(o outline, m int, schedule partition.Schedule) [][]codegen.Chunk {
	key := roomsKey{schedule, o.pp, o.chunks, m}
	all := s.allRooms[key]
	if all == nil {
		plan := partition.Plan{
			DP: 1, TP: 1, PlanNGPUs: o.pp, RuntimeNGPUs: o.pp, Schedule: schedule, Stages: make([]partition.Stage, o.stages()), Interleave: o.chunks,
		}
		for at := range o.pp {
			all = append(all, s.room(&plan, at, m))
		}
		s.allRooms[key] = all
	}
	return all
}

// roomsKey is what the rooms of all positions follow from.
type roomsKey struct {
	schedule                 partition.Schedule
	pp, chunks, microBatches int
}
