package partition

import (
	"github.com/autopar/autopar/ir"
)

// Apply returns the graph partitioned by the plan: nodes carry their stage,
// values their spec, and the graph the mesh that all stages share. batch is the
// global batch the graph was traced for. The given graph is not changed.
//
// Both the training step and graphs without a backward pass (evaluation) can be
// partitioned by the same plan.
func Apply(g *ir.Graph, p *Plan, batch int) (*ir.Graph, error) {
	blocks := Blocks(g)
	if err := p.Validate(len(blocks), batch); err != nil {
		return nil, err
	}
	again := map[string]extent{}
	for _, s := range p.Stages {
		next := s.First
		for _, x := range []struct {
			extent
			count int
		}{{full, s.Recompute}, {attentionOnly, s.Selective}, {pointwiseOnly, s.Pointwise}} {
			for _, b := range blocks[next : next+x.count] {
				again[b] = x.extent
			}
			next += x.count
		}
	}
	work := g
	if len(again) > 0 || p.ContextParallel() > 1 || p.LossSlices > 1 {
		work, _ = g.Clone() // to be rewritten
	}
	recompute(work, again)
	if err := sliceLoss(work, p.LossSlices); err != nil {
		return nil, err
	}
	if err := context(work, p); err != nil {
		return nil, err
	}
	work, err := cut(work, p, blocks)
	if err != nil {
		return nil, err
	}
	out, err := propagate(work, p, p.Mesh(batch))
	if err != nil {
		return nil, err
	}
	// What is fetched for the backward pass alone goes with it, and what is fetched
	// for gradients of weights alone goes with those: fetches are nodes like others
	// when the pass is split.
	offload(out, p.Offload)
	if p.Schedule == ZeroBubble {
		splitBackward(out)
	}
	return out, nil
}
