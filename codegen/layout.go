package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// This file builds the bodies of one stage and assigns each value a buffer in a region. It decides which values
// share a buffer (in-place results, accumulators, updated parameters), runs the passes that reorder or overlap
// communication, writes the instructions, and computes lifetimes. Offsets come later, in allocate.go.

// stageBuilder builds one stage.
type stageBuilder struct {
	*Stage
	*tables
	prog     *Program
	training bool
	nodes    []*ir.Node // of the stage, in the order in which their instructions run
	numbers  []int      // backing array of Args and Results of all instructions
	accums   []Accum    // backing array of their Accum
}

// tables holds what is known about the nodes and values of the graph, indexed by ID. A node and its results
// belong to one stage, so the builders of all stages share the tables.
type tables struct {
	of      []int       // value -> buffer, or unplaced
	uses    []int       // number of operands that read the value, plus updates and outputs
	keep    []bool      // values read after the step
	next    []bool      // new values of parameters
	saved   []bool      // values made for a micro-batch in one phase and read in a later one
	lastUse []*ir.Node  // the last of the stage's nodes to read a value
	at      []int       // node -> index among the stage's nodes
	folded  []bool      // nodes: sums that the kernels which make their operands accumulate themselves
	fused   []bool      // nodes: collectives that share a bucket with the previous one
	modes   []Accum     // of values: how the kernel that makes it writes its buffer
	sumOf   []*ir.Value // of values: the sum of their pass that their kernel adds to; nil if there are none

	// For overlap.go; nil in plans without overlap.
	spots   []spot       // of nodes
	readers [][]*ir.Node // of values: the nodes that read it

	// For beside.go; nil in plans without overlap of tensor parallelism. kernelsBeside is, for a collective, the
	// number of instructions that run beside it; besideOf is, for each of those, the collective.
	kernelsBeside []int
	besideOf      []*ir.Node

	sent []bool // values that a posted send may read, nil if there are none: see posted.go

	pieces []*ir.Node // for two adjacent nodes that are made in parts, the other one of the two; nil if there are none: see pieces.go
}

const unplaced = -1

// newTables reads a partitioned graph and returns, besides the tables, its nodes by position in the pipeline.
func newTables(prog *Program) (*tables, [][]*ir.Node) {
	g, plan := prog.Graph, prog.Plan
	n := g.IDs()
	flags := make([]bool, 5*n)
	t := &tables{
		of: make([]int, n), uses: make([]int, n), keep: flags[:n], next: flags[n : 2*n], saved: flags[2*n : 3*n], folded: flags[3*n : 4*n], fused: flags[4*n:],
		lastUse: make([]*ir.Node, n), at: make([]int, n), modes: make([]Accum, n),
	}
	for i := range t.of {
		t.of[i] = unplaced
	}
	nodes := make([][]*ir.Node, plan.PP())
	for i := range nodes {
		nodes[i] = make([]*ir.Node, 0, len(g.Nodes)/len(nodes)+len(nodes))
	}
	reads := 0
	for _, n := range g.Nodes {
		position, _ := plan.Position(n.Stage)
		nodes[position] = append(nodes[position], n)
		for _, a := range n.Args {
			t.uses[a.ID]++
			reads++
			if a.Def.Phase < n.Phase && n.Phase < ir.Update && a.Def.Op.Class() != ir.Leaf {
				t.saved[a.ID] = true
			}
		}
	}
	if plan.Overlap {
		t.spots, t.readers = make([]spot, n), make([][]*ir.Node, n)
		room := make([]*ir.Node, reads)
		for _, n := range g.Nodes {
			for _, a := range n.Args {
				list := &t.readers[a.ID]
				if *list == nil {
					*list, room = room[:0:t.uses[a.ID]], room[t.uses[a.ID]:]
				}
				*list = append(*list, n)
			}
		}
	}
	t.sent = sentInPasses(prog)
	for _, o := range g.Outputs {
		t.keep[o.Value.ID] = true
		t.uses[o.Value.ID]++
	}
	for _, u := range g.Updates {
		t.uses[u.New.ID]++
		t.next[u.New.ID] = true
	}
	return t, nodes
}

// build runs all passes over the nodes of the stage. Their order matters: accumulators needs the buffers of
// persistent; overlap needs to know which accumulations are folded; beside and inPieces look for what overlap
// has left in order.
func (b *stageBuilder) build() {
	params := 0
	for _, n := range b.nodes {
		if n.Op == ir.OpParam {
			params++
		}
	}
	b.Params, b.Inputs, b.Outputs = make(map[string]int, params), map[string]int{}, map[string]int{}
	plan := b.prog.Plan
	if plan.Chunks() > 1 {
		b.inOrder()
	}
	b.Buffers = make([]Buffer, 0, len(b.nodes)*3/4)
	microBatches := b.prog.Mesh.Size(partition.AxisMB)
	b.Chunks = Room(plan, b.Index, microBatches, b.training)
	b.persistent()
	b.accumulators()
	b.passSums()
	b.sharedFirst()
	b.overlap()
	b.join()
	b.beside()
	b.inPieces()
	b.orderMerged()
	for i, n := range b.nodes {
		b.at[n.ID()] = i
		for _, a := range n.Args {
			b.lastUse[a.ID] = n
		}
	}
	b.updates()
	b.bodies()
	b.liveness()
	for _, o := range b.prog.Graph.Outputs {
		if position, _ := plan.Position(o.Value.Def.Stage); position == b.Index {
			b.Outputs[o.Name] = b.of[o.Value.ID]
		}
	}
}

// inOrder sorts the nodes in the order in which they run for a micro-batch: by phase, and within a phase by
// chunk.
func (b *stageBuilder) inOrder() {
	chunks := b.prog.Plan.Chunks()
	tasks := make([][]*ir.Node, 1+int(ir.NumPhases)*chunks) // the first list is for nodes without an instruction
	for _, n := range b.nodes {
		at := 0
		if !b.silent(n) {
			chunk := b.chunk(n)
			if n.Phase == ir.Backward {
				chunk = chunks - 1 - chunk
			}
			at = 1 + int(n.Phase)*chunks + chunk
		}
		tasks[at] = append(tasks[at], n)
	}
	b.nodes = slices.Concat(tasks...)
}

// silent reports whether a node has no instruction, because its value is in memory before the step starts.
func (b *stageBuilder) silent(n *ir.Node) bool {
	return n.Op.Class() == ir.Leaf && !(n.Op == ir.OpInput && b.overTime(n.Results[0]))
}

// buffer makes a buffer for v and assigns it. Its size is that of the slice at the first position of every
// axis, which is the largest one.
func (b *stageBuilder) buffer(v *ir.Value, r Region, body ir.Phase) int {
	b.Buffers = append(b.Buffers, Buffer{Region: r, Size: b.elems(v) * v.Type.DType.Size(), Body: body, Chunk: b.chunk(v.Def), Value: v, From: -1, To: -1})
	id := len(b.Buffers) - 1
	b.of[v.ID] = id
	return id
}

// elems returns the number of elements of the largest slice of a value: that of the first position of every
// axis.
func (b *stageBuilder) elems(v *ir.Value) int64 {
	return b.prog.Mesh.LocalElems(v.Type.Shape, v.Spec, ir.Coord{})
}

func (b *stageBuilder) chunk(n *ir.Node) int {
	_, chunk := b.prog.Plan.Position(n.Stage)
	return chunk
}

func (b *stageBuilder) overTime(v *ir.Value) bool {
	axis := b.prog.Mesh.Axis(partition.AxisMB)
	return axis >= 0 && v.Spec[axis].Kind == ir.Shard
}

// persistent makes the buffers of leaves, of received values and of everything that outlives its body.
func (b *stageBuilder) persistent() {
	for _, n := range b.nodes {
		v := n.Results[0]
		switch n.Op {
		case ir.OpParam:
			region := Persist
			if v.OnHost() {
				region = Host
			}
			b.Params[partition.BaseName(n.Name)] = b.buffer(v, region, n.Phase)
		case ir.OpConst:
			b.Consts = append(b.Consts, b.buffer(v, Persist, n.Phase))
		case ir.OpInput:
			name := partition.BaseName(n.Name)
			if b.overTime(v) {
				b.Inputs[name] = b.buffer(v, Slot, n.Phase)
			} else {
				id := b.buffer(v, Persist, n.Phase)
				b.Inputs[name] = id
				b.StepInputs = append(b.StepInputs, id)
			}
		case ir.OpAccumulate:
			region := Persist
			if n.Phase == ir.Backward && !b.keep[v.ID] {
				region = b.sums()
			}
			b.buffer(v, region, n.Phase)
		case ir.OpRecv:
			// The sender writes here at a time that the receiver's program does not determine, so nothing else
			// may use the memory: the buffer is live as long as its slot or inbox is reserved.
			switch n.Phase {
			case ir.Update:
				b.buffer(v, Persist, n.Phase)
			case ir.Forward:
				b.buffer(v, Inbox, n.Phase)
			default: // a backward pass: the slot is already reserved by the forward pass
				b.buffer(v, Slot, n.Phase)
			}
		default:
			if b.keep[v.ID] && !b.next[v.ID] {
				b.buffer(v, Persist, n.Phase)
			}
		}
	}
}

// sums returns the region of values that passes make for the update. Stages of a pipeline keep them in
// Persist: they rarely run only one micro-batch.
func (b *stageBuilder) sums() Region {
	if len(b.prog.Plan.Stages) > 1 {
		return Persist
	}
	return Sums
}

// SumsOn returns the region that [Sums] stands for on a mesh.
func SumsOn(mesh ir.Mesh) Region {
	if mesh.Size(partition.AxisMB) == 1 {
		return Slot
	}
	return Persist
}

// accumulators folds accumulations into kernels that can add into their result. Where a gradient is the sum of
// several terms, it lets the terms share one accumulator.
func (b *stageBuilder) accumulators() {
	for _, n := range b.nodes {
		if n.Op != ir.OpAddN || n.Phase != ir.Update || b.keep[n.ID()] {
			continue
		}
		mergeable := len(n.Args) > 1
		for _, a := range n.Args {
			mergeable = mergeable && a.Def.Op == ir.OpAccumulate && a.Def.Phase < ir.Update &&
				b.uses[a.ID] == 1 && a.Spec == n.Results[0].Spec
		}
		if !mergeable {
			continue
		}
		first := b.of[n.Args[0].ID]
		for i, a := range n.Args {
			b.of[a.ID] = first
			b.modes[a.ID] = Always
			if i == 0 {
				b.modes[a.ID] = AfterFirst
			}
		}
		b.of[n.ID()] = first
		b.folded[n.ID()] = true
	}
	b.orderMerged()
	for _, n := range b.nodes {
		if n.Op != ir.OpAccumulate {
			continue
		}
		x, acc := n.Args[0], n.Results[0]
		if b.modes[acc.ID] == Overwrite {
			b.modes[acc.ID] = AfterFirst
		}
		if d := x.Def; b.uses[x.ID] == 1 && d.Phase == n.Phase && d.Stage == n.Stage && d.Op.Accumulates(x.Index) && d.Op.Class() == ir.Compute && b.of[x.ID] == unplaced {
			b.of[x.ID] = b.of[acc.ID]
			b.modes[x.ID] = b.modes[acc.ID]
			b.folded[n.ID()] = true
		}
	}
}

// passSums folds sums that a pass makes into the kernels of their terms, where these can add into their result and
// nothing else reads the terms.
func (b *stageBuilder) passSums() {
	for _, n := range b.nodes {
		if n.Op != ir.OpAddN || n.Phase == ir.Update || len(n.Args) < 2 || b.of[n.ID()] != unplaced {
			continue
		}
		sum := n.Results[0]
		if slices.ContainsFunc(n.Args, func(a *ir.Value) bool {
			d := a.Def
			return b.uses[a.ID] > 1 || d.Phase != n.Phase || d.Stage != n.Stage || d.Op.Class() != ir.Compute || !d.Op.Accumulates(a.Index) ||
				b.of[a.ID] != unplaced || a.Spec != sum.Spec
		}) {
			continue
		}
		if b.sumOf == nil {
			b.sumOf = make([]*ir.Value, len(b.of))
		}
		for _, a := range n.Args {
			b.sumOf[a.ID] = sum
		}
		b.folded[n.ID()] = true
	}
}

// orderMerged chooses, among terms merged into one accumulator or one sum of a pass, the one that runs first in a
// micro-batch as the one that overwrites. It runs again after nodes have moved, because the kernel that makes the
// first term, say of a slice of the loss, may now come after another term's.
func (b *stageBuilder) orderMerged() {
	first := map[int]bool{}
	begun := map[*ir.Value]bool{} // sums of a pass
	for _, n := range b.nodes {
		if b.sumOf != nil {
			for _, r := range n.Results {
				if sum := b.sumOf[r.ID]; sum != nil {
					b.modes[r.ID] = Overwrite
					if begun[sum] {
						b.modes[r.ID] = Always
					}
					begun[sum] = true
				}
			}
		}
		if n.Op != ir.OpAccumulate {
			continue
		}
		v := n.ID()
		if b.modes[v] == Overwrite {
			continue
		}
		if id := b.of[v]; first[id] {
			b.modes[v] = Always
		} else {
			first[id] = true
			b.modes[v] = AfterFirst
		}
		if b.folded[v] {
			b.modes[n.Args[0].ID] = b.modes[v]
		}
	}
}

// updates lets the new value of a parameter share the buffer of the old one.
func (b *stageBuilder) updates() {
	for _, u := range b.prog.Graph.Updates {
		if u.Param.Def.Stage != b.Index || u.New == u.Param {
			continue
		}
		if b.of[u.New.ID] != unplaced {
			continue
		}
		if b.inPlaceUpdate(u) {
			b.of[u.New.ID] = b.of[u.Param.ID]
		} else if b.keep[u.New.ID] {
			b.buffer(u.New, Persist, ir.Update)
		}
	}
}

// inPlaceUpdate reports whether the new value may be written over the old one: nothing reads the old one later,
// and the op that makes the new one either does not read it or may write over that operand.
func (b *stageBuilder) inPlaceUpdate(u ir.StateUpdate) bool {
	n := u.New.Def
	if position, _ := b.prog.Plan.Position(n.Stage); position != b.Index {
		return false
	}
	if last := b.lastUse[u.Param.ID]; last != nil && b.at[last.ID()] > b.at[n.ID()] {
		return false
	}
	if slices.Contains(n.Args, u.Param) {
		if i := n.Op.Renews(u.New.Index); i < 0 || n.Args[i] != u.Param {
			return false
		}
	}
	return true
}

// bodies assigns buffers to the remaining values and writes the instructions.
func (b *stageBuilder) bodies() {
	var lengths [ir.NumPhases]int
	operands, results := 0, 0
	for _, n := range b.nodes {
		if b.folded[n.ID()] || n.Op.Class() == ir.Leaf && n.Op != ir.OpInput {
			continue
		}
		lengths[b.bodyOf(n)] += b.instrs(n)
		operands, results = operands+len(n.Args)+len(n.Results), results+len(n.Results)
	}
	for phase, n := range lengths {
		b.Bodies[phase].Instrs = make([]Instr, 0, n)
	}
	b.numbers, b.accums = make([]int, operands), make([]Accum, results)
	var first *ir.Node // the first of two nodes that are made in parts
	for _, n := range b.nodes {
		if n.Op == ir.OpInput && b.overTime(n.Results[0]) {
			b.append(b.instr(n))
			continue
		}
		if n.Op.Class() == ir.Leaf || b.folded[n.ID()] {
			continue
		}
		b.place(n)
		switch {
		case first != nil:
			b.emitPieces(first, n)
			first = nil
		case b.inPiecesWith(n) != nil:
			first = n
		default:
			b.append(b.instr(n))
		}
	}
	b.views()
	for phase := range ir.NumPhases {
		for _, instrs := range b.runs(phase) {
			b.awaits(instrs)
		}
	}
}

// place assigns buffers to the results of a node that have none yet.
func (b *stageBuilder) place(n *ir.Node) {
	for i, r := range n.Results {
		if b.of[r.ID] != unplaced {
			continue
		}
		if b.sumOf != nil && b.sumOf[r.ID] != nil { // the first term is made where the sum is to lie
			sum := b.sumOf[r.ID]
			if b.of[sum.ID] == unplaced {
				b.buffer(sum, b.regionOf(sum), n.Phase)
			}
			b.of[r.ID] = b.of[sum.ID]
			continue
		}
		if n.Op == ir.OpSend {
			b.of[r.ID] = b.of[n.Args[0].ID]
			continue
		}
		region := b.regionOf(r)
		if b.canOverwrite(n, i, region) {
			b.of[r.ID] = b.of[n.Args[i].ID]
			continue
		}
		b.buffer(r, region, n.Phase)
	}
}

// regionOf returns the region for a value that bodies make.
func (b *stageBuilder) regionOf(v *ir.Value) Region {
	switch n := v.Def; {
	case v.OnHost():
		return Host
	case b.saved[v.ID]:
		return Slot
	case b.bodyOf(n) != n.Phase:
		return b.sums() // made in a pass, read in the update
	case b.isSent(v):
		return Persist
	}
	return Temp
}

// canOverwrite reports whether result i of n may take over the buffer of operand i (i is 0, except for AdamW).
// That requires that nothing reads the operand later, that both have equally many elements and the operand's
// are at least as wide, and that the operand's buffer lives as long as the result must.
func (b *stageBuilder) canOverwrite(n *ir.Node, i int, region Region) bool {
	updates := n.Op == ir.OpAdamW
	if !updates && (i > 0 || !n.Op.InPlace() && n.Op != ir.OpAllReduce && n.Op != ir.OpToPartial) {
		return false
	}
	x, r := n.Args[i], n.Results[i]
	if b.isSent(x) || b.isSent(r) && region == Persist {
		return false // x may still be being sent, or r needs a buffer of its own to be sent from
	}
	if b.lastUse[x.ID] != n || b.keep[x.ID] || b.next[x.ID] || x.Def.Op.Class() == ir.Leaf {
		return false
	}
	if b.readers != nil {
		for _, r := range b.readers[x.ID] {
			if r != n && b.spots[r.ID()].async {
				return false // the stream may still read it
			}
		}
	}
	if b.besideOf != nil && b.besideOf[n.ID()] != nil && b.besideOf[n.ID()].Args[0] == x || b.inPiecesWith(x.Def) == n {
		return false // a collective that runs at the same time reads it, or it is made in parts
	}
	id := b.of[x.ID]
	switch buf := b.Buffers[id]; buf.Region {
	case Persist, Sums:
		if n.Phase != ir.Update {
			return false // it also accumulates other micro-batches
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
		if k != i && b.of[a.ID] == id {
			return false
		}
	}
	// A result of a narrower type takes the start of its operand's space.
	return x.Type.DType.Size() >= r.Type.DType.Size() && slices.Equal(x.Type.Shape, r.Type.Shape) && b.elems(x) == b.elems(r)
}

// append appends an instruction to the body of its node.
func (b *stageBuilder) append(in Instr) {
	body := &b.Bodies[b.bodyOf(in.Node)]
	body.Instrs = append(body.Instrs, in)
}

// instr returns the instruction of a node.
func (b *stageBuilder) instr(n *ir.Node) Instr {
	s := b.spot(n)
	in := Instr{Node: n, Chunk: b.chunkBodyOf(n).chunk, Async: s.async, Fused: b.fused[n.ID()], Last: s.last, Segment: s.segment, Delayed: s.delayed}
	if b.kernelsBeside != nil {
		in.Beside = b.kernelsBeside[n.ID()]
	}
	if n.Op != ir.OpRecv { // its operand is the sender's
		in.Args = b.list(len(n.Args))
		for i, a := range n.Args {
			in.Args[i] = b.of[a.ID]
		}
	}
	in.Results, in.Accum = b.list(len(n.Results)), b.accums[:len(n.Results):len(n.Results)]
	b.accums = b.accums[len(n.Results):]
	for i, r := range n.Results {
		in.Results[i], in.Accum[i] = b.of[r.ID], b.modes[r.ID]
	}
	in.Posted = b.posts(&in)
	return in
}

// list takes n numbers from the backing array; nil for none.
func (b *stageBuilder) list(n int) []int {
	if n == 0 {
		return nil
	}
	room := b.numbers[:n:n]
	b.numbers = b.numbers[n:]
	return room
}

// liveness sets From and To of all buffers.
func (b *stageBuilder) liveness() {
	before := 0 // instructions in earlier bodies
	for k := range b.Bodies {
		body := &b.Bodies[k]
		ends := make([]int, 0, len(body.Instrs))
		for _, instrs := range b.runs(ir.Phase(k)) {
			first := len(ends)
			for _, end := range joined(instrs) {
				ends = append(ends, first+end)
			}
		}
		for i := range body.Instrs {
			in := &body.Instrs[i]
			for _, ids := range [2][]int{in.Args, in.Results} {
				for _, id := range ids {
					buf := &b.Buffers[id]
					from, to := i, ends[i]
					if buf.Region.throughBodies() {
						from, to = from+before, to+before
					}
					if buf.From < 0 {
						buf.From = from
					}
					buf.To = max(buf.To, to)
				}
			}
			if in.Node.Op == ir.OpRecv || in.Node.Op == ir.OpInput {
				b.Buffers[in.Results[0]].From = 0
			}
		}
		before += len(body.Instrs)
	}
	for id := range b.Buffers {
		if buf := &b.Buffers[id]; buf.Region == Sums && buf.From >= 0 { // an asynchronous reduction of it may run until the update starts
			buf.To = max(buf.To, b.beforeUpdate())
		}
	}
}

// beforeUpdate returns the number of instructions in the bodies before the update.
func (s *Stage) beforeUpdate() int {
	n := 0
	for _, body := range s.Bodies[:ir.Update] {
		n += len(body.Instrs)
	}
	return n
}
