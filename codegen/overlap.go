package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// With [partition.Plan.Overlap], communication whose result is not needed at once moves to the rank's
// communication stream and runs at the same time as kernels (Li et al. VLDB'20, section 3.2.3; Zhao et al.
// VLDB'23, section 3.3). A body is cut into segments: its repeated blocks, and what lies before, between and
// after them. For each segment
//
//   - the parameters that it needs (ZeRO 3) are gathered while the previous segment computes;
//   - the gradients that it completes are reduced while the next segment computes. Gradients that are first
//     accumulated over micro-batches are reduced in the last micro-batch only, after the segment has rounded
//     them if the reduced type is narrower than that of the sum. Others (ZeRO 2 and 3) are reduced in each
//     micro-batch and accumulated one segment later. What is left to reduce after that, in the last micro-batch,
//     as over the groups of ZeRO or tensor-parallel ranks, is reduced from then on; in a pass of a rank's only
//     chunk that sends to another stage not before its end, as later segments wait for reductions that come on the
//     stream after it, and that stage for the gradient;
//   - the weights that it updates (ZeRO 1 and 2) are gathered while the next segment updates.
//
// Collectives of one kind over one axis that a segment hands over together form a bucket. Blocks are alike, so
// every inner block adds the same instructions to a body, which the planner relies on.
//
// Each chunk's share of a body has segments of its own. What runs only in the last micro-batch is awaited
// before the update, not at the end of its task. So with interleaved stages the gradients of one chunk are
// reduced while the next chunks run, and under a zero-bubble schedule the gradients that are complete first are
// reduced while the others are computed.

// chunkBody is a chunk's share of a body.
type chunkBody struct {
	phase ir.Phase
	chunk int
}

// spot is the place of a node's instruction, where it is not simply the place of the node in the body of its
// phase.
type spot struct {
	async, last bool
	delayed     bool      // see [Instr.Delayed]
	in          chunkBody // where it stands, if it is async or last
	segment     int
	await       *ir.Node // an asynchronous node that must be done before this one starts
}

// bodyOf returns the phase of the body that contains a node's instruction.
func (b *stageBuilder) bodyOf(n *ir.Node) ir.Phase { return b.chunkBodyOf(n).phase }

// chunkBodyOf returns that phase, and the chunk.
func (b *stageBuilder) chunkBodyOf(n *ir.Node) chunkBody {
	if s := b.spot(n); s.async || s.last {
		return s.in
	}
	return chunkBody{n.Phase, b.chunk(n)}
}

// spot returns the spot of a node; it is zero without overlap.
func (b *stageBuilder) spot(n *ir.Node) spot {
	if b.spots == nil {
		return spot{}
	}
	return b.spots[n.ID()]
}

// segment is a stretch of a chunk's share of a body.
type segment struct {
	nodes   []*ir.Node
	gathers []*ir.Node // gathers that must be done before it starts
	narrows []*ir.Node // casts of gradients at its end, in the last micro-batch
	reduces []*ir.Node // collectives whose operands it makes
	delayed delayed    // what waits for reduces
}

// delayed is what follows the reductions of a segment that are made in every micro-batch.
type delayed struct {
	sums    []*ir.Node // accumulations, and the casts before them
	narrows []*ir.Node // casts of those sums, in the last micro-batch
	reduces []*ir.Node // collectives that reduce those sums further, in the last micro-batch
}

// overlap reorders the nodes of the stage and decides which of them run on the communication stream. It must
// run after accumulators, because it needs to know which accumulations are folded.
func (b *stageBuilder) overlap() {
	if !b.prog.Plan.Overlap {
		return
	}
	var leaves []*ir.Node
	bodies := make([][]*ir.Node, len(b.Bodies))
	for _, n := range b.nodes {
		if b.silent(n) {
			leaves = append(leaves, n)
		} else {
			bodies[n.Phase] = append(bodies[n.Phase], n)
		}
	}
	hoisted := b.hoist(bodies[ir.Update])
	b.nodes = leaves
	for phase, nodes := range bodies {
		for len(nodes) > 0 {
			of, length := chunkBody{phase: ir.Phase(phase)}, len(nodes)
			if of.phase != ir.Update {
				of.chunk = b.chunk(nodes[0])
				if other := slices.IndexFunc(nodes, func(n *ir.Node) bool { return b.chunk(n) != of.chunk }); other > 0 {
					length = other
				}
			}
			b.nodes = append(b.nodes, b.stream(of, nodes[:length], bodies[ir.Update], hoisted)...)
			nodes = nodes[length:]
		}
	}
}

// hoist finds nodes of the update that can already run during the last micro-batch: reductions whose operand is
// complete after a pass of it, together with the casts of such operands. It returns the chunk and pass in
// which each of them becomes ready, and whether the operand is delayed. A single chunk must make all operands.
func (b *stageBuilder) hoist(update []*ir.Node) map[*ir.Node]ready {
	hoisted := map[*ir.Node]ready{}
	complete := map[*ir.Value]ready{}
	for _, n := range b.nodes {
		if n.Op == ir.OpAccumulate && n.Phase != ir.Forward {
			complete[n.Results[0]] = ready{chunkBody{n.Phase, b.chunk(n)}, b.delayed(n)}
		}
	}
	for _, n := range update {
		var of ready
		for i, a := range n.Args {
			p, ok := complete[a]
			if !ok || i > 0 && p.chunk != of.chunk {
				of.phase = ir.Update
				break
			}
			of = ready{chunkBody{max(of.phase, p.phase), p.chunk}, of.delayed || p.delayed}
		}
		switch {
		case len(n.Args) == 0 || of.phase == ir.Update:
		case b.folded[n.ID()]:
			complete[n.Results[0]] = of
		case reduces(n), n.Op == ir.OpCast && slices.ContainsFunc(b.readers[n.ID()], reduces):
			complete[n.Results[0]] = of
			hoisted[n] = of
		}
	}
	return hoisted
}

// ready says where a sum of gradients is complete.
type ready struct {
	chunkBody
	delayed bool // after the reductions of its segment
}

// reduces reports whether a node is a collective that sums over ranks.
func reduces(n *ir.Node) bool { return n.Op == ir.OpAllReduce || n.Op == ir.OpReduceScatter }

// delayed reports whether a node adds up the result of a reduction that runs in every micro-batch: an
// accumulation, or the cast to the type of the sum before it.
func (b *stageBuilder) delayed(n *ir.Node) bool {
	if n.Op != ir.OpAccumulate && !b.widens(n) {
		return false
	}
	d := n.Args[0].Def
	return d.Phase == n.Phase && (reduces(d) || b.widens(d) && b.delayed(d))
}

// widens reports whether a node casts a gradient of a micro-batch to the type of the sum, only to be accumulated.
func (b *stageBuilder) widens(n *ir.Node) bool {
	readers := b.readers[n.ID()]
	return n.Op == ir.OpCast && n.Phase != ir.Update && len(readers) > 0 && !b.keep[n.ID()] &&
		!slices.ContainsFunc(readers, func(r *ir.Node) bool { return r.Op != ir.OpAccumulate })
}

// stream returns the nodes of a chunk's body in the order in which they are issued, including those hoisted from
// the update.
func (b *stageBuilder) stream(here chunkBody, nodes, update []*ir.Node, hoisted map[*ir.Node]ready) []*ir.Node {
	phase := here.phase
	segments, of := b.cutSegments(b.remaining(phase, nodes, hoisted))
	place := func(n *ir.Node, last bool) {
		b.spots[n.ID()] = spot{async: true, last: last, in: here}
	}
	readBy := map[*ir.Value]int{} // by gathered value: the first segment that reads it
	for i := len(segments) - 1; i >= 0; i-- {
		for _, n := range segments[i].nodes {
			for _, a := range n.Args {
				if a.Def.Op == ir.OpAllGather {
					readBy[a] = i
				}
			}
		}
	}
	// made returns the segment that makes a value. If an earlier pass makes it, that is the first segment of
	// its block.
	made := func(v *ir.Value) int {
		if at, here := of[v.Def]; here {
			return at
		}
		return max(0, slices.IndexFunc(segments, func(s segment) bool {
			return slices.ContainsFunc(s.nodes, func(n *ir.Node) bool { return n.Op.Class() == ir.Compute && n.Block() == v.Def.Block() })
		}))
	}
	for i := len(nodes) - 1; i >= 0; i-- { // backward: in a chain of gathers, readers come first
		if n := nodes[i]; b.prefetched(n) {
			at := readBy[n.Results[0]]
			readBy[n.Args[0]] = at
			segments[at].gathers = append(segments[at].gathers, n)
			place(n, false)
		}
	}
	for _, n := range nodes {
		switch {
		case b.reducedEach(n), phase == ir.Update && b.regathered(n):
			at := made(n.Args[0])
			of[n] = at
			segments[at].reduces = append(segments[at].reduces, n)
			place(n, false)
		case b.delayed(n):
			at := of[n.Args[0].Def]
			of[n] = at
			segments[at].delayed.sums = append(segments[at].delayed.sums, n)
		}
	}
	for _, n := range update {
		if in, ok := hoisted[n]; ok && in.chunkBody == here {
			at := b.completed(n.Args[0], of)
			of[n] = at
			narrows, reduces := &segments[at].narrows, &segments[at].reduces
			if in.delayed {
				narrows, reduces = &segments[at].delayed.narrows, &segments[at].delayed.reduces
			}
			if n.Op == ir.OpCast {
				*narrows = append(*narrows, n)
				b.spots[n.ID()] = spot{last: true, in: here}
				continue
			}
			*reduces = append(*reduces, n)
			place(n, true)
		}
	}
	return b.interleave(segments, b.prog.Plan.Chunks() == 1 && slices.ContainsFunc(nodes, func(n *ir.Node) bool { return n.Op == ir.OpSend }))
}

// completed returns the segment after which a value is complete.
func (b *stageBuilder) completed(v *ir.Value, of map[*ir.Node]int) int {
	if !b.folded[v.Def.ID()] {
		return of[v.Def]
	}
	at := 0
	for _, a := range v.Def.Args {
		at = max(at, b.completed(a, of))
	}
	return at
}

// remaining returns the nodes of a body that are not moved.
func (b *stageBuilder) remaining(phase ir.Phase, nodes []*ir.Node, hoisted map[*ir.Node]ready) []*ir.Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *ir.Node) bool {
		_, up := hoisted[n]
		return up || b.prefetched(n) || b.reducedEach(n) || phase == ir.Update && b.regathered(n) || b.delayed(n)
	})
}

// prefetched reports whether a node gathers a parameter for a pass, directly or as a step of a chain of
// gathers.
func (b *stageBuilder) prefetched(n *ir.Node) bool {
	return n.Op == ir.OpAllGather && n.Phase != ir.Update && (n.Args[0].Def.Op == ir.OpParam || b.prefetched(n.Args[0].Def))
}

// reducedEach reports whether a node reduces a gradient in every micro-batch, only to be accumulated.
func (b *stageBuilder) reducedEach(n *ir.Node) bool {
	if n.Phase == ir.Update || n.Phase == ir.Forward || !reduces(n) {
		return false
	}
	readers := b.readers[n.ID()]
	for _, r := range readers {
		if r.Op != ir.OpAccumulate && !b.reducedEach(r) && !(b.widens(r) && r.Phase == n.Phase) {
			return false
		}
	}
	return len(readers) > 0 && !b.keep[n.ID()]
}

// regathered reports whether a node gathers an updated weight, over one axis or as a step of a chain over
// several.
func (b *stageBuilder) regathered(n *ir.Node) bool {
	readers := b.readers[n.ID()]
	if n.Op != ir.OpAllGather || len(readers) == 0 {
		return n.Op == ir.OpAllGather && b.next[n.ID()]
	}
	return !b.next[n.ID()] && !slices.ContainsFunc(readers, func(r *ir.Node) bool { return !b.regathered(r) })
}

// cutSegments cuts the nodes of a body where the block changes. The update does one step (see stepOf) for the
// parameters of all blocks, then the next step; there it also cuts where the step changes. Communication
// belongs to the segment that reads the result, except that accumulations and sends belong to the one that
// makes the operand.
func (b *stageBuilder) cutSegments(nodes []*ir.Node) ([]segment, map[*ir.Node]int) {
	segments := []segment{{}}
	of := make(map[*ir.Node]int, len(nodes))
	var ahead []*ir.Node
	var before *ir.Node
	add := func(nodes ...*ir.Node) {
		last := len(segments) - 1
		for _, n := range nodes {
			of[n] = last
		}
		segments[last].nodes = append(segments[last].nodes, nodes...)
	}
	for _, n := range nodes {
		switch {
		case n.Op == ir.OpAccumulate || n.Op == ir.OpSend:
			add(append(ahead, n)...)
			ahead = ahead[:0]
		case n.Op.Class() != ir.Compute:
			ahead = append(ahead, n)
		default:
			if before != nil && (n.Block() != before.Block() || n.Phase == ir.Update && stepOf(n) != stepOf(before)) {
				if n.Phase != ir.Update {
					ahead = slices.DeleteFunc(ahead, func(c *ir.Node) bool {
						made := !b.computedWith(c)
						if made {
							add(c)
						}
						return made
					})
				}
				segments = append(segments, segment{})
			}
			before = n
			add(append(ahead, n)...)
			ahead = ahead[:0]
		}
	}
	add(ahead...)
	return segments, of
}

// stepOf returns the op that a node of the update counts as: its own, except that the cast of a new master
// weight counts as part of AdamW.
func stepOf(n *ir.Node) ir.Op {
	if n.Op == ir.OpCast && n.Args[0].Def.Op == ir.OpAdamW {
		return ir.OpAdamW
	}
	return n.Op
}

// computedWith reports whether a kernel reads what a node communicates, directly or after further
// communication. If none does but a cast to the type of a sum, the value is a gradient that is only going to
// be accumulated.
func (b *stageBuilder) computedWith(n *ir.Node) bool {
	return slices.ContainsFunc(b.readers[n.ID()], func(r *ir.Node) bool {
		return r.Op.Class() == ir.Compute && !b.widens(r) || r.Op.Class() == ir.Comm && r.Op != ir.OpAccumulate && b.computedWith(r)
	})
}

// interleave concatenates the segments. Each is preceded by what the communication stream gets when it starts,
// the reductions of the previous segment and the gathers for the next one, and by the sums of the segment before
// that, with what is left to reduce of them; lastly says that this waits for the end of the body.
func (b *stageBuilder) interleave(segments []segment, lastly bool) []*ir.Node {
	var nodes []*ir.Node
	at := func(k int) *segment {
		if k < 0 || k >= len(segments) {
			return &segment{}
		}
		return &segments[k]
	}
	hand := func(async *[]*ir.Node) {
		slices.SortStableFunc(*async, func(x, y *ir.Node) int { return depth(x, *async) - depth(y, *async) })
		*async = b.bucket(*async)
		nodes = append(nodes, *async...)
	}
	for k := range segments {
		slices.Reverse(segments[k].gathers) // stream lists them last to first
	}
	hand(&at(0).gathers)
	for k := range len(segments) + 2 {
		hand(&at(k - 1).reduces)
		hand(&at(k + 1).gathers)
		after := &at(k - 2).delayed
		b.hold(after.sums, at(k-2).reduces)
		nodes = append(append(nodes, after.sums...), after.narrows...)
		if !lastly {
			hand(&after.reduces)
		}
		b.hold(at(k).nodes, at(k).gathers)
		nodes = append(nodes, at(k).nodes...)
		nodes = append(nodes, at(k).narrows...)
	}
	if lastly {
		for k := range segments {
			hand(&segments[k].delayed.reduces)
		}
	}
	for k, s := range segments {
		for _, list := range [][]*ir.Node{s.nodes, s.narrows, s.gathers, s.reduces} {
			for _, n := range list {
				b.spots[n.ID()].segment = k
			}
		}
		for _, list := range [][]*ir.Node{s.delayed.sums, s.delayed.narrows, s.delayed.reduces} {
			for _, n := range list {
				b.spots[n.ID()].segment, b.spots[n.ID()].delayed = k, true
			}
		}
	}
	return nodes
}

// hold makes the first of nodes wait for all asynchronous nodes of a list that run in every micro-batch.
func (b *stageBuilder) hold(nodes, async []*ir.Node) {
	if len(nodes) == 0 {
		return
	}
	for _, n := range async {
		if !b.spots[n.ID()].last {
			b.spots[nodes[0].ID()].await = n
		}
	}
}

// depth returns the length of the chain of nodes of a list that ends with n's operand.
func depth(n *ir.Node, list []*ir.Node) int {
	if d := n.Args[0].Def; slices.Contains(list, d) {
		return 1 + depth(d, list)
	}
	return 0
}

// bucket reorders asynchronous nodes so that those of one bucket are adjacent, and marks all but the first of
// each bucket as fused.
func (b *stageBuilder) bucket(async []*ir.Node) []*ir.Node {
	var nodes []*ir.Node
	taken := map[*ir.Node]bool{}
	for i, first := range async {
		if taken[first] {
			continue
		}
		nodes = append(nodes, first)
		for _, n := range async[i+1:] {
			if taken[n] || !b.together(first, n) || depth(n, async) != depth(first, async) {
				continue
			}
			b.fused[n.ID()] = true
			taken[n] = true
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// together reports whether two nodes can share a bucket.
func (b *stageBuilder) together(x, y *ir.Node) bool {
	return x.Op == y.Op && x.Attr.(ir.CommAttr).Axis == y.Attr.(ir.CommAttr).Axis && b.spots[x.ID()].last == b.spots[y.ID()].last
}

// awaits sets Await for the instructions of a task. An instruction waits for the asynchronous ones that make
// its operands, and the first of a segment waits for the gathers of the segment. It need not wait if an earlier
// instruction has waited for as many.
func (b *stageBuilder) awaits(instrs []Instr) {
	if b.spots == nil {
		return
	}
	number := map[*ir.Node]int{} // by node: the asynchronous instructions up to the end of its bucket
	issued := 0
	for i := range instrs {
		if !instrs[i].Async {
			continue
		}
		issued++
		number[instrs[i].Node] = issued
		for k := i - 1; k >= 0 && instrs[k+1].Fused; k-- {
			number[instrs[k].Node] = issued
		}
	}
	done := 0
	for i := range instrs {
		in := &instrs[i]
		if in.Async {
			continue
		}
		need := 0
		if in.Node.Op != ir.OpRecv {
			for _, a := range in.Node.Args {
				need = max(need, number[a.Def])
			}
		}
		if n := b.spots[in.Node.ID()].await; n != nil {
			need = max(need, number[n])
		}
		if need > done {
			in.Await, done = need, need
		}
	}
}

// joined returns, for each instruction of a task, the last index at which it may still be running:
//
//   - usually its own;
//   - in a bucket, that of the bucket's last instruction;
//   - for a collective with kernels beside it, that of the last of them;
//   - for an asynchronous instruction, the index before the first one that waits for it, or the end of the
//     task;
//   - for a posted send, the end of the task.
//
// What runs beyond the end of the task uses buffers that live on.
func joined(instrs []Instr) []int {
	last := make([]int, len(instrs))
	var running []int // asynchronous instructions that nothing has awaited yet, in order
	done := 0
	for i := range instrs {
		for ; done < instrs[i].Await && len(running) > 0; done++ {
			last[running[0]] = i - 1
			running = running[1:]
		}
		if last[i] = i; instrs[i].Posted {
			last[i] = len(instrs) - 1
		}
		if instrs[i].Async {
			running = append(running, i)
		}
	}
	for _, i := range running {
		last[i] = len(instrs) - 1
	}
	for i := range last {
		last[i] = max(last[i], i+instrs[i].Beside)
	}
	for i := len(last) - 2; i >= 0; i-- {
		if instrs[i+1].Fused {
			last[i] = max(last[i], last[i+1])
		}
	}
	return last
}
