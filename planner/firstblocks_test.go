package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/sim"
)

// requireExact makes sure that the cost of a plan is what the simulation of its program says.
func requireExact(t *testing.T, s *searcher, o outline, b int, schedule partition.Schedule, cut []partition.Stage) {
	t.Helper()
	skel, err := s.skeleton(o)
	require.NoError(t, err)
	skel.upTo(full)
	p := newPipeline(skel, skel.memoryOf(b), b, schedule)
	p.stages = skel.times(b, schedule)
	prog, err := codegen.Compile(s.graphs.graph, p.plan(cut), s.batch, nil)
	require.NoError(t, err)
	line, err := sim.Run(prog, s.cluster, sim.Options{})
	require.NoError(t, err)
	require.Equal(t, line.Step, p.time(cut), "%+v %+v, micro-batches of %d, %s %+v", o.degrees, o.sharding, b, schedule, cut)
}

// TestFirstBlocksAreLikeOthers: programs in which the first block of a stage, or what stands before or after the blocks, could
// easily differ from those with one block, from which costs are.
func TestFirstBlocksAreLikeOthers(t *testing.T) {
	uncut := []partition.Stage{{Last: 4}}
	for name, x := range map[string]struct {
		vocab   int
		cluster string
		outline
		size     int
		schedule partition.Schedule
		cut      []partition.Stage
	}{
		"the first block does not gather its input where others sum a gradient beside a product": {
			vocab: 2, cluster: "h100", outline: outline{degrees: degrees{plan: 6, dp: 1, cp: 1, tp: 6, pp: 1}, sharding: sharding{sequence: true}},
			size: 8, schedule: partition.OneFOneB, cut: uncut,
		},
		"nor before a gradient is received, where it is recomputed, and otherwise after": {
			vocab: 1, cluster: "cpu", outline: outline{degrees: degrees{plan: 8, dp: 1, cp: 1, tp: 4, pp: 2}, sharding: sharding{offload: partition.OffloadOptimizer, split: split{replicate: "attn+mlp"}}},
			size: 5, schedule: partition.GPipe, cut: []partition.Stage{{Last: 1, Recompute: 1}, {First: 1, Last: 4, Selective: 3}},
		},
		"the first block's sums are whole over the rows of a grid, though what it is given is cut": {
			vocab: 3, cluster: "cpu", outline: outline{degrees: degrees{plan: 6, dp: 1, cp: 1, tp: 6, pp: 1}, sharding: sharding{sequence: true, split: split{grid: "attn", rows: 2}}},
			size: 4, schedule: partition.OneFOneB, cut: uncut,
		},
		"also where all modules are on it": {
			vocab: 3, cluster: "h100", outline: outline{degrees: degrees{plan: 6, dp: 1, cp: 1, tp: 6, pp: 1}, sharding: sharding{sequence: true, split: split{grid: "attn+mlp", rows: 2}}},
			size: 9, schedule: partition.OneFOneB, cut: uncut,
		},
		"gradients of the head are reduced with each other, not with those of a block": {
			vocab: 5, cluster: "h100", outline: outline{degrees: degrees{plan: 12, dp: 2, cp: 1, tp: 6, pp: 1}, sharding: sharding{zero: 2, overlap: true, split: split{grid: "mlp", rows: 2}}},
			size: 8, schedule: partition.ZeroBubble, cut: []partition.Stage{{Last: 4, Recompute: 4}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model := tiny(4)
			model.NHead, model.NEmbd, model.BlockSize, model.VocabSize, model.Position, model.Dropout = 6, 36, 5, x.vocab, gpt.RoPE, 0
			model.Bias = x.vocab != 3
			if x.vocab == 5 {
				model.Position = gpt.Learned
			}
			const batch = 16
			c := cluster(t, x.cluster)
			opts, err := Options{RuntimeNGPUs: x.plan}.on(c, batch)
			require.NoError(t, err)
			x.chunks = 1
			requireExact(t, newSearcher(step(t, model, batch), batch, c, opts), x.outline, x.size, x.schedule, x.cut)
		})
	}
}

// TestFirstBlocksWaitWithWhatTheyShare: the positions of a rank's tokens, cut before the first block, wait for what is gathered for that
// block as its first kernel does: with more tensor-parallel ranks than heads, which turn queries and keys token by token.
func TestFirstBlocksWaitWithWhatTheyShare(t *testing.T) {
	const batch = 2
	model := llama(tiny(4))
	model.BlockSize, model.Dropout = 24, 0
	c := cluster(t, "h100") // but with links so slow that all wait for what is gathered
	c.IntraNode.Bandwidth = 1e8
	s := newSearcher(step(t, model, batch), batch, c, Options{RuntimeNGPUs: 8, OverlapTP: "on"})
	o := outline{degrees: degrees{plan: 8, dp: 2, cp: 1, tp: 4, pp: 1}, sharding: sharding{zero: 3, sequence: true, overlap: true}, chunks: 1}
	for _, recompute := range []int{0, 2} {
		requireExact(t, s, o, 1, partition.OneFOneB, []partition.Stage{{Last: 4, Recompute: recompute}})
	}
}

// TestReceivingStagesAreLikeOthers: the first block of a stage whose gradient is received, which waits for weights that the
// stream gathers, puts no more off beside a collective than the others, whose program has one.
func TestReceivingStagesAreLikeOthers(t *testing.T) {
	const batch = 12
	model := tiny(5)
	model.NHead, model.NEmbd, model.BlockSize, model.Bias, model.Dropout, model.Float = 2, 64, 32, false, 0, ir.BF16
	c := cluster(t, "h100") // but so slow that it makes a difference what runs beside what
	c.Device.Efficiency.Beside = 0
	c.Device.FLOPS["bf16"], c.Device.MemoryBandwidth, c.IntraNode.Bandwidth, c.InterNode.Bandwidth = 2e11, 7e9, 5.8e8, 3.7e7
	d := degrees{plan: 16, dp: 4, cp: 1, tp: 2, pp: 2}
	opts, err := Options{RuntimeNGPUs: d.plan, OverlapTP: "on"}.on(c, batch)
	require.NoError(t, err)
	o := outline{degrees: d, chunks: 1, sharding: sharding{zero: 3, overlap: true, sequence: true, split: split{replicate: "mlp"}}}
	requireExact(t, newSearcher(step(t, model, batch), batch, c, opts), o, 3, partition.OneFOneB, []partition.Stage{{Last: 2}, {First: 2, Last: 5}})
}

// TestCostOfTinyVocabularies: where there are fewer words than ranks a table is cut by columns, or in two dimensions as rows of
// ranks are. Random models, clusters and outlines.
func TestCostOfTinyVocabularies(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	const batch = 16
	compared := 0
	for range 25 {
		blocks := []int{1, 4}[r.IntN(2)]
		model := tiny(blocks)
		model.NHead, model.NEmbd, model.BlockSize, model.VocabSize, model.Dropout = 6, 36, 5, 1+r.IntN(7), 0
		if r.IntN(3) > 0 {
			model.Position = gpt.RoPE
		}
		model.Bias = r.IntN(2) == 0
		c := cluster(t, []string{"cpu", "h100"}[r.IntN(2)])
		d := []degrees{{plan: 6, dp: 1, cp: 1, tp: 6, pp: 1}, {plan: 12, dp: 2, cp: 1, tp: 6, pp: 1}, {plan: 4 * min(blocks, 2), dp: 1, cp: 1, tp: 4, pp: min(blocks, 2)}}[r.IntN(3)]
		opts, err := Options{RuntimeNGPUs: d.plan}.on(c, batch)
		require.NoError(t, err)
		s := newSearcher(step(t, model, batch), batch, c, opts)
		ways := append(grids(s.layouts.gridModules(), 2), split{}, split{}, split{})
		for _, whole := range replications(s.layouts.modules()) {
			ways = append(ways, split{replicate: whole}, split{replicate: whole, batch: true})
		}
		for range 10 {
			o := outline{degrees: d, sharding: sharding{split: ways[r.IntN(len(ways))]}, chunks: 1}
			o.sequence = r.IntN(2) == 0 && !o.batch
			o.offload = []partition.Offload{partition.OffloadNone, partition.OffloadNone, partition.OffloadOptimizer, partition.OffloadParams}[r.IntN(4)]
			if d.dp > 1 {
				o.zero, o.overlap = r.IntN(4), r.IntN(2) == 0 && !o.offload.Moves()
			}
			if _, err := s.skeleton(o); err != nil {
				continue // nothing to split so
			}
			compared++
			requireExact(t, s, o, []int{8, 7, 6}[r.IntN(3)], []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.ZeroBubble}[r.IntN(3)], randomCut(r, blocks, d.pp))
		}
	}
	require.Greater(t, compared, 100)
}
