package planner

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// Prices of single plans without compiling them whole: for robust.go, for published runs (package
// measured), and for comparisons with other planners (bench/galvatron).

// Estimator tells what a plan costs without compiling it whole: it compiles one block of each
// stage, to stand for its repeats as in [Search]. So a plan for thousands of devices is priced in a
// fraction of a second, and again on another cluster in much less.
type Estimator struct {
	plan partition.Plan
	skel *skeleton
}

// NewEstimator compiles what stands for a plan. If the plan has no placements, tensor parallelism
// splits what it would in a search for this cluster with the same pins.
func NewEstimator(g *ir.Graph, batch int, c *cost.Cluster, plan *partition.Plan, pins ...partition.Placement) (*Estimator, error) {
	if err := plan.Validate(len(partition.Blocks(g)), batch); err != nil {
		return nil, err
	}
	if err := c.Holds(plan); err != nil {
		return nil, err
	}
	s := newSearcher(g, batch, c, Options{RuntimeNGPUs: plan.RuntimeNGPUs, Pins: pins})
	if s.graphs.scale != 1 {
		return nil, fmt.Errorf("planner: the blocks of %s are not alike", g.Name)
	}
	e := &Estimator{plan: *plan}
	p := &e.plan
	if p.TP > 1 && len(p.Placements) == 0 {
		p.Placements = slices.Concat(pins, s.layouts.find(p.TP))
	}
	var err error
	if e.skel, err = newSkeleton(s.blueprints, s.open(*p), c, false); err != nil {
		return nil, err
	}
	return e, nil
}

// Plan returns the plan with its placements.
func (e *Estimator) Plan() *partition.Plan { return &e.plan }

// Price returns the step time, equal to that of [Predict], and by stage a lower bound of the
// memory, which leaves out the gaps of packing.
func (e *Estimator) Price(c *cost.Cluster) Prediction {
	p := &e.plan
	e.skel.reprice(c)
	pipe := newPipeline(e.skel, e.skel.memoryOf(p.MicroBatch), p.MicroBatch, p.Schedule)
	pipe.stages = e.skel.times(p.MicroBatch, p.Schedule)
	out := Prediction{Step: pipe.time(p.Stages)}
	for at := range p.PP() {
		out.PeakBytes = append(out.PeakBytes, e.peak(pipe, at))
	}
	return out
}

// Footprints returns what the bytes of [Estimator.Price] are for, by position of the pipeline, with
// gradients counted throughout the step. They do not depend on the cluster.
func (e *Estimator) Footprints() []Footprint {
	p := &e.plan
	pipe := newPipeline(e.skel, e.skel.memoryOf(p.MicroBatch), p.MicroBatch, p.Schedule)
	for at := range pipe.memory {
		pipe.memory[at].keepSums()
	}
	var all []Footprint
	for at := range p.PP() {
		all = append(all, pipe.footprint(p.Stages, at, e.peak(pipe, at)))
	}
	return all
}

// peak bounds the arena of a position of the plan from below.
func (e *Estimator) peak(pipe *pipeline, at int) int64 {
	if e.plan.Chunks() > 1 {
		return pipe.interleavedPeak(e.plan.Stages, at)
	}
	st := e.plan.Stages[at]
	return pipe.memory[at].atLeast(st.Last-st.First, recomputationOf(st), pipe.room[at])
}

// For returns an estimator of a plan that differs only in micro-batch size and recomputation,
// without compiling anything. Both share what is compiled, so they must not price at the same time.
func (e *Estimator) For(plan *partition.Plan) (*Estimator, error) {
	if err := plan.Validate(e.skel.blocks, e.skel.batch); err != nil {
		return nil, err
	}
	same := *plan
	same.MicroBatch, same.Placements, same.Stages = e.plan.MicroBatch, e.plan.Placements, e.plan.Stages
	if len(plan.Stages) != len(e.plan.Stages) || !reflect.DeepEqual(same, e.plan) {
		return nil, fmt.Errorf("planner: the plan differs in more than micro-batch and recomputation")
	}
	other := *e
	other.plan.MicroBatch, other.plan.Stages = plan.MicroBatch, plan.Stages
	return &other, nil
}
