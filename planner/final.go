package planner

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// What is said of a plan that was found is exact, and yet nobody compiles it whole.
//
// The arena of a position of the pipeline depends on its own stages only, and on
// whether others come before and after. It is read off a pipeline of a few positions
// and ranks that stands for all plans of its structure (see blueprint), in which of many
// blocks in a row that recompute as much there are a few, and stages that nobody asks
// for have one. What more blocks add is seen from those: see [codegen.Longer]. Sizes
// follow from the mesh of the real plan, as does the number of micro-batches in flight.
// TestFinishIsTheProgram holds that to whole programs.
//
// Where the time of the step goes follows from the bodies of the pipeline whose
// simulation gave the time.

// finals is what a search knows of the plans that it has found.
type finals struct {
	evals      *shrunken // of the evaluation, when there is one
	compiled   map[stageKey]*compiledStage
	footprints map[footprintKey]footprint
}

func newFinals() finals {
	return finals{compiled: map[stageKey]*compiledStage{}, footprints: map[footprintKey]footprint{}}
}

// footprint is the memory of the ranks of a position.
type footprint struct {
	step, eval codegen.Regions // eval has no chunks without an evaluation
}

// arena returns the bytes of the arena of a position of a plan with m micro-batches,
// of which it stands for one of the stages.
func (f *footprint) arena(p *partition.Plan, position, m int) int64 {
	step, eval := f.step, f.eval
	step.Chunks = withRooms(step.Chunks, codegen.Room(p, position, m, true))
	if eval.Chunks == nil {
		return step.Arena()
	}
	eval.Chunks = withRooms(eval.Chunks, codegen.Room(p, position, m, false))
	return max(step.Arena(), eval.Arena())
}

// withRooms gives chunks the rooms of others.
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
	split               bool // the backward pass, as in a zero-bubble schedule
	positions, position int  // of at most fewPositions
	stages              string
	whole               bool // no stage is shorter than what it stands for
}

// standIn returns which of at most [fewPositions] stands for one of pp.
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

// chunksOf lists the stages of a position as if each were the first.
func chunksOf(p *partition.Plan, position int) []partition.Stage {
	var chunks []partition.Stage
	for i := position; i < len(p.Stages); i += p.PP() {
		st := p.Stages[i]
		chunks = append(chunks, recomputationOf(st).stage(0, st.Last-st.First))
	}
	return chunks
}

// compiledStage is a stage of a program for a step, and of one for the evaluation
// unless that is nil, with few blocks in a row that recompute as much.
type compiledStage struct {
	step, eval *codegen.Program
	stage      int
	rows       [][extents]int // where they begin, by chunk
	unlike     bool           // its blocks do not show how more of them would lie
}

// footprint returns the memory of the stage as it is under a plan at a position, as laid out or as a bound says; false
// when its blocks do not show it.
func (c *compiledStage) footprint(p *partition.Plan, position int, most row, mesh ir.Mesh, of func(*codegen.Longer, ir.Mesh) codegen.Regions) (f footprint, ok bool) {
	if c.unlike {
		return f, false
	}
	var repeats []codegen.Repeat
	chunks := chunksOf(p, position)
	few := most.chunks(p)
	longer := func(prog, share *codegen.Program) (*codegen.Longer, bool) {
		if more := len(chunks) - few; more > 0 {
			return prog.MoreChunks(c.stage, few/2, more, share)
		}
		return prog.Longer(c.stage, codegen.SumsOn(mesh), repeats, share)
	}
	for chunk, st := range chunks[:few] {
		for e, count := range recomputationOf(st).counts(st.Last) {
			if more := count - most.blocks; more > 0 {
				repeats = append(repeats, codegen.Repeat{Block: c.rows[chunk][e] + most.repeated, More: more})
			}
		}
	}
	step, ok := longer(c.step, nil)
	if !ok {
		c.unlike = true
		return f, false
	}
	f.step = of(step, mesh)
	if c.eval != nil {
		eval, ok := longer(c.eval, c.step)
		if !ok {
			c.unlike = true
			return f, false
		}
		f.eval = of(eval, mesh)
	}
	return f, true
}

// keptStages is how many compiled stages are kept for plans to come.
const keptStages = 16

// footprintsOf returns the memory of every position of a plan.
func (s *searcher) footprintsOf(p *partition.Plan) ([]footprint, error) {
	if len(s.compiled) > keptStages {
		clear(s.compiled)
	}
	all := make([]footprint, p.PP())
	for at := range all {
		var err error
		if all[at], err = s.footprintOf(p, at, false); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// footprintOf returns the memory of one position of a plan: as it is laid out, or a bound from above, which is not remembered.
func (s *searcher) footprintOf(p *partition.Plan, at int, bound bool) (footprint, error) {
	of, err := s.find(p)
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
	regions := (*codegen.Longer).Regions
	if bound {
		regions = (*codegen.Longer).AtMost
	}
	for _, most := range rows {
		if known {
			break
		}
		c, err := s.compile(of, p, at, most)
		if err != nil {
			return footprint{}, err
		}
		f, known = c.footprint(p, at, most, p.Mesh(s.batch), regions)
	}
	if !bound {
		s.footprints[key] = f
	}
	return f, nil
}

// stageKeyOf returns the key of a position of a plan, of which at most so many blocks
// in a row are compiled.
func stageKeyOf(of *blueprint, p *partition.Plan, position int, most row) stageKey {
	key := stageKey{of: of, split: p.Schedule == partition.ZeroBubble, whole: most.repeated == 0}
	key.position, key.positions = standIn(position, p.PP())
	var short [][extents]int
	for _, st := range chunksOf(p, position)[:most.chunks(p)] {
		short = append(short, most.short(st))
	}
	key.stages = fmt.Sprint(short)
	return key
}

// compile returns the compiled stage that stands for a position of a plan, and finds with
// it others that are not known.
func (s *searcher) compile(of *blueprint, p *partition.Plan, position int, most row) (*compiledStage, error) {
	key := stageKeyOf(of, p, position, most)
	if c, known := s.compiled[key]; known {
		return c, nil
	}
	f := s.fewer(of, p, position, most)
	blocks := f.plan.Stages[len(f.plan.Stages)-1].Last
	step, err := codegen.Draft(s.graphs.with(blocks), &f.plan, s.batch)
	if err != nil {
		return nil, err
	}
	var eval *codegen.Program
	if s.evals != nil {
		if eval, err = codegen.Draft(s.evals.with(blocks), &f.plan, s.batch); err != nil {
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
	of   []int            // by position, which of the other it stands for; -1 for none
	rows [][][extents]int // by position and chunk, the first block that recomputes so much
}

// row is blocks that recompute as much, of which one is repeated to stand for more. Its
// neighbours must be like it, and those on which their memory depends.
type row struct{ blocks, repeated int }

// rowOf returns the row that shows how many blocks lie under a plan.
func rowOf(p *partition.Plan) row {
	if p.Overlap {
		return row{9, 4} // communication is a block ahead, or two behind
	}
	return row{6, 2}
}

// short returns how many blocks of a stage are compiled, by how much they recompute.
func (r row) short(st partition.Stage) [extents]int {
	counts := recomputationOf(st).counts(st.Last - st.First)
	for e := range counts {
		counts[e] = min(counts[e], r.blocks)
	}
	return counts
}

// chunks returns how many chunks of each rank are compiled, of which the one in the middle stands
// for the others: all, unless those of a rank have as many blocks each, none of which are left out.
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

// fewer returns what stands for a position of a plan, and for others that are not
// known, one of each kind, with at most a row of blocks that recompute as much. Stages
// that stand for none have one block.
func (s *searcher) fewer(of *blueprint, p *partition.Plan, position int, most row) few {
	kind, n := standIn(position, p.PP())
	f := few{plan: *p, of: slices.Repeat([]int{-1}, n), rows: make([][][extents]int, n)}
	f.of[kind] = position
	for at := range p.PP() {
		kind, _ := standIn(at, p.PP())
		if _, known := s.compiled[stageKeyOf(of, p, at, most)]; f.of[kind] < 0 && !known {
			f.of[kind] = at
		}
	}
	like := &of.plan
	f.plan.DP, f.plan.CP, f.plan.TP, f.plan.ZeROGroup, f.plan.MicroBatch = like.DP, like.CP, like.TP, like.ZeROGroup, like.MicroBatch
	f.plan.TPRows, f.plan.PlanNGPUs = like.TPRows, like.PlanNGPUs/like.PP()*n
	f.plan.RuntimeNGPUs = f.plan.PlanNGPUs
	f.plan.Stages, f.plan.RankOrder = nil, "" // of other axes
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
			for _, e := range []extent{full, selective, pointwise, kept} { // as they stand in a stage
				rows[e] = blocks
				blocks += counts[e]
			}
			f.rows[i] = append(f.rows[i], rows)
			f.plan.Stages = append(f.plan.Stages, recomputation{counts[full], counts[selective], counts[pointwise]}.stage(first, blocks-first))
		}
	}
	return f
}

// peaks returns the arena of each position of a plan, the larger of the step's and of
// the evaluation's, and what each keeps in host memory, nil where none does.
func (s *searcher) peaks(p *partition.Plan) (peaks, host []int64, err error) {
	if s.unlikeStep() {
		prog, peaks, err := s.allocate(p)
		if err != nil {
			return nil, nil, err
		}
		return peaks, hostBytes(prog), nil
	}
	all, err := s.footprintsOf(p)
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

// fits reports whether one position of a plan, which has a price, holds no more than the limit as it is laid out.
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
	within := func(bound bool) bool {
		f, err := s.footprintOf(p, at, bound)
		mustCompile(err)
		return f.arena(p, at, m) <= s.limitAt(p, at)
	}
	return within(true) || within(false)
}

// unlikeStep reports whether the blocks of the evaluation are not alike, while those of the step are.
func (s *searcher) unlikeStep() bool {
	if s.opts.Eval != nil {
		s.evaluation()
	}
	return s.evals != nil && s.evals.scale != s.graphs.scale
}

// mustCompile holds a plan that has a price to its having a program, too.
func mustCompile(err error) {
	if err != nil {
		panic("BUG: a priced plan does not compile: " + err.Error())
	}
}

// evaluation keeps the graphs of the evaluation with few blocks.
func (s *searcher) evaluation() *shrunken {
	if s.evals == nil {
		s.evals = newShrunken(s.opts.Eval)
	}
	return s.evals
}

// finish tells everything of a plan that was found: what [Predict] would say of it.
func (s *searcher) finish(x *candidate) (Prediction, error) {
	peaks, host, err := s.peaks(x.plan)
	if err != nil {
		return Prediction{}, err
	}
	return Prediction{Step: x.time, Breakdown: x.pipe.breakdown(x.cut), PeakBytes: peaks, HostBytes: host}, nil
}

// breakdown tells how the rank that waits least spends the step, of those that stand
// for the positions of the pipeline. What it does not wait it is busy, or its
// communication stream is while nothing else is: that is communication too, and all
// other communication is hidden.
func (p *pipeline) breakdown(cut []partition.Stage) cost.Breakdown {
	system := p.system(cut)
	busy := make([]cost.Picoseconds, len(system.Processes))
	system.Trace = func(process, _, _ int, start, end cost.Picoseconds) { busy[process] += end - start }
	step := latest(system)
	system.Trace = nil
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

// spending adds up what a position does by kind, in order or on its communication stream.
type spending struct {
	pipe  *pipeline
	cut   []partition.Stage
	spent [3]cost.Picoseconds
}

// position adds the step of a position: its passes over all micro-batches, and the
// update.
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
	blocks := 0 // of all chunks, for what they share in the update
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

// kindOf returns what kind of time an instruction takes.
func kindOf(n *ir.Node) cost.Kind {
	switch {
	case codegen.Collective(n.Op) || n.Op == ir.OpSend || n.Op == ir.OpRecv || codegen.HostCopy(n.Op):
		return cost.Communication
	case n.Phase == ir.Update:
		return cost.Optimizer
	}
	return cost.Compute
}
