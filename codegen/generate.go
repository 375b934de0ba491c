package codegen

import (
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Compile applies a plan to a traced graph, as [partition.Apply] does, and generates the program. batch is the
// global batch in sequences. It returns the errors of partition.Apply.
//
// With share not nil the program runs in the arenas of share, between its steps (evaluation between training
// steps): parameters lie where share has them, and everything else reuses the rest of the arena. See also
// [CheckShared].
func Compile(g *ir.Graph, p *partition.Plan, batch int, share *Program) (*Program, error) {
	parts, err := partition.Apply(g, p, batch)
	if err != nil {
		return nil, err
	}
	prog := stages(parts, p, batch)
	for i, st := range prog.Stages {
		var shared *Stage
		if share != nil {
			shared = share.Stages[i]
		}
		st.settle(prog.Mesh)
		st.allocate(shared)
	}
	// Ranks of a stage that run the same number of micro-batches run the same tasks.
	type alike struct{ stage, microBatches int }
	orders := map[alike][]Task{}
	training := prog.Training()
	prog.Schedules = make([]Schedule, p.RuntimeNGPUs)
	for r := range prog.Schedules {
		stage, device := p.StageDevice(r)
		c := prog.Mesh.Coord(device)
		like := alike{stage, p.MicroBatchesOn(prog.Mesh, batch, c)}
		tasks, ok := orders[like]
		if !ok {
			tasks = Order(p, stage, like.microBatches, training)
			orders[like] = tasks
		}
		prog.Schedules[r] = Schedule{Rank: r, Stage: stage, Device: device, Coord: c, MicroBatches: like.microBatches, Tasks: tasks}
	}
	return prog, nil
}

// Draft compiles a plan as [Compile] does, but without the schedules of ranks and without offsets of buffers:
// it yields what each stage runs and when every buffer is live. [Program.Longer] computes the memory that this
// takes, on this mesh or another one with as many micro-batches: one (lone), or several.
func Draft(g *ir.Graph, p *partition.Plan, batch int, lone bool) (*Program, error) {
	parts, err := partition.ApplyFor(g, p, batch, lone)
	if err != nil {
		return nil, err
	}
	return stages(parts, p, batch), nil
}

// stages generates the code of every position of the pipeline.
func stages(g *ir.Graph, p *partition.Plan, batch int) *Program {
	prog := &Program{Graph: g, Plan: p, Batch: batch, Mesh: g.Mesh}
	training := prog.Training()
	tables, nodes := newTables(prog)
	for s := range p.PP() {
		st := &stageBuilder{prog: prog, training: training, tables: tables, nodes: nodes[s], Stage: &Stage{Index: s}}
		st.build()
		prog.Stages = append(prog.Stages, st.Stage)
	}
	return prog
}
