package planner

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// FuzzPrices: what a search says of its winner and alternatives is what [Predict] says of them, on clusters that there are, for
// models of the size that they are rented for, if with few blocks. A search prices plans from parts that others share; Predict compiles the whole.
func FuzzPrices(f *testing.F) { fuzzSeeds(f, pricesAreTrue, 1, 4, 200) }

func pricesAreTrue(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	p := rentedJob(t, r)
	defer keepDrafts(p.g)()
	for range 2 {
		found, err := Search(p.g, p.batch, p.cluster, p.opts)
		if isOption(err) || errors.As(err, new(*InfeasibleError)) {
			return
		}
		require.NoError(t, err)
		for _, a := range append([]Alternative{{found.Plan, found.Prediction}}, found.Alternatives...) {
			whole, err := Predict(p.g, p.batch, p.cluster, a.Plan, nil)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(whole, a.Prediction), "%s, batch %d, %+v: %+v", p.cluster.Name, p.batch, p.opts, a.Plan)
		}
		given(r, p)
	}
}

// TestBlocksBeginAlike: positions are cut for tensor-parallel ranks before the last block, whose backward pass is the first that
// reads them, but not between the gather of the gradient with which it begins and the product, which are made in parts as those of other blocks.
func TestBlocksBeginAlike(t *testing.T) {
	t.Parallel()
	const batch = 1
	g, on := step(t, smallLlama(t, ir.F32, 2, 25, 5, 1600, 1024), batch), cluster(t, "a100-40g")
	found, err := Search(g, batch, on, Options{PlanNGPUs: 4, RuntimeNGPUs: 4, DP: 1, CP: 2, TP: 2, PP: 1, SequenceParallel: "on",
		TPPieces: 2, MicroBatch: 1, Recompute: RecomputeNone, Offload: "none", Replicate: "none", TPRows: 1})
	require.NoError(t, err)
	require.Contains(t, found.Plan.Placements, partition.Placement{Match: `h\.[0-9]+\.attn\.c_proj\.weight`, Spec: "[_,_,_,tp]"})
	whole, err := Predict(g, batch, on, found.Plan, nil)
	require.NoError(t, err)
	require.Equal(t, whole, found.Prediction)
}

// rentedModel is a GPT or a Llama with few blocks of a size that GPUs are rented for.
func rentedModel(t *testing.T, r *rand.Rand) gpt.Config {
	m := preset(t, []string{"gpt2", "llama-3-8b"}[r.IntN(2)])
	m.Float, m.NLayer = []ir.DType{ir.BF16, ir.BF16, ir.F16, ir.F32}[r.IntN(4)], 2+r.IntN(5)
	width := []int{64, 80, 128}[r.IntN(3)]
	m.NHead = []int{12, 16, 20, 25, 32, 40}[r.IntN(6)]
	m.NEmbd, m.FFNHidden = width*m.NHead, 0
	if m.NKVHead = 0; m.Position == gpt.RoPE {
		m.FFNHidden = m.NEmbd * 7 / 2
		for _, kv := range []int{8, 5, 4} {
			if m.NHead%kv == 0 && r.IntN(2) == 0 {
				m.NKVHead = kv
				break
			}
		}
	}
	m.BlockSize, m.VocabSize = []int{512, 1024, 2048, 4096, 8192, 16384}[r.IntN(6)], []int{8192, 32000, 50257, 50304}[r.IntN(4)]
	return m
}

// rentedJob is a random job on up to 32 devices of one or two kinds.
func rentedJob(t *testing.T, r *rand.Rand) *proven {
	names := []string{"v100", "v100-32g", "a10g", "a100-40g", "a100-80g", "h100", "h200-autopar", "b200"}
	name := names[r.IntN(len(names))]
	p := &proven{batch: []int{1 + r.IntN(8), 8 << r.IntN(5), 1 + r.IntN(128)}[r.IntN(3)], opts: Options{TopK: r.IntN(6)}}
	p.opts.RuntimeNGPUs = []int{2, 4, 6, 8, 12, 16, 24, 32}[r.IntN(8)]
	if other := names[r.IntN(len(names))]; r.IntN(6) == 0 && other != name && !strings.Contains(name+other, "autopar") { // which is software of its own
		name = fmt.Sprintf("%s:%d+%s:%d", name, p.opts.RuntimeNGPUs/2, other, p.opts.RuntimeNGPUs/2)
	}
	p.cluster = cluster(t, name)
	if r.IntN(4) == 0 {
		p.cluster.Software = cost.Generations()[r.IntN(len(cost.Generations()))]
	}
	p.g = step(t, rentedModel(t, r), p.batch)
	for range r.IntN(3) {
		given(r, p)
	}
	return p
}
