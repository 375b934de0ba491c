package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/planner/cost"
)

// TestLossSlicesArePlanned: a search with the loss in slices says of its plans, and proves of them, what their programs say,
// and finds one where without slices none fits.
func TestLossSlicesArePlanned(t *testing.T) {
	const batch = 8
	model := gpt.Config{
		NLayer: 2, NHead: 4, NKVHead: 4, NEmbd: 32, BlockSize: 32, VocabSize: 4099,
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: true,
	}
	g, err := gpt.TrainStep(model, gpt.Optimizer{Beta1: .9, Beta2: .95, Eps: 1e-8, GradClip: 1}, batch, model.BlockSize)
	require.NoError(t, err)
	defer keepDrafts(g)()
	eval, err := gpt.EvalStep(model, batch, model.BlockSize)
	require.NoError(t, err)
	for _, name := range []string{"cpu", "h100"} {
		c, err := cost.Load(name)
		require.NoError(t, err)
		opts := Options{RuntimeNGPUs: 4, Eval: eval, LossSlices: 4, TopK: 4}
		found, certificate, err := SearchCertified(g, batch, c, opts)
		require.NoError(t, err)
		for _, x := range append([]Alternative{{found.Plan, found.Prediction}}, found.Alternatives...) {
			require.Equal(t, 4, x.Plan.LossSlices)
			require.Equal(t, 1, x.Plan.ContextParallel())
			whole, err := Predict(g, batch, c, x.Plan, eval)
			require.NoError(t, err)
			require.Equal(t, x.Prediction.Step, whole.Step)
			require.Equal(t, x.Prediction.PeakBytes, whole.PeakBytes)
			e, err := NewEstimator(g, batch, c, x.Plan)
			require.NoError(t, err)
			require.Equal(t, x.Prediction.Step, e.Price(c).Step)
			require.Equal(t, 4, e.Plan().LossSlices)
		}
		_, err = Certify(g, batch, c, eval, certificate, 20, 1)
		require.NoError(t, err)

		one := Options{RuntimeNGPUs: 1, Eval: eval, MicroBatch: batch, LossSlices: 1}
		without, err := Search(g, batch, c, one)
		require.NoError(t, err)
		one.LossSlices = 4
		sliced, err := Search(g, batch, c, one)
		require.NoError(t, err)
		require.Less(t, sliced.Prediction.PeakBytes[0], without.Prediction.PeakBytes[0]-without.Prediction.PeakBytes[0]/5)
		one.MemoryLimit = sliced.Prediction.PeakBytes[0]
		_, err = Search(g, batch, c, one)
		require.NoError(t, err)
		one.LossSlices, one.Recompute = 1, "full"
		var none *InfeasibleError
		_, err = Search(g, batch, c, one)
		require.ErrorAs(t, err, &none)
	}
	c, err := cost.Load("h100")
	require.NoError(t, err)
	for _, x := range []struct {
		opts Options
		want string
	}{
		{Options{RuntimeNGPUs: 4, LossSlices: 4, CP: 2}, "planner: loss-slices: is 4, but cp is 2"},
		{Options{RuntimeNGPUs: 4, LossSlices: -1}, "planner: loss-slices: is -1"},
		{Options{RuntimeNGPUs: 4, LossSlices: 5}, "5 slices of sequences of 32 tokens are not equal; the nearest that are:"},
	} {
		_, err := Search(g, batch, c, x.opts)
		require.ErrorContains(t, err, x.want)
	}
}
