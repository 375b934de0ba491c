package cost

import (
	"math"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Instr returns the time of an instruction at a position of a mesh, and what
// kind of time it is. The mesh is the program's, or one that differs from it in
// the micro-batch axis. A part that is smaller than the first rank's of the first
// micro-batch takes no longer than that one, whatever tiles it is made of.
func (m *Program) Instr(in *codegen.Instr, mesh ir.Mesh, at ir.Coord) (Picoseconds, Kind) {
	t, kind := m.atMost(in, mesh, at)
	if kind != Communication && m.crowd > 0 {
		t = m.evenly(in, mesh, at, t)
	}
	return m.crowded(t, in.Node.Phase, mesh), kind
}

func (m *Program) atMost(in *codegen.Instr, mesh ir.Mesh, at ir.Coord) (Picoseconds, Kind) {
	t, kind := m.instr(in, mesh, at)
	if at != (ir.Coord{}) {
		first, _ := m.instr(in, mesh, ir.Coord{})
		t = min(t, first)
	}
	return t, kind
}

// evenly is the mean of the times of a kernel, one of which is t, over the ranks that share what a
// data-parallel rank has of a stage. On a shared machine those that have less to do wait, where they meet next, while the
// cores work for those that have more. The last rank has least.
func (m *Program) evenly(in *codegen.Instr, mesh ir.Mesh, at ir.Coord, t Picoseconds) Picoseconds {
	ranks, last := 1, at
	for i, a := range mesh.Axes {
		if !partition.FollowsBatch(a) {
			at[i], last[i] = 0, a.Size-1
			ranks *= a.Size
		}
	}
	if ranks == 1 {
		return t
	}
	most, _ := m.atMost(in, mesh, at)
	if least, _ := m.atMost(in, mesh, last); least == most {
		return most
	}
	sum := Picoseconds(ranks - 1) // rounded up
	before := at
	for rank := range ranks {
		left := rank
		for i, a := range mesh.Axes {
			if !partition.FollowsBatch(a) {
				at[i] = left % a.Size
				left /= a.Size
			}
		}
		if rank == 0 || !sameParts(in, mesh, at, before) { // the largest come first
			t, _ = m.atMost(in, mesh, at)
		}
		sum += t
		before = at
	}
	return sum / Picoseconds(ranks)
}

// sameParts reports whether all that an instruction reads and makes is as large at two positions.
func sameParts(in *codegen.Instr, mesh ir.Mesh, a, b ir.Coord) bool {
	for _, values := range [2][]*ir.Value{in.Node.Args, in.Node.Results} {
		for _, v := range values {
			for d, size := range v.Type.Shape {
				one, other := size, size
				for axis, p := range v.Spec { // the outer ones first
					if p.Kind == ir.Shard && int(p.Dim) == d {
						one, other = mesh.Axes[axis].Cut(one, a[axis]).Len, mesh.Axes[axis].Cut(other, b[axis]).Len
					}
				}
				if one != other {
					return false
				}
			}
		}
	}
	return true
}

// crowded is the time of work whose price is that of ranks which are all busy. On a
// shared machine the ranks of a pipeline that wait compute for the others. Updates come
// after, on all ranks at once.
func (m *Program) crowded(t Picoseconds, phase ir.Phase, mesh ir.Mesh) Picoseconds {
	if phase == ir.Update {
		return t
	}
	busy := m.Busy(m.plan.Schedule, m.plan.PP(), m.plan.Chunks(), mesh.Size(partition.AxisMB))
	if busy == 1 {
		return t
	}
	return Picoseconds(math.Ceil(float64(t) * busy))
}

// Crowded reports whether prices of a pipeline depend on its schedule: see
// [Model.Busy].
func (m *Model) Crowded(positions int) bool { return m.crowd > 0 && positions > 1 }

// Scheduled returns the same program's prices under another schedule.
func (m *Program) Scheduled(schedule partition.Schedule) *Program {
	plan, other := *m.plan, *m
	plan.Schedule = schedule
	other.plan = &plan
	return &other
}

// Busy is the share of its time with all ranks busy that the work of a rank takes in a
// pipeline of some positions, with a number of chunks each, and some micro-batches. The
// cores are shared by the ranks that do not wait, and who has more than one divides its
// work over them. How many wait when follows from the schedule, with the gradients of inputs and of weights as
// long as the forward pass each (as in Qi et al. ICLR'24, section 3).
func (m *Model) Busy(schedule partition.Schedule, positions, chunks, microBatches int) float64 {
	if !m.Crowded(positions) {
		return 1
	}
	key := crowd{schedule, positions, chunks, microBatches}
	if share, known := m.shares.Load(key); known {
		return share.(float64)
	}
	// With all busy a rank has 1/crowd of a core, and of k busy ones each 1/k of the cores.
	fair := func(busy int) float64 {
		more := float64(positions) / float64(busy)
		if t := m.efficiency.Threads; t > 0 && m.crowd >= 1 && more > m.crowd {
			return max(m.crowd, more*t)
		}
		return more
	}
	share := key.length(fair) / key.length(func(int) float64 { return 1 })
	m.shares.Store(key, share)
	return share
}

// crowd is a pipeline on a crowded machine.
type crowd struct {
	schedule                        partition.Schedule
	positions, chunks, microBatches int
}

// length returns how long the passes of a step take, in forward passes, if a position
// works at a speed that depends on how many are busy.
func (c crowd) length(speed func(busy int) float64) float64 {
	plan := &partition.Plan{Schedule: c.schedule, Interleave: c.chunks, Stages: make([]partition.Stage, c.positions*c.chunks)}
	if c.chunks == 1 {
		plan.Interleave = 0
	}
	backward := 2.0
	if c.schedule == partition.ZeroBubble {
		backward = 1 // of inputs alone
	}
	tasks := make([][]codegen.Task, c.positions) // those left, that in hand the first
	left := make([]float64, c.positions)         // to do of the task in hand
	for at := range tasks {
		tasks[at] = codegen.Order(plan, at, c.microBatches, true)
	}
	var done [ir.Update + 1][]bool // by phase, stage and micro-batch
	for phase := range done {
		done[phase] = make([]bool, len(plan.Stages)*c.microBatches)
	}
	ready := func(at int) bool {
		t := &tasks[at][0]
		stage := at + t.Chunk*c.positions
		switch {
		case t.Phase == ir.Forward && stage > 0:
			return done[ir.Forward][(stage-1)*c.microBatches+t.MicroBatch]
		case t.Phase == ir.Backward && stage < len(plan.Stages)-1:
			return done[ir.Backward][(stage+1)*c.microBatches+t.MicroBatch]
		}
		return true
	}
	now := 0.0
	busy := make([]int, 0, c.positions)
	for {
		busy = busy[:0]
		least := math.Inf(1)
		for at := range tasks {
			if tasks[at][0].Phase == ir.Update || left[at] == 0 && !ready(at) {
				continue
			}
			if left[at] == 0 {
				left[at] = 1
				if tasks[at][0].Phase == ir.Backward {
					left[at] = backward
				}
			}
			busy = append(busy, at)
			least = min(least, left[at])
		}
		if len(busy) == 0 {
			return now
		}
		now += least / speed(len(busy))
		for _, at := range busy {
			if left[at] -= least; left[at] > 1e-9 {
				continue
			}
			left[at] = 0
			t := &tasks[at][0]
			done[t.Phase][(at+t.Chunk*c.positions)*c.microBatches+t.MicroBatch] = true
			tasks[at] = tasks[at][1:]
		}
	}
}
