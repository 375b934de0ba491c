package planner

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// TestGroupsWhereMemoryIsShort: on nodes joined by slow links, with memory too
// short for anything less, ZeRO shards inside the nodes, and no plan with stage and
// group fixed is faster.
func TestGroupsWhereMemoryIsShort(t *testing.T) {
	const seed = 3
	r := rand.New(rand.NewPCG(seed, 0))
	grouped := 0
	for k := range 12 {
		overlap := []string{"off", ""}[k/6]
		model := tiny(2)
		model.Bias, model.Dropout = false, 0
		g, batch := step(t, model, 8), 8
		c := randomCluster(r)
		c.DevicesPerNode, c.Levels, c.Device.Shared = 2, nil, false
		c.NICsPerNode, c.Oversubscription, c.NodesPerRack = 0, 0, 0
		c.InterNode = cost.Link{Bandwidth: c.IntraNode.Bandwidth / 50, Efficiency: 1, Latency: 1e-4}
		plenty := Options{RuntimeNGPUs: 4, PlanNGPUs: 4, TP: 1, PP: 1, DP: 4, TopK: 2, Overlap: overlap}
		free, err := Search(g, batch, c, plenty)
		require.NoError(t, err)
		short := plenty
		short.MemoryLimit = free.Prediction.PeakBytes[0] * int64(60+5*(k%6)) / 100
		fastest := never
		for zero := range 4 {
			for _, group := range []int{4, 2} {
				pinned := short
				if pinned.ZeRO = stage(zero); zero > 0 {
					pinned.ZeROGroup = group
				}
				if one, err := Search(g, batch, c, pinned); err == nil {
					fastest = min(fastest, one.Prediction.Step)
				}
			}
		}
		got, err := Search(g, batch, c, short)
		if fastest == never {
			require.ErrorAs(t, err, new(*InfeasibleError), "seed %d case %d", seed, k)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, fastest, got.Prediction.Step, "seed %d case %d", seed, k)
		require.True(t, got.Stats.Optimal)
		if got.Plan.ZeROGroup > 0 {
			grouped++
		}
	}
	require.Positive(t, grouped)
}

func TestZeROGroupOptions(t *testing.T) {
	g := step(t, tiny(2), 12)
	for _, c := range []struct {
		opts Options
		want string
	}{
		{Options{PlanNGPUs: 6, TP: 1, PP: 1, ZeROGroup: 4}, "planner: zero-group: 4 divides the data-parallel ranks of no dp x tp 1 x pp 1 of 6 devices in 6; the nearest groups of 6 ranks: 3, 6"},
		{Options{PlanNGPUs: 2, TP: 2, ZeROGroup: 2}, "planner: zero-group: 2 needs data-parallel ranks; no dp x tp 2 x pp of 2 devices in 2 has any with 2 blocks and a global batch of 12"},
		{Options{PlanNGPUs: 4, ZeROGroup: 2, ZeRO: stage(0)}, "planner: zero-group: is 2, but zero is 0: there is nothing to shard in groups; want zero 1 to 3"},
		{Options{PlanNGPUs: 4, ZeROGroup: 1}, "planner: zero-group: is 1, must be at least 2 data-parallel ranks"},
	} {
		_, err := Search(g, 12, cluster(t, "cpu"), c.opts)
		require.EqualError(t, err, c.want)
	}
	for _, group := range []int{2, 4} {
		r, err := Search(g, 12, cluster(t, "cpu"), Options{PlanNGPUs: 4, DP: 4, ZeROGroup: group})
		require.NoError(t, err)
		require.Positive(t, r.Plan.ZeRO)
		require.Equal(t, group, r.Plan.ShardGroup())
	}
}

// TestOffloadWhereMemoryIsShort: with memory enough nothing is offloaded; as it
// gets short the search finds what the best of three searches with offload fixed
// finds, offloads at last, and says what the host holds.
func TestOffloadWhereMemoryIsShort(t *testing.T) {
	t.Parallel()
	const seed = 4
	r := rand.New(rand.NewPCG(seed, 0))
	offloaded := map[partition.Offload]int{}
	for k := range 6 {
		g, batch := step(t, tiny(3), 4), 4
		forget := keepDrafts(g)
		c := randomCluster(r)
		opts := Options{RuntimeNGPUs: 2, PlanNGPUs: 2, TopK: 1, Overlap: []string{"off", ""}[k/3]}
		free, err := Search(g, batch, c, opts)
		require.NoError(t, err)
		require.False(t, free.Plan.Offload.Moves())
		require.Nil(t, free.Prediction.HostBytes)
		peak := free.Prediction.PeakBytes[0]
		for _, percent := range []int64{70, 45, 30} {
			opts.MemoryLimit = peak * percent / 100
			fastest := never
			for _, what := range []string{"none", "optimizer", "params"} {
				pinned := opts
				pinned.Offload = what
				if one, err := Search(g, batch, c, pinned); err == nil {
					fastest = min(fastest, one.Prediction.Step)
					require.Equal(t, what, one.Plan.Offload.String())
				}
			}
			got, err := Search(g, batch, c, opts)
			if fastest == never {
				require.ErrorAs(t, err, new(*InfeasibleError))
				continue
			}
			require.NoError(t, err)
			require.Equal(t, fastest, got.Prediction.Step, "seed %d case %d, %d %%", seed, k, percent)
			if offloaded[got.Plan.Offload]++; got.Plan.Offload.Moves() {
				require.Positive(t, got.Prediction.HostBytes[0])
			}
		}
		forget()
	}
	t.Logf("%v", offloaded)
	require.Len(t, offloaded, 3, "none, optimizer and params each win somewhere")
}

// TestSparedBoundsAreOfTheirOwn: where nothing fits without offload, plans with offload are not ruled out by that.
func TestSparedBoundsAreOfTheirOwn(t *testing.T) {
	const batch = 4
	g, c := step(t, tiny(3), batch), cluster(t, "h100")
	opts := Options{PlanNGPUs: 1, RuntimeNGPUs: 1, LossSlices: 1, MemoryLimit: 230_000}
	_, cert, err := SearchCertified(g, batch, c, opts)
	require.NoError(t, err)
	require.True(t, cert.Plan.Offload.Moves())
	_, err = Certify(g, batch, c, nil, cert, 0, 1)
	require.NoError(t, err)
	forged := 0
	for i := range cert.Regions {
		if r := &cert.Regions[i]; r.offload == cert.Plan.Offload && slices.Contains(r.sizes, cert.Plan.MicroBatch) {
			r.reason, r.bound = byTrunk, cert.Step
			forged++
		}
	}
	require.Equal(t, 1, forged)
	_, err = Certify(g, batch, c, nil, cert, 0, 1)
	require.ErrorContains(t, err, "the certificate says")
}
