package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/planner/cost"
)

// TestRobustAlternatives: the best plans of policies are compared, but are no alternatives of other degrees, the best first.
func TestRobustAlternatives(t *testing.T) {
	cfg, err := config.Parse("gpt.yaml", []byte("model: {n_layer: 2, n_head: 2, n_embd: 64, block_size: 64, vocab_size: 65}\nbatch: {global: 8}\n"), nil)
	require.NoError(t, err)
	cluster, err := cost.Load("a10g")
	require.NoError(t, err)
	o := configured(cfg)
	o.PlanNGPUs, o.RuntimeNGPUs, o.TopK = 2, 2, 8
	doc, err := robust(cfg, cluster, o, 4, 1)
	require.NoError(t, err)
	all := doc.Search.Alternatives
	require.Greater(t, len(doc.Search.Robust.Contenders), 1+len(all), "of policies, too")
	require.NotEmpty(t, all)
	degrees := map[string]bool{doc.Plan.Degrees(): true}
	for i, a := range all {
		require.False(t, degrees[a.Plan.Degrees()], a.Plan.Degrees())
		degrees[a.Plan.Degrees()] = true
		require.True(t, i == 0 || all[i-1].Predicted.StepSeconds <= a.Predicted.StepSeconds)
	}
}
