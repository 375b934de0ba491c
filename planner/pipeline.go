package planner

import (
	"slices"
	"sort"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// pipeline is a skeleton at a size of micro-batch and a schedule: everything
// about a plan but the cut. Its methods are the cost function of the search.
//
// One rank stands for its position: the first of the mesh, which holds the largest
// slices and the most micro-batches, and so is never ahead of the others. What
// it shares with them, collectives, is part of its work.
type pipeline struct {
	skel         *skeleton
	template     partition.Plan // but for the cut
	microBatches int
	stages       []*stageTimes // nil until they are priced
	memory       []stageMemory
	room         []codegen.Chunk // by stage: the micro-batches that it keeps
	early        []int           // by position: forward passes before the first backward pass
}

func newPipeline(s *skeleton, memory []stageMemory, microBatch int, schedule partition.Schedule) *pipeline {
	p := &pipeline{
		skel: s, memory: memory,
		microBatches: s.mesh(microBatch).Size(partition.AxisMB),
		room:         make([]codegen.Chunk, len(s.plan.Stages)),
	}
	p.template = s.plan
	p.template.MicroBatch, p.template.Schedule = microBatch, schedule
	if schedule == partition.ZeroBubble {
		// Temporary values of the backward pass may lie in the slots instead.
		p.memory = slices.Clone(memory)
		for i := range p.memory {
			p.memory[i].temp = p.memory[i].calm
		}
	}
	for i := range p.template.PP() {
		early := min(p.microBatches, p.template.PP()-i)
		if schedule == partition.GPipe {
			early = p.microBatches
		}
		p.early = append(p.early, early)
		for c, room := range s.all.room(&p.template, i, p.microBatches) {
			p.room[i+c*p.template.PP()] = room
		}
	}
	return p
}

// mayFit reports whether stages that recompute whatever spares the most could hold all
// blocks between them.
func (p *pipeline) mayFit(limit int64) bool {
	if p.template.Chunks() > 1 {
		return p.mayFitInterleaved(limit)
	}
	left := p.skel.blocks
	for i := range p.memory {
		left -= sort.Search(left, func(n int) bool { return p.memory[i].least(n+1, p.room[i]) > limit })
		if left == 0 {
			return i == len(p.memory)-1 || p.memory[len(p.memory)-1].least(1, p.room[len(p.memory)-1]) <= limit
		}
	}
	return false
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
func (p *pipeline) time(cut []partition.Stage) cost.Picoseconds { return latest(p.system(cut)) }

// latest runs a system and returns when the last of its processes ends.
func latest(system *sim.System) cost.Picoseconds {
	ends, err := system.Run()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return slices.Max(ends)
}

// system returns what the positions of the pipeline do in a step with a cut.
func (p *pipeline) system(cut []partition.Stage) *sim.System {
	positions := p.template.PP()
	system := &sim.System{Processes: make([]sim.Process, positions)}
	type channel struct {
		phase          ir.Phase
		from, to, wire int // stages, in the update positions
	}
	channels := map[channel]int{}
	last := codegen.Releases(&p.template, true)
	// ops prices a body of stage i with n blocks.
	ops := func(i int, b body, phase ir.Phase, n int, r recomputation) []sim.Op {
		out := make([]sim.Op, len(b))
		for k := range b {
			part := &b[k]
			span := part.spans(n, r)
			out[k] = sim.Op{Kind: part.kind, Time: span.time, Since: span.since}
			if part.kind == sim.Work {
				continue
			}
			from, to := i, i+part.hop
			if part.kind == sim.Recv {
				from, to = to, from
			}
			key := channel{phase, from, to, part.wire}
			id, ok := channels[key]
			if !ok {
				id = len(system.Channels)
				channels[key] = id
				ch := sim.Channel{From: from % positions, To: to % positions, Chunk: to / positions}
				switch phase {
				case ir.Forward:
					ch.Room = p.room[to].Inboxes
				case ir.Backward:
					ch.Room = p.room[to].Slots
				}
				system.Channels = append(system.Channels, ch)
			}
			out[k].Peer = id
		}
		return out
	}
	for at := range positions {
		var passes [][ir.Update][2][]sim.Op // by chunk
		blocks := 0                         // of all chunks
		for i := at; i < len(cut); i += positions {
			n, r := cut[i].Last-cut[i].First, recomputationOf(cut[i])
			blocks += n
			var pass [ir.Update][2][]sim.Op
			for phase := range ir.Update {
				for size := range 2 {
					pass[phase][size] = ops(i, p.body(i, phase, size), phase, n, r)
				}
			}
			passes = append(passes, pass)
		}
		var tasks []sim.Task
		for _, t := range codegen.Order(&p.template, at, p.microBatches, true) {
			if t.Phase == ir.Update {
				update := ops(at, p.stages[at].update, ir.Update, blocks, recomputation{})
				for k, part := range p.stages[at].update {
					for chunk := range p.template.Chunks() {
						c := cut[at+chunk*positions]
						time := part.chunks[p.skel.of.chunk(&p.template, at == positions-1, chunk)]
						update[k].Time += cost.Picoseconds(c.Last-c.First) * time
					}
				}
				tasks = append(tasks, sim.Task{Ops: update})
				continue
			}
			tasks = append(tasks, sim.Task{
				Ops: passes[t.Chunk][t.Phase][p.size(t.MicroBatch)], Chunk: t.Chunk, MicroBatch: t.MicroBatch, Releases: t.Phase == last,
			})
		}
		system.Processes[at] = sim.Process{Tasks: tasks}
	}
	return system
}

// body returns what stage i does in a pass over a micro-batch.
func (p *pipeline) body(i int, phase ir.Phase, size int) body {
	s := p.stages[i]
	switch split := p.template.Schedule == partition.ZeroBubble; {
	case phase == ir.Backward && split:
		return s.input[size]
	case phase == ir.WeightGrad && !split:
		return nil
	}
	return s.pass(phase)[size]
}
