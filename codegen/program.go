// Package codegen compiles a partitioned graph into a [Program]. For each position of the pipeline it emits the
// instructions of one body per phase (forward, backward, weight gradients, update), with every buffer at a
// fixed offset. For each rank it emits the order in which the rank runs those bodies over its micro-batches.
// [Stage.Arena] is the size of the arena of every rank of the stage, exact to the byte.
//
// [Verify] proves, before a program runs, that it computes the graph it was made from and that it is sound (no
// races, no overlapping buffers, no deadlock).
//
// The files, in reading order:
//
//   - What a program is: program.go; order.go has the pipeline schedules; print.go writes a program as text.
//   - How it is made: generate.go is the entry point. layout.go builds the bodies of a stage and decides in
//     which region each buffer lives; allocate.go and pack.go assign offsets. Passes that transform the bodies
//     before that: shared.go puts what blocks share in front of them; overlap.go moves collectives to a
//     communication stream; beside.go runs tensor-parallel collectives at the same time as an independent
//     matrix product; pieces.go splits a product and a dependent collective into parts that overlap; posted.go
//     makes sends asynchronous; join.go buckets the collectives of the update; view.go places shards inside the
//     buffer that they are gathered into.
//   - Why it is right: equivalence.go executes every rank symbolically, over expressions in place of numbers
//     (expression.go, folded.go, sliced.go, sequenceparts.go, contents.go). meetings.go matches the
//     collectives and messages of different ranks. progress.go finds deadlocks. check.go, checkstream.go,
//     checkview.go and checkleaf.go compare every use of a buffer with its lifetime, its neighbours in memory
//     and what the runtime loads.
//   - What other packages ask of a program: repeat.go computes the memory of a stage with many blocks from one
//     with few; expect.go and commbytes.go.
//
// Terms:
//
//   - position: one of the pp places of the pipeline. A [Stage] here is the code of one position; with
//     interleaved schedules it runs several stages of the plan, which are its chunks.
//   - body: the instructions of one phase; task: one run of a chunk's share of a body for one micro-batch.
//   - slot: the activations that one micro-batch in flight keeps until its backward pass; inbox: where a
//     message from the previous position arrives.
//   - bucket: consecutive collectives that are executed as one; see [Bucket].
//   - folded: an accumulation or sum that needs no instruction of its own, because the kernel that makes its
//     operand adds into the result.
package codegen

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Program is everything that the ranks of a run execute in one step.
type Program struct {
	Graph     *ir.Graph
	Plan      *partition.Plan
	Batch     int // global batch, sequences
	Mesh      ir.Mesh
	Stages    []*Stage   // by position in the pipeline
	Schedules []Schedule // by world rank
}

// Stage is the code and the memory layout of one position of the pipeline. All ranks of the position share it;
// they differ in their coordinates, and so in the slices they hold. Under interleaved schedules a position runs
// several stages of the plan: its chunks.
type Stage struct {
	Index   int // position in the pipeline
	Buffers []Buffer
	Bodies  [ir.NumPhases]Body
	Chunks  []Chunk
	// The arena consists of consecutive regions: Persist bytes, then for each chunk its slots and its inboxes,
	// then Temp bytes.
	Persist, Temp int64
	// Host is the size in bytes of a second arena, in host memory: everything that is offloaded (see
	// partition.Offload), of all chunks. Its contents survive between steps.
	Host int64
	// Durable is the part of Persist, from its start, that must survive between steps: weights, optimizer state
	// and constants. A program that shares the arena must not write there.
	Durable int64
	// StepInputs are the buffers that the runtime fills before each step, Consts those that it fills once.
	StepInputs, Consts []int
	// Params, Inputs and Outputs map names to buffers. Names are base names: see partition.BaseName.
	Params, Inputs, Outputs map[string]int
}

// Chunk is the memory that one chunk keeps for micro-batches in flight.
type Chunk struct {
	// Slots is the largest number of micro-batches in flight at once. Micro-batch k keeps its saved activations
	// in slot k mod Slots, of Slot bytes.
	Slots int
	Slot  int64
	// Inboxes is the number of micro-batches for which the previous stage may send: one more than are in
	// flight, so that it can send the next one early. Micro-batch k arrives in inbox k mod Inboxes, of Inbox
	// bytes.
	Inboxes int
	Inbox   int64
}

func (c *Chunk) bytes() int64 { return int64(c.Slots)*c.Slot + int64(c.Inboxes)*c.Inbox }

// Saved returns the bytes kept for micro-batches in flight, over all chunks.
func (s *Stage) Saved() int64 {
	var sum int64
	for i := range s.Chunks {
		sum += s.Chunks[i].bytes()
	}
	return sum
}

// SumsInSlots returns the bytes of [Sums] that lie in a slot when the update starts, in a step of one
// micro-batch.
func (s *Stage) SumsInSlots() int64 {
	var sum int64
	used, update := s.used(), s.beforeUpdate()
	for id := range s.Buffers {
		if b := &s.Buffers[id]; b.Region == Slot && used[id] && !b.View && b.To >= update {
			sum += alignUp(b.Size)
		}
	}
	return sum
}

// Arena returns the bytes a rank of this stage allocates.
func (s *Stage) Arena() int64 { return s.Persist + s.Saved() + s.Temp }

// Run returns the instructions that a task runs.
func (s *Stage) Run(t Task) []Instr {
	instrs := s.Bodies[t.Phase].Instrs
	if len(s.Chunks) == 1 || t.Phase == ir.Update {
		return instrs
	}
	for from := range instrs {
		if instrs[from].Chunk == t.Chunk {
			return instrs[from : from+sameChunk(instrs[from:])]
		}
	}
	return nil
}

// runs splits the instructions of a body by chunk. All tasks of a chunk run the same instructions.
func (s *Stage) runs(phase ir.Phase) [][]Instr {
	instrs := s.Bodies[phase].Instrs
	if phase == ir.Update || len(s.Chunks) == 1 {
		return [][]Instr{instrs}
	}
	var all [][]Instr
	for len(instrs) > 0 {
		n := sameChunk(instrs)
		all = append(all, instrs[:n])
		instrs = instrs[n:]
	}
	return all
}

// sameChunk counts the leading instructions that belong to the chunk of the first one.
func sameChunk(instrs []Instr) int {
	for i := range instrs {
		if instrs[i].Chunk != instrs[0].Chunk {
			return i
		}
	}
	return len(instrs)
}

// Region says where a buffer lies, and thereby how long it may live.
type Region uint8

const (
	Persist Region = iota // across steps, or across the micro-batches of a step
	Slot                  // from the forward pass of a micro-batch to its backward pass
	Temp                  // within one body
	Inbox                 // as Slot, and also from before the forward pass, while the message arrives
	Host                  // across steps, in host memory
	// Sums occurs only in a [Draft]: sums over micro-batches that the update reads. It becomes Persist, or Slot
	// in a step of one micro-batch, where such a sum is live only from the instruction that makes it to its
	// last reader and can reuse the space of activations that are no longer needed.
	Sums
)

func (r Region) String() string {
	return [...]string{"persist", "slot", "temp", "inbox", "host", "sums"}[r]
}

// InFlight reports whether the region has one part for each micro-batch in flight through a chunk.
func (r Region) InFlight() bool { return r == Slot || r == Inbox }

// throughBodies reports whether lifetimes in the region are counted over the instructions of all bodies.
func (r Region) throughBodies() bool { return r.InFlight() || r == Sums }

// Buffer is a place in a region. Values that alias (in-place results, merged accumulators) share one buffer.
type Buffer struct {
	Region Region
	// Body is the phase that a Temp buffer belongs to. Chunk is the chunk that any buffer belongs to, except in
	// Persist and Host.
	Body ir.Phase
	// View says that the buffer has no bytes of its own. It lies inside buffer Of: the rank's part of Value is
	// a contiguous part of what the rank holds of Of's value (see [Place]). Region still says how long the
	// contents last. In a [Draft], View holds only on meshes that allow it: see [Fits].
	View   bool
	Of     int
	Chunk  int
	Offset int64 // bytes from the start of the region (of the slot or inbox)
	Size   int64 // bytes: the largest over ranks and micro-batches
	// From and To are the first and last instruction at which the buffer is live. They count over the
	// instructions of all bodies, one after another, for Slot, Inbox and Sums, and over the instructions of its
	// own body for Temp.
	From, To int
	// Value is the first value that the buffer holds.
	Value *ir.Value
}

// Offset returns the byte offset of buffer b in its arena for a micro-batch. For a view it is the offset of the
// buffer that contains it; [Program.Offset] gives the exact place.
func (s *Stage) Offset(b, microBatch int) int64 {
	buf := &s.Buffers[b]
	if buf.View {
		buf = &s.Buffers[buf.Of]
	}
	at := buf.Offset
	if buf.Region == Persist || buf.Region == Host {
		return at
	}
	at += s.Persist
	if buf.Region == Temp {
		return at + s.Saved()
	}
	for i := range buf.Chunk {
		at += s.Chunks[i].bytes()
	}
	c := &s.Chunks[buf.Chunk]
	if buf.Region == Inbox {
		return at + int64(c.Slots)*c.Slot + int64(microBatch%c.Inboxes)*c.Inbox
	}
	return at + int64(microBatch%c.Slots)*c.Slot
}

// RoomFor returns the chunk that receives what send sends, and for how many micro-batches that chunk has room:
// the sender must not send micro-batch k before the receiver is done with micro-batch k - room. A room of 0
// means that the sender never waits.
func (s *Stage) RoomFor(send *ir.Node) (chunk, room int) {
	for phase := range ir.Update {
		for i := range s.Bodies[phase].Instrs {
			in := &s.Bodies[phase].Instrs[i]
			if in.Node.Op != ir.OpRecv || in.Node.Args[0] != send.Results[0] {
				continue
			}
			c := &s.Chunks[in.Chunk]
			if s.Buffers[in.Results[0]].Region == Inbox {
				return in.Chunk, c.Inboxes
			}
			return in.Chunk, c.Slots
		}
	}
	return 0, 0
}

// Accum says whether an instruction adds into its result or overwrites it.
type Accum uint8

const (
	Overwrite  Accum = iota
	AfterFirst       // overwrite in micro-batch 0, add afterwards
	Always           // add
)

func (a Accum) String() string { return [...]string{"", "+=", "+="}[a] }

// Instr is one instruction of a body: a kernel launch, a collective, a transfer, or the feeding of an input.
type Instr struct {
	Node *ir.Node // op, attributes, and the values with their specs
	// Args and Results are indices of buffers, parallel to the node's Args and Results.
	Args, Results []int
	// Accum has one mode for each result.
	Accum []Accum
	Chunk int
	// Async says that the instruction, a collective, runs on the rank's communication stream. It starts when
	// all earlier instructions are done. Only an instruction with Await and the end of the task wait for it; if
	// it is also Last, only an Await and the start of the update do.
	Async bool
	// Fused says that the instruction, a collective, is executed together with the previous one, as part of the
	// same [Bucket].
	Fused bool
	// Last says that the instruction runs only in the rank's last micro-batch. Its node belongs to the update.
	Last bool
	// Posted says that the instruction, a send of a pass, is handed to the rank's transfer stream, which makes
	// one transfer after another, while the rank goes on. The operand must not change before the transfer is
	// done; the next task of the same chunk and phase, and the end of the step, wait for that. See posted.go.
	Posted bool
	// InPlace says that the operand and the result of the instruction, a slice or an all_gather, share memory,
	// because one is a view of the other. A slice then has nothing to do, and an all_gather moves only what the
	// other members hold.
	InPlace bool
	// Delayed says that the instruction follows reductions of its segment that are made in every micro-batch, and
	// so stands two segments later: it adds up what they make, or reduces the sum further. In a body of a
	// rank's only chunk that sends, the latter stands at the end.
	Delayed bool
	// Beside is the number of following instructions, all kernels, that run at the same time as this one, a
	// collective of tensor-parallel ranks. They start when it does, and the instruction after them starts when
	// all of them and the collective are done. See beside.go.
	Beside int
	// An instruction with Parts > 0 computes part number Part of the node's result: some of the sequences of
	// the micro-batch. Parts instructions together make the node. Parts is 0 where one instruction makes all of
	// it. See pieces.go.
	Part, Parts int
	// Await is the number of asynchronous instructions of the task, counted from its first and including those
	// with Last, that must be done before this one starts. The stream runs in order, so all that it was given
	// before them is done too.
	Await int
	// Segment is the number of the segment of the chunk's body that the instruction works for: see overlap.go.
	// It is 0 in a plan without overlap.
	Segment int
}

// Bucket returns the instructions that are executed together with instruction i, the first of them: a
// collective and those fused with it, or instruction i alone.
func Bucket(instrs []Instr, i int) []Instr {
	end := i + 1
	for end < len(instrs) && instrs[end].Fused {
		end++
	}
	return instrs[i:end]
}

// Body is the straight-line code of one phase: that of its chunks, one after another, in the order in which a
// micro-batch passes through them. See [Stage.Run].
type Body struct{ Instrs []Instr }

// Task is one run of a chunk's share of a body by a rank, for one micro-batch.
type Task struct {
	Phase      ir.Phase
	Chunk      int
	MicroBatch int
}

func (t Task) String() string {
	switch {
	case t.Phase == ir.Update:
		return "upd"
	case t.Chunk > 0:
		return fmt.Sprintf("%s chunk=%d mb=%d", t.Phase, t.Chunk, t.MicroBatch)
	}
	return fmt.Sprintf("%s mb=%d", t.Phase, t.MicroBatch)
}

// Schedule is what one rank runs in one step.
type Schedule struct {
	Rank         int
	Stage        int // index into Program.Stages
	Device       int // number of the device in the stage's mesh
	Coord        ir.Coord
	MicroBatches int
	Tasks        []Task // read only: shared by the ranks of the stage that run the same number of micro-batches
}

// Runs reports whether a rank runs an instruction in a task.
func (s *Schedule) Runs(in *Instr, t Task) bool {
	return !in.Last || t.MicroBatch == s.MicroBatches-1
}

// Training reports whether the program has a backward pass.
func (p *Program) Training() bool {
	return slices.ContainsFunc(p.Graph.Nodes, func(n *ir.Node) bool { return n.Phase == ir.Backward })
}

// At returns the mesh coordinates of a task: those of the rank, with the micro-batch on the time axis.
func (p *Program) At(s *Schedule, t Task) ir.Coord {
	c := s.Coord
	if a := p.Mesh.Axis(partition.AxisMB); a >= 0 && t.Phase != ir.Update {
		c[a] = t.MicroBatch
	}
	return c
}

// Slab returns the part of value v that the mesh position c holds.
func (p *Program) Slab(v *ir.Value, c ir.Coord) ir.Slab {
	return p.Mesh.Local(v.Type.Shape, v.Spec, c)
}

// Group returns the world ranks that take part in communication instruction n together with the given rank, in
// the order of the axis, and the rank's own index among them.
func (p *Program) Group(s *Schedule, n *ir.Node) (ranks []int, position int) {
	axis := p.Mesh.Axis(n.Attr.(ir.CommAttr).Axis)
	for _, d := range p.Mesh.Group(s.Coord, axis) {
		ranks = append(ranks, p.Plan.WorldRank(s.Stage, d))
	}
	return ranks, s.Coord[axis]
}

// Peer returns the world rank at the other end of a send or receive.
func (p *Program) Peer(s *Schedule, n *ir.Node) int {
	return p.Plan.WorldRank(n.Attr.(ir.P2PAttr).Stage, s.Device)
}
