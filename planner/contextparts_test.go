package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/planner/cost"
)

// TestPartsOfSharedSequences: the search finds what the simulation of all plans does where context-parallel ranks share
// sequences that tensor parallelism makes in parts.
func TestPartsOfSharedSequences(t *testing.T) {
	t.Parallel()
	const seed = 21
	r := rand.New(rand.NewPCG(seed, 0))
	found := map[int]int{}
	for k := range 7 {
		model, cp, batch := tiny(1), 2, 1+k%3
		model.Bias, model.NEmbd, model.BlockSize = k%2 == 0, 48, 8*codegen.EvenTokens
		switch k {
		case 5: // too short for four parts
			model.BlockSize = 4 * codegen.EvenTokens
		case 6: // two ranks would share sequences evenly, four do not
			cp, batch, model.BlockSize = 4, 4, 6*codegen.EvenTokens
		}
		c := randomCluster(r)
		c.Device.LaunchOverhead, c.Device.Efficiency.MatmulHalf = c.Device.LaunchOverhead/1e3, c.Device.Efficiency.MatmulHalf*float64(k%4)/1e3
		for _, l := range []*cost.Link{&c.IntraNode, &c.InterNode} {
			l.Latency /= []float64{1, 30, 1e4}[k%3]
		}
		b := &brute{
			t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, cluster: c,
			opts:  Options{RuntimeNGPUs: 2 * cp, PlanNGPUs: 2 * cp, CP: cp, TP: 2, ZeRO: stage(k % 2), Offload: "none", Replicate: "none", LossSlices: 1},
			limit: 1 << 40,
		}
		b.opts.MemoryLimit = b.limit
		if res, _ := b.compare(seed, k); res != nil && res.Plan.SequenceParts == res.Plan.TPPieces {
			found[res.Plan.SequenceParts]++
		}
	}
	require.Positive(t, found[0])
	require.Positive(t, found[4])
}
