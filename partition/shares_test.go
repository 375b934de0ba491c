package partition_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestBatchShares: a data-parallel rank has the sequences of its share, whatever its number, and runs the micro-batches
// of those. The mesh has the ranks by share; WorldRank and StageDevice are inverse.
func TestBatchShares(t *testing.T) {
	p := newPlan(2, 2, partition.Stage{Last: 2})
	p.RuntimeNGPUs = 8 // two units
	p.BatchShares = []int{2, 1, 3, 3}
	require.NoError(t, p.Validate(2, 18))
	require.Equal(t, []int{4, 2, 6, 6}, p.Sequences(18))
	require.Equal(t, "mesh(dp=3:3:2:1, mb=3/2t, tp=2)", p.Mesh(18).String())
	for device, want := range []int{4, 5, 6, 7, 0, 1, 2, 3} { // dp 2, 3, 0 and 1
		require.Equal(t, want, p.WorldRank(0, device))
		stage, back := p.StageDevice(want)
		require.Equal(t, []int{0, device}, []int{stage, back})
		require.Equal(t, want, p.Even().WorldRank(0, want))
	}
	micro := func(rank int) int {
		_, device := p.StageDevice(rank)
		return p.MicroBatches(18, p.Mesh(18).Coord(device))
	}
	require.Equal(t, []int{2, 1, 3, 3}, []int{micro(0), micro(2), micro(4), micro(6)})
	p.ZeRO = 2 // they reduce gradients in every micro-batch
	require.Equal(t, 3, micro(2))
	require.Equal(t, []int{7, 6, 6, 6}, p.Even().Sequences(25))

	p.ZeRO, p.ZeROGroup, p.BatchShares = 1, 2, nil
	require.Equal(t, []int{5, 4, 4, 4}, p.Sequences(17), "over copies first")
	require.Equal(t, ir.Axis{Name: "dp", Size: 2}, p.Mesh(17).Axes[1])
}

// TestBatchSharesRefused checks that errors name field and numbers.
func TestBatchSharesRefused(t *testing.T) {
	for want, change := range map[string]func(*partition.Plan){
		"batch_shares: are 3, there are 2 data-parallel ranks":                          func(p *partition.Plan) { p.BatchShares = []int{1, 1, 1} },
		"batch_shares: are 0, there are 2 data-parallel ranks":                          func(p *partition.Plan) { p.BatchShares = []int{} },
		"batch_shares: of data-parallel rank 1 is 0, want 1 to 32768":                   func(p *partition.Plan) { p.BatchShares[1] = 0 },
		"batch_shares: of data-parallel rank 0 is 32769, want 1 to 32768":               func(p *partition.Plan) { p.BatchShares[0] = 1<<15 + 1 },
		"batch_shares: leave 0 of 8 sequences to data-parallel rank 1, want at least 1": func(p *partition.Plan) { p.BatchShares[0] = 9 },
		"batch_shares: leave 1 of 8 sequences to data-parallel rank 1, want at least 2": func(p *partition.Plan) { p.BatchParallel, p.BatchShares[0] = true, 4 },
		"batch_shares: are beside zero_group 2, which cuts the batch by groups; want one ": func(p *partition.Plan) {
			p.RuntimeNGPUs, p.ZeRO, p.ZeROGroup, p.BatchShares = 8, 1, 2, []int{2, 1, 1, 1}
		},
	} {
		p := newPlan(2, 2, partition.Stage{Last: 2})
		p.BatchShares = []int{2, 1}
		require.NoError(t, p.Validate(2, 8))
		change(p)
		require.ErrorContains(t, p.Validate(2, 8), want)
	}
}
