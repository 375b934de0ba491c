package planner

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// What is reported of a plan that was found: its memory to the byte and where the time of its step
// goes, exact although nobody compiles the plan as a whole.
//
// The arena of a position depends only on its own stages, and on whether others come before and
// after. It is read off a pipeline of few positions and ranks that stands for all plans of its
// structure (see blueprint), with few blocks in a row that recompute as much; stages that nobody
// asks for have one block. How further blocks would lie follows from those: see [codegen.Longer].
// Sizes come from the mesh of the real plan, as does the number of micro-batches in flight.
// TestFinishIsTheProgram compares this with whole programs.
//
// The breakdown of the time adds up what the bodies of the simulated pipeline do. Callers: cut.go lays
// out candidates (peaks, fits), search.go reports the winner (finish).

// finals is what a search knows of the memory of plans as it is laid out.
type finals struct {
	evals      *shrunken // the graphs of the evaluation, if there is one
	compiled   map[stageKey]*compiledStage
	footprints map[footprintKey]footprint
}

func newFinals() finals {
	return finals{compiled: map[stageKey]*compiledStage{}, footprints: map[footprintKey]footprint{}}
}

// footprint is the memory of the ranks of a position.
type footprint struct {
	step, eval codegen.Regions // eval has no chunks if there is no evaluation
}

// arena returns the bytes of the arena of a position of a plan with m micro-batches. The schedule says
// how many slots and inboxes it has.
func (f *footprint) arena(p *partition.Plan, position, m int) int64 {
	step, eval := f.step, f.eval
	step.Chunks = withRooms(step.Chunks, codegen.Room(p, position, m, true))
	if eval.Chunks == nil {
		return step.Arena()
	}
	eval.Chunks = withRooms(eval.Chunks, codegen.Room(p, position, m, false))
	return max(step.Arena(), eval.Arena())
}

// withRooms gives chunks the slots and inboxes of others.
func withRooms(chunks, rooms []codegen.Chunk) []codegen.Chunk {
	chunks = slices.Clone(chunks)
	for i := range chunks {
		chunks[i].Slots, chunks[i].Inboxes = rooms[i].Slots, rooms[i].Inboxes
	}
	return chunks
}

// stageKey is what the program of a position depends on.
type stageKey struct {
	of                  *blueprint
	split               bool // the backward pass is in two, as under a zero-bubble schedule
	positions, position int  // which of how many stands for it, at most fewPositions
	stages              string
	whole               bool // no stage is shorter than the one it stands for
}

// standIn returns which of at most [fewPositions] positions stands for one of pp.
func standIn(position, pp int) (at, positions int) {
	positions = min(pp, fewPositions)
	if position == pp-1 {
		return positions - 1, positions
	}
	return min(position, 1), positions
}

// footprintKey is what the footprint of a position depends on.
type footprintKey struct {
	stageKey
	dp, cp, tp, rows, copies, microBatch int
}

// chunksOf lists the stages of a position, each as if it began with the first block.
func chunksOf(p *partition.Plan, position int) []partition.Stage {
	var chunks []partition.Stage
	for i := position; i < len(p.Stages); i += p.PP() {
		st := p.Stages[i]
		chunks = append(chunks, recomputationOf(st).stage(0, st.Last-st.First))
	}
	return chunks
}

// compiledStage is a stage of a program for the step, and of one for the evaluation if there is
// one, with few blocks in a row that recompute as much.
type compiledStage struct {
	step, eval *codegen.Program
	stage      int
	rows       [][extents]int // by chunk and extent, the first block of the row
	unlike     bool           // its blocks do not show how more of them would lie
	last       longerStage    // the latest that its footprint was asked for
}

// longerStage is a compiled stage with further blocks, or chunks.
type longerStage struct {
	repeats    []codegen.Repeat
	chunks     int
	sums       codegen.Region
	step, eval *codegen.Longer
}

// footprint returns the memory of the stage at a position of a plan. It returns false if the
// compiled blocks do not show it.
func (c *compiledStage) footprint(p *partition.Plan, position int, most row, mesh ir.Mesh, how packing) (f footprint, ok bool) {
	if c.unlike {
		return f, false
	}
	l := longerStage{chunks: len(chunksOf(p, position)), sums: codegen.SumsOn(mesh)}
	few := most.chunks(p)
	for chunk, st := range chunksOf(p, position)[:few] {
		for e, count := range recomputationOf(st).counts(st.Last) {
			if more := count - most.blocks; more > 0 {
				l.repeats = append(l.repeats, codegen.Repeat{Block: c.rows[chunk][e] + most.repeated, More: more})
			}
		}
	}
	if last := &c.last; last.step == nil || last.chunks != l.chunks || last.sums != l.sums || !slices.Equal(last.repeats, l.repeats) {
		longer := func(prog, share *codegen.Program) (*codegen.Longer, bool) {
			if more := l.chunks - few; more > 0 {
				return prog.MoreChunks(c.stage, few/2, more, share)
			}
			return prog.Longer(c.stage, l.sums, l.repeats, share)
		}
		if l.step, ok = longer(c.step, nil); ok && c.eval != nil {
			l.eval, ok = longer(c.eval, c.step)
		}
		if c.unlike = !ok; c.unlike {
			return f, false
		}
		c.last = l
	}
	f.step = how.of(c.last.step, mesh)
	if c.eval != nil {
		f.eval = how.of(c.last.eval, mesh)
	}
	return f, true
}

// keptStages is how many compiled stages are kept for further plans.
const keptStages = 16

// packing says how the memory of a stage is found: laid out, or bounded without that.
type packing int

const (
	laidOut packing = iota
	atMost
	atLeast
)

func (p packing) of(l *codegen.Longer, mesh ir.Mesh) codegen.Regions {
	switch p {
	case atMost:
		return l.AtMost(mesh)
	case atLeast:
		return l.AtLeast(mesh)
	}
	return l.Regions(mesh)
}

// footprintsOf returns the memory of every position of a plan.
func (s *searcher) footprintsOf(p *partition.Plan, how packing) ([]footprint, error) {
	if len(s.compiled) > keptStages {
		clear(s.compiled)
	}
	all := make([]footprint, p.PP())
	for at := range all {
		var err error
		if all[at], err = s.footprintOf(p, at, how, true); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// footprintOf returns the memory of one position of a plan: as laid out, or a bound, which is not
// remembered. It compiles a row of few blocks first, and all blocks only if those do not
// show it. With others, those of other positions are asked for, too.
func (s *searcher) footprintOf(p *partition.Plan, at int, how packing, others bool) (footprint, error) {
	of, err := s.find(p, s.lone(p.Mesh(s.batch).Size(partition.AxisMB)))
	if err != nil {
		return footprint{}, err
	}
	whole := row{blocks: s.graphs.blocks * s.graphs.scale}
	rows := []row{rowOf(p), whole}
	if s.graphs.scale > 1 {
		rows = rows[1:]
	}
	key := footprintKey{stageKeyOf(of, p, at, whole), p.DataParallel(), p.ContextParallel(), p.TP, p.Rows(), p.Copies(), p.MicroBatch}
	f, known := s.footprints[key]
	for _, most := range rows {
		if known {
			break
		}
		c, err := s.compile(of, p, at, most, others)
		if err != nil {
			return footprint{}, err
		}
		f, known = c.footprint(p, at, most, p.Mesh(s.batch), how)
	}
	if how == laidOut {
		s.footprints[key] = f
	}
	return f, nil
}

// stageKeyOf returns the key of a position of a plan, with at most the blocks of a row compiled.
func stageKeyOf(of *blueprint, p *partition.Plan, position int, most row) stageKey {
	key := stageKey{of: of, split: p.Schedule.SplitsBackward(), whole: most.repeated == 0}
	key.position, key.positions = standIn(position, p.PP())
	var short [][extents]int
	for _, st := range chunksOf(p, position)[:most.chunks(p)] {
		short = append(short, most.short(st))
	}
	key.stages = fmt.Sprint(short)
	return key
}

// compile returns the compiled stage that stands for a position of a plan. With others, it compiles
// stages for other positions that are not compiled yet beside it.
func (s *searcher) compile(of *blueprint, p *partition.Plan, position int, most row, others bool) (*compiledStage, error) {
	key := stageKeyOf(of, p, position, most)
	if c, known := s.compiled[key]; known {
		return c, nil
	}
	f := s.fewer(of, p, position, most, others)
	blocks := f.plan.Stages[len(f.plan.Stages)-1].Last
	step, err := draft(s.graphs.with(blocks), &f.plan, s.batch, of.lone)
	if err != nil {
		return nil, err
	}
	var eval *codegen.Program
	if s.evals != nil {
		if eval, err = draft(s.evals.with(blocks), &f.plan, s.batch, of.lone); err != nil {
			return nil, fmt.Errorf("planner: evaluation: %w", err)
		}
	}
	for i, at := range f.of {
		if at >= 0 {
			s.compiled[stageKeyOf(of, p, at, most)] = &compiledStage{step: step, eval: eval, stage: i, rows: f.rows[i]}
		}
	}
	return s.compiled[key], nil
}

// with returns the graph with so many of its blocks.
func (s *shrunken) with(blocks int) *ir.Graph {
	if blocks == s.blocks*s.scale {
		return s.graph
	}
	return s.keep(blocks)
}

// few is a pipeline of few positions and blocks that stands for another one.
type few struct {
	plan partition.Plan
	of   []int            // by position: which position of the other it stands for, -1 for none
	rows [][][extents]int // by position, chunk and extent: the first block recomputed to that extent
}

// row is a number of blocks in a row that recompute as much, one of which is repeated to stand for
// more. The blocks around it must be like it, as far as its memory depends on them.
type row struct{ blocks, repeated int }

// rowOf returns the row that shows how many blocks lie under a plan.
func rowOf(p *partition.Plan) row {
	if p.Overlap {
		return row{9, 4} // communication is up to a block ahead of its block, or two behind
	}
	return row{6, 2}
}

// short returns how many blocks of a stage are compiled, by extent.
func (r row) short(st partition.Stage) [extents]int {
	counts := recomputationOf(st).counts(st.Last - st.First)
	for e := range counts {
		counts[e] = min(counts[e], r.blocks)
	}
	return counts
}

// chunks returns how many chunks of each rank are compiled; the middle one stands for the others.
// It is all of them unless all chunks of a rank have the same blocks, and a row leaves none of
// those out.
func (r row) chunks(p *partition.Plan) int {
	const few = 5
	if p.Chunks() <= few || r.repeated == 0 {
		return p.Chunks()
	}
	for at := range p.PP() {
		all := chunksOf(p, at)
		if slices.ContainsFunc(all, func(st partition.Stage) bool {
			return st != all[0] || r.short(st) != recomputationOf(st).counts(st.Last)
		}) {
			return p.Chunks()
		}
	}
	return few
}

// fewer returns a pipeline that stands for a position of a plan and, with others, for one other position of
// each kind that is not compiled. Of blocks that recompute as much it has at most a row; stages
// that stand for none have one block.
func (s *searcher) fewer(of *blueprint, p *partition.Plan, position int, most row, others bool) few {
	kind, n := standIn(position, p.PP())
	f := few{plan: *p, of: slices.Repeat([]int{-1}, n), rows: make([][][extents]int, n)}
	f.of[kind] = position
	if others {
		for at := range p.PP() {
			kind, _ := standIn(at, p.PP())
			if _, known := s.compiled[stageKeyOf(of, p, at, most)]; f.of[kind] < 0 && !known {
				f.of[kind] = at
			}
		}
	}
	like := &of.plan
	f.plan.DP, f.plan.CP, f.plan.TP, f.plan.ZeROGroup, f.plan.MicroBatch = like.DP, like.CP, like.TP, like.ZeROGroup, like.MicroBatch
	f.plan.TPRows, f.plan.PlanNGPUs = like.TPRows, like.PlanNGPUs/like.PP()*n
	f.plan.RuntimeNGPUs = f.plan.PlanNGPUs
	f.plan.Stages, f.plan.RankOrder = nil, "" // the order is that of other axes
	blocks, chunks := 0, most.chunks(p)
	if chunks < p.Chunks() {
		f.plan.Interleave = chunks
	}
	for chunk := range chunks {
		for i, at := range f.of {
			counts := [extents]int{kept: 1}
			if at >= 0 {
				counts = most.short(p.Stages[at+chunk*p.PP()])
			}
			first := blocks
			var rows [extents]int
			for _, e := range []extent{full, selective, pointwise, kept} { // in the order in which they stand in a stage
				rows[e] = blocks
				blocks += counts[e]
			}
			f.rows[i] = append(f.rows[i], rows)
			f.plan.Stages = append(f.plan.Stages, recomputation{counts[full], counts[selective], counts[pointwise]}.stage(first, blocks-first))
		}
	}
	return f
}

// peaks returns the arena of each position of a plan, the larger of the step's and of the
// evaluation's, and what each keeps in host memory, nil if none does.
func (s *searcher) peaks(p *partition.Plan) (peaks, host []int64, err error) {
	if s.unlikeStep() {
		prog, peaks, err := s.allocate(p)
		if err != nil {
			return nil, nil, err
		}
		return peaks, hostBytes(prog), nil
	}
	all, err := s.footprintsOf(p, laidOut)
	if err != nil {
		return nil, nil, err
	}
	m := p.Mesh(s.batch).Size(partition.AxisMB)
	for at := range all {
		peaks = append(peaks, all[at].arena(p, at, m))
		host = append(host, all[at].step.Host)
	}
	if slices.Max(host) == 0 {
		host = nil
	}
	return peaks, host, nil
}

// fits reports whether one position of a plan fits as it is laid out. The plan must have a price.
// Bounds often decide without laying it out.
func (s *searcher) fits(p *partition.Plan, at int) bool {
	if s.unlikeStep() {
		_, peaks, err := s.allocate(p)
		mustCompile(err)
		return peaks[at] <= s.limitAt(p, at)
	}
	if len(s.compiled) > keptStages {
		clear(s.compiled)
	}
	m := p.Mesh(s.batch).Size(partition.AxisMB)
	within := func(how packing) bool {
		f, err := s.footprintOf(p, at, how, false)
		mustCompile(err)
		return f.arena(p, at, m) <= s.limitAt(p, at)
	}
	return within(atMost) || within(atLeast) && within(laidOut)
}

// leastPeaks is a lower bound of [searcher.peaks], without laying anything out; nil where plans are
// compiled as a whole.
func (s *searcher) leastPeaks(p *partition.Plan) (peaks []int64, err error) {
	if s.unlikeStep() {
		return nil, nil
	}
	all, err := s.footprintsOf(p, atLeast)
	m := p.Mesh(s.batch).Size(partition.AxisMB)
	for at := range all {
		peaks = append(peaks, all[at].arena(p, at, m))
	}
	return peaks, err
}

// unlikeStep reports whether the blocks of the evaluation differ from each other while those of the
// step do not. Then plans are compiled as a whole.
func (s *searcher) unlikeStep() bool {
	if s.opts.Eval != nil {
		s.evaluation()
	}
	return s.evals != nil && s.evals.scale != s.graphs.scale
}

// mustCompile panics if a plan that has a price, or bounds, has no program.
func mustCompile(err error) {
	if err != nil {
		panic("BUG: a plan with a price or bounds does not compile: " + err.Error())
	}
}

// evaluation returns the graphs of the evaluation with few blocks.
func (s *searcher) evaluation() *shrunken {
	if s.evals == nil {
		s.evals = shrink(s.opts.Eval)
	}
	return s.evals
}

// finish returns everything about a plan that was found: what [Predict] would say of it.
func (s *searcher) finish(x *candidate) (Prediction, error) {
	peaks, host, err := s.peaks(x.plan)
	if err != nil {
		return Prediction{}, err
	}
	return Prediction{Step: x.time, Breakdown: x.pipe.breakdown(x.cut), PeakBytes: peaks, HostBytes: host}, nil
}

// breakdown tells how the busiest rank spends the step, of those that stand for the positions.
// While it does not wait, either it is busy or only its communication stream is. The latter is
// communication as well; all other communication of the stream is hidden.
func (p *pipeline) breakdown(cut []partition.Stage) cost.Breakdown {
	system := p.system(cut)
	busy := make([]cost.Picoseconds, len(system.Processes))
	system.Trace = func(process, task, op int, start, end cost.Picoseconds) {
		if !system.Processes[process].Tasks[task].Ops[op].Posted {
			busy[process] += end - start
		}
	}
	system.Exposed = busy // by what is posted
	step := latest(system)
	system.Trace, system.Exposed = nil, nil
	at := 0
	for i := range busy {
		if busy[i] > busy[at] {
			at = i
		}
	}
	w := spending{pipe: p, cut: cut}
	w.position(at)
	communication := busy[at] - w.spent[cost.Compute] - w.spent[cost.Optimizer]
	return cost.Breakdown{
		Compute: w.spent[cost.Compute], Optimizer: w.spent[cost.Optimizer], Communication: communication,
		Bubble: step - busy[at], Overlapped: w.spent[cost.Communication] - communication,
	}
}

// spending adds up what a position does by kind, in order and on its communication stream.
type spending struct {
	pipe  *pipeline
	cut   []partition.Stage
	spent [3]cost.Picoseconds
}

// position adds the step of a position: its passes over all micro-batches, and the update.
func (w *spending) position(at int) {
	p := w.pipe
	mesh := p.skel.mesh(p.template.MicroBatch)
	var first, last ir.Coord
	mb := mesh.Axis(partition.AxisMB)
	last[mb] = mesh.Axes[mb].Size - 1
	for phase := range ir.Update {
		for i, alike := at, 0; i < len(w.cut); i += alike * p.template.PP() {
			alike = w.alike(i)
			w.pass(i, phase, whole, alike*(p.microBatches-1), mesh, first)
			w.pass(i, phase, rest, alike, mesh, last)
		}
	}
	w.pass(at, ir.Update, whole, 1, mesh, first)
}

// alike counts the chunks from a stage on that do the same.
func (w *spending) alike(stage int) int {
	like, first := w.pipe.skel.like, w.cut[stage]
	n := 1
	for i := stage + w.pipe.template.PP(); i < len(w.cut); i += w.pipe.template.PP() {
		if st := w.cut[i]; like[i] != like[stage] || st.Last-st.First != first.Last-first.First || recomputationOf(st) != recomputationOf(first) {
			break
		}
		n++
	}
	return n
}

// pass adds so many passes of a stage over micro-batches of a size.
func (w *spending) pass(stage int, phase ir.Phase, size, times int, mesh ir.Mesh, at ir.Coord) {
	if times == 0 {
		return
	}
	skel, _ := w.pipe.skel.under(w.pipe.template.Schedule)
	positions := w.pipe.template.PP()
	position, _ := skel.plan.Position(stage)
	blocks := 0 // of all chunks, for sums over all of them in the update
	for i := position; i < len(w.cut); i += positions {
		blocks += w.cut[i].Last - w.cut[i].First
	}
	n := w.cut[stage].Last - w.cut[stage].First
	counts := recomputationOf(w.cut[stage]).counts(n)
	if phase == ir.Forward || phase == ir.Update {
		counts = recomputation{}.counts(n)
	}
	add := func(x priced, kind cost.Kind, count int) {
		w.spent[kind] += cost.Picoseconds(times*count) * (x.time + x.hidden)
	}
	// What is there once is counted with the extent kept, what blocks do with each of theirs.
	for e, count := range counts {
		if count == 0 && extent(e) != kept {
			continue
		}
		for _, x := range skel.prices(extent(e), stage, phase, size, mesh, at) {
			kind := kindOf(x.Node)
			switch inner := blockOperands(x.Node); {
			case x.Node.Op == ir.OpSend || x.Node.Op == ir.OpRecv:
				if extent(e) == kept {
					add(x, kind, 1)
				}
			case skel.of.ofBlock[x.Node] && phase == ir.Update && skel.plan.Chunks() > 1:
				for chunk := range skel.plan.Chunks() {
					if skel.of.chunk(&skel.plan, position == positions-1, chunk) == skel.of.chunkOf[x.Node.Block()] {
						c := w.cut[position+chunk*positions]
						add(x, kind, c.Last-c.First)
					}
				}
			case skel.of.ofBlock[x.Node]:
				add(x, kind, count)
			case extent(e) != kept:
			case x.Node.Op == ir.OpAddN && inner > 0:
				all := n
				if phase == ir.Update {
					all = blocks
				}
				x.time = skel.price.As(stage).AddN(x.Instr, mesh, at, len(x.Node.Args)-inner+all*(inner/skel.of.plan.Chunks()))
				add(x, kind, 1)
			default:
				add(x, kind, 1)
			}
		}
	}
}

// kindOf returns the kind of time that an instruction takes.
func kindOf(n *ir.Node) cost.Kind {
	switch {
	case codegen.Collective(n.Op) || n.Op == ir.OpSend || n.Op == ir.OpRecv || codegen.HostCopy(n.Op):
		return cost.Communication
	case n.Phase == ir.Update:
		return cost.Optimizer
	}
	return cost.Compute
}
