package planner

import (
	"errors"
	"fmt"
	"slices"
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

// Prediction is what a plan costs: its time, by simulating its program, and its memory, by laying
// out the arenas of that program.
type Prediction struct {
	Step      cost.Picoseconds
	Breakdown cost.Breakdown // of the busiest rank; sums to Step
	PeakBytes []int64        // by stage: the arena of each of its ranks
	HostBytes []int64        // by stage: host memory; nil if nothing is offloaded
}

// Alternative is a plan that lost.
type Alternative struct {
	Plan       *partition.Plan
	Prediction Prediction
}

// Stats says what the search did.
type Stats struct {
	// Seconds is how long it took until the winner was known to be one, AlternativesSeconds how much
	// longer until the alternatives were.
	Seconds, AlternativesSeconds float64
	PlansConsidered              int // plans priced in full, and groups of plans ruled out together by a bound
	// Optimal says that no plan of the space is faster under the cost model.
	Optimal bool
	// Gap bounds how much faster than the winner a plan of the space could be, as a fraction of the
	// winner's time. It is 0 unless the search ran out of steps before it had proved optimality.
	Gap float64
}

// searcher is one run of [Search]. Most of its maps are memos: what is computed for one outline is
// needed again for many others.
type searcher struct {
	// What is asked.
	opts     Options // as [Options.on] returns them
	cluster  *cost.Cluster
	limit    int64 // bytes per rank, on the devices with the most memory
	contexts       // which context-parallel degrees are in the space
	steps    int   // the most branch-and-bound steps for the proof that the winner is optimal

	// When the winner was known, and how long its memory took to lay out.
	certain   time.Time
	finishing time.Duration

	// The state of branch and bound, from coarse to fine: see explore.go.
	tracts   []*tract
	units    map[degrees][]degrees // what degrees anywhere stand for
	pending  []*pending
	found    *incumbents
	looked   []*point // the pipelines that were priced
	stats    Stats
	refused  error             // why the last outline that does not compile does not
	refusals map[outline]error // why each of them does not

	// Prices and programs.
	*blueprints
	layouts *layouts
	rates   *cost.Model
	works   map[workKey]*work
	trunks  map[trunkKey]*work
	finals
	allRooms   map[roomsKey][][]codegen.Chunk
	evens      map[roomsKey]evenShares
	rehearsals map[roomsKey]*rehearsal

	// First floors.
	families   map[family]*floors
	busyTrunks map[family][]sized // see trunkFloors

	// Ways through the network.
	orders      map[waysKey]*ways
	seen        map[waysKey][]string // texts of the ways met so far: see twin
	isTwin      map[waysKey]bool
	permuted    map[degrees][]string // see rankOrders
	groupPlaces map[groupPlacesKey]*groupPlaces
	spots       []*spotGroups // see lying

	// Lists of choices.
	replicable  []string     // see replications
	gridded     []string     // see grids
	batchSplits []split      // see batched
	counts      []int        // see sliceCounts
	parted      map[int]bool // by number of parts: see ofParts

	// Scratch memory, reused from one bound to the next.
	passage passage     // see leastOn
	scratch []position  // see positions
	unsent  []partTimes // of positions that send nothing
}

// Search returns the fastest plan that fits, for a training step traced for a global batch: the
// minimum, under the cost of planner/sim, over everything that the options leave open (unless
// [Stats] says that the proof was given up):
//
//   - units of devices, their degrees (dp, cp, tp, pp), the order of their ranks, and the order of
//     the cluster's device pools;
//   - micro-batch sizes and schedules: GPipe, 1F1B and zero-bubble with stages of any length, and
//     interleaved 1F1B with even stages, in 2 or 4 chunks per rank or as many as divide the blocks
//     evenly;
//   - ZeRO stages; sequence parallelism, batch parallelism or neither; modules that tensor
//     parallelism replicates or cuts on a grid;
//   - data-parallel communication overlapped with computation or not, and tensor-parallel products
//     in 1, 2 or 4 parts;
//   - recomputation: per stage, the least work that makes it fit, as a number of blocks recomputed
//     in full and a number of others of which either attention or norms and activation functions
//     are recomputed; among equals, the fewest blocks in full;
//   - where memory is short, ZeRO in groups, offload, stages that wait for what they send, and the
//     loss in slices (see relieve and slice).
//
// [Options] says where each of these is searched; the type declared defines the space as plain
// nested loops. Ties in time are broken by peak memory, then by comparePlans. Search fails with an
// *InfeasibleError if no plan fits, and with an *OptionError if the options leave no plan.
func Search(g *ir.Graph, batch int, c *cost.Cluster, opts Options) (*Result, error) {
	res, _, err := newSearch(g, batch, c, opts, thorough)
	return res, err
}

// newSearch is [Search] with a limit on the steps spent to prove that nothing beats the winner. It
// also returns the searcher, from which a certificate is written.
func newSearch(g *ir.Graph, batch int, c *cost.Cluster, opts Options, steps int) (*Result, *searcher, error) {
	begun := time.Now()
	opts, err := opts.on(c, batch)
	if err != nil {
		return nil, nil, err
	}
	if err := opts.checkSlices(g); err != nil {
		return nil, nil, err
	}
	if err := opts.checkPins(g); err != nil {
		return nil, nil, err
	}
	s := newSearcher(g, batch, c, opts)
	s.steps = steps
	if err := s.checkReplicate(); err != nil {
		return nil, nil, err
	}
	found, pipes, optimal, err := s.search()
	if err == nil && len(found) == 0 && s.opts.CP == 0 {
		s.everywhere = true
		found, pipes, optimal, err = s.search()
	}
	if err != nil {
		return nil, nil, err
	}
	if len(found) == 0 {
		return nil, nil, s.infeasible(pipes)
	}
	s.stats.Optimal = optimal
	res := &Result{}
	for i, x := range found {
		start := time.Now()
		p, err := s.finish(x)
		if err != nil {
			return nil, nil, err
		}
		if i == 0 {
			s.finishing = time.Since(start)
			res.Plan, res.Prediction = x.plan, p
		} else {
			res.Alternatives = append(res.Alternatives, Alternative{x.plan, p})
		}
	}
	res.Stats = s.stats
	all := time.Since(begun).Seconds()
	res.Stats.Seconds = min(all, s.certain.Sub(begun).Seconds()+s.finishing.Seconds())
	res.Stats.AlternativesSeconds = all - res.Stats.Seconds
	return res, s, nil
}

// widens reports whether to search the widened space too, which has all degrees of context parallelism and more replicated
// modules: if the winner shares tokens, as it replicates modules without batch parallelism, or might do so with profit. That is
// if its ranks have unequal numbers of sequences, or could not have equal ones and all of a stage lie in one node, where
// it costs little to exchange whole gradients. (The space is also widened if nothing fits.)
func (s *searcher) widens(winner *partition.Plan) bool {
	sharing := winner.DataParallel() // ranks that share the batch
	stage := sharing * winner.ContextParallel() * winner.TP
	if winner.BatchParallel || s.cluster.Device.Shared || stage <= s.cluster.DevicesPerNode {
		sharing = stage
	}
	switch {
	case s.everywhere || s.opts.Policy != AutoDist:
		return false
	case s.batch%sharing != 0:
		return true
	}
	return s.opts.CP == 0 && s.opts.Replicate == "" && !winner.BatchParallel && s.splitOf(winner).replicate != ""
}

// widen adds the tracts that only the widened space has.
func (s *searcher) widen() {
	s.everywhere = true
	known := map[outline]bool{}
	for _, t := range s.tracts {
		known[t.outline] = true
	}
	for _, t := range s.listTracts() {
		if !known[t.outline] {
			s.tracts = append(s.tracts, t)
		}
	}
}

// listTracts lists the space, as tracts.
func (s *searcher) listTracts() []*tract {
	return s.tractsOf(allDegrees(s.opts, s.graphs.blocks, s.batch, s.contexts, s.cluster))
}

// search lists the space and runs branch and bound over it.
func (s *searcher) search() ([]*candidate, []*point, bool, error) {
	s.certain = time.Time{}
	if err := s.outlines(); err != nil {
		return nil, nil, false, err
	}
	if !s.mayFit() {
		return nil, nil, true, nil
	}
	if err := priceable(s.graphs.graph, s.batch, s.cluster, s.opts.RuntimeNGPUs); err != nil {
		return nil, nil, false, err
	}
	found, points, optimal := s.run()
	s.looked = points
	if len(points)+len(s.pending) == 0 && !slices.ContainsFunc(s.tracts, func(t *tract) bool { return !t.opened }) {
		return nil, nil, false, s.noProgram()
	}
	return found, points, optimal, nil
}

// noProgram says why no outline compiles, from the last refusal. If tp was not asked for, the cause
// is rather the number of devices: blocks and sequences leave too much of it to tp.
func (s *searcher) noProgram() error {
	var at *OptionError
	if s.opts.TP == 0 && errors.As(s.refused, &at) && at.Option == "tp" {
		return optionErrorf("plan-ngpus", "no %s suits %d blocks and a global batch of %d, which leave so much to tp that %s; use fewer devices",
			s.opts.degrees(), s.graphs.blocks, s.batch, at.Msg)
	}
	return s.refused
}

func newSearcher(g *ir.Graph, batch int, c *cost.Cluster, opts Options) *searcher {
	graphs := shrink(g)
	s := &searcher{
		opts: opts, cluster: c, contexts: contexts{tokens: sequenceTokens(g)}, refusals: map[outline]error{},
		blueprints: newBlueprints(graphs, batch), rates: cost.NewModel(c, max(1, opts.RuntimeNGPUs)), finals: newFinals(),
		works: map[workKey]*work{}, trunks: map[trunkKey]*work{}, allRooms: map[roomsKey][][]codegen.Chunk{}, evens: map[roomsKey]evenShares{}, rehearsals: map[roomsKey]*rehearsal{},
		families: map[family]*floors{}, parted: map[int]bool{}, busyTrunks: map[family][]sized{},
		orders: map[waysKey]*ways{}, permuted: map[degrees][]string{}, groupPlaces: map[groupPlacesKey]*groupPlaces{},
		passage: passage{enough: never},
	}
	if opts.pieces(c) > 0 {
		s.trunkPieces = 2
	}
	s.limit = c.MemoryUnder(opts.MemoryLimit, opts.RuntimeNGPUs)
	s.layouts = &layouts{graph: s.graphs.keep(1), batch: batch, ranks: opts.RuntimeNGPUs, cluster: c, pins: opts.Pins, known: map[int][][]partition.Placement{}}
	return s
}

// point is one pipeline of the space (an outline, a micro-batch size and a schedule) with the
// branch and bound over its cuts.
type point struct {
	degrees
	split // as in [outline]
	*cutter
	solved bool             // its best plan was found
	unsure bool             // the last search of its cuts gave up: there may be a better plan
	sliced bool             // the same with twice as many slices of the loss is pending, or of no use: see slice
	rest   cost.Picoseconds // not searched again until the limit is at least this
}

// outline returns the outline that the point is of.
func (p *point) outline() outline {
	t := &p.pipe.template
	return outline{p.degrees, sharding{t.ZeRO, t.ZeROGroup, t.SequenceParallel, t.Overlap, t.Offload, slicesOf(t), piecesOf(t), p.split}, t.Chunks(), t.RankOrder, waits(t)}
}

// outlines lists the space, as tracts. It fails if the options leave none.
func (s *searcher) outlines() error {
	s.pending, s.seen, s.isTwin = nil, map[waysKey][]string{}, map[waysKey]bool{}
	s.tracts = s.listTracts()
	if len(s.tracts) == 0 {
		return s.emptySpace()
	}
	return nil
}

// emptySpace says why the options leave no outline. First come what no other option can be the cause of.
func (s *searcher) emptySpace() error {
	o, blocks := s.opts, s.graphs.blocks
	units := 1 // where the size of a unit is searched, it may be all devices
	if o.PlanNGPUs > 0 {
		units = o.RuntimeNGPUs / o.PlanNGPUs
	}
	degrees := "no " + o.degrees()
	model := fmt.Sprintf("%d blocks and a global batch of %d", blocks, s.batch)
	switch {
	case units > s.batch:
		return optionErrorf("runtime-ngpus", "%d is %d units of %d, each with sequences of its own, but the global batch has %d; use runtime-ngpus %d or less, or a larger unit (plan-ngpus)",
			o.RuntimeNGPUs, units, o.PlanNGPUs, s.batch, s.batch*o.PlanNGPUs)
	case o.DP*units > s.batch:
		return optionErrorf("dp", "%d in %d units are more data-parallel ranks than the global batch has sequences, %d; use dp %d or less",
			o.DP, units, s.batch, max(1, s.batch/units))
	case o.PP > blocks:
		return optionErrorf("pp", "%d stages need a block each, the model has %d; use pp %d or less", o.PP, blocks, blocks)
	case o.ZeROGroup > 0:
		return s.noGroup(o.ZeROGroup)
	case o.ZeRO != nil && *o.ZeRO > 0:
		return optionErrorf("zero", "stage %d needs at least 2 data-parallel ranks; %s has them with %s, nor context-parallel ones", *o.ZeRO, degrees, model)
	case o.Overlap == "on":
		return optionErrorf("overlap", "needs at least 2 data-parallel ranks; %s has them with %s, nor context-parallel ones", degrees, model)
	case o.TPRows > 1:
		return optionErrorf("tp-rows", "is %d, which needs tp of %d or another multiple; %s has it with %s", o.TPRows, 2*o.TPRows, degrees, model)
	case o.replicate() != "":
		return optionErrorf("replicate", "is %s, which needs tp of at least 2; %s has it with %s", o.Replicate, degrees, model)
	case o.BatchParallel == "on":
		return optionErrorf("batch-parallel", "needs tp of at least 2 and a sequence for each rank of dp x tp; %s has them with %s", degrees, model)
	case o.SequenceParallel == "on":
		return optionErrorf("sequence-parallel", "needs tp of at least 2; %s has it with %s", degrees, model)
	case o.Schedule == partition.Interleaved || o.Interleave > 1:
		return optionErrorf("interleave", "%s chunks per rank need a pipeline of 2 ranks or more with a block for each chunk; %s has that with %s", degree(o.Interleave), degrees, model)
	}
	return optionErrorf("plan-ngpus", "%s suits %s", degrees, model)
}

// allocate compiles a plan as a whole and returns the arena of each stage: the larger of the step's
// and of the evaluation's.
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

// hostBytes lists what each stage keeps in host memory; nil if none does.
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

// Predict tells what any plan costs for a graph traced for a global batch, exactly as [Search]
// would say of it, by compiling and simulating the whole program. eval is as in [Options]; nil for
// none. It does not ask whether the plan fits.
func Predict(g *ir.Graph, batch int, c *cost.Cluster, p *partition.Plan, eval *ir.Graph) (Prediction, error) {
	_, x, err := predict(g, batch, c, p, eval)
	return x, err
}

// predict is [Predict] that also returns the program.
func predict(g *ir.Graph, batch int, c *cost.Cluster, p *partition.Plan, eval *ir.Graph) (*codegen.Program, Prediction, error) {
	if err := priceable(g, batch, c, p.RuntimeNGPUs); err != nil {
		return nil, Prediction{}, err
	}
	s := &searcher{opts: Options{Eval: eval}, blueprints: newBlueprints(&shrunken{graph: g}, batch)}
	prog, peaks, err := s.allocate(p)
	if err != nil {
		return nil, Prediction{}, err
	}
	line, err := sim.Run(prog, c, sim.Options{})
	if err != nil {
		return nil, Prediction{}, err
	}
	x := Prediction{Step: line.Step, Breakdown: line.Breakdown(), PeakBytes: peaks, HostBytes: hostBytes(prog)}
	return prog, x, nil
}
