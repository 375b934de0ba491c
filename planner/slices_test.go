package planner

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// TestSlicesAreSearched: of models whose logits are much of what they keep, with no more memory than plans with the loss in some number of slices need, the
// search finds what the simulation of all plans does, and proves it: with the loss in more slices the less memory there is.
func TestSlicesAreSearched(t *testing.T) {
	t.Parallel()
	const seed = 7
	r := rand.New(rand.NewPCG(seed, 0))
	found, infeasible, recomputing := map[int]int{}, 0, 0
	for k := range 16 {
		model := tiny(1 + r.IntN(2))
		model.Bias, model.Dropout, model.BlockSize, model.VocabSize = false, 0, []int{16, 24, 8}[k%3], 600+r.IntN(3000)
		if k%5 == 0 {
			model = llama(model)
		}
		batch := 3 + r.IntN(4)
		c := randomCluster(r)
		if k%4 == 3 { // a slice may lie in the cache where all do not
			c.Device.Cache = &cost.Cache{Memory: 30e3, Bandwidth: 10 * c.Device.MemoryBandwidth}
		}
		b := &brute{
			t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, cluster: c,
			opts: Options{RuntimeNGPUs: 1, TopK: r.IntN(3), Offload: []string{"none", "none", ""}[r.IntN(3)], MicroBatch: batch},
		}
		switch k % 5 {
		case 1, 2:
			b.opts.RuntimeNGPUs, b.opts.PlanNGPUs, b.opts.TP, b.opts.MicroBatch = 2, 2, k%5, batch/2
			if zero := r.IntN(4); k%5 == 1 {
				b.opts.ZeRO = &zero
			}
		case 3:
			b.opts.RuntimeNGPUs, b.opts.PlanNGPUs, b.opts.TP, b.opts.PP, b.opts.MicroBatch = 2, 2, 1, 2, 2
			b.opts.Schedule = []partition.Schedule{"", partition.GPipe, partition.ZeroBubble}[r.IntN(3)]
			if model = tiny(2 + 2*r.IntN(2)); model.NLayer == 4 {
				b.opts.Schedule = partition.Interleaved
			}
			model.Bias, model.Dropout, model.BlockSize, model.VocabSize = false, 0, b.tokens, 1500
			b.g, b.blocks = step(t, model, batch), model.NLayer
		}
		asked := b.opts // what fits in so many
		asked.LossSlices, asked.Recompute = []int{8, 4, 2, 4, 8, 2, 1}[k%7], []Recompute{RecomputeNone, RecomputeNone, RecomputePointwise}[r.IntN(3)]
		like, err := Search(b.g, batch, c, asked)
		if err != nil {
			continue
		}
		b.limit = slices.Max(like.Prediction.PeakBytes) + r.Int64N(2)*500
		b.opts.MemoryLimit = b.limit
		if left(k, 8, 0, 1, 2, 3, 6) || b.skip() {
			continue
		}
		res, _ := b.compare(seed, k)
		if res == nil {
			infeasible++
			continue
		}
		if found[res.Plan.LossSlices]++; res.Plan.LossSlices > 0 && res.Plan.Stages[len(res.Plan.Stages)-1].Recomputed() > 0 {
			recomputing++
		}
	}
	t.Logf("slices %v, %d of them recompute, %d infeasible", found, recomputing, infeasible)
	for _, n := range []int{0, 2, 4} {
		require.Positive(t, found[n], "slices %d", n)
	}
	require.Positive(t, recomputing)
}

// TestSlicesOfAHeadThatIsWhole: where every tensor-parallel rank holds the head, its gradient is summed over them in the update
// with one slice of the loss and in the pass with more, which may take less.
func TestSlicesOfAHeadThatIsWhole(t *testing.T) {
	const batch = 32
	model := gpt.Config{
		NLayer: 5, NHead: 4, NKVHead: 4, NEmbd: 512, BlockSize: 32, VocabSize: 33000,
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: true,
	}
	v100 := cluster(t, "v100")
	v100.Device.Efficiency.TileFill = 120 // with which a head of half as many rows may take less
	opts, err := Options{RuntimeNGPUs: 36}.on(v100, batch)
	require.NoError(t, err)
	s := newSearcher(step(t, model, batch), batch, v100, opts)
	faster := 0
	for _, d := range []degrees{{plan: 36, dp: 3, cp: 1, tp: 4, pp: 3}, {plan: 12, dp: 3, cp: 1, tp: 2, pp: 2}} {
		o := outline{degrees: d, sharding: sharding{sequence: true, split: split{replicate: "attn+wte"}, slices: 1}, chunks: 1}
		cut := evenCut(s.graphs.blocks, d.pp, func(int) extent { return kept })
		for _, size := range []int{1, 4, 8} {
			one, two := inSlices(t, s, o, 1, size), inSlices(t, s, o, 2, size)
			require.LessOrEqual(t, one.time(cut)-one.inHead(), two.time(cut), "%+v, micro-batches of %d", d, size)
			refined, err := s.refined(&pending{outline: o}, size, partition.OneFOneB, nil)
			require.NoError(t, err)
			require.LessOrEqual(t, refined, two.time(cut), "%+v, micro-batches of %d", d, size)
			if two.time(cut) < one.time(cut) {
				faster++
			}
		}
	}
	require.Positive(t, faster)
}

// TestSumsOfAHeadThatIsWhole: the sum of that gradient, over slow links and of a wide vocabulary, is what slices spare.
func TestSumsOfAHeadThatIsWhole(t *testing.T) {
	const batch, size = 32, 4
	model := gpt.Config{
		NLayer: 5, NHead: 12, NKVHead: 12, NEmbd: 504, BlockSize: 32, VocabSize: 20000,
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: true,
	}
	h100 := cluster(t, "h100")
	h100.IntraNode.Bandwidth /= 30
	opts, err := Options{RuntimeNGPUs: 36}.on(h100, batch)
	require.NoError(t, err)
	s := newSearcher(step(t, model, batch), batch, h100, opts)
	o := outline{degrees: degrees{plan: 36, dp: 3, cp: 1, tp: 4, pp: 3}, sharding: sharding{sequence: true, split: split{replicate: "wte"}}, chunks: 1}
	cut := evenCut(s.graphs.blocks, 3, func(int) extent { return kept })
	one, two := inSlices(t, s, o, 1, size), inSlices(t, s, o, 2, size)
	require.LessOrEqual(t, one.time(cut)-one.inHead(), two.time(cut))
	require.Less(t, two.time(cut), one.time(cut))
}

// TestSlicesBesideAModuleThatIsWhole: where tensor-parallel ranks hold attention whole, they may communicate less with more slices
// of the loss.
func TestSlicesBesideAModuleThatIsWhole(t *testing.T) {
	const batch = 16
	model := gpt.Config{
		NLayer: 3, NHead: 12, NKVHead: 12, NEmbd: 768, BlockSize: 32, VocabSize: 65,
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: true,
	}
	a10g := cluster(t, "a10g")
	a10g.IntraNode.Bandwidth /= 100
	opts, err := Options{RuntimeNGPUs: 2}.on(a10g, batch)
	require.NoError(t, err)
	s := newSearcher(step(t, model, batch), batch, a10g, opts)
	o := outline{degrees: degrees{plan: 2, dp: 1, cp: 1, tp: 2, pp: 1}, sharding: sharding{split: split{replicate: "attn"}}, chunks: 1}
	cut := evenCut(s.graphs.blocks, 1, func(int) extent { return kept })
	for _, size := range []int{1, 2, 4} {
		two, four := inSlices(t, s, o, 2, size), inSlices(t, s, o, 4, size)
		require.LessOrEqual(t, two.time(cut)-two.inHead(), four.time(cut), "micro-batches of %d", size)
		if size == 1 {
			require.Less(t, four.time(cut), two.time(cut))
		}
	}
}

// inSlices is the pipeline of an outline with the loss in so many slices, for micro-batches of a size.
func inSlices(t *testing.T, s *searcher, o outline, slices, size int) *pipeline {
	o.slices = slices
	skel, err := s.skeleton(o)
	require.NoError(t, err)
	p := newPipeline(skel, skel.memoryOf(size), size, partition.OneFOneB)
	p.stages = skel.times(size, partition.OneFOneB)
	return p
}

// TestSlicesAfterALayout: an interleaved pipeline whose bound says that it fits, and whose layout says that it does not, leads to
// more slices of the loss.
func TestSlicesAfterALayout(t *testing.T) {
	const batch = 16
	c, err := cost.Load("a100-40g:8+h100:8")
	require.NoError(t, err)
	zero := 2
	found, err := Search(step(t, preset(t, "gpt2"), batch), batch, c, Options{
		PlanNGPUs: 8, RuntimeNGPUs: 16, DP: 1, TP: 4, PP: 2, Interleave: 4, ZeRO: &zero, MicroBatch: 1, Offload: "params", OverlapP2P: "on", MemoryLimit: 186_952_063,
	})
	require.NoError(t, err)
	require.Equal(t, 16, found.Plan.LossSlices)
}

// TestSlicesOfWhatIsNotLaidOut: a plan that fits by the bound of its memory, and in truth does not, may be slower than the best and
// so be of no interest, but take less than that with more slices of the loss: where those lie in the cache and all logits do not.
func TestSlicesOfWhatIsNotLaidOut(t *testing.T) {
	const batch = 8
	link := cost.Link{Bandwidth: 1e11, Efficiency: 1, Latency: 1e-8}
	model := tiny(2)
	model.NHead, model.NEmbd, model.BlockSize, model.VocabSize, model.Bias, model.Dropout = 2, 8, 32, 2802, false, 0
	deep := llama(model)
	deep.NLayer, deep.VocabSize, deep.FFNHidden = 4, 1601, 29
	for name, x := range map[string]struct {
		model  gpt.Config
		opts   Options
		size   int // of micro-batches that do not fit with one slice
		cache  int64
		launch float64
	}{
		"one rank":    {model, Options{RuntimeNGPUs: 1, Recompute: RecomputeNone}, 8, 2_400_000, 9e-7},
		"interleaved": {deep, Options{RuntimeNGPUs: 2, PlanNGPUs: 2, PP: 2, Schedule: partition.Interleaved}, 5, 451_921, 2.765e-7},
	} {
		t.Run(name, func(t *testing.T) {
			c := &cost.Cluster{
				Name: "cached", DevicesPerNode: 2, IntraNode: link, InterNode: link,
				Device: cost.Device{
					Name: "d", Cores: 1, Memory: 1 << 30, FLOPS: map[string]float64{"f32": 1.7e11}, MemoryBandwidth: 2.5e10, LaunchOverhead: x.launch,
					Cache:      &cost.Cache{Memory: x.cache, Bandwidth: 4.5e11},
					Efficiency: cost.Efficiency{Matmul: 0.8, MatmulHalf: 2e5, Attention: 0.4, Vector: 0.1, Memory: 0.8},
				},
			}
			g, opts := step(t, x.model, batch), x.opts
			opts.MicroBatch, opts.LossSlices = x.size, 1
			whole, err := Search(g, batch, c, opts)
			require.NoError(t, err)
			peaks := whole.Prediction.PeakBytes
			opts.LossSlices, opts.MemoryLimit = 2, peaks[len(peaks)-1]-1
			given, err := Search(g, batch, c, opts)
			require.NoError(t, err)
			opts.MicroBatch, opts.LossSlices = 0, 0
			found, err := Search(g, batch, c, opts)
			require.NoError(t, err)
			require.LessOrEqual(t, found.Prediction.Step, given.Prediction.Step)
			require.Equal(t, 2, found.Plan.LossSlices)
			require.Greater(t, whole.Prediction.Step, found.Prediction.Step)
		})
	}
}

// TestSlicesUnderGPipe: with several slices of the loss all of the head is part of the backward passes, so that under gpipe a first
// position which others wait for begins with those earlier.
func TestSlicesUnderGPipe(t *testing.T) {
	const batch, blocks = 32, 22
	model := preset(t, "gpt2")
	model.NLayer, model.VocabSize, model.Float = blocks, 16384, ir.BF16
	s := newSearcher(step(t, model, batch), batch, cluster(t, "a100-80g"), Options{RuntimeNGPUs: 2, Schedule: partition.GPipe})
	of := func(slices int) *cutter {
		skel, err := s.skeleton(outline{degrees: degrees{plan: 2, dp: 1, cp: 1, tp: 1, pp: 2}, sharding: sharding{slices: slices}, chunks: 1})
		require.NoError(t, err)
		return newCutter(s, skel, 2, partition.GPipe)
	}
	one, two := of(0), of(2)
	cut := []partition.Stage{uniform(full, 11).stage(0, 11), recomputation{}.stage(11, 11)}
	require.Less(t, two.pipe.time(cut), one.pipe.time(cut))
	require.LessOrEqual(t, one.pipe.time(cut)-one.inHead(), two.pipe.time(cut))
}

// TestSlicesLeaveTheFirstPosition: with tied embeddings the first position of a pipeline is the same with the loss in any number of
// slices, though the last may have the head's gradient whole or in parts, of small vocabularies: it comes as the table lies.
func TestSlicesLeaveTheFirstPosition(t *testing.T) {
	for name, x := range map[string]struct {
		vocabulary int
		sharding
	}{
		"cut":                         {5, sharding{}},
		"cut, sequence parallel":      {5, sharding{sequence: true}},
		"whole, sequence parallel":    {601, sharding{zero: 1, sequence: true, split: split{replicate: "wte"}}},
		"whole and sharded by ZeRO":   {601, sharding{zero: 3, sequence: true, split: split{replicate: "attn+wte"}}},
		"whole, reduced in the pass":  {17, sharding{zero: 2, sequence: true, split: split{replicate: "wte"}}},
		"whole, with few tokens each": {17, sharding{sequence: true, overlap: true, split: split{replicate: "wte"}}},
	} {
		model := tiny(2)
		model.BlockSize, model.NHead, model.VocabSize = 16, 4, x.vocabulary
		g := step(t, model, 6)
		for _, tp := range []int{2, 4} {
			s := newSearcher(g, 6, cluster(t, "h100"), Options{RuntimeNGPUs: 4 * tp})
			var first []int64
			for n := 1; n <= mostSlices; n *= 2 {
				x.slices = n
				plan, err := s.template(outline{degrees: degrees{plan: 4 * tp, dp: 2, cp: 1, tp: tp, pp: 2}, sharding: x.sharding, chunks: 1})
				require.NoError(t, err)
				plan.MicroBatch, plan.Schedule, plan.Stages = 1, partition.OneFOneB, evenCut(2, 2, func(int) extent { return kept })
				prog, err := codegen.Draft(g, &plan, 6, plan.Lone(6))
				require.NoError(t, err)
				peaks, _, err := s.peaks(prog.Plan)
				require.NoError(t, err)
				first = append(first, peaks[0])
			}
			require.Equal(t, slices.Repeat(first[:1], len(first)), first, "%s, tp %d", name, tp)
		}
	}
}

// TestGradientsInSlices: with more slices of the loss tensor-parallel ranks may sum a gradient of the head that they hold whole in the
// pass, each its share, and that of a table which the embedding shares in the sum of that. The bound that leads to slices knows.
func TestGradientsInSlices(t *testing.T) {
	const dp, tp, blocks = 2, 4, 2
	for name, x := range map[string]struct {
		pp, vocabulary, batch int
		tied                  bool
		sharding
	}{
		"in shares":          {2, 65, 2, false, sharding{zero: 1, sequence: true, overlap: true, split: split{replicate: "lm_head"}}},
		"with the embedding": {1, 601, 12, true, sharding{sequence: true, split: split{replicate: "wte"}}},
	} {
		model := tiny(blocks)
		model.BlockSize, model.NHead, model.VocabSize, model.TieEmbeddings = 16, 4, x.vocabulary, x.tied
		s := newSearcher(step(t, model, x.batch), x.batch, cluster(t, "h100"), Options{RuntimeNGPUs: dp * tp * x.pp})
		o := outline{degrees: degrees{plan: dp * tp * x.pp, dp: dp, cp: 1, tp: tp, pp: x.pp}, sharding: x.sharding, chunks: 1}
		skel, err := s.skeleton(o)
		require.NoError(t, err)
		p := newPipeline(skel, skel.memoryOf(1), 1, partition.OneFOneB)
		p.leaveHead()
		least := p.memory[x.pp-1].atLeast(blocks/x.pp, recomputation{}, p.room[x.pp-1])
		for n := 1; n <= mostSlices; n *= 2 {
			o.slices = n
			plan, err := s.template(o)
			require.NoError(t, err)
			plan.MicroBatch, plan.Schedule, plan.Stages = 1, partition.OneFOneB, evenCut(blocks, x.pp, func(int) extent { return kept })
			peaks, _, err := s.peaks(&plan)
			require.NoError(t, err)
			require.LessOrEqual(t, least, peaks[x.pp-1], "%s, %d slices", name, n)
		}
	}
}
