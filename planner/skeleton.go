package planner

import (
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// What prices the plans of one outline, and the graphs with few blocks behind it. All blocks of a
// model are repeats of one, so a program with one block per stage tells the time and memory of
// stages with any number of blocks: what does not belong to the block counts once, what belongs to
// it as often as there are blocks. explore.go makes a [skeleton] for each outline of which it
// prices pipelines.

// skeleton prices plans with only the micro-batch size, the schedule and the cut open, from a
// blueprint with one block per stage. As blocks are repeats of each other this is no approximation;
// TestCostIsSimulation compares it with simulations of whole programs.
type skeleton struct {
	graphs  *shrunken
	all     *blueprints
	plan    partition.Plan // with as many stages as there will be, of one block each
	batch   int
	blocks  int
	outline outline
	of      *blueprint // nil as long as only lone was asked for
	inner   *blueprint // with one stage: for the memory of each further block
	cluster *cost.Cluster
	price   *cost.Program
	like    []int // by stage: the stage of the blueprint that stands for it
	known   map[timesKey]knownTimes
	memory  map[int][]stageMemory // by micro-batch size
	lacks   []int64               // by position: see [searcher.lacks]
	lone    *skeleton             // the same for steps of one micro-batch, where their programs differ: see on
	most    extent                // times and memory are known of blocks recomputed to this extent at most
}

// newSkeleton finds the blueprints that stand for a plan with one micro-batch (see [blueprints.lone]), or with several.
func newSkeleton(all *blueprints, p partition.Plan, c *cost.Cluster, lone bool) (*skeleton, error) {
	s := bareSkeleton(all, p, c)
	if err := s.compile(lone); err != nil {
		return nil, err
	}
	return s, nil
}

// bareSkeleton returns a skeleton without blueprints: see [skeleton.try].
func bareSkeleton(all *blueprints, p partition.Plan, c *cost.Cluster) *skeleton {
	s := &skeleton{graphs: all.graphs, all: all, plan: p, batch: all.batch, blocks: all.graphs.blocks, most: full}
	s.reprice(c)
	return s
}

// compile finds the blueprints of a bare skeleton.
func (s *skeleton) compile(lone bool) (err error) {
	if s.of, err = s.all.find(&s.plan, lone); err != nil {
		return err
	}
	further := s.plan // the loss does not bear on further blocks: without slices most outlines share these programs
	further.LossSlices = 0
	if s.inner, err = s.all.inner(further, lone); err != nil {
		return err
	}
	for i := range s.plan.Stages {
		s.like = append(s.like, s.of.like(&s.plan, i))
	}
	return nil
}

// inner finds the blueprint for a single stage of a plan.
func (b *blueprints) inner(p partition.Plan, lone bool) (*blueprint, error) {
	if len(p.Stages) > 1 {
		p.PlanNGPUs, p.RuntimeNGPUs = p.PlanNGPUs/p.PP(), p.RuntimeNGPUs/p.PP()
		p.Stages, p.Interleave, p.Schedule = make([]partition.Stage, 1), 0, partition.OneFOneB
	}
	return b.find(&p, lone)
}

// on returns the skeleton for micro-batches of a size.
func (s *skeleton) on(microBatch int) *skeleton {
	on, err := s.try(microBatch)
	mustCompile(err)
	return on
}

// try is on where it is not known yet whether the plan compiles. It compiles only what stands for steps with that size.
func (s *skeleton) try(microBatch int) (*skeleton, error) {
	lone := s.all.lone(s.mesh(microBatch).Size(partition.AxisMB))
	switch {
	case s.of == nil && !lone:
		return s, s.compile(false)
	case !lone || s.of != nil && s.of.lone:
		return s, nil
	case s.lone == nil:
		one, err := newSkeleton(s.all, s.plan, s.cluster, true)
		if err != nil {
			return nil, err
		}
		one.lacks, one.outline, one.most = s.lacks, s.outline, s.most
		s.lone = one
	}
	s.lone.upTo(s.most)
	return s.lone, nil
}

// reprice takes prices from a cluster, and forgets earlier ones.
func (s *skeleton) reprice(c *cost.Cluster) {
	s.cluster, s.lone = c, nil
	if s.price == nil {
		s.price = cost.NewProgram(c, &s.plan, s.mesh(s.batch))
	} else {
		s.price = s.price.On(c)
	}
	s.memory, s.known = map[int][]stageMemory{}, map[timesKey]knownTimes{}
}

// upTo extends times and memory to blocks that are recomputed to an extent.
func (s *skeleton) upTo(e extent) {
	if e > s.most {
		s.most = e
		clear(s.memory)
	}
}

// stage returns the instructions that stand for a phase of a stage.
func (s *skeleton) stage(of extent, stage int, phase ir.Phase) []codegen.Instr {
	position, chunk := s.of.plan.Position(s.like[stage])
	return s.of.prog(of).Stages[position].Run(codegen.Task{Phase: phase, Chunk: chunk})
}

// shrunken makes graphs with few blocks of one with many.
type shrunken struct {
	graph *ir.Graph
	// blocks is how many there are to distribute over stages. If the blocks of the graph differ, or
	// there are none, the whole model counts as one.
	blocks int
	scale  int // how many blocks of the graph each of these is
	row    *blockRow
	kept   map[int]*ir.Graph
}

// What a search makes its short graphs and their programs with. Tests keep both, where many searches are of one graph.
var shrink, draft = newShrunken, codegen.Draft

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

// keep returns the graph with n of its blocks.
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

// scaled converts a stage from blocks to distribute to blocks of the graph.
func (s *shrunken) scaled(st partition.Stage) partition.Stage {
	return partition.Stage{
		First: st.First * s.scale, Last: st.Last * s.scale, Recompute: st.Recompute * s.scale, Selective: st.Selective * s.scale, Pointwise: st.Pointwise * s.scale,
	}
}

// skeleton returns what prices the plans of an outline. It fails if no parameter can be split as
// the outline asks.
func (s *searcher) skeleton(o outline) (*skeleton, error) {
	skel, err := s.bareSkeleton(o)
	if err == nil {
		err = skel.compile(false)
	}
	if err != nil {
		return nil, err
	}
	return skel, nil
}

// bareSkeleton is skeleton without blueprints: see [skeleton.try].
func (s *searcher) bareSkeleton(o outline) (*skeleton, error) {
	plan, err := s.template(o)
	if err != nil {
		return nil, err
	}
	skel := bareSkeleton(s.blueprints, plan, s.cluster)
	skel.lacks, skel.outline = s.lacks(&plan), o
	if o.chunks <= 1 {
		all := s.opts.recompute(o.replicate).extents()
		skel.most = all[len(all)-1] // nothing is compiled of more
	}
	return skel, nil
}

// template returns the plan of an outline, with stages, micro-batch size and schedule still open.
// It fails if no parameter can be split as the outline asks.
func (s *searcher) template(d outline) (partition.Plan, error) {
	placements := append(append([]partition.Placement{}, s.opts.Pins...), s.layouts.splitting(d.tp, d.split)...)
	split := func(p partition.Placement) bool { return splitDim(p.Spec) >= 0 }
	if d.tp > 1 && (len(placements) == 0 || d.replicate != "" && !slices.ContainsFunc(placements, split)) {
		return partition.Plan{}, optionErrorf("tp", "no parameter can be split over %d ranks", d.tp)
	}
	plan := partition.Plan{
		PlanNGPUs: d.plan, RuntimeNGPUs: s.opts.RuntimeNGPUs, DP: d.dp, TP: d.tp,
		TPRows: d.rows, ZeRO: d.zero, ZeROGroup: d.group, Offload: d.offload, LossSlices: d.slices, SequenceParallel: d.sequence, BatchParallel: d.batch, Overlap: d.overlap, OverlapTP: d.tp > 1 && s.opts.OverlapTP == "on", OverlapP2P: d.posts(),
		Stages: make([]partition.Stage, d.stages()), Placements: placements, PoolOrder: s.cluster.Orders()[d.order], RankOrder: d.ranks,
	}
	if d.tp > 1 && d.pieces == anyPieces {
		plan.TPPieces = s.trunkPieces // which stand for any
	} else if d.tp > 1 {
		plan.TPPieces = d.pieces
		if s.ofParts(d) {
			plan.SequenceParts = d.pieces
		}
	}
	if d.cp > 1 {
		plan.CP = d.cp
	}
	if d.chunks > 1 {
		plan.Interleave = d.chunks
	}
	return s.open(plan), nil
}

// open returns a plan with its micro-batch size and schedule as not yet chosen.
func (b *blueprints) open(p partition.Plan) partition.Plan {
	p.MicroBatch, p.Schedule = b.batch, partition.OneFOneB
	if p.Interleave > 1 {
		p.Schedule = partition.Interleaved
	}
	return p
}
