package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/planner/cost"
)

// TestReplicatedSearchIsExact: the search against every plan where modules that all
// tensor-parallel ranks hold may win: links of little latency and much less bandwidth than
// there is arithmetic, so that a block's activations are more to exchange than its gradients.
func TestReplicatedSearchIsExact(t *testing.T) {
	t.Parallel()
	const seed = 41
	r := rand.New(rand.NewPCG(seed, 0))
	cases, plans, winners := most(16, 10), 0, map[string]int{}
	if testing.Short() {
		cases = 6
	}
	for k := range cases {
		model := tiny(2)
		model.Bias, model.Dropout, model.BlockSize = false, 0, 48+r.IntN(48)
		if k%3 == 2 {
			model = llama(model)
		}
		batch := 1 + r.IntN(2)
		b := &brute{t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, cluster: randomCluster(r), limit: 1 << 40}
		b.cluster.DevicesPerNode, b.cluster.Levels = 4, nil
		for _, l := range []*cost.Link{&b.cluster.IntraNode, &b.cluster.InterNode} {
			l.Latency /= 100
		}
		b.opts = Options{RuntimeNGPUs: 2 + 2*r.IntN(2), CP: 1, Offload: "none", MemoryLimit: b.limit, ZeRO: stage(0)}
		if k%2 == 0 {
			b.opts.PlanNGPUs, b.opts.TP = b.opts.RuntimeNGPUs, 2
		}
		if left(k, 10, 0, 1, 2, 3, 5, 7) {
			continue
		}
		res, _ := b.compare(seed, k)
		plans += b.plans
		if res == nil {
			continue
		}
		for _, name := range res.Plan.Replicated() {
			winners[name]++
		}
	}
	t.Logf("%d cases, %d plans simulated; replicated in the winners: %v", cases, plans, winners)
	require.NotEmpty(t, winners)
}

// TestReplicateOption: what is named must be there.
func TestReplicateOption(t *testing.T) {
	g := step(t, tiny(2), 4)
	for option, want := range map[string]string{
		"moe":  `replicate: is "moe", must be one of none, attn, mlp, attn+mlp, wte, attn+wte, mlp+wte`,
		"attn": "",
		"none": "",
	} {
		res, err := Search(g, 4, cluster(t, "h100"), Options{PlanNGPUs: 2, TP: 2, Replicate: option})
		if want != "" {
			require.ErrorContains(t, err, want)
			continue
		}
		require.NoError(t, err)
		if option == "none" {
			require.Empty(t, res.Plan.Replicated())
		} else {
			require.Equal(t, []string{option}, res.Plan.Replicated())
		}
	}
	_, err := Search(g, 4, cluster(t, "h100"), Options{PlanNGPUs: 2, TP: 1, Replicate: "mlp"})
	require.ErrorContains(t, err, "replicate: is mlp, but tp is 1")
}
