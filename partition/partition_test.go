package partition_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/partition/partitiontest"
)

const batch = 7

func trainGraph(t testing.TB, layers int) *ir.Graph {
	cfg := gpt.Config{
		NLayer: layers, NHead: 3, NKVHead: 3, NEmbd: 24, BlockSize: 33, VocabSize: 65, Dropout: 0.2, Bias: true,
		Activation: "gelu", Norm: "layernorm", Position: "learned", TieEmbeddings: true,
	}
	g, err := gpt.TrainStep(cfg, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, batch, 33)
	require.NoError(t, err)
	return g
}

func newPlan(dp, tp int, stages ...partition.Stage) *partition.Plan {
	n := dp * tp * len(stages)
	return &partition.Plan{
		PlanNGPUs: n, RuntimeNGPUs: n, DP: dp, TP: tp, MicroBatch: 2, Schedule: partition.GPipe, Stages: stages, Placements: partitiontest.Megatron(),
	}
}

// TestMegatronCollectives: the placement of the parameters alone yields the two forward and two backward
// all-reduces per block of Shoeybi et al. 2019, and one gradient all-reduce per parameter.
func TestMegatronCollectives(t *testing.T) {
	g, err := partition.Apply(trainGraph(t, 2), newPlan(2, 2, partition.Stage{First: 0, Last: 2}), batch)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	count := map[string]int{}
	params := 0
	for _, n := range g.Nodes {
		if attr, ok := n.Attr.(ir.CommAttr); ok && n.Op.Class() == ir.Comm {
			count[n.Op.String()+" "+attr.Axis+" "+n.Phase.String()+" "+n.Block()]++
		}
		if n.Op == ir.OpAdamW {
			params++
		}
	}
	for _, block := range []string{"h.0", "h.1"} {
		require.Equal(t, 2, count["all_reduce tp fwd "+block])
		require.Equal(t, 2, count["all_reduce tp bwd "+block])
	}
	require.Equal(t, 4, count["all_reduce tp fwd "], "embedding, max, sum of exponentials, target logit")
	require.Equal(t, 1, count["all_reduce tp bwd "], "gradient of the head's input")
	sync := count["all_reduce dp upd "] + count["all_reduce dp upd h.0"] + count["all_reduce dp upd h.1"]
	require.Equal(t, params+1, sync, "every gradient once, and the loss")
	require.Equal(t, 1, count["all_reduce tp upd "], "one global norm")
	for key := range count {
		require.False(t, strings.HasPrefix(key, "all_gather") || strings.HasPrefix(key, "all_to_all"), key)
	}
}

func TestApplyLeavesTheGraphAlone(t *testing.T) {
	g := trainGraph(t, 2)
	before := g.String()
	for range 2 {
		_, err := partition.Apply(g, newPlan(2, 2, partition.Stage{First: 0, Last: 1, Recompute: 1}, partition.Stage{First: 1, Last: 2}), batch)
		require.NoError(t, err)
		require.Equal(t, before, g.String())
	}
}

// TestSequenceParallelCollectives: an all-gather into each tensor-parallel region and a reduce-scatter out of
// it, twice per block and pass; the inputs gathered again for the weight gradients; and the gradients of norms
// summed (Korthikanti et al. 2022, figure 5).
func TestSequenceParallelCollectives(t *testing.T) {
	p := newPlan(1, 2, partition.Stage{First: 0, Last: 2})
	p.SequenceParallel = true
	g, err := partition.Apply(trainGraph(t, 2), p, batch)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	count := map[string]int{}
	for _, n := range g.Nodes {
		if n.Op.Class() == ir.Comm && n.Op != ir.OpAccumulate && n.Block() == "h.1" && len(n.Results[0].Type.Shape) == 3 {
			count[n.Op.String()+" "+n.Phase.String()]++
		}
		if n.Op == ir.OpAllReduce && n.Block() == "h.1" {
			require.Len(t, n.Results[0].Type.Shape, 1, "%s: only gradients of norms and biases are summed", n.Name)
		}
	}
	require.Equal(t, map[string]int{
		"all_gather fwd": 2, "reduce_scatter fwd": 2, "all_gather bwd": 4, "reduce_scatter bwd": 2,
	}, count)
}

// TestZeROCollectives: the collectives of each ZeRO stage follow from the placements.
func TestZeROCollectives(t *testing.T) {
	for stage, want := range []string{
		"all_reduce upd",
		"all_gather upd, reduce_scatter upd",
		"all_gather upd, reduce_scatter bwd",
		"all_gather bwd, all_gather fwd, reduce_scatter bwd",
	} {
		p := newPlan(2, 1, partition.Stage{First: 0, Last: 2})
		p.ZeRO = stage
		g, err := partition.Apply(trainGraph(t, 2), p, batch)
		require.NoError(t, err)
		require.NoError(t, g.Verify())
		kinds := map[string]bool{}
		for _, n := range g.Nodes {
			if attr, ok := n.Attr.(ir.CommAttr); ok && attr.Axis == partition.AxisDP && n.Op != ir.OpSlice && n.Block() != "" {
				kinds[n.Op.String()+" "+n.Phase.String()] = true
			}
		}
		require.Equal(t, want, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "), "stage %d", stage)
	}
}

// TestGroupCollectives: at every ZeRO stage gradients are scattered within a group and then summed over its
// copies; parameters are gathered within the group.
func TestGroupCollectives(t *testing.T) {
	for stage, want := range []string{
		1: "all_gather dp upd, all_reduce rep upd, reduce_scatter dp upd",
		2: "all_gather dp upd, all_reduce rep upd, reduce_scatter dp bwd",
		3: "all_gather dp bwd, all_gather dp fwd, all_reduce rep upd, reduce_scatter dp bwd",
	} {
		if stage == 0 {
			continue
		}
		p := newPlan(4, 1, partition.Stage{First: 0, Last: 2})
		p.ZeRO, p.ZeROGroup = stage, 2
		g, err := partition.Apply(trainGraph(t, 2), p, batch)
		require.NoError(t, err)
		require.NoError(t, g.Verify())
		require.Equal(t, "mesh(rep=2, dp=2, mb=1/2t, tp=1)", g.Mesh.String())
		kinds := map[string]bool{}
		for _, n := range g.Nodes {
			if attr, ok := n.Attr.(ir.CommAttr); ok && attr.Axis != partition.AxisMB && n.Op != ir.OpSlice && n.Block() != "" {
				kinds[fmt.Sprint(n.Op, " ", attr.Axis, " ", n.Phase)] = true
				if attr.Axis == partition.AxisRep {
					require.Equal(t, ir.Shard, n.Args[0].Spec[1].Kind, "%s sums no more than a shard", n.Name)
				}
			}
		}
		require.Equal(t, want, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "), "stage %d", stage)
	}
}

// TestTiedTable: each stage that holds the table sums the terms of both stages and updates its copy; the norm
// counts the table once.
func TestTiedTable(t *testing.T) {
	g, err := partition.Apply(trainGraph(t, 3), newPlan(1, 1,
		partition.Stage{First: 0, Last: 1}, partition.Stage{First: 1, Last: 2}, partition.Stage{First: 2, Last: 3}), batch)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	for _, name := range []string{"wte.weight@grad", "wte.weight@grad@s2"} {
		require.Len(t, g.Find(name).Args, 2, name)
	}
	require.NotNil(t, g.Find("wte.weight/adamw@s2"))
	require.NotNil(t, g.Find("wte.weight/sum_squares"))
	require.Nil(t, g.Find("wte.weight/sum_squares@s2"))
	require.Nil(t, g.Find("wte.weight@s1"))
	require.Equal(t, "wte.weight", partition.BaseName("wte.weight@s2"))
	require.Equal(t, "wte.weight@send2", partition.BaseName("wte.weight@send2"))
}

// TestGradientsOfTablesCross: two stages with a tied table each send their gradient of it before they receive the other one.
func TestGradientsOfTablesCross(t *testing.T) {
	g, err := partition.Apply(trainGraph(t, 3), newPlan(2, 1, partition.Stage{First: 0, Last: 1}, partition.Stage{First: 1, Last: 2}, partition.Stage{First: 2, Last: 3}), batch)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	table := g.Find("wte.weight").Results[0].Type
	sent := map[int]bool{}
	received := 0
	for _, n := range g.Nodes {
		switch {
		case n.Phase != ir.Update || len(n.Results) != 1 || !n.Results[0].Type.Equal(table):
		case n.Op == ir.OpSend:
			sent[n.Stage] = true
		case n.Op == ir.OpRecv:
			require.True(t, sent[n.Stage], n.Name)
			received++
		}
	}
	require.Equal(t, 2, received)
}

// TestNewWeightsAreRoundedAtOnce: each new master copy is rounded before the next one is made, on every stage
// that has the weight. Otherwise all master copies fetched from the host would be on the device at the same
// time.
func TestNewWeightsAreRoundedAtOnce(t *testing.T) {
	cfg := gpt.Config{
		NLayer: 3, NHead: 3, NKVHead: 3, NEmbd: 24, BlockSize: 33, VocabSize: 65, Activation: "gelu", Norm: "layernorm", Position: "learned",
		TieEmbeddings: true, Float: ir.BF16,
	}
	whole, err := gpt.TrainStep(cfg, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, batch, 33)
	require.NoError(t, err)
	p := newPlan(1, 1, partition.Stage{First: 0, Last: 1}, partition.Stage{First: 1, Last: 3})
	p.Offload = partition.OffloadParams
	g, err := partition.Apply(whole, p, batch)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	var last [2]string // by stage: the previous kernel
	rounded := 0
	for _, n := range g.Nodes {
		if n.Phase != ir.Update || n.Op.Class() != ir.Compute {
			continue
		}
		if n.Op == ir.OpCast && n.Args[0].Def.Op == ir.OpAdamW {
			require.Equal(t, n.Args[0].Def.Name, last[n.Stage], n.Name)
			rounded++
		}
		last[n.Stage] = n.Name
	}
	require.Equal(t, 22, rounded, "of 3 blocks with 6 weights, 3 outside, and the table once more")
}

func TestRecomputeRepeatsOnlyWhatIsNeeded(t *testing.T) {
	g, err := partition.Apply(trainGraph(t, 2), newPlan(1, 1, partition.Stage{First: 0, Last: 2, Recompute: 1}), batch)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	var again []string
	for _, n := range g.Nodes {
		if name, ok := strings.CutSuffix(n.Name, "@re"); ok {
			require.Equal(t, ir.Backward, n.Phase)
			require.Equal(t, g.Find(name).Attr, n.Attr, "the same mask")
			again = append(again, name)
		}
	}
	require.Equal(t, []string{
		"h.0.ln_1/layer_norm", "h.0.attn.c_attn/matmul", "h.0.attn.c_attn/add", "h.0.attn/attention",
		"h.0.attn.c_proj/matmul", "h.0.attn.c_proj/add", "h.0.attn/dropout", "h.0/add",
		"h.0.ln_2/layer_norm", "h.0.mlp.c_fc/matmul", "h.0.mlp.c_fc/add", "h.0.mlp/gelu",
	}, again, "the block's output is not needed again")
}

func TestPlacementOfAnOp(t *testing.T) {
	p := newPlan(1, 2, partition.Stage{First: 0, Last: 2})
	p.Placements = append(p.Placements, partition.Placement{Match: `h\.1\.ln_1/layer_norm`, Spec: "[_,tp,_]"})
	g, err := partition.Apply(trainGraph(t, 2), p, batch)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	tp := g.Mesh.Axis(partition.AxisTP)
	require.Equal(t, ir.ShardOn(1), g.Find("h.1.ln_1/layer_norm").Results[0].Spec[tp])
	require.Equal(t, ir.Placement{}, g.Find("h.0.ln_1/layer_norm").Results[0].Spec[tp])

	p.Placements[len(p.Placements)-1].Spec = "[_,_,tp]"
	_, err = partition.Apply(trainGraph(t, 2), p, batch)
	require.ErrorContains(t, err, "h.1.ln_1/layer_norm cannot lie as [_,_,tp] over axis tp")
}

func TestRanksAndDevices(t *testing.T) {
	p := newPlan(3, 2, partition.Stage{First: 0, Last: 1}, partition.Stage{First: 1, Last: 2})
	p.RuntimeNGPUs = 24
	seen := map[[2]int]bool{}
	for r := range p.RuntimeNGPUs {
		stage, device := p.StageDevice(r)
		require.Equal(t, r, p.WorldRank(stage, device))
		seen[[2]int{stage, device}] = true
		// Rank r is shard r mod 12 of unit r div 12.
		require.Equal(t, r/12, device/p.TP/p.DP)
		first, _ := p.StageDevice(r % 12)
		require.Equal(t, first, stage)
	}
	require.Len(t, seen, 24)
	require.Equal(t, 6, p.DataParallel())
}

// TestInterleavedRanks: stage s runs where stage s mod pp does.
func TestInterleavedRanks(t *testing.T) {
	p := &partition.Plan{PlanNGPUs: 12, RuntimeNGPUs: 24, DP: 2, TP: 2, Schedule: partition.Interleaved, Interleave: 3, Stages: make([]partition.Stage, 9)}
	require.Equal(t, 3, p.PP())
	for r := range p.RuntimeNGPUs {
		position, device := p.StageDevice(r)
		for chunk := range 3 {
			require.Equal(t, r, p.WorldRank(position+3*chunk, device))
		}
	}
}

// TestWeightGrads: about half of the products of the backward pass compute gradients of weights. No other stage
// waits for these, and nothing that stays in the backward pass does.
func TestWeightGrads(t *testing.T) {
	p := newPlan(1, 2, partition.Stage{First: 0, Last: 1}, partition.Stage{First: 1, Last: 2, Recompute: 1})
	p.Schedule = partition.ZeroBubble
	g, err := partition.Apply(trainGraph(t, 2), p, batch)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	products := map[ir.Phase]int{}
	for _, n := range g.Nodes {
		if n.Op == ir.OpMatMul {
			products[n.Phase]++
		}
		if strings.HasSuffix(n.Name, "matmul@dw") {
			require.Equal(t, ir.WeightGrad, n.Phase, n.Name)
		}
		if strings.HasSuffix(n.Name, "matmul@dx") || n.Op == ir.OpSend || n.Op == ir.OpLayerNormGrad {
			require.NotEqual(t, ir.WeightGrad, n.Phase, n.Name)
		}
		for _, a := range n.Args {
			if a.Def.Phase == ir.WeightGrad {
				require.GreaterOrEqual(t, n.Phase, ir.WeightGrad, "%s reads %s", n.Name, a.Name())
			}
		}
	}
	require.Equal(t, products[ir.Forward], products[ir.WeightGrad])
}

// TestWeightGradsOfBlocks: if the embedding has a single gradient, what leads to it from the first block is not
// counted as a gradient of that block's weights, so that the first block is like the others.
func TestWeightGradsOfBlocks(t *testing.T) {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize = 3, 2, 16, 8, 33
	c.Norm, c.Position, c.TieEmbeddings = gpt.RMSNorm, gpt.RoPE, false
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, batch, 8)
	require.NoError(t, err)
	g, err = partition.Apply(g, newPlan(1, 1, partition.Stage{Last: 3}), batch)
	require.NoError(t, err)
	apart := map[string]map[string]bool{}
	embedding := false
	for n := range partition.WeightGrads(g) {
		if n.Block() == "" || n.Op.Class() != ir.Compute {
			embedding = embedding || n.Op == ir.OpEmbeddingGrad
			continue
		}
		if apart[n.Block()] == nil {
			apart[n.Block()] = map[string]bool{}
		}
		apart[n.Block()][strings.TrimPrefix(n.Name, n.Block())] = true
	}
	require.True(t, embedding)
	require.Len(t, apart, 3)
	require.Equal(t, apart["h.1"], apart["h.0"])
	require.Equal(t, apart["h.2"], apart["h.0"])
}

// TestWeightGradsBehindACut: a slice made for a node that stays in the backward pass stays too, even if that
// node only makes the gradient of the table.
func TestWeightGradsBehindACut(t *testing.T) {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize, c.Position = 2, 2, 12, 5, 17, gpt.RoPE
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, 2, 5)
	require.NoError(t, err)
	g, err = partition.Apply(g, newPlan(1, 2, partition.Stage{Last: 2}), 2)
	require.NoError(t, err)
	i := slices.IndexFunc(g.Nodes, func(n *ir.Node) bool { return n.Name == "h.0.ln_1/layer_norm@add" })
	require.Positive(t, i)
	reader := g.Nodes[i]
	whole := reader.Args[1]
	cut := reader.Copy()
	cut.Op, cut.Name, cut.Args = ir.OpSlice, whole.Def.Name+"@slice_tp", []*ir.Value{whole}
	cut.Results = []*ir.Value{{Type: whole.Type, Def: cut}}
	reader.Args[1] = cut.Results[0]
	g.Nodes = slices.Insert(g.Nodes, i, cut)
	g.Renumber()
	late := partition.WeightGrads(g)
	require.NotEmpty(t, late)
	require.False(t, late[reader], "it hands on to the table what it would to another block")
	require.False(t, late[cut])
}

// TestWeightGradsOfFrozenWeights: if the embedding is frozen, nothing reads the gradient of the first block's
// input. It stays in the backward pass all the same, so that all blocks delay the same nodes.
func TestWeightGradsOfFrozenWeights(t *testing.T) {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize, c.LoRARank, c.LoRATargets = 3, 2, 12, 5, 17, 2, "."
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, 2, 5)
	require.NoError(t, err)
	g, err = partition.Apply(g, newPlan(1, 1, partition.Stage{Last: 3}), 2)
	require.NoError(t, err)
	late := map[string][]string{}
	for n := range partition.WeightGrads(g) {
		late[n.Block()] = append(late[n.Block()], strings.TrimPrefix(n.Name, n.Block()))
	}
	for _, names := range late {
		slices.Sort(names)
	}
	require.Len(t, late["h.0"], 2*8, "products and sums of eight matrices")
	require.Equal(t, late["h.1"], late["h.0"])
	require.Equal(t, late["h.2"], late["h.0"])
}

// TestWeightGradsOfOneToken: if every rank has one token, gradients that stay replicated are gathered and
// sliced again inside a block. What waits for the slice stays in the backward pass, and so the slice does.
func TestWeightGradsOfOneToken(t *testing.T) {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize, c.Position = 2, 2, 12, 1, 17, gpt.RoPE
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, 2, 1)
	require.NoError(t, err)
	p := newPlan(1, 2, partition.Stage{Last: 1}, partition.Stage{First: 1, Last: 2})
	p.Schedule, p.BatchParallel, p.Placements = partition.ZeroBubble, true, replicating("attn", "mlp")
	i := slices.IndexFunc(p.Placements, func(x partition.Placement) bool { return x.Module() == "wte" })
	p.Placements[i].Spec = "[_,tp]"
	g, err = partition.Apply(g, p, 2)
	require.NoError(t, err)
	cuts := 0
	for _, n := range g.Nodes {
		if n.Op == ir.OpSlice && n.Phase == ir.Backward {
			cuts++
		}
		for _, a := range n.Args {
			require.LessOrEqual(t, a.Def.Phase, n.Phase, "%s reads %s", n.Name, a.Name())
		}
	}
	require.NotZero(t, cuts)
}

func TestPlansRefused(t *testing.T) {
	g := trainGraph(t, 2)
	for name, c := range map[string]struct {
		edit func(*partition.Plan)
		want string
	}{
		"degree":     {func(p *partition.Plan) { p.TP = 3 }, "plan_ngpus: 4 is not dp 2 x tp 3 x 1 stages"},
		"no dp":      {func(p *partition.Plan) { p.DP = 0 }, "dp: is 0, want at least 1"},
		"huge":       {func(p *partition.Plan) { p.RuntimeNGPUs = 1 << 40 }, "at most 1048576"},
		"huge micro": {func(p *partition.Plan) { p.MicroBatch = math.MaxInt }, "micro_batch: is 9223372036854775807 sequences, want at most 1048576"},
		"units":      {func(p *partition.Plan) { p.RuntimeNGPUs = 6 }, "runtime_ngpus: 6 is not a multiple of plan_ngpus 4"},
		"batch":      {func(p *partition.Plan) { p.DP, p.PlanNGPUs, p.RuntimeNGPUs = 8, 16, 16 }, "8 data-parallel ranks cannot share a global batch of 7"},
		"schedule":   {func(p *partition.Plan) { p.Schedule = "2f2b" }, `unknown schedule "2f2b"`},
		"interleave": {func(p *partition.Plan) { p.Interleave = 2 }, "interleave: is 2, which only schedule interleaved can run; gpipe runs 1 stage per rank"},
		"one chunk":  {func(p *partition.Plan) { p.Schedule = partition.Interleaved }, "interleave: is 0, schedule interleaved needs at least 2 stages per rank"},
		"chunks": {func(p *partition.Plan) {
			p.Schedule, p.Interleave = partition.Interleaved, 2
			p.Stages = []partition.Stage{{First: 0, Last: 1}, {First: 1, Last: 2}}
		}, "stages: are 2, interleave 2 needs a multiple of it and at least 4: 4 would do"},
		"rows":       {func(p *partition.Plan) { p.TP, p.PlanNGPUs, p.RuntimeNGPUs, p.TPRows = 4, 8, 8, 3 }, "tp_rows: is 3, which does not cut 4 tensor-parallel ranks into rows"},
		"one column": {func(p *partition.Plan) { p.TP, p.PlanNGPUs, p.RuntimeNGPUs, p.TPRows = 4, 8, 8, 4 }, "tp_rows: is 4, which does not cut 4 tensor-parallel ranks into rows of at least 2"},
		"rank order": {func(p *partition.Plan) { p.RankOrder = "tp-xp" }, `rank_order: is "tp-xp", and "xp" is no axis of a unit; want tp, cp, dp and pp`},
		"axis twice": {func(p *partition.Plan) { p.RankOrder = "tp-dp-tp" }, `rank_order: is "tp-dp-tp", which names tp twice`},
		"axis left out": {func(p *partition.Plan) { p.RankOrder = "pp-tp" },
			`rank_order: is "pp-tp", which leaves out dp 2; of 4 ranks in a unit each has to lie somewhere: pp-tp-dp would do`},
		"blocks":    {func(p *partition.Plan) { p.Stages[0].Last = 1 }, "stages: cover 1 blocks, the model has 2"},
		"no block":  {func(p *partition.Plan) { p.Stages[0].Last = -1 }, "stages[0]: holds no block"},
		"recompute": {func(p *partition.Plan) { p.Stages[0].Recompute = 3 }, "stages[0].recompute: is 3 of 2 blocks"},
		"zero":      {func(p *partition.Plan) { p.ZeRO = 4 }, "zero: is 4, want 0 to 3"},
		"group": {func(p *partition.Plan) { p.DP, p.PlanNGPUs, p.RuntimeNGPUs, p.ZeRO, p.ZeROGroup = 6, 12, 12, 1, 4 },
			"zero_group: is 4, which does not cut 6 data-parallel ranks into equal groups of at least 2; the nearest that do: 3, 6"},
		"group of one":     {func(p *partition.Plan) { p.ZeRO, p.ZeROGroup = 1, 1 }, "zero_group: is 1, which does not cut 2 data-parallel ranks"},
		"group of nothing": {func(p *partition.Plan) { p.ZeROGroup = 2 }, "zero_group: is 2, but zero is 0: there is nothing to shard in groups"},
		"zero alone":       {func(p *partition.Plan) { p.DP, p.PlanNGPUs, p.RuntimeNGPUs, p.ZeRO = 1, 2, 2, 1 }, "zero: stage 1 needs at least 2 data-parallel ranks"},
		"overlap of tp": {func(p *partition.Plan) {
			p.TP, p.PlanNGPUs, p.RuntimeNGPUs, p.OverlapTP, p.Schedule = 2, 4, 4, true, partition.ZeroBubble
		}, "overlap_tp: is on, but schedule zero-bubble"},
		"overlap of p2p": {func(p *partition.Plan) { p.OverlapP2P = true }, "overlap_p2p: is on, but there is one stage"},
		"pieces":         {func(p *partition.Plan) { p.TPPieces = 17 }, "tp_pieces: is 17, want 0, which stands for 1, to 16"},
		"parts":          {func(p *partition.Plan) { p.SequenceParts = 17 }, "sequence_parts: is 17, want 0, which stands for 1, to 16"},
		"unequal parts": {func(p *partition.Plan) { p.DP, p.PlanNGPUs, p.RuntimeNGPUs, p.SequenceParts = 1, 2, 2, 2 },
			"sequence_parts: 2 parts of sequences of 33 tokens are not equal; want 0, 3, 11"},
		"no equal parts": {func(p *partition.Plan) { p.DP, p.PlanNGPUs, p.RuntimeNGPUs, p.SequenceParts, p.TP = 1, 12, 12, 2, 12 },
			"sequence_parts: 2 parts of sequences of 33 tokens are not equal; want 0"},
		"parts for few tokens": {func(p *partition.Plan) { p.DP, p.PlanNGPUs, p.RuntimeNGPUs, p.SequenceParts, p.TP = 1, 4, 4, 11, 4 },
			"sequence_parts: 4 tensor-parallel ranks cannot share a part of 3 tokens; want 0, 3"},
		"parts and unequal batches": {func(p *partition.Plan) { p.SequenceParts = 3 }, "sequence_parts: is 3, but the 2 data-parallel ranks do not share 7 sequences equally; use sequence_parts 0"},
		"parts and shares": {func(p *partition.Plan) { p.SequenceParts, p.BatchShares = 3, []int{4, 3} },
			"sequence_parts: is 3 beside batch_shares"},
		"parts and batch parallel": {func(p *partition.Plan) { p.SequenceParts, p.BatchParallel = 3, true }, "sequence_parts: is 3, but batch_parallel is on"},
		"parts and cp": {func(p *partition.Plan) {
			p.CP, p.PlanNGPUs, p.RuntimeNGPUs, p.DP, p.SequenceParts, p.TP = 2, 12, 12, 1, 3, 6
		},
			"sequence_parts: cp 2 x tp 6 ranks cannot share a part of 11 tokens; want 0"},
		"slices of parts": {func(p *partition.Plan) {
			p.DP, p.PlanNGPUs, p.RuntimeNGPUs, p.SequenceParts, p.LossSlices = 1, 2, 2, 11, 2
		},
			"loss_slices: 2 slices of sequence parts of 3 tokens are not equal; the nearest that are: 3"},
		"sequence":  {func(p *partition.Plan) { p.TP, p.PlanNGPUs, p.RuntimeNGPUs, p.SequenceParallel = 1, 2, 2, true }, "sequence_parallel: needs tp of at least 2"},
		"selective": {func(p *partition.Plan) { p.Stages[0].Recompute, p.Stages[0].Selective = 1, 2 }, "stages[0].selective: is 2 besides 1 recomputed, of 2 blocks"},
		"pointwise": {func(p *partition.Plan) { p.Stages[0].Selective, p.Stages[0].Pointwise = 1, 2 }, "stages[0].pointwise: is 2 besides 1 recomputed more, of 2 blocks"},
		"selective without end": {func(p *partition.Plan) { p.Stages[0].Recompute, p.Stages[0].Selective = 1, math.MaxInt },
			"stages[0].selective: is 9223372036854775807 besides 1 recomputed, of 2 blocks"},
		"pointwise without end": {func(p *partition.Plan) { p.Stages[0].Selective, p.Stages[0].Pointwise = 1, math.MaxInt },
			"stages[0].pointwise: is 9223372036854775807 besides 1 recomputed more, of 2 blocks"},
		"regexp":     {func(p *partition.Plan) { p.Placements[0].Match = "(" }, "placements[0].match"},
		"axis":       {func(p *partition.Plan) { p.Placements[0].Spec = "[_,xp,_,_]" }, `no axis "xp"`},
		"batch axis": {func(p *partition.Plan) { p.Placements[0].Spec = "[dp,_,_,_]" }, "only tp can be placed"},
		"rank":       {func(p *partition.Plan) { p.Placements[0].Spec = "[tp]" }, "h.0.attn.c_attn.weight is 4-dimensional, its spec [tp] is 1-dimensional"},
		"too fine": {func(p *partition.Plan) { p.DP, p.TP = 1, 4 },
			"h.0.attn.c_attn.weight: dimension 1 of size 3 cannot be split over 4 ranks"},
		"terms":   {func(p *partition.Plan) { p.Placements[0].Spec = "[_,_,_,_]+{tp}" }, "h.0.attn.c_attn.weight is a parameter, which has no terms to sum"},
		"illegal": {func(p *partition.Plan) { p.Placements[0].Spec = "[tp,_,_,_]" }, "dimension 0 of size 3"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlan(2, 2, partition.Stage{First: 0, Last: 2})
			c.edit(p)
			if name == "illegal" {
				p.DP, p.TP = 1, 4
			}
			_, err := partition.Apply(g, p, batch)
			var planErr *partition.PlanError
			require.ErrorAs(t, err, &planErr)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestPlacementsOfSlices: placements also apply where the loss runs in slices, and none is without a match.
func TestPlacementsOfSlices(t *testing.T) {
	g := trainGraph(t, 2)
	p := newPlan(1, 2, partition.Stage{First: 0, Last: 2})
	p.Placements = append([]partition.Placement{{Match: "lm_head/matmul", Spec: "[_,tp,_]"}}, p.Placements...)
	for _, slices := range []int{1, 3} {
		p.LossSlices = slices
		parts, err := partition.Apply(g, p, batch)
		require.NoError(t, err)
		found := 0
		for _, n := range parts.Nodes {
			if n.Op == ir.OpMatMul && (n.Name == "lm_head/matmul" || strings.HasPrefix(n.Name, "lm_head/matmul@slice")) {
				found++
				require.Equal(t, ir.ShardOn(1), n.Results[0].Spec[parts.Mesh.Axis("tp")], n.Name)
			}
		}
		require.Equal(t, slices, found)
		require.NoError(t, p.CheckPlacements(g, parts))
		other := *p
		other.Placements = append(other.Placements[:len(other.Placements):len(other.Placements)], partition.Placement{Match: `wte\.weight\.exp_avg`, Spec: "[_,_]"})
		require.ErrorContains(t, other.CheckPlacements(g, parts), fmt.Sprintf("placements[%d].match", len(p.Placements)))
	}
}

// TestPathReachesEverySpec walks random specs of a three-dimensional value over two device axes. Any spec can
// reach any other (except that a max reduction cannot be created), by steps each of which changes one axis as
// its collective does.
func TestPathReachesEverySpec(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	mesh := ir.Mesh{Axes: []ir.Axis{{Name: "dp", Size: 2}, {Name: "tp", Size: 3}}}
	spec := func() ir.ShardSpec {
		var s ir.ShardSpec
		for a := range mesh.Axes {
			switch k := rng.IntN(5); k {
			case 0, 1, 2:
				s[a] = ir.ShardOn(k)
			case 3:
				s[a] = ir.PartialOf(ir.Sum)
			}
		}
		return s
	}
	for range 2000 {
		from, to := spec(), spec()
		steps, err := partition.Path(mesh, from, to)
		if partialFromShard(from, to) {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err, "%s to %s", from.Format(mesh, 3), to.Format(mesh, 3))
		cur := from
		for _, s := range steps {
			axis := mesh.Axis(s.Attr.Axis)
			for a := range mesh.Axes {
				if a != axis {
					require.Equal(t, cur[a], s.Spec[a])
				}
			}
			// A slice can only change while no inner axis shards the same dimension.
			for _, p := range []ir.Placement{cur[axis], s.Spec[axis]} {
				if p.Kind == ir.Shard {
					for _, inner := range cur.ShardAxes(int(p.Dim)) {
						require.LessOrEqual(t, inner, axis)
					}
				}
			}
			cur = s.Spec
		}
		require.Equal(t, to, cur)
	}
}

// TestPathSumsShares: what all ranks of an axis need summed, and others as shares, is first cut into shares: the sum is then of those.
func TestPathSumsShares(t *testing.T) {
	mesh := ir.Mesh{Axes: []ir.Axis{{Name: "cp", Size: 4}, {Name: "rep", Size: 8}, {Name: "dp", Size: 2}}}
	from := ir.ShardSpec{ir.PartialOf(ir.Sum), ir.PartialOf(ir.Sum), ir.PartialOf(ir.Sum)}
	steps, err := partition.Path(mesh, from, ir.ShardSpec{ir.ShardOn(0), {}, ir.ShardOn(0)})
	require.NoError(t, err)
	var names []string
	for _, s := range steps {
		names = append(names, s.Op.String()+" "+s.Attr.Axis)
	}
	require.Equal(t, []string{"reduce_scatter cp", "reduce_scatter dp", "all_reduce rep"}, names)
}

func partialFromShard(from, to ir.ShardSpec) bool {
	for a := range from {
		if from[a].Kind == ir.Shard && to[a].Kind == ir.Partial {
			return true
		}
	}
	return false
}
