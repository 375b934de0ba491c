package planner

import (
	"errors"
	"flag"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// brute is the search without ideas: nested loops over every plan, each compiled
// and simulated whole. Only the layouts come from the planner.
type brute struct {
	t      *testing.T
	g      *ir.Graph
	blocks int
	batch  int
	tokens int

	everywhere bool // what is left out at first: context parallelism of any batch, and modules replicated for batches that are not divided evenly

	cluster *cost.Cluster
	opts    Options
	limit   int64
	best    *candidate
	plans   int
	over    *int64 // by how many bytes the plan misses that comes closest

	counting bool // plans, which are not compiled
}

var exactAll = flag.Bool("exact-all", false, "go through all random cases, of which tests take a part, and hold the search to all plans also in those that have thousands of them")

// most is the first of two numbers of cases with -exact-all; otherwise the second.
func most(all, few int) int {
	if *exactAll {
		return all
	}
	return few
}

// left reports whether only -exact-all goes through the k-th case of a test, which otherwise takes some of every n.
func left(k, n int, taken ...int) bool { return !*exactAll && !slices.Contains(taken, k%n) }

// skip reports whether a case has so many plans that only -exact-all goes through them.
func (b *brute) skip() bool {
	const most = 800
	if *exactAll {
		return false
	}
	all := *b
	all.counting = true
	all.run()
	return all.plans > most
}

func (b *brute) run() {
	s := newSearcher(b.g, b.batch, b.cluster, b.opts)
	for unit := 1; unit <= b.opts.RuntimeNGPUs; unit++ {
		if b.opts.RuntimeNGPUs%unit != 0 || b.opts.PlanNGPUs > 0 && unit != b.opts.PlanNGPUs {
			continue
		}
		for dp := 1; dp <= unit; dp++ {
			for tp := 1; tp <= unit; tp++ {
				for pp := 1; pp <= b.blocks; pp++ {
					cp := unit / (dp * tp * pp)
					all := dp * b.opts.RuntimeNGPUs / unit
					if b.opts.CP > 0 && cp != b.opts.CP || b.opts.CP == 0 && cp > 1 && b.tokens%(2*cp) != 0 {
						continue
					}
					hardlyPays := b.opts.CP == 0 && cp > 1 && all*cp*pp <= b.batch
					if hardlyPays && !b.everywhere {
						continue
					}
					if dp*cp*tp*pp != unit || all > b.batch || b.opts.TP > 0 && tp != b.opts.TP || b.opts.PP > 0 && pp != b.opts.PP {
						continue
					}
					for zero := range 4 {
						for _, sequence := range []bool{false, true} {
							if zero > 0 && all*cp*tp == 1 || sequence && tp == 1 || b.opts.ZeRO != nil && zero != *b.opts.ZeRO {
								continue
							}
							d := degrees{unit, dp, cp, tp, pp, 0}
							for d.order = range b.cluster.Orders() {
								orders := b.rankOrders(d)
								for chunks := 1; pp*chunks <= b.blocks; chunks++ {
									if chunks > 1 && (pp == 1 || chunks != 2 && chunks != 4 && b.blocks%(pp*chunks) > 0) {
										continue
									}
									for _, overlap := range []bool{false, true} {
										if overlap && all*cp*tp == 1 || !overlap && b.opts.Overlap == "on" {
											continue
										}
										groups := zeroGroups(b.opts, d, zero, all, chunks, b.cluster)
										if b.opts.ZeRO == nil && b.roomy() && !overlap {
											groups = groups[:1] // the others only spare memory
										}
										for _, group := range groups {
											for _, offload := range offloads(b.opts, b.cluster) {
												if !overlap || !offload.Moves() {
													for _, ranks := range orders {
														for _, split := range b.splits(s, d, group, sequence, ranks, hardlyPays) {
															if all*cp == 1 && !split.batch && (zero > 0 || overlap) {
																continue
															}
															for _, waits := range b.waits(pp) {
																b.sizes(s, outline{d, sharding{zero, group, sequence, overlap, offload, 0, 0, split}, chunks, ranks, waits}, (b.batch+all-1)/all)
															}
														}
													}
												}
											}
										}
									}
								}
							}
						}
					}
				}
			}
		}
	}
}

// waits lists whether stages wait for what they send.
func (b *brute) waits(pp int) []bool {
	never, always := []bool{false}, []bool{true}
	switch {
	case pp == 1, b.opts.OverlapP2P == "on":
		return never
	case b.opts.OverlapP2P == "off", b.cluster.Device.Shared:
		return always
	case b.roomy():
		return never // waiting only spares memory
	}
	return []bool{false, true}
}

// rankOrders lists all orders of the axes of a unit that differ, on clusters of one kind.
func (b *brute) rankOrders(d degrees) []string {
	if len(b.cluster.Pools) > 0 || b.opts.RankOrder != "" {
		return []string{b.opts.RankOrder}
	}
	met := map[string]bool{}
	for i := range 256 {
		names := []string{"tp", "cp", "dp", "pp"}
		order := strings.Join([]string{names[i%4], names[i/4%4], names[i/16%4], names[i/64]}, "-")
		if partition.CheckRankOrder(order) == nil {
			met[partition.RankOrderOf(order, d.sizes())] = true
		}
	}
	return slices.Sorted(maps.Keys(met))
}

// splits lists the modules that may be replicated or on a grid, with ranks in an order. In the widened space it lists those that only that
// has, if the degrees are not new.
func (b *brute) splits(s *searcher, d degrees, group int, sequence bool, ranks string, newDegrees bool) []split {
	if !b.everywhere {
		return b.splitsIf(s, d, group, sequence, ranks, false)
	}
	all := b.splitsIf(s, d, group, sequence, ranks, true)
	if newDegrees {
		return all
	}
	known := b.splitsIf(s, d, group, sequence, ranks, false)
	return slices.DeleteFunc(all, func(x split) bool { return slices.Contains(known, x) })
}

func (b *brute) splitsIf(s *searcher, d degrees, group int, sequence bool, ranks string, uneven bool) []split {
	all := []split{{}}
	over := d.dp * d.tp * b.opts.RuntimeNGPUs / d.plan
	many := over > b.batch || b.opts.TP > 1 || uneven && b.batch%over != 0
	within := d.tp <= b.cluster.DevicesPerNode || b.cluster.Device.Shared
	replicas := d.dp * b.opts.RuntimeNGPUs / d.plan
	few := 4*b.tokens*((b.batch+replicas-1)/replicas) <= s.layouts.vocabulary()
	if !sequence && ranks == "" && within && few && d.tp > 1 && d.cp == 1 && replicas*d.tp <= b.batch && b.opts.BatchParallel == "" {
		all = append(all, split{replicate: "attn", batch: true}, split{replicate: "mlp", batch: true}, split{replicate: "attn+mlp", batch: true})
	}
	if !sequence || ranks != "" || d.tp > b.cluster.DevicesPerNode && !b.cluster.Device.Shared {
		return all
	}
	if many && b.opts.Replicate != "none" {
		m := s.layouts.modules()
		require.Len(b.t, m, 3)
		for _, replicate := range []string{m[0], m[1], m[2], m[0] + "+" + m[1], m[0] + "+" + m[2], m[1] + "+" + m[2]} {
			all = append(all, split{replicate: replicate})
		}
	}
	for rows := 2; rows*rows <= d.tp && (many || d.tp >= 16) && b.opts.TPRows == 0; rows++ {
		if d.tp%rows == 0 && (d.cp == 1 || group == 0) {
			all = append(all, split{grid: "attn", rows: rows}, split{grid: "mlp", rows: rows}, split{grid: "attn+mlp", rows: rows})
		}
	}
	return all
}

// sizes goes through the sizes of micro-batches and the schedules.
func (b *brute) sizes(s *searcher, o outline, local int) {
	beside := o.tp > 1 && b.opts.OverlapTP != "off" && !b.cluster.Device.Shared
	switch o.pieces = 0; {
	case o.tp > 1 && b.opts.TPPieces > 1:
		o.pieces = b.opts.TPPieces
	case beside && b.opts.TPPieces == 0:
		for _, pieces := range []int{4, 2} {
			in := o
			if in.pieces = pieces; b.inParts(s, in) {
				b.sizesOf(s, in, local, beside)
			}
		}
	}
	b.sizesOf(s, o, local, beside)
}

// inParts reports whether a program of an outline makes anything in parts.
func (b *brute) inParts(s *searcher, o outline) bool {
	skel, err := s.skeleton(o)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(skel.inner.prog(kept).Stages[0].Bodies[ir.Forward].Instrs, func(in codegen.Instr) bool { return in.Parts > 0 })
}

func (b *brute) sizesOf(s *searcher, o outline, local int, beside bool) {
	skel, err := s.skeleton(o)
	if err != nil {
		return
	}
	for size := 1; size <= local; size++ {
		plan := skel.plan
		plan.MicroBatch, plan.OverlapTP = size, beside
		asked := b.opts.MicroBatch == 0 || size == min(b.opts.MicroBatch, local)
		if !asked || !o.inStep(size, plan.DataParallel(), b.batch) || o.batch && size < o.tp || b.opts.TPPieces == 0 && o.pieces >= 2*size && plan.SequenceParts == 0 {
			continue
		}
		if o.chunks > 1 {
			b.sliced(plan, b.interleaved)
			continue
		}
		if b.opts.Schedule == partition.Interleaved {
			continue
		}
		for _, plan.Schedule = range []partition.Schedule{partition.OneFOneB, partition.GPipe, partition.ZeroBubble, partition.EagerOneFOneB, partition.EagerZeroBubble} {
			if o.pp == 1 && plan.Schedule != partition.OneFOneB && b.opts.Schedule == "" ||
				b.opts.Schedule != "" && plan.Schedule != b.opts.Schedule {
				continue // nothing to order, or not asked for
			}
			plan.OverlapTP = beside && !plan.Schedule.SplitsBackward()
			b.cuts(plan, nil, 0)
		}
	}
}

// interleaved goes through the even cut with the same recomputation in all blocks
// of a rank: least work is none, norms and activation functions, all.
func (b *brute) interleaved(plan partition.Plan) {
	plan.Schedule = partition.Interleaved
	if b.plans++; b.counting {
		return
	}
	stages := len(plan.Stages)
	of := make([]extent, plan.PP())
	if b.limit < 1<<40 {
		b.noteInterleaved(plan)
	}
	for at := 0; at < plan.PP(); {
		p := plan
		p.Stages = nil
		first := 0
		for i := range stages {
			last := first + (b.blocks+stages-1-i)/stages
			st := partition.Stage{First: first, Last: last}
			switch of[i%plan.PP()] {
			case pointwise:
				st.Pointwise = last - first
			case full:
				st.Recompute = last - first
			}
			p.Stages = append(p.Stages, st)
			first = last
		}
		prog, err := codegen.Compile(b.g, &p, b.batch, nil)
		require.NoError(b.t, err)
		// The first position that does not fit recomputes more; positions do not
		// depend on each other.
		if prog.Stages[at].Arena() > b.limitAt(&p, at) {
			switch of[at] {
			case kept:
				of[at] = pointwise
			case pointwise:
				of[at] = full
			default:
				return
			}
			continue
		}
		if at++; at < plan.PP() {
			continue
		}
		line, err := sim.Run(prog, b.cluster, sim.Options{})
		require.NoError(b.t, err)
		x := &candidate{plan: &p, time: line.Step}
		for _, st := range prog.Stages {
			x.peaks = append(x.peaks, st.Arena())
		}
		if b.fitsWithFewer(&p) {
			return
		}
		if b.best == nil || x.less(b.best) {
			b.best = x
		}
	}
}

// noteInterleaved keeps by how much the even cut misses when every position recomputes whatever spares the most.
func (b *brute) noteInterleaved(plan partition.Plan) {
	var least []int64
	for _, e := range []extent{kept, pointwise, full} {
		plan.Stages = evenCut(b.blocks, len(plan.Stages), func(int) extent { return e })
		prog, err := codegen.Compile(b.g, &plan, b.batch, nil)
		require.NoError(b.t, err)
		for at, st := range prog.Stages {
			if least = append(least, st.Arena()); e > kept {
				least[at] = min(least[at], st.Arena())
			}
		}
	}
	b.note(&plan, least[:plan.PP()])
}

// sliced calls try with a plan and, where it may have them, those with the loss in slices. Where
// everything fits, everything fits with fewer.
func (b *brute) sliced(plan partition.Plan, try func(partition.Plan)) {
	if try(plan); b.roomy() {
		return
	}
	for n := 2; n <= 16 && b.tokens%n == 0 && plan.ContextParallel() == 1 && b.opts.LossSlices == 0 && !b.counting; n *= 2 {
		plan.LossSlices = n
		try(plan)
	}
}

// fitsWithFewer reports whether a plan fits with half as many slices of the loss.
func (b *brute) fitsWithFewer(p *partition.Plan) bool {
	if p.LossSlices == 0 {
		return false
	}
	fewer := *p
	if fewer.LossSlices /= 2; fewer.LossSlices == 1 {
		fewer.LossSlices = 0
	}
	prog, err := codegen.Compile(b.g, &fewer, b.batch, nil)
	require.NoError(b.t, err)
	for i, st := range prog.Stages {
		if st.Arena() > b.limitAt(&fewer, i) {
			return false
		}
	}
	return true
}

// roomy reports whether every plan fits.
func (b *brute) roomy() bool { return b.limit == 1<<40 && len(b.cluster.Pools) == 0 }

// limitAt is what a rank at a position may take.
func (b *brute) limitAt(p *partition.Plan, at int) int64 {
	if len(b.cluster.Pools) == 0 {
		return b.limit
	}
	return min(b.limit, b.cluster.MemoryAt(p, at))
}

// cuts goes through the ways to place the blocks from first on.
func (b *brute) cuts(plan partition.Plan, cut []partition.Stage, first int) {
	if len(cut) == len(plan.Stages) {
		if first == b.blocks {
			b.recomputations(plan, cut)
		}
		return
	}
	for last := first + 1; last <= b.blocks; last++ {
		b.cuts(plan, append(cut[:len(cut):len(cut)], partition.Stage{First: first, Last: last}), last)
	}
}

// recomputations goes through all numbers of recomputed blocks of a cut.
func (b *brute) recomputations(plan partition.Plan, cut []partition.Stage) {
	var try func(stages []partition.Stage)
	try = func(stages []partition.Stage) {
		if i := len(stages); i < len(cut) {
			n := cut[i].Last - cut[i].First
			if b.opts.Recompute == RecomputeNone || len(plan.Replicated()) > 0 {
				try(append(stages[:i:i], cut[i]))
				return
			}
			for f := 0; f <= n; f++ {
				try(append(stages[:i:i], recomputation{full: f}.stage(cut[i].First, n)))
				for k := 1; k <= n-f; k++ {
					try(append(stages[:i:i], recomputation{full: f, selective: k}.stage(cut[i].First, n)))
					try(append(stages[:i:i], recomputation{full: f, pointwise: k}.stage(cut[i].First, n)))
				}
			}
			return
		}
		if b.plans++; b.counting {
			return
		}
		fits := false
		plan.Stages = stages
		b.sliced(plan, func(p partition.Plan) { // more slices where fewer do not fit
			if fits {
				return
			}
			prog, err := codegen.Compile(b.g, &p, b.batch, nil)
			require.NoError(b.t, err)
			x := &candidate{plan: &p}
			fits = true
			for i, st := range prog.Stages {
				x.peaks = append(x.peaks, st.Arena())
				fits = fits && st.Arena() <= b.limitAt(&p, i)
			}
			b.note(&p, x.peaks)
			if !fits {
				return
			}
			line, err := sim.Run(prog, b.cluster, sim.Options{})
			require.NoError(b.t, err)
			if x.time = line.Step; b.best == nil || x.less(b.best) {
				b.best = x
			}
		})
	}
	try(nil)
}

// note keeps by how much a plan with such peaks misses, if none misses by less.
func (b *brute) note(p *partition.Plan, peaks []int64) {
	over := peaks[0] - b.limitAt(p, 0)
	for at, peak := range peaks {
		over = max(over, peak-b.limitAt(p, at))
	}
	if b.over == nil || over < *b.over {
		b.over = &over
	}
}

// widens reports whether the widened space is searched too.
func (b *brute) widens() bool {
	if b.best == nil {
		return b.opts.CP == 0
	}
	p := b.best.plan
	ranks := p.DataParallel() * p.ContextParallel() * p.TP // of a stage
	inNode := b.cluster.Device.Shared || ranks <= b.cluster.DevicesPerNode
	if b.batch%p.DataParallel() != 0 || b.batch%ranks != 0 && (p.BatchParallel || inNode) {
		return true
	}
	return b.opts.CP == 0 && len(p.Replicated()) > 0 && !p.BatchParallel
}

// compare holds the search to all plans, and its certificate to the audit. It returns nil
// where no plan fits, or none is legal.
func (b *brute) compare(seed, k int) (*Result, *Audit) {
	t := b.t
	defer keepDrafts(b.g)()
	b.run()
	if b.plans > 0 && b.widens() {
		b.everywhere = true
		b.run()
	}
	res, cert, err := SearchCertified(b.g, b.batch, b.cluster, b.opts)
	switch {
	case b.plans == 0:
		require.ErrorAs(t, err, new(*OptionError), "seed %d case %d: no plan is legal", seed, k)
		return nil, nil
	case b.best == nil:
		var none *InfeasibleError
		require.ErrorAs(t, err, &none, "seed %d case %d", seed, k)
		require.GreaterOrEqual(t, none.Needs-none.Limit, *b.over, "seed %d case %d", seed, k)
		require.LessOrEqual(t, none.AtLeast-none.Limit, *b.over, "seed %d case %d", seed, k)
		t.Logf("case %d: the closest misses by %d bytes, %d at least, %d was found", k, *b.over, none.AtLeast-none.Limit, none.Needs-none.Limit)
		return nil, nil
	}
	require.NoError(t, err, "seed %d case %d", seed, k)
	require.Equal(t, b.best.time, res.Prediction.Step, "seed %d case %d: want %+v, got %+v", seed, k, b.best.plan, res.Plan)
	for i, peak := range res.Prediction.PeakBytes {
		require.LessOrEqual(t, peak, b.limitAt(res.Plan, i), "seed %d case %d", seed, k)
	}
	// Of plans that take the same time the search leaves out those that recompute in
	// vain; the others are ordered.
	if recomputed(b.best.plan) == recomputed(res.Plan) {
		require.Equal(t, b.best.plan, res.Plan, "seed %d case %d", seed, k)
		require.Equal(t, b.best.peaks, res.Prediction.PeakBytes, "seed %d case %d", seed, k)
	}
	require.True(t, res.Stats.Optimal)
	audit, err := Certify(b.g, b.batch, b.cluster, nil, cert, 10, uint64(k))
	require.NoError(t, err, "seed %d case %d", seed, k)
	return res, audit
}

func TestSearchIsExact(t *testing.T) {
	t.Parallel()
	const seed = 5
	r := rand.New(rand.NewPCG(seed, 0))
	cases, skipped, infeasible, recomputing, contexts, plans := 40, 0, 0, 0, 0, 0
	schedules := map[partition.Schedule]int{}
	same := 0
	reasons := map[string]int{} // points of the space that certificates leave out
	if testing.Short() {
		cases = 12
	}
	for k := range cases {
		model := tiny(2 + r.IntN(4)/2 + r.IntN(8)/7)
		model.Bias, model.Dropout, model.BlockSize = false, 0, []int{33, 24}[k%2] // with 24 context parallelism of 2, 3 and 4 is searched
		if k%5 == 0 {
			model = llama(model)
		}
		batch := 2 + r.IntN(3)
		if k%5 == 1 {
			batch = 1 // less than there are ranks
		}
		b := &brute{
			t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, cluster: randomCluster(r),
			opts: Options{RuntimeNGPUs: []int{1, 2, 3, 4}[r.IntN(4)], TopK: r.IntN(3)},
		}
		if r.IntN(2) == 0 {
			b.opts.PlanNGPUs = b.opts.RuntimeNGPUs
		}
		if batch == 1 { // with fast links, for an equal share of the work
			for _, l := range []*cost.Link{&b.cluster.IntraNode, &b.cluster.InterNode} {
				l.Latency, l.Bandwidth = l.Latency/100, l.Bandwidth*100
			}
		}
		if b.opts.RuntimeNGPUs == 4 || model.NLayer == 4 {
			b.opts.PlanNGPUs, b.opts.TP = b.opts.RuntimeNGPUs, 1+r.IntN(2)
			if b.opts.RuntimeNGPUs%b.opts.TP != 0 {
				b.opts.TP = 1
			}
		}
		if r.IntN(4) > 0 { // otherwise all
			b.opts.ZeRO = stage(r.IntN(4))
			if *b.opts.ZeRO > 0 && (b.opts.TP == b.opts.RuntimeNGPUs || b.opts.RuntimeNGPUs == 1) {
				b.opts.ZeRO = nil
			}
		}
		if batch == 1 {
			b.opts.ZeRO = nil
			if k%10 == 1 && b.opts.RuntimeNGPUs%2 == 0 {
				b.opts.PlanNGPUs, b.opts.CP, b.opts.TP = b.opts.RuntimeNGPUs, 2, 1
			}
		}
		b.opts.Offload = []string{"none", "none", "optimizer", "params", ""}[r.IntN(5)]
		// From more than enough to too little.
		b.limit = []int64{1 << 40, 200e3 + r.Int64N(600e3)}[min(1, r.IntN(4))]
		b.opts.MemoryLimit = b.limit
		if left(k, 7, 0, 1, 2, 4) || k != 9 && k != 28 && b.skip() { // these two have shown more than smaller ones
			skipped++
			continue
		}
		res, audit := b.compare(seed, k)
		plans += b.plans
		if res == nil {
			infeasible++
			continue
		}
		if recomputed(b.best.plan) == recomputed(res.Plan) {
			same++
		}
		for _, x := range audit.Reasons {
			reasons[x.Reason] += x.Points
		}
		if res.Plan.CP > 1 {
			contexts++
		}
		schedules[res.Plan.Schedule]++
		for _, s := range res.Plan.Stages {
			if s.Recomputed() > 0 {
				recomputing++
				break
			}
		}
	}
	t.Logf("winners: %v; certificates: %v", schedules, reasons)
	t.Logf("%d cases, %d skipped, %d infeasible, %d recompute, %d context parallel, %d plans simulated; the same plan in %d", cases, skipped, infeasible, recomputing, contexts, plans, same)
	require.Positive(t, recomputing)
	require.Positive(t, contexts)
	require.Less(t, infeasible, cases/3)
}

// TestInterleavedSearchIsExact: the same among interleaved schedules alone, which
// seldom win, and where they or zero-bubble ones have overlap, which has to be asked for.
func TestInterleavedSearchIsExact(t *testing.T) {
	t.Parallel()
	const seed = 6
	r := rand.New(rand.NewPCG(seed, 0))
	recomputing, chunks := 0, map[int]int{}
	for k := range most(15, 8) {
		model := tiny(4 + r.IntN(6))
		model.Bias, model.BlockSize = false, []int{33, 24}[k%2] // with 24 context parallelism of 2 is searched
		batch := 2 + r.IntN(5)
		b := &brute{
			t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, cluster: randomCluster(r),
			opts: Options{RuntimeNGPUs: []int{2, 4}[r.IntN(2)], Schedule: partition.Interleaved},
		}
		b.limit = []int64{1 << 40, 300e3 + r.Int64N(900e3)}[r.IntN(2)]
		b.opts.MemoryLimit = b.limit
		if k%3 == 0 {
			b.opts.RuntimeNGPUs, b.opts.Overlap = 4, "on"
		}
		if k%6 == 0 {
			model = tiny(2 + k/12)
			b.g, b.blocks, b.opts.Schedule, b.opts.PP = step(t, model, batch), model.NLayer, partition.ZeroBubble, 2
			b.tokens = model.BlockSize
		}
		if left(k, 8, 0, 1, 2, 3, 4, 5, 6) {
			continue
		}
		res, _ := b.compare(seed, k)
		if res == nil {
			continue
		}
		chunks[res.Plan.Interleave]++
		if res.Plan.Stages[0].Recomputed() > 0 {
			recomputing++
		}
	}
	t.Logf("chunks %v, %d recompute", chunks, recomputing)
	require.Positive(t, recomputing)
}

// TestEagerSearchIsExact: the same where a message takes about as long as a pass, so that eager schedules win.
func TestEagerSearchIsExact(t *testing.T) {
	t.Parallel()
	const seed = 8
	r := rand.New(rand.NewPCG(seed, 0))
	winners := map[partition.Schedule]int{}
	for k := range 24 {
		model := tiny(3 + k%2)
		model.Bias = k%3 == 0
		batch, pp := 5+r.IntN(4), 2+k%2
		if k%8 == 6 {
			batch = 1
		}
		b := &brute{
			t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, cluster: randomCluster(r),
			opts: Options{RuntimeNGPUs: pp, PlanNGPUs: pp, CP: 1, TP: 1, PP: pp, MicroBatch: 1, Offload: "none", LossSlices: 1, Recompute: RecomputeNone},
		}
		on := b.cluster
		on.Levels, on.DevicesPerNode, on.IntraNode = nil, pp, cost.Link{Bandwidth: 1e12, Efficiency: 1}
		free, err := Search(b.g, batch, on, b.opts)
		require.NoError(t, err)
		pass := free.Prediction.Step.Seconds() / float64(2*batch)
		on.IntraNode.Bandwidth = float64(4*model.NEmbd*model.BlockSize) / (pass * []float64{0.5, 1, 2}[k%3])
		b.limit = []int64{1 << 40, 1<<10 + free.Prediction.PeakBytes[0]}[k%2]
		b.opts.MemoryLimit = b.limit
		if res, _ := b.compare(seed, k); res != nil {
			winners[res.Plan.Schedule]++
			require.False(t, batch == 1 && res.Plan.Schedule.Eager(), "case %d", k) // the order is the same, and so is the time
		}
	}
	t.Logf("winners %v", winners)
	require.Positive(t, winners[partition.EagerZeroBubble])
}

// TestSearchInPiecesIsExact: the same where products and the collectives next to them are made in parts.
func TestSearchInPiecesIsExact(t *testing.T) {
	t.Parallel()
	const seed = 7
	r := rand.New(rand.NewPCG(seed, 0))
	inPieces := 0
	for k := range 8 {
		model := tiny(2 + k%2)
		model.Bias, model.NEmbd, model.BlockSize = k%3 == 0, 48, 16
		batch := 3 + r.IntN(3)
		b := &brute{
			t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, cluster: randomCluster(r),
			opts:  Options{RuntimeNGPUs: 2 + k%2*2, PlanNGPUs: 2 + k%2*2, CP: 1, TP: 2, ZeRO: stage(k / 2 % 2), Offload: "none", Replicate: "none", TPPieces: 2 + k%3, LossSlices: 1},
			limit: 1 << 40,
		}
		if k%2 == 0 {
			b.opts.ZeRO = nil
		}
		if k%4 == 1 && !*exactAll { // of thousands of plans
			b.opts.Recompute = RecomputeNone
		}
		b.opts.MemoryLimit = b.limit
		if res, _ := b.compare(seed, k); res != nil && res.Plan.TPPieces == 2+k%3 {
			inPieces++
		}
	}
	require.Equal(t, 8, inPieces)
}

// TestPiecesAreSearched: the same where the number of parts is searched, on networks on which one, two or four are best.
func TestPiecesAreSearched(t *testing.T) {
	t.Parallel()
	const seed = 8
	r := rand.New(rand.NewPCG(seed, 0))
	found := map[int]int{}
	cut := 0 // winners of sequences that are cut
	for k := range 24 {
		model, ranks := tiny(2), 2+k%6/5*2
		model.Bias, model.NEmbd, model.BlockSize = k%3 == 0, 48, 16
		if k >= 18 {
			model.BlockSize = 4 * codegen.EvenTokens
		}
		batch := 3 + r.IntN(4)
		b := &brute{
			t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, cluster: piecesCluster(r, k),
			opts:  Options{RuntimeNGPUs: ranks, PlanNGPUs: ranks, CP: 1, TP: 2, ZeRO: stage(k / 2 % 2), Offload: "none", Replicate: "none", LossSlices: 1},
			limit: []int64{1 << 40, (250e3 + r.Int64N(400e3)) * int64(model.BlockSize/16)}[k/4%2],
		}
		if ranks == 2 {
			b.opts.ZeRO = nil
		}
		b.opts.MemoryLimit = b.limit
		if left(k, 5, 0, 3) || b.skip() {
			continue
		}
		if res, _ := b.compare(seed, k); res != nil {
			found[res.Plan.TPPieces]++
			cut += min(res.Plan.SequenceParts, 1)
		}
	}
	t.Logf("parts %v, of sequences %d", found, cut)
	require.Positive(t, cut)
	for _, n := range pieceCounts() {
		require.Positive(t, found[n], "parts %d", n)
	}
}

// piecesCluster draws a cluster whose kernels and messages may be short enough for parts.
func piecesCluster(r *rand.Rand, k int) *cost.Cluster {
	c := randomCluster(r)
	c.Device.LaunchOverhead, c.Device.Efficiency.MatmulHalf = c.Device.LaunchOverhead/1e3, c.Device.Efficiency.MatmulHalf*float64(k%4)/1e3
	for _, l := range []*cost.Link{&c.IntraNode, &c.InterNode} {
		l.Latency /= []float64{1, 30, 1e4}[k%3]
	}
	return c
}

// TestPartsOfSharedSequences: the search finds what the simulation of all plans does where context-parallel ranks share
// sequences that tensor parallelism makes in parts.
func TestPartsOfSharedSequences(t *testing.T) {
	t.Parallel()
	const seed = 21
	r := rand.New(rand.NewPCG(seed, 0))
	found := map[int]int{}
	for k := range 7 {
		model, cp, batch := tiny(1), 2, 1+k%3
		model.Bias, model.NEmbd, model.BlockSize = k%2 == 0, 48, 8*codegen.EvenTokens
		switch k {
		case 5: // too short for four parts
			model.BlockSize = 4 * codegen.EvenTokens
		case 6: // two ranks would share sequences evenly, four do not
			cp, batch, model.BlockSize = 4, 4, 6*codegen.EvenTokens
		}
		b := &brute{
			t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, cluster: piecesCluster(r, k),
			opts:  Options{RuntimeNGPUs: 2 * cp, PlanNGPUs: 2 * cp, CP: cp, TP: 2, ZeRO: stage(k % 2), Offload: "none", Replicate: "none", LossSlices: 1},
			limit: 1 << 40,
		}
		b.opts.MemoryLimit = b.limit
		if res, _ := b.compare(seed, k); res != nil && res.Plan.SequenceParts == res.Plan.TPPieces {
			found[res.Plan.SequenceParts]++
		}
	}
	require.Positive(t, found[0])
	require.Positive(t, found[4])
}

func TestInfeasible(t *testing.T) {
	g := step(t, tiny(3), 7)
	_, err := Search(g, 7, cluster(t, "h100"), Options{PlanNGPUs: 2, MemoryLimit: 100 << 10})
	var bad *InfeasibleError
	require.True(t, errors.As(err, &bad))
	require.Greater(t, bad.Needs, bad.Limit)
	require.ErrorContains(t, err, "GiB")
	t.Log(err)

	_, err = Search(step(t, tiny(5), 7), 7, cluster(t, "h100"), Options{PlanNGPUs: 2, Interleave: 2, MemoryLimit: 100 << 10})
	require.True(t, errors.As(err, &bad))
	require.Equal(t, 2, bad.Closest.Interleave)
	require.Greater(t, bad.Needs, bad.Limit)
}
