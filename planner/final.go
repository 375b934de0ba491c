package planner

import (
	"errors"
	"fmt"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// What is said of a plan that was found is exact, and yet nobody compiles it whole.
// The arena of a position of the pipeline depends on its own stages only, and on
// whether others come before and after: it is read off a pipeline of a few positions,
// in which the stages that nobody asks for have one block each. How many
// micro-batches are in flight the real plan says. Where the time of the step goes
// follows from the bodies of the pipeline whose simulation gave the time.

// footprint is the memory of the ranks of a position, in bytes.
type footprint struct {
	codegen.Regions       // with the rooms of the pipeline that it was read off
	share           int64 // of Persist, what it keeps for one inner position
	eval            int64 // the arena of the evaluation; 0 without one
}

// arena returns the bytes of the arena with the given rooms of its chunks, in a
// pipeline of so many positions more than it was read off.
func (f *footprint) arena(rooms []codegen.Chunk, more int) int64 {
	bytes := f.Persist + int64(more)*f.share + f.Temp
	for i, room := range rooms {
		bytes += int64(room.Slots)*f.Chunks[i].Slot + int64(room.Inboxes)*f.Chunks[i].Inbox
	}
	return max(bytes, f.eval)
}

// footprintKey is what the footprint of a position depends on, of the plans of one
// search, whose placements follow from tp.
type footprintKey struct {
	units, dp, cp, tp, microBatch, zero, group int

	sequence, overlap bool
	offload           partition.Offload
	schedule          partition.Schedule // not of 1F1B and GPipe, which differ in their rooms

	positions, position int    // of at most fewPositions
	stages              string // blocks and recomputation by chunk
}

// fewPositions is the most positions of a pipeline that stands for longer ones: the first, an
// inner one, the last inner one, which in the update sends all it has to send before
// its parameters are due, and the last.
const fewPositions = 4

// standIn returns which of at most [fewPositions] stands for one of pp.
func standIn(position, pp int) (at, positions int) {
	positions = min(pp, fewPositions)
	if after := pp - 1 - position; after < 2 {
		return positions - 1 - after, positions
	}
	return min(position, 1), positions
}

// footprintKeyOf returns the key of a position of a plan.
func footprintKeyOf(p *partition.Plan, position int) footprintKey {
	key := footprintKey{
		units: p.Units(), dp: p.DP, cp: p.ContextParallel(), tp: p.TP, microBatch: p.MicroBatch, zero: p.ZeRO, group: p.ZeROGroup,
		sequence: p.SequenceParallel, overlap: p.Overlap, offload: p.Offload, schedule: p.Schedule,
	}
	if p.Schedule == partition.GPipe {
		key.schedule = partition.OneFOneB
	}
	key.position, key.positions = standIn(position, p.PP())
	key.stages = fmt.Sprint(chunksOf(p, position))
	return key
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

// footprints returns the memory of every position of a plan.
func (s *searcher) footprints(p *partition.Plan) ([]footprint, error) {
	all := make([]footprint, p.PP())
	for at := range all {
		key := footprintKeyOf(p, at)
		if _, known := s.known[key]; !known {
			if err := s.lay(p, at); err != nil {
				return nil, err
			}
		}
		all[at] = s.known[key]
	}
	return all, nil
}

// lay finds the footprints of a position of a plan, and with it of others that are
// not known: from a few blocks where those show how more of them would lie.
func (s *searcher) lay(p *partition.Plan, position int) error {
	if s.evals == nil && s.opts.Eval != nil {
		s.evals = newShrunken(s.opts.Eval)
	}
	if s.graphs.scale > 1 || s.evals != nil && s.evals.scale > 1 {
		return s.layFew(p, few{plan: *p, of: positions(p)})
	}
	most := 6 // an inner block, neighbours like it, and those on which these depend
	if p.Overlap {
		most = 8 // communication is a block ahead, or two behind
	}
	err := s.layFew(p, s.fewer(p, position, most))
	if errors.Is(err, errUnlike) {
		err = s.layFew(p, s.fewer(p, position, s.graphs.blocks))
	}
	return err
}

// errUnlike says that blocks do not show how more of them would lie.
var errUnlike = errors.New("planner: neighbouring blocks lie differently")

// layFew compiles a pipeline of few positions that stands for p.
func (s *searcher) layFew(p *partition.Plan, f few) error {
	blocks := f.plan.Stages[len(f.plan.Stages)-1].Last
	prog, err := codegen.Lay(s.graphs.with(blocks), &f.plan, s.batch, nil)
	if err != nil {
		return err
	}
	regions, ok := prog.Repeated(f.repeats, nil)
	var evals []codegen.Regions
	if s.evals != nil && ok {
		eval, err := codegen.Lay(s.evals.with(blocks), &f.plan, s.batch, prog)
		if err != nil {
			return fmt.Errorf("planner: evaluation: %w", err)
		}
		evals, ok = eval.Repeated(f.repeats, prog)
	}
	if !ok {
		return errUnlike
	}
	share := exchanged(prog)
	for i, at := range f.of {
		if at < 0 {
			continue
		}
		known := footprint{Regions: regions[i], share: share}
		if evals != nil {
			known.eval = evals[i].Arena()
		}
		s.known[footprintKeyOf(p, at)] = known
	}
	return nil
}

// exchanged returns the bytes that a position keeps of what an inner one sends to all
// others in the update: its share of the gradient norm.
func exchanged(prog *codegen.Program) int64 {
	var bytes int64
	for i := range prog.Stages[0].Buffers {
		b := &prog.Stages[0].Buffers[i]
		if n := b.Value.Def; n.Op == ir.OpRecv && n.Phase == ir.Update && b.Region == codegen.Persist {
			if from, _ := prog.Plan.Position(n.Args[0].Def.Stage); from == 1 {
				bytes += align(b.Size)
			}
		}
	}
	return bytes
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
	plan    partition.Plan
	of      []int            // by position, which of the other it stands for; -1 for none
	repeats []codegen.Repeat // the blocks that it lacks
}

// positions lists the positions of a plan.
func positions(p *partition.Plan) []int {
	all := make([]int, p.PP())
	for i := range all {
		all[i] = i
	}
	return all
}

// fewer returns what stands for a position of a plan, and for others that are not
// known, one of each kind. Of blocks in a row that recompute as much there are at most
// so many. Stages that stand for none have one block.
func (s *searcher) fewer(p *partition.Plan, position, most int) few {
	kind, n := standIn(position, p.PP())
	f := few{plan: *p, of: slices.Repeat([]int{-1}, n)}
	f.of[kind] = position
	for at := range p.PP() {
		kind, _ := standIn(at, p.PP())
		if _, known := s.known[footprintKeyOf(p, at)]; f.of[kind] < 0 && !known {
			f.of[kind] = at
		}
	}
	f.plan.PlanNGPUs = p.PlanNGPUs / p.PP() * n
	f.plan.RuntimeNGPUs = f.plan.PlanNGPUs * p.Units()
	f.plan.Stages = nil
	blocks := 0
	for chunk := range p.Chunks() {
		for _, at := range f.of {
			counts := [extents]int{kept: 1}
			if at >= 0 {
				st := p.Stages[at+chunk*p.PP()]
				counts = recomputationOf(st).counts(st.Last - st.First)
			}
			first := blocks
			for _, e := range []extent{full, selective, kept} { // as they stand in a stage
				if more := counts[e] - most; more > 0 {
					inner := blocks + (most-1)/2
					f.repeats = append(f.repeats, codegen.Repeat{Block: inner, More: more})
					counts[e] = most
				}
				blocks += counts[e]
			}
			f.plan.Stages = append(f.plan.Stages, recomputation{counts[full], counts[selective]}.stage(first, blocks-first))
		}
	}
	return f
}

// peaks returns the arena of each position of a plan, the larger of the step's and of
// the evaluation's, and what each keeps in host memory, nil where none does.
func (s *searcher) peaks(p *partition.Plan) (peaks, host []int64, err error) {
	all, err := s.footprints(p)
	if err != nil {
		return nil, nil, err
	}
	mesh := p.Mesh(s.batch)
	for at := range all {
		peaks = append(peaks, all[at].arena(codegen.Room(p, at, mesh.Size(partition.AxisMB), true), max(0, p.PP()-fewPositions)))
		host = append(host, all[at].Host)
	}
	if slices.Max(host) == 0 {
		host = nil
	}
	return peaks, host, nil
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
// for the positions of the pipeline. What it does not wait it is busy, or its communication stream is while nothing else
// is: that is communication too.
func (p *pipeline) breakdown(cut []partition.Stage) cost.Breakdown {
	system := p.system(cut)
	busy := make([]cost.Picoseconds, len(system.Processes))
	system.Trace = func(process, _, _ int, start, end cost.Picoseconds) { busy[process] += end - start }
	step := latest(system)
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
		Bubble:     step - busy[at],
		Overlapped: w.beside - (communication - w.spent[cost.Communication]),
	}
}

// spending adds up what a position does by kind.
type spending struct {
	pipe   *pipeline
	cut    []partition.Stage
	spent  [3]cost.Picoseconds // in order
	beside cost.Picoseconds    // on the communication stream
}

// position adds the step of a position: its passes over all micro-batches, and the
// update.
func (w *spending) position(at int) {
	p := w.pipe
	mesh := p.skel.mesh(p.template.MicroBatch)
	var first, last ir.Coord
	mb := mesh.Axis(partition.AxisMB)
	last[mb] = mesh.Axes[mb].Size - 1
	for _, phase := range []ir.Phase{ir.Forward, ir.Backward} {
		for i := at; i < len(w.cut); i += p.template.PP() {
			w.pass(i, phase, whole, p.microBatches-1, mesh, first)
			w.pass(i, phase, rest, 1, mesh, last)
		}
	}
	w.pass(at, ir.Update, whole, 1, mesh, first)
}

// pass adds so many passes of a stage over micro-batches of a size.
func (w *spending) pass(stage int, phase ir.Phase, size, times int, mesh ir.Mesh, at ir.Coord) {
	if times == 0 {
		return
	}
	skel := w.pipe.skel
	positions := w.pipe.template.PP()
	position, _ := skel.plan.Position(stage)
	blocks := 0 // of all chunks, for what they share in the update
	for i := position; i < len(w.cut); i += positions {
		blocks += w.cut[i].Last - w.cut[i].First
	}
	n := w.cut[stage].Last - w.cut[stage].First
	counts := recomputationOf(w.cut[stage]).counts(n)
	if phase != ir.Backward {
		counts = recomputation{}.counts(n)
	}
	add := func(x priced, kind cost.Kind, count int) {
		time := cost.Picoseconds(times*count) * x.time
		if x.Async && skel.price.Overlaps() {
			w.beside += time
		} else {
			w.spent[kind] += time
		}
	}
	for e, count := range counts {
		if count == 0 && extent(e) != kept {
			continue
		}
		for _, x := range skel.prices(extent(e), stage, phase, size, mesh, at, false) {
			kind := kindOf(x.Node)
			switch inner := blockOperands(x.Node); {
			case x.Node.Op == ir.OpSend || x.Node.Op == ir.OpRecv:
				if extent(e) == kept {
					add(x, kind, 1)
				}
			case skel.ofBlock[x.Node] && phase == ir.Update && skel.plan.Chunks() > 1:
				c := w.cut[skel.stageOf[x.Node.Block()]]
				add(x, kind, c.Last-c.First)
			case skel.ofBlock[x.Node]:
				add(x, kind, count)
			case extent(e) != kept:
			case x.Node.Op == ir.OpAddN && inner > 0:
				all := n
				if phase == ir.Update {
					all = blocks
				}
				x.time = skel.price.AddN(x.Instr, mesh, at, len(x.Node.Args)-inner+all*(inner/skel.plan.Chunks()))
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
