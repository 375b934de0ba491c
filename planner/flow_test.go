package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// TestSendAfterWorkOfNoBlock: a stage sends before its blocks have done anything, though something that is no block's is done before.
func TestSendAfterWorkOfNoBlock(t *testing.T) {
	t.Parallel()
	c := tiny(3)
	c.NHead, c.NKVHead, c.NEmbd, c.FFNHidden, c.BlockSize, c.VocabSize, c.Bias = 5, 1, 20, 97, 4, 90, false
	c.Activation = gpt.GELUTanh
	g, nodes := step(t, c, 2), cluster(t, "a100-80g")
	found, err := Search(g, 2, nodes, Options{
		PlanNGPUs: 16, RuntimeNGPUs: 16, DP: 2, PP: 2, TP: 4, CP: 1, MicroBatch: 1, TPPieces: 4,
		Schedule: partition.GPipe, Overlap: "on", OverlapTP: "off", Recompute: RecomputePointwise, RankOrder: "dp-tp-cp-pp",
	})
	require.NoError(t, err)
	p, err := Predict(g, 2, nodes, found.Plan, nil)
	require.NoError(t, err)
	require.Equal(t, p.Step, found.Prediction.Step)
}
