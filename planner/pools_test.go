package planner

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// On several kinds of devices the search finds the fastest of all plans and all orders
// of the pools, as it does on one. One kind is fast and has little memory, the other is
// slow and has much, so that by speed alone the blocks would lie the other way around.
func TestSearchOnPoolsIsExact(t *testing.T) {
	t.Parallel()
	const seed = 77
	r := rand.New(rand.NewPCG(seed, 0))
	cases := 30
	if testing.Short() {
		cases = 8
	}
	skipped, infeasible, pipelines, turned, slowHolds, spans, plans := 0, 0, 0, 0, 0, 0, 0
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
		if b.skip() {
			skipped++
			continue
		}
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
	t.Logf("%d cases, %d skipped, %d infeasible, %d pipelines: %d with the pools turned around, %d with more blocks on the slow kind, %d positions on two kinds; %d plans simulated",
		cases, skipped, infeasible, pipelines, turned, slowHolds, spans, plans)
	if testing.Short() {
		return // so few cases have no pipeline
	}
	require.Positive(t, turned)
	require.Positive(t, slowHolds)
	require.Less(t, infeasible, cases/2)
}

// twoPools is a device of each of two kinds, which are equal but for their speed and memory
// and take no time to communicate.
func twoPools(flops, memory [2]float64) *cost.Cluster {
	var pools []cost.Pool
	for i, name := range []string{"first", "second"} {
		link := cost.Link{Bandwidth: 1e15, Efficiency: 1}
		pools = append(pools, cost.Pool{Devices: 1, Cluster: &cost.Cluster{
			Name: name, DevicesPerNode: 1, IntraNode: link, InterNode: link,
			Device: cost.Device{
				Name: name, Cores: 1, Memory: int64(memory[i]), FLOPS: map[string]float64{"f32": flops[i]}, MemoryBandwidth: 1e18,
				Efficiency: cost.Efficiency{Matmul: 1, Attention: 1, Vector: 1, Memory: 1},
			},
		}})
	}
	return cost.Join("two", nil, pools...)
}

// blocksOn counts the blocks of a plan of two stages on a pool.
func blocksOn(c *cost.Cluster, p *partition.Plan, pool int) int {
	for at := range p.PP() {
		if c.KindsAt(p, at) == 1<<pool {
			return p.Stages[at].Last - p.Stages[at].First
		}
	}
	return 0
}

// Two stages by hand: of 4 blocks a device that is three times as fast takes 3, if it has
// room for them.
func TestStagesFollowSpeed(t *testing.T) {
	const plenty = 1 << 40
	g := step(t, tiny(4), 8)
	opts := Options{RuntimeNGPUs: 2, PP: 2, MicroBatch: 1, Recompute: RecomputeNone, Schedule: partition.OneFOneB}
	c := twoPools([2]float64{1e9, 3e9}, [2]float64{plenty, plenty})
	found, err := Search(g, 8, c, opts)
	require.NoError(t, err)
	require.Equal(t, 1, blocksOn(c, found.Plan, 0), "%+v", found.Plan)
	require.Equal(t, 3, blocksOn(c, found.Plan, 1))

	// The same stage takes a third of the time on the fast kind.
	s := newSearcher(g, 8, c, Options{RuntimeNGPUs: 2})
	var forward [2][2]float64 // by order of the pools and position
	for order := range forward {
		skel, err := s.skeleton(outline{degrees{2, 1, 1, 1, 2, order}, sharding{}, 1, "", true})
		require.NoError(t, err)
		for at, times := range skel.times(1, partition.OneFOneB) {
			l := times.forward[whole].busy()
			forward[order][at] = float64(l.at(2, recomputation{}))
		}
	}
	require.InEpsilon(t, 3, forward[0][0]/forward[1][0], 1e-6)
	require.InEpsilon(t, 3, forward[1][1]/forward[0][1], 1e-6)

	// Floors know both speeds: no plan takes less, nor this one much more.
	o := outline{degrees{2, 1, 1, 1, 2, 0}, sharding{}, 1, "", true}
	floor := s.floor(o, s.trunk(o), 1, partition.OneFOneB)
	require.LessOrEqual(t, floor, found.Prediction.Step)
	require.Greater(t, float64(floor), 0.8*float64(found.Prediction.Step))

	// With room for one block on the fast kind, whatever it is the first or the last of,
	// the slow one takes three, though that is slower.
	tight := twoPools([2]float64{1e9, 3e9}, [2]float64{plenty, 0})
	for _, cut := range [][2]int{{1, 3}, {3, 1}} {
		p := *found.Plan
		p.Stages = []partition.Stage{{First: 0, Last: cut[0]}, {First: cut[0], Last: 4}}
		x, err := Predict(g, 8, c, &p, nil)
		require.NoError(t, err)
		at := 0 // the position of one block
		if cut[1] == 1 {
			at = 1
		}
		tight.Pools[1].Cluster.Device.Memory = max(tight.Pools[1].Cluster.Device.Memory, x.PeakBytes[at])
	}
	slower, cert, err := SearchCertified(g, 8, tight, opts)
	require.NoError(t, err)
	require.Equal(t, 3, blocksOn(tight, slower.Plan, 0), "%+v", slower.Plan)
	require.Equal(t, 1, blocksOn(tight, slower.Plan, 1))
	require.Greater(t, slower.Prediction.Step, found.Prediction.Step)
	_, err = Certify(g, 8, tight, nil, cert, 20, 1)
	require.NoError(t, err)
	forged := *cert
	forged.Step, forged.Plan, forged.Peaks = found.Prediction.Step, found.Plan, found.Prediction.PeakBytes
	_, err = Certify(g, 8, tight, nil, &forged, 20, 1)
	require.ErrorContains(t, err, "bytes, the limit is", "a plan that fits the other kind only")
}

// TestAlternativesDiffer: alternatives differ in more than the order of pools in which that makes no difference, and they are as many as are asked for.
// Where the order leaves out devices, or gives a stage others, it does make one.
func TestAlternativesDiffer(t *testing.T) {
	const plenty = 1 << 40
	g := step(t, tiny(4), 8)
	for _, x := range []struct {
		name    string
		flops   [2]float64
		devices int
		turned  int // plans of which there is another in the other order of the pools
	}{
		{"one stage", [2]float64{1e9, 3e9}, 2, 1}, // of two stages either may be on the fast kind
		{"equal pools", [2]float64{1e9, 1e9}, 2, 0},
		{"one device", [2]float64{1e9, 3e9}, 1, 1},
	} {
		c := twoPools(x.flops, [2]float64{plenty, plenty})
		c.Pools[1].Cluster.Name, c.Pools[1].Cluster.Device.Name = c.Pools[0].Cluster.Name, c.Pools[0].Cluster.Device.Name
		res, err := Search(g, 8, c, Options{RuntimeNGPUs: x.devices, PlanNGPUs: x.devices, CP: 1, TopK: 9})
		require.NoError(t, err)
		count := map[string]int{res.Plan.Degrees(): 1}
		for _, a := range res.Alternatives {
			count[a.Plan.Degrees()]++
		}
		turned := 0
		for degrees, n := range count {
			require.LessOrEqual(t, n, 2)
			if n == 2 {
				turned++
				require.True(t, x.devices == 1 || strings.Contains(degrees, "pp 2"), "%s: %s twice", x.name, degrees)
			}
		}
		require.Equal(t, x.turned, turned, x.name)

		few, err := Search(g, 8, c, Options{RuntimeNGPUs: x.devices, PlanNGPUs: x.devices, CP: 1, TopK: 1})
		require.NoError(t, err)
		require.Equal(t, res.Plan, few.Plan)
		require.Equal(t, res.Alternatives[:min(1, len(res.Alternatives))], few.Alternatives)
	}
}

// The first stage of 1f1b keeps more micro-batches in flight, so the pool with more
// memory comes first, whichever it is in the cluster.
func TestRoomyPoolComesFirst(t *testing.T) {
	g := step(t, tiny(4), 8)
	opts := Options{RuntimeNGPUs: 2, PP: 2, MicroBatch: 1, Recompute: RecomputeNone, Schedule: partition.OneFOneB}
	const plenty = 1 << 40
	free, err := Search(g, 8, twoPools([2]float64{1e9, 1e9}, [2]float64{plenty, plenty}), opts)
	require.NoError(t, err)
	require.Nil(t, free.Plan.PoolOrder)
	most, least := free.Prediction.PeakBytes[0], free.Prediction.PeakBytes[1]
	require.Greater(t, most, least)
	for first, memory := range [][2]float64{{float64(most), float64(least)}, {float64(least), float64(most)}} {
		c := twoPools([2]float64{1e9, 1e9}, memory)
		found, cert, err := SearchCertified(g, 8, c, opts)
		require.NoError(t, err)
		require.Equal(t, cost.Kinds(1<<first), c.KindsAt(found.Plan, 0))
		require.Equal(t, free.Prediction.Step, found.Prediction.Step)
		_, err = Certify(g, 8, c, nil, cert, 20, 1)
		require.NoError(t, err)
	}
	_, err = Search(g, 8, twoPools([2]float64{1e9, 1e9}, [2]float64{float64(least), float64(least) / 2}), opts)
	var none *InfeasibleError
	require.ErrorAs(t, err, &none)
	require.Contains(t, []int64{least, least / 2}, none.Limit, "that of the stage it names")
}

// TestFloorsOfKinds: the blocks of a micro-batch that are not at one position are at another, of another kind perhaps. Floors and bounds
// of cuts know that, in either order of the pools: the best cut takes hardly more.
func TestFloorsOfKinds(t *testing.T) {
	t.Parallel()
	const batch, blocks = 3, 8
	g := step(t, tiny(blocks), batch)
	c := twoPools([2]float64{1e9, 3e9}, [2]float64{1e12, 1e12})
	opts, err := Options{RuntimeNGPUs: 2}.on(c, batch)
	require.NoError(t, err)
	s := newSearcher(g, batch, c, opts)
	for order := range 2 {
		for schedule, share := range map[partition.Schedule]float64{partition.GPipe: 0.98, partition.OneFOneB: 0.98, partition.ZeroBubble: 0.96} {
			o := outline{degrees: degrees{plan: 2, dp: 1, cp: 1, tp: 1, pp: 2, order: order}, chunks: 1}
			skel, err := s.skeleton(o)
			require.NoError(t, err)
			p := newPipeline(skel, skel.memoryOf(1), 1, schedule)
			p.stages = skel.times(1, schedule)
			best := never
			for n := 1; n < blocks; n++ {
				best = min(best, p.time([]partition.Stage{{Last: n}, {First: n, Last: blocks}}))
			}
			for name, floor := range map[string]cost.Picoseconds{
				"floor":          s.flowing(&pending{outline: o}, 1, schedule, nil),
				"bounds of cuts": newBounds(p, s.limit, s.opts, nil).ofAll(),
			} {
				require.LessOrEqual(t, floor, best, "%s, order %d, %s", name, order, schedule)
				require.GreaterOrEqual(t, float64(floor), share*float64(best), "%s, order %d, %s", name, order, schedule)
			}
		}
	}
}

// TestRoomOnKinds: a position surely fits where half of the memory of its own devices has room, however much others have.
func TestRoomOnKinds(t *testing.T) {
	t.Parallel()
	const batch = 3
	c := twoPools([2]float64{1e9, 1e9}, [2]float64{1e12, 3e11})
	opts, err := Options{RuntimeNGPUs: 2}.on(c, batch)
	require.NoError(t, err)
	s := newSearcher(step(t, tiny(4), batch), batch, c, opts)
	for order := range 2 {
		skel, err := s.skeleton(outline{degrees: degrees{plan: 2, dp: 1, cp: 1, tp: 1, pp: 2, order: order}, chunks: 1})
		require.NoError(t, err)
		require.True(t, newCutter(s, skel, 1, partition.OneFOneB).lastRoomy(), "order %d", order)
	}
}

// TestFloorsOfUnlikeDelays: collectives delay the kernels of one kind of device beside them, and not those of another. What a wait hides
// of such delays is what they are at the position.
func TestFloorsOfUnlikeDelays(t *testing.T) {
	t.Parallel()
	const batch = 4
	pools := make([]cost.Pool, 2)
	for i := range pools {
		k := cluster(t, "h100")
		k.IntraNode.Bandwidth, k.Device.Efficiency.Beside = 1e7, []float64{0.5, 0}[i]
		pools[i] = cost.Pool{Cluster: k, Devices: 2}
	}
	c := cost.Join("unlike", &cost.Link{Bandwidth: 1e12, Efficiency: 1}, pools...)
	opts, err := Options{RuntimeNGPUs: 4}.on(c, batch)
	require.NoError(t, err)
	model := tiny(4)
	s := newSearcher(step(t, model, batch), batch, c, opts)
	for order := range 2 {
		o := outline{degrees: degrees{plan: 4, dp: 2, cp: 1, tp: 1, pp: 2, order: order}, sharding: sharding{zero: 3, overlap: true}, chunks: 2}
		requireInterleavedBounded(t, s, o, 1)
		o.chunks = 1
		requireBounded(t, s, o, 1, partition.OneFOneB)
	}
}

// TestAllChainsOfAPosition: a position may have every kind of chain that ends with the update, each with every tail.
func TestAllChainsOfAPosition(t *testing.T) {
	t.Parallel()
	const batch = 64
	model := preset(t, "gpt2-xl")
	model.Float = ir.BF16
	c := cost.Join("two", nil, cost.Pool{Cluster: cluster(t, "a100-40g"), Devices: 32}, cost.Pool{Cluster: cluster(t, "h100"), Devices: 32})
	opts, err := Options{RuntimeNGPUs: 64}.on(c, batch)
	require.NoError(t, err)
	s := newSearcher(step(t, model, batch), batch, c, opts)
	o := outline{degrees: degrees{plan: 64, dp: 8, cp: 1, tp: 2, pp: 4}, sharding: sharding{zero: 2, overlap: true, sequence: true}, chunks: 1}
	requireBounded(t, s, o, 1, partition.ZeroBubble)
	most := 0
	s.flowing(&pending{outline: o, trunk: s.trunk(o), way: s.waysOf(o)}, 1, partition.ZeroBubble, nil)
	for _, x := range s.positions(&s.passage) {
		most = max(most, x.n)
	}
	require.Greater(t, most, 20)
}
