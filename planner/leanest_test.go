package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestClosestIsExact: where nothing fits, no plan of the space misses by less than the one that is named, and it says so if
// that is known without layouts of all of them. In what that needs a plan is found, and in a byte less than any can need none.
func TestClosestIsExact(t *testing.T) {
	t.Parallel()
	const seed = 3
	r := rand.New(rand.NewPCG(seed, 0))
	sliced, sure := 0, 0
	for k, x := range []struct {
		layers, ranks, vocabulary int
		opts                      Options
	}{
		{3, 1, 65, Options{}},
		{2, 1, 600, Options{Offload: "params"}},
		{3, 2, 65, Options{PP: 2, MicroBatch: 1, Schedule: partition.OneFOneB}},
		{3, 2, 600, Options{PP: 2, MicroBatch: 1, Schedule: partition.ZeroBubble}},
		{4, 2, 65, Options{PP: 2, Schedule: partition.Interleaved}},
		{5, 2, 65, Options{PP: 2, Schedule: partition.Interleaved, Offload: "optimizer"}},
		{2, 4, 65, Options{PP: 2, TP: 2, MicroBatch: 1, Schedule: partition.GPipe}},
		{2, 2, 65, Options{TP: 1, PP: 1, CP: 1, ZeRO: stage(2), Offload: "params"}},
		{3, 3, 65, Options{PP: 3, MicroBatch: 2}},
		{2, 2, 65, Options{TP: 1, PP: 1, CP: 2, ZeRO: stage(2), Offload: "params"}},
	} {
		model := tiny(x.layers)
		model.Bias, model.Dropout, model.BlockSize, model.VocabSize = false, 0, 24, x.vocabulary
		batch := 3 + r.IntN(2)
		if x.opts.Offload == "" {
			x.opts.Offload = "none"
		}
		if x.opts.PP > 1 {
			x.opts.OverlapP2P = []string{"on", "off", ""}[k%3]
		}
		x.opts.RuntimeNGPUs, x.opts.PlanNGPUs, x.opts.MemoryLimit = x.ranks, x.ranks, 1<<10
		b := &brute{
			t: t, g: step(t, model, batch), blocks: x.layers, batch: batch, tokens: model.BlockSize, cluster: randomCluster(r),
			limit: x.opts.MemoryLimit, opts: x.opts,
		}
		forget := keepDrafts(b.g)
		b.run()
		b.everywhere = true
		b.run()
		_, err := Search(b.g, batch, b.cluster, b.opts)
		var none *InfeasibleError
		require.ErrorAs(t, err, &none, "seed %d case %d", seed, k)
		require.Equal(t, *b.over, none.Needs-none.Limit, "seed %d case %d: %+v", seed, k, none.Closest)
		if none.Closest.LossSlices > 0 {
			sliced++
		}
		for limit, fits := range map[int64]bool{none.Needs: true, none.AtLeast - 1: false} {
			b.opts.MemoryLimit = limit
			_, err := Search(b.g, batch, b.cluster, b.opts)
			require.Equal(t, fits, err == nil, "seed %d case %d, in %d bytes: %v", seed, k, limit, err)
		}
		forget()
		if none.AtLeast == none.Needs {
			require.NotContains(t, err.Error(), "none can need less")
			sure++
			continue
		}
		require.Less(t, none.AtLeast, none.Needs, "seed %d case %d", seed, k)
		require.ErrorContains(t, err, "none can need less")
	}
	require.Positive(t, sliced)
	require.Equal(t, 8, sure, "but under a zero-bubble schedule, and, by 64 bytes, where ZeRO shards over ranks that share sequences")
}

// TestNothingFitsByWhatBlocksKeep: that GPT-3 175B does not fit on 8 H100s is known before anything has a price, and which plan
// misses by the least from the programs of few outlines. They were 85 when a plan needed twice as much and bounds did not know
// of it.
func TestNothingFitsByWhatBlocksKeep(t *testing.T) {
	model := preset(t, "gpt3-175b")
	model.Float = ir.BF16
	h100 := cluster(t, "h100")
	opts, err := Options{RuntimeNGPUs: 8}.on(h100, 1536)
	require.NoError(t, err)
	s := newSearcher(step(t, model, 1536), 1536, h100, opts)
	found, points, _, err := s.search()
	require.NoError(t, err)
	require.Empty(t, found)
	require.Empty(t, points)
	require.Empty(t, s.busyTrunks)
	var none *InfeasibleError
	require.ErrorAs(t, s.infeasible(nil), &none)
	require.Equal(t, none.Needs, none.AtLeast)
	require.Less(t, none.Needs, int64(83<<30))
	require.Less(t, len(s.known), 20)
}
