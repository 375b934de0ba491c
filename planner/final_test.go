package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/exact"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/sim"
)

// randomOutline is degrees, sharding and chunks for so many blocks.
func randomOutline(r *rand.Rand, blocks, batch int) (o outline, units int, ok bool) {
	d := degrees{dp: 1 + r.IntN(4), cp: 1, tp: 1 + r.IntN(3), pp: 1 + r.IntN(min(5, blocks))}
	if r.IntN(3) == 0 {
		d.cp += 1 + r.IntN(3)
	}
	grid := d.tp == 3 && d.dp%2 == 1
	if grid {
		d.tp = 8
	}
	d.plan = d.dp * d.cp * d.tp * d.pp
	units = 1 + r.IntN(2)
	all := d.dp * units
	var sh sharding
	if all > 1 {
		sh.zero = r.IntN(4)
		if g := 2 + r.IntN(3); sh.zero > 0 && all%g == 0 && g < all {
			sh.group = g
		}
	}
	sh.sequence = d.tp > 1 && r.IntN(2) == 0
	sh.offload = []partition.Offload{partition.OffloadNone, partition.OffloadOptimizer, partition.OffloadParams}[r.IntN(3)]
	chunks := 1
	if d.pp > 1 && blocks/d.pp > 1 && r.IntN(2) == 0 {
		chunks = 2 + r.IntN(blocks/d.pp-1)
	}
	if d.cp == 1 && !sh.offload.Moves() {
		sh.overlap = r.IntN(3) > 0
	}
	if d.tp > 1 && r.IntN(3) == 0 {
		sh.replicate = []string{"attn", "mlp", "wte", "attn+mlp", "attn+wte", "mlp+wte"}[r.IntN(6)]
	}
	if grid && (d.cp == 1 || sh.group == 0) {
		sh.split = split{grid: []string{"attn", "mlp", "attn+mlp"}[blocks%3], rows: []int{2, 4}[batch%2]}
	}
	return outline{d, sh, chunks, "", d.pp > 1 && blocks%2 == 0}, units, all <= batch
}

// What is said of a plan without compiling it is what its program says: memory to
// the byte, also with an evaluation beside, and where the time goes to the
// picosecond.
func TestFinishIsTheProgram(t *testing.T) {
	t.Parallel()
	const seed = 31
	r := rand.New(rand.NewPCG(seed, 0))
	cases := most(120, 48)
	if testing.Short() {
		cases = 40
	}
	var seen struct{ overlapped, interleaved, inner, offloaded, evaluated int }
	for k := range cases {
		blocks, batch := 1+r.IntN(12), 1+r.IntN(13)
		if k%3 == 0 {
			blocks += 12
		}
		model := tiny(blocks)
		model.Bias = r.IntN(2) == 0
		model.Dropout = []float64{0, 0.2}[r.IntN(2)]
		model.NHead = 1 + r.IntN(4)
		model.NEmbd = model.NHead * 8
		model.BlockSize = []int{33, 24}[r.IntN(2)]
		if k%4 == 0 {
			model = llama(model)
		}
		model.Float = []ir.DType{ir.F32, ir.BF16, ir.F16}[k%3]
		o, units, ok := randomOutline(r, min(blocks, 12), batch)
		if !ok {
			continue
		}
		c := randomCluster(r)
		c.Device.Shared = k%4 == 0
		g := step(t, model, batch)
		if k%6 == 3 {
			var err error
			g, err = exact.Sums(g)
			require.NoError(t, err)
		}
		opts := Options{RuntimeNGPUs: o.plan * units}
		if k%2 == 0 && k%6 != 3 {
			var err error
			opts.Eval, err = gpt.EvalStep(model, batch, model.BlockSize)
			require.NoError(t, err)
			seen.evaluated++
		}
		s := newSearcher(g, batch, c, opts)
		skel, err := s.skeleton(o)
		if err == nil {
			skel.upTo(full) // whatever is replicated
		}
		if err != nil {
			continue // nothing to split so far
		}
		cut := randomCut(r, blocks, o.pp*o.chunks)
		for again := range 3 {
			if again == 2 { // some of these stages have been compiled by then
				cut = randomCut(r, blocks, o.pp*o.chunks)
			}
			b := 1 + r.IntN((batch+skel.plan.DataParallel()-1)/skel.plan.DataParallel())
			for !o.inStep(b, skel.plan.DataParallel(), batch) {
				b++
			}
			schedule := []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.ZeroBubble}[r.IntN(3)]
			if o.chunks > 1 {
				schedule = partition.Interleaved
				seen.interleaved++
			}
			p := newPipeline(skel, skel.memoryOf(b), b, schedule)
			p.stages = skel.times(b, schedule)
			x := &candidate{pipe: p, plan: p.plan(cut), cut: cut, time: p.time(cut)}
			got, err := s.finish(x)
			require.NoError(t, err)

			prog, peaks, err := s.allocate(x.plan)
			require.NoError(t, err)
			line, err := sim.Run(prog, c, sim.Options{})
			require.NoError(t, err)
			want := Prediction{Step: line.Step, Breakdown: line.Breakdown(), PeakBytes: peaks, HostBytes: hostBytes(prog)}
			require.Equal(t, want, got, "seed %d case %d: %+v units %d batch %d b %d %s %+v", seed, k, o, units, batch, b, schedule, cut)
			if got.Breakdown.Overlapped > 0 {
				seen.overlapped++
			}
			if o.pp > 3 {
				seen.inner++
			}
			if got.HostBytes != nil {
				seen.offloaded++
			}
			if opts.Eval == nil {
				continue
			}
			eval, err := codegen.Compile(opts.Eval, x.plan, batch, prog)
			require.NoError(t, err)
			all, err := s.footprintsOf(x.plan, laidOut)
			require.NoError(t, err)
			for at, st := range eval.Stages {
				regions := all[at].eval
				regions.Chunks = st.Chunks
				for i, c := range all[at].eval.Chunks {
					require.Equal(t, [2]int64{st.Chunks[i].Slot, st.Chunks[i].Inbox}, [2]int64{c.Slot, c.Inbox})
				}
				require.Equal(t, st.Arena(), regions.Arena(), "seed %d case %d: evaluation at position %d: %+v %+v", seed, k, at, o, cut)
			}
		}
	}
	t.Logf("%+v", seen)
	for _, n := range []int{seen.overlapped, seen.interleaved, seen.inner, seen.offloaded, seen.evaluated} {
		require.Positive(t, n)
	}
}

// Few blocks show how many lie, whatever the plan: a stage of twelve need not be
// compiled, and takes what it takes when it is.
func TestFewBlocksShowMany(t *testing.T) {
	const seed = 41
	r := rand.New(rand.NewPCG(seed, 0))
	overlapped, split := map[partition.Schedule]int{}, 0
	for k := range 80 {
		batch := 1 + r.IntN(13)
		o, units, ok := randomOutline(r, 6, batch)
		if !ok {
			continue
		}
		cut := make([]partition.Stage, o.stages())
		blocks := 0
		for i := range cut {
			n := 1 + r.IntN(12)
			again := recomputation{full: []int{0, n, r.IntN(n + 1)}[r.IntN(3)]}
			switch r.IntN(4) {
			case 0:
				again.selective = n - again.full
			case 1:
				again.pointwise = n - again.full
			case 2:
				again.selective = r.IntN(n - again.full + 1)
				again.pointwise = n - again.full - again.selective
			}
			cut[i] = again.stage(blocks, n)
			blocks += n
		}
		model := tiny(blocks)
		model.Bias, model.Dropout = r.IntN(2) == 0, []float64{0, 0.2}[r.IntN(2)]
		model.Float = []ir.DType{ir.F32, ir.BF16, ir.F16}[k%3]
		if k%4 == 0 {
			model = llama(model)
		}
		eval, err := gpt.EvalStep(model, batch, model.BlockSize)
		require.NoError(t, err)
		s := newSearcher(step(t, model, batch), batch, randomCluster(r), Options{RuntimeNGPUs: o.plan * units, Eval: eval})
		plan, err := s.template(o)
		require.NoError(t, err)
		plan.Stages = cut
		plan.MicroBatch = 1 + r.IntN((batch+plan.DataParallel()-1)/plan.DataParallel())
		plan.Schedule = []partition.Schedule{partition.OneFOneB, partition.ZeroBubble, partition.EagerOneFOneB, partition.EagerZeroBubble}[r.IntN(4)]
		if o.chunks > 1 {
			plan.Schedule = partition.Interleaved
		}
		if o.overlap {
			overlapped[plan.Schedule]++
		} else if plan.Schedule.SplitsBackward() {
			split++
		}
		got, _, err := s.peaks(&plan)
		require.NoError(t, err)
		_, want, err := s.allocate(&plan)
		require.NoError(t, err)
		require.Equal(t, want, got, "seed %d case %d: %+v units %d %s %+v", seed, k, o, units, plan.Schedule, cut)
		for key, c := range s.compiled {
			require.False(t, c.unlike || key.whole, "seed %d case %d: %+v units %d %s %+v", seed, k, o, units, plan.Schedule, cut)
		}
	}
	require.Len(t, overlapped, 5)
	require.Positive(t, split)
	t.Logf("%v overlapped, %d zero-bubble", overlapped, split)
}
