package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
)

// TestWaitingFits: stages go on while what they send is on its way, unless nothing fits then. That the plan has them wait is in
// its proof, as if it had been asked for.
func TestWaitingFits(t *testing.T) {
	g, c := step(t, tiny(4), 4), cluster(t, "h100")
	opts := Options{PlanNGPUs: 2, RuntimeNGPUs: 2, TP: 1, PP: 2, MicroBatch: 1, Schedule: partition.OneFOneB, Offload: "none", LossSlices: 1, MemoryLimit: 1 << 10}
	needs := map[string]int64{}
	for _, on := range []string{"on", "off", ""} {
		opts.OverlapP2P = on
		_, err := Search(g, 4, c, opts)
		var none *InfeasibleError
		require.ErrorAs(t, err, &none)
		needs[on] = none.Needs
	}
	require.Less(t, needs["off"], needs["on"])
	require.Equal(t, needs["off"], needs[""])
	for limit, posts := range map[int64]bool{needs["on"]: true, needs["on"] - 1: false} {
		opts.MemoryLimit = limit
		res, cert, err := SearchCertified(g, 4, c, opts)
		require.NoError(t, err)
		require.Equal(t, posts, res.Plan.OverlapP2P)
		require.Equal(t, !posts, cert.Options.OverlapP2P == "off")
		_, err = Certify(g, 4, c, nil, cert, 5, 1)
		require.NoError(t, err)
	}
}
