package cost

import (
	"math"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// On a shared machine a rank that waits leaves its core to the others, so work is faster while some ranks wait. This
// file simulates the schedule of a pipeline, with passes of equal length, to find by what factor ([Model.Busy]).
// Kernel and collective prices are computed for ranks that are all busy, and then multiplied by it.

// Instr returns the time of an instruction at a position of a mesh, and which part of a [Breakdown] it belongs to.
// The mesh is the program's, or one that differs from it only in the micro-batch axis. A part of a tensor that is
// smaller than the part of the first rank in the same micro-batch, or in the first one, is never priced higher than
// that one, whatever tiles are best for it and however little of it is hidden.
func (m *Program) Instr(in *codegen.Instr, mesh ir.Mesh, at ir.Coord) (Picoseconds, Kind) {
	t, kind := m.atMost(in, mesh, at)
	if kind != Communication && m.ranksPerCore > 0 {
		t = m.meanOverRanks(in, mesh, at, t)
	}
	return m.crowded(t, in.Node.Phase, mesh), kind
}

func (m *Program) atMost(in *codegen.Instr, mesh ir.Mesh, at ir.Coord) (Picoseconds, Kind) {
	t, kind := m.instr(in, mesh, at)
	noMoreThan := func(first ir.Coord) {
		if at != first {
			larger, _ := m.instr(in, mesh, first)
			t = min(t, larger)
		}
	}
	var first ir.Coord
	noMoreThan(first)
	if mb := mesh.Axis(partition.AxisMB); at[mb] > 0 {
		first[mb] = at[mb]
		noMoreThan(first)
	}
	return t, kind
}

// meanOverRanks returns the mean time of a kernel over the ranks that share one data-parallel rank's part of a stage; t is
// the time on one of them. On a shared machine, ranks with smaller parts wait at the next meeting, and meanwhile the
// cores work for ranks with larger parts. The last rank has the smallest part.
func (m *Program) meanOverRanks(in *codegen.Instr, mesh ir.Mesh, at ir.Coord, t Picoseconds) Picoseconds {
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
	sum := Picoseconds(ranks - 1) // so that the mean is rounded up
	before := at
	for rank := range ranks {
		left := rank
		for i, a := range mesh.Axes {
			if !partition.FollowsBatch(a) {
				at[i] = left % a.Size
				left /= a.Size
			}
		}
		if rank == 0 || !sameParts(in, mesh, at, before) { // the largest parts come first
			t, _ = m.atMost(in, mesh, at)
		}
		sum += t
		before = at
	}
	return sum / Picoseconds(ranks)
}

// sameParts reports whether all operands and results of an instruction have the same local sizes at two positions.
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

// crowded turns the time of work with all ranks busy into that on a shared machine, where ranks of a pipeline that
// wait compute for the others. The update is not changed: it runs on all ranks at once.
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

// Crowded reports whether prices in a pipeline of so many positions depend on its schedule: see [Model.Busy].
func (m *Model) Crowded(positions int) bool { return m.ranksPerCore > 0 && positions > 1 }

// Scheduled returns the prices of the same program under another schedule.
func (m *Program) Scheduled(schedule partition.Schedule) *Program {
	plan, other := *m.plan, *m
	plan.Schedule = schedule
	other.plan = &plan
	return &other
}

// Busy is the time that a rank's work takes in a pipeline on a shared machine, divided by the time if all ranks were
// busy throughout. The pipeline has the given number of positions, chunks per position, and micro-batches. Ranks that
// do not wait share the cores, and a rank with more than one core divides its work over them. The schedule determines
// how many ranks wait at what time; the gradients of inputs and of weights take as long as the forward pass each (as
// in Qi et al. ICLR'24, section 3).
func (m *Model) Busy(schedule partition.Schedule, positions, chunks, microBatches int) float64 {
	if !m.Crowded(positions) {
		return 1
	}
	key := busyPipeline{schedule, positions, chunks, microBatches}
	if share, known := m.shares.Load(key); known {
		return share.(float64)
	}
	// fair is the speed of a rank relative to its speed with all ranks busy. With all busy it has 1/ranksPerCore of a core;
	// with k busy, 1/k of the cores.
	fair := func(busy int) float64 {
		more := float64(positions) / float64(busy)
		if t := m.efficiency.Threads; t > 0 && m.ranksPerCore >= 1 && more > m.ranksPerCore {
			return max(m.ranksPerCore, more*t)
		}
		return more
	}
	share := key.length(fair) / key.length(func(int) float64 { return 1 })
	m.shares.Store(key, share)
	return share
}

// busyPipeline is a pipeline on a shared machine.
type busyPipeline struct {
	schedule                        partition.Schedule
	positions, chunks, microBatches int
}

// length returns the duration of a step's passes, in forward passes, if each position works at a speed that depends
// on how many positions are busy.
func (c busyPipeline) length(speed func(busy int) float64) float64 {
	plan := &partition.Plan{Schedule: c.schedule, Interleave: c.chunks, Stages: make([]partition.Stage, c.positions*c.chunks)}
	if c.chunks == 1 {
		plan.Interleave = 0
	}
	backward := 2.0
	if c.schedule.SplitsBackward() {
		backward = 1 // gradients of inputs only
	}
	tasks := make([][]codegen.Task, c.positions) // those left; the first is in progress
	left := make([]float64, c.positions)         // what is left to do of the task in progress
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
