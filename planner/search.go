package planner

import (
	"cmp"
	"fmt"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// Result is what a search found.
type Result struct {
	Plan       *partition.Plan
	Prediction Prediction
	// Alternatives are the best plans with other degrees, best first.
	Alternatives []Alternative
	Stats        Stats
}

// Prediction is what a plan costs: the simulation of its program, and the arenas
// that codegen lays out.
type Prediction struct {
	Step      cost.Picoseconds
	Breakdown cost.Breakdown // of the rank that waits least; sums to Step
	PeakBytes []int64        // by stage, of every rank of the stage
	HostBytes []int64        // by stage, of host memory; nil where nothing is offloaded
}

// Alternative is a plan that lost.
type Alternative struct {
	Plan       *partition.Plan
	Prediction Prediction
}

// Stats says what the search did.
type Stats struct {
	Seconds         float64
	PlansConsidered int // plans costed in full, and groups of plans ruled out together by their bound
	// Optimal says that no plan of the space is faster under the cost model.
	Optimal bool
}

// searcher is one run of [Search].
type searcher struct {
	opts   Options
	graphs *shrunken
	batch  int
	contexts
	cluster *cost.Cluster
	limit   int64
	layouts *layouts
	finals
	stats   Stats
	pending []pending
}

// Search returns the fastest plan for a training step traced for a global batch,
// among those that fit: the minimum over the degrees, micro-batch sizes,
// schedules, ZeRO stages, sequence parallelism or not, and contiguous cuts that the
// options leave (for context parallelism and overlap see there), and ZeRO in groups
// and offload where memory is short (see relieve), under the cost of planner/sim;
// interleaved schedules with 2 and 4 chunks, cut evenly. Of every stage so many
// blocks are recomputed, in full and selectively, that it fits and does the least
// work; of equal work the fewest in full. Plans that take the same time are ordered
// by peak memory, then by comparePlans. It fails with an *InfeasibleError when no
// plan fits, an *OptionError.
func Search(g *ir.Graph, batch int, c *cost.Cluster, opts Options) (*Result, error) {
	start := time.Now()
	opts, err := opts.validate(batch)
	if err != nil {
		return nil, err
	}
	if opts.Overlap == "" && c.Device.Shared {
		opts.Overlap = "off" // there communication takes the time of kernels
	}
	if (opts.Offload == "optimizer" || opts.Offload == "params") && c.Host == nil {
		return nil, optionErrorf("offload", "is %s, but cluster %s says nothing of the link to host memory (its key host)", opts.Offload, c.Name)
	}
	s := newSearcher(g, batch, c, opts)
	found, pipes, optimal, err := s.search()
	if err == nil && len(found) == 0 && opts.CP == 0 {
		s.everywhere = true
		found, pipes, optimal, err = s.search()
	}
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, s.infeasible(pipes)
	}
	s.stats.Optimal = optimal
	res := &Result{}
	for i, x := range found {
		p, err := s.finish(x)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			res.Plan, res.Prediction = x.plan, p
		} else {
			res.Alternatives = append(res.Alternatives, Alternative{x.plan, p})
		}
	}
	s.stats.Seconds = time.Since(start).Seconds()
	res.Stats = s.stats
	return res, nil
}

// search lists the space and returns what [searcher.run] finds in it.
func (s *searcher) search() ([]*candidate, []*point, bool, error) {
	s.pending = nil
	pipes, err := s.pipelines()
	if err != nil {
		return nil, nil, false, err
	}
	found, pipes, optimal := s.run(pipes)
	return found, pipes, optimal, nil
}

func newSearcher(g *ir.Graph, batch int, c *cost.Cluster, opts Options) *searcher {
	s := &searcher{
		opts: opts, graphs: newShrunken(g), batch: batch, contexts: contexts{tokens: sequenceTokens(g)}, cluster: c,
		finals: finals{compiled: map[stageKey]compiledStage{}, footprintsOf: map[footprintKey]footprint{}},
	}
	s.limit = c.MemoryPerRank(opts.RuntimeNGPUs)
	if opts.MemoryLimit > 0 {
		s.limit = opts.MemoryLimit
	}
	s.layouts = &layouts{graph: s.graphs.keep(1), batch: batch, ranks: opts.RuntimeNGPUs, cluster: c, pins: opts.Pins, known: map[int][]partition.Placement{}}
	return s
}

// point is a pipeline of the space under search.
type point struct {
	degrees
	*cutter
	solved bool             // its best plan is among the best of its degrees
	unsure bool             // it may have a better plan than was found
	rest   cost.Picoseconds // the ceiling under which it is left alone, having given up below
}

// pipelines lists the space by degrees, micro-batch size and schedule, the most
// promising first.
func (s *searcher) pipelines() ([]*point, error) {
	all := outlines(s.opts, allDegrees(s.opts, s.graphs.blocks, s.batch, s.contexts, s.cluster), s.graphs.blocks, s.cluster)
	if g := s.opts.ZeROGroup; len(all) == 0 && g > 0 {
		return nil, s.noGroup(g)
	}
	if len(all) == 0 && s.opts.ZeRO != nil && *s.opts.ZeRO > 0 {
		return nil, optionErrorf("zero", "stage %d needs at least 2 data-parallel ranks; no dp x tp x pp of %s devices in %d has them with %d blocks and a global batch of %d",
			*s.opts.ZeRO, degree(s.opts.PlanNGPUs), s.opts.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	if len(all) == 0 && s.opts.Overlap == "on" {
		return nil, optionErrorf("overlap", "needs at least 2 data-parallel ranks; no dp x tp x pp of %s devices in %d has them with %d blocks and a global batch of %d",
			degree(s.opts.PlanNGPUs), s.opts.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	if len(all) == 0 && s.opts.SequenceParallel == "on" {
		return nil, optionErrorf("sequence-parallel", "needs tp of at least 2; no dp x tp x pp of %s devices in %d has it with %d blocks and a global batch of %d",
			degree(s.opts.PlanNGPUs), s.opts.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	if len(all) == 0 && (s.opts.Schedule == partition.Interleaved || s.opts.Interleave > 1) {
		return nil, optionErrorf("interleave", "%s chunks per rank need a pipeline of 2 ranks or more with a block for each chunk; no dp x tp x pp of %s devices in %d has that with %d blocks and a global batch of %d",
			degree(s.opts.Interleave), degree(s.opts.PlanNGPUs), s.opts.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	if units := s.opts.RuntimeNGPUs / max(s.opts.PlanNGPUs, 1); len(all) == 0 && s.opts.DP*units > s.batch {
		return nil, optionErrorf("dp", "%d in %d units are more data-parallel ranks than the global batch has sequences, %d; use dp %d or less",
			s.opts.DP, units, s.batch, max(1, s.batch/units))
	}
	if len(all) == 0 && s.opts.PP > s.graphs.blocks {
		return nil, optionErrorf("pp", "%d stages need a block each, the model has %d; use pp %d or less", s.opts.PP, s.graphs.blocks, s.graphs.blocks)
	}
	if len(all) == 0 {
		return nil, optionErrorf("plan-ngpus", "no dp x tp x pp of %s devices in %d suits %d blocks and a global batch of %d",
			degree(s.opts.PlanNGPUs), s.opts.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	// Of the outlines of the same degrees the first is built, and bounds the others;
	// so do those without context parallelism those with it.
	var firsts []outline
	alone := map[[2]int]bool{} // tp and pp without context parallelism
	for _, o := range all {
		if o.cp == 1 {
			alone[[2]int{o.tp, o.pp}] = true
		}
	}
	for i, o := range all {
		bounded := o.cp > 1 && alone[[2]int{o.tp, o.pp}]
		if (i == 0 || o.degrees != all[i-1].degrees) && !bounded {
			firsts = append(firsts, o)
		} else {
			s.pending = append(s.pending, pending{outline: o, relief: s.relieves(o)})
		}
	}
	skels, refused := s.skeletons(firsts)
	points := s.points(firsts, skels)
	if len(points) == 0 {
		return nil, refused
	}
	first := map[degrees]*skeleton{}
	for i, skel := range skels {
		first[firsts[i].degrees] = skel
	}
	s.contextFirsts(firsts, skels, first)
	type key struct {
		degrees
		overlap bool
		chunks  int
	}
	floors := map[key]cost.Picoseconds{}
	for i := range s.pending {
		o := &s.pending[i]
		of := key{o.degrees, o.overlap, o.chunks}
		if _, known := floors[of]; !known {
			floors[of] = s.floor(first[o.degrees], o.outline)
		}
		o.floor = max(o.floor, floors[of])
	}
	return points, nil
}

// sizes lists the sizes of micro-batches that a skeleton may have.
func (s *searcher) sizes(skel *skeleton) []int {
	local := (s.batch + skel.plan.DataParallel() - 1) / skel.plan.DataParallel()
	if s.opts.MicroBatch > 0 {
		return []int{min(s.opts.MicroBatch, local)}
	}
	return microBatches(local)
}

// points lists the pipelines of skeletons, the most promising first. Pending outlines
// that differ in interleaving only learn from them, and from what overlaps, whose
// kernels and transfers are the same.
func (s *searcher) points(outlines []outline, skels []*skeleton) []*point {
	var points []*point
	for i, o := range outlines {
		skel := skels[i]
		if skel == nil {
			continue
		}
		for k := range s.pending {
			x := &s.pending[k]
			like := o.sharding
			like.overlap = x.overlap
			if o.chunks <= 1 && x.chunks > 1 && o.degrees == x.degrees && like == x.sharding {
				x.floor = max(x.floor, s.interleavedFloor(skel, x.chunks, skel.times))
			}
		}
		for _, b := range s.sizes(skel) {
			times, memory := skel.times(b), skel.memoryOf(b)
			for _, schedule := range o.schedules(s.opts) {
				p := newPipeline(skel, times, memory, b, schedule)
				s.stats.PlansConsidered++
				points = append(points, &point{degrees: o.degrees, cutter: newCutter(s, p)})
			}
		}
	}
	slices.SortStableFunc(points, func(a, b *point) int { return cmp.Compare(a.least, b.least) })
	return points
}

// pending is an outline that has not been looked at: no plan of it takes less
// than floor.
type pending struct {
	outline
	floor  cost.Picoseconds
	relief bool // it only spares memory: see relieve
}

// floor bounds all plans of an outline by a skeleton of the same degrees, however
// they are sharded beside: products and attention are the same for all. It is 0 when
// nothing is known.
func (s *searcher) floor(skel *skeleton, o outline) cost.Picoseconds {
	switch {
	case skel == nil || skel.plan.Chunks() > 1:
		return 0
	case len(s.opts.Pins) > 0:
		return 0 // a pin may keep a product from being split over tp, but not over the sequence
	case o.chunks > 1:
		return s.interleavedFloor(skel, o.chunks, skel.cores)
	}
	floor := never
	for _, b := range s.sizes(skel) {
		times := skel.cores(b)
		for _, schedule := range o.schedules(s.opts) {
			p := newPipeline(skel, times, make([]stageMemory, skel.plan.PP()), b, schedule)
			floor = min(floor, newBounds(p, s.limit, Options{Policy: s.opts.Policy, Recompute: RecomputeNone}, nil).best())
		}
	}
	return floor
}

// contextFirsts adds to the first skeletons of degrees what bounds the pending
// degrees with context parallelism, where there is one: see [skeleton.shared].
func (s *searcher) contextFirsts(firsts []outline, skels []*skeleton, first map[degrees]*skeleton) {
	bases := map[[2]int]*skeleton{} // by tp and pp
	for i, skel := range skels {
		if skel != nil && firsts[i].cp == 1 {
			bases[[2]int{firsts[i].tp, firsts[i].pp}] = skel
		}
	}
	for _, p := range s.pending {
		if _, known := first[p.degrees]; known || p.cp == 1 {
			continue
		}
		first[p.degrees] = nil
		if base := bases[[2]int{p.tp, p.pp}]; base != nil {
			first[p.degrees] = base.shared(p.degrees, s.cluster)
		}
	}
}

// build looks at the pending outlines that may have plans of at most the given time.
func (s *searcher) build(points []*point, limit cost.Picoseconds) []*point {
	return s.add(points, func(p pending) bool { return !p.relief && p.floor <= limit })
}

// add looks at the pending outlines that are chosen.
func (s *searcher) add(points []*point, chosen func(pending) bool) []*point {
	var now []outline
	s.pending = slices.DeleteFunc(s.pending, func(p pending) bool {
		yes := chosen(p)
		if yes {
			now = append(now, p.outline)
		}
		return yes
	})
	if len(now) == 0 {
		return points
	}
	skels, _ := s.skeletons(now)
	points = append(points, s.points(now, skels)...)
	slices.SortStableFunc(points, func(a, b *point) int { return cmp.Compare(a.least, b.least) })
	return points
}

// skeletons builds the skeleton of each of the outlines, nil where no parameter
// can be split so, with the last reason why.
func (s *searcher) skeletons(all []outline) ([]*skeleton, error) {
	// What they share is made first; then they are independent.
	plans := make([]partition.Plan, len(all))
	errs := make([]error, len(all))
	type innerKey struct {
		dp, cp, tp int
		sharding
	}
	inner := map[innerKey]int{} // the first of the outlines that need the same inner skeleton
	var keys []innerKey
	for i, d := range all {
		s.graphs.keep(d.stages())
		if plans[i], errs[i] = s.template(d); errs[i] != nil {
			continue
		}
		key := innerKey{plans[i].DataParallel(), d.cp, d.tp, d.sharding}
		if _, ok := inner[key]; !ok {
			inner[key] = i
			keys = append(keys, key)
		}
	}
	found := make([]*skeleton, len(keys))
	failed := make([]error, len(keys))
	parallel(len(keys), func(k int) {
		one := plans[inner[keys[k]]]
		one.PlanNGPUs, one.RuntimeNGPUs = one.PlanNGPUs/one.PP(), one.RuntimeNGPUs/one.PP()
		one.Stages, one.Interleave = make([]partition.Stage, 1), 0
		found[k], failed[k] = newSkeleton(s.graphs, one, s.batch, s.cluster, nil)
	})
	skels := make([]*skeleton, len(all))
	parallel(len(all), func(i int) {
		if errs[i] != nil {
			return
		}
		k := slices.Index(keys, innerKey{plans[i].DataParallel(), all[i].cp, all[i].tp, all[i].sharding})
		if failed[k] != nil {
			errs[i] = failed[k]
			return
		}
		of := found[k]
		if all[i].pp == 1 {
			if inner[keys[k]] == i {
				skels[i] = of // made for it
				return
			}
			of = nil
		}
		skels[i], errs[i] = newSkeleton(s.graphs, plans[i], s.batch, s.cluster, of)
	})
	var refused error
	for i, err := range errs {
		if err != nil {
			skels[i], refused = nil, err
		}
	}
	return skels, refused
}

// parallel calls f for 0 to n-1 on all cores.
func parallel(n int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, goruntime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// template returns the plan of which stages, micro-batch size and schedule are
// still open. It fails when no parameter can be split so.
func (s *searcher) template(d outline) (partition.Plan, error) {
	placements, err := s.layouts.find(d.tp)
	if err != nil {
		return partition.Plan{}, err
	}
	placements = append(append([]partition.Placement{}, s.opts.Pins...), placements...)
	if d.tp > 1 && len(placements) == 0 {
		return partition.Plan{}, optionErrorf("tp", "no parameter can be split over %d ranks", d.tp)
	}
	plan := partition.Plan{
		PlanNGPUs: d.plan, RuntimeNGPUs: s.opts.RuntimeNGPUs, DP: d.dp, TP: d.tp,
		ZeRO: d.zero, ZeROGroup: d.group, Offload: d.offload, SequenceParallel: d.sequence, Overlap: d.overlap,
		Stages: make([]partition.Stage, d.stages()), Placements: placements,
	}
	if d.cp > 1 {
		plan.CP = d.cp
	}
	if d.chunks > 1 {
		plan.Interleave = d.chunks
	}
	return plan, nil
}

// run returns the best plan of each of the best degrees, all the points it looked
// at, and whether the first plan is certainly the best.
//
// The ceiling on the time rises in small steps until enough has been found under
// it. Below a low ceiling most points have no cut worth a look, so that nothing
// much is spent on those whose bound promises more than they hold; and what is
// found under a ceiling is the best there is.
func (s *searcher) run(points []*point) ([]*candidate, []*point, bool) {
	best := map[degrees]*candidate{}
	worst := func() cost.Picoseconds { // of those we want
		if kept := ranked(best); len(kept) > s.opts.TopK {
			return kept[s.opts.TopK].time
		}
		return never - 1
	}
	take := func(p *point, x *candidate) {
		if x != nil && (best[p.degrees] == nil || x.less(best[p.degrees])) {
			best[p.degrees] = x
		}
	}
	least := points[0].least
	for _, p := range s.pending {
		if p.floor > 0 { // otherwise it is built at once
			least = min(least, p.floor)
		}
	}
	for ceiling := least + least/64; ; ceiling += ceiling/64 + 1 {
		last := ceiling > 4*least
		if last {
			ceiling = never - 1
		}
		points = s.build(points, min(ceiling, worst()))
		for known := 0; known < len(points); { // until nothing relieves what was found
			known = len(points)
			for _, p := range points {
				limit := min(ceiling, worst())
				if mine := best[p.degrees]; mine != nil {
					limit = min(limit, mine.time)
				}
				if p.solved || p.least > limit || ceiling < p.rest {
					continue
				}
				x, certain := p.solve(limit, quick)
				p.solved, p.unsure = x != nil, !certain
				if p.unsure {
					p.rest = 2*ceiling - p.least
				}
				take(p, x)
			}
			points = s.relieve(points, min(ceiling, worst()), best)
		}
		if last || len(best) > s.opts.TopK {
			break
		}
	}
	// Where the search gave up, look again below the winner only.
	optimal, steps := true, thorough
	for _, p := range points {
		kept := ranked(best)
		if len(kept) == 0 || !p.unsure || p.least >= kept[0].time {
			continue
		}
		x, certain := p.solve(kept[0].time-1, steps)
		steps = max(p.budget, 0)
		take(p, x)
		optimal = optimal && certain
	}
	kept := ranked(best)
	return kept[:min(len(kept), s.opts.TopK+1)], points, optimal
}

func ranked(best map[degrees]*candidate) []*candidate {
	all := make([]*candidate, 0, len(best))
	for _, x := range best {
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b *candidate) int {
		if a.less(b) {
			return -1
		}
		return 1
	})
	return all
}

// allocate compiles a plan and returns the arena of each stage: the larger of
// the step's and of the evaluation's.
func (s *searcher) allocate(p *partition.Plan) (*codegen.Program, []int64, error) {
	prog, err := codegen.Compile(s.graphs.graph, p, s.batch, nil)
	if err != nil {
		return nil, nil, err
	}
	var peaks []int64
	for _, st := range prog.Stages {
		peaks = append(peaks, st.Arena())
	}
	if s.opts.Eval != nil {
		eval, err := codegen.Compile(s.opts.Eval, prog.Plan, s.batch, prog)
		if err != nil {
			return nil, nil, fmt.Errorf("planner: evaluation: %w", err)
		}
		for i, st := range eval.Stages {
			peaks[i] = max(peaks[i], st.Arena())
		}
	}
	return prog, peaks, nil
}

// hostBytes lists what each stage keeps in host memory, nil where none does.
func hostBytes(prog *codegen.Program) []int64 {
	var all []int64
	for i, st := range prog.Stages {
		if st.Host > 0 && all == nil {
			all = make([]int64, len(prog.Stages))
		}
		if all != nil {
			all[i] = st.Host
		}
	}
	return all
}

// Predict tells what any plan costs for a graph traced for a global batch: what
// [Search] would say of it. eval is as in [Options]; nil for none. It does not ask
// whether the plan fits.
func Predict(g *ir.Graph, batch int, c *cost.Cluster, p *partition.Plan, eval *ir.Graph) (Prediction, error) {
	s := &searcher{opts: Options{Eval: eval}, graphs: &shrunken{graph: g}, batch: batch}
	prog, peaks, err := s.allocate(p)
	if err != nil {
		return Prediction{}, err
	}
	line, err := sim.Run(prog, c, sim.Options{})
	if err != nil {
		return Prediction{}, err
	}
	return Prediction{Step: line.Step, Breakdown: line.Breakdown(), PeakBytes: peaks, HostBytes: hostBytes(prog)}, nil
}
