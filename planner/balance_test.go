package planner

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/partition"
)

// balanced is a document with a hand-written plan of some data-parallel ranks, each of two stages, that take no time to
// communicate.
func balanced(t *testing.T, dp, batch int) *Document {
	cfg := config.Default()
	cfg.Model, cfg.Batch.Global, cfg.Data.Dir = tiny(2), batch, "data"
	c := twoPools([2]float64{1e9, 1e9}, [2]float64{1 << 40, 1 << 40}).Pools[0].Cluster
	p := &partition.Plan{
		PlanNGPUs: 2 * dp, RuntimeNGPUs: 2 * dp, DP: dp, TP: 1, MicroBatch: 1, Schedule: partition.OneFOneB,
		Stages: []partition.Stage{{First: 0, Last: 1}, {First: 1, Last: 2}}, Placements: []partition.Placement{},
	}
	require.NoError(t, p.Validate(2, batch))
	return NewDocument(cfg, step(t, cfg.Model, batch), c, &Result{Plan: p})
}

// TestShares: the ranks that are slow have as many sequences fewer as they are slower. A data-parallel rank is as slow
// as the slowest of its ranks.
func TestShares(t *testing.T) {
	p := balanced(t, 4, 26).Plan // dp d is ranks d and 4+d
	for _, x := range []struct {
		batch int
		slow  []float64
		want  []int
	}{
		{26, []float64{1, 1, 1, 1, 1, 1, 1, 1}, nil},
		{26, []float64{1, 1.19, 1, 1, 1, 1, .85, 1}, nil},
		{26, []float64{1, 1, 4, 1, 1, 1, 1, 1}, []int{8, 8, 2, 8}},
		{26, []float64{1, 1, 1, 1, 1, 1, 4, 1}, []int{8, 8, 2, 8}},
		{26, []float64{1, 2, 4, 1, 1, 1, 1, 1}, []int{10, 5, 2, 9}}, // they are done at 10, 10, 8 and 9
		{26, []float64{1, 1, 100, 1, 1, 1, 1, 1}, []int{9, 8, 1, 8}},
		{26, []float64{.5, 1, 1, 1, .5, 1, 1, 1}, []int{11, 5, 5, 5}},
		{4, []float64{1, 1, 9, 1, 1, 1, 1, 1}, nil}, // nobody can have less
		{7, []float64{3, 1, 1, 1, 1, 1, 1, 1}, []int{1, 2, 2, 2}},
	} {
		got := Shares(p, x.batch, x.slow)
		require.Equal(t, x.want, got, "%v", x)
		with := *p
		with.BatchShares = got
		require.NoError(t, with.Validate(2, x.batch))
		if got != nil {
			require.Equal(t, got, with.Sequences(x.batch))
		}
		require.Equal(t, x.want, Shares(&with, x.batch, x.slow), "what the plan has already does not count")
	}
	grouped := *p
	grouped.ZeRO, grouped.ZeROGroup = 1, 2
	require.Nil(t, Shares(&grouped, 26, []float64{1, 1, 1, 1, 1, 1, 1, 1}), "7, 6, 7 and 6 sequences")
	require.Equal(t, []int{8, 8, 2, 8}, Shares(&grouped, 26, []float64{1, 1, 4, 1, 1, 1, 1, 1}))
	one := balanced(t, 1, 4).Plan
	require.Nil(t, Shares(one, 4, []float64{1, 9}))
}

// TestBalance: with a rank that is four times as slow a step takes almost four times as long, and with the shares for it
// little longer than without that rank. The plan that is left is what other ranks go on by: its document can be read, and says
// what the cluster as stated would do.
func TestBalance(t *testing.T) {
	d := balanced(t, 4, 28)
	quick := []float64{1, 1, 1, 1, 1, 1, 1, 1}
	slow := []float64{1, 1, 1, 1, 1, 1, 4, 1}
	same, err := Balance(d, nil, quick)
	require.NoError(t, err)
	require.Equal(t, same.Was, same.Now)
	b, err := Balance(d, Shares(d.Plan, 28, slow), slow)
	require.NoError(t, err)
	// A rank does its 7 sequences, and the other stage is one ahead.
	require.InEpsilon(t, (4*7+1)/(7.+1), float64(b.Was)/float64(same.Was), .05)
	require.InEpsilon(t, (9+1)/(7.+1), float64(b.Now)/float64(same.Was), .05)
	require.Zero(t, b.Lacks)
	require.InEpsilon(t, (9+1)/(7.+1), b.Predicted.StepSeconds/same.Predicted.StepSeconds, .05)
	require.Nil(t, d.Plan.BatchShares)

	text, err := b.Marshal()
	require.NoError(t, err)
	back, err := ParseDocument("plan.json", text)
	require.NoError(t, err)
	require.Equal(t, []int{9, 9, 2, 8}, back.Plan.BatchShares)
	require.NoError(t, back.Check(step(t, d.Config.Model, 28)))

	well, err := Balance(back, Shares(back.Plan, 28, quick), quick) // the rank is well again
	require.NoError(t, err)
	require.Nil(t, well.Plan.BatchShares)
	require.Equal(t, same.Was, well.Now)

	d.Plan.ZeRO = 1 // who has more sequences updates more parameters
	same, err = Balance(d, nil, quick)
	require.NoError(t, err)
	has := slices.Max(same.Predicted.PeakBytes)
	d.Config.Parallel.MemoryLimit = config.Bytes(has)
	b, err = Balance(d, back.Plan.BatchShares, slow)
	require.NoError(t, err)
	require.Positive(t, b.Lacks)
	require.Equal(t, slices.Max(b.Predicted.PeakBytes)-has, b.Lacks)
	grouped := *d
	plan := *d.Plan
	grouped.Plan, plan.ZeROGroup = &plan, 2
	b, err = Balance(&grouped, back.Plan.BatchShares, slow)
	require.NoError(t, err)
	require.Zero(t, b.Plan.ZeROGroup)
	require.NoError(t, b.Plan.Validate(2, 28))
	d.Config.Parallel.MemoryLimit = 1 // the plan never fitted
	same, err = Balance(d, nil, quick)
	require.NoError(t, err)
	require.Zero(t, same.Lacks)
}
