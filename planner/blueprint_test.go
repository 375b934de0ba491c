package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// smallLlama is Llama 3 with fewer and narrower blocks.
func smallLlama(t *testing.T, float ir.DType, layers, heads, kvHeads, width, tokens int) gpt.Config {
	c := preset(t, "llama-3-8b")
	c.Float, c.NLayer, c.NHead, c.NKVHead, c.NEmbd, c.BlockSize, c.VocabSize = float, layers, heads, kvHeads, width, tokens, 8192
	c.FFNHidden = width * 7 / 2
	return c
}

// TestShardsOfOneReplica: what a plan costs does not depend on what was looked at before. In one plan ZeRO shards over context-parallel
// ranks alone, in the other over data-parallel ranks too, in the same dimensions: the program of the former does not stand for the latter.
func TestShardsOfOneReplica(t *testing.T) {
	t.Parallel()
	const batch = 3
	g, on := step(t, smallLlama(t, ir.F16, 4, 16, 4, 1024, 8192), batch), cluster(t, "v100-32g")
	opts, err := Options{RuntimeNGPUs: 32, CP: 8, TP: 2, Replicate: "attn+lm_head"}.on(on, batch)
	require.NoError(t, err)
	price := func(before ...outline) cost.Picoseconds {
		s := newSearcher(g, batch, on, opts)
		x := split{replicate: opts.Replicate}
		for _, o := range before {
			o.split = x
			_, err := s.skeleton(o)
			require.NoError(t, err)
		}
		o := outline{degrees: degrees{plan: 16, dp: 1, cp: 8, tp: 2, pp: 1}, sharding: sharding{zero: 1, sequence: true, overlap: true, split: x}, chunks: 1}
		skel, err := s.skeleton(o)
		require.NoError(t, err)
		p := newPipeline(skel, skel.memoryOf(2), 2, partition.OneFOneB)
		p.stages = skel.times(2, partition.OneFOneB)
		return p.time(evenCut(s.graphs.blocks, 1, func(int) extent { return kept }))
	}
	alone := outline{degrees: degrees{plan: 32, dp: 1, cp: 8, tp: 2, pp: 2}, sharding: sharding{zero: 1, overlap: true}, chunks: 1}
	require.Equal(t, price(), price(alone))
}
