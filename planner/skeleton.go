package planner

import (
	"maps"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
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
	// ofBlock is the instructions that there are as often as blocks, ofWeight those
	// that a zero-bubble schedule runs apart.
	ofBlock, ofWeight map[*ir.Node]bool
	async             map[*ir.Node]bool    // what the communication stream does
	stageOf           map[string]int       // by block
	known             map[int][]stageTimes // by size of micro-batch
	copies            map[partition.Offload][]copies
	alias             []int // a stage that has the same times apart from transfers

	// A bound of context parallelism with so many parts: see shared.
	parts     int
	links     *cost.Program
	linksAxis int
}

// newSkeleton partitions the shrunk graph for a plan of which only stages,
// micro-batch size and schedule are still to be chosen.
// inner is the skeleton with one stage and the same degrees, nil for that itself.
func newSkeleton(graphs *shrunken, p partition.Plan, batch int, c *cost.Cluster, inner *skeleton) (*skeleton, error) {
	s := &skeleton{graphs: graphs, plan: p, batch: batch, blocks: graphs.blocks, inner: inner, stageOf: map[string]int{}, known: map[int][]stageTimes{}, copies: map[partition.Offload][]copies{}}
	if inner == nil {
		s.inner = s
	}
	stages := len(p.Stages)
	g := graphs.keep(stages)
	s.plan.MicroBatch, s.plan.Schedule = batch, partition.OneFOneB // one: the shortest schedules
	if p.Interleave > 1 {
		s.plan.Schedule = partition.Interleaved
	}
	for i, block := range partition.Blocks(g) {
		s.stageOf[block] = i / graphs.scale
	}
	for e, r := range [extents]recomputation{kept: {}, selective: {selective: 1}, full: {full: 1}} {
		plan := s.plan
		plan.Stages = nil
		for i := range stages {
			plan.Stages = append(plan.Stages, graphs.scaled(r.stage(i, 1)))
		}
		var err error
		if s.progs[e], err = codegen.Compile(g, &plan, batch, nil); err != nil {
			return nil, err
		}
	}
	s.attribute()
	s.reprice(c)
	return s, nil
}

// reprice takes prices from a cluster.
func (s *skeleton) reprice(c *cost.Cluster) {
	if s.price != nil && s.price.Nodes(c) {
		s.price = s.price.On(c)
	} else {
		s.price = cost.NewProgram(c, &s.plan, s.progs[kept].Mesh)
	}
	s.known, s.copies, s.alias = map[int][]stageTimes{}, map[partition.Offload][]copies{}, nil
	for i := range s.plan.Stages {
		s.alias = append(s.alias, i)
		if at, _ := s.plan.Position(i); i > 1 && i < len(s.plan.Stages)-1 && s.price.SameGroups(1, at) {
			s.alias[i] = 1
		}
	}
}

// attribute finds the instructions of blocks. They are called after their block;
// but what is gathered in the passes belongs to who reads it: the gradient that a
// stage receives is gathered by its last block, as those from block to block
// are, and the gradient that the first block hands to the embedding once.
func (s *skeleton) attribute() {
	s.ofBlock, s.ofWeight, s.async = map[*ir.Node]bool{}, map[*ir.Node]bool{}, map[*ir.Node]bool{}
	for _, prog := range s.progs {
		for _, st := range prog.Stages {
			for _, body := range st.Bodies {
				for _, in := range body.Instrs {
					s.async[in.Node] = in.Async
				}
			}
		}
		maps.Copy(s.ofWeight, partition.WeightGrads(prog.Graph))
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
