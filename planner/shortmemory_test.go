package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// TestMemoryOfManyBlocks: the bound of a stage's memory is near its arena with many blocks, where that has what grows with them:
// gradients that are reduced before all are clipped, and under a zero-bubble
// schedule what slots have after a backward pass. That it is never above is in TestCostIsSimulation.
func TestMemoryOfManyBlocks(t *testing.T) {
	const batch, blocks = 8, 96
	model := tiny(blocks)
	model.Float = ir.BF16
	g := step(t, model, batch)
	for name, x := range map[string]struct {
		sharding
		schedule partition.Schedule
		again    extent
		near     float64 // share of the arena
	}{
		"gradients reduced":   {sharding{zero: 1, offload: partition.OffloadOptimizer}, partition.OneFOneB, full, 0.97},
		"weights of the host": {sharding{offload: partition.OffloadOptimizer}, partition.OneFOneB, full, 0.97},
		"shares gathered":     {sharding{zero: 1, overlap: true}, partition.OneFOneB, full, 0.998},
		"zero-bubble":         {sharding{}, partition.ZeroBubble, kept, 0.991},
		"recomputed":          {sharding{}, partition.ZeroBubble, selective, 0.991},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSearcher(g, batch, cluster(t, "a100-80g"), Options{RuntimeNGPUs: 6})
			skel, err := s.skeleton(outline{degrees: degrees{plan: 6, dp: 2, cp: 1, tp: 1, pp: 3}, sharding: x.sharding, chunks: 1})
			require.NoError(t, err)
			p := newPipeline(skel, skel.memoryOf(1), 1, x.schedule)
			p.measureApart()
			cut := evenCut(blocks, 3, func(int) extent { return x.again })
			prog, err := codegen.Draft(g, p.plan(cut), batch, p.microBatches == 1)
			require.NoError(t, err)
			peaks, _, err := s.peaks(prog.Plan)
			require.NoError(t, err)
			for at, arena := range peaks {
				least := p.memory[at].atLeast(blocks/3, recomputationOf(cut[at]), p.room[at])
				require.LessOrEqual(t, least, arena, "position %d", at)
				require.Greater(t, float64(least)/float64(arena), x.near, "position %d: %d of %d bytes", at, least, arena)
			}
		})
	}
}

// TestMemoryOfManyChunks: so is that of a position with several chunks, all of whose blocks are updated in one body.
func TestMemoryOfManyChunks(t *testing.T) {
	const batch, blocks, chunks = 8, 24, 4
	model := tiny(blocks)
	model.Float = ir.BF16
	g := step(t, model, batch)
	for name, x := range map[string]sharding{
		"gradients reduced":   {zero: 1, offload: partition.OffloadOptimizer},
		"weights of the host": {offload: partition.OffloadOptimizer},
		"all of the host":     {offload: partition.OffloadParams},
		"kept":                {zero: 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSearcher(g, batch, cluster(t, "a100-80g"), Options{RuntimeNGPUs: 6})
			skel, err := s.skeleton(outline{degrees: degrees{plan: 6, dp: 2, cp: 1, tp: 1, pp: 3}, sharding: x, chunks: chunks})
			require.NoError(t, err)
			p := newPipeline(skel, skel.memoryOf(1), 1, partition.Interleaved)
			for e := range extents {
				p.upTo(e)
				cut := evenCut(blocks, 3*chunks, func(int) extent { return e })
				prog, err := codegen.Draft(g, p.plan(cut), batch, p.microBatches == 1)
				require.NoError(t, err)
				peaks, _, err := s.peaks(prog.Plan)
				require.NoError(t, err)
				for at, arena := range peaks {
					least := p.interleavedPeak(cut, at)
					require.LessOrEqual(t, least, arena, "position %d", at)
					require.Greater(t, float64(least)/float64(arena), 0.95, "position %d: %d of %d bytes", at, least, arena)
				}
			}
		})
	}
}

// TestSearchWhereMemoryIsShort lays out few stages and looks at few pipelines: GPT-3 13B on 16 A10Gs took more than 1,600
// layouts when the update was bounded by that of one block.
func TestSearchWhereMemoryIsShort(t *testing.T) {
	if testing.Short() {
		t.Skip("a search of half a second")
	}
	zero := 1
	_, s, err := newSearch(step(t, preset(t, "gpt3-13b"), 64), 64, cluster(t, "a10g"), Options{PlanNGPUs: 16, RuntimeNGPUs: 16, Schedule: partition.ZeroBubble, ZeRO: &zero, TopK: 5}, thorough)
	require.NoError(t, err)
	require.Less(t, len(s.footprints), 40)
	require.Less(t, len(s.looked), 250) // 99 with products of whole sequences alone
}

// TestSearchOfOneMicroBatch lays out one stage where all of a step is one micro-batch: the bound of its memory knows the
// head's gradients while blocks wait for theirs. Without them GPT-2 with 200 layers takes 31 layouts on 8 H100s.
func TestSearchOfOneMicroBatch(t *testing.T) {
	model := preset(t, "gpt2")
	model.NLayer, model.BlockSize, model.Float = 200, 512, ir.BF16
	g := step(t, model, 32)
	for _, sliced := range []int{1, 4} {
		opts := Options{PlanNGPUs: 8, RuntimeNGPUs: 8, DP: 8, Schedule: partition.OneFOneB, ZeRO: stage(1), Overlap: "on", LossSlices: sliced, MemoryLimit: 14 << 30}
		found, s, err := newSearch(g, 32, cluster(t, "h100"), opts, thorough)
		require.NoError(t, err)
		require.Positive(t, found.Plan.Stages[0].Pointwise, "memory is short")
		require.Len(t, s.footprints, 1, "%d slices", sliced)
		for _, p := range s.looked {
			require.Empty(t, p.learned, "%d slices", sliced)
		}
	}
}

// TestSearchOfShards lays out one stage of GPT-3 175B, and looks at two numbers of slices. Where each rank has its share of
// everything, memory is shortest while a block runs between two others: the bound knows of the gradient that the next block hands
// to it, and that slices of the loss spare nothing of it.
func TestSearchOfShards(t *testing.T) {
	x := benchCase{model: preset(t, "gpt3-175b"), batch: 1536}
	found, s, err := newSearch(x.trace(t), x.batch, cluster(t, "h100"), Options{RuntimeNGPUs: 1024}, thorough)
	require.NoError(t, err)
	require.Equal(t, 3, found.Plan.ZeRO)
	require.Positive(t, found.Plan.Stages[0].Pointwise, "memory is short")
	require.Len(t, s.footprints, 1)
	require.LessOrEqual(t, found.Stats.PlansConsidered, 3)
	for _, p := range s.looked {
		require.Empty(t, p.learned)
		require.LessOrEqual(t, p.pipe.skel.outline.slices, 2)
	}
}

// TestCutThatBoundsLeadTo: a search of cuts that gives up at once still has the cut to which its bounds lead.
func TestCutThatBoundsLeadTo(t *testing.T) {
	const batch, blocks = 8, 24
	s := newSearcher(step(t, tiny(blocks), batch), batch, cluster(t, "a100-80g"), Options{RuntimeNGPUs: 4})
	s.limit = 1 << 40
	skel, err := s.skeleton(outline{degrees: degrees{plan: 4, dp: 1, cp: 1, tp: 1, pp: 4}, chunks: 1})
	require.NoError(t, err)
	c := newCutter(s, skel, 1, partition.GPipe)
	got, certain := c.solve(never-1, -1, 0)
	require.False(t, certain)
	require.NotNil(t, got)
	best, certain := newCutter(s, skel, 1, partition.GPipe).solve(never-1, thorough, 0)
	require.True(t, certain)
	require.LessOrEqual(t, float64(got.time), 1.02*float64(best.time))
	require.Equal(t, got.time, c.dived)
}

// TestMemoryOfTheLastBlock: what the head leaves behind is there while the last block waits for its stream, and gone when blocks before
// it are recomputed, which take more: the bound of the memory adds them up only where the last block is recomputed as well.
func TestMemoryOfTheLastBlock(t *testing.T) {
	const batch, blocks = 8, 12
	model, opt := preset(t, "gpt2"), adamW()
	model.Float, opt.NoMaster = ir.BF16, true
	g, err := gpt.TrainStep(model, opt, batch, model.BlockSize)
	require.NoError(t, err)
	s := newSearcher(g, batch, cluster(t, "v100"), Options{RuntimeNGPUs: 8, OverlapTP: "on", TPPieces: 4})
	skel, err := s.skeleton(outline{
		degrees: degrees{plan: 8, dp: 4, cp: 1, tp: 2, pp: 1}, chunks: 1,
		sharding: sharding{zero: 3, overlap: true, pieces: 4, split: split{batch: true}},
	})
	require.NoError(t, err)
	p := newPipeline(skel, skel.memoryOf(2), 2, partition.OneFOneB)
	for _, r := range []recomputation{{full: blocks - 1}, {selective: blocks - 1}, {full: blocks - 1, pointwise: 1}, {full: blocks}} {
		peaks, _, err := s.peaks(p.plan([]partition.Stage{r.stage(0, blocks)}))
		require.NoError(t, err)
		require.LessOrEqual(t, p.memory[0].atLeast(blocks, r, p.room[0]), peaks[0], "%+v", r)
	}
}
