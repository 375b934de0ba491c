package planner

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// randomFlow is a backward pass of segments before, of and after blocks, whose gradients are reduced and
// not waited for; of some flows once more at their end.
func randomFlow(r *rand.Rand) *flow {
	slow := cost.Picoseconds(r.IntN(3)) // of ten
	f := &flow{beside: true, backward: true, slows: func(t cost.Picoseconds) cost.Picoseconds { return slow * t / 10 }, known: map[flowKey]flowTimes{}}
	f.lastly = r.IntN(2) == 0
	before, after := r.IntN(2), 1+r.IntN(2)
	for e := range extents {
		for k := range before + 1 + after {
			s := segment{block: k == before}
			for range 1 + r.IntN(3) {
				s.items = append(s.items, item{time: cost.Picoseconds(1 + r.IntN(50)), each: s.block})
			}
			if e > kept { // what is reduced does not depend on recomputation
				s.reduces, s.late, s.further = f.segments[kept][k].reduces, f.segments[kept][k].late, f.segments[kept][k].further
			} else {
				for range r.IntN(3) {
					s.reduces, s.late = append(s.reduces, cost.Picoseconds(r.IntN(90))), append(s.late, true)
				}
				if f.lastly && len(s.reduces) > 0 {
					s.further = []cost.Picoseconds{cost.Picoseconds(r.IntN(90))}
				}
			}
			f.segments[e] = append(f.segments[e], s)
		}
	}
	return f
}

// TestOutlasts: of a body that waits for nothing it is no bound but the time itself, with any number of
// blocks.
func TestOutlasts(t *testing.T) {
	const seed = 5
	r := rand.New(rand.NewPCG(seed, 0))
	outlasted, blocks := 0, 9
	for k := range 200 {
		f := randomFlow(r)
		for n := 1; n <= blocks; n++ {
			again := recomputation{full: r.IntN(n + 1)}
			again.pointwise = r.IntN(n - again.full + 1)
			times, got := f.at(tally{n}, again), f.outlasts(tally{n}, again)
			require.Len(t, got, 1)
			want := cost.Picoseconds(0)
			if times.leaves != nil {
				want = max(0, times.leaves[1]-times.spans[0].time)
			}
			require.Equal(t, want, got[0], "seed %d case %d: %d blocks, %+v", seed, k, n, again)
			if want > 0 {
				outlasted++
			}
		}
	}
	require.Greater(t, outlasted, 500)
	require.Nil(t, (*flow)(nil).outlasts(tally{1}, recomputation{}))
}

// TestOutlastsBetweenTransfers: what is handed over before a transfer counts before it.
func TestOutlastsBetweenTransfers(t *testing.T) {
	f := &flow{beside: true, backward: true, slows: func(t cost.Picoseconds) cost.Picoseconds { return t / 10 }}
	f.segments[kept] = []segment{
		{items: []item{{time: 10}}, reduces: []cost.Picoseconds{100}, late: []bool{true}},
		{items: []item{{kind: sim.Send, time: 5}, {time: 20}}, reduces: []cost.Picoseconds{30}, late: []bool{true}},
	}
	require.Equal(t, []cost.Picoseconds{100 + 30 - 5 - 20 - 10 - 3, 30 - 3}, f.outlasts(tally{1}, recomputation{}))
}

// TestOverlapUnderZeroBubble: of a model whose embedding has one gradient, as Llama's, which leads there from
// the first block of the first stage alone, plans take the time of their programs, also where streams are what
// steps wait for.
func TestOverlapUnderZeroBubble(t *testing.T) {
	a100 := cluster(t, "a100-80g")
	a100.IntraNode.Bandwidth /= 1e5
	g := step(t, llama(tiny(5)), 8)
	for _, pp := range []int{1, 2} {
		opts := Options{PlanNGPUs: 4, RuntimeNGPUs: 4, PP: pp, TP: 1, Schedule: partition.ZeroBubble, Overlap: "on"}
		found, err := Search(g, 8, a100, opts)
		require.NoError(t, err)
		whole, err := Predict(g, 8, a100, found.Plan, nil)
		require.NoError(t, err)
		require.Equal(t, whole.Step, found.Prediction.Step, "%+v", found.Plan)
	}
}

// TestOverlapIsSearchedUnderEverySchedule: where gradients take long it pays under each of them, on one kind
// of device and on several, and the certificates hold.
func TestOverlapIsSearchedUnderEverySchedule(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 0))
	one := cluster(t, "a100-80g")
	one.InterNode.Bandwidth, one.DevicesPerNode = one.InterNode.Bandwidth/50, 2
	pools := randomPools(r, 4)
	g := step(t, llama(tiny(4)), 8)
	for _, c := range []*cost.Cluster{one, pools} {
		for _, opts := range []Options{{Schedule: partition.OneFOneB}, {Schedule: partition.GPipe}, {Schedule: partition.ZeroBubble}, {Schedule: partition.Interleaved}, {Interleave: 2}} {
			opts.PlanNGPUs, opts.RuntimeNGPUs, opts.PP, opts.TP, opts.ZeRO = 4, 4, 2, 1, stage(0)
			found, cert, err := SearchCertified(g, 8, c, opts)
			require.NoError(t, err, "%+v", opts)
			require.True(t, slices.ContainsFunc(cert.Regions, func(r Region) bool { return r.overlap }), "%+v", opts)
			whole, err := Predict(g, 8, c, found.Plan, nil)
			require.NoError(t, err)
			require.Equal(t, whole.Step, found.Prediction.Step, "%+v", found.Plan)
			_, err = Certify(g, 8, c, nil, cert, 20, 1)
			require.NoError(t, err, "%+v", opts)
			opts.Overlap = "on"
			with, err := Search(g, 8, c, opts)
			require.NoError(t, err)
			require.GreaterOrEqual(t, with.Prediction.Step, found.Prediction.Step)
			if c == one {
				require.True(t, found.Plan.Overlap, "%+v", opts)
			}
		}
	}
}

// TestBoundsKnowStreams: of layers of GPT-2 xl with overlap the bound of one stage is the time of the plan but for some hundred picoseconds, and that
// of zero-bubble pipelines is close to what they take.
func TestBoundsKnowStreams(t *testing.T) {
	model := preset(t, "gpt2-xl")
	model.NLayer = 12
	g, c := step(t, model, 64), cluster(t, "h100")
	for _, x := range []struct {
		pp    int
		close float64
	}{{1, 0.9999}, {2, 0.98}, {4, 0.95}} {
		s := newSearcher(g, 64, c, Options{RuntimeNGPUs: 32, PlanNGPUs: 32})
		o := outline{degrees{32, 32 / x.pp, 1, 1, x.pp, 0}, sharding{zero: 1, overlap: true}, 1, "", false}
		skel, err := s.skeleton(o)
		require.NoError(t, err)
		schedule := partition.ZeroBubble
		p := newPipeline(skel, skel.memoryOf(1), 1, schedule)
		p.stages = skel.times(1, schedule)
		cut := evenCut(12, x.pp, func(int) extent { return kept })
		b, time := newBounds(p, 1<<60, Options{Recompute: RecomputeNone}, nil), p.time(cut)
		bound := cost.Picoseconds(0)
		for i, st := range cut {
			bound = max(bound, b.time(i, st.Last-st.First))
		}
		require.LessOrEqual(t, bound, time)
		require.GreaterOrEqual(t, float64(bound), x.close*float64(time), "%d stages", x.pp)
	}
}

// TestOutlastsWithSums: nor is it a bound too high where a body adds up what its stream has reduced, or reduces the sums further.
func TestOutlastsWithSums(t *testing.T) {
	const seed = 6
	r := rand.New(rand.NewPCG(seed, 0))
	some := func(n int) cost.Picoseconds { return cost.Picoseconds(r.IntN(n)) }
	exact := 0
	for k := range 3000 {
		slow := some(3) // of ten
		f := &flow{beside: true, backward: true, lastly: r.IntN(2) == 0, slows: func(t cost.Picoseconds) cost.Picoseconds { return slow * t / 10 }, known: map[flowKey]flowTimes{}}
		last, before := r.IntN(2) == 0, r.IntN(2)
		for i := range before + 2 {
			s := segment{block: i == before, items: []item{{time: 1 + some(50), each: i == before}}}
			for range r.IntN(3) {
				s.reduces, s.late = append(s.reduces, some(90)), append(s.late, false)
			}
			if s.each = len(s.reduces); s.each > 0 {
				s.sums = some(2) * some(40)
			}
			if last && r.IntN(2) == 0 {
				s.reduces, s.late = append(s.reduces, some(90)), append(s.late, true)
			}
			if last && s.sums > 0 {
				s.further = []cost.Picoseconds{some(90)}
			}
			f.segments[kept] = append(f.segments[kept], s)
		}
		for n := 1; n <= 5; n++ {
			times := f.at(tally{n}, recomputation{})
			end := times.spans[0].time
			if times.leaves != nil {
				end = max(end, times.leaves[1])
			}
			got := f.outlasts(tally{n}, recomputation{})
			require.Len(t, got, 1)
			bounded := workOf(f, n) + got[0]
			require.LessOrEqual(t, bounded, end, "seed %d case %d: %d blocks", seed, k, n)
			if got[0] > 0 && bounded == end {
				exact++
			}
		}
	}
	t.Logf("%d exact", exact)
	require.Greater(t, exact, 5000)
}
