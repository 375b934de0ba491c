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

// This file is the cost function of the search: it puts the micro-batches of a step through the positions of a pipeline, with
// the times that price.go has for stages of any number of blocks, and simulates that with package sim. cut.go calls it for
// every cut that bounds leave, interleave.go for the one cut of an interleaved schedule; TestCostIsSimulation holds it to the
// simulation of whole programs, to the picosecond.

// pipeline is a skeleton with a micro-batch size and a schedule: everything about a plan but the cut.
//
// One rank stands for a position: the first of the mesh, which holds the largest slices and runs the most micro-batches, and
// so is never ahead of the others. The collectives that it shares with them are part of its work.
type pipeline struct {
	skel         *skeleton
	template     partition.Plan // without the cut
	microBatches int
	stages       []*stageTimes // nil until they are priced
	memory       []stageMemory
	room         []codegen.Chunk    // by stage: its slots and inboxes
	early        []int              // by position: see earlyForwards
	frame        *frame             // of the simulation; nil until it is needed
	most         extent             // as in [skeleton]
	measured     bool               // see measureApart
	headless     bool               // see leaveHead
	spared       []cost.Picoseconds // by stage, of a block in a pass for weight gradients: see leastKept. nil is nothing
}

// frame is what all simulations of a pipeline share: processes, tasks and channels. Only times differ from cut to cut.
type frame struct {
	system  sim.System
	cut     []partition.Stage        // of which ops have the times
	passes  [][ir.Update][2][]sim.Op // by stage, phase and size
	updates [][]sim.Op               // by position
}

func newPipeline(s *skeleton, memory []stageMemory, microBatch int, schedule partition.Schedule) *pipeline {
	p := openPipeline(s, microBatch, schedule)
	p.remember(memory)
	return p
}

// openPipeline is newPipeline without the memory of the stages.
func openPipeline(s *skeleton, microBatch int, schedule partition.Schedule) *pipeline {
	s = s.on(microBatch)
	p := &pipeline{
		skel: s, most: s.most,
		microBatches: s.mesh(microBatch).Size(partition.AxisMB),
		room:         make([]codegen.Chunk, len(s.plan.Stages)),
	}
	p.template = s.plan
	p.template.MicroBatch, p.template.Schedule = microBatch, schedule
	p.template.OverlapTP = p.template.OverlapTP && !schedule.SplitsBackward()
	for i := range p.template.PP() {
		p.early = append(p.early, earlyForwards(schedule, p.microBatches, p.template.PP(), i))
		for c, room := range s.all.room(&p.template, i, p.microBatches) {
			p.room[i+c*p.template.PP()] = room
		}
	}
	return p
}

// remember gives the pipeline the memory of its stages, corrected for its schedule.
func (p *pipeline) remember(memory []stageMemory) {
	s := p.skel
	p.memory, p.most = slices.Clone(memory), s.most
	if p.template.Schedule.SplitsBackward() {
		// Temporary values of the backward pass may lie in the slots instead, and gradients of the head are made after it.
		for i := range p.memory {
			m := &p.memory[i]
			m.temp, m.tempMiddle, m.afterHead = m.tempNotBackward, [extents]int64{}, [extents]int64{}
			for e := range extents {
				m.tempInner[e] = min(m.tempInner[e], m.tempNotBackward[e])
			}
		}
		if s.plan.OverlapTP { // nothing runs beside collectives then, so that less is gathered at once
			p.measureInOrder()
		}
		if s.plan.Overlap { // overlap has programs with the backward pass in two anyway
			p.measureApart()
		}
	} else {
		for i := range p.memory {
			p.memory[i].apart = [extents]int64{}
		}
	}
}

// earlyForwards returns how many of m forward passes of a position run while micro-batch 0 is on its way through all positions
// and back: those before the first backward pass. Under gpipe, where the last forward pass is on that way itself, it is one.
func earlyForwards(schedule partition.Schedule, m, positions, at int) int {
	if schedule == partition.GPipe {
		return 1
	}
	return min(m, codegen.WarmUp(schedule, positions, at, m)+1)
}

// mayFit reports whether the stages could hold all blocks between them, if they recompute what spares the most memory.
func (p *pipeline) mayFit(limit int64) bool {
	if p.template.Chunks() > 1 {
		return p.mayFitInterleaved(limit)
	}
	left := p.skel.blocks
	for i := range p.memory {
		left -= sort.Search(left, func(n int) bool { return p.memory[i].least(n+1, p.room[i]) > limit })
		if left == 0 { // but every stage has a block at least: of the others, the last is asked
			return i == len(p.memory)-1 || p.memory[len(p.memory)-1].least(1, p.room[len(p.memory)-1]) <= limit
		}
	}
	return false
}

// fits is mayFit with shells for the memory of the stages (see [skeleton.shells]).
func (p *pipeline) fits(shells []stageMemory, limit int64) bool {
	q := *p
	q.memory = shells
	if p.template.Chunks() == 1 {
		return q.mayFit(limit)
	}
	cut := evenCut(p.skel.blocks, len(p.template.Stages), func(int) extent { return kept })
	for at := range shells {
		if q.interleavedPeak(cut, at) > limit {
			return false
		}
	}
	return true
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

// size returns whether micro-batch k is of the whole size or the rest.
func (p *pipeline) size(k int) int {
	if k == p.microBatches-1 {
		return rest
	}
	return whole
}

// time simulates a step with a cut: the cost of the plan.
func (p *pipeline) time(cut []partition.Stage) cost.Picoseconds { return latest(p.system(cut)) }

// latest runs a system and returns when its last process ends.
func latest(system *sim.System) cost.Picoseconds {
	ends, err := system.Run()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return slices.Max(ends)
}

// system returns a step of the pipeline with a cut. The result is valid until the next call: of the ops only those of stages
// that differ from the last cut are priced again.
func (p *pipeline) system(cut []partition.Stage) *sim.System {
	positions := p.template.PP()
	if p.frame == nil {
		p.frame = p.newFrame(len(cut))
	}
	f := p.frame
	changed := make([]bool, positions)
	for i, st := range cut {
		n, r := st.Last-st.First, recomputationOf(st)
		if was := f.cut[i]; was.Last-was.First == n && recomputationOf(was) == r {
			continue
		}
		changed[i%positions] = true
		for phase := range ir.Update {
			p.body(i, phase, whole).price(f.passes[i][phase][whole], tally{n}, r)
			if !p.even(i, phase) {
				p.body(i, phase, rest).price(f.passes[i][phase][rest], tally{n}, r)
			}
		}
	}
	copy(f.cut, cut)
	for at, again := range changed {
		if !again {
			continue
		}
		var blocks tally // of all chunks
		for chunk := range p.template.Chunks() {
			c := cut[at+chunk*positions]
			blocks[p.skel.of.chunk(&p.template, at == positions-1, chunk)] += c.Last - c.First
		}
		p.stages[at].update.price(f.updates[at], blocks, recomputation{})
	}
	return &f.system
}

// newFrame lists the tasks and channels of a pipeline with so many stages.
func (p *pipeline) newFrame(stages int) *frame {
	positions := p.template.PP()
	f := &frame{
		system: sim.System{Processes: make([]sim.Process, positions)},
		cut:    make([]partition.Stage, stages), passes: make([][ir.Update][2][]sim.Op, stages), updates: make([][]sim.Op, positions),
	}
	type channel struct {
		phase          ir.Phase
		from, to, wire int // stages, or positions in the update
	}
	channels := map[channel]int{}
	// ops lists the ops of a body of stage i, with their channels but without times.
	ops := func(i int, b body, phase ir.Phase) []sim.Op {
		out := make([]sim.Op, len(b))
		for k := range b {
			part := &b[k]
			if out[k].Kind = part.kind; part.kind == sim.Work {
				continue
			}
			from, to := i, i+part.hop
			if part.kind == sim.Recv {
				from, to = to, from
			}
			key := channel{phase, from, to, part.wire}
			id, ok := channels[key]
			if !ok {
				id = len(f.system.Channels)
				channels[key] = id
				ch := sim.Channel{From: from % positions, To: to % positions, Chunk: to / positions}
				switch phase {
				case ir.Forward:
					ch.Room = p.room[to].Inboxes
				case ir.Backward:
					ch.Room = p.room[to].Slots
				}
				f.system.Channels = append(f.system.Channels, ch)
			}
			out[k].Peer, out[k].Posted = id, part.posted
		}
		return out
	}
	last := codegen.Releases(&p.template, true)
	for at := range positions {
		for i := at; i < stages; i += positions {
			for phase := range ir.Update {
				passes := &f.passes[i][phase]
				passes[whole] = ops(i, p.body(i, phase, whole), phase)
				if passes[rest] = passes[whole]; !p.even(i, phase) {
					passes[rest] = ops(i, p.body(i, phase, rest), phase)
				}
			}
		}
		f.updates[at] = ops(at, p.stages[at].update, ir.Update)
		order := codegen.Order(&p.template, at, p.microBatches, true)
		tasks := make([]sim.Task, len(order))
		for k, t := range order {
			if t.Phase == ir.Update {
				tasks[k] = sim.Task{Ops: f.updates[at], Part: sim.PartOf(t)}
				continue
			}
			tasks[k] = sim.Task{
				Ops: f.passes[at+t.Chunk*positions][t.Phase][p.size(t.MicroBatch)], Chunk: t.Chunk, MicroBatch: t.MicroBatch, Releases: t.Phase == last,
				Part: sim.PartOf(t),
			}
		}
		f.system.Processes[at] = sim.Process{Tasks: tasks}
	}
	return f
}

// even reports whether stage i does the same in a pass over the last micro-batch as over the others: see [skeleton.priceStages].
func (p *pipeline) even(i int, phase ir.Phase) bool {
	a, b := p.body(i, phase, whole), p.body(i, phase, rest)
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// body returns what stage i does in a pass over a micro-batch of a size: nil where the schedule has no such pass.
func (p *pipeline) body(i int, phase ir.Phase, size int) body {
	s := p.stages[i]
	switch split := p.template.Schedule.SplitsBackward(); {
	case phase == ir.Backward && split:
		return s.input[size]
	case phase == ir.WeightGrad && !split:
		return nil
	}
	return s.pass(phase)[size]
}
