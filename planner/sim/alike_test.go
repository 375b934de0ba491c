package sim_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// TestAlike: one rank simulated for all that are cut alike gives, to the picosecond, the same as simulating each of
// them, however uneven the cuts are.
func TestAlike(t *testing.T) {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize, c.Dropout = 4, 3, 24, 33, 65, 0.2
	fewer := 0
	for _, x := range []struct {
		dp, cp, tp, batch int
		change            func(*partition.Plan)
	}{
		{dp: 4, cp: 1, tp: 1, batch: 6, change: func(p *partition.Plan) {}}, // 2, 2, 1 and 1 sequences
		{dp: 5, cp: 1, tp: 2, batch: 13, change: func(p *partition.Plan) { p.ZeRO, p.Overlap = 1, true }},
		{dp: 3, cp: 1, tp: 3, batch: 9, change: func(p *partition.Plan) { p.ZeRO, p.SequenceParallel, p.OverlapTP = 2, true, true }},
		{dp: 4, cp: 1, tp: 2, batch: 11, change: func(p *partition.Plan) { p.ZeRO, p.ZeROGroup, p.Schedule = 3, 2, partition.ZeroBubble }},
		{dp: 4, cp: 1, tp: 2, batch: 15, change: func(p *partition.Plan) { // sequences of a rank are cut further, in two ways
			p.BatchShares, p.ZeRO, p.BatchParallel, p.MicroBatch = []int{1, 3, 1, 2}, 1, true, 3
		}},
		{dp: 2, cp: 3, tp: 1, batch: 8, change: func(p *partition.Plan) { p.ZeRO, p.Overlap = 1, true }},
		{dp: 2, cp: 1, tp: 3, batch: 8, change: func(p *partition.Plan) { p.SequenceParallel, p.TPPieces = true, 2; p.MicroBatch = 4 }},
	} {
		n := x.dp * x.cp * x.tp * 2
		p := &partition.Plan{
			PlanNGPUs: n, RuntimeNGPUs: n, DP: x.dp, TP: x.tp, MicroBatch: 1, Schedule: partition.OneFOneB,
			Stages: []partition.Stage{{First: 0, Last: 2}, {First: 2, Last: 4, Recompute: 1}},
			Placements: []partition.Placement{
				{Match: `h\.[0-9]+\.attn\.c_attn\.weight`, Spec: "[_,tp,_,_]"},
				{Match: `h\.[0-9]+\.attn\.c_proj\.weight`, Spec: "[_,tp,_]"},
				{Match: `wte\.weight`, Spec: "[tp,_]"},
			},
		}
		if x.cp > 1 {
			p.CP = x.cp
		}
		x.change(p)
		g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1}, x.batch, 33)
		require.NoError(t, err)
		prog, err := codegen.Compile(g, p, x.batch, nil)
		require.NoError(t, err)
		for _, name := range []string{"a100-80g", "cpu"} {
			cluster, err := cost.Load(name)
			require.NoError(t, err)
			opts := sim.Options{Spans: true, Only: []int{1, n - 1}, Accounts: 1, Account: everything}
			want, err := sim.RunApart(prog, cluster, opts)
			require.NoError(t, err)
			got, err := sim.Run(prog, cluster, opts)
			require.NoError(t, err)
			require.Equal(t, want.Step, got.Step)
			require.True(t, slices.Equal(want.Spans, got.Spans))
			for r := range got.Ranks {
				if got.Ranks[r].Like != r {
					fewer++
				}
				got.Ranks[r].Like = r
			}
			require.Equal(t, want.Ranks, got.Ranks)
		}
	}
	require.Positive(t, fewer)
}

// everything books all time on one account.
func everything(_ []codegen.Instr, _ ir.Coord, time cost.Picoseconds, accounts []float64) {
	accounts[0] += float64(time)
}
