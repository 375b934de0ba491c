package galvatron

import (
	"fmt"
	"maps"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// This file turns a profile of Galvatron's into a cluster, so that autopar's own search runs on the same
// measurements.

// samples is the number of samples of the measured layer that a cluster is fitted to.
const samples = 8

// Cluster returns a cluster like base with the figures of the profile, for autopar's own search.
//
//   - The efficiencies of kernels are scaled by one factor, so that the forward pass of a layer takes the measured
//     time with 8 samples.
//   - Links in a node have the latency and bandwidth of the line through the all-gathers measured over most ranks.
//   - A device keeps free the memory that Galvatron assumes for PyTorch.
//   - Kernels beside a collective slow down by its factor for that.
//
// The graph is that of the measured model, for a batch of at least 8. Measured memory is not used: autopar computes
// its own layout.
func (p *Profile) Cluster(base *cost.Cluster, g *ir.Graph, batch int) (*cost.Cluster, error) {
	if len(base.Pools) > 0 {
		return nil, fmt.Errorf("galvatron: %s has several kinds of devices, a profile is of one", base.Name)
	}
	if len(base.Levels) > 0 {
		return nil, fmt.Errorf("galvatron: %s states %d levels of network, a profile is of nodes that are all connected alike", base.Name, len(base.Levels))
	}
	c := *base
	c.Name = base.Name + "-galvatron"
	c.Source = "profile files of Galvatron; " + base.Source
	ranks := slices.Max(slices.Collect(maps.Keys(p.Gather)))
	line := p.Gather[ranks].Fitted
	c.DevicesPerNode = ranks
	c.IntraNode = cost.Link{Bandwidth: float64(ranks-1) / float64(ranks) * (1 << 20) / (line.Slope / 1000), Efficiency: 1, Latency: max(0, line.Constant) / 1000 / float64(ranks-1)}
	c.Device.Reserve = context << 20
	c.Device.Efficiency.Beside = 1 / p.Overlap
	forward, err := newForward(g, batch)
	if err != nil {
		return nil, err
	}
	want := p.Layer.at(samples) / 1000
	e := base.Device.Efficiency
	scaled := func(factor float64) float64 {
		c.Device.Efficiency.Matmul, c.Device.Efficiency.Attention, c.Device.Efficiency.Vector = e.Matmul*factor, e.Attention*factor, e.Vector*factor
		return forward.layer(&c)
	}
	low, high := 1e-3, 1/max(e.Matmul, e.Attention, e.Vector)
	if least, most := scaled(high), scaled(low); want < least || want > most {
		return nil, fmt.Errorf("galvatron: a layer with %d samples was measured to take %.4g s forward; on %s it takes between %.4g and %.4g: is the profile of this model?", samples, want, base.Name, least, most)
	}
	for range 60 {
		if middle := (low + high) / 2; scaled(middle) > want {
			low = middle
		} else {
			high = middle
		}
	}
	scaled(high)
	return &c, c.Validate()
}

// forward holds programs of one rank, with one layer and with two.
type forward [2]*codegen.Program

func newForward(g *ir.Graph, batch int) (f forward, err error) {
	if batch < samples {
		return f, fmt.Errorf("galvatron: the batch is %d, want at least %d", batch, samples)
	}
	for i := range f {
		few, ok := planner.Shrink(g, i+1)
		if !ok {
			return f, fmt.Errorf("galvatron: %s has no row of three like blocks", g.Name)
		}
		plan := &partition.Plan{PlanNGPUs: 1, RuntimeNGPUs: 1, DP: 1, TP: 1, MicroBatch: samples, Schedule: partition.OneFOneB, Stages: []partition.Stage{{Last: i + 1}}}
		if f[i], err = codegen.Draft(few, plan, batch, plan.Lone(batch)); err != nil {
			return f, err
		}
	}
	return f, nil
}

// layer returns the seconds of one layer: the difference of the two programs.
func (f forward) layer(c *cost.Cluster) float64 {
	var times [2]cost.Picoseconds
	for i, prog := range f {
		price := cost.NewProgram(c, prog.Plan, prog.Mesh)
		for k := range prog.Stages[0].Bodies[ir.Forward].Instrs {
			t, _ := price.Instr(&prog.Stages[0].Bodies[ir.Forward].Instrs[k], prog.Mesh, ir.Coord{})
			times[i] += t
		}
	}
	return (times[1] - times[0]).Seconds()
}
