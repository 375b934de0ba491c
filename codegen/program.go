// Package codegen turns a partitioned graph into a [Program]: for each pipeline
// stage the instructions of a forward, a backward and an update body with every
// buffer at a fixed offset, and for each rank the order in which it runs those
// bodies over its micro-batches. What the program allocates is what it says:
// [Stage.Arena] is the arena of every rank of the stage, to the byte.
//
// [Verify] proves, before it runs, that a program computes the graph it was made
// of and that it is sound.
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
	Stages    []*Stage
	Schedules []Schedule // by world rank
}

// Stage is the code and memory layout that all ranks of one pipeline stage
// share. Ranks differ in their coordinates, and so in the slices they hold.
type Stage struct {
	Index   int
	Buffers []Buffer
	Bodies  [3]Body // by ir.Phase
	// Slots is how many micro-batches are in flight at once. Micro-batch k keeps
	// its saved activations in slot k mod Slots.
	Slots int
	// The arena is the three regions one after another: Persist bytes, then
	// Slots times Slot bytes, then Temp bytes.
	Persist, Slot, Temp int64
	// Host is the bytes of a second arena, in the host memory of the rank: what is
	// offloaded (see partition.Offload). It survives between steps.
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

// Arena returns the bytes a rank of this stage allocates.
func (s *Stage) Arena() int64 { return s.Persist + int64(s.Slots)*s.Slot + s.Temp }

// Region says how long a buffer lives.
type Region uint8

// The regions.
const (
	Persist Region = iota // across steps, or across the micro-batches of a step
	Slot                  // from a micro-batch's forward to its backward
	Temp                  // inside one body
	Host                  // across steps, in host memory
)

func (r Region) String() string { return [...]string{"persist", "slot", "temp", "host"}[r] }

// Buffer is a place in a region. Values that alias (in-place results, merged
// accumulators) share one.
type Buffer struct {
	Region Region
	Offset int64 // bytes from the start of the region (of the slot, for Slot)
	Size   int64 // bytes: the largest over ranks and micro-batches
	// From and To are the first and last positions at which the buffer is live,
	// counted over the instructions of the forward body and then the backward
	// body for Slot, of its body for Temp.
	From, To int
	// Body is the phase a Temp buffer belongs to.
	Body ir.Phase
	// Value is the first value the buffer holds.
	Value *ir.Value
}

// Offset returns where buffer b lies in its arena when its micro-batch is in the
// given slot.
func (s *Stage) Offset(b, slot int) int64 {
	buf := &s.Buffers[b]
	switch buf.Region {
	case Slot:
		return s.Persist + int64(slot)*s.Slot + buf.Offset
	case Temp:
		return s.Persist + int64(s.Slots)*s.Slot + buf.Offset
	}
	return buf.Offset
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
}

// Body is the straight-line code of one phase.
type Body struct{ Instrs []Instr }

// Task is one run of a body by a rank.
type Task struct {
	Phase      ir.Phase
	MicroBatch int
	Slot       int
}

func (t Task) String() string {
	if t.Phase == ir.Update {
		return "upd"
	}
	return fmt.Sprintf("%s mb=%d", t.Phase, t.MicroBatch)
}

// Schedule is what one rank runs in one step.
type Schedule struct {
	Rank         int
	Stage        int
	Device       int // in the stage's mesh
	Coord        ir.Coord
	MicroBatches int
	Tasks        []Task
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
