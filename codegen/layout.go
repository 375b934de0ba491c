package codegen

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// stageBuilder lays out one stage.
type stageBuilder struct {
	*Stage
	prog     *Program
	training bool
	shared   *Stage

	nodes  []*ir.Node
	of     map[*ir.Value]int  // value -> buffer
	uses   map[*ir.Value]int  // operands that read the value, updates and outputs included
	keep   map[*ir.Value]bool // read after the step
	next   map[*ir.Value]bool // what a parameter becomes
	saved  map[*ir.Value]bool // made for a micro-batch in one phase, read in a later one
	folded map[*ir.Node]bool  // accumulations done by the kernel that makes the operand
	modes  map[*ir.Value]Accum

	// Of overlap.
	spots   map[*ir.Node]spot
	readers map[*ir.Value][]*ir.Node
}

func (b *stageBuilder) build() error {
	b.of, b.uses = map[*ir.Value]int{}, map[*ir.Value]int{}
	b.keep, b.saved, b.next = map[*ir.Value]bool{}, map[*ir.Value]bool{}, map[*ir.Value]bool{}
	b.folded, b.modes = map[*ir.Node]bool{}, map[*ir.Value]Accum{}
	b.readers = map[*ir.Value][]*ir.Node{}
	b.Params, b.Inputs, b.Outputs = map[string]int{}, map[string]int{}, map[string]int{}
	plan := b.prog.Plan
	for _, n := range b.prog.Graph.Nodes {
		if position, _ := plan.Position(n.Stage); position != b.Index {
			continue
		}
		b.nodes = append(b.nodes, n)
		for _, a := range n.Args {
			b.uses[a]++
			b.readers[a] = append(b.readers[a], n)
			if a.Def.Phase < n.Phase && n.Phase < ir.Update && a.Def.Op.Class() != ir.Leaf {
				b.saved[a] = true
			}
		}
	}
	if plan.Chunks() > 1 {
		b.inOrder()
	}
	for _, o := range b.prog.Graph.Outputs {
		b.keep[o.Value] = true
		b.uses[o.Value]++
	}
	for _, u := range b.prog.Graph.Updates {
		b.uses[u.New]++
		b.next[u.New] = true
	}
	microBatches := b.prog.Mesh.Size(partition.AxisMB)
	b.Chunks = Room(plan, b.Index, microBatches, b.training)
	b.persistent()
	b.accumulators()
	b.overlap()
	b.updates()
	b.bodies()
	b.liveness()
	b.allocate()
	for _, o := range b.prog.Graph.Outputs {
		if position, _ := plan.Position(o.Value.Def.Stage); position == b.Index {
			b.Outputs[o.Name] = b.of[o.Value]
		}
	}
	return nil
}

// inOrder sorts the nodes as they run for a micro-batch: by phase, and by chunk
// within the phase.
func (b *stageBuilder) inOrder() {
	key := func(n *ir.Node) int {
		switch _, chunk := b.prog.Plan.Position(n.Stage); {
		case n.Op.Class() == ir.Leaf && !(n.Op == ir.OpInput && b.overTime(n.Results[0])):
			return -1 // has no instruction
		case n.Phase == ir.Backward:
			return int(n.Phase)*len(b.prog.Plan.Stages) - chunk
		default:
			return int(n.Phase)*len(b.prog.Plan.Stages) + chunk
		}
	}
	slices.SortStableFunc(b.nodes, func(x, y *ir.Node) int { return cmp.Compare(key(x), key(y)) })
}

// buffer makes a buffer for v. Its size is that at the first position of every
// axis, which holds the largest slice.
func (b *stageBuilder) buffer(v *ir.Value, r Region, body ir.Phase) int {
	slab := b.prog.Slab(v, ir.Coord{})
	b.Buffers = append(b.Buffers, Buffer{Region: r, Size: slab.Elems() * v.Type.DType.Size(), Body: body, Chunk: b.chunk(v.Def), Value: v, From: -1, To: -1})
	id := len(b.Buffers) - 1
	b.of[v] = id
	return id
}

func (b *stageBuilder) chunk(n *ir.Node) int {
	_, chunk := b.prog.Plan.Position(n.Stage)
	return chunk
}

func (b *stageBuilder) overTime(v *ir.Value) bool {
	axis := b.prog.Mesh.Axis(partition.AxisMB)
	return axis >= 0 && v.Spec[axis].Kind == ir.Shard
}

// persistent makes the buffers of leaves and of what outlives its body.
func (b *stageBuilder) persistent() {
	for _, n := range b.nodes {
		v := n.Results[0]
		name := partition.BaseName(n.Name)
		switch n.Op {
		case ir.OpParam:
			region := Persist
			if v.OnHost() {
				region = Host
			}
			b.Params[name] = b.buffer(v, region, n.Phase)
		case ir.OpConst:
			b.Consts = append(b.Consts, b.buffer(v, Persist, n.Phase))
		case ir.OpInput:
			if b.overTime(v) {
				b.Inputs[name] = b.buffer(v, Slot, n.Phase)
			} else {
				id := b.buffer(v, Persist, n.Phase)
				b.Inputs[name] = id
				b.StepInputs = append(b.StepInputs, id)
			}
		case ir.OpAccumulate:
			b.buffer(v, Persist, n.Phase)
		case ir.OpRecv:
			// The sender writes here ahead of the receiver's program, so nothing
			// else may: the buffer is live as long as its slot or inbox.
			switch n.Phase {
			case ir.Update:
				b.buffer(v, Persist, n.Phase)
			case ir.Forward:
				b.buffer(v, Inbox, n.Phase)
			default: // its slot is taken by then
				b.buffer(v, Slot, n.Phase)
			}
		default:
			if b.keep[v] && !b.next[v] {
				b.buffer(v, Persist, n.Phase)
			}
		}
	}
}

// accumulators folds accumulations into the kernels that can add into their
// result, and merges the accumulators of one gradient that has several terms.
func (b *stageBuilder) accumulators() {
	for _, n := range b.nodes {
		if n.Op != ir.OpAddN || n.Phase != ir.Update || b.keep[n.Results[0]] {
			continue
		}
		mergeable := len(n.Args) > 1
		for _, a := range n.Args {
			mergeable = mergeable && a.Def.Op == ir.OpAccumulate && a.Def.Phase < ir.Update &&
				b.uses[a] == 1 && a.Spec == n.Results[0].Spec
		}
		if !mergeable {
			continue
		}
		first := b.of[n.Args[0]]
		for i, a := range n.Args {
			b.of[a] = first
			b.modes[a] = Always
			if i == 0 {
				b.modes[a] = AfterFirst
			}
		}
		b.of[n.Results[0]] = first
		b.folded[n] = true
	}
	b.orderMerged()
	for _, n := range b.nodes {
		if n.Op != ir.OpAccumulate {
			continue
		}
		x, acc := n.Args[0], n.Results[0]
		if b.modes[acc] == Overwrite {
			b.modes[acc] = AfterFirst
		}
		if b.uses[x] == 1 && x.Def.Phase == n.Phase && x.Def.Stage == n.Stage && x.Def.Op.Accumulates(x.Index) && x.Def.Op.Class() == ir.Compute {
			if _, placed := b.of[x]; !placed {
				b.of[x] = b.of[acc]
				b.modes[x] = b.modes[acc]
				b.folded[n] = true
			}
		}
	}
}

// orderMerged lets, of several terms merged into one accumulator, the one that
// runs first in a micro-batch be the one that overwrites.
func (b *stageBuilder) orderMerged() {
	first := map[int]bool{}
	for _, n := range b.nodes {
		if n.Op != ir.OpAccumulate {
			continue
		}
		v := n.Results[0]
		if b.modes[v] == Overwrite {
			continue
		}
		if id := b.of[v]; first[id] {
			b.modes[v] = Always
		} else {
			first[id] = true
			b.modes[v] = AfterFirst
		}
	}
}

// updates makes the new value of a parameter share its buffer.
func (b *stageBuilder) updates() {
	for _, u := range b.prog.Graph.Updates {
		if u.Param.Def.Stage != b.Index || u.New == u.Param {
			continue
		}
		if _, placed := b.of[u.New]; placed {
			continue
		}
		if b.inPlaceUpdate(u) {
			b.of[u.New] = b.of[u.Param]
		} else if b.keep[u.New] {
			b.buffer(u.New, Persist, ir.Update)
		}
	}
}

// inPlaceUpdate reports whether the new value may be written over the old one:
// nothing reads the old one afterwards, and the op that makes the new one either
// does not read it or renews that operand.
func (b *stageBuilder) inPlaceUpdate(u ir.StateUpdate) bool {
	made := false
	for _, n := range b.nodes {
		reads := slices.Contains(n.Args, u.Param)
		switch {
		case made && reads:
			return false
		case n != u.New.Def:
			continue
		case reads:
			if i := n.Op.Renews(u.New.Index); i < 0 || n.Args[i] != u.Param {
				return false
			}
		}
		made = true
	}
	return made
}

// bodies places the remaining values and writes the instructions.
func (b *stageBuilder) bodies() {
	lastUse := map[*ir.Value]*ir.Node{}
	for _, n := range b.nodes {
		for _, a := range n.Args {
			lastUse[a] = n
		}
	}
	for _, n := range b.nodes {
		if n.Op == ir.OpInput && b.overTime(n.Results[0]) {
			b.emit(n)
			continue
		}
		if n.Op.Class() == ir.Leaf || b.folded[n] {
			continue
		}
		for i, r := range n.Results {
			if _, placed := b.of[r]; placed {
				continue
			}
			if n.Op == ir.OpSend {
				b.of[r] = b.of[n.Args[0]]
				continue
			}
			region := Temp
			switch {
			case r.OnHost():
				region = Host
			case b.saved[r]:
				region = Slot
			case b.bodyOf(n) != n.Phase:
				region = Persist // made in a pass, read in the update
			}
			if b.canOverwrite(n, i, region, lastUse) {
				b.of[r] = b.of[n.Args[i]]
				continue
			}
			b.buffer(r, region, n.Phase)
		}
		b.emit(n)
	}
	for phase := range b.Bodies {
		b.awaits(&b.Bodies[phase])
	}
}

// canOverwrite reports whether result i of n may take the buffer of operand i, the
// first or any of AdamW's: nothing reads the operand again, its slice has as many
// elements of at least the size, and its buffer lives as long as the result must.
func (b *stageBuilder) canOverwrite(n *ir.Node, i int, region Region, lastUse map[*ir.Value]*ir.Node) bool {
	updates := n.Op == ir.OpAdamW
	if !updates && (i > 0 || !n.Op.InPlace() && n.Op != ir.OpAllReduce && n.Op != ir.OpToPartial) {
		return false
	}
	x, r := n.Args[i], n.Results[i]
	if lastUse[x] != n || b.keep[x] || b.next[x] || x.Def.Op.Class() == ir.Leaf {
		return false
	}
	for _, r := range b.readers[x] {
		if r != n && b.spots[r].async {
			return false // it may still be reading
		}
	}
	id := b.of[x]
	switch buf := b.Buffers[id]; buf.Region {
	case Persist:
		if n.Phase != ir.Update {
			return false // the accumulator of other micro-batches too
		}
	case Slot, Inbox:
	case Temp:
		if region == Slot || buf.Body != n.Phase {
			return false
		}
	case Host:
		return false
	}
	for k, a := range n.Args {
		if k != i && b.of[a] == id {
			return false
		}
	}
	// A narrower result takes the first part of its operand's place.
	return x.Type.DType.Size() >= r.Type.DType.Size() && slices.Equal(x.Type.Shape, r.Type.Shape) && b.prog.Slab(x, ir.Coord{}).Elems() == b.prog.Slab(r, ir.Coord{}).Elems()
}

func (b *stageBuilder) emit(n *ir.Node) {
	s := b.spots[n]
	in := Instr{Node: n, Chunk: b.chunk(n), Async: s.async, Fused: s.fused, Last: s.last, Segment: s.segment}
	for _, a := range n.Args {
		if n.Op == ir.OpRecv {
			break // its operand is the sender's
		}
		in.Args = append(in.Args, b.of[a])
	}
	for _, r := range n.Results {
		in.Results = append(in.Results, b.of[r])
		in.Accum = append(in.Accum, b.modes[r])
	}
	body := &b.Bodies[b.bodyOf(n)]
	body.Instrs = append(body.Instrs, in)
}

// liveness sets From and To of all but persistent buffers.
func (b *stageBuilder) liveness() {
	before := 0 // instructions in earlier bodies
	for k := range b.Bodies {
		body := &b.Bodies[k]
		for i, in := range body.Instrs {
			joined := body.joined(i)
			for _, id := range slices.Concat(in.Args, in.Results) {
				buf := &b.Buffers[id]
				from, to := i, joined
				if buf.Region == Slot || buf.Region == Inbox {
					from, to = from+before, to+before
				}
				if buf.From < 0 {
					buf.From = from
				}
				buf.To = max(buf.To, to)
			}
			if in.Node.Op == ir.OpRecv || in.Node.Op == ir.OpInput {
				b.Buffers[in.Results[0]].From = 0
			}
		}
		before += len(body.Instrs)
	}
}

// align keeps buffers on cache lines, and on the 64 bytes of the widest vectors.
const align = 64

func alignUp(n int64) int64 { return (n + align - 1) / align * align }

// allocate gives every buffer its offset. Persistent buffers lie one after
// another, parameters first; the others take the lowest gap between buffers
// whose lives overlap theirs, the largest placed first (Pisarchyk and Lee 2020,
// greedy by size).
func (b *stageBuilder) allocate() {
	used := b.used()
	var persist, host []int
	slot, inbox := make([][]int, len(b.Chunks)), make([][]int, len(b.Chunks))
	var temp [ir.NumPhases][]int
	for id := range b.Buffers {
		buf := &b.Buffers[id]
		switch {
		case buf.Region == Host:
			host = append(host, id)
		case buf.Value.Def.Op == ir.OpParam:
			persist = append(persist, id)
		case !used[id] && buf.Value.Def.Op.Class() != ir.Leaf:
			// Merged into another buffer.
		case buf.Region == Persist:
			persist = append(persist, id)
		case buf.Region == Slot:
			slot[buf.Chunk] = append(slot[buf.Chunk], id)
		case buf.Region == Inbox:
			inbox[buf.Chunk] = append(inbox[buf.Chunk], id)
		default:
			temp[buf.Body] = append(temp[buf.Body], id)
		}
	}
	for _, ids := range [][]int{persist, host} {
		slices.SortStableFunc(ids, func(x, y int) int { return cmp.Compare(b.rank(x), b.rank(y)) })
	}
	if b.shared != nil {
		b.Persist, b.Host = b.shared.Durable, b.shared.Host
	}
	for _, id := range host {
		if buf := &b.Buffers[id]; !b.share(buf) {
			buf.Offset = b.Host
			b.Host += alignUp(buf.Size)
		}
	}
	for _, id := range persist {
		buf := &b.Buffers[id]
		if b.share(buf) {
			continue
		}
		buf.Offset = b.Persist
		b.Persist += alignUp(buf.Size)
		if b.rank(id) <= rankConst {
			b.Durable = b.Persist
		}
	}
	for i := range b.Chunks {
		b.Chunks[i].Slot, b.Chunks[i].Inbox = pack(b.Buffers, slot[i]), pack(b.Buffers, inbox[i])
	}
	for _, ids := range temp {
		b.Temp = max(b.Temp, pack(b.Buffers, ids))
	}
}

// used says which buffers an instruction has to do with.
func (s *Stage) used() []bool {
	used := make([]bool, len(s.Buffers))
	for _, body := range s.Bodies {
		for i := range body.Instrs {
			for _, id := range body.Instrs[i].Args {
				used[id] = true
			}
			for _, id := range body.Instrs[i].Results {
				used[id] = true
			}
		}
	}
	return used
}

// share places a parameter where the program that the arenas are shared with has
// it, if it has it.
func (b *stageBuilder) share(buf *Buffer) bool {
	if b.shared == nil || buf.Value.Def.Op != ir.OpParam {
		return false
	}
	at, ok := b.shared.Params[partition.BaseName(buf.Value.Def.Name)]
	if ok {
		if b.shared.Buffers[at].Region != buf.Region {
			panic(fmt.Sprintf("BUG: %s is in the %s and in the %s region of programs that share it", buf.Value.Name(), b.shared.Buffers[at].Region, buf.Region))
		}
		buf.Offset = b.shared.Buffers[at].Offset
	}
	return ok
}

// The order of persistent buffers: what must survive between steps comes first.
const (
	rankWeight = iota
	rankState
	rankConst
	rankStep // step inputs, accumulators, outputs
)

func (b *stageBuilder) rank(id int) int { return rankOf(b.Buffers[id].Value.Def) }

func rankOf(n *ir.Node) int {
	attr, _ := n.Attr.(ir.ParamAttr)
	switch {
	case n.Op == ir.OpParam && !attr.State:
		return rankWeight
	case n.Op == ir.OpParam:
		return rankState
	case n.Op == ir.OpConst:
		return rankConst
	}
	return rankStep
}

// pack assigns offsets to buffers with lifetimes and returns the space they take.
func pack(buffers []Buffer, ids []int) int64 {
	order := slices.Clone(ids)
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(buffers[y].Size, buffers[x].Size) })
	var placed []int // by offset
	var total int64
	for _, id := range order {
		buf := &buffers[id]
		size := alignUp(buf.Size)
		var at int64
		for _, o := range placed {
			other := &buffers[o]
			if other.To < buf.From || buf.To < other.From {
				continue
			}
			if other.Offset >= at+size {
				break
			}
			at = max(at, other.Offset+alignUp(other.Size))
		}
		buf.Offset = at
		total = max(total, at+size)
		i, _ := slices.BinarySearchFunc(placed, at, func(o int, off int64) int { return cmp.Compare(buffers[o].Offset, off) })
		placed = slices.Insert(placed, i, id)
	}
	return total
}

func (b Buffer) String() string {
	return fmt.Sprintf("%s+%d %d bytes live %d..%d %s", b.Region, b.Offset, b.Size, b.From, b.To, b.Value.Name())
}
