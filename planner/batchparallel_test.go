package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/planner/cost"
)

// TestBatchParallelSearchIsExact: the search against every plan where ranks that share the batch
// may best share the vocabulary: it is large, sequences are short, and links slow.
func TestBatchParallelSearchIsExact(t *testing.T) {
	t.Parallel()
	const seed = 43
	r := rand.New(rand.NewPCG(seed, 0))
	cases, plans, winners, sharded := most(10, 7), 0, 0, 0
	if testing.Short() {
		cases = 4
	}
	for k := range cases {
		model := tiny(2)
		model.BlockSize, model.VocabSize, model.TieEmbeddings = 6+r.IntN(3), 200+r.IntN(200), k%2 == 0
		batch := 3 + r.IntN(4)
		b := &brute{t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, cluster: randomCluster(r), limit: 1 << 40}
		b.cluster.DevicesPerNode, b.cluster.Levels = 4, nil
		for _, l := range []*cost.Link{&b.cluster.IntraNode, &b.cluster.InterNode} {
			l.Latency /= 100
		}
		b.opts = Options{RuntimeNGPUs: 2 + 2*r.IntN(2), CP: 1, Offload: "none", MemoryLimit: b.limit, Recompute: RecomputeNone}
		if k%3 > 0 {
			b.opts.ZeRO = stage(k % 3)
		}
		if left(k, 8, 0, 1, 2, 4, 5, 6) {
			continue
		}
		res, _ := b.compare(seed, k)
		plans += b.plans
		if res != nil && res.Plan.BatchParallel {
			winners++
			if res.Plan.ZeRO > 0 {
				sharded++
			}
		}
	}
	t.Logf("%d cases, %d plans simulated; in %d the batch is shared in the fastest, in %d of these with ZeRO", cases, plans, winners, sharded)
	require.Positive(t, winners)
	require.Positive(t, sharded)
}
