package planner

import (
	"slices"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// This file fits a plan to ranks whose speeds were measured. All but the shares of the batch stays as it is, so this
// is no search.

// evenSpeed is how many times as long ranks may take that count as equally fast.
const evenSpeed = 1.2

// Balanced is a plan with other shares of the batch.
type Balanced struct {
	*Document
	// Was and Now are the times of a step under the plan before and under this one, with the measured speeds.
	Was, Now cost.Picoseconds
	// Lacks is by how many bytes a rank has too little memory for the plan, if it needs more than the one before; 0 if
	// it fits.
	Lacks int64
}

// Shares returns the shares of the batch under which the last data-parallel rank of a plan is done soonest, nil for
// equal ones. slow says by rank how many times as long as expected it computes; a data-parallel rank is as slow as the
// slowest of its ranks.
func Shares(p *partition.Plan, batch int, slow []float64) []int {
	pace, even := make([]float64, p.DataParallel()), p.Even()
	for dp := range pace {
		for position := range p.PP() {
			for _, device := range p.Devices(dp) {
				pace[dp] = max(pace[dp], slow[even.WorldRank(position, device)])
			}
		}
		if 1/evenSpeed < pace[dp] && pace[dp] < evenSpeed {
			pace[dp] = 1
		}
	}
	if slices.Min(pace) == slices.Max(pace) {
		return nil
	}
	least := p.FewestSequences()
	shares := slices.Repeat([]int{least}, len(pace))
	for range batch - least*len(shares) { // to whom it takes least time with one more
		to := 0
		for dp, n := range shares {
			if float64(n+1)*pace[dp] < float64(shares[to]+1)*pace[to] {
				to = dp
			}
		}
		shares[to]++
	}
	if slices.Equal(shares, even.Sequences(batch)) {
		return nil
	}
	return shares
}

// Balance gives the plan of a document other shares of the batch, as [Shares] returns them, and predicts both with the
// speeds that it is given. With shares, ZeRO shards over all data-parallel ranks, as its groups cut the batch evenly, and
// sequences are not cut, for the same reason.
// The prediction in the new document is that of ranks as the cluster has them.
func Balance(d *Document, shares []int, slow []float64) (*Balanced, error) {
	training, evaluation, err := d.Config.Steps()
	if err != nil {
		return nil, err
	}
	plan := *d.Plan
	if plan.BatchShares = shares; shares != nil {
		plan.ZeROGroup, plan.SequenceParts = 0, 0
	}
	next := *d
	next.Plan, next.Search = &plan, SearchInfo{Alternatives: []DocumentAlternative{}}
	b := &Balanced{Document: &next}
	var peaks [2][]int64
	for i, x := range []struct {
		plan *partition.Plan
		time *cost.Picoseconds
	}{{d.Plan, &b.Was}, {&plan, &b.Now}} {
		prog, predicted, err := predict(training, d.Config.Batch.Global, d.Cluster, x.plan, evaluation)
		if err != nil {
			return nil, err
		}
		line, err := sim.Run(prog, d.Cluster, sim.Options{Slow: slow})
		if err != nil {
			return nil, err
		}
		*x.time, peaks[i] = line.Step, predicted.PeakBytes
		next.Predicted = NewPredicted(d.Config, d.Cluster, x.plan, predicted)
	}
	limit := d.Cluster.MemoryUnder(int64(d.Config.Parallel.MemoryLimit), plan.RuntimeNGPUs)
	for at, peak := range peaks[1] {
		if has := min(limit, d.Cluster.MemoryAt(&plan, at)); peak > peaks[0][at] {
			b.Lacks = max(b.Lacks, peak-has)
		}
	}
	return b, nil
}
