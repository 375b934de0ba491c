package planner

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// pipeline is a skeleton at a size of micro-batch and a schedule: everything
// about a plan but the cut. Its methods are the cost function of the search.
//
// One rank stands for its stage: the first of the mesh, which holds the largest
// slices and the most micro-batches, and so is never ahead of the others. What
// it shares with them, collectives, is part of its work.
type pipeline struct {
	skel         *skeleton
	template     partition.Plan // but for the cut
	microBatches int
	stages       []stageTimes
	memory       []stageMemory
	slots        []int // micro-batches that a stage keeps, and its forwards before its first backward
}

func newPipeline(s *skeleton, stages []stageTimes, memory []stageMemory, microBatch int, schedule partition.Schedule) *pipeline {
	p := &pipeline{
		skel: s, stages: stages, memory: memory,
		microBatches: s.mesh(microBatch).Size(partition.AxisMB),
	}
	p.template = s.plan
	p.template.MicroBatch, p.template.Schedule = microBatch, schedule
	for i := range stages {
		p.slots = append(p.slots, codegen.Slots(&p.template, i, p.microBatches, true))
	}
	return p
}

// plan returns the plan with a cut.
func (p *pipeline) plan(cut []partition.Stage) *partition.Plan {
	plan := p.template
	plan.Stages = nil
	for _, s := range cut {
		plan.Stages = append(plan.Stages, p.skel.graphs.scaled(s))
	}
	return &plan
}

// size returns which size micro-batch k has.
func (p *pipeline) size(k int) int {
	if k == p.microBatches-1 {
		return rest
	}
	return whole
}

// time simulates a step of the pipeline with a cut: the cost of the plan.
func (p *pipeline) time(cut []partition.Stage) cost.Picoseconds {
	system := sim.System{Processes: make([]sim.Process, len(cut))}
	channels := map[*ir.Node]int{}
	for i, c := range cut {
		n, r := c.Last-c.First, recomputationOf(c)
		ops := func(b body, phase ir.Phase) []sim.Op {
			out := make([]sim.Op, len(b))
			for k := range b {
				part := &b[k]
				span := part.spans(n, r)
				out[k] = sim.Op{Kind: part.kind, Time: span.time, Since: span.since}
				if part.kind == sim.Work {
					continue
				}
				id, ok := channels[part.wire]
				if !ok {
					id = len(system.Channels)
					channels[part.wire] = id
					ch := sim.Channel{From: i, To: part.peer, Credit: phase != ir.Update}
					if part.kind == sim.Recv {
						ch.From, ch.To = part.peer, i
					}
					system.Channels = append(system.Channels, ch)
				}
				out[k].Peer = id
			}
			return out
		}
		var forward, backward [2][]sim.Op
		for size := range 2 {
			forward[size] = ops(p.stages[i].forward[size], ir.Forward)
			backward[size] = ops(p.stages[i].backward[size], ir.Backward)
		}
		m := p.microBatches
		tasks := make([]sim.Task, 0, 2*m+1)
		for _, t := range codegen.Order(&p.template, i, m, p.slots[i], true) {
			switch t.Phase {
			case ir.Forward:
				tasks = append(tasks, sim.Task{Ops: forward[p.size(t.MicroBatch)], MicroBatch: t.MicroBatch})
			case ir.Backward:
				tasks = append(tasks, sim.Task{Ops: backward[p.size(t.MicroBatch)], MicroBatch: t.MicroBatch, Releases: true})
			default:
				tasks = append(tasks, sim.Task{Ops: ops(p.stages[i].update, ir.Update)})
			}
		}
		system.Processes[i] = sim.Process{Tasks: tasks, Slots: p.slots[i]}
	}
	ends, err := system.Run()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	var latest cost.Picoseconds
	for _, e := range ends {
		latest = max(latest, e)
	}
	return latest
}
