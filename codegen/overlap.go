package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// Overlap moves communication that nothing waits for at once to the rank's
// communication stream, beside the kernels (Li et al. VLDB'20, section 3.2.3; Zhao
// et al. VLDB'23, section 3.3). A body falls into segments: its repeated blocks,
// and what lies before, between and after them. Of each segment
//
//   - the parameters gathered for it (ZeRO 3) are gathered while the segment
//     before computes,
//   - the gradients that it completes are reduced while the next one computes:
//     where they are accumulated over micro-batches first, in the last
//     micro-batch only, after the segment has rounded them if their type is
//     narrower than that of the sum, and otherwise in each, to be accumulated a
//     segment later,
//   - the weights that it updates are gathered (ZeRO 1 and 2) while the next one
//     updates.
//
// Collectives of one kind over one axis that a segment hands over together are
// made in one go. Blocks are alike, so every inner block adds the same
// instructions to a body: the planner counts on it.
//
// The body of each chunk falls into segments of its own. What runs in the last
// micro-batch only is waited for before the update, not at the end of its task: of
// interleaved stages the gradients of one are reduced while the next go on, and
// under a zero-bubble schedule those that are complete first while the others are made.

// spot is where the instruction of a node stands, if not simply at the place of
// the node in the body of its phase.
type spot struct {
	async, last bool
	part        part // of an asynchronous node
	segment     int
	await       *ir.Node // it does not start before this asynchronous node is done
}

// bodyOf returns the body that the instruction of a node belongs to.
func (b *stageBuilder) bodyOf(n *ir.Node) ir.Phase { return b.partOf(n).phase }

// partOf returns the part of that body.
func (b *stageBuilder) partOf(n *ir.Node) part {
	if s := b.spot(n); s.async || s.last {
		return s.part
	}
	return part{n.Phase, b.chunk(n)}
}

// spot returns where a node stands, the zero spot without overlap.
func (b *stageBuilder) spot(n *ir.Node) spot {
	if b.spots == nil {
		return spot{}
	}
	return b.spots[n.ID()]
}

// segment is a stretch of a body.
type segment struct {
	nodes   []*ir.Node
	gathers []*ir.Node // what must be gathered before it
	narrows []*ir.Node // gradients that are rounded at its end, in the last micro-batch
	reduces []*ir.Node // what can be communicated after it
	sums    []*ir.Node // accumulations that wait for those
}

// overlap reorders the nodes of the stage, and says which run on the
// communication stream. It needs to know which accumulations are folded.
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
			of, length := part{phase: ir.Phase(phase)}, len(nodes)
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

// hoist finds the reductions of the update whose operand is complete when the
// last micro-batch has gone backward, with the rounding of operands before them,
// and the part of a body in which that happens: one chunk must make all of it.
func (b *stageBuilder) hoist(update []*ir.Node) map[*ir.Node]part {
	hoisted := map[*ir.Node]part{}
	complete := map[*ir.Value]part{}
	for _, n := range b.nodes {
		if n.Op == ir.OpAccumulate && n.Phase != ir.Forward && !b.delayed(n) {
			complete[n.Results[0]] = part{n.Phase, b.chunk(n)}
		}
	}
	for _, n := range update {
		var of part
		for i, a := range n.Args {
			p, ok := complete[a]
			if !ok || i > 0 && p.chunk != of.chunk {
				of.phase = ir.Update
				break
			}
			of = part{max(of.phase, p.phase), p.chunk}
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

// reduces reports whether a node sums what ranks have.
func reduces(n *ir.Node) bool { return n.Op == ir.OpAllReduce || n.Op == ir.OpReduceScatter }

// delayed reports whether an accumulation adds up what a reduction of every
// micro-batch makes.
func (b *stageBuilder) delayed(n *ir.Node) bool {
	d := n.Args[0].Def
	return !b.folded[n.ID()] && d.Phase == n.Phase && reduces(d)
}

// stream returns the nodes of a part of a body in the order in which they are given to
// the streams, those hoisted from the update included.
func (b *stageBuilder) stream(here part, nodes, update []*ir.Node, hoisted map[*ir.Node]part) []*ir.Node {
	phase := here.phase
	segments, of := b.cutSegments(b.remaining(phase, nodes, hoisted))
	place := func(n *ir.Node, last bool) {
		b.spots[n.ID()] = spot{async: true, last: last, part: here}
	}
	readBy := map[*ir.Value]int{} // the first segment that reads a gathered value
	for i := len(segments) - 1; i >= 0; i-- {
		for _, n := range segments[i].nodes {
			for _, a := range n.Args {
				if a.Def.Op == ir.OpAllGather {
					readBy[a] = i
				}
			}
		}
	}
	// made is the segment that makes a value, or if a pass before has, the first of its block.
	made := func(v *ir.Value) int {
		if at, here := of[v.Def]; here {
			return at
		}
		return max(0, slices.IndexFunc(segments, func(s segment) bool {
			return slices.ContainsFunc(s.nodes, func(n *ir.Node) bool { return n.Op.Class() == ir.Compute && n.Block() == v.Def.Block() })
		}))
	}
	for i := len(nodes) - 1; i >= 0; i-- { // chains of gathers: their readers first
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
		case n.Op == ir.OpAccumulate && b.delayed(n):
			at := of[n.Args[0].Def]
			segments[at].sums = append(segments[at].sums, n)
		}
	}
	for _, n := range update {
		if in, ok := hoisted[n]; ok && in == here {
			at := b.completed(n.Args[0], of)
			of[n] = at
			if n.Op == ir.OpCast {
				segments[at].narrows = append(segments[at].narrows, n)
				b.spots[n.ID()] = spot{last: true, part: here}
				continue
			}
			segments[at].reduces = append(segments[at].reduces, n)
			place(n, true)
		}
	}
	return b.interleave(segments)
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

// remaining returns the nodes of a body that stay where they are.
func (b *stageBuilder) remaining(phase ir.Phase, nodes []*ir.Node, hoisted map[*ir.Node]part) []*ir.Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *ir.Node) bool {
		_, up := hoisted[n]
		return up || b.prefetched(n) || b.reducedEach(n) || phase == ir.Update && b.regathered(n) || n.Op == ir.OpAccumulate && b.delayed(n)
	})
}

// prefetched reports whether a node gathers a parameter for a pass.
func (b *stageBuilder) prefetched(n *ir.Node) bool {
	return n.Op == ir.OpAllGather && n.Phase != ir.Update && (n.Args[0].Def.Op == ir.OpParam || b.prefetched(n.Args[0].Def))
}

// reducedEach reports whether a node reduces a gradient in every micro-batch, for
// nothing but to be accumulated.
func (b *stageBuilder) reducedEach(n *ir.Node) bool {
	if n.Phase == ir.Update || n.Phase == ir.Forward || !reduces(n) {
		return false
	}
	readers := b.readers[n.ID()]
	for _, r := range readers {
		if r.Op != ir.OpAccumulate && !b.reducedEach(r) {
			return false
		}
	}
	return len(readers) > 0 && !b.keep[n.ID()]
}

// regathered reports whether a node makes an updated weight whole again, over one axis or, with
// others after it, over several.
func (b *stageBuilder) regathered(n *ir.Node) bool {
	readers := b.readers[n.ID()]
	if n.Op != ir.OpAllGather || len(readers) == 0 {
		return n.Op == ir.OpAllGather && b.next[n.ID()]
	}
	return !b.next[n.ID()] && !slices.ContainsFunc(readers, func(r *ir.Node) bool { return !b.regathered(r) })
}

// cutSegments cuts the nodes of a body where the block changes, or in the update,
// which does one thing to the parameters of all blocks after the other: its step.
// Communication belongs to who reads it, but what is summed or sent to who made it.
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

// stepOf is what an update does with a node: the op, but that new master copies are rounded as they are made.
func stepOf(n *ir.Node) ir.Op {
	if n.Op == ir.OpCast && n.Args[0].Def.Op == ir.OpAdamW {
		return ir.OpAdamW
	}
	return n.Op
}

// computedWith reports whether a kernel reads what a node communicates, or what others that do no more make of it. If none does
// that is a gradient, on its way to be summed.
func (b *stageBuilder) computedWith(n *ir.Node) bool {
	return slices.ContainsFunc(b.readers[n.ID()], func(r *ir.Node) bool {
		return r.Op.Class() == ir.Compute || r.Op.Class() == ir.Comm && r.Op != ir.OpAccumulate && b.computedWith(r)
	})
}

// interleave puts the segments one after another, each after what is handed to
// the communication stream at its start: the reductions of the segment before
// and the gathers for the one after.
func (b *stageBuilder) interleave(segments []segment) []*ir.Node {
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
		slices.Reverse(segments[k].gathers) // they were found from the end
	}
	hand(&at(0).gathers)
	for k := range len(segments) + 2 {
		hand(&at(k - 1).reduces)
		hand(&at(k + 1).gathers)
		nodes = append(nodes, at(k-2).sums...)
		b.hold(at(k-2).sums, at(k-2).reduces)
		b.hold(at(k).nodes, at(k).gathers)
		nodes = append(nodes, at(k).nodes...)
		nodes = append(nodes, at(k).narrows...)
	}
	for k, s := range segments {
		for _, list := range [][]*ir.Node{s.nodes, s.narrows, s.gathers, s.reduces, s.sums} {
			for _, n := range list {
				b.spots[n.ID()].segment = k
			}
		}
	}
	return nodes
}

// hold makes the first of some nodes wait for all asynchronous ones of a list, but
// those that do not run in every micro-batch.
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

// depth is how many others of a list a node reads from, one through the next.
func depth(n *ir.Node, list []*ir.Node) int {
	if d := n.Args[0].Def; slices.Contains(list, d) {
		return 1 + depth(d, list)
	}
	return 0
}

// bucket brings together what is made in one go, and marks all but the first of
// each bucket.
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

// together reports whether two nodes can be made in one collective.
func (b *stageBuilder) together(x, y *ir.Node) bool {
	return x.Op == y.Op && x.Attr.(ir.CommAttr).Axis == y.Attr.(ir.CommAttr).Axis && b.spots[x.ID()].last == b.spots[y.ID()].last
}

// awaits says of every instruction of a task for how many of the task's asynchronous
// ones it waits: those that make what it reads, and at the head of a segment those
// that gather for it. An instruction that follows one which waits for as many
// need not wait again.
func (b *stageBuilder) awaits(instrs []Instr) {
	if b.spots == nil {
		return
	}
	number := map[*ir.Node]int{} // of asynchronous instructions, with the rest of the bucket
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

// joined returns for each instruction of a task the last position at which it may
// still be running: its own, of a bucket that of the last in it, of a collective that of the
// last kernel beside it, of an asynchronous one that before the first which waits for it, else the end, and of a posted send
// the end. (What runs on beyond the end has buffers that last.)
func joined(instrs []Instr) []int {
	last := make([]int, len(instrs))
	var running []int // asynchronous ones that nothing has waited for, in order
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
