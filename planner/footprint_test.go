package planner

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestFootprint: what the bytes of an estimated peak are for adds up to it, and what
// lies in codegen's persistent region does to the byte.
func TestFootprint(t *testing.T) {
	const batch = 24
	g := step(t, llama(tiny(9)), batch)
	c := cluster(t, "a100-80g")
	stages := func(cuts ...partition.Stage) []partition.Stage { return cuts }
	for i, p := range []partition.Plan{
		{DP: 1, TP: 1, MicroBatch: 6, Schedule: partition.OneFOneB, Stages: stages(partition.Stage{Last: 9})},
		{DP: 2, TP: 3, MicroBatch: 4, Schedule: partition.OneFOneB, ZeRO: 1, SequenceParallel: true, Stages: stages(partition.Stage{Last: 5, Recompute: 2, Selective: 1}, partition.Stage{First: 5, Last: 9, Recompute: 4})},
		{DP: 4, TP: 1, MicroBatch: 2, Schedule: partition.GPipe, ZeRO: 3, Stages: stages(partition.Stage{Last: 3}, partition.Stage{First: 3, Last: 9, Selective: 3, Pointwise: 2})},
		{DP: 2, TP: 1, MicroBatch: 3, Schedule: partition.Interleaved, Interleave: 2, ZeRO: 1, Stages: stages(
			partition.Stage{Last: 3}, partition.Stage{First: 3, Last: 5, Recompute: 2}, partition.Stage{First: 5, Last: 7}, partition.Stage{First: 7, Last: 9, Recompute: 2})},
		{DP: 1, TP: 1, MicroBatch: 2, Schedule: partition.Interleaved, Interleave: 3, Stages: stages(
			partition.Stage{Last: 2}, partition.Stage{First: 2, Last: 4}, partition.Stage{First: 4, Last: 6},
			partition.Stage{First: 6, Last: 7}, partition.Stage{First: 7, Last: 8}, partition.Stage{First: 8, Last: 9})},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			p.PlanNGPUs = p.DP * p.TP * p.PP()
			p.RuntimeNGPUs = p.PlanNGPUs
			e, err := NewEstimator(g, batch, c, &p)
			require.NoError(t, err)
			peaks := e.Price(c).PeakBytes
			prog, err := codegen.Compile(g, e.Plan(), batch, nil)
			require.NoError(t, err)
			feet := e.Footprints()
			require.Len(t, feet, p.PP())
			for at, f := range feet {
				require.Equal(t, peaks[at], f.Arena())
				require.Equal(t, prog.Stages[at].Persist, f.Weights+f.Gradients+f.State+f.Other, "position %d", at)
				require.LessOrEqual(t, f.Arena(), prog.Stages[at].Arena())
				require.Greater(t, f.Arena(), prog.Stages[at].Arena()*3/4)
				require.Positive(t, f.Saved)
				slots, atOnce := 0, min(p.PP()-at, batch/p.DP/p.MicroBatch)
				for _, c := range prog.Stages[at].Chunks {
					slots += c.Slots
				}
				switch n := p.Chunks(); {
				case p.Schedule == partition.GPipe:
					atOnce = slots
				case n > 1: // Narayanan et al. 2021, section 2.2
					atOnce = 2*(p.PP()-at-1) + (n-1)*p.PP() + 1
				}
				require.Equal(t, slots, f.Slots)
				require.Equal(t, atOnce, f.AtOnce, "position %d", at)
				require.Equal(t, prog.Stages[at].Chunks[0].Slots, f.InFlight)
				var swiglu, norms int
				for _, m := range f.Forward {
					if m.InBlock && m.Op == ir.OpSwiGLU {
						swiglu += m.Kept
					}
					if m.InBlock && m.Op == ir.OpRMSNorm {
						norms++
					}
				}
				kept := 0
				for k := at; k < len(p.Stages); k += p.PP() {
					kept += prog.Stages[at].Chunks[k/p.PP()].Slots * (p.Stages[k].Last - p.Stages[k].First - p.Stages[k].Recompute - p.Stages[k].Pointwise)
				}
				require.Equal(t, kept, swiglu, "position %d", at)
				require.Equal(t, 2, norms, "one block stands for all")
			}
		})
	}
}

// TestReserveIsKeptFree: a plan may not take what a device keeps free.
func TestReserveIsKeptFree(t *testing.T) {
	g := step(t, tiny(4), 8)
	c := *cluster(t, "a100-80g")
	c.Device.Reserve = 0
	opts := Options{PlanNGPUs: 1, Recompute: RecomputeNone, MicroBatch: 8, Offload: "none"}
	res, err := Search(g, 8, &c, opts)
	require.NoError(t, err)
	peak := res.Prediction.PeakBytes[0]
	c.Device.Memory = peak + 1000
	_, err = Search(g, 8, &c, opts)
	require.NoError(t, err)
	c.Device.Reserve = 1001
	_, err = Search(g, 8, &c, opts)
	var no *InfeasibleError
	require.ErrorAs(t, err, &no)
	require.Equal(t, peak-1, no.Limit)
}
