package planner

import (
	"fmt"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// skeleton is a real program of a pipeline in which every stage has one block,
// and from which the time and memory of any number of blocks per stage follow:
// what does not belong to the block is there once, what belongs to it as many
// times as there are blocks. The blocks are repeats of each other, so this is no
// approximation; TestCostIsSimulation holds it to the simulation of whole
// programs.
//
// It is independent of the size of micro-batches and of the schedule.
type skeleton struct {
	graphs *shrunken
	plan   partition.Plan // with one block per stage
	batch  int
	blocks int
	price  *cost.Program
	progs  [extents]*codegen.Program // by how much of every block is recomputed
	inner  *skeleton                 // of one stage, for the memory of further blocks; itself if it has one
	// ofBlock is the instructions that there are as often as blocks.
	ofBlock map[*ir.Node]bool
	alias   []int // a stage that has the same times apart from transfers

	// A bound of context parallelism with so many parts: see shared.
	parts     int
	links     *cost.Program
	linksAxis int
}

// newSkeleton partitions the shrunk graph for a plan of which only stages,
// micro-batch size and schedule are still to be chosen.
// inner is the skeleton with one stage and the same degrees, nil for that itself.
func newSkeleton(graphs *shrunken, p partition.Plan, batch int, c *cost.Cluster, inner *skeleton) (*skeleton, error) {
	s := &skeleton{graphs: graphs, plan: p, batch: batch, blocks: graphs.blocks, inner: inner}
	if inner == nil {
		s.inner = s
	}
	g := graphs.keep(p.PP())
	s.plan.MicroBatch, s.plan.Schedule = batch, partition.OneFOneB // one: the shortest schedules
	for e, r := range [extents]recomputation{kept: {}, selective: {selective: 1}, full: {full: 1}} {
		plan := s.plan
		plan.Stages = nil
		for i := range p.PP() {
			plan.Stages = append(plan.Stages, graphs.scaled(r.stage(i, 1)))
		}
		var err error
		if s.progs[e], err = codegen.Compile(g, &plan, batch, nil); err != nil {
			return nil, err
		}
	}
	s.attribute()
	s.price = cost.NewProgram(c, &s.plan, s.progs[kept].Mesh)
	for i := range p.PP() {
		s.alias = append(s.alias, i)
		if i > 1 && i < p.PP()-1 && s.price.SameGroups(1, i) {
			s.alias[i] = 1
		}
	}
	return s, nil
}

// attribute finds the instructions of blocks. They are called after their block;
// but what is gathered in the passes belongs to who reads it: the gradient that a
// stage receives is gathered by its last block, as those from block to block
// are, and the gradient that the first block hands to the embedding once.
func (s *skeleton) attribute() {
	s.ofBlock = map[*ir.Node]bool{}
	for _, prog := range s.progs {
		read := map[*ir.Value]bool{} // by a block
		for i := len(prog.Graph.Nodes) - 1; i >= 0; i-- {
			n := prog.Graph.Nodes[i]
			of := n.Block() != "" && n.Op != ir.OpRecv
			if n.Op == ir.OpAllGather && n.Phase != ir.Update {
				of = read[n.Results[0]]
			}
			s.ofBlock[n] = of
			if of {
				for _, a := range n.Args {
					read[a] = true
				}
			}
		}
	}
}

// part is the time of a stretch of a body between two transfers, or of one.
type part struct {
	kind sim.OpKind
	peer int // the other stage of a transfer
	wire *ir.Node
	line
	sums []sum
}

// sum is an add_n with operands from every block of the stage.
type sum struct {
	fixed, perBlock int
	time            func(operands int) cost.Picoseconds
}

// at returns the time with n blocks, r of them recomputed.
func (p *part) at(n int, r recomputation) cost.Picoseconds {
	t := p.line.at(n, r)
	for _, s := range p.sums {
		t += s.time(s.fixed + n*s.perBlock)
	}
	return t
}

// body is the parts of one phase of a stage.
type body []part

// line is a time that grows with the number of blocks of a stage.
type line struct {
	fixed cost.Picoseconds
	block [extents]cost.Picoseconds // of one block
	// early is added when the last block, the first in the backward pass, is
	// recomputed. That happens before its gradient is received: early is the time
	// of it before the transfer, and minus that time after it.
	early [extents]cost.Picoseconds
}

func (l *line) at(n int, r recomputation) cost.Picoseconds {
	t := l.fixed + l.early[r.last(n)]
	for e, count := range r.counts(n) {
		t += cost.Picoseconds(count) * l.block[e]
	}
	return t
}

func (l *line) add(p *part) {
	l.fixed += p.fixed
	for e := range extents {
		l.block[e] += p.block[e]
		l.early[e] += p.early[e]
	}
	for _, s := range p.sums {
		l.fixed += s.time(s.fixed + s.perBlock) // with one block: a lower bound
	}
}

// busy is all the work of a body.
func (b body) busy() line {
	var l line
	for i := range b {
		l.add(&b[i])
	}
	return l
}

// through is the work from the last receive before the first send to that send:
// the least time a micro-batch takes through the stage.
func (b body) through() line {
	var l line
	for i := range b {
		if b[i].kind == sim.Recv {
			l = line{}
		}
		l.add(&b[i])
		if b[i].kind == sim.Send {
			break
		}
	}
	return l
}

// stageTimes is what a stage spends: on a whole micro-batch and on the last,
// which may be smaller, and once per step.
type stageTimes struct {
	forward, backward [2]body
	update            body
}

// coreInstr is a product or an attention of a stage, at a position of the mesh.
type coreInstr struct {
	codegen.Instr
	stage int
	mesh  ir.Mesh
	at    ir.Coord
}

// cores is times of nothing but the products and attention of the passes.
func (s *skeleton) cores(microBatch int) []stageTimes {
	mesh := s.mesh(microBatch)
	var first, last ir.Coord
	mb := mesh.Axis(partition.AxisMB)
	last[mb] = mesh.Axes[mb].Size - 1
	all := make([]stageTimes, s.plan.PP())
	for i := range all {
		for phase := ir.Forward; phase <= ir.Backward; phase++ {
			for size, at := range []ir.Coord{whole: first, rest: last} {
				var p part
				for _, in := range s.progs[kept].Stages[i].Bodies[phase].Instrs {
					switch in.Node.Op {
					case ir.OpMatMul, ir.OpAttention, ir.OpAttentionGrad, ir.OpAttentionKV, ir.OpAttentionKVGrad:
						in.Accum = make([]codegen.Accum, len(in.Accum)) // gradients may be summed elsewhere
						time, ahead := s.core(&coreInstr{in, i, mesh, at})
						if s.ofBlock[in.Node] {
							p.block[kept] += time
							p.early[selective] -= ahead
							p.early[full] -= ahead
						} else {
							p.fixed += time
						}
					}
				}
				p.block[selective], p.block[full] = p.block[kept], p.block[kept]
				if phase == ir.Forward {
					all[i].forward[size] = body{p}
				} else {
					all[i].backward[size] = body{p}
				}
			}
		}
	}
	return all
}

// The two sizes of micro-batches.
const (
	whole = iota
	rest
)

// times prices every stage for a size of micro-batch.
func (s *skeleton) times(microBatch int) []stageTimes {
	mesh := s.mesh(microBatch)
	var first, last ir.Coord
	mb := mesh.Axis(partition.AxisMB)
	last[mb] = mesh.Axes[mb].Size - 1
	all := make([]stageTimes, s.plan.PP())
	for i := range all {
		t := &all[i]
		for size, at := range []ir.Coord{whole: first, rest: last} {
			var like *stageTimes
			if a := s.alias[i]; a < i {
				like = &all[a]
			}
			t.forward[size] = s.body(i, ir.Forward, mesh, at, bodyOf(like, ir.Forward, size))
			t.backward[size] = s.body(i, ir.Backward, mesh, at, bodyOf(like, ir.Backward, size))
		}
		t.update = s.body(i, ir.Update, mesh, first, nil)
	}
	return all
}

func bodyOf(t *stageTimes, phase ir.Phase, size int) body {
	switch {
	case t == nil:
		return nil
	case phase == ir.Forward:
		return t.forward[size]
	}
	return t.backward[size]
}

// mesh is that of the program at another size of micro-batch.
func (s *skeleton) mesh(microBatch int) ir.Mesh {
	p := s.plan
	p.MicroBatch = microBatch
	return p.Mesh(s.batch)
}

// body prices a phase of a stage. When like is not nil it is the same phase of a
// stage that differs in transfers only.
func (s *skeleton) body(stage int, phase ir.Phase, mesh ir.Mesh, at ir.Coord, like body) body {
	instrs := s.progs[kept].Stages[stage].Bodies[phase].Instrs
	parts := s.split(instrs, mesh, at, like)
	if phase != ir.Backward {
		for i := range parts {
			for e := range extents {
				parts[i].block[e] = parts[i].block[kept]
			}
		}
		return parts
	}
	if like != nil {
		return parts
	}
	for e := selective; e < extents; e++ {
		recomputed := s.split(s.progs[e].Stages[stage].Bodies[phase].Instrs, mesh, at, nil)
		if len(recomputed) != len(parts) {
			panic(fmt.Sprintf("BUG: stage %d: recomputation changes its transfers", stage))
		}
		for i := range parts {
			parts[i].block[e] = recomputed[i].block[kept]
		}
		if len(parts) > 2 && parts[1].kind == sim.Recv {
			early := parts[0].block[e] - parts[0].block[kept]
			parts[0].block[e], parts[0].early[e] = parts[0].block[kept], early
			parts[2].block[e], parts[2].early[e] = parts[2].block[e]+early, -early
		}
	}
	return parts
}

// split prices instructions between transfers. With like it takes the prices of
// all but the transfers from there.
func (s *skeleton) split(instrs []codegen.Instr, mesh ir.Mesh, at ir.Coord, like body) body {
	parts := body{{}} // work, before whatever comes
	if like != nil {
		parts[0] = like[0]
	}
	for i := range instrs {
		in := &instrs[i]
		n := in.Node
		kind := sim.Work
		switch n.Op {
		case ir.OpSend:
			kind = sim.Send
		case ir.OpRecv:
			kind = sim.Recv
		}
		if k := len(parts) - 1; kind != sim.Work || parts[k].kind != sim.Work {
			var next part
			if k+1 < len(like) && kind == sim.Work {
				next = like[k+1]
			}
			next.kind = kind
			parts = append(parts, next)
		}
		p := &parts[len(parts)-1]
		if kind == sim.Work && like != nil {
			continue
		}
		time, _ := s.price.Instr(in, mesh, at)
		switch {
		case kind == sim.Send:
			p.fixed, p.wire, p.peer = time, n, n.Attr.(ir.P2PAttr).Stage
		case kind == sim.Recv:
			p.fixed, p.wire, p.peer = time, n.Args[0].Def, n.Attr.(ir.P2PAttr).Stage
		case s.ofBlock[n]:
			p.block[kept] += time
		case n.Op == ir.OpAddN && blockOperands(n) > 0:
			inner := blockOperands(n)
			p.sums = append(p.sums, sum{len(n.Args) - inner, inner, func(operands int) cost.Picoseconds {
				return s.price.AddN(in, mesh, at, operands)
			}})
		default:
			p.fixed += time
		}
	}
	return parts
}

// blockOperands counts the operands of an add_n that blocks of its stage make.
func blockOperands(n *ir.Node) int {
	count := 0
	for _, a := range n.Args {
		if a.Def.Block() != "" && a.Def.Op != ir.OpRecv {
			count++
		}
	}
	return count
}

// shrunken keeps the graphs with few blocks.
type shrunken struct {
	graph *ir.Graph
	// blocks is how many there are to distribute. Blocks that differ, or none at
	// all, count as one that is the whole of the model.
	blocks int
	scale  int // blocks of the graph in each of them
	kept   map[int]*ir.Graph
}

func newShrunken(g *ir.Graph) *shrunken {
	s := &shrunken{graph: g, blocks: len(partition.Blocks(g)), scale: 1, kept: map[int]*ir.Graph{}}
	if s.blocks == 1 {
		return s
	}
	one, alike := Shrink(g, 1)
	if !alike {
		s.blocks, s.scale = 1, s.blocks
		return s
	}
	s.kept[1] = one
	return s
}

// keep returns the graph with n blocks.
func (s *shrunken) keep(n int) *ir.Graph {
	if n == s.blocks {
		return s.graph
	}
	g, ok := s.kept[n]
	if !ok {
		if g, ok = Shrink(s.graph, n); !ok {
			panic("BUG: blocks that were alike are not")
		}
		s.kept[n] = g
	}
	return g
}

// scaled turns a stage of blocks to distribute into one of blocks of the graph.
func (s *shrunken) scaled(st partition.Stage) partition.Stage {
	return partition.Stage{
		First: st.First * s.scale, Last: st.Last * s.scale, Recompute: st.Recompute * s.scale, Selective: st.Selective * s.scale,
	}
}
