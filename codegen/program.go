// Package codegen turns a partitioned graph into a [Program]: for each position of
// the pipeline the instructions of a forward, a backward and an update body with
// every buffer at a fixed offset, and for each rank the order in which it runs
// those bodies over its micro-batches. What the program allocates is what it says:
// [Stage.Arena] is the arena of every rank of the stage, to the byte.
//
// [Verify] proves, before it runs, that a program computes the graph it was made
// of and that it is sound.
//
// The files, in the order in which to read them:
//
//   - What a program is: program.go, order.go; print.go writes it.
//   - How it is made: generate.go; layout.go, the bodies of a stage and where their buffers lie in memory, which allocate.go and pack.go
//     place. What changes the bodies before: overlap.go moves communication to a stream, beside.go has it run beside a product,
//     pieces.go in parts, posted.go has a stage send while it goes on, join.go has that of an update made together, view.go
//     makes shards in place.
//   - Why it is right: equivalence.go runs every rank over expressions in place of numbers (expression.go, folded.go,
//     sliced.go, contents.go), meetings.go matches collectives, progress.go finds cycles of waits; repeat.go has a few blocks
//     stand for many. check.go, checkstream.go, checkview.go and checkleaf.go hold buffers against their lives, and against what the
//     runtime loads.
//   - What others ask of it: expect.go, commbytes.go.
package codegen

import (
	"fmt"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Program is everything the ranks of a run execute in one step.
type Program struct {
	Graph     *ir.Graph
	Plan      *partition.Plan
	Batch     int // global batch, sequences
	Mesh      ir.Mesh
	Stages    []*Stage   // by position in the pipeline
	Schedules []Schedule // by world rank
}

// Stage is the code and memory layout that all ranks of one position of the
// pipeline share. Ranks differ in their coordinates, and so in the slices they hold.
// Where ranks run several stages of the plan, those are its chunks.
type Stage struct {
	Index   int // position in the pipeline
	Buffers []Buffer
	Bodies  [ir.NumPhases]Body
	Chunks  []Chunk
	// The arena is regions one after another: Persist bytes, the slots and then the
	// inboxes of each chunk, and Temp bytes.
	Persist, Temp int64
	// Host is the bytes of a second arena, in the host memory of the rank: what is
	// offloaded (see partition.Offload), of all chunks. It survives between steps.
	Host int64
	// Durable is the part of Persist that must survive between steps: weights,
	// optimizer state and constants. A program that shares the arena keeps off it.
	Durable int64
	// StepInputs and Consts are the buffers set before a step and once.
	StepInputs, Consts []int
	// Params, Inputs and Outputs lead from names to buffers. Names are base
	// names: see partition.BaseName.
	Params, Inputs, Outputs map[string]int
}

// Chunk is the memory that one chunk keeps for the micro-batches in flight.
type Chunk struct {
	// Slots is how many micro-batches are in flight at once. Micro-batch k keeps
	// its saved activations in slot k mod Slots, of Slot bytes.
	Slots int
	Slot  int64
	// Inboxes is how many micro-batches have room for what the stage before sends:
	// one more than is in flight, so that it can send the next one early. Micro-batch
	// k arrives in inbox k mod Inboxes, of Inbox bytes.
	Inboxes int
	Inbox   int64
}

func (c *Chunk) bytes() int64 { return int64(c.Slots)*c.Slot + int64(c.Inboxes)*c.Inbox }

// Saved returns the bytes that are kept for micro-batches in flight.
func (s *Stage) Saved() int64 {
	var sum int64
	for i := range s.Chunks {
		sum += s.Chunks[i].bytes()
	}
	return sum
}

// SumsInSlots returns the bytes that the update finds in a slot: those of [Sums], if a step has one micro-batch.
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

// Run returns the instructions of a task.
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

// runs lists the instructions of a body by the tasks that run them: all tasks of a chunk
// run the same.
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

// sameChunk counts the instructions that belong to the chunk of the first.
func sameChunk(instrs []Instr) int {
	for i := range instrs {
		if instrs[i].Chunk != instrs[0].Chunk {
			return i
		}
	}
	return len(instrs)
}

// Region says how long a buffer lives.
type Region uint8

// The regions.
const (
	Persist Region = iota // across steps, or across the micro-batches of a step
	Slot                  // from a micro-batch's forward to its backward
	Temp                  // inside one body
	Inbox                 // as Slot, and before that while it arrives
	Host                  // across steps, in host memory
	// Sums is, in a [Draft], sums over micro-batches that the update reads: Persist, but of a step of one micro-batch
	// Slot, where they take the place of what has been read, from when they are made to their last reader.
	Sums
)

func (r Region) String() string {
	return [...]string{"persist", "slot", "temp", "inbox", "host", "sums"}[r]
}

// InFlight reports whether the region has a part for each micro-batch in flight
// through a chunk.
func (r Region) InFlight() bool { return r == Slot || r == Inbox }

// throughBodies reports whether lives in the region are counted over all bodies.
func (r Region) throughBodies() bool { return r.InFlight() || r == Sums }

// Buffer is a place in a region. Values that alias (in-place results, merged
// accumulators) share one.
type Buffer struct {
	Region Region
	// Body is the phase a Temp buffer belongs to, Chunk the chunk that any but a
	// Persist or Host buffer belongs to.
	Body ir.Phase
	// View says that the buffer has no bytes of its own: it lies in buffer Of, where the
	// part of a value that a rank has as Value lies in what it has as Of's: see [Place].
	// Its Region says how long what it holds lasts. In a [Draft] it is so on meshes that
	// allow it: see [Fits].
	View   bool
	Of     int
	Chunk  int
	Offset int64 // bytes from the start of the region (of the slot or inbox)
	Size   int64 // bytes: the largest over ranks and micro-batches
	// From and To are the first and last positions at which the buffer is live,
	// counted over the instructions of the bodies one after another for Slot, Inbox
	// and Sums, of its body for Temp.
	From, To int
	// Value is the first value the buffer holds.
	Value *ir.Value
}

// Offset returns where buffer b lies in its arena for a micro-batch, or the buffer that it
// is a view of: see [Program.Offset].
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

// RoomFor returns how many micro-batches have room for what send brings to the stage:
// its sender waits until micro-batch k - Room has left it before it sends k. 0 means
// that it never waits.
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

// Accum says whether an instruction adds into its result.
type Accum uint8

// The accumulation modes.
const (
	Overwrite  Accum = iota
	AfterFirst       // overwrite in micro-batch 0, add afterwards
	Always           // add
)

func (a Accum) String() string { return [...]string{"", "+=", "+="}[a] }

// Instr is one instruction of a body: a kernel launch, a collective, a transfer
// or the feeding of an input.
type Instr struct {
	Node *ir.Node // op, attributes, and the values with their specs
	// Args and Results are buffers, parallel to the node's.
	Args, Results []int
	// Accum has one mode per result.
	Accum []Accum
	Chunk int
	// Async says that the instruction, a collective, runs on the rank's
	// communication stream: it starts when all others before it are done, and
	// nothing waits for it but an Await and the end of the task, or of what runs in the
	// last micro-batch only the start of the update.
	Async bool
	// Fused says that the instruction, a collective, is made in one go with the one
	// before it: in a [Bucket].
	Fused bool
	// Last says that the instruction, of the update by its node, runs in the rank's last
	// micro-batch only.
	Last bool
	// Posted says that the instruction, a send of a pass, is handed to the rank's transfer stream, which makes one transfer
	// after another: the rank goes on. Its operand stays what it is until the next task of the same chunk and phase,
	// or the end of the step, which wait until it is sent. See posted.go.
	Posted bool
	// InPlace says that of the buffers of the instruction, a slice or an all_gather, one is a
	// view of the other: a slice has nothing to do, and an all_gather to move only what the
	// other members have.
	InPlace bool
	// Beside is how many instructions after this one, a collective of tensor-parallel ranks,
	// run beside it: all kernels. They start when it does, and the one after them when
	// all are done. See beside.go.
	Beside int
	// Part says which of Parts the instruction makes of what its node makes, which that many instructions make one
	// after another: so many of the sequences of the micro-batch. Parts is 0 where one makes all. See pieces.go.
	Part, Parts int
	// Await is how many of the task's asynchronous instructions, those that run
	// in the last micro-batch only included, are done before this one starts, and with
	// them all that were given to the stream before.
	Await int
	// Segment numbers the stretch of the chunk's part of the body that the instruction
	// works for: see overlap.go. It is 0 in a plan without overlap.
	Segment int
}

// Bucket returns the instructions that are made in one go, of which the first is number i:
// a collective and those that are fused with it, or one alone.
func Bucket(instrs []Instr, i int) []Instr {
	end := i + 1
	for end < len(instrs) && instrs[end].Fused {
		end++
	}
	return instrs[i:end]
}

// Body is the straight-line code of one phase: of its chunks one after another in
// the order in which a micro-batch passes them. See [Stage.Run].
type Body struct{ Instrs []Instr }

// Task is one run of a chunk's part of a body by a rank.
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
	Device       int // in the stage's mesh
	Coord        ir.Coord
	MicroBatches int
	Tasks        []Task // shared with ranks of the stage that run as many micro-batches: read only
}

// Runs reports whether a rank runs an instruction in a task.
func (s *Schedule) Runs(in *Instr, t Task) bool {
	return !in.Last || t.MicroBatch == s.MicroBatches-1
}

// Training reports whether the program has a backward pass.
func (p *Program) Training() bool {
	for _, n := range p.Graph.Nodes {
		if n.Phase == ir.Backward {
			return true
		}
	}
	return false
}

// At returns the mesh position of a task: the rank's coordinates and the
// micro-batch on the time axis.
func (p *Program) At(s *Schedule, t Task) ir.Coord {
	c := s.Coord
	if a := p.Mesh.Axis(partition.AxisMB); a >= 0 && t.Phase != ir.Update {
		c[a] = t.MicroBatch
	}
	return c
}

// Slab returns the part of value v that position c of the mesh holds.
func (p *Program) Slab(v *ir.Value, c ir.Coord) ir.Slab {
	return p.Mesh.Local(v.Type.Shape, v.Spec, c)
}

// Group returns the world ranks that take part in a communication instruction
// with the given rank, in axis order; position is the rank's own place.
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
