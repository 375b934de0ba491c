package codegen

import (
	"fmt"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Compile applies a plan to a traced graph and generates its program. See
// [partition.Apply] and [Generate].
func Compile(g *ir.Graph, p *partition.Plan, batch int, share *Program) (*Program, error) {
	parts, err := partition.Apply(g, p, batch)
	if err != nil {
		return nil, err
	}
	return Generate(parts, p, batch, share)
}

// Generate compiles a partitioned graph. batch is the global batch.
//
// When share is not nil the program runs in the same arenas as share, between
// its steps (evaluation between training steps): parameters lie where share has
// them, and everything else reuses the rest of the arena.
func Generate(g *ir.Graph, p *partition.Plan, batch int, share *Program) (*Program, error) {
	prog := &Program{Graph: g, Plan: p, Batch: batch, Mesh: g.Mesh}
	hasBackward := false
	for _, n := range g.Nodes {
		hasBackward = hasBackward || n.Phase == ir.Backward
	}
	for s := range p.PP() {
		st := &stageBuilder{prog: prog, training: hasBackward, Stage: &Stage{Index: s}}
		if share != nil {
			st.shared = share.Stages[s]
		}
		if err := st.build(); err != nil {
			return nil, fmt.Errorf("codegen: stage %d: %w", s, err)
		}
		prog.Stages = append(prog.Stages, st.Stage)
	}
	for r := range p.RuntimeNGPUs {
		stage, device := p.StageDevice(r)
		c := prog.Mesh.Coord(device)
		sched := Schedule{Rank: r, Stage: stage, Device: device, Coord: c}
		sched.MicroBatches = p.MicroBatches(batch, c)
		sched.Tasks = Order(p, stage, sched.MicroBatches, prog.Stages[stage].Slots, hasBackward)
		prog.Schedules = append(prog.Schedules, sched)
	}
	return prog, nil
}

// Slots returns how many micro-batches a stage keeps in flight: all of them under
// GPipe, as many as there are stages from here to the end under 1F1B (Narayanan
// et al. SC'21, section 2.2). Without a backward pass two let a stage receive
// one micro-batch while it works on another.
func Slots(p *partition.Plan, stage, microBatches int, training bool) int {
	switch {
	case !training:
		return min(microBatches, min(2, p.PP()))
	case p.Schedule == partition.GPipe:
		return microBatches
	}
	return min(microBatches, p.PP()-stage)
}

// Order returns the tasks in one step of a rank of a stage that runs m micro-batches
// in the given number of slots.
func Order(p *partition.Plan, stage, m, slots int, training bool) []Task {
	var tasks []Task
	add := func(phase ir.Phase, mb int) {
		tasks = append(tasks, Task{Phase: phase, MicroBatch: mb, Slot: mb % slots})
	}
	warm := m
	if training && p.Schedule == partition.OneFOneB {
		warm = min(m, p.PP()-stage-1)
	}
	for mb := range warm {
		add(ir.Forward, mb)
	}
	if training {
		for mb := range m {
			if next := warm + mb; next < m {
				add(ir.Forward, next)
			}
			add(ir.Backward, mb)
		}
	}
	return append(tasks, Task{Phase: ir.Update})
}
