package galvatron

import (
	"fmt"

	"github.com/autopar/autopar/partition"
)

// This file converts plans between autopar and Galvatron, as far as both have terms for them.

// Of returns an autopar plan in Galvatron's terms, for a batch. Galvatron has coarser terms: ZeRO below stage 2
// becomes whole copies, a block that recomputes anything counts as fully recomputed, and every schedule becomes 1F1B.
// It fails for what Galvatron has no cost for.
func Of(p *partition.Plan, batch int) (*Plan, error) {
	replicas := p.DataParallel()
	chunks := (batch + replicas*p.MicroBatch - 1) / (replicas * p.MicroBatch)
	switch {
	case p.ContextParallel() > 1 || p.Chunks() > 1 || p.Offload.Moves() || p.Copies() > 1:
		return nil, fmt.Errorf("galvatron: %s, %s has context parallelism, chunks, ZeRO in groups or offload, which Galvatron has no cost for", p.Degrees(), p.ScheduleText())
	case p.LossSlices > 1:
		return nil, fmt.Errorf("galvatron: the loss is in %d slices, which Galvatron has no cost for", p.LossSlices)
	case p.Rows() > 1:
		return nil, fmt.Errorf("galvatron: matrices are cut over grids of %d rows of tensor-parallel ranks, which Galvatron has no cost for", p.Rows())
	case chunks*replicas*p.MicroBatch != batch:
		return nil, fmt.Errorf("galvatron: a batch of %d is not cut evenly into micro-batches of %d on %d data-parallel ranks", batch, p.MicroBatch, replicas)
	}
	s := Strategy{PP: p.PP(), TP: p.TP, SP: 1, DP: replicas, Type: DDP}
	if replicas > 1 && p.ZeRO >= 2 {
		s.Type = []Type{ZeRO2, ZeRO3}[p.ZeRO-2]
	}
	out := &Plan{Batch: batch, Chunks: chunks, Embedding: s, Buffer: p.TP}
	for _, st := range p.Stages {
		out.Division = append(out.Division, st.Last-st.First)
		for i := range st.Last - st.First {
			s.Checkpoint = i < st.Recompute+st.Selective+st.Pointwise
			out.Layers = append(out.Layers, s)
		}
	}
	return out, nil
}

// Partition returns a plan of Galvatron's as an autopar plan without placements. autopar divides all layers, and what
// is outside them, in the same way. So it fails if layers have different degrees, or use Ulysses. Parameters are
// sharded as those of most layers are.
func (p *Plan) Partition() (*partition.Plan, error) {
	s := p.Layers[0]
	devices := s.PP * s.TP * s.DP
	out := &partition.Plan{
		PlanNGPUs: devices, RuntimeNGPUs: devices, DP: s.DP, TP: s.TP, MicroBatch: p.Batch / p.Chunks / s.DP,
		Schedule: partition.OneFOneB, SequenceParallel: s.TP > 1, Overlap: s.DP > 1,
	}
	sharded, first := 0, 0
	for _, n := range p.Division {
		st := partition.Stage{First: first, Last: first + n}
		for _, x := range p.Layers[first : first+n] {
			if x.TP != s.TP || x.DP != s.DP || x.SP > 1 {
				return nil, fmt.Errorf("galvatron: layers are cut over tp %d, sp %d, dp %d and tp %d, sp %d, dp %d; autopar cuts all alike and has no Ulysses", s.TP, s.SP, s.DP, x.TP, x.SP, x.DP)
			}
			if x.Checkpoint {
				st.Recompute++
			}
			if x.Type == ZeRO3 {
				sharded++
			}
		}
		first += n
		out.Stages = append(out.Stages, st)
	}
	if s.DP > 1 {
		out.ZeRO = 2
		if 2*sharded > len(p.Layers) {
			out.ZeRO = 3
		}
	}
	return out, nil
}
