package planner

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// The check of a certificate, without trust in the search. It verifies that
//
//   - the certificate is for this graph, cluster and limit;
//   - its regions tile the declared space (declared.go);
//   - the winner takes and needs what is claimed, by its whole program;
//   - the reason of every region holds, by computing each bound anew, and repeating what was
//     searched with a branch and bound of its own (certify_cuts.go);
//   - random plans from the whole space are not faster, as a check on prices and bounds themselves.

// RefutedError is a certificate that does not prove its claim.
type RefutedError struct {
	File string
	Line int // of the certificate, from 1; 0 if it is something missing
	Msg  string
}

func (e *RefutedError) Error() string {
	file := e.File
	if file == "" {
		file = "certificate"
	}
	if e.Line == 0 {
		return fmt.Sprintf("%s: refuted: %s", file, e.Msg)
	}
	return fmt.Sprintf("%s:%d: refuted: %s", file, e.Line, e.Msg)
}

func refute(line int, format string, args ...any) error {
	return &RefutedError{Line: line, Msg: fmt.Sprintf(format, args...)}
}

// Audit is what [Certify] checked.
type Audit struct {
	Fixed   []string        `json:"fixed,omitempty"` // what was given, not searched: see [Options.Fixed]
	Reasons []AuditedReason `json:"reasons"`
	Cuts    int             `json:"plans_priced"`        // while cuts were searched
	Samples int             `json:"random_plans"`        // priced
	Closest float64         `json:"closest_random_plan"` // time of the fastest of those that fit, relative to the winner's; 0 for none
	Seconds float64         `json:"seconds"`
}

// AuditedReason counts the regions with one reason.
type AuditedReason struct {
	Reason  string  `json:"reason"`
	Means   string  `json:"means"`
	Regions int     `json:"regions"`
	Points  int     `json:"pipelines"` // outlines with a micro-batch size and a schedule
	Plans   float64 `json:"plans"`     // with all cuts and recomputation
	Seconds float64 `json:"seconds"`   // spent on checking them
}

// meanings explains the reasons, in the order of the report.
func meanings() [][2]string {
	return [][2]string{
		{string(byTrunk), "what all plans with the same tp and cp do takes as long"},
		{string(byStages), "what the stages do in order takes as long"},
		{string(byCuts), "the flow through the stages takes as long, however they are cut"},
		{string(byMemory), "the stages cannot hold all blocks"},
		{string(byTwin), "a smaller unit, or another order of its ranks, does the same"},
		{string(refused), "there is no program"},
		{string(spares), "memory that is not short is spared; searched cut by cut"},
		{string(bySearch), "searched cut by cut"},
	}
}

// auditor checks a certificate.
type auditor struct {
	*searcher // for prices and bounds; its search is not used
	declared  declared
	cert      *Certificate
	outlines  map[outline]*pending
	failed    map[outline]error
	audit     *Audit
	space     tiling
}

// Certify checks a certificate against the graph and the cluster that it is said to be for, and the
// evaluation graph that shares the memory, if any. It lists the space by itself and checks that the
// regions tile it, computes the bound of every region anew, repeats with a branch and bound of its
// own what was searched, prices the winner from its whole program, and prices so many random plans
// from all over the space, drawn with a seed. With the search it shares the prices of plans and the
// bounds, which are functions of a plan or a region alone. It fails with a *RefutedError.
func Certify(g *ir.Graph, batch int, c *cost.Cluster, eval *ir.Graph, cert *Certificate, samples int, seed uint64) (*Audit, error) {
	start := time.Now()
	opts, err := cert.Options.on(c, batch)
	if err != nil {
		return nil, refute(5, "options: %v", err)
	}
	for _, x := range []struct {
		line       int
		what       string
		says, want string
	}{{2, "graph", cert.GraphHash, graphHash(g)}, {4, "cluster", cert.ClusterHash, clusterHash(c)}} {
		if x.says != x.want {
			return nil, refute(x.line, "the certificate is for a %s with hash %.12s, this one has %.12s", x.what, x.says, x.want)
		}
	}
	opts.Eval = eval
	if err := opts.checkSlices(g); err != nil {
		return nil, refute(5, "options: %v", err)
	}
	s := newSearcher(g, batch, c, opts)
	s.everywhere = cert.Everywhere
	if s.limit != cert.Limit {
		return nil, refute(6, "the limit is %d bytes, but options and cluster give %d", cert.Limit, s.limit)
	}
	a := newAuditor(s, cert)
	if a.space, err = a.declared.tile(cert.Regions); err != nil {
		return nil, err
	}
	if err := a.winner(g, eval); err != nil {
		return nil, err
	}
	if a.widens(cert.Plan) {
		return nil, refute(7, "the space is not widened, though the winner shares tokens, or its ranks have unequal numbers of sequences")
	}
	if err := a.regions(); err != nil {
		return nil, err
	}
	if err := a.sample(samples, seed); err != nil {
		return nil, err
	}
	a.audit.Seconds = time.Since(start).Seconds()
	return a.audit, nil
}

func newAuditor(s *searcher, cert *Certificate) *auditor {
	return &auditor{
		searcher: s, cert: cert, audit: &Audit{Fixed: cert.Options.Fixed()}, outlines: map[outline]*pending{}, failed: map[outline]error{},
		declared: declared{opts: s.opts, cluster: s.cluster, blocks: s.graphs.blocks, batch: s.batch, tokens: s.contexts.tokens, everywhere: cert.Everywhere, rates: s.rates, slices: s.sliceCounts(), inParts: s.inParts, fixed: s.fixedSequences(), modules: s.layouts.modules(), gridded: s.layouts.gridModules(), ofBlocks: s.layouts.ofBlocks(), vocabulary: s.layouts.vocabulary()},
	}
}

// winner prices the winner from its whole program, and finds it in the space.
func (a *auditor) winner(g, eval *ir.Graph) error {
	cert := a.cert
	if cert.Plan.RuntimeNGPUs != a.opts.RuntimeNGPUs {
		return refute(8, "the winner is for %d ranks, the options are for %d", cert.Plan.RuntimeNGPUs, a.opts.RuntimeNGPUs)
	}
	p, err := Predict(g, a.batch, a.cluster, cert.Plan, eval)
	if err != nil {
		return refute(8, "the winner does not compile: %v", err)
	}
	if p.Step != cert.Step {
		return refute(9, "the winner takes %d ps, the certificate says %d", int64(p.Step), int64(cert.Step))
	}
	if !slices.Equal(p.PeakBytes, cert.Peaks) {
		return refute(10, "the winner needs %d bytes, the certificate says %d", p.PeakBytes, cert.Peaks)
	}
	t := cert.Plan
	if at := a.over(t, p.PeakBytes); at >= 0 {
		return refute(10, "the winner needs %d bytes, the limit is %d", p.PeakBytes[at], a.limitAt(t, at))
	}
	o := a.outlineOf(t)
	if a.space.of(o).at(cell{o, t.MicroBatch, t.Schedule}) == nil {
		return refute(8, "the winner is in no region")
	}
	return a.isTemplate(o)
}

// outlineOf returns the outline of a plan.
func (a *auditor) outlineOf(p *partition.Plan) outline {
	return outline{
		degrees{p.PlanNGPUs, p.DP, p.ContextParallel(), p.TP, p.PP(), a.cluster.Order(p)},
		sharding{p.ZeRO, p.ZeROGroup, p.SequenceParallel, p.Overlap, p.Offload, slicesOf(p), piecesOf(p), a.splitOf(p)}, p.Chunks(), p.RankOrder, waits(p),
	}
}

// isTemplate checks that the winner splits parameters as its outline does.
func (a *auditor) isTemplate(o outline) error {
	template, err := a.template(o)
	if err != nil {
		return refute(8, "the winner: %v", err)
	}
	if a.cert.Plan.BatchShares != nil {
		return refute(8, "the winner shares the batch as %d, the space evenly", a.cert.Plan.BatchShares)
	}
	if template.SequenceParts != a.cert.Plan.SequenceParts {
		return refute(8, "the winner cuts sequences in %d parts, the space in %d", a.cert.Plan.SequenceParts, template.SequenceParts)
	}
	if on := template.OverlapTP && !a.cert.Plan.Schedule.SplitsBackward(); on != a.cert.Plan.OverlapTP {
		return refute(8, "the winner has overlap of tensor parallelism %s, the space %s", onOff(a.cert.Plan.OverlapTP), onOff(on))
	}
	if !reflect.DeepEqual(slices.Clip(template.Placements), slices.Clip(a.cert.Plan.Placements)) && len(template.Placements)+len(a.cert.Plan.Placements) > 0 {
		return refute(8, "the winner places parameters as %v, the space as %v", a.cert.Plan.Placements, template.Placements)
	}
	return nil
}

// regions checks the reasons of all regions, and counts them.
func (a *auditor) regions() error {
	rows := map[string]*AuditedReason{}
	ways := map[int]float64{} // number of plans for a micro-batch size and schedule, by number of stages
	for _, m := range meanings() {
		rows[m[0]] = &AuditedReason{Reason: m[0], Means: m[1]}
	}
	for i := range a.cert.Regions {
		r := &a.cert.Regions[i]
		start := time.Now()
		if err := a.region(r); err != nil {
			return err
		}
		row := rows[string(r.reason)]
		row.Regions++
		points := r.points()
		row.Points += points
		stages := r.pp
		if r.chunks > 1 {
			stages = 0
		}
		if _, known := ways[stages]; !known {
			ways[stages] = a.declared.plans(r.outline)
		}
		row.Plans += float64(points) * ways[stages]
		row.Seconds += time.Since(start).Seconds()
	}
	for _, m := range meanings() {
		if row := rows[m[0]]; row.Regions > 0 {
			a.audit.Reasons = append(a.audit.Reasons, *row)
		}
	}
	return nil
}

// region checks the reason of a region.
func (a *auditor) region(r *Region) error {
	switch r.reason {
	case byTwin:
		return a.alike(r)
	case refused:
		for c := range r.cells() {
			if _, err := a.skeletonOf(c.outline); err == nil {
				return refute(r.line, "%s can be compiled", c.text())
			}
		}
		return nil
	case byTrunk, byStages, byCuts:
		if r.bound < a.cert.Step {
			return refute(r.line, "the bound %d ps is less than the %d ps of the winner", int64(r.bound), int64(a.cert.Step))
		}
	}
	free, any := map[cell]cost.Picoseconds{}, map[cell]cost.Picoseconds{}
	for c := range r.cells() {
		if r.reason == byTrunk {
			whole := cell{a.undivided(a.usual(c.outline)), c.size, c.schedule} // its bounds hold for any number of parts
			base := whole                                                      // and with unlimited memory for what only spares it
			base.outline = a.base(whole.outline)
			if _, known := free[base]; !known {
				free[base] = a.trunks(base.outline, c.size, c.schedule, nil, r.bound)
			}
			if free[base] >= r.bound {
				continue
			}
			if _, known := any[whole]; !known {
				any[whole] = a.trunks(whole.outline, c.size, c.schedule, a.again(whole.outline, c.size, c.schedule), r.bound)
			}
			if any[whole] >= r.bound {
				continue
			}
		}
		if err := a.cell(r, c); err != nil {
			return err
		}
	}
	return nil
}

// cell checks one cell of a region.
func (a *auditor) cell(r *Region, c cell) error {
	o, size, schedule := c.outline, c.size, c.schedule
	var bound cost.Picoseconds
	switch r.reason {
	case byTrunk:
		bound = a.trunks(a.usual(o), size, schedule, a.again(o, size, schedule), r.bound)
	case byStages:
		var err error
		if bound, err = a.stages(a.usual(o), size, schedule, a.again(o, size, schedule), r.bound); err != nil {
			return refute(r.line, "%s cannot be compiled: %v", o.text(), err)
		}
	case byCuts, byMemory:
		skel, err := a.skeletonOf(o)
		if err != nil {
			return refute(r.line, "%s cannot be compiled: %v", o.text(), err)
		}
		pipe := newPipeline(skel, skel.memoryOf(size), size, schedule)
		if r.reason == byMemory {
			if holds := pipe.holds(a.limit); holds > r.holds || r.holds >= a.graphs.blocks {
				return refute(r.line, "the stages can hold %d blocks of %d, with micro-batches of %d under %s; the certificate says %d", holds, a.graphs.blocks, size, schedule, r.holds)
			}
			return nil
		}
		pipe.stages = skel.times(size, schedule)
		if r.chunks > 1 {
			bound = pipe.time(pipe.interleavedCut(a.opts.recompute(r.replicate), make([]int, r.pp)))
		} else {
			b := newBounds(pipe, a.limit, a.opts, nil)
			if bound = b.best(); bound < r.bound && b.reach(r.bound-1, 0)[0][a.graphs.blocks] == never {
				bound = r.bound
			}
		}
	default:
		return a.search(r, c)
	}
	if bound < r.bound {
		return refute(r.line, "the bound is %d ps with micro-batches of %d under %s, the certificate says %d", int64(bound), size, schedule, int64(r.bound))
	}
	return nil
}

// usual returns an outline with the number of slices of the loss for which there are floors, which
// hold for all numbers.
func (a *auditor) usual(o outline) outline {
	o.slices = a.opts.slices()
	return o
}

// fitsWithFewer reports whether a plan fits with half as many slices of the loss. Then the space
// does not have it.
func (a *auditor) fitsWithFewer(p *partition.Plan) bool {
	if p.LossSlices < 2 || a.opts.LossSlices > 0 {
		return false
	}
	fewer := *p
	if fewer.LossSlices /= 2; fewer.LossSlices == 1 {
		fewer.LossSlices = 0
	}
	peaks, _, err := a.peaks(&fewer)
	return err == nil && a.over(&fewer, peaks) < 0
}

// stages bounds the plans of an outline by all that its stages do in order; if that is less than
// enough, also by the trunk. Unless more is nil, the bounds include the recomputation that memory
// makes necessary.
func (a *auditor) stages(o outline, size int, schedule partition.Schedule, more *again, enough cost.Picoseconds) (cost.Picoseconds, error) {
	bound, err := a.refined(a.pendingOf(o), size, schedule, more)
	if bound < enough {
		bound = max(bound, a.trunks(o, size, schedule, more, enough))
	}
	return bound, err
}

// trunks bounds plans by the trunk alone: at their place and anywhere, and also with unlimited
// memory and nothing to spare it. All of these are tried, as a bound that accounts for more may
// still be lower: bounds are only found to within a thousandth, and one for a single number of
// parts may be below the one for any.
func (a *auditor) trunks(o outline, size int, schedule partition.Schedule, more *again, enough cost.Picoseconds) cost.Picoseconds {
	bound := cost.Picoseconds(0)
	for _, o := range []outline{a.undivided(o), o} {
		bare := a.base(o)
		for _, x := range []struct {
			outline
			*again
		}{
			{a.anywhere(o), more}, {o, more},
			{a.anywhere(bare), nil}, {bare, nil},
			{a.anywhere(o), nil}, {o, nil},
		} {
			if bound < enough {
				bound = max(bound, a.exchanged(x.outline), a.floor(x.outline, a.trunk(x.outline), size, schedule), a.flowing(a.pendingOf(x.outline), size, schedule, x.again))
			}
		}
	}
	return bound
}

// pendingOf returns what is known of an outline.
func (a *auditor) pendingOf(o outline) *pending {
	if a.outlines[o] == nil {
		a.outlines[o] = &pending{outline: o}
	}
	return a.outlines[o]
}

// alike checks a region of twins: all communication of its outlines goes through the network as
// that of their twin, which has as many data-parallel ranks in a smaller unit or another order of
// ranks. The cells of the twin must be shown to be no faster by themselves, not by being twins in
// turn.
func (a *auditor) alike(r *Region) error {
	replicas := a.declared.replicas(r.degrees)
	if r.unit < 1 || a.opts.RuntimeNGPUs%r.unit != 0 || replicas*r.unit%a.opts.RuntimeNGPUs != 0 {
		return refute(r.line, "there is no unit of %d with as many data-parallel ranks as %s", r.unit, r.outline.text())
	}
	twin := r.outline
	twin.plan, twin.dp, twin.ranks = r.unit, replicas*r.unit/a.opts.RuntimeNGPUs, r.as
	for c := range r.cells() {
		like := c
		like.outline, like.waits, like.slices, like.pieces = twin, c.waits, c.slices, c.pieces
		if at := a.space.of(like.outline).at(like); at == nil || a.cert.Regions[*at-1].reason == byTwin {
			return refute(r.line, "no region but alike ones has micro-batches of %d under %s with %s", like.size, like.schedule, like.text())
		}
	}
	ways := a.ways(twin)
	for o := range r.outlines() {
		if a.ways(o) != ways {
			return refute(r.line, "with a unit of %d not everything goes the same ways through the network as with %d", r.unit, r.plan)
		}
	}
	return nil
}

// ways tells how all communication of an outline goes through the network.
func (a *auditor) ways(o outline) string {
	p := partition.Plan{
		PlanNGPUs: o.plan, RuntimeNGPUs: a.opts.RuntimeNGPUs, DP: o.dp, CP: o.cp, TP: o.tp, TPRows: o.rows, ZeRO: o.zero, ZeROGroup: o.group,
		MicroBatch: a.batch, Stages: make([]partition.Stage, o.pp), PoolOrder: a.cluster.Orders()[o.order], RankOrder: o.ranks,
	}
	return cost.NewProgram(a.cluster, &p, p.Mesh(a.batch)).Ways()
}

// skeletonOf returns the prices of an outline, or why it cannot be compiled.
func (a *auditor) skeletonOf(o outline) (*skeleton, error) {
	p := a.pendingOf(o)
	if p.skel == nil && a.failed[o] == nil {
		p.skel, a.failed[o] = a.skeleton(o)
	}
	return p.skel, a.failed[o]
}

// smallPrograms limits ranks times blocks of random plans that are also compiled and simulated
// whole.
const smallPrograms = 64

// drawn is a random plan of a region.
type drawn struct {
	outline
	pipe *pipeline
	cut  []partition.Stage
}

// draw returns a random plan of a region, nil if that has no program.
func (a *auditor) draw(r *rand.Rand, x *Region) *drawn {
	o := x.outline
	o.ranks, o.waits = x.ranks[r.IntN(len(x.ranks))], x.waits[r.IntN(len(x.waits))]
	o.slices, o.pieces = x.slices[r.IntN(len(x.slices))], x.pieces[r.IntN(len(x.pieces))]
	skel, err := a.skeletonOf(o)
	if err != nil {
		return nil
	}
	sizes := x.sizesIn(o.pieces)
	if len(sizes) == 0 {
		return nil
	}
	size, schedule := sizes[r.IntN(len(sizes))], x.schedules[r.IntN(len(x.schedules))]
	pipe := newPipeline(skel, skel.memoryOf(size), size, schedule)
	pipe.stages = skel.times(size, schedule)
	return &drawn{o, pipe, a.randomCut(r, x)}
}

// floorOf is the largest bound of a plan's outline that holds with unlimited memory.
func (a *auditor) floorOf(d *drawn) (cost.Picoseconds, error) {
	t := &d.pipe.template
	return a.stages(a.usual(d.outline), t.MicroBatch, t.Schedule, nil, never)
}

// sample prices random plans from all over the space. None may take less than its bound, and none
// that fits less than the winner.
func (a *auditor) sample(count int, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 0))
	total := 0
	var until []int
	for _, x := range a.cert.Regions {
		total += x.points()
		until = append(until, total)
	}
	for k := range count {
		at, _ := slices.BinarySearch(until, 1+r.IntN(total))
		x := &a.cert.Regions[at]
		d := a.draw(r, x)
		if d == nil {
			continue
		}
		plan, time := d.pipe.plan(d.cut), d.pipe.time(d.cut)
		if whole := a.opts.RuntimeNGPUs*a.graphs.blocks <= smallPrograms; whole {
			p, err := Predict(a.graphs.graph, a.batch, a.cluster, plan, a.opts.Eval)
			if err != nil || p.Step != time {
				return refute(x.line, "random plan %d of seed %d takes %d ps, %d in its whole program (%v): %s", k, seed, int64(time), int64(p.Step), err, mustJSON(plan))
			}
		}
		if least, err := a.floorOf(d); err != nil || time < least {
			return refute(x.line, "random plan %d of seed %d takes %d ps, less than the bound of %d ps: %s", k, seed, int64(time), int64(least), mustJSON(plan))
		}
		a.audit.Samples++
		ratio := float64(time) / float64(a.cert.Step)
		if time >= a.cert.Step && a.audit.Closest > 0 && ratio >= a.audit.Closest {
			continue
		}
		peaks, _, err := a.peaks(plan)
		if err != nil {
			return refute(x.line, "random plan %d of seed %d does not compile: %v: %s", k, seed, err, mustJSON(plan))
		}
		if a.over(plan, peaks) >= 0 || a.fitsWithFewer(plan) {
			continue
		}
		if time < a.cert.Step {
			return refute(x.line, "random plan %d of seed %d fits and takes %d ps, less than the %d ps of the winner: %s", k, seed, int64(time), int64(a.cert.Step), mustJSON(plan))
		}
		a.audit.Closest = ratio
	}
	return nil
}
