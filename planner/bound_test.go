package planner

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// TestBoundsOfCuts: where nodes share a slow link, bounds of all cuts are near the best one.
func TestBoundsOfCuts(t *testing.T) {
	t.Parallel()
	const batch = 256
	c := preset(t, "gpt2-medium")
	c.Float = ir.BF16
	on, g := cluster(t, "a10g"), step(t, c, batch)
	opts, err := Options{RuntimeNGPUs: 256}.on(on, batch)
	require.NoError(t, err)
	s := newSearcher(g, batch, on, opts)
	for _, x := range []struct {
		name     string
		degrees  degrees
		sharding sharding
		size     int
		schedule partition.Schedule
		share    float64 // of the time of the cut that the bounds lead to
	}{
		{"micro-batches wait for those before them", degrees{plan: 64, dp: 8, cp: 1, tp: 1, pp: 8}, sharding{zero: 2, group: 8, overlap: true}, 1, partition.ZeroBubble, 0.89},
		{"passes for weight gradients end with their stream", degrees{plan: 64, dp: 8, cp: 1, tp: 1, pp: 8}, sharding{zero: 2, overlap: true}, 1, partition.ZeroBubble, 0.92},
		{"backward passes end with their stream", degrees{plan: 64, dp: 8, cp: 1, tp: 1, pp: 8}, sharding{zero: 2, overlap: true}, 1, partition.OneFOneB, 0.86},
		{"passes wait for what those before them sum", degrees{plan: 8, dp: 1, cp: 1, tp: 2, pp: 4}, sharding{zero: 2, overlap: true}, 2, partition.OneFOneB, 0.68},
		{"micro-batches wait for a way there and back, and then for the stage", degrees{plan: 64, dp: 4, cp: 1, tp: 2, pp: 8}, sharding{overlap: true}, 1, partition.ZeroBubble, 0.915},
		{"and it makes weight gradients meanwhile", degrees{plan: 64, dp: 4, cp: 1, tp: 2, pp: 8}, sharding{zero: 2, overlap: true}, 1, partition.ZeroBubble, 0.965},
		{"after several ways", degrees{plan: 64, dp: 2, cp: 1, tp: 4, pp: 8}, sharding{zero: 1, overlap: true}, 1, partition.OneFOneB, 0.895},
		{"passes wait until what those before them have posted is sent", degrees{plan: 64, dp: 8, cp: 1, tp: 1, pp: 8}, sharding{overlap: true}, 1, partition.GPipe, 0.9},
		{"messages wait for each other, and the first and the last passes for the one before", degrees{plan: 64, dp: 2, cp: 1, tp: 4, pp: 8}, sharding{overlap: true}, 1, partition.EagerOneFOneB, 0.88},
		{"messages wait for each other, and weight gradients are made meanwhile", degrees{plan: 64, dp: 4, cp: 1, tp: 2, pp: 8}, sharding{overlap: true}, 1, partition.EagerZeroBubble, 0.9},
	} {
		if x.schedule.Eager() {
			on.InterNode.Bandwidth = 5e8
			s = newSearcher(g, batch, on, opts)
		}
		o := outline{degrees: x.degrees, sharding: x.sharding, chunks: 1}
		skel, err := s.skeleton(o)
		require.NoError(t, err)
		cut := newCutter(s, skel, x.size, x.schedule)
		cut.settle()
		bound := cut.bounds.ofAll()
		cut.solve(never-1, quick, 0)
		require.GreaterOrEqual(t, float64(bound), x.share*float64(cut.dived), x.name)
		require.LessOrEqual(t, bound, cut.dived, x.name)
		r := rand.New(rand.NewPCG(1, 2))
		for range 30 {
			cut.holds(t, x.name, randomBlocks(r, len(cut.cut), skel.blocks))
		}
	}
}

// randomBlocks draws how many blocks each stage has, one at least.
func randomBlocks(r *rand.Rand, stages, blocks int) []int {
	n := slices.Repeat([]int{1}, stages)
	for range blocks - stages {
		n[r.IntN(stages)]++
	}
	return n
}

// holds compares the bounds of a cut that recomputes nothing, by its stages, with its time.
func (c *cutter) holds(t *testing.T, name string, n []int) {
	first := 0
	for i, n := range n {
		c.cut[i] = partition.Stage{First: first, Last: first + n}
		first += n
	}
	time, before := c.pipe.time(c.cut), passed{}
	for i, st := range c.cut {
		x := &c.bounds.stages[i]
		o := x.option(x.works, n[i], recomputation{}, x.tails.of(i, n[i])+c.pipe.lastPass(i).outlasts(n[i], recomputation{}))
		require.LessOrEqual(t, c.bounds.from(i, c.pipe.skel.blocks-st.First, &o, before), time, "%s: stage %d of %v", name, i, n)
		require.LessOrEqual(t, c.bounds.time(i, n[i]), o.time, "%s: stage %d of %v", name, i, n)
		before = c.bounds.past(before, i, n[i], recomputation{})
	}
	require.LessOrEqual(t, c.bounds.reach(never-1, n[0])[0][c.pipe.skel.blocks], time, "%s: %v", name, n)
}

// TestProofNarrowsTheGap: pipelines with the least bounds are proven first, as others may spend all steps and leave the gap as wide; and
// cuts are bounded by how many blocks the first stage has.
func TestProofNarrowsTheGap(t *testing.T) {
	t.Parallel()
	const batch = 128
	on := cluster(t, "a100-80g")
	on.InterNode.Bandwidth /= 20
	for model, gap := range map[string]float64{"gpt2-medium": 0.06, "gpt2-xl": 0.04} {
		c := preset(t, model)
		c.Float = ir.BF16
		res, _, err := newSearch(step(t, c, batch), batch, on, Options{RuntimeNGPUs: 64, Schedule: partition.ZeroBubble}, 100_000)
		require.NoError(t, err)
		require.Less(t, res.Stats.Gap, gap, model)
	}
}

// TestClimbs: where a search of cuts gives up, no block lies better on another stage of what it has found.
func TestClimbs(t *testing.T) {
	t.Parallel()
	const batch = 256
	c := preset(t, "gpt2-medium")
	c.Float = ir.BF16
	on := cluster(t, "a10g")
	opts, err := Options{RuntimeNGPUs: 256}.on(on, batch)
	require.NoError(t, err)
	s := newSearcher(step(t, c, batch), batch, on, opts)
	for _, zero := range []int{2, 3} {
		skel, err := s.skeleton(outline{degrees: degrees{plan: 64, dp: 8, cp: 1, tp: 1, pp: 8}, sharding: sharding{zero: zero, overlap: true}, chunks: 1})
		require.NoError(t, err)
		cut := newCutter(s, skel, 1, partition.ZeroBubble)
		cut.settle()
		found, certain := cut.solve(never-1, 0, 100_000)
		require.False(t, certain)
		n := make([]int, len(cut.cut))
		for i, st := range found.cut {
			n[i] = st.Last - st.First
		}
		for from := range n {
			for to := range n {
				if from == to || n[from] == 1 {
					continue
				}
				n[from], n[to] = n[from]-1, n[to]+1
				require.LessOrEqual(t, found.time, cut.leafOf(n, never), "ZeRO %d: %v", zero, n)
				n[from], n[to] = n[from]+1, n[to]-1
			}
		}
	}
}

// TestProofClimbs: where a search gives up on more pipelines than it has steps for, it has looked near the cuts of all of them.
func TestProofClimbs(t *testing.T) {
	t.Parallel()
	const batch = 128
	c := preset(t, "gpt2-xl")
	c.Float = ir.BF16
	on := cluster(t, "a100-80g")
	on.InterNode.Bandwidth /= 40
	res, _, err := newSearch(step(t, c, batch), batch, on, Options{RuntimeNGPUs: 64, Schedule: partition.ZeroBubble}, 300_000)
	require.NoError(t, err)
	require.Less(t, res.Prediction.Step, cost.Picoseconds(540_940_000_000)) // without climbing 540.949 ms
}
