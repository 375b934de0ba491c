package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/models/gpt"
)

// TestPartialRecomputation: where memory is a little short the search recomputes what takes
// the least time. That is the attention of a small model, which is one kernel where norms and
// activation function are three, and the latter of a large one, of which they keep more.
func TestPartialRecomputation(t *testing.T) {
	gpt2, err := gpt.Preset("gpt2")
	require.NoError(t, err)
	for _, tt := range []struct {
		name  string
		model gpt.Config
		batch int
		want  func(full, selective, pointwise int) bool
	}{
		{"small", tiny(4), 4, func(full, selective, pointwise int) bool { return full == 0 && selective > 0 && pointwise == 0 }},
		{"large", gpt2, 8, func(full, selective, pointwise int) bool { return full == 0 && selective == 0 && pointwise > 0 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := step(t, tt.model, tt.batch)
			opts := Options{PlanNGPUs: 1, MicroBatch: tt.batch, Offload: "none", Recompute: RecomputeNone}
			res, err := Search(g, tt.batch, cluster(t, "h100"), opts)
			require.NoError(t, err)
			opts.Recompute, opts.MemoryLimit = RecomputeSearched, res.Prediction.PeakBytes[0]*99/100
			res, err = Search(g, tt.batch, cluster(t, "h100"), opts)
			require.NoError(t, err)
			st := res.Plan.Stages[0]
			require.True(t, tt.want(st.Recompute, st.Selective, st.Pointwise), "%+v", st)
			require.True(t, res.Stats.Optimal)
		})
	}
}
