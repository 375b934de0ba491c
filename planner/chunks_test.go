package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// Few chunks show how many lie: of ranks whose chunks have as many blocks each not all need be
// compiled, and they take what they take when they are.
func TestFewChunksShowMany(t *testing.T) {
	const seed = 43
	r := rand.New(rand.NewPCG(seed, 0))
	cases := 50
	if testing.Short() {
		cases = 16
	}
	reduced, overlapped := 0, 0
	for k := range cases {
		batch, n := 2+r.IntN(6), 1+k%3/2
		o, units, ok := randomOutline(r, 6, batch)
		if !ok || o.pp == 1 {
			continue
		}
		o.plan, o.pp = o.plan/o.pp*min(o.pp, 4), min(o.pp, 4)
		o.chunks = 6 + r.IntN(3)
		if o.cp == 1 && k%4 > 0 {
			o.offload, o.overlap = partition.OffloadNone, true
		}
		recomputed := make([]recomputation, o.pp)
		for at := range recomputed {
			recomputed[at] = []recomputation{{}, {full: n}, {pointwise: n}, {full: n - 1, selective: 1}}[r.IntN(4)]
		}
		cut := make([]partition.Stage, o.stages())
		for i := range cut {
			cut[i] = recomputed[i%o.pp].stage(i*n, n)
		}
		model := tiny(n * o.stages())
		model.Bias, model.Dropout = r.IntN(2) == 0, []float64{0, 0.2}[r.IntN(2)]
		model.Float = []ir.DType{ir.F32, ir.BF16, ir.F16}[k%3]
		if k%4 == 0 {
			model = llama(model)
		}
		eval, err := gpt.EvalStep(model, batch, model.BlockSize)
		require.NoError(t, err)
		s := newSearcher(step(t, model, batch), batch, randomCluster(r), Options{RuntimeNGPUs: o.plan * units, Eval: eval})
		plan, err := s.template(o)
		require.NoError(t, err)
		plan.Stages, plan.Schedule = cut, partition.Interleaved
		plan.MicroBatch = 1 + r.IntN((batch+plan.DataParallel()-1)/plan.DataParallel())
		if rowOf(&plan).chunks(&plan) < o.chunks {
			reduced++
			if o.overlap {
				overlapped++
			}
		}
		got, _, err := s.peaks(&plan)
		require.NoError(t, err)
		_, want, err := s.allocate(&plan)
		require.NoError(t, err)
		require.Equal(t, want, got, "seed %d case %d: %+v units %d %+v", seed, k, o, units, cut)
		for key, c := range s.compiled {
			require.False(t, c.unlike || key.whole, "seed %d case %d: %+v units %d %+v", seed, k, o, units, cut)
		}
	}
	t.Logf("%d with few chunks, %d of them overlapped", reduced, overlapped)
	require.Positive(t, overlapped)
	require.Greater(t, reduced, overlapped)
}

// TestOtherNumbersOfChunks: one compiled rank shows the memory of plans that have different numbers of chunks of the same blocks.
func TestOtherNumbersOfChunks(t *testing.T) {
	const batch, blocks = 12, 24
	s := newSearcher(step(t, tiny(blocks), batch), batch, cluster(t, "h100"), Options{RuntimeNGPUs: 12})
	for _, x := range []struct{ pp, chunks int }{{4, 6}, {3, 8}} {
		plan, err := s.template(outline{degrees: degrees{plan: 12, dp: 12 / x.pp, cp: 1, tp: 1, pp: x.pp}, sharding: sharding{overlap: true}, chunks: x.chunks})
		require.NoError(t, err)
		plan.Stages, plan.Schedule, plan.MicroBatch = evenCut(blocks, blocks, func(int) extent { return kept }), partition.Interleaved, 1
		require.Less(t, rowOf(&plan).chunks(&plan), x.chunks)
		got, _, err := s.peaks(&plan)
		require.NoError(t, err)
		_, want, err := s.allocate(&plan)
		require.NoError(t, err)
		require.Equal(t, want, got, "%+v", x)
	}
}
