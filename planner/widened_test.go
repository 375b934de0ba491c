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
