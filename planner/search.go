package planner

import (
	"cmp"
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
	// Gap is by how much of its time a plan of the space could at most be faster, where
	// the search gave up on proving that none is; 0 where it did not.
	Gap float64
}

// searcher is one run of [Search].
type searcher struct {
	opts Options
	*blueprints
	contexts
	cluster *cost.Cluster
	limit   int64
	layouts *layouts
	finals
	stats      Stats
	pending    []*pending
	works      map[workKey]*work
	trunks     map[trunkKey]*work
	rates      *cost.Model
	families   map[family]*floors
	busyTrunks map[family][]sized // see trunkFloors
	orders     map[order]*ways
	seen       map[order][]string // the ways of outlines that are not like earlier ones, by degrees with the number of replicas
	isTwin     map[order]bool
	permuted   map[degrees][]string
	tracts     []*tract
	units      map[degrees][]degrees // by degrees anywhere
	replicable []string              // see replications
	gridded    []string              // see grids
	whole      []split               // see batched
	counts     []int                 // see sliceCounts
	lies       map[liesKey]*lies
	allRooms   map[roomsKey][][]codegen.Chunk
	evens      map[roomsKey]evenShares
	passage    passage           // see leastOn
	scratch    []position        // see positions
	unsent     []partTimes       // of positions that send nothing
	refused    error             // why the last of the outlines that cannot be compiled was not
	refusals   map[outline]error // of all of them
	found      *incumbents
	looked     []*point // what the search looked at
	steps      int      // of the proof that nothing beats the winner
}

// Search returns the fastest plan for a training step traced for a global batch, among those that fit: the minimum, under the
// cost of planner/sim, over all that the options leave of
//
//   - units of devices, their degrees (dp, cp, tp, pp), and the orders of their ranks and of the cluster's pools of devices;
//   - sizes of micro-batches and schedules: GPipe, 1F1B and zero-bubble with stages of any lengths, interleaved 1F1B with even
//     ones, of 2, 4, or as many chunks as share the blocks evenly;
//   - ZeRO stages; sequence parallelism, batch parallelism or neither; modules that tensor parallelism leaves whole or cuts on grids;
//   - data-parallel communication beside the computation or not, and products of tensor parallelism in 1, 2 or 4 parts;
//   - recomputation: of every stage so many blocks, in full and of others either attention or norms and activation functions,
//     that it fits and does the least work; of equal work the fewest in full;
//   - where memory is short ZeRO in groups, offload, and the loss in slices (see relieve and slice).
//
// [Options] says of each where it is searched; the type declared has the space as plain loops. Plans that take the same time are ordered by peak memory, then by comparePlans.
// It fails with an *InfeasibleError when no plan fits, and with an *OptionError when none is as the options say.
func Search(g *ir.Graph, batch int, c *cost.Cluster, opts Options) (*Result, error) {
	res, _, err := newSearch(g, batch, c, opts, thorough)
	return res, err
}

// newSearch is [Search] with so many steps for the proof that nothing beats the winner;
// it also returns what the search knows at its end.
func newSearch(g *ir.Graph, batch int, c *cost.Cluster, opts Options, steps int) (*Result, *searcher, error) {
	start := time.Now()
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
	if err == nil && opts.CP == 0 && (len(found) == 0 || opts.Replicate == "" && s.splitOf(found[0].plan).replicate != "" && !found[0].plan.BatchParallel) {
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
		p, err := s.finish(x)
		if err != nil {
			return nil, nil, err
		}
		if i == 0 {
			res.Plan, res.Prediction = x.plan, p
		} else {
			res.Alternatives = append(res.Alternatives, Alternative{x.plan, p})
		}
	}
	s.stats.Seconds = time.Since(start).Seconds()
	res.Stats = s.stats
	return res, s, nil
}

// search lists the space and returns what [searcher.run] finds in it.
func (s *searcher) search() ([]*candidate, []*point, bool, error) {
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

// noProgram says why no outline can be compiled, by the last one. A degree that was not asked for is what
// blocks and sequences have left of the devices.
func (s *searcher) noProgram() error {
	var at *OptionError
	if s.opts.TP == 0 && errors.As(s.refused, &at) && at.Option == "tp" {
		return optionErrorf("plan-ngpus", "no dp x tp x pp of %s devices in %d suits %d blocks and a global batch of %d, which leave so much to tp that %s; use fewer devices",
			degree(s.opts.PlanNGPUs), s.opts.RuntimeNGPUs, s.graphs.blocks, s.batch, at.Msg)
	}
	return s.refused
}

func newSearcher(g *ir.Graph, batch int, c *cost.Cluster, opts Options) *searcher {
	graphs := newShrunken(g)
	s := &searcher{
		opts: opts, blueprints: newBlueprints(graphs, batch), contexts: contexts{tokens: sequenceTokens(g)}, cluster: c,
		works: map[workKey]*work{}, trunks: map[trunkKey]*work{}, rates: cost.NewModel(c, max(1, opts.RuntimeNGPUs)), families: map[family]*floors{}, busyTrunks: map[family][]sized{}, orders: map[order]*ways{},
		permuted: map[degrees][]string{}, lies: map[liesKey]*lies{},
		refusals: map[outline]error{}, allRooms: map[roomsKey][][]codegen.Chunk{}, evens: map[roomsKey]evenShares{},
		finals: newFinals(), passage: passage{enough: never},
	}
	if opts.pieces(c) > 0 {
		s.trunkPieces = 2
	}
	s.limit = c.MemoryUnder(opts.MemoryLimit, opts.RuntimeNGPUs)
	s.layouts = &layouts{graph: s.graphs.keep(1), batch: batch, ranks: opts.RuntimeNGPUs, cluster: c, pins: opts.Pins, known: map[int][][]partition.Placement{}}
	return s
}

// point is a pipeline of the space under search.
type point struct {
	degrees
	split // as in [outline]
	*cutter
	solved bool             // its best plan is among the best of its degrees
	unsure bool             // it may have a better plan than was found
	sliced bool             // so are those with twice as many slices of the loss, if any, or there are none to look at
	rest   cost.Picoseconds // the limit under which it is left alone, as there is nothing or the search gave up
}

// outline is that of the point.
func (p *point) outline() outline {
	t := &p.pipe.template
	return outline{p.degrees, sharding{t.ZeRO, t.ZeROGroup, t.SequenceParallel, t.Overlap, t.Offload, slicesOf(t), piecesOf(t), p.split}, t.Chunks(), t.RankOrder}
}

// outlines lists the space by tracts.
func (s *searcher) outlines() error {
	s.pending, s.seen, s.isTwin = nil, map[order][]string{}, map[order]bool{}
	s.tracts = s.tractsOf(allDegrees(s.opts, s.graphs.blocks, s.batch, s.contexts, s.cluster))
	all := s.tracts
	if g := s.opts.ZeROGroup; len(all) == 0 && g > 0 {
		return s.noGroup(g)
	}
	if len(all) == 0 && s.opts.ZeRO != nil && *s.opts.ZeRO > 0 {
		return optionErrorf("zero", "stage %d needs at least 2 data-parallel ranks; no dp x tp x pp of %s devices in %d has them with %d blocks and a global batch of %d",
			*s.opts.ZeRO, degree(s.opts.PlanNGPUs), s.opts.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	if len(all) == 0 && s.opts.Overlap == "on" {
		return optionErrorf("overlap", "needs at least 2 data-parallel ranks; no dp x tp x pp of %s devices in %d has them with %d blocks and a global batch of %d",
			degree(s.opts.PlanNGPUs), s.opts.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	if rows := s.opts.TPRows; len(all) == 0 && rows > 1 {
		return optionErrorf("tp-rows", "is %d, which needs tp of %d or another multiple; no dp x tp x pp of %s devices in %d has it with %d blocks and a global batch of %d",
			rows, 2*rows, degree(s.opts.PlanNGPUs), s.opts.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	if len(all) == 0 && s.opts.BatchParallel == "on" {
		return optionErrorf("batch-parallel", "needs tp of at least 2 and a sequence for each rank of dp x tp; no dp x tp x pp of %s devices in %d has them with %d blocks and a global batch of %d",
			degree(s.opts.PlanNGPUs), s.opts.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	if len(all) == 0 && s.opts.SequenceParallel == "on" {
		return optionErrorf("sequence-parallel", "needs tp of at least 2; no dp x tp x pp of %s devices in %d has it with %d blocks and a global batch of %d",
			degree(s.opts.PlanNGPUs), s.opts.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	if len(all) == 0 && (s.opts.Schedule == partition.Interleaved || s.opts.Interleave > 1) {
		return optionErrorf("interleave", "%s chunks per rank need a pipeline of 2 ranks or more with a block for each chunk; no dp x tp x pp of %s devices in %d has that with %d blocks and a global batch of %d",
			degree(s.opts.Interleave), degree(s.opts.PlanNGPUs), s.opts.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	if units := s.opts.RuntimeNGPUs / max(s.opts.PlanNGPUs, 1); len(all) == 0 && s.opts.DP*units > s.batch {
		return optionErrorf("dp", "%d in %d units are more data-parallel ranks than the global batch has sequences, %d; use dp %d or less",
			s.opts.DP, units, s.batch, max(1, s.batch/units))
	}
	if len(all) == 0 && s.opts.PP > s.graphs.blocks {
		return optionErrorf("pp", "%d stages need a block each, the model has %d; use pp %d or less", s.opts.PP, s.graphs.blocks, s.graphs.blocks)
	}
	if len(all) == 0 {
		return optionErrorf("plan-ngpus", "no dp x tp x pp of %s devices in %d suits %d blocks and a global batch of %d",
			degree(s.opts.PlanNGPUs), s.opts.RuntimeNGPUs, s.graphs.blocks, s.batch)
	}
	return nil
}

// twin reports whether an outline differs from an earlier one, in a smaller unit or another
// order of its ranks, only in the numbers of ranks: if every group and every transfer goes
// the same way through the network, every plan takes the same time and memory.
func (s *searcher) twin(o outline) bool {
	key := order{o.degrees, o.group, o.rows, o.ranks}
	twin, known := s.isTwin[key]
	if !known {
		ways, unit := s.order(o).text, key
		unit.plan, unit.dp, unit.ranks = 0, s.replicas(o), ""
		twin = slices.Contains(s.seen[unit], ways)
		s.seen[unit], s.isTwin[key] = append(s.seen[unit], ways), twin
	}
	return twin
}

// replicas is how many data-parallel ranks the whole run has.
func (s *searcher) replicas(o outline) int { return o.dp * (s.opts.RuntimeNGPUs / o.plan) }

// order is what the ways of an outline through the network follow from.
type order struct {
	degrees
	group, rows int
	ranks       string
}

// ways is how everything that an outline communicates goes through the network.
type ways struct {
	text      string          // alike if everything goes alike
	prices    []*cost.Program // of the positions in which data-parallel ranks that shard together lie differently
	dp        int             // the axis of those ranks
	anywhere  int             // how many they are, if they may lie anywhere
	moved     map[sharding]*workTimes
	sent      map[sendKey][]partTimes
	plan      *partition.Plan
	transfers map[int]*cost.Program // by chunks
}

// order returns the ways of an outline.
func (s *searcher) order(o outline) *ways {
	key := order{o.degrees, o.group, o.rows, o.ranks}
	w, known := s.orders[key]
	if known {
		return w
	}
	if o.ranks == anywhere {
		w = &ways{prices: s.trunk(o).prices, anywhere: cmp.Or(o.group, s.replicas(o)), moved: map[sharding]*workTimes{}}
		s.orders[key] = w
		return w
	}
	p := &partition.Plan{
		PlanNGPUs: o.plan, RuntimeNGPUs: s.opts.RuntimeNGPUs, DP: o.dp, CP: o.cp, TP: o.tp, TPRows: o.rows, ZeROGroup: o.group,
		MicroBatch: s.batch, Stages: make([]partition.Stage, o.pp), PoolOrder: s.cluster.Orders()[o.order], RankOrder: o.ranks,
	}
	mesh := p.Mesh(s.batch)
	price := s.rates.Program(p, mesh)
	w = &ways{text: price.Ways(), dp: mesh.Axis(partition.AxisDP), moved: map[sharding]*workTimes{}, sent: map[sendKey][]partTimes{}, plan: p, transfers: map[int]*cost.Program{}}
	type place struct {
		kinds cost.Kinds
		group cost.Group
	}
	var places []place
	var offsets []int
	for at := range o.pp {
		offset := price.Offset(at)
		if slices.Contains(offsets, offset) {
			continue
		}
		offsets = append(offsets, offset)
		as := price.As(at)
		if x := (place{price.Kinds(at), as.Group(w.dp)}); !slices.Contains(places, x) {
			places, w.prices = append(places, x), append(w.prices, as)
		}
	}
	s.orders[key] = w
	return w
}

// collective is the least time of a collective over data-parallel ranks.
func (w *ways) collective(op ir.Op, bytes int64) cost.Picoseconds {
	if w.anywhere > 0 {
		return w.prices[0].Nearest(op, bytes, w.anywhere)
	}
	least := never
	for _, price := range w.prices {
		least = min(least, price.Replicas(op, bytes, price.Group(w.dp)))
	}
	return least
}

// hostCopy is the least time of a copy between device and host.
func (w *ways) hostCopy(bytes int64) cost.Picoseconds {
	least := never
	for _, price := range w.prices {
		least = min(least, price.HostCopy(bytes))
	}
	return least
}

// floorsOf returns the first floors of an outline anywhere, of which only that of what it
// exchanges is known until they are listed.
func (s *searcher) floorsOf(o outline) *floors {
	key := family{o.degrees, o.chunks, o.sequence, o.overlap, o.zero >= 2, o.split}
	all := s.families[key]
	if all == nil {
		all = &floors{least: s.exchanged(o)}
		s.families[key] = all
	}
	return all
}

// list has a tract list what micro-batches it may have, with their floors.
func (s *searcher) list(t *pending) {
	if t.first.sizes != nil {
		return
	}
	t.first.least = never
	all, replicas := s.trunkFloors(t.outline), s.replicas(t.outline)
	t.first.sizes = make([]sized, 0, len(all))
	for _, x := range all {
		if t.inStep(x.size, replicas, s.batch) {
			t.first.sizes = append(t.first.sizes, x)
			t.first.least = min(t.first.least, x.floor)
		}
	}
}

// trunkFloors lists all sizes of micro-batches with what the trunk alone takes, which is the
// same however data-parallel ranks communicate.
func (s *searcher) trunkFloors(o outline) []sized {
	o.overlap, o.zero = false, 0
	key := family{degrees: o.degrees, chunks: o.chunks, sequence: o.sequence, split: o.split}
	if all, known := s.busyTrunks[key]; known {
		return all
	}
	trunk, all, exchanged := s.trunk(o), s.unbounded(o), s.exchanged(o)
	for i := range all {
		x := &all[i]
		x.free = max(exchanged, s.floor(o, trunk, x.size, x.schedule))
		x.floor = x.free
	}
	s.busyTrunks[key] = all
	return all
}

// unbounded lists the sizes of micro-batches that an outline may have, with every schedule, before anything is known of them.
func (s *searcher) unbounded(o outline) []sized {
	schedules, sizes := schedules(s.opts, o.pp, o.chunks), s.sizes(o)
	all := make([]sized, 0, len(sizes)*len(schedules))
	for _, b := range sizes {
		for _, schedule := range schedules {
			all = append(all, sized{size: b, schedule: schedule})
		}
	}
	return all
}

// floors are the first of all outlines of a family.
type floors struct {
	sizes []sized // nil until they are listed
	least cost.Picoseconds
}

// family is what the floors of an outline follow from.
type family struct {
	degrees
	chunks                   int
	sequence, overlap, often bool // often: data-parallel ranks communicate in every micro-batch
	split
}

// sizes lists the sizes of micro-batches that an outline may have.
func (s *searcher) sizes(o outline) []int {
	replicas := s.replicas(o)
	local := (s.batch + replicas - 1) / replicas
	sizes := microBatches(local)
	if s.opts.MicroBatch > 0 {
		sizes = []int{min(s.opts.MicroBatch, local)}
	}
	return slices.DeleteFunc(sizes, func(b int) bool { return !o.inStep(b, replicas, s.batch) || o.batch && b < o.tp })
}

// skeleton returns that of an outline. It fails when no parameter can be split so.
func (s *searcher) skeleton(o outline) (*skeleton, error) {
	plan, err := s.template(o)
	if err != nil {
		return nil, err
	}
	skel, err := newSkeleton(s.blueprints, plan, s.cluster)
	if err == nil {
		skel.lacks, skel.outline = s.lacks(&plan), o
		if o.chunks <= 1 {
			all := s.opts.recompute(o.replicate).extents()
			skel.most = all[len(all)-1] // nothing is compiled of more
		}
	}
	return skel, err
}

// template returns the plan of which stages, micro-batch size and schedule are
// still open. It fails when no parameter can be split so.
func (s *searcher) template(d outline) (partition.Plan, error) {
	placements := append(append([]partition.Placement{}, s.opts.Pins...), s.layouts.splitting(d.tp, d.split)...)
	split := func(p partition.Placement) bool { return splitDim(p.Spec) >= 0 }
	if d.tp > 1 && (len(placements) == 0 || d.replicate != "" && !slices.ContainsFunc(placements, split)) {
		return partition.Plan{}, optionErrorf("tp", "no parameter can be split over %d ranks", d.tp)
	}
	plan := partition.Plan{
		PlanNGPUs: d.plan, RuntimeNGPUs: s.opts.RuntimeNGPUs, DP: d.dp, TP: d.tp,
		TPRows: d.rows, ZeRO: d.zero, ZeROGroup: d.group, Offload: d.offload, LossSlices: d.slices, SequenceParallel: d.sequence, BatchParallel: d.batch, Overlap: d.overlap, OverlapTP: d.tp > 1 && s.opts.OverlapTP == "on",
		Stages: make([]partition.Stage, d.stages()), Placements: placements, PoolOrder: s.cluster.Orders()[d.order], RankOrder: d.ranks,
	}
	if d.tp > 1 && d.pieces == anyPieces {
		plan.TPPieces = s.trunkPieces // which stand for any
	} else if d.tp > 1 {
		plan.TPPieces = d.pieces
	}
	if d.cp > 1 {
		plan.CP = d.cp
	}
	if d.chunks > 1 {
		plan.Interleave = d.chunks
	}
	return s.open(plan), nil
}

// open returns a plan whose micro-batches and schedule are to be chosen.
func (b *blueprints) open(p partition.Plan) partition.Plan {
	p.MicroBatch, p.Schedule = b.batch, partition.OneFOneB
	if p.Interleave > 1 {
		p.Schedule = partition.Interleaved
	}
	return p
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
	if err := priceable(g, batch, c, p.RuntimeNGPUs); err != nil {
		return Prediction{}, err
	}
	s := &searcher{opts: Options{Eval: eval}, blueprints: newBlueprints(&shrunken{graph: g}, batch)}
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
