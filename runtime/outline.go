// This file has what ranks and micro-batches have in common when a program is loaded. A process makes actions for its own ranks
// alone, and numbers the groups, wires and events of all ranks from outlines. Micro-batches share the actions that would be the
// same for them.

package runtime

import (
	"maps"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// outline is what tasks that run the same instructions have in common, on all ranks of their stage.
type outline struct {
	units       []unit
	calls       int         // of all units
	events      [Host]int64 // that the task records, by stream
	bucketsDone int         // see [task]
	sent        *ir.Node    // the last posted send, nil if there is none
}

// alike identifies an outline.
type alike struct {
	stage int
	phase ir.Phase
	chunk int
	last  bool // micro-batch of the rank
}

// unit is a part of an outline that is loaded as one: a run of kernels with nothing between them on the compute stream, which
// a device may fuse, or one other call.
type unit struct {
	calls []call
	// Which micro-batches share actions: those in the same slot or inbox if they access one, not the first one with others if it
	// overwrites what others add to, and none if each has its own.
	slot, inbox, first, own bool
}

// call is what becomes one action.
type call struct {
	bucket                       []*codegen.Instr // see [codegen.Bucket]
	awaitBuckets, awaitExchanges int              // see [action]
}

// outline returns the outline of a task.
func (l *loader) outline(s *codegen.Schedule, t codegen.Task) *outline {
	key := alike{s.Stage, t.Phase, t.Chunk, t.MicroBatch == s.MicroBatches-1}
	o, ok := l.outlines[key]
	if ok {
		return o
	}
	o = &outline{}
	l.outlines[key] = o
	stage := l.program.src.Stages[s.Stage]
	given := []int{0} // given[n] is how many buckets the first n asynchronous instructions of the body are in
	awaits := 0       // the Await of instructions that do nothing passes to the next one that runs
	until := 0        // the instruction that waits for the collectives on the exchange stream, if not 0
	run := false      // whether the last unit is a run of kernels
	instrs := stage.Run(t)
	for j := range instrs {
		in := &instrs[j]
		runs := s.Runs(in, t)
		if in.Async {
			n := given[len(given)-1]
			if runs && !in.Fused {
				n++
			}
			given = append(given, n)
			if !in.Last {
				o.bucketsDone = n
			}
		}
		if !runs {
			continue
		}
		awaits = max(awaits, given[in.Await])
		if in.Idle() {
			continue
		}
		if in.Fused {
			u := &o.units[len(o.units)-1]
			bucket := &u.calls[len(u.calls)-1].bucket
			*bucket = append(*bucket, in)
			l.depend(u, stage, in)
			continue
		}
		c := call{bucket: []*codegen.Instr{in}, awaitBuckets: awaits}
		awaits = 0
		if until > 0 && j >= until {
			c.awaitExchanges, until = int(o.events[Exchange]), 0
		}
		if in.Beside > 0 {
			o.events[Exchange]++
			until = j + 1 + in.Beside
		}
		if in.Posted {
			o.events[Transfers]++
			o.sent = in.Node
		}
		runnable := launched(in.Node.Op) && in.Parts == 0 // a kernel that makes a part of a value is in no run: the others read all parts of it
		if !run || !runnable || c.awaitBuckets > 0 || c.awaitExchanges > 0 {
			o.units = append(o.units, unit{})
		}
		run = runnable
		u := &o.units[len(o.units)-1]
		u.calls = append(u.calls, c)
		l.depend(u, stage, in)
		o.calls++
	}
	o.events[Communication] = int64(given[len(given)-1])
	// The compute stream records one event before each action on another stream, and one at the end.
	o.events[Compute] = o.events[Communication] + o.events[Exchange] + o.events[Transfers] + 1
	return o
}

// launched reports whether an op is a kernel.
func launched(op ir.Op) bool {
	return op != ir.OpInput && op != ir.OpSend && op != ir.OpRecv && !codegen.Collective(op)
}

// depend notes in what the actions of an instruction differ between micro-batches. Where rows of the batch lie in the whole
// batch is no such thing, unless random numbers are drawn by it or rows are moved within it.
func (l *loader) depend(u *unit, stage *codegen.Stage, in *codegen.Instr) {
	drop, _ := in.Node.Attr.(ir.DropoutAttr)
	_, moves := in.Node.Attr.(ir.CommAttr)
	switch op := in.Node.Op; {
	case op == ir.OpInput, op == ir.OpSend, drop.P > 0: // a send waits for an event of the peer
		u.own = true
	case l.exec.opts.Trace != nil && !launched(op): // its report names the micro-batch
		u.own = true
	}
	u.first = u.first || slices.Contains(in.Accum, codegen.AfterFirst)
	values := slices.Concat(in.Node.Args, in.Node.Results)
	for i, id := range slices.Concat(in.Args, in.Results) {
		v := values[i]
		b := &stage.Buffers[id]
		u.own = u.own || !l.byRows(v) || moves && !l.cutAlike(v, values[0])
		if b.View {
			of := &stage.Buffers[b.Of]
			u.own = u.own || !l.cutAlike(b.Value, of.Value)
			b = of
		}
		u.slot = u.slot || b.Region == codegen.Slot
		u.inbox = u.inbox || b.Region == codegen.Inbox
		u.own = u.own || b.Region.InFlight() && b.Chunk != in.Chunk
	}
}

// cut reports whether micro-batches have parts of a value.
func (l *loader) cut(v *ir.Value) bool { return l.time >= 0 && v.Spec[l.time].Kind == ir.Shard }

// byRows reports whether micro-batches cut a value as they cut the batch, if they do.
func (l *loader) byRows(v *ir.Value) bool {
	prog := l.program.src
	if !l.cut(v) {
		return true
	}
	for i, a := range prog.Mesh.Axes[:l.time] {
		if a.Size > 1 && (v.Spec[i] == ir.ShardOn(0)) != partition.FollowsBatch(a) {
			return false
		}
	}
	return v.Spec[l.time] == ir.ShardOn(0) && v.Type.Shape[0] == prog.Batch*max(1, prog.Plan.SequenceParts)
}

// rows returns how many rows of the batch a rank has in a task. The last micro-batches may have fewer than others, or none.
func (l *loader) rows(s *codegen.Schedule, t codegen.Task) int {
	prog := l.program.src
	n, at := prog.Batch*max(1, prog.Plan.SequenceParts), prog.At(s, t)
	for i, a := range prog.Mesh.Axes {
		if partition.FollowsBatch(a) {
			n = a.Cut(n, at[i]).Len
		}
	}
	return n
}

// cutAlike reports whether two values are cut into the same rows, if micro-batches cut them. Then a part of one lies to a part of
// the other as in any other micro-batch.
func (l *loader) cutAlike(a, b *ir.Value) bool {
	if !l.cut(a) && !l.cut(b) {
		return true
	}
	return l.cut(a) && l.cut(b) && a.Type.Shape[0] == b.Type.Shape[0] && slices.Equal(a.Spec.ShardAxes(0), b.Spec.ShardAxes(0))
}

// variant identifies actions of a rank that micro-batches share.
type variant struct {
	unit              *unit
	slot, inbox, rows int
	first             bool
}

// variant returns which actions a task shares. rows is from [loader.rows].
func (u *unit) variant(stage *codegen.Stage, t codegen.Task, rows int) variant {
	v := variant{unit: u, rows: rows, first: u.first && t.MicroBatch == 0}
	if u.slot {
		v.slot = t.MicroBatch % stage.Chunks[t.Chunk].Slots
	}
	if u.inbox {
		v.inbox = t.MicroBatch % stage.Chunks[t.Chunk].Inboxes
	}
	return v
}

// order is what ranks that run the same tasks have in common.
type order struct {
	tasks  map[codegen.Task]int // indexes
	ends   []int64              // the number, in a step, of the compute event at the end of each task
	events [Host]int64          // that a step records, by stream
	meets  []*codegen.Instr     // collectives and transfers, each once on the same stream, in the order of their first runs
}

// ordered identifies an order: tasks of alike ranks are the same slice.
type ordered struct {
	stage, microBatches int
	tasks               *codegen.Task
}

func (l *loader) order(s *codegen.Schedule) *order {
	key := ordered{s.Stage, s.MicroBatches, &s.Tasks[0]}
	o, ok := l.orders[key]
	if ok {
		return o
	}
	o = &order{tasks: map[codegen.Task]int{}}
	l.orders[key] = o
	type met struct {
		of     any // a transfer, or an axis
		stream Stream
	}
	seen, known := map[*outline]bool{}, map[met]bool{}
	for i, t := range s.Tasks {
		o.tasks[t] = i
		tasks := l.outline(s, t)
		for stream, n := range tasks.events {
			o.events[stream] += n
		}
		o.ends = append(o.ends, o.events[Compute])
		if seen[tasks] {
			continue
		}
		seen[tasks] = true
		for _, u := range tasks.units {
			if launched(u.calls[0].bucket[0].Node.Op) {
				continue
			}
			for _, in := range u.calls[0].bucket {
				m := met{of: in.Node}
				if attr, ok := in.Node.Attr.(ir.CommAttr); ok {
					m = met{attr.Axis, streamOf(in)}
				}
				if !known[m] && in.Node.Op != ir.OpInput {
					known[m] = true
					o.meets = append(o.meets, in)
				}
			}
		}
	}
	return o
}

// inputs lists what the stages read: every process is fed all of it.
func (l *loader) inputs() {
	p := l.program
	for _, stage := range p.src.Stages {
		for _, name := range slices.Sorted(maps.Keys(stage.Inputs)) {
			if p.byName[name] == nil {
				in := &input{name: name, typ: stage.Buffers[stage.Inputs[name]].Value.Type}
				p.byName[name] = in
				p.inputs = append(p.inputs, in)
			}
		}
	}
}

// number gives all groups and wires their numbers, in the order in which the ranks come to them, one rank after another. So they
// are the same in all processes.
func (l *loader) number() {
	prog := l.program.src
	for i := range prog.Schedules {
		s := &prog.Schedules[i]
		o := l.order(s)
		for _, in := range o.meets {
			switch n := in.Node; n.Op {
			case ir.OpSend:
				l.wire(wire{n, s.Rank, prog.Peer(s, n)})
			case ir.OpRecv:
				l.wire(wire{n.Args[0].Def, prog.Peer(s, n), s.Rank})
			default:
				ranks, _ := prog.Group(s, n)
				l.group(streamOf(in), ranks)
			}
		}
		for stream, n := range o.events {
			l.program.events[stream] = append(l.program.events[stream], n)
		}
	}
}
