package planner

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
)

// TestWaitingWhereMemoryIsShort: with memory enough stages go on while what they send is on its way. Where it is short the search
// finds the better of what it finds with either fixed, and proves it.
func TestWaitingWhereMemoryIsShort(t *testing.T) {
	t.Parallel()
	const batch = 4
	g, c := step(t, tiny(4), batch), *cluster(t, "h100")
	c.IntraNode.Bandwidth, c.IntraNode.Latency = 1e13, 0 // waiting costs little
	search := func(limit int64, overlap string) (*Result, *Certificate, int64) {
		opts := Options{
			RuntimeNGPUs: 2, PP: 2, MicroBatch: 1, Schedule: partition.OneFOneB, Offload: "none", LossSlices: 1, OverlapP2P: overlap, MemoryLimit: limit,
		}
		res, cert, err := SearchCertified(g, batch, &c, opts)
		if err != nil {
			var none *InfeasibleError
			require.ErrorAs(t, err, &none)
			return nil, nil, none.Needs
		}
		_, err = Certify(g, batch, &c, nil, cert, 5, 1)
		require.NoError(t, err)
		return res, cert, slices.Max(res.Prediction.PeakBytes)
	}
	_, _, most := search(0, "")
	_, _, on := search(1<<10, "on")
	_, _, off := search(1<<10, "off")
	_, _, either := search(1<<10, "")
	require.Less(t, off, on)
	require.Equal(t, off, either)
	for limit, waits := range map[int64]bool{most: false, most - 1: true, on: false, on - 1: true, off: true} {
		got, cert, _ := search(limit, "")
		require.Equal(t, waits, !got.Plan.OverlapP2P, "in %d bytes", limit)
		require.Empty(t, cert.Options.OverlapP2P)
		least := never
		for _, overlap := range []string{"on", "off"} {
			if fixed, _, _ := search(limit, overlap); fixed != nil {
				least = min(least, fixed.Prediction.Step)
			}
		}
		require.Equal(t, least, got.Prediction.Step, "in %d bytes", limit)
	}
}
