package partition

import (
	"github.com/autopar/autopar/ir"
)

// Apply returns the graph partitioned by the plan: every node has its stage, every value its spec, and the
// graph the mesh that all stages share. batch is the global batch, in sequences, that the graph was traced for.
// g is not changed. An invalid plan yields a [PlanError].
//
// One plan can partition both the training step and graphs without a backward pass (evaluation).
func Apply(g *ir.Graph, p *Plan, batch int) (*ir.Graph, error) {
	blocks := Blocks(g)
	if err := p.Validate(len(blocks), batch); err != nil {
		return nil, err
	}
	if p.SequenceParts > 1 && batch%p.DataParallel() != 0 { // plans of ApplyFor stand for others, which do
		return nil, planErrorf("sequence_parts", "is %d, but the %d data-parallel ranks do not share %d sequences equally; use sequence_parts 0", p.SequenceParts, p.DataParallel(), batch)
	}
	return apply(g, p, batch, blocks, p.Lone(batch))
}

// ApplyFor is Apply as if a step had one micro-batch (lone), or several, so that the graph stands for those of plans
// on other meshes.
func ApplyFor(g *ir.Graph, p *Plan, batch int, lone bool) (*ir.Graph, error) {
	blocks := Blocks(g)
	if err := p.Validate(len(blocks), batch); err != nil {
		return nil, err
	}
	return apply(g, p, batch, blocks, lone)
}

func apply(g *ir.Graph, p *Plan, batch int, blocks []string, lone bool) (*ir.Graph, error) {
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
	if len(again) > 0 || p.ContextParallel() > 1 || p.LossSlices > 1 || p.SequenceParts > 1 {
		work, _ = g.Clone() // to be rewritten
	}
	recompute(work, again)
	if err := sequenceParts(work, p); err != nil {
		return nil, err
	}
	if err := sliceLoss(work, p); err != nil {
		return nil, err
	}
	if err := context(work, p); err != nil {
		return nil, err
	}
	work, err := cut(work, p, blocks)
	if err != nil {
		return nil, err
	}
	if lone {
		unsummed(work)
	}
	out, err := propagate(work, p, p.Mesh(batch))
	if err != nil {
		return nil, err
	}
	// This comes before the backward pass is split: fetches are then nodes like others, so those that serve
	// only the backward pass, or only weight gradients, go with what they serve.
	offload(out, p.Offload)
	if p.Schedule.SplitsBackward() {
		splitBackward(out)
	}
	return out, nil
}
