package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// FuzzFloors: on built-in devices whose links are as slow as random says, of one kind or of several, and whose kernels collectives delay
// by as much, no plan takes less than its floors and the bounds of its cuts. There, other than on those of FuzzCosts, a stream may take
// most of the time. To try more than go test does:
//
//	go test ./planner -run FuzzFloors -timeout 0 -args -first-seed 1000 -seeds 1000
func FuzzFloors(f *testing.F) {
	for seed := *firstSeed; seed < *firstSeed+*moreSeeds; seed++ {
		f.Add(seed)
	}
	for _, seed := range []uint64{4, 58, 256, 363, 401, 504, 984, 1512, 2331, 3189, 3629, 4705, 5150, 5874, 7125, eagerFloors, eagerFloors + 1} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 7))
		s := slowSearcher(t, r)
		for range 25 {
			if o, schedule := slowOutline(r, s); o.plan > 0 {
				if seed >= eagerFloors && r.IntN(2) == 0 {
					schedule = eager(schedule)
				}
				holdFloors(t, r, s, o, 1+r.IntN(s.mostSequences(o)), schedule)
			}
		}
	})
}

// eagerFloors is the first of the seeds whose schedules may be eager.
const eagerFloors = 20_000

// eager is the eager one of two schedules; others remain what they are.
func eager(schedule partition.Schedule) partition.Schedule {
	switch schedule {
	case partition.OneFOneB:
		return partition.EagerOneFOneB
	case partition.ZeroBubble:
		return partition.EagerZeroBubble
	}
	return schedule
}

func oneOf[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// slowKind is a built-in cluster with slower links.
func slowKind(t *testing.T, r *rand.Rand) *cost.Cluster {
	c := cluster(t, oneOf(r, "h100", "a10g", "v100", "a100-40g", "b200", "v100-32g"))
	c.Levels, c.DevicesPerNode = nil, oneOf(r, 2, 3, 4, 8)
	c.Device.Efficiency.Beside = oneOf(r, 0, 0.813, 0.5, 0.3)
	c.IntraNode.Bandwidth *= oneOf(r, 1, 1e-1, 1e-2, 1e-3, 1e-4)
	c.InterNode.Bandwidth *= oneOf(r, 1, 1e-1, 1e-2, 1e-3, 1e-4)
	if r.IntN(2) == 0 {
		c.Device.LaunchOverhead = 0
	}
	return c
}

// slowSearcher returns one for a small model on slow kinds of devices.
func slowSearcher(t *testing.T, r *rand.Rand) *searcher {
	ranks := oneOf(r, 2, 4, 6, 8, 12, 16, 24)
	c := slowKind(t, r)
	if first := r.IntN(ranks); first > 0 && r.IntN(2) == 0 {
		pools := []cost.Pool{{Cluster: c, Devices: first}, {Cluster: slowKind(t, r), Devices: ranks - first}}
		if second := r.IntN(first); second > 0 && r.IntN(3) == 0 {
			pools = []cost.Pool{{Cluster: c, Devices: first - second}, {Cluster: slowKind(t, r), Devices: second}, pools[1]}
		}
		var between *cost.Link
		if r.IntN(2) == 0 {
			between = &cost.Link{Bandwidth: oneOf(r, 1e6, 1e9, 1e12), Efficiency: 1}
		}
		c = cost.Join("pools", between, pools...)
	}
	model := gpt.Config{
		NLayer: oneOf(r, 2, 4, 5, 6, 8), NHead: 4, NEmbd: oneOf(r, 16, 48, 64, 192), BlockSize: oneOf(r, 8, 64, 256, 1024), VocabSize: oneOf(r, 65, 400, 5000),
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: oneOf(r, gpt.Learned, gpt.Learned, gpt.RoPE), Bias: r.IntN(2) == 0, TieEmbeddings: r.IntN(2) == 0, Float: oneOf(r, ir.F32, ir.BF16),
	}
	if r.IntN(6) == 0 {
		model.LoRARank, model.LoRATargets = 4, "."
	}
	batch := oneOf(r, 2, 3, 4, 6, 8, 12, 24, 30)
	g, err := gpt.TrainStep(model, adamW(), batch, model.BlockSize)
	require.NoError(t, err)
	opts, err := Options{RuntimeNGPUs: ranks}.on(c, batch)
	require.NoError(t, err)
	return newSearcher(g, batch, c, opts)
}

// slowOutline returns an outline of a searcher and a schedule; without devices if it has no such plans.
func slowOutline(r *rand.Rand, s *searcher) (outline, partition.Schedule) {
	d := degrees{dp: oneOf(r, 1, 2, 3, 4, 6), cp: oneOf(r, 1, 1, 1, 2), tp: oneOf(r, 1, 1, 2, 4), pp: oneOf(r, 1, 2, 2, 3, 4), order: r.IntN(len(s.cluster.Orders()))}
	d.plan = d.dp * d.cp * d.tp * d.pp
	o := outline{degrees: d, chunks: 1, sharding: sharding{zero: r.IntN(4), overlap: r.IntN(3) > 0, sequence: d.tp > 1 && r.IntN(2) == 0}}
	if ranks := s.opts.RuntimeNGPUs; ranks%d.plan != 0 || d.pp > s.graphs.blocks || s.replicas(o) > s.batch {
		return outline{}, ""
	}
	if group := oneOf(r, 0, 0, 2, 3, 4); group > 0 && o.zero > 0 && group < s.replicas(o) && s.replicas(o)%group == 0 && o.dp%group == 0 {
		o.group = group
	}
	if orders := s.rankOrders(o.degrees); len(orders) > 0 && r.IntN(2) == 0 {
		o.ranks = oneOf(r, orders...)
	}
	if o.sequence && r.IntN(3) == 0 {
		o.replicate = oneOf(r, "attn", "mlp", "attn+mlp", "wte", "mlp+wte")
	}
	schedule := oneOf(r, partition.GPipe, partition.OneFOneB, partition.ZeroBubble)
	switch {
	case d.pp == 1:
		schedule = partition.OneFOneB
	case 2*d.pp <= s.graphs.blocks && r.IntN(3) == 0:
		o.chunks, schedule = 2, partition.Interleaved
	}
	return o, schedule
}

// holdFloors holds the fastest of some plans of an outline to its floors and bounds.
func holdFloors(t *testing.T, r *rand.Rand, s *searcher, o outline, size int, schedule partition.Schedule) {
	skel, err := s.skeleton(o)
	if err != nil {
		return // it has no program
	}
	if _, err := skel.try(size); err != nil {
		return
	}
	p := newPipeline(skel, skel.memoryOf(size), size, schedule)
	p.stages = skel.times(size, schedule)
	took := never
	for range 6 {
		cut := evenCut(s.graphs.blocks, o.stages(), func(int) extent { return kept })
		if o.chunks == 1 {
			cut = randomCut(r, s.graphs.blocks, o.pp)
			for i, st := range cut {
				cut[i] = partition.Stage{First: st.First, Last: st.Last}
			}
		}
		took = min(took, p.time(cut))
	}
	refined, err := s.refined(&pending{outline: o}, size, schedule, nil)
	require.NoError(t, err)
	far := s.anywhere(o)
	floors := map[string]cost.Picoseconds{
		"all that it does": refined, "its flow": s.flowing(&pending{outline: o}, size, schedule, nil), "its flow anywhere": s.flowing(&pending{outline: far}, size, schedule, nil),
		"its trunk": s.floor(o, s.trunk(o), size, schedule), "what it exchanges": s.exchanged(o),
	}
	if o.chunks == 1 {
		b := newBounds(p, s.limit, s.opts, nil)
		floors["the bound of a cut"], floors["the bound of all cuts"] = b.best(), b.ofAll()
	}
	for name, floor := range floors {
		require.LessOrEqual(t, floor, took, "%s: %s, micro-batches of %d under %s", name, o.text(), size, schedule)
	}
}
