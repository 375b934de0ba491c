package planner

import (
	"cmp"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// TestFloorsOfLargeModels: floors of GPT-3 175B on 1,024 devices are no more than plans take where the trunk's program, or
// that of one stage, is not quite what plans run. TestCostIsSimulation draws small models, whose times hide this.
func TestFloorsOfLargeModels(t *testing.T) {
	c := preset(t, "gpt3-175b")
	c.Float = ir.BF16
	const devices, batch = 1024, 1536
	g := step(t, c, batch)
	h100 := cluster(t, "h100")
	h100.Device.Efficiency.Beside = 0 // where collectives delay nothing, floors are closest to plans
	opts, err := Options{RuntimeNGPUs: devices}.on(h100, batch)
	require.NoError(t, err)
	whole := split{replicate: "attn+mlp", batch: true}
	for name, x := range map[string]struct {
		outline
		before   []degrees // that are looked at before
		sizes    []int
		pieces   int
		schedule partition.Schedule // 1F1B or interleaved unless given
	}{
		"attention's second gather is beside the MLP's last weight gradient, which the trunk has beside a weight's": {
			outline: outline{degrees: degrees{plan: 128, dp: 1, cp: 1, tp: 128, pp: 1}, sharding: sharding{zero: 1, sequence: true, overlap: true}}, sizes: []int{1, 2, 4, 8},
		},
		"what the trunk has in parts is beside the MLP's last weight gradient": {
			outline: outline{degrees: degrees{plan: 128, dp: 1, cp: 1, tp: 128, pp: 1}, sharding: sharding{zero: 1, sequence: true, overlap: true}}, sizes: []int{2, 4, 8}, pieces: 4,
		},
		"a zero-bubble schedule has in parts what others have beside whole products": {
			outline: outline{degrees: degrees{plan: 8, dp: 1, cp: 1, tp: 8, pp: 1}, sharding: sharding{zero: 1, sequence: true}}, sizes: []int{2, 4, 8}, pieces: 4, schedule: partition.ZeroBubble,
		},
		"with more ranks than a head has dimensions attention is divided in another way": {
			outline: outline{degrees: degrees{plan: 128, dp: 1, cp: 1, tp: 128, pp: 1}, sharding: sharding{overlap: true}}, sizes: []int{1, 48},
			before: []degrees{{plan: 256, dp: 1, cp: 1, tp: 256, pp: 1}},
		},
		"tensor-parallel ranks share the sums of gradients": {
			outline: outline{degrees: degrees{plan: 64, dp: 16, cp: 1, tp: 2, pp: 2}, sharding: sharding{zero: 2, overlap: true, split: whole}, chunks: 24}, sizes: []int{1, 3},
		},
		"weights are gathered beside products in stages as in one": {
			outline: outline{degrees: degrees{plan: 16, dp: 4, cp: 1, tp: 2, pp: 2}, sharding: sharding{zero: 3, split: whole}, chunks: 2}, sizes: []int{3, 6},
		},
		"sums of gradients are narrowed while those of other blocks are reduced": {
			outline: outline{degrees: degrees{plan: 1024, dp: 512, cp: 1, tp: 2, pp: 1}, sharding: sharding{overlap: true}, ranks: "dp-tp"}, sizes: []int{1, 2, 3},
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := opts
			opts.TPPieces = x.pieces
			s, o, schedule := newSearcher(g, batch, h100, opts), x.outline, cmp.Or(x.schedule, partition.OneFOneB)
			o.pieces = x.pieces
			if o.chunks == 0 {
				o.chunks = 1
			}
			if o.chunks > 1 {
				schedule = partition.Interleaved
			}
			for _, d := range x.before {
				other := o
				other.degrees = d
				require.NotNil(t, s.trunk(other))
			}
			skel, err := s.skeleton(o)
			require.NoError(t, err)
			for _, size := range x.sizes {
				pipe := newPipeline(skel, skel.memoryOf(size), size, schedule)
				pipe.stages = skel.times(size, schedule)
				took := pipe.time(pipe.interleavedCut("", make([]int, o.pp)))
				refined, err := s.refined(&pending{outline: o}, size, schedule, nil)
				require.NoError(t, err)
				require.LessOrEqual(t, refined, took, "all that stages do, with micro-batches of %d", size)
				inAny := o
				inAny.pieces = anyPieces
				for _, o := range []outline{o, s.anywhere(o), inAny} {
					require.LessOrEqual(t, s.floor(o, s.trunk(o), size, schedule), took, "the trunk's, with micro-batches of %d", size)
					require.LessOrEqual(t, s.flowing(&pending{outline: o}, size, schedule, nil), took, "the flow's, with micro-batches of %d", size)
				}
			}
		})
	}
}

// TestFloorsOfUpdates: what a rank updates under ZeRO may lie in its cache where all of it does not, and so take less than its share of
// the whole; of modules that tensor-parallel ranks hold whole they share the update too.
func TestFloorsOfUpdates(t *testing.T) {
	const batch, ranks = 8, 8
	model := gpt.Config{
		NLayer: 4, NHead: 4, NKVHead: 4, NEmbd: 256, BlockSize: 8, VocabSize: 64,
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: true,
	}
	for name, x := range map[string]struct {
		degrees
		sharding
		float ir.DType
		cache float64 // its bandwidth by that of memory, if there is one
	}{
		"in the cache":             {degrees{plan: 2, dp: 2, cp: 1, tp: 1, pp: 1}, sharding{zero: 1}, ir.F32, 3000},
		"by tensor-parallel ranks": {degrees{plan: ranks, dp: 1, cp: 1, tp: ranks, pp: 1}, sharding{zero: 1, sequence: true, split: split{replicate: "attn+mlp"}}, ir.F32, 0},
		"of two bytes":             {degrees{plan: 1, dp: 1, cp: 1, tp: 1, pp: 1}, sharding{}, ir.BF16, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := *cluster(t, "h100")
			c.Device.MemoryBandwidth /= 100
			model.Float = x.float
			if x.cache > 0 {
				c.Device.Cache = &cost.Cache{Memory: 4 << 20, Bandwidth: x.cache * c.Device.MemoryBandwidth} // the update of 1 MiB of weights touches 7
			}
			opts, err := Options{RuntimeNGPUs: x.plan}.on(&c, batch)
			require.NoError(t, err)
			s := newSearcher(step(t, model, batch), batch, &c, opts)
			o := outline{degrees: x.degrees, sharding: x.sharding, chunks: 1}
			size := batch / x.dp
			skel, err := s.skeleton(o)
			require.NoError(t, err)
			p := newPipeline(skel, skel.memoryOf(size), size, partition.OneFOneB)
			p.stages = skel.times(size, partition.OneFOneB)
			took := p.time([]partition.Stage{{Last: model.NLayer}})
			require.LessOrEqual(t, s.floor(o, s.trunk(o), size, partition.OneFOneB), took)
			require.LessOrEqual(t, s.flowing(&pending{outline: o}, size, partition.OneFOneB, nil), took)
		})
	}
}

// TestRecomputationInOrder: under a zero-bubble schedule nothing runs beside collectives, and recomputation adds no more to floors than
// to plans. Elsewhere a block that gathers again has less beside it than one that does not, and so adds more.
func TestRecomputationInOrder(t *testing.T) {
	c := preset(t, "gpt3-175b")
	c.Float = ir.BF16
	const devices, batch, size, micro = 8, 8, 2, 4
	h100 := cluster(t, "h100")
	opts, err := Options{RuntimeNGPUs: devices}.on(h100, batch)
	require.NoError(t, err)
	s := newSearcher(step(t, c, batch), batch, h100, opts)
	o := outline{degrees: degrees{plan: devices, dp: 1, cp: 1, tp: 8, pp: 1}, sharding: sharding{sequence: true}, chunks: 1}
	skel, err := s.skeleton(o)
	require.NoError(t, err)
	skel.upTo(full)
	added := map[partition.Schedule]cost.Picoseconds{}
	for _, schedule := range []partition.Schedule{partition.ZeroBubble, partition.OneFOneB} {
		p := newPipeline(skel, skel.memoryOf(size), size, schedule)
		p.stages = skel.times(size, schedule)
		took := func(e extent) cost.Picoseconds {
			return p.time([]partition.Stage{uniform(e, c.NLayer).stage(0, c.NLayer)})
		}
		for e := kept + 1; e < extents; e++ {
			added[schedule] = s.again(o, size, schedule).more[e]
			require.LessOrEqual(t, cost.Picoseconds(micro*c.NLayer)*added[schedule], took(e)-took(kept), "%s, %s", schedule, e)
		}
	}
	require.Less(t, added[partition.ZeroBubble], added[partition.OneFOneB])
}

// TestKeptSharesOfWholeGradients: of a weight that all tensor-parallel ranks hold each may add up the share of the gradient alone
// that it updates, from ZeRO stage 1 on: where all of it is larger than what the ranks would gather to make their shares.
func TestKeptSharesOfWholeGradients(t *testing.T) {
	const batch, size = 4, 1
	model := tiny(2)
	model.NHead, model.NEmbd, model.BlockSize = 4, 128, 32
	model = llama(model)
	c := cluster(t, "h100")
	opts, err := Options{RuntimeNGPUs: 6}.on(c, batch)
	require.NoError(t, err)
	s := newSearcher(step(t, model, batch), batch, c, opts)
	for zero := range 4 {
		o := outline{degrees: degrees{plan: 6, dp: 2, cp: 1, tp: 3, pp: 1}, sharding: sharding{zero: zero, sequence: true, split: split{replicate: "mlp"}}, chunks: 1}
		skel, err := s.skeleton(o)
		require.NoError(t, err)
		takes := skel.memoryOf(size)[0].morePersist
		require.LessOrEqual(t, s.again(o, size, partition.OneFOneB).persist, takes, "ZeRO %d", zero)
	}
}

// TestNoFloorIsAboveAPlan: random plans of models that people train, from all over the regions of certificates, take no less than the
// floors of their outlines, whether they fit or not.
func TestNoFloorIsAboveAPlan(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		model, cluster        string
		devices, batch, plans int // without -exact-all
		pieces                int
	}{
		{"gpt2-xl", "h100", 16, 128, 60, 0}, {"gpt2-xl", "h100", 64, 512, 0, 0}, {"gpt3-175b", "h100", 1024, 1536, 0, 0}, {"gpt2-xl", "v100", 96, 100, 0, 0}, {"llama-3-8b", "h100", 64, 64, 0, 0},
		{"gpt2-xl", "h100", 16, 128, 60, 3}, {"gpt2-xl", "h100", 64, 512, 0, 3}, {"gpt3-175b", "h100", 1024, 1536, 0, 4}, {"gpt2-xl", "v100", 96, 100, 0, 2},
	} {
		if *exactAll {
			x.plans = 2000
		}
		if x.plans == 0 {
			continue
		}
		c := preset(t, x.model)
		c.Float = ir.BF16
		g, on := step(t, c, x.batch), cluster(t, x.cluster)
		_, cert, err := SearchCertified(g, x.batch, on, Options{RuntimeNGPUs: x.devices, TPPieces: x.pieces})
		require.NoError(t, err)
		opts, err := cert.Options.on(on, x.batch)
		require.NoError(t, err)
		var a *auditor
		r := rand.New(rand.NewPCG(1, 0))
		for k := range x.plans {
			if k%200 == 0 { // what is known of outlines takes memory
				s := newSearcher(g, x.batch, on, opts)
				s.everywhere = cert.Everywhere
				a = newAuditor(s, cert)
			}
			region := &cert.Regions[r.IntN(len(cert.Regions))]
			d := a.draw(r, region)
			if d == nil {
				continue
			}
			floor, err := a.floorOf(d)
			require.NoError(t, err)
			template := &d.pipe.template
			require.LessOrEqual(t, floor, d.pipe.time(d.cut), "%s on %d: %s, micro-batches of %d under %s, %+v", x.model, x.devices, d.outline.text(), template.MicroBatch, template.Schedule, d.cut)
		}
	}
}

// TestFloorsOfEnds: where a table is most of a model, links are slow and stages do not fill nodes, random pipelines take no less than
// their floors, and hardly more where the bound has all that matters: what one end hands to the other, and sums of gradients over ranks
// on two nodes.
func TestFloorsOfEnds(t *testing.T) {
	t.Parallel()
	const ranks, batch = 24, 24
	random := rand.New(rand.NewPCG(3, 0))
	plans := 150
	if *exactAll {
		plans = 3000
	}
	var searchers []*searcher
	for k := range 8 {
		c := gpt.Config{
			NLayer: 6, NHead: 12, NEmbd: 48, BlockSize: 8, VocabSize: 4800, Bias: true,
			Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: k != 1 && k != 6, Float: []ir.DType{ir.F16, ir.F32}[k%2],
		}
		if k == 2 {
			c.LoRARank, c.LoRATargets = 4, "."
		}
		on := cluster(t, "v100-32g")
		if k == 6 { // what hides sums of gradients is long
			on.Device.FLOPS["f16"] /= 1e5
		} else {
			on.InterNode.Bandwidth /= 100
		}
		on.Device.LaunchOverhead, on.Device.Efficiency.Beside = 0, 0
		on.Software.Scatter, on.Software.AsyncSend, on.Software.AllReduce = k == 3, k == 4, k == 5
		opts, err := Options{RuntimeNGPUs: ranks}.on(on, batch)
		require.NoError(t, err)
		searchers = append(searchers, newSearcher(step(t, c, batch), batch, on, opts))
	}
	units := []degrees{
		{plan: 24, dp: 4, cp: 1, tp: 3, pp: 2}, {plan: 24, dp: 2, cp: 1, tp: 4, pp: 3}, {plan: 24, dp: 6, cp: 1, tp: 1, pp: 4}, {plan: 12, dp: 1, cp: 1, tp: 3, pp: 4},
		{plan: 24, dp: 2, cp: 2, tp: 1, pp: 6}, {plan: 12, dp: 3, cp: 1, tp: 2, pp: 2}, {plan: 24, dp: 2, cp: 2, tp: 3, pp: 2}, {plan: 2, dp: 1, cp: 1, tp: 1, pp: 2},
	}
	// Its last position is done long before the first, which does not wait for the update of the last.
	requireInterleavedBounded(t, searchers[6], outline{degrees: units[6], chunks: 2}, 3)
	looked := 0
	for looked < plans {
		s, o := searchers[random.IntN(len(searchers))], outline{degrees: units[random.IntN(len(units))], chunks: 1}
		o.zero, o.overlap, o.sequence = random.IntN(4), random.IntN(2) == 0, random.IntN(2) == 0 && o.tp > 1
		if group := 2 * random.IntN(2); o.zero > 0 && group < s.replicas(o) && s.replicas(o)%max(1, group) == 0 && o.dp%max(1, group) == 0 {
			o.group = group
		}
		if orders := s.rankOrders(o.degrees); random.IntN(2) == 0 && len(orders) > 0 {
			o.ranks = orders[random.IntN(len(orders))]
		}
		schedule := []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.ZeroBubble}[random.IntN(3)]
		size := 1 + random.IntN(s.mostSequences(o))
		if random.IntN(3) == 0 && o.pp < 4 {
			o.chunks = 2
			requireInterleavedBounded(t, s, o, size)
		} else {
			requireBounded(t, s, o, size, schedule)
		}
		looked++
	}
	for name, x := range map[string]struct {
		outline
		share float64 // of what the even cut takes that the floor has
	}{
		"what one end hands to the other": {outline{degrees: degrees{plan: 24, dp: 2, cp: 1, tp: 4, pp: 3}, chunks: 1}, 0.85},
		"sums over two nodes":             {outline{degrees: degrees{plan: 24, dp: 4, cp: 1, tp: 3, pp: 2}, chunks: 1}, 0.4},
	} {
		took, floor := requireBounded(t, searchers[0], x.outline, 3, partition.OneFOneB)
		require.GreaterOrEqual(t, float64(floor), x.share*float64(took), name)
	}
}

// TestFloorsOfStreams: where links between nodes are slow, plans with overlap take hardly more than their floors, whatever the
// schedule: most of the time their streams sum and gather.
func TestFloorsOfStreams(t *testing.T) {
	t.Parallel()
	const batch = 48
	c := gpt.Config{
		NLayer: 8, NHead: 12, NEmbd: 192, BlockSize: 64, VocabSize: 960, Bias: true,
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, Float: ir.BF16,
	}
	on := cluster(t, "v100-32g")
	on.InterNode.Bandwidth /= 200
	on.Device.LaunchOverhead, on.Device.Efficiency.Beside = 0, 0
	opts, err := Options{RuntimeNGPUs: 32}.on(on, batch)
	require.NoError(t, err)
	s := newSearcher(step(t, c, batch), batch, on, opts)
	for _, x := range []struct {
		name     string
		degrees  degrees
		sharding sharding
		chunks   int
		schedule partition.Schedule
		size     int     // of a micro-batch
		share    float64 // of what the even cut takes that the floor has
	}{
		{"sums of the last pass", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 0}, 1, partition.OneFOneB, 1, 0.94},
		{"sums of the last pass for weight gradients", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 0}, 1, partition.ZeroBubble, 1, 0.98},
		{"sums between ZeRO groups", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 1, group: 4}, 1, partition.OneFOneB, 1, 0.94},
		{"sums between ZeRO groups in every micro-batch", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 2, group: 4}, 1, partition.GPipe, 1, 0.9},
		{"sums between ZeRO groups that gather", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 3, group: 4}, 1, partition.OneFOneB, 1, 0.89},
		{"gathers", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 3}, 1, partition.OneFOneB, 1, 0.8},
		{"tables of one position", degrees{plan: 8, dp: 8, tp: 1, pp: 1}, sharding{zero: 0}, 1, partition.OneFOneB, 1, 0.98},
		{"tables between ZeRO groups", degrees{plan: 8, dp: 8, tp: 1, pp: 1}, sharding{zero: 2, group: 4}, 1, partition.OneFOneB, 1, 0.97},
		{"passes for weight gradients that reduce", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 2}, 1, partition.ZeroBubble, 1, 0.985},
		{"interleaved sums", degrees{plan: 8, dp: 4, tp: 1, pp: 2}, sharding{zero: 0}, 2, partition.Interleaved, 1, 0.95},
		{"interleaved gathers", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 3}, 2, partition.Interleaved, 1, 0.88},
		{"what tensor-parallel ranks share", degrees{plan: 32, dp: 2, tp: 16, pp: 1}, sharding{zero: 3, sequence: true, split: split{replicate: "attn+mlp"}}, 1, partition.OneFOneB, 1, 0.62},
		{"what ranks share that share the batch", degrees{plan: 32, dp: 2, tp: 16, pp: 1}, sharding{zero: 2, split: split{replicate: "attn+mlp", batch: true}}, 1, partition.OneFOneB, 1, 0.82},
		{"context-parallel ZeRO groups", degrees{plan: 4, dp: 2, cp: 2, tp: 1, pp: 1}, sharding{zero: 1, group: 2}, 1, partition.OneFOneB, 1, 0.99},
		{"new weights", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 1}, 1, partition.OneFOneB, 3, 0.95},
		{"a lone pass for weight gradients", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 2}, 1, partition.ZeroBubble, 3, 0.95},
		{"a lone backward pass", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 2}, 1, partition.OneFOneB, 3, 0.78},
		{"a last backward pass", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 2}, 1, partition.OneFOneB, 2, 0.83},
		{"an interleaved step of one micro-batch", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 2}, 2, partition.Interleaved, 3, 0.88},
		{"an interleaved step of few micro-batches", degrees{plan: 16, dp: 8, tp: 1, pp: 2}, sharding{zero: 2}, 2, partition.Interleaved, 1, 0.93},
	} {
		o := outline{degrees: x.degrees, sharding: x.sharding, chunks: x.chunks}
		o.cp, o.overlap = max(1, o.cp), true
		took, floor := requireBounded(t, s, o, x.size, x.schedule)
		if x.sharding.replicate == "" { // else reductions may be in order, see [workTimes.stream]
			floor, err = s.refined(&pending{outline: o}, x.size, x.schedule, nil)
			require.NoError(t, err)
		}
		require.GreaterOrEqual(t, float64(floor), x.share*float64(took), x.name)
		if x.name == "interleaved sums" { // of steps that are not rehearsed
			require.GreaterOrEqual(t, float64(s.least(&s.passage)), 0.95*float64(took), "%s, by closed forms", x.name)
		}
	}
}

// TestFloorsOfPositions: under ZeRO 3 ranks may sum what they find in their shards of a table of which all sequences look up the same
// rows, in place of gathering it.
func TestFloorsOfPositions(t *testing.T) {
	t.Parallel()
	const batch = 4
	c := tiny(1)
	c.BlockSize, c.VocabSize, c.NEmbd, c.NHead = 512, 65, 16, 2
	on := cluster(t, "h100")
	on.IntraNode.Bandwidth = 50e6
	opts, err := Options{RuntimeNGPUs: 2}.on(on, batch)
	require.NoError(t, err)
	s := newSearcher(step(t, c, batch), batch, on, opts)
	o := outline{degrees: degrees{plan: 2, dp: 2, cp: 1, tp: 1, pp: 1}, sharding: sharding{zero: 3, overlap: true}, chunks: 1}
	requireBounded(t, s, o, 2, partition.OneFOneB)
}

// TestFloorsWaitForTheNorm: positions wait for the norm of all gradients, which with several goes through all of them.
func TestFloorsWaitForTheNorm(t *testing.T) {
	t.Parallel()
	const batch = 16
	c := preset(t, "gpt2")
	c.NLayer, c.Float = 4, ir.BF16
	on := cluster(t, "h100")
	on.IntraNode.Latency *= 1000
	opts, err := Options{RuntimeNGPUs: 8}.on(on, batch)
	require.NoError(t, err)
	s := newSearcher(step(t, c, batch), batch, on, opts)
	for _, x := range []struct {
		pp, zero int     // as of ZeRO stage 1 ranks have shares of gradients, and of the norm
		share    float64 // of what the even cut takes that the floor has
	}{{2, 0, 0.6}, {2, 1, 0.68}, {4, 0, 0.6}, {4, 1, 0.64}} {
		o := outline{degrees: degrees{plan: 8, dp: 8 / x.pp, cp: 1, tp: 1, pp: x.pp}, sharding: sharding{zero: x.zero, overlap: true}, chunks: 1}
		for _, schedule := range []partition.Schedule{partition.OneFOneB, partition.ZeroBubble} {
			took, _ := requireBounded(t, s, o, 2, schedule)
			refined, err := s.refined(&pending{outline: o}, 2, schedule, nil)
			require.NoError(t, err)
			require.GreaterOrEqual(t, float64(refined), x.share*float64(took), "%s under %s", o.text(), schedule)
		}
	}
}

// requireBounded makes sure that no floor of an outline is above what its even cut takes, and returns that time and the largest floor.
func requireBounded(t *testing.T, s *searcher, o outline, b int, schedule partition.Schedule) (time, floor cost.Picoseconds) {
	t.Helper()
	skel, err := s.skeleton(o)
	require.NoError(t, err)
	p := newPipeline(skel, skel.memoryOf(b), b, schedule)
	p.stages = skel.times(b, schedule)
	time = p.time(evenCut(s.graphs.blocks, o.stages(), func(int) extent { return kept }))
	refined, err := s.refined(&pending{outline: o}, b, schedule, nil)
	require.NoError(t, err)
	flowing := s.flowing(&pending{outline: o}, b, schedule, nil)
	require.LessOrEqual(t, refined, time, "all that %s does", o.text())
	require.LessOrEqual(t, flowing, time, "the flow of %s", o.text())
	require.LessOrEqual(t, s.floor(o, s.trunk(o), b, schedule), time)
	require.LessOrEqual(t, s.flowing(&pending{outline: s.anywhere(o)}, b, schedule, nil), time, "the flow of %s anywhere", o.text())
	return time, max(refined, flowing)
}

// TestWaitingPositionsAreNotDelayed: with interleaving a position waits between its chunks, and reduces gradients meanwhile. So these
// may delay none of its work, and a chain that comes from the last stage to its update does not have what they would delay.
func TestWaitingPositionsAreNotDelayed(t *testing.T) {
	const batch = 100
	c := preset(t, "gpt2-xl")
	c.Float = ir.BF16
	v100 := cluster(t, "v100")
	opts, err := Options{RuntimeNGPUs: 96, TPPieces: 2}.on(v100, batch)
	require.NoError(t, err)
	s := newSearcher(step(t, c, batch), batch, v100, opts)
	for _, chunks := range []int{2, 24} {
		o := outline{degrees: degrees{plan: 8, dp: 2, cp: 1, tp: 2, pp: 2}, sharding: sharding{overlap: true, pieces: 2, split: split{replicate: "attn+mlp", batch: true}}, chunks: chunks}
		requireBounded(t, s, o, 5, partition.Interleaved)
	}
}

// TestHeadAddsItsOwnGradients: with overlap the gradients of the head are added up while blocks compute that come after it. It is the
// last stage that does so, not the first, which here has most to do.
func TestHeadAddsItsOwnGradients(t *testing.T) {
	const batch = 11
	model := tiny(3)
	model.NHead, model.NKVHead, model.NEmbd, model.VocabSize = 4, 2, 40, 41
	model.BlockSize, model.Position, model.TieEmbeddings, model.Dropout = 14, gpt.RoPE, false, 0
	adam := adamW()
	adam.GradClip = 0 // so that the first stage waits for nothing
	g, err := gpt.TrainStep(model, adam, batch, model.BlockSize)
	require.NoError(t, err)
	v100 := cluster(t, "v100")
	v100.Device.Efficiency.Beside = 0
	opts, err := Options{RuntimeNGPUs: 4}.on(v100, batch)
	require.NoError(t, err)
	s := newSearcher(g, batch, v100, opts)
	o := outline{degrees: degrees{plan: 2, dp: 1, cp: 1, tp: 1, pp: 2}, sharding: sharding{zero: 2, overlap: true}, chunks: 1}
	requireBounded(t, s, o, 1, partition.ZeroBubble)
}

// TestTermsOfATableAreNotCast: two stages use a table that is tied. In a step of one micro-batch each has one term of its gradient, which
// it does not cast to add it up, as one stage that uses it twice does. Synchronizations of the host are all that counts here, and updates have none.
func TestTermsOfATableAreNotCast(t *testing.T) {
	model := tiny(4)
	model.Float = ir.BF16
	g, on := step(t, model, 2), cluster(t, "h100")
	on.Software.Sync = 1e-4
	opts, err := Options{RuntimeNGPUs: 2}.on(on, 2)
	require.NoError(t, err)
	s := newSearcher(g, 2, on, opts)
	o := outline{degrees: degrees{plan: 2, dp: 1, cp: 1, tp: 1, pp: 2}, chunks: 2}
	requireInterleavedBounded(t, s, o, 2)
	for _, schedule := range []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.ZeroBubble} {
		o.chunks = 1
		requireBounded(t, s, o, 2, schedule)
	}
}

// TestTermsOfTheNormAreWhole: if tensor-parallel ranks hold blocks whole and split only table and head, one stage for all of them makes the
// terms of the norm partial that blocks have, as those of table and head are. A stage with blocks alone does not.
func TestTermsOfTheNormAreWhole(t *testing.T) {
	adam := adamW()
	adam.GradClip = 0 // so that nothing waits for the norm
	model := llama(tiny(8))
	g, err := gpt.TrainStep(model, adam, 2, model.BlockSize)
	require.NoError(t, err)
	on := cluster(t, "h100")
	on.Device.LaunchOverhead, on.IntraNode.Latency = 1e-4, 0
	opts, err := Options{RuntimeNGPUs: 4}.on(on, 2)
	require.NoError(t, err)
	s := newSearcher(g, 2, on, opts)
	o := outline{degrees: degrees{plan: 4, dp: 1, cp: 1, tp: 2, pp: 2}, sharding: sharding{split: split{replicate: "attn+mlp", batch: true}}, chunks: 2}
	requireInterleavedBounded(t, s, o, 2)
}

// requireInterleavedBounded requires that the floor of an interleaved pipeline without recomputation is no more than it takes.
func requireInterleavedBounded(t *testing.T, s *searcher, o outline, size int) {
	t.Helper()
	skel, err := s.skeleton(o)
	require.NoError(t, err)
	p := newPipeline(skel, skel.memoryOf(size), size, partition.Interleaved)
	p.stages = skel.times(size, partition.Interleaved)
	refined, err := s.refined(&pending{outline: o}, size, partition.Interleaved, nil)
	require.NoError(t, err)
	time := p.time(p.interleavedCut("", make([]int, o.pp)))
	require.LessOrEqual(t, refined, time, "all that %s does", o.text())
	for _, o := range []outline{o, s.anywhere(o)} {
		require.LessOrEqual(t, s.flowing(&pending{outline: o}, size, partition.Interleaved, nil), time, "the flow of %s", o.text())
	}
}

// TestPartsInACacheAreBounded: parts of products may lie in a cache that is too small for all of one.
func TestPartsInACacheAreBounded(t *testing.T) {
	const batch = 4
	model := tiny(2)
	model.NHead, model.NEmbd, model.BlockSize, model.Dropout = 4, 32, 16, 0
	c := cluster(t, "h100")
	c.Device.MemoryBandwidth, c.Device.LaunchOverhead = 1e8, 1e-9
	for _, l := range []*cost.Link{&c.IntraNode, &c.InterNode} {
		l.Bandwidth, l.Latency = 1e14, 1e-12
	}
	d := degrees{plan: 4, dp: 1, cp: 1, tp: 4, pp: 1}
	for size := int64(1 << 12); size < 1<<17; size += 1 << 11 {
		c.Device.Cache = &cost.Cache{Memory: size, Bandwidth: 2e13, Remote: 5e12}
		opts, err := Options{RuntimeNGPUs: d.plan, OverlapTP: "on", TPPieces: 4}.on(c, batch)
		require.NoError(t, err)
		o := outline{degrees: d, chunks: 1, sharding: sharding{sequence: true, pieces: 4, split: split{replicate: "attn"}}}
		requireBounded(t, newSearcher(step(t, model, batch), batch, c, opts), o, batch, partition.ZeroBubble)
	}
}

// TestSharesOfBuckets: the time of a bucket depends on the number of data-parallel ranks if one of its collectives works on
// what they share, whichever it is.
func TestSharesOfBuckets(t *testing.T) {
	mesh := ir.Mesh{Axes: []ir.Axis{{Name: partition.AxisDP, Size: 4}, {Name: partition.AxisTP, Size: 2}, {Name: partition.AxisMB, Size: 8, Time: true}}}
	gather := func(dp ir.Placement) codegen.Instr {
		v := &ir.Value{Type: ir.Type{DType: ir.F32, Shape: []int{16, 16}}, Spec: ir.ShardSpec{dp, ir.ShardOn(1)}}
		r := &ir.Value{Type: v.Type, Spec: ir.ShardSpec{dp}}
		return codegen.Instr{Node: &ir.Node{Op: ir.OpAllGather, Attr: ir.CommAttr{Axis: partition.AxisTP, Dim: 1}, Args: []*ir.Value{v}, Results: []*ir.Value{r}}}
	}
	whole, share := gather(ir.Placement{}), gather(ir.ShardOn(0))
	w := &work{mesh: mesh}
	for _, x := range []struct {
		bucket []codegen.Instr
		shared bool
	}{
		{[]codegen.Instr{whole}, false},
		{[]codegen.Instr{share}, true},
		{[]codegen.Instr{whole, share}, true},
		{[]codegen.Instr{share, whole}, true},
		{[]codegen.Instr{whole, whole}, false},
	} {
		ofBatch, shared := w.shares(x.bucket)
		require.False(t, ofBatch)
		require.Equal(t, x.shared, shared)
	}
}
