package planner

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// TestNearerOrders: on V100s, of which a pair has less between it than all eight have, ranks
// of a group that are apart communicate faster than neighbours.
func TestNearerOrders(t *testing.T) {
	m := cost.NewModel(cluster(t, "v100"), 8)
	pair, apart := m.Groups(2, 1)[0], m.Groups(2, 2)[0]
	require.False(t, m.NoFaster(apart, pair))
	require.True(t, m.NoFaster(pair, apart))
}

// TestRecomputationLiesAsItsRanksDo: what a block's recomputation communicates takes as long as the groups of the outline that is
// bounded say, whichever is bounded first: anywhere no longer than in any order.
func TestRecomputationLiesAsItsRanksDo(t *testing.T) {
	const batch, size = 16, 2
	model := preset(t, "gpt2-medium")
	model.NLayer, model.Dropout = 2, 0
	c := cluster(t, "v100")
	opts, err := Options{PlanNGPUs: 8, RuntimeNGPUs: 8}.on(c, batch)
	require.NoError(t, err)
	g := step(t, model, batch)
	o := outline{degrees: degrees{plan: 8, dp: 4, cp: 1, tp: 2, pp: 1}, chunks: 1}
	apart := o
	apart.ranks = "dp-tp"
	more := func(first ...outline) map[outline]cost.Picoseconds {
		s, all := newSearcher(g, batch, c, opts), map[outline]cost.Picoseconds{}
		for _, o := range append(first, o, apart, s.anywhere(o)) {
			all[o] = s.again(o, size, partition.OneFOneB).more[full]
		}
		require.LessOrEqual(t, all[s.anywhere(o)], min(all[o], all[apart]))
		require.Less(t, all[apart], all[o])
		return all
	}
	require.Equal(t, more(), more(apart))
}

// TestRankOrderSearchIsExact: the search against every plan where it matters how the axes
// of a unit lie over its ranks: short sequences, so that gradients may be more than what
// tensor parallelism sends, and ranks on several nodes.
func TestRankOrderSearchIsExact(t *testing.T) {
	t.Parallel()
	const seed = 31
	r := rand.New(rand.NewPCG(seed, 0))
	cases, others, plans := most(24, 15), 0, 0
	reasons := map[string]int{}
	for k := range cases {
		model := tiny(2)
		model.Bias, model.Dropout, model.BlockSize = false, 0, []int{5, 8}[r.IntN(2)]
		batch := 2 + r.IntN(2)
		b := &brute{t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, cluster: randomCluster(r), limit: 1 << 40}
		b.cluster.DevicesPerNode, b.cluster.Levels = 1+r.IntN(3), nil
		b.cluster.InterNode.Latency /= 10 // bytes count, not messages
		if k%3 == 0 {
			b.cluster.Software.Replicas = 0.3
		}
		b.opts = Options{RuntimeNGPUs: 4, TP: 2, Offload: "none", MemoryLimit: b.limit, ZeRO: stage(r.IntN(4) / 3)}
		if r.IntN(2) == 0 {
			b.opts.PlanNGPUs = 4
		}
		if k%4 == 3 { // dp x tp x pp
			b.opts.RuntimeNGPUs, b.opts.PP = 8, 2
		}
		if k%4 == 2 {
			b.opts.CP, model.BlockSize, b.opts.ZeRO = 2, 8, nil
			b.g, b.tokens = step(t, model, batch), 8
		}
		if k%3 > 0 && !*exactAll { // how they lie is shown without
			b.opts.Recompute = RecomputeNone
		}
		if b.skip() {
			continue
		}
		res, audit := b.compare(seed, k)
		plans += b.plans
		if res == nil {
			continue
		}
		for _, x := range audit.Reasons {
			reasons[x.Reason] += x.Points
		}
		if res.Plan.RankOrder != "" {
			others++
		}
	}
	t.Logf("%d cases, %d in another order than the usual one, %d plans simulated; certificates: %v", cases, others, plans, reasons)
	require.Positive(t, others)
}

// TestNearestOrder: where the usual order has one of the groups of context parallelism inside a node, and others across nodes, another
// order has all inside, and a bound is of that: the slowest is what plans of the usual order wait for.
func TestNearestOrder(t *testing.T) {
	const ranks = 10
	model := tiny(2)
	model.NHead, model.NEmbd, model.BlockSize = 5, 40, 20
	c := *cluster(t, "h100")
	c.DevicesPerNode = 6 // of ranks 0 and 5, 1 and 6 and so on the first two are beside each other
	s := newSearcher(step(t, model, 4), 4, &c, Options{RuntimeNGPUs: ranks})
	o := outline{degrees: degrees{plan: ranks, dp: 1, cp: 2, tp: 5, pp: 1}, sharding: sharding{}, chunks: 1}
	usual := s.trunk(o).prices[0].Group(s.trunk(o).mesh.Axis(partition.AxisCP))
	best := s.groupPlacesAnywhere(o)
	require.NotNil(t, best)
	require.True(t, slices.ContainsFunc(best[1], func(g cost.Group) bool { return !s.rates.NoFaster(g, usual) }))
}
