package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// TestGridSearchIsExact: the search against every plan where tensor-parallel ranks may form a grid:
// six, eight or sixteen on links whose rings take long to go round, or that have little bandwidth.
func TestGridSearchIsExact(t *testing.T) {
	const seed = 43
	r := rand.New(rand.NewPCG(seed, 0))
	cases, plans, winners := 8, 0, map[string]int{}
	if testing.Short() {
		cases = 4
	}
	for k := range cases {
		model, tp := tiny(1+k%2), []int{8, 16, 6, 8}[k%4]
		model.NHead, model.NKVHead, model.NEmbd, model.BlockSize = tp, tp, 4*tp, 17+r.IntN(48)
		model.Bias, model.Dropout = k%2 == 0, 0
		if k%3 == 2 {
			model = llama(model)
		}
		batch := 1 + r.IntN(2)
		b := &brute{t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, cluster: randomCluster(r), limit: 1 << 40}
		b.cluster.DevicesPerNode, b.cluster.Levels = 16, nil
		for _, l := range []*cost.Link{&b.cluster.IntraNode, &b.cluster.InterNode} {
			if k%2 == 0 {
				l.Latency /= 100
			}
		}
		b.opts = Options{RuntimeNGPUs: tp, PlanNGPUs: tp, TP: tp, CP: 1, Offload: "none", MemoryLimit: b.limit, ZeRO: stage(0), Replicate: "none"}
		res, _ := b.compare(seed, k)
		plans += b.plans
		if res == nil {
			continue
		}
		for _, name := range res.Plan.OnGrid() {
			winners[name]++
		}
	}
	t.Logf("%d cases, %d plans simulated; on a grid in the winners: %v", cases, plans, winners)
	require.NotEmpty(t, winners)
}

// TestGridOfNarrowAdapters: what is shorter than a grid has rows is not cut over them.
func TestGridOfNarrowAdapters(t *testing.T) {
	model := tiny(1)
	model.NHead, model.NKVHead, model.NEmbd, model.LoRARank, model.LoRATargets = 4, 4, 32, 1, "."
	g := step(t, model, 4)
	res, err := Search(g, 4, cluster(t, "h100"), Options{RuntimeNGPUs: 4, PlanNGPUs: 4, TP: 4, TPRows: 2})
	require.NoError(t, err)
	require.NotEmpty(t, res.Plan.OnGrid())
	_, err = partition.Apply(g, res.Plan, 4)
	require.NoError(t, err)
}

// TestGridOption: rows divide the ranks, and the weights of some module are cut in both dimensions.
func TestGridOption(t *testing.T) {
	model := tiny(2)
	model.NHead, model.NKVHead, model.NEmbd = 4, 4, 32
	g := step(t, model, 4)
	for _, x := range []struct {
		opts Options
		want string
	}{
		{Options{PlanNGPUs: 4, TP: 4, TPRows: 2}, ""},
		{Options{PlanNGPUs: 8, TPRows: 2, SequenceParallel: "off"}, ""},
		{Options{PlanNGPUs: 4, TP: 4, TPRows: 3}, "tp-rows: is 3, which does not cut tp 4 into rows of at least 2"},
		{Options{PlanNGPUs: 4, TP: 4, TPRows: 4}, "tp-rows: is 4, which does not cut tp 4 into rows of at least 2"},
		{Options{PlanNGPUs: 2, TPRows: 2}, "tp-rows: is 2, which needs tp of 4 or another multiple"},
		{Options{PlanNGPUs: 4, TP: 4, TPRows: 2, Replicate: "attn"}, "tp-rows: is 2, but replicate is attn"},
		{Options{PlanNGPUs: 4, TP: 4, TPRows: 2, RankOrder: "dp-tp-cp-pp"}, "tp-rows: is 2, but rank-order is dp-tp-cp-pp"},
		{Options{PlanNGPUs: 4, TPRows: 2, Policy: Megatron}, "tp-rows: is 2, but policy megatron"},
	} {
		res, err := Search(g, 4, cluster(t, "h100"), x.opts)
		if x.want != "" {
			require.ErrorContains(t, err, x.want)
			continue
		}
		require.NoError(t, err)
		require.NotEmpty(t, res.Plan.OnGrid())
		require.Equal(t, x.opts.TPRows, res.Plan.Rows())
	}
	res, err := Search(g, 4, cluster(t, "h100"), Options{PlanNGPUs: 4, TP: 4, TPRows: 1})
	require.NoError(t, err)
	require.Empty(t, res.Plan.OnGrid())
}

// TestCostBesideWhatBlocksShare: the first block of a stage, which slices the positions that all blocks rotate by, runs beside its
// collectives what the others do: with an MLP on a grid, and more tensor-parallel ranks than heads share keys, weights are gathered
// beside products in the forward pass. One block in a program stands for all.
func TestCostBesideWhatBlocksShare(t *testing.T) {
	const batch, blocks = 32, 4
	model := llama(tiny(blocks))
	model.NHead, model.NKVHead, model.NEmbd, model.BlockSize, model.Float = 8, 2, 64, 64, ir.BF16
	g := step(t, model, batch)
	h100 := cluster(t, "h100")
	for _, pieces := range []int{0, 2} {
		opts, err := Options{PlanNGPUs: 8, RuntimeNGPUs: 8, TPPieces: max(1, pieces)}.on(h100, batch)
		require.NoError(t, err)
		s := newSearcher(g, batch, h100, opts)
		skel, err := s.skeleton(outline{
			degrees: degrees{plan: 8, dp: 1, cp: 1, tp: 4, pp: 2}, chunks: 1,
			sharding: sharding{sequence: true, pieces: pieces, split: split{grid: "mlp", rows: 2}},
		})
		require.NoError(t, err)
		p := newPipeline(skel, skel.memoryOf(8), 8, partition.OneFOneB)
		p.stages = skel.times(8, partition.OneFOneB)
		for e := range extents {
			cut := []partition.Stage{uniform(e, 1).stage(0, 1), uniform(e, 3).stage(1, 3)}
			prog, err := codegen.Compile(g, p.plan(cut), batch, nil)
			require.NoError(t, err)
			line, err := sim.Run(prog, h100, sim.Options{})
			require.NoError(t, err)
			require.Equal(t, line.Step, p.time(cut), "%d parts, blocks recomputed to extent %d", pieces, e)
		}
	}
}
