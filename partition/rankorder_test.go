package partition_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
)

// TestRankOrders: neighbouring ranks are on the axis that is named first, WorldRank and StageDevice are inverse
// in every order, and units stay outermost.
func TestRankOrders(t *testing.T) {
	p := partition.Plan{PlanNGPUs: 2 * 3 * 4 * 5, RuntimeNGPUs: 240, TP: 2, CP: 3, DP: 4, Stages: make([]partition.Stage, 5)}
	for _, tt := range []struct {
		order          string
		tp, cp, dp, pp int // strides
	}{
		{"", 1, 2, 6, 24}, {partition.UsualOrder, 1, 2, 6, 24}, {"dp-tp-cp-pp", 4, 8, 1, 24},
		{"pp-dp-cp-tp", 60, 20, 5, 1}, {"cp-pp-tp-dp", 15, 1, 30, 3},
	} {
		p.RankOrder = tt.order
		at := p.WorldRank(2, 0)
		require.Equal(t, 2*tt.pp, at, tt.order)
		require.Equal(t, tt.pp, p.WorldRank(3, 0)-at, tt.order)
		require.Equal(t, tt.tp, p.WorldRank(2, 1)-at, tt.order)
		require.Equal(t, tt.dp, p.WorldRank(2, 2)-at, tt.order)
		require.Equal(t, tt.cp, p.WorldRank(2, 2*8)-at, "the next of the ranks that share sequences, in order %q", tt.order)
		require.Equal(t, 120, p.WorldRank(2, 2*4)-at, "the next unit, in order %q", tt.order)
		require.Equal(t, partition.Strides{TP: tt.tp, CP: tt.cp, DP: tt.dp, PP: tt.pp}, partition.StridesOf(tt.order, 2, 3, 4, 5))
		for rank := range p.RuntimeNGPUs {
			stage, device := p.StageDevice(rank)
			require.Equal(t, rank, p.WorldRank(stage, device), tt.order)
		}
	}
	p = partition.Plan{PlanNGPUs: 4, RuntimeNGPUs: 8, TP: 2, DP: 1, Stages: make([]partition.Stage, 2), RankOrder: "pp-tp"}
	require.Equal(t, []int{0, 2, 1, 3, 4, 6}, []int{p.WorldRank(0, 0), p.WorldRank(0, 1), p.WorldRank(1, 0), p.WorldRank(1, 1), p.WorldRank(0, 2), p.WorldRank(0, 3)})
	require.Equal(t, "pp-tp", p.RankOrderText())
	sizes := map[string]int{"tp": 2, "cp": 1, "dp": 1, "pp": 2}
	require.Equal(t, "pp-tp", partition.RankOrderOf("cp-pp-dp-tp", sizes))
	require.Empty(t, partition.RankOrderOf("cp-tp-dp-pp", sizes))
}
