package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
)

// TestUnevenBatches: where the batch does not divide evenly over data-parallel ranks, the search finds what shares tokens instead, though a
// batch that has a sequence for each rank seldom needs it.
func TestUnevenBatches(t *testing.T) {
	t.Parallel()
	const batch = 3
	g, on := step(t, smallLlama(t, ir.BF16, 16, 4, 1, 512, 4096), batch), cluster(t, "b200")
	free, err := Search(g, batch, on, Options{RuntimeNGPUs: 2})
	require.NoError(t, err)
	asked, err := Search(g, batch, on, Options{RuntimeNGPUs: 2, CP: 2})
	require.NoError(t, err)
	uneven, err := Search(g, batch, on, Options{RuntimeNGPUs: 2, CP: 1, TP: 1, PP: 1})
	require.NoError(t, err)
	require.Equal(t, 2, uneven.Plan.DataParallel())
	require.Less(t, asked.Prediction.Step, uneven.Prediction.Step)
	require.Equal(t, asked.Prediction.Step, free.Prediction.Step)
}

// TestWholeWeightsInANode: the best plan without replicated modules has ranks with equal numbers of sequences, if fewer of them than
// devices of its node; with the MLP replicated tensor-parallel ranks share tokens of as many data-parallel ranks at less cost.
func TestWholeWeightsInANode(t *testing.T) {
	t.Parallel()
	const batch = 20
	model := preset(t, "gpt2")
	model.Float, model.NLayer, model.NHead, model.NEmbd, model.BlockSize, model.VocabSize = ir.BF16, 8, 32, 1536, 4096, 32000
	g, on := step(t, model, batch), cluster(t, "b200")
	best := func(opts Options) *Result {
		opts.RuntimeNGPUs = 8
		found, err := Search(g, batch, on, opts)
		require.NoError(t, err)
		return found
	}
	free, asked, split := best(Options{}), best(Options{TP: 2}), best(Options{Replicate: "none", CP: 1})
	require.Zero(t, batch%split.Plan.DataParallel())
	require.NotEmpty(t, asked.Plan.Replicated())
	require.Less(t, asked.Prediction.Step, split.Prediction.Step)
	require.Equal(t, asked.Prediction.Step, free.Prediction.Step)
}
