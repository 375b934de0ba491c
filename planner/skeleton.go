package planner

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// skeleton prices plans of which only the size of micro-batches, the schedule and
// the cut are open. The time and memory of any number of blocks per stage follow from
// a blueprint, which has one: what does not belong to the block is there once, what
// belongs to it as many times as there are blocks. The blocks are repeats of each
// other, so this is no approximation; TestCostIsSimulation holds it to the simulation
// of whole programs.
type skeleton struct {
	graphs  *shrunken
	all     *blueprints
	plan    partition.Plan // with stages, as many as there will be, of one block
	batch   int
	blocks  int
	outline outline // of which it is
	of      *blueprint
	inner   *blueprint // of one stage, for the memory of further blocks
	price   *cost.Program
	like    []int // by stage: the stage of the blueprint that stands for it
	known   map[timesKey]toldTimes
	memory  map[int][]stageMemory // the same
	lacks   []int64               // by position: see [searcher.lacks]
	most    extent                // to which blocks are recomputed: of more, times and memory are not told
}

// newSkeleton finds what stands for a plan.
func newSkeleton(all *blueprints, p partition.Plan, c *cost.Cluster) (*skeleton, error) {
	of, err := all.find(&p)
	if err != nil {
		return nil, err
	}
	further := p // a block after which others come, of which the loss is not: with whole logits its programs are those of most outlines
	further.LossSlices = 0
	inner, err := all.inner(further)
	if err != nil {
		return nil, err
	}
	s := &skeleton{graphs: all.graphs, all: all, plan: p, batch: all.batch, blocks: all.graphs.blocks, of: of, inner: inner, most: full}
	for i := range p.Stages {
		s.like = append(s.like, of.like(&p, i))
	}
	s.reprice(c)
	return s, nil
}

// inner finds the blueprint of one stage of a plan.
func (b *blueprints) inner(p partition.Plan) (*blueprint, error) {
	if len(p.Stages) > 1 {
		p.PlanNGPUs, p.RuntimeNGPUs = p.PlanNGPUs/p.PP(), p.RuntimeNGPUs/p.PP()
		p.Stages, p.Interleave, p.Schedule = make([]partition.Stage, 1), 0, partition.OneFOneB
	}
	return b.find(&p)
}

// reprice takes prices from a cluster.
func (s *skeleton) reprice(c *cost.Cluster) {
	if s.price == nil {
		s.price = cost.NewProgram(c, &s.plan, s.mesh(s.batch))
	} else {
		s.price = s.price.On(c)
	}
	s.memory, s.known = map[int][]stageMemory{}, map[timesKey]toldTimes{}
}

// upTo has times and memory told of blocks that are recomputed to an extent.
func (s *skeleton) upTo(e extent) {
	if e > s.most {
		s.most = e
		clear(s.memory)
	}
}

// stage returns the code that stands for a stage, in a phase.
func (s *skeleton) stage(of extent, stage int, phase ir.Phase) []codegen.Instr {
	position, chunk := s.of.plan.Position(s.like[stage])
	return s.of.prog(of).Stages[position].Run(codegen.Task{Phase: phase, Chunk: chunk})
}

// shrunken keeps the graphs with few blocks.
type shrunken struct {
	graph *ir.Graph
	// blocks is how many there are to distribute. Blocks that differ, or none at
	// all, count as one that is the whole of the model.
	blocks int
	scale  int // blocks of the graph in each of them
	row    *blockRow
	kept   map[int]*ir.Graph
}

func newShrunken(g *ir.Graph) *shrunken {
	s := &shrunken{graph: g, blocks: len(partition.Blocks(g)), scale: 1, kept: map[int]*ir.Graph{}}
	if s.blocks == 1 {
		return s
	}
	row, alike := newBlockRow(g)
	if alike {
		s.kept[1], alike = row.keep(1)
	}
	if !alike {
		s.blocks, s.scale = 1, s.blocks
		return s
	}
	s.row = row
	return s
}

// keep returns the graph with n blocks.
func (s *shrunken) keep(n int) *ir.Graph {
	if n == s.blocks {
		return s.graph
	}
	g, ok := s.kept[n]
	if !ok {
		if g, ok = s.row.keep(n); !ok {
			panic("BUG: blocks that were alike are not")
		}
		s.kept[n] = g
	}
	return g
}

// scaled turns a stage of blocks to distribute into one of blocks of the graph.
func (s *shrunken) scaled(st partition.Stage) partition.Stage {
	return partition.Stage{
		First: st.First * s.scale, Last: st.Last * s.scale, Recompute: st.Recompute * s.scale, Selective: st.Selective * s.scale, Pointwise: st.Pointwise * s.scale,
	}
}
