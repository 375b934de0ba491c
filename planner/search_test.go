package planner

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

func BenchmarkGPT2XL(b *testing.B) {
	c, err := gpt.Preset("gpt2-xl")
	require.NoError(b, err)
	g := step(b, c, 512)
	cl := cluster(b, "a100-80g")
	for b.Loop() {
		res, err := Search(g, 512, cl, Options{PlanNGPUs: 64, TopK: 3})
		require.NoError(b, err)
		b.ReportMetric(float64(res.Stats.PlansConsidered), "plans")
		b.Logf("%+v %+v %+v", res.Plan, res.Prediction, res.Stats)
		for _, a := range res.Alternatives {
			b.Logf("%+v %+v", a.Plan, a.Prediction)
		}
	}
}

// stage is a ZeRO stage for options.
func stage(n int) *int { return &n }

func TestOptions(t *testing.T) {
	g := step(t, tiny(3), 7)
	defer keepDrafts(g)()
	h100 := cluster(t, "h100")
	for _, tt := range []struct {
		opts Options
		want string
	}{
		{Options{PlanNGPUs: 2, CP: 2, Policy: DP}, "cp: is 2, but policy dp has cp 1"},
		{Options{PlanNGPUs: 6, CP: 4}, "plan-ngpus: 6 is not dp auto x cp 4 x tp auto x pp auto"},
		{Options{PlanNGPUs: 8, DP: 2, CP: 2, TP: 1, PP: 1}, "plan-ngpus: 8 is not dp 2 x cp 2 x tp 1 x pp 1"},
		{Options{PlanNGPUs: 17, CP: 17}, "cp: 17 ranks cannot share sequences of 33 tokens: each takes an early and a late part, so they need 34; use cp 16 or less"},
		{Options{PlanNGPUs: 2, ZeRO: stage(4)}, "zero: is 4, must be between 0 and 3"},
		{Options{PlanNGPUs: 2, ZeRO: stage(-1)}, "zero: is -1, must be between 0 and 3"},
		{Options{PlanNGPUs: 1, ZeRO: stage(2)}, "zero: stage 2 needs at least 2 data-parallel ranks; no dp x tp x pp of 1 devices in 1 has them with 3 blocks"},
		{Options{PlanNGPUs: 2, TP: 2, ZeRO: stage(1)}, "zero: stage 1 needs at least 2 data-parallel ranks"},
		{Options{PlanNGPUs: 2, ZeRO: stage(2), Policy: FSDP}, "zero: is 2, but policy fsdp has zero 3"},
		{Options{PlanNGPUs: 2, ZeRO: stage(2), Policy: DP}, "zero: is 2, but policy dp has zero 0"},
		{Options{PlanNGPUs: 2, PP: 2, Policy: FSDP}, "pp: is 2, but policy fsdp has pp 1"},
		{Options{PlanNGPUs: 1, Policy: FSDP}, "zero: stage 3 needs at least 2 data-parallel ranks"},
		{Options{PlanNGPUs: 2, Schedule: "interleaved", Interleave: 1}, "interleave: is 1, but schedule interleaved needs at least 2 stages per rank"},
		{Options{PlanNGPUs: 2, Schedule: "zero-bubble", Interleave: 2}, "interleave: is 2, but schedule zero-bubble runs one stage per rank"},
		{Options{PlanNGPUs: 2, Interleave: 2, PP: 1}, "pp: is 1, but schedule interleaved needs at least 2"},
		{Options{PlanNGPUs: 2, Interleave: 2}, "interleave: 2 chunks per rank need a pipeline of 2 ranks or more with a block for each chunk; no dp x tp x pp of 2 devices in 2 has that with 3 blocks"},
		{Options{PlanNGPUs: 2, Offload: "params", Overlap: "on"}, "overlap: is on, but offload is params"},
		{Options{PlanNGPUs: 3, DP: 3, MicroBatch: 2, ZeRO: stage(1), Overlap: "on"}, "micro-batch: is 2, of which data-parallel ranks run different numbers for a global batch of 7, and overlap is on"},
		{Options{PlanNGPUs: 3, TP: 3, MicroBatch: 2, BatchParallel: "on"}, "micro-batch: is 2, but all plans that are left share the sequences of a micro-batch between more tensor-parallel ranks"},
		{Options{PlanNGPUs: 2, TP: 1, TPPieces: 2}, "tp-pieces: is 2, but tp is 1"},
		{Options{PlanNGPUs: 2, TPPieces: 17}, "tp-pieces: is 17, want 1 to 16"},
		{Options{PlanNGPUs: 2, TP: 1, OverlapTP: "on"}, "overlap-tp: is on, but tp is 1"},
		{Options{PlanNGPUs: 2, Schedule: "zero-bubble", OverlapTP: "on"}, "overlap-tp: is on, but schedule zero-bubble"},
		{Options{PlanNGPUs: 2, Schedule: "zero-bubble", Policy: Megatron}, "schedule: is zero-bubble, but policy megatron has 1f1b or interleaved"},
		{Options{RuntimeNGPUs: 8191}, "plan-ngpus: no dp x tp x pp of auto devices in 8191 suits 3 blocks and a global batch of 7, which leave so much to tp that no parameter can be split over 8191 ranks; use fewer devices"},
		{Options{PlanNGPUs: 2, SequenceParallel: "on", TP: 1}, "sequence-parallel: is on, but tp is 1"},
		{Options{PlanNGPUs: 2, SequenceParallel: "on", DP: 2}, "sequence-parallel: needs tp of at least 2; no dp 2 x tp x pp of 2 devices in 2 has it"},
		{Options{PlanNGPUs: 1, OverlapTP: "on"}, "overlap-tp: is on, but tp is 1"},
		{Options{PlanNGPUs: 4, DP: 2, PP: 2, TPPieces: 2}, "tp-pieces: is 2, but tp is 1"},
		{Options{RuntimeNGPUs: 1, OverlapP2P: "on"}, "overlap-p2p: is on, but pp is 1"},
		{Options{DP: 1 << 20, TP: 1 << 20, PP: 1 << 20}, "plan-ngpus: is at most 1048576, less than dp 1048576 x cp 1 x tp 1048576 x pp 1048576"},
		{Options{PlanNGPUs: 4, DP: 1 << 20, CP: 1 << 20, TP: 1 << 20, PP: 1 << 20}, "plan-ngpus: 4 is not dp 1048576 x"},
		{Options{PlanNGPUs: 2, SequenceParallel: "yes"}, `sequence-parallel: is "yes", must be one of on off`},
		{Options{PlanNGPUs: 2, Offload: "all"}, `offload: is "all", must be one of none optimizer params`},
		{Options{PlanNGPUs: 2, Policy: "best"}, `policy: is "best", must be one of dp fsdp megatron autodist`},
		{Options{PlanNGPUs: 2, Schedule: "g"}, `schedule: is "g", must be one of gpipe`},
		{Options{}, "plan-ngpus: auto needs runtime-ngpus"},
		{Options{PlanNGPUs: 4, RuntimeNGPUs: 6}, "runtime-ngpus: 6 is not a multiple of plan-ngpus 4"},
		{Options{PlanNGPUs: 6, DP: 4}, "plan-ngpus: 6 is not dp 4 x cp auto x tp auto x pp auto"},
		{Options{PlanNGPUs: 8, DP: 2, TP: 2, PP: 3}, "plan-ngpus: 8 is not dp 2 x cp auto x tp 2 x pp 3"},
		{Options{PlanNGPUs: 8, DP: 8}, "dp: 8 in 1 units are more data-parallel ranks than the global batch has sequences, 7; use dp 7 or less"},
		{Options{PlanNGPUs: -1}, "plan-ngpus: is -1"},
		{Options{PlanNGPUs: 2, MicroBatch: 8}, "micro-batch: 8 is more than the global batch 7"},
		{Options{PlanNGPUs: 2, Policy: DP, TP: 2}, "tp: is 2, but policy dp has tp 1"},
		{Options{PlanNGPUs: 1, Pins: []partition.Placement{{Match: "("}}}, "pin[0].match"},
		{Options{PlanNGPUs: 2, Pins: []partition.Placement{{Match: `.*wte\.weight`, Spec: "[tp,_]"}, {Match: `c_fc\.weight`, Spec: "[_,_]"}}},
			`pin[1].match: "c_fc\\.weight" is the name of no parameter and no op; it matches a part of h.0.mlp.c_fc.weight, want an expression of the whole name`},
		{Options{PlanNGPUs: 1, Pins: []partition.Placement{{Match: "a|none", Spec: "[_]"}}},
			`pin[0].match: "a|none" is the name of no parameter and no op; it matches a part of `},
		{Options{PlanNGPUs: 1, Pins: []partition.Placement{{Match: "ids"}}}, `pin[0].match: "ids" is the name of no parameter and no op; names look like h.0.attn.c_attn.weight`},
		{Options{PlanNGPUs: 2, TP: 2, Pins: []partition.Placement{{Match: "h.0.mlp/gelu", Spec: "[_,tp]"}}}, "pin[0].placement: h.0.mlp/gelu is 3-dimensional, its spec [_,tp] is 2-dimensional"},
		{Options{PlanNGPUs: 2, TP: 2, Pins: []partition.Placement{{Match: `h\.[0-9]+\.mlp\.c_fc\.weight`, Spec: "[_,_]"}, {Match: `h\.0\.mlp\.c_fc\.weight`, Spec: "[tp,_]"}}},
			"pin[1].placement: is [tp,_], but earlier pins, which come first, place all that it matches otherwise: h.0.mlp.c_fc.weight is [_,_] by pin[0]"},
		{Options{PlanNGPUs: 2, TP: 2, Pins: []partition.Placement{{Match: `wte\.weight`, Spec: "[dp,_]"}}}, "pin[0].placement: is [dp,_], want _ for a dimension that is whole and tp for one that is split"},
		{Options{PlanNGPUs: 2, Pins: []partition.Placement{{Match: `wte\.weight`, Spec: "[tp,tp]"}}}, "pin[0].placement: is [tp,tp], which names tp twice: an axis splits one dimension"},
		{Options{PlanNGPUs: 2, Pins: []partition.Placement{{Match: `wte\.weight`, Spec: "[tp]"}}}, "wte.weight is 2-dimensional, its spec [tp] is 1-dimensional"},
	} {
		_, err := Search(g, 7, h100, tt.opts)
		require.ErrorContains(t, err, tt.want, "%+v", tt.opts)
	}

	for _, tt := range []struct {
		opts  Options
		check func(p *partition.Plan) bool
	}{
		{Options{DP: 1, TP: 2, PP: 3}, func(p *partition.Plan) bool { return p.PlanNGPUs == 6 && p.TP == 2 && p.PP() == 3 }},
		{Options{PlanNGPUs: 2, RuntimeNGPUs: 6}, func(p *partition.Plan) bool { return p.Units() == 3 }},
		{Options{PlanNGPUs: 4, CP: 2}, func(p *partition.Plan) bool { return p.CP == 2 && p.DP*p.TP*p.PP() == 2 }},
		{Options{DP: 1, CP: 3, TP: 1, PP: 1}, func(p *partition.Plan) bool { return p.PlanNGPUs == 3 && p.CP == 3 }},
		{Options{PlanNGPUs: 3, DP: 1, CP: 1}, func(p *partition.Plan) bool { return p.CP == 0 }},
		{Options{RuntimeNGPUs: 4, PP: 2}, func(p *partition.Plan) bool { return p.PP() == 2 && 4%p.PlanNGPUs == 0 }},
		{Options{PlanNGPUs: 4, Policy: DP}, func(p *partition.Plan) bool { return p.DP == 4 && p.ZeRO == 0 }},
		{Options{PlanNGPUs: 4, Policy: FSDP}, func(p *partition.Plan) bool { return p.DP == 4 && p.ZeRO == 3 }},
		{Options{PlanNGPUs: 4, ZeRO: stage(2)}, func(p *partition.Plan) bool { return p.DP > 1 && p.ZeRO == 2 }},
		{Options{PlanNGPUs: 2, RuntimeNGPUs: 4, TP: 2, ZeRO: stage(1)}, func(p *partition.Plan) bool { return p.DP == 1 && p.ZeRO == 1 }},
		{Options{PlanNGPUs: 4, SequenceParallel: "on"}, func(p *partition.Plan) bool { return p.TP > 1 && p.SequenceParallel }},
		{Options{PlanNGPUs: 4, TP: 2, SequenceParallel: "off"}, func(p *partition.Plan) bool { return !p.SequenceParallel }},
		{Options{PlanNGPUs: 1, Recompute: "selective"}, func(p *partition.Plan) bool { return p.Stages[0].Selective == 3 }},
		{Options{PlanNGPUs: 3, PP: 3, Schedule: "gpipe", MicroBatch: 2}, func(p *partition.Plan) bool { return p.Schedule == "gpipe" && p.MicroBatch == 2 }},
		{Options{PlanNGPUs: 3, PP: 3, Policy: Megatron}, func(p *partition.Plan) bool {
			return p.Schedule == "1f1b" && p.Stages[0].Last == 1 && p.Stages[1].Last == 2
		}},
		{Options{PlanNGPUs: 1, Recompute: "pointwise"}, func(p *partition.Plan) bool { return p.Stages[0].Pointwise == 3 }},
		{Options{PlanNGPUs: 1, Recompute: "full"}, func(p *partition.Plan) bool { return p.Stages[0].Recompute == 3 }},
		{Options{PlanNGPUs: 2, TP: 2, Pins: []partition.Placement{{Match: `wte\.weight`, Spec: "[_,tp]"}}},
			func(p *partition.Plan) bool { return p.Placements[0].Spec == "[_,tp]" }},
	} {
		res, err := Search(g, 7, h100, tt.opts)
		require.NoError(t, err, "%+v", tt.opts)
		require.True(t, tt.check(res.Plan), "%+v: %+v", tt.opts, res.Plan)
		again, err := Predict(g, 7, h100, res.Plan, nil)
		require.NoError(t, err)
		require.Equal(t, res.Prediction, again)
	}
}

// A lower limit never gives a faster plan; below some limit there is none. On the
// way data parallelism gives way to recomputation and to cutting the model.
func TestLoweringTheLimit(t *testing.T) {
	g := step(t, tiny(4), 8)
	defer keepDrafts(g)()
	eval, err := gpt.EvalStep(tiny(4), 8, 33)
	require.NoError(t, err)
	c := cluster(t, "a100-80g")
	free, err := Search(g, 8, c, Options{PlanNGPUs: 4, Eval: eval})
	require.NoError(t, err)
	before, limit := free.Prediction.Step, slices.Max(free.Prediction.PeakBytes)
	seen := map[string]bool{}
	for steps := 0; ; steps++ {
		require.Less(t, steps, 100)
		res, err := Search(g, 8, c, Options{PlanNGPUs: 4, MemoryLimit: limit, Eval: eval, Offload: "none"})
		if err != nil {
			var bad *InfeasibleError
			require.ErrorAs(t, err, &bad)
			require.Greater(t, bad.Needs, limit)
			break
		}
		peak := slices.Max(res.Prediction.PeakBytes)
		require.LessOrEqual(t, peak, limit)
		require.GreaterOrEqual(t, res.Prediction.Step, before)
		before, limit = res.Prediction.Step, min(peak-1, limit*8/10)
		if res.Plan.DP < 4 {
			seen["cut"] = true
		}
		for _, s := range res.Plan.Stages {
			if s.Recompute > 0 {
				seen["recompute"] = true
			}
		}
	}
	require.Equal(t, map[string]bool{"cut": true, "recompute": true}, seen)
}

// A limit above what devices have gives them no more, and one below it is as if they had no more.
func TestLimitAboveTheDevice(t *testing.T) {
	g, c := step(t, tiny(4), 8), cluster(t, "a100-80g")
	free, err := Search(g, 8, c, Options{PlanNGPUs: 4, Offload: "none"})
	require.NoError(t, err)
	limit := slices.Max(free.Prediction.PeakBytes) - 1
	short, err := Search(g, 8, c, Options{PlanNGPUs: 4, Offload: "none", MemoryLimit: limit})
	require.NoError(t, err)
	require.NotEqual(t, free.Plan, short.Plan)
	c.Device.Memory = limit + c.Device.Reserve
	for _, more := range []int64{0, limit + 1, 1 << 40} {
		res, err := Search(g, 8, c, Options{PlanNGPUs: 4, Offload: "none", MemoryLimit: more})
		require.NoError(t, err)
		require.Equal(t, short.Plan, res.Plan, "%d", more)
		require.Equal(t, short.Prediction, res.Prediction, "%d", more)
	}
}

// Alternatives have other degrees and come in order.
func TestAlternativesAreWorse(t *testing.T) {
	res, err := Search(step(t, tiny(4), 8), 8, cluster(t, "cpu"), Options{PlanNGPUs: 4, TopK: 3})
	require.NoError(t, err)
	require.Len(t, res.Alternatives, 3)
	last := res.Prediction.Step
	for _, a := range res.Alternatives {
		require.GreaterOrEqual(t, a.Prediction.Step, last)
		last = a.Prediction.Step
		require.NotEqual(t, [2]int{res.Plan.TP, res.Plan.PP()}, [2]int{a.Plan.TP, a.Plan.PP()})
	}
}

// Alternatives are the best plans of their degrees, where the options leave fewer of those than are asked
// for and memory is short, too.
func TestAlternativesAreTheBestOfTheirDegrees(t *testing.T) {
	g, h100 := step(t, tiny(4), 8), cluster(t, "h100")
	defer keepDrafts(g)()
	opts := Options{PlanNGPUs: 8, CP: 1, TP: 2, TopK: 9}
	for _, opts.MemoryLimit = range []int64{0, 250_000} {
		res, err := Search(g, 8, h100, opts)
		require.NoError(t, err)
		require.Len(t, res.Alternatives, 2) // all that there are
		for _, a := range append([]Alternative{{res.Plan, res.Prediction}}, res.Alternatives...) {
			only := opts
			only.TopK, only.DP, only.PP = 0, a.Plan.DP, a.Plan.PP()
			best, err := Search(g, 8, h100, only)
			require.NoError(t, err)
			require.Equal(t, best.Plan, a.Plan)
			require.Equal(t, best.Prediction, a.Prediction)
		}
	}
}

// Where the options leave fewer degrees than are asked for, of each no more is looked at than where they
// leave more: 261 plans and groups of plans here, and 7,789 when nothing but the number of
// degrees limited what is of interest.
func TestFewDegreesAreNoMoreWork(t *testing.T) {
	few := benchCase{"", preset(t, "gpt2"), 8, 16, Options{PlanNGPUs: 8, TP: 2, TopK: 5}}
	res, err := few.search(few.trace(t), cluster(t, "h100"))
	require.NoError(t, err)
	require.Len(t, res.Alternatives, 2)
	require.Less(t, res.Stats.PlansConsidered, 1000)
}

// TestSoftwareOverlapsByItself: plans for software that overlaps tensor parallelism, which its prices have, do not do so again.
func TestSoftwareOverlapsByItself(t *testing.T) {
	g, c := step(t, tiny(2), 4), cluster(t, "h100")
	var err error
	c.Software, err = cost.LoadSoftware("fused")
	require.NoError(t, err)
	found, err := Search(g, 4, c, Options{PlanNGPUs: 2, RuntimeNGPUs: 2, TP: 2})
	require.NoError(t, err)
	require.False(t, found.Plan.OverlapTP)
	require.Zero(t, found.Plan.TPPieces)
	_, err = Search(g, 4, c, Options{PlanNGPUs: 2, RuntimeNGPUs: 2, OverlapTP: "on"})
	require.EqualError(t, err, "planner: overlap-tp: is on, but fused, the software of cluster h100, overlaps tensor parallelism by itself, which its prices have")
}

// TestGroupsOfNodes: ZeRO shards in the largest groups of which a node consists, so that none lies in two; the checker agrees.
func TestGroupsOfNodes(t *testing.T) {
	for _, c := range []struct{ perNode, cp, tp, replicas, group int }{
		{8, 1, 1, 12, 4}, // and not 6, of which the second group would lie in two nodes
		{8, 1, 1, 24, 8},
		{8, 1, 2, 6, 2},
		{8, 2, 2, 6, 2},
		{8, 1, 1, 6, 3}, // in one node any
		{8, 1, 3, 6, 2}, // no group fills a node: the largest that has room in one
		{8, 1, 3, 5, 0},
		{8, 2, 4, 4, 0},
		{0, 1, 1, 12, 6}, // ranks share a device
	} {
		on := &cost.Cluster{DevicesPerNode: c.perNode}
		on.Device.Shared = c.perNode == 0
		want := []int{0}
		if c.group > 0 {
			want = append(want, c.group)
		}
		d := degrees{plan: c.cp * c.tp, dp: 1, cp: c.cp, tp: c.tp, pp: 1}
		opts := Options{RuntimeNGPUs: c.cp * c.tp * c.replicas}
		require.Equal(t, want, zeroGroups(opts, d, 1, c.replicas, 1, on), "%+v", c)
		require.Equal(t, want, (&declared{opts: opts, cluster: on}).groups(d, 1, 1), "%+v", c)
	}
}
