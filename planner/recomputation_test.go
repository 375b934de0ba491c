package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
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

// TestFewest: the fewest blocks that must be recomputed are those that trying one number after the other finds, whatever
// is guessed, also where more blocks take more memory for a moment.
func TestFewest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	jumps := 0
	for range 20_000 {
		var m stageMemory
		for e := range extents {
			m.moreSlot[e], m.slot[e], m.apart[e] = r.Int64N(9), r.Int64N(20), r.Int64N(3)
			m.temp[e], m.tempInner[e], m.tempMiddle[e] = r.Int64N(20), r.Int64N(20), r.Int64N(40)
		}
		e, n, room := pointwise+extent(r.IntN(2)), 1+r.IntN(20), codegen.Chunk{Slots: 1 + r.IntN(3)}
		f, limit := r.IntN(n), r.Int64N(200)
		if m.moreSlot[e] >= m.moreSlot[kept] || m.apart[e] > m.apart[kept] {
			continue
		}
		fits := func(k int) bool { return m.atLeast(n, mixed(f, e, k), room) <= limit }
		want := 1
		for want < n-f && !fits(want) {
			want++
		}
		if got := m.fewest(e, n, f, r.IntN(25)-2, room, limit); want < n-f {
			require.Equal(t, want, got, "%d blocks, %d in full, %+v", n, f, m)
		} else {
			require.GreaterOrEqual(t, got, want)
		}
		if want+1 < n-f && !fits(want+1) {
			jumps++
		}
	}
	require.Greater(t, jumps, 10)
}
