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

// This file bounds what plans of an outline need beyond the trunk (see floor.go), in time and in memory, from programs of one
// block: one that recomputes nothing and one that recomputes all of it, from which partial recomputation follows. It has
// three lower bounds:
//
//   - moved: the time of data-parallel communication, offload copies and the optimizer update, from the sizes of parameters;
//   - again: the time of the recomputation without which a position does not fit, by a linear relaxation: blocks may recompute
//     different amounts in any proportion. Floors of step time add it (passage.go);
//   - keeps, keepsOfOne, leastKept: the peak memory of the fullest rank, by which sketch.go orders outlines if nothing fits.

// persistent is the memory of a block, in bytes on one rank, that lives throughout a step: a lower bound, before data-parallel
// ranks shard it.
type persistent struct {
	weights, gradients, state int64
	whole                     int64 // of gradients, those that are whole on each tensor-parallel rank
	reduced                   int64 // gradients, each in even shares over all axes that cut it, if those are less
	other                     int64 // all else that lives as long
	params                    []blockParam
	ends                      []endParam
}

// slots are lower bounds of the activation memory of a block for one micro-batch in flight, by extent of recomputation.
type slots struct {
	slot, apart [extents]int64 // see stageMemory
	temp        int64          // temporary values of a pass besides, whatever is recomputed
}

// recomputeTimes is a lower bound of the time that recomputation adds to the backward pass of a block, by extent.
type recomputeTimes [extents]cost.Picoseconds

// recomputeKey is what recomputeTimes depend on.
type recomputeKey struct {
	size    int
	inOrder bool // see [sizeOn]
	parts   bool // products and collectives may be made in parts
}

// blockParam is a weight of a block, its gradient or a state of its optimizer, of which each data-parallel and context-parallel
// rank would have all without ZeRO.
type blockParam struct {
	value           *ir.Value
	like            *ir.Value // what ZeRO cuts in the same dimension: of a gradient, its weight
	bytes           int64
	state, gradient bool
	frozen          bool               // a weight that has neither gradient nor state
	soon            bool               // of a weight: its gradient comes with that of the input, not with others: see [partition.WeightGrads]
	turned          bool               // of a gradient: tensor-parallel ranks have it cut in another dimension than the weight: it is moved before it is reduced, perhaps in order
	read            [ir.NumPhases]bool // of a weight: the passes that read it when nothing is recomputed
	streamed        [ir.NumPhases]bool // and those that read it as it lies: before others gather it, they move it, in order
}

// ofLike is the bytes that a rank has of what ZeRO cuts like the value, in the type of the value.
func (v *blockParam) ofLike(mesh ir.Mesh) int64 {
	return mesh.LocalElems(v.like.Type.Shape, v.like.Spec, ir.Coord{}) * v.value.Type.DType.Size()
}

// endParam is a weight outside of blocks.
type endParam struct {
	value  *ir.Value
	bytes  int64
	first  bool // the forward pass begins with it, and the backward pass ends with its gradient
	alike  bool // all micro-batches look up the same rows: ranks may sum what they find in their shards, in place of gathering these
	again  bool // the backward pass begins with it
	frozen bool
	turned bool // see [blockParam]
}

// bytes returns the persistent bytes under an outline, where ZeRO shards over so many ranks. alone says that a
// step is one micro-batch of one stage: its gradients do not count, as they lie in the slot.
func (b *persistent) bytes(o outline, over int, alone bool) int64 {
	weights, gradients, state := b.weights, b.gradients, b.state
	ranks := int64(o.sharers(over))
	if o.zero >= 1 {
		state /= ranks
		gradients -= b.whole - b.whole/int64(o.sharers(1)) // each rank may add up only the share that it will update
	}
	if o.zero >= 2 { // reduced in every micro-batch, gradients are cut as their weights are
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

// slotsOf returns the activation memory of a block of the trunk for a micro-batch of a size.
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
			size := sizes[x.kind]
			if x.lora { // in other plans its product may read it cut in another dimension
				size = min(size, evenOverTP(x.Value, mesh))
			}
			switch sequences := x.Value.Spec[mesh.Axis(partition.AxisMB)].Kind == ir.Shard; {
			case !sequences: // made of weights alone: with ZeRO it may be gathered again instead of kept
			case e.partial() && e.drops(x.Value):
			case x.apart && w.gathered(like, x.Buffer): // in other plans the products that read it read a share only
			case x.apart:
				all.apart[e] += size
			case x.Region == codegen.Slot && x.block:
				all.slot[e] += size
			}
		}
	}
	all.temp = min(w.of.tempOfSequences(kept, mesh, sizes), w.of.tempOfSequences(full, mesh, sizes))
	w.slots[size] = all
	return all
}

// evenOverTP is the bytes of a value on a rank if tensor-parallel ranks have equal shares of it.
func evenOverTP(v *ir.Value, mesh ir.Mesh) int64 {
	spec, axis := v.Spec, mesh.Axis(partition.AxisTP)
	share := int64(1)
	if spec[axis].Kind == ir.Shard {
		spec[axis], share = ir.Placement{}, int64(mesh.Axes[axis].Size)
	}
	return mesh.LocalElems(v.Type.Shape, spec, ir.Coord{}) * v.Type.DType.Size() / share
}

// recomputeTimesOf returns what recomputation adds for a micro-batch of a size.
func (w *work) recomputeTimesOf(key recomputeKey, batch int) *recomputeTimes {
	if known := w.recomputed[key]; known != nil {
		return known
	}
	mesh := w.meshOf(key.size, batch)
	var both [2]recomputeTimes // indexed by [ordered]
	var plain [][2]workTimes   // the backward pass without recomputation, by kinds of devices
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
		w.recomputed[recomputeKey{key.size, inOrder, key.parts}] = &both[ordered(inOrder)]
	}
	return w.recomputed[key]
}

// tempOfSequences is the peak of the temporary values of blocks in a pass, in a stage that has been measured. It leaves out
// values made of weights alone, and takes lifetimes that hold whatever other outlines run beside collectives: see [held].
func (b *blueprint) tempOfSequences(e extent, mesh ir.Mesh, sizes []int64) int64 {
	mb := mesh.Axis(partition.AxisMB)
	return b.mostTemp(e, 0, sizes, func(x *held) (from, to int) {
		if !x.block || x.Body == ir.Update || x.Value.Spec[mb].Kind != ir.Shard {
			return 1, 0
		}
		return x.from, x.to
	})
}

// passOf returns the work of a block's backward pass when the block is recomputed to an extent. Where that is a part of the
// block it is only the work that recomputation adds, taken from the forward pass of the program that keeps everything.
func (w *work) passOf(e extent) *work {
	if w.passes[e] != nil {
		return w.passes[e]
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
			if in := &pass.instrs[i]; e == kept && in.putOff { // what is subtracted must be no less than it may be: nothing hides it
				in.beside, in.product, in.putOff = nil, nil, false
			}
		}
	}
	w.passes[e] = &pass
	return w.passes[e]
}

// persistentOf returns the persistent memory of a block of the trunk.
func (w *work) persistentOf(batch int) *persistent {
	if w.persistent != nil {
		return w.persistent
	}
	mesh := w.meshOf(batch, batch)
	b := &persistent{}
	graph := w.of.progs[kept].Graph
	read := make([]struct{ any, asItLies [ir.NumPhases]bool }, graph.IDs()) // by ID of a value: the passes that read it
	kinds := map[*ir.Value]struct{ turned, late bool }{}                    // by weight: its gradient is moved; it comes with those of others
	weights := map[*ir.Node]*ir.Value{}                                     // by the nodes through which their gradients come
	for _, n := range graph.Nodes {
		for _, a := range n.Args {
			of := &read[a.ID]
			of.any[n.Phase] = true
			of.asItLies[n.Phase] = of.asItLies[n.Phase] || n.Op != ir.OpAllToAll
		}
		if n.Op == ir.OpAdamW {
			weight := n.Args[0]
			kind := kinds[weight]
			for _, of := range wayTo(n.Args[3].Def) {
				weights[of] = weight
				kind.turned = kind.turned || movesGradient(of)
				kind.late = kind.late || w.of.ofWeight[of]
			}
			kinds[weight] = kind
		}
	}
	for _, u := range graph.Updates { // a weight may be a copy of what AdamW updates
		if of := u.New.Def; of.Op == ir.OpCast && of.Args[0].Def.Op == ir.OpAdamW {
			kinds[u.Param] = kinds[of.Args[0].Def.Args[0]]
		}
	}
	var sizes []int64
	held := w.of.holds(kept, 0, mesh, &sizes)
	for i := range held {
		x := &held[i]
		if x.Region == codegen.Persist && !x.block {
			b.addEnd(graph, x.Value, mesh, kinds[x.Value].turned)
		}
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
		v := blockParam{value: x.Value, like: x.Value, state: attr.State, gradient: sum == &b.gradients, frozen: attr.Frozen}
		switch {
		case n.Op == ir.OpParam:
			v.read, v.streamed, v.soon = read[x.Value.ID].any, read[x.Value.ID].asItLies, !kinds[x.Value].late
		case v.gradient:
			if of := weights[n]; of != nil {
				v.like, v.turned = of, kinds[of].turned
			}
			if n.Op == ir.OpAccumulate {
				n = n.Args[0].Def
			}
			if n.Op == ir.OpCast { // it is communicated before it is cast
				v.value = n.Args[0]
			}
		default:
			continue
		}
		v.bytes = mesh.LocalElems(v.value.Type.Shape, v.value.Spec, ir.Coord{}) * v.value.Type.DType.Size()
		b.params = append(b.params, v)
	}
	w.persistent = b
	return b
}

// movesGradient reports whether a node that a gradient comes through keeps the stream from reducing it (see codegen's hoist): it moves
// the gradient, or adds up what has been moved or summed.
func movesGradient(n *ir.Node) bool {
	switch {
	case n.Op == ir.OpAllToAll:
		return true
	case n.Phase != ir.Update:
		return false
	case n.Op == ir.OpAddN:
		return slices.ContainsFunc(n.Args, func(a *ir.Value) bool { return a.Def.Op != ir.OpAccumulate })
	}
	return n.Op == ir.OpSlice || n.Op == ir.OpAllGather
}

// addEnd adds a parameter outside of blocks.
func (b *persistent) addEnd(g *ir.Graph, v *ir.Value, mesh ir.Mesh, turned bool) {
	attr, ok := v.Def.Attr.(ir.ParamAttr)
	if v.Def.Op != ir.OpParam || !ok || attr.State {
		return
	}
	end := endParam{value: v, frozen: attr.Frozen, turned: turned, bytes: mesh.LocalElems(v.Type.Shape, v.Spec, ir.Coord{}) * v.Type.DType.Size()}
	for _, n := range g.Nodes {
		if slices.Contains(n.Args, v) {
			if n.Op == ir.OpEmbedding && n.Phase == ir.Forward {
				end.first, end.alike = true, n.Results[0].Spec[mesh.Axis(partition.AxisMB)].Kind != ir.Shard
			}
			end.again = end.again || n.Op == ir.OpMatMul && n.Phase == ir.Backward
		}
	}
	if end.first || end.again {
		b.ends = append(b.ends, end)
	}
}

// movedAtEnds adds what the streams of an outline with overlap do before the blocks of a pass and after them. Positions that
// hand each other their gradients of a table sum those in the update: see endsOf.
func (s *searcher) movedAtEnds(o outline, trunk *work, way *ways, t *workTimes) {
	ranks, tp := s.shardedOver(o), trunk.mesh.Axis(partition.AxisTP)
	groups := s.groups(o)
	var once [modelParts]struct{ whole, cut, shares int64 } // bytes that are summed once, in one bucket at most
	var renewed [modelParts]int64                           // bytes of new weights, likewise
	for _, v := range trunk.persistentOf(s.batch).ends {
		bytes, cut := v.bytes, partition.ReplicaDim(ranks, v.value.Spec, v.value.Type.Shape) >= 0
		if v.value.Spec[tp].Kind != ir.Shard {
			bytes /= int64(o.sharers(1))
		}
		collective := func(op ir.Op) cost.Picoseconds { return s.collective(o, trunk, way, op, bytes) }
		if cut && o.zero == 3 && v.first && !v.alike {
			t[beforeBlocks].gathers = max(t[beforeBlocks].gathers, collective(ir.OpAllGather))
		}
		if cut && o.zero == 3 && v.again {
			t[afterBlocks].regathers = max(t[afterBlocks].regathers, collective(ir.OpAllGather))
		}
		if v.frozen {
			continue
		}
		if cut && (o.zero == 1 || o.zero == 2) {
			if v.first {
				renewed[beforeBlocks] += bytes
			}
			if v.again && (!v.first || o.pp > 1) {
				renewed[afterBlocks] += bytes
			}
		}
		shared := v.value.Spec[tp].Kind != ir.Shard && o.sharers(1) > 1 // tensor-parallel ranks may sum one gradient and cut another
		if v.turned || shared && v.first && v.again {
			continue
		}
		if cut && o.zero >= 2 {
			reduce := collective(ir.OpReduceScatter)
			if v.first {
				t[beforeBlocks].reduces = max(t[beforeBlocks].reduces, reduce)
			}
			if v.again {
				t[afterBlocks].reduces = max(t[afterBlocks].reduces, reduce)
			}
		}
		if v.first && v.again && o.pp > 1 {
			continue
		}
		part := afterBlocks
		if v.first {
			part = beforeBlocks
		}
		switch x := &once[part]; {
		case o.zero == 0 || !cut:
			x.whole += bytes
			x.shares += bytes
		case o.zero == 1:
			x.cut += bytes
			fallthrough
		default: // groups sum their shares, which are reduced in every micro-batch
			x.shares += bytes / int64(ranks)
		}
	}
	for part := range once {
		x := &once[part]
		if x.whole > 0 {
			t[part].once += s.collective(o, trunk, way, ir.OpAllReduce, x.whole)
		}
		if x.cut > 0 {
			t[part].once += s.collective(o, trunk, way, ir.OpReduceScatter, x.cut)
		}
		if x.shares > 0 && groups > 1 {
			t[part].once += way.further(x.shares, groups)
		}
		if renewed[part] > 0 {
			t[part].renews = s.collective(o, trunk, way, ir.OpAllGather, renewed[part])
		}
	}
}

// ends are lower bounds of what the ends of a pipeline do in their update, in order, for tables outside of blocks whose
// gradients data-parallel ranks sum, and of how long positions wait for the norm of all gradients. That is added up from the first
// position to the last and sent back, or two positions exchange what they have of it.
type ends struct {
	first, last struct{ before, after cost.Picoseconds } // the norm is known
	up, down    []cost.Picoseconds                       // by position: how long it is on its way from there, and on the way there; nil without a norm
	summed      cost.Picoseconds                         // then the ranks of a position add up their parts of it
}

// endsKey is what ends depend on besides the degrees.
type endsKey struct {
	movedKey
	chunks int
}

// endsOf returns the ends of an outline of several positions. Positions that both have a table hand each other their gradients of it before they
// are summed, under ZeRO stages 0 and 1, or each its share. What overlap hides is left out: it hides no sum of what was
// handed over.
func (s *searcher) endsOf(o outline, way *ways, lone bool) *ends {
	o.pieces = 0 // whatever they are
	key := endsKey{movedKey{o.sharding, lone}, o.chunks}
	if known := way.ends[key]; known != nil {
		return known
	}
	x := &ends{}
	way.ends[key] = x
	trunk, ranks := s.trunkFor(o, lone), s.shardedOver(o)
	tp, summed := trunk.mesh.Axis(partition.AxisTP), s.replicas(o)*o.cp > 1
	first, last := way.places[0], way.places[0]
	if way.at != nil {
		first, last = way.places[way.at[0]], way.places[way.at[o.pp-1]]
	}
	var transfers *cost.Program // nil where they are left out, as in sends
	if way.plan != nil && !s.rates.Crowded(o.pp) {
		transfers = s.transfers(o, way, trunk.meshOf(s.batch, s.batch))
	}
	for _, v := range trunk.persistentOf(s.batch).ends {
		if v.frozen {
			continue
		}
		bytes, cut := v.bytes, partition.ReplicaDim(ranks, v.value.Spec, v.value.Type.Shape) >= 0
		if v.value.Spec[tp].Kind != ir.Shard {
			bytes /= int64(o.tp)
		}
		both := v.first && v.again
		sums := func(at *ways) (sum, gather cost.Picoseconds) {
			collective := func(op ir.Op) cost.Picoseconds { return s.collective(o, trunk, at, op, bytes) }
			if !summed || o.overlap && !both {
				return 0, 0
			}
			switch {
			case o.zero == 0:
				sum = collective(ir.OpAllReduce)
			case cut && o.zero == 1:
				sum = collective(ir.OpReduceScatter)
			}
			if groups := s.groups(o); cut && groups > 1 && (o.zero == 1 || o.zero > 1 && both) {
				sum += at.further(bytes/int64(ranks), groups)
			}
			if cut && (o.zero == 1 || o.zero == 2) && !o.overlap {
				gather = collective(ir.OpAllGather)
			}
			return sum, gather
		}
		if v.first {
			sum, gather := sums(first)
			x.first.before += sum
			x.first.after += gather
		}
		if v.again {
			sum, gather := sums(last)
			x.last.after += gather
			if both {
				x.last.after += sum // what it was handed counts in the norm of the first position
			} else {
				x.last.before += sum
			}
		}
		if both && transfers != nil { // a position does nothing else while it sends
			shared := bytes
			if o.zero >= 2 {
				shared /= int64(ranks)
			}
			x.first.before += transfers.Hand(shared, 0, o.pp-1)
			x.last.before += transfers.Hand(shared, o.pp-1, 0)
		}
	}
	if slices.ContainsFunc(trunk.of.progs[kept].Graph.Nodes, func(n *ir.Node) bool { return n.Op == ir.OpClipScale }) {
		s.passNorm(o, trunk, way, transfers, x)
	}
	return x
}

// passNorm notes how long the norm of all gradients is on its way (see partition's sums over positions), if blocks have gradients.
func (s *searcher) passNorm(o outline, trunk *work, way *ways, transfers *cost.Program, x *ends) {
	params := trunk.persistentOf(s.batch).params
	if !slices.ContainsFunc(params, func(v blockParam) bool { return v.gradient }) {
		return
	}
	const bytes = 4
	x.up, x.down = make([]cost.Picoseconds, o.pp), make([]cost.Picoseconds, o.pp)
	switch {
	case transfers == nil:
	case o.pp == 2: // they exchange their sums
		x.up[0], x.up[1] = transfers.Hand(bytes, 0, 1), transfers.Hand(bytes, 1, 0)
	default:
		for at := o.pp - 2; at >= 0; at-- {
			x.up[at] = x.up[at+1] + transfers.Hand(bytes, at, at+1)
			x.down[at] = x.down[at+1] + transfers.Hand(bytes, at+1, at)
		}
	}
	cut := func(v blockParam) bool {
		return v.gradient && partition.ReplicaDim(s.shardedOver(o), v.like.Spec, v.like.Type.Shape) >= 0
	}
	if o.zero > 0 && s.replicas(o)*o.cp > 1 && slices.ContainsFunc(params, cut) {
		x.summed = never
		for _, at := range way.places {
			x.summed = min(x.summed, s.collective(o, trunk, at, ir.OpAllReduce, bytes))
		}
	}
}

// collective is the least time of a collective over context-parallel and data-parallel ranks at a place. The latter have the
// share of one of the former, except of a sum that all have.
func (s *searcher) collective(o outline, trunk *work, at *ways, op ir.Op, bytes int64) cost.Picoseconds {
	time := trunk.over(partition.AxisCP, op, bytes, at.spots[0])
	if op != ir.OpAllReduce {
		bytes /= int64(o.cp)
	}
	if s.shardedOver(o) > o.cp {
		time += at.collective(op, bytes)
	}
	return time
}

// moved bounds from below what an outline does for a block beyond the trunk, at a place of its ways: what data-parallel ranks
// communicate, and context-parallel ones of parameters and gradients, copies between device and host, and work on gradients and
// weights (see apart). The gradients of a step are summed once, or from ZeRO stage 2 on in every micro-batch. What is sharded is gathered: new
// weights once, those of stage 3 in every pass. All is in order but for what the stream does, in passes and once, which only
// delays that. With overlap the new weights of a block are gathered beside the update of the next, so that the longer of the
// two counts.
func (s *searcher) moved(o outline, way *ways, lone bool) *workTimes {
	o.pieces = 0 // whatever they are
	key := movedKey{o.sharding, lone}
	if known := way.moved[key]; known != nil {
		return known
	}
	trunk := s.trunkFor(o, lone)
	replicas, ranks := s.replicas(o), s.shardedOver(o)
	t := trunk.apart(o.zero, o.sharers(ranks))
	each := &t[inBlock]
	collective := func(op ir.Op, bytes int64) cost.Picoseconds { return s.collective(o, trunk, way, op, bytes) }
	// Bytes of a block that are communicated in one bucket: those that are gathered for a pass or reduced beside it, and those
	// of the update, except in a pipeline (see codegen's join).
	var gathered [ir.NumPhases]traffic
	var scattered, renewed traffic
	joined := map[ir.Op]int64{}
	// What is summed on the stream once: all of a block, and that without gradients that come with that of the input.
	type sums struct {
		reduced, whole traffic // shares, and what all ranks sum whole
		shares         int64   // what groups sum further
	}
	var all, late sums
	sum := func(v *blockParam, add func(to *sums)) {
		if add(&all); !v.soon {
			add(&late)
		}
	}
	// on is the time of a collective on the stream.
	on := func(op ir.Op, x traffic) cost.Picoseconds {
		time := collective(op, x.bytes)
		if x.overTP > 0 {
			time += trunk.over(partition.AxisTP, op, x.overTP, way.spots[0])
		}
		return time
	}
	// inPasses adds what stands in order before a weight is read, in each pass that reads it.
	inPasses := func(v *blockParam, time cost.Picoseconds) {
		if v.read[ir.Forward] {
			each.forward += time
			each.way += time
			each.all += time
		}
		if v.read[ir.Backward] { // recomputation may need it before the gradient arrives
			each.all += time
			each.ahead += time
		}
	}
	once := func(op ir.Op, bytes int64) {
		if o.pp == 1 {
			joined[op] += bytes
			return
		}
		time := collective(op, bytes)
		if each.update += time; op == ir.OpAllGather {
			each.after += time
		}
	}
	tp := trunk.mesh.Axis(partition.AxisTP)
	for _, v := range trunk.persistentOf(s.batch).params {
		dim := partition.ReplicaDim(ranks, v.like.Spec, v.like.Type.Shape)
		cut, overTP := o.zero > 0 && dim >= 0, int64(0)
		if o.zero > 0 && v.value.Spec[tp].Kind != ir.Shard && o.sharers(1) > 1 {
			// Gradients may be whole on each of them, unless they share the batch.
			if whole := v.gradient && !o.batch; cut && !whole && shardsFurther(o.tp, dim, v.like) {
				overTP = v.bytes
			}
			v.bytes /= int64(o.tp) // whether they are shared out before they are communicated, or after
		}
		whole, part := traffic{v.bytes, overTP}, v.bytes
		if cut {
			part /= int64(ranks)
		}
		switch {
		case v.state && o.offload.Moves():
			each.update += 2 * way.hostCopy(part) // to the device and back
		case v.state || replicas*o.cp == 1:
		case v.gradient && cut && o.zero >= 2 && o.overlap:
			if v.turned {
				break
			}
			scattered = scattered.plus(whole)
			updated := v.ofLike(trunk.mesh) / int64(ranks) // tensor-parallel ranks may have shared out the sum
			all.shares, late.shares = all.shares+min(part, updated), late.shares+min(part, updated)
		case v.gradient && cut && o.zero >= 2:
			bytes := v.bytes
			if v.turned { // into the slices of the weight first, which may be smaller where sizes are odd
				bytes = min(bytes, v.ofLike(trunk.mesh))
			}
			reduce := collective(ir.OpReduceScatter, bytes)
			each.all += reduce
			each.weight += reduce
		case v.gradient:
		case cut && o.zero == 3 && o.overlap:
			for pass := range gathered {
				if v.streamed[pass] {
					gathered[pass] = gathered[pass].plus(whole)
				}
			}
		case cut && o.zero == 3:
			inPasses(&v, collective(ir.OpAllGather, v.bytes))
		case v.frozen: // it is not updated
		case o.overlap && !cut:
			sum(&v, func(to *sums) { to.whole, to.shares = to.whole.plus(whole), to.shares+part })
		case o.overlap:
			renewed = renewed.plus(whole)
			if !o.batch {
				whole.overTP = 0
			}
			if o.zero == 1 {
				sum(&v, func(to *sums) { to.reduced, to.shares = to.reduced.plus(whole), to.shares+part })
			}
		case o.zero == 0:
			once(ir.OpAllReduce, v.bytes)
		case cut && o.zero == 1:
			once(ir.OpReduceScatter, v.bytes)
			once(ir.OpAllGather, v.bytes)
		case cut && o.zero == 2:
			once(ir.OpAllGather, v.bytes)
		}
		if o.offload == partition.OffloadParams && !v.state && !v.gradient {
			inPasses(&v, way.hostCopy(part))
		}
	}
	for _, pass := range []ir.Phase{ir.Forward, ir.Backward} {
		if gathered[pass].bytes > 0 {
			gather := on(ir.OpAllGather, gathered[pass])
			each.all += way.slows(gather)
			each.ahead += 2 * way.slows(gather) // the first two may be given to the stream before what the pass receives arrives
			if pass == ir.Forward {
				each.gathers += gather
				each.forward += way.slows(gather)
			} else {
				each.regathers += gather
			}
		}
	}
	if o.overlap && replicas*o.cp > 1 {
		s.movedAtEnds(o, trunk, way, &t)
	}
	if scattered.bytes > 0 {
		reduce := on(ir.OpReduceScatter, scattered)
		each.reduces += reduce
		each.all += way.slows(reduce)
		each.weight += way.slows(reduce)
	}
	times := func(x *sums) (all [3]cost.Picoseconds) {
		if x.reduced.bytes > 0 {
			all[0] = on(ir.OpReduceScatter, x.reduced)
		}
		if x.whole.bytes > 0 {
			all[1] = on(ir.OpAllReduce, x.whole)
		}
		if groups := s.groups(o); groups > 1 && x.shares > 0 {
			all[2] = way.further(x.shares, groups)
		}
		return all
	}
	ofLate := times(&late)
	for i, reduce := range times(&all) {
		each.once += reduce
		each.soon += reduce - ofLate[i]
		each.update += way.slows(reduce)
		each.closing += way.slows(reduce)
		each.normed += way.slows(reduce)
		each.delays += way.slows(reduce)
	}
	for op, bytes := range joined {
		each.update += collective(op, bytes)
	}
	if renewed.bytes > 0 {
		each.renews = on(ir.OpAllGather, renewed)
		each.update = max(each.update+way.slows(each.renews), each.renews)
	}
	way.moved[key] = &t
	return &t
}

// traffic is bytes of a block that one collective moves over data-parallel ranks, and of those it is made of, or becomes, what one moves
// over tensor-parallel ranks.
type traffic struct{ bytes, overTP int64 }

func (t traffic) plus(u traffic) traffic { return traffic{t.bytes + u.bytes, t.overTP + u.overTP} }

// shardsFurther reports whether a weight that ZeRO shards in a dimension over data-parallel ranks is sharded in another over so many
// tensor-parallel ranks, if these share it.
func shardsFurther(tp, dim int, v *ir.Value) bool {
	for d, size := range v.Type.Shape {
		if d != dim && size >= tp && !v.Spec.Shards(d) {
			return tp > 1
		}
	}
	return false
}

// over is the least time of a collective of what ZeRO shards, or of gradients, over the ranks of an axis of the trunk: nothing without it.
func (w *work) over(name string, op ir.Op, bytes int64, at spot) cost.Picoseconds {
	axis := w.mesh.Axis(name)
	if axis < 0 {
		return 0
	}
	least := never
	for _, price := range w.on(at) {
		time := price.Replicas
		if name == partition.AxisTP {
			time = price.Sharers
		}
		least = min(least, time(op, bytes, price.Group(axis)))
	}
	return least
}

// apart bounds from below, for a block, the work of the trunk's program that is not in the trunk (see work.rest): it narrows
// and adds up gradients, and updates weights. Under a ZeRO stage over so many ranks gradients are whole up to stage 1, and
// each rank updates a share from stage 1 on. A kernel on a share of the data takes at least that share of the time of the
// whole, priced as if that lay in the cache: the share may fit in it where the whole does not.
func (w *work) apart(zero, ranks int) workTimes {
	if w.restTimes == nil {
		w.restTimes, w.restNear = w.timeRest(func(p *cost.Program) *cost.Program { return p }), w.timeRest((*cost.Program).Near)
	}
	t := *w.restTimes
	block := &t[inBlock]
	if zero >= 1 {
		near := &w.restNear[inBlock]
		share := cost.Picoseconds(ranks)
		block.update, block.closing, block.normed, block.after = near.update/share, near.closing/share, near.normed/share, near.after/share
	}
	if zero >= 2 {
		*block = partTimes{update: block.update, closing: block.closing, normed: block.normed, after: block.after}
	}
	return t
}

// timeRest returns the time of the rest on the fastest kinds of devices. by changes the prices that it takes.
func (w *work) timeRest(by func(*cost.Program) *cost.Program) *workTimes {
	var least *workTimes
	for _, kinds := range w.everywhere() {
		t, price := &workTimes{}, by(w.on(spot{kinds: kinds})[0])
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

// again returns the recomputation that the memory limit makes necessary under an outline, with micro-batches of a size and a
// schedule. It is nil where the outline has no trunk.
func (s *searcher) again(o outline, size int, schedule partition.Schedule) *again {
	trunk := s.trunk(o)
	if trunk == nil {
		return nil
	}
	persist, slots, temp := s.kept(o, size, schedule)
	return &again{
		limit: s.limit - temp, persist: persist, slots: slots, more: *trunk.recomputeTimesOf(recomputeKey{size, inOrder(schedule), o.pieces > 0 && (size > 1 || s.ofParts(o))}, s.batch),
		among: s.opts.recompute(o.replicate).extents(), alike: o.chunks > 1,
	}
}

// kept bounds the memory of a block of an outline from below: persistent bytes; bytes of a slot, for one micro-batch in flight,
// at each moment at which slots may peak; and temporary bytes, 0 where these may lie in slots. Slots peak before the backward
// pass, or under a zero-bubble schedule perhaps after it, when they have what weight gradients read.
func (s *searcher) kept(o outline, size int, schedule partition.Schedule) (persist int64, slots [][extents]int64, temp int64) {
	trunk := s.trunk(o)
	all := trunk.slotsOf(size, s.batch)
	slots = [][extents]int64{all.slot}
	if schedule.SplitsBackward() {
		slots = append(slots, all.apart)
	}
	if !inOrder(schedule) {
		temp = all.temp
	}
	m, _ := s.split(o, size)
	return s.trunkFor(o, s.lone(m)).persistentOf(s.batch).bytes(o, s.shardedOver(o), m == 1 && o.stages() == 1), slots, temp
}

// shardedOver is the number of ranks that ZeRO shards over: data-parallel ones, and all that share their sequences.
func (s *searcher) shardedOver(o outline) int { return cmp.Or(o.group, s.replicas(o)) * o.cp }

// groups is how many ZeRO groups have a complete copy each.
func (s *searcher) groups(o outline) int { return s.replicas(o) * o.cp / s.shardedOver(o) }

// again bounds from below the time that recomputation adds to one backward pass of a position, as its blocks must fit.
type again struct {
	limit   int64                     // bytes, less those of temporary values
	persist int64                     // bytes of a block
	slots   [][extents]int64          // bytes of a block for a micro-batch in flight, at each moment that kept lists
	more    [extents]cost.Picoseconds // time that recomputation adds to a block
	among   []extent                  // what blocks may be recomputed to
	alike   bool                      // all blocks of the position have the same extent, as interleaved schedules have it
}

// time returns the time that recomputation adds to n blocks, never if they do not fit. flights is the sum, over these blocks, of
// the micro-batches in flight. Fractions of blocks may have different extents, which relaxes whole numbers of blocks: so it
// is a lower bound, and does not decrease with n.
func (a *again) time(n, flights int) cost.Picoseconds {
	if a == nil {
		return 0
	}
	room := float64(a.limit-int64(n)*a.persist) / float64(flights) // bytes of a slot for a block, on average
	most := cost.Picoseconds(0)
	for i := range a.slots {
		most = max(most, a.of(&a.slots[i], room))
	}
	if most == never {
		return never
	}
	return cost.Picoseconds(n) * most
}

// of returns the least average time of a block whose slots have at most room bytes on average. It is a linear program with two
// constraints, an optimum of which mixes two extents at most.
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
			// A part of the blocks has extent x, the others y.
			x, y := e, f
			if slot[x] > slot[y] {
				x, y = y, x
			}
			if low, high := float64(slot[x]), float64(slot[y]); low <= room && room < high {
				part := (high - room) / (high - low) // of the blocks, with extent x
				mixed := part*float64(a.more[x]) + (1-part)*float64(a.more[y])
				least = min(least, cost.Picoseconds(mixed*(1-1e-9)))
			}
		}
	}
	return least
}

// keeps bounds from below the peak memory of the fullest rank under an outline, however its blocks are cut and recomputed.
func (s *searcher) keeps(o outline, size int, schedule partition.Schedule) int64 {
	if s.trunk(o) == nil {
		return 0
	}
	persist, slot, temp := s.keepsLeast(o, size, schedule)
	m, _ := s.split(o, size)
	each := make([]int64, o.pp) // bytes of a block, by position
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

// keepsLeast is kept with the smallest slot that any extent of recomputation has, at the moment at which that is largest.
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

// leastKept is the least of keepsOfOne over micro-batch sizes and schedules. The smallest size keeps the least, or a step of one
// micro-batch, whose gradients need no room of their own with one stage, and less where they are of two bytes.
func (s *searcher) leastKept(o outline) int64 {
	least := int64(math.MaxInt64)
	sizes := s.sizes(o)
	for _, schedule := range schedules(s.opts, o.pp, o.chunks) {
		for _, b := range sizes {
			if m, _ := s.split(o, b); m > 1 && b > sizes[0] {
				continue
			}
			least = min(least, s.keepsOfOne(o, b, schedule))
		}
	}
	return least
}

// mayFit reports whether any outline may have a plan that fits, by leastKept.
func (s *searcher) mayFit() bool {
	return slices.ContainsFunc(s.tracts, func(t *tract) bool {
		return s.leastKept(t.outline) <= s.limit || slices.ContainsFunc(s.sparing(t.pending), func(p *pending) bool { return s.leastKept(p.outline) <= s.limit })
	})
}

// rooms lists the slots and inboxes of every position and chunk of an outline (see codegen.Room).
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

// roomsKey is what rooms depend on.
type roomsKey struct {
	schedule                 partition.Schedule
	pp, chunks, microBatches int
}
