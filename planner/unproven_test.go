package planner

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUnproven: a search that gives up on its proof says by how much a plan could be faster, and still returns the plan.
func TestUnproven(t *testing.T) {
	g, opts := step(t, preset(t, "gpt2-xl"), 8), Options{PlanNGPUs: 8, RuntimeNGPUs: 8, DP: 1, TP: 1, CP: 1, PP: 8, MemoryLimit: 13 << 28}
	found, cert, err := certified(g, 8, cluster(t, "a10g"), opts, 1)
	var unproven *UnprovenError
	require.ErrorAs(t, err, &unproven)
	require.Nil(t, cert)
	require.Equal(t, &UnprovenError{Steps: 1, Gap: found.Stats.Gap}, unproven)
	require.Positive(t, unproven.Gap)
	require.Equal(t, 8, found.Plan.PP())
}
