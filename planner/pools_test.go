package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// On several kinds of devices the search finds the fastest of all plans and all orders
// of the pools, as it does on one. One kind is fast and has little memory, the other is
// slow and has much, so that by speed alone the blocks would lie the other way around.
func TestSearchOnPoolsIsExact(t *testing.T) {
	const seed = 3
	r := rand.New(rand.NewPCG(seed, 0))
	cases := 30
	if testing.Short() {
		cases = 8
	}
	infeasible, pipelines, turned, slowHolds, spans, plans := 0, 0, 0, 0, 0, 0
	for k := range cases {
		model := tiny(2 + r.IntN(3))
		model.Bias, model.Dropout = false, 0
		batch := 2 + r.IntN(3)
		ranks := []int{2, 2, 3, 4}[r.IntN(4)]
		b := &brute{
			t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, limit: 1 << 40,
			opts: Options{RuntimeNGPUs: ranks, PlanNGPUs: ranks, TP: 1, Offload: []string{"none", "none", ""}[k%3]},
		}
		if ranks == 2 && r.IntN(2) == 0 {
			b.opts.PlanNGPUs, b.opts.TP = 0, 0
		}
		if model.NLayer == 4 || r.IntN(3) > 0 {
			b.opts.ZeRO = stage(r.IntN(3))
		}
		if ranks == 4 && k%2 == 0 {
			b.opts.PP, b.opts.Offload = 2, "none"
		}
		c := randomPools(r, ranks)
		for i := range c.Pools {
			pool := c.Pools[i].Cluster
			pool.Device.Memory = 200e3 + r.Int64N(400e3)
			// Where what is sent is little stages may pay.
			for _, l := range []*cost.Link{&pool.IntraNode, &pool.InterNode} {
				l.Latency, l.Bandwidth = l.Latency/100, l.Bandwidth*100
			}
			pool.Levels = nil
		}
		slow := r.IntN(2)
		c.Pools[slow].Cluster.Device.Memory *= 4
		c.Pools[slow].Cluster.Device.FLOPS["f32"] /= 2
		b.cluster = cost.Join("pools", &cost.Link{Bandwidth: 1e10, Efficiency: 1, Latency: 1e-7}, c.Pools...)
		res, _ := b.compare(seed, k)
		plans += b.plans
		if res == nil {
			infeasible++
			continue
		}
		p := res.Plan
		if p.PP() == 1 {
			continue
		}
		pipelines++
		if p.PoolOrder != nil {
			turned++
		}
		blocks := map[cost.Kinds]int{}
		for at := range p.PP() {
			kinds := b.cluster.KindsAt(p, at)
			for i := at; i < len(p.Stages); i += p.PP() {
				blocks[kinds] += p.Stages[i].Last - p.Stages[i].First
			}
			if kinds&(kinds-1) != 0 {
				spans++
			}
		}
		if blocks[1<<slow] > blocks[1<<(1-slow)] {
			slowHolds++
		}
	}
	t.Logf("%d cases, %d infeasible, %d pipelines: %d with the pools turned around, %d with more blocks on the slow kind, %d positions on two kinds; %d plans simulated",
		cases, infeasible, pipelines, turned, slowHolds, spans, plans)
	require.Positive(t, turned)
	require.Positive(t, slowHolds)
	require.Less(t, infeasible, cases/2)
}

// A step on two kinds, by hand. Of 4 blocks one rank is three times as fast as the other
// and both have room for all: three blocks and the head against one and the embedding.
func TestStagesFollowSpeed(t *testing.T) {
	model := tiny(4)
	g := step(t, model, 8)
	kind := func(name string, flops float64) *cost.Cluster {
		link := cost.Link{Bandwidth: 1e15, Efficiency: 1}
		return &cost.Cluster{
			Name: name, DevicesPerNode: 1, IntraNode: link, InterNode: link,
			Device: cost.Device{
				Name: name, Cores: 1, Memory: 1 << 40, FLOPS: map[string]float64{"f32": flops}, MemoryBandwidth: 1e18,
				Efficiency: cost.Efficiency{Matmul: 1, Attention: 1, Vector: 1, Memory: 1},
			},
		}
	}
	c := cost.Join("two", nil, cost.Pool{Cluster: kind("slow", 1e9), Devices: 1}, cost.Pool{Cluster: kind("fast", 3e9), Devices: 1})
	blocksOf := func(p *partition.Plan, pool int) int {
		for at := range p.PP() {
			if c.KindsAt(p, at) == 1<<pool {
				return p.Stages[at].Last - p.Stages[at].First
			}
		}
		return 0
	}
	found, err := Search(g, 8, c, Options{RuntimeNGPUs: 2, PP: 2, Recompute: RecomputeNone, Schedule: partition.OneFOneB})
	require.NoError(t, err)
	require.Equal(t, 1, blocksOf(found.Plan, 0), "%+v", found.Plan)
	require.Equal(t, 3, blocksOf(found.Plan, 1))

	// The same stages on the fast kind alone take a third of the time on the slow one.
	s := newSearcher(g, 8, c, Options{RuntimeNGPUs: 2})
	skel, err := s.skeleton(outline{degrees{2, 1, 1, 1, 2, 0}, sharding{}, 1})
	require.NoError(t, err)
	turned, err := s.skeleton(outline{degrees{2, 1, 1, 1, 2, 1}, sharding{}, 1})
	require.NoError(t, err)
	for at := range 2 {
		slow, fast := skel.times(1)[at].forward[whole].busy(), turned.times(1)[at].forward[whole].busy()
		if at == 1 {
			slow, fast = fast, slow
		}
		require.InEpsilon(t, 3, float64(slow.at(2, recomputation{}))/float64(fast.at(2, recomputation{})), 1e-3, "position %d", at)
	}

	// Where the fast kind has room for one block only, the slow one takes three.
	one, err := Search(g, 8, c, Options{RuntimeNGPUs: 2, PP: 2, Recompute: RecomputeNone, Schedule: partition.OneFOneB, MemoryLimit: 1 << 40})
	require.NoError(t, err)
	require.Equal(t, found.Plan, one.Plan)
	c.Pools[1].Cluster.Device.Memory = found.Prediction.PeakBytes[1] * 6 / 10
	tight, err := Search(g, 8, c, Options{RuntimeNGPUs: 2, PP: 2, MicroBatch: found.Plan.MicroBatch, Recompute: RecomputeNone, Schedule: partition.OneFOneB})
	require.NoError(t, err)
	require.Less(t, blocksOf(tight.Plan, 1), 3)
	require.Greater(t, tight.Prediction.Step, found.Prediction.Step)
	for at, peak := range tight.Prediction.PeakBytes {
		require.LessOrEqual(t, peak, c.MemoryAt(tight.Plan, at))
	}
}
