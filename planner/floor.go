package planner

import (
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// This file computes floors: lower bounds of the step time of all plans of an outline with one micro-batch size and
// schedule. Floors need only the program of one stage with one block, so that the search rules out most of the space
// before it compiles or simulates anything. From the cheapest to the tightest they are
//
//   - exchanged: the tensor- and context-parallel collectives of one position, whatever the micro-batch size;
//   - floor: what the trunk does in order. The trunk is the work that all outlines with the same tensor and context
//     parallelism have in common, however data-parallel ranks shard and communicate;
//   - flowing: the trunk and what relax.go adds for the outline, along chains of events through the pipeline (passage.go);
//   - refined: the same chains over all that the stages of the outline do in order.
//
// They are admissible because every instruction counts at most the time that it takes in any plan of the outline:
// collectives are priced at the fastest place in the network, and what some plans hide or do not have is left out.
// The search raises floors level by level (raise, in explore.go); certify.go computes them again.

// work is what a program of one stage executes in order, that is, not on the communication stream. Micro-batch sizes are per
// data-parallel rank, so most of it takes the same time with any number of data-parallel ranks: it is priced once for all
// outlines.
type work struct {
	of      *blueprint
	instrs  []workInstr
	shared  []workInstr                     // instructions whose time depends on the number of data-parallel ranks
	prices  []*cost.Program                 // one for each place in the network that its groups may have
	kinds   []cost.Kinds                    // of devices, for each of prices
	mesh    ir.Mesh                         // of one data-parallel rank
	spots   map[*spotGroups][]*cost.Program // prices where the groups lie so
	known   map[sizeOn]*workTimes
	kernels map[sizeOn]*workTimes // the part of known that is not collectives: the same for any order of ranks
	trunk   bool                  // it has only what [searcher.trunk] says
	piped   bool                  // it stands for stages of a pipeline, whose update does not bucket collectives
	sliced  bool                  // outside of blocks it has only what any number of loss slices does
	// sums is set if it sums gradients of blocks over data-parallel or context-parallel ranks in order: shares of those that all
	// tensor-parallel ranks hold whole (ZeRO), or some of adapters.
	sums       bool
	persistent *persistent // of a trunk, nil until it is asked for
	recomputed map[recomputeKey]*recomputeTimes
	slots      map[int]*slots // by micro-batch size
	passes     [extents]*work // by extent of recomputation: see passOf
	// rest is what blocks compute in the trunk's program that is not part of the trunk: see apart.
	rest                []workInstr
	restTimes, restNear *workTimes // see timeRest
	parted              map[sizeOn]*workTimes
	// pairs are the products and collectives that the trunk's program makes in parts; instrs has them whole.
	pairs []pair
	// exchange is the time of a block's collectives for the whole batch in one micro-batch, -1 until it is asked for.
	exchange cost.Picoseconds
	// sending are the transfers between two stages of a trunk, nil until they are asked for.
	sending *[]*ir.Node
}

type workInstr struct {
	*codegen.Instr
	all []codegen.Instr // the instruction, and the collectives fused with it into one bucket
	// beside are the kernels that run beside this collective: only the time by which it outlasts them counts, unless the
	// schedule runs all in order (see inOrder).
	beside []codegen.Instr
	// product are the products with which this collective, whole here, is made in parts in some programs or under some schedules.
	product []codegen.Instr
	part    int // of the model: beforeBlocks, inBlock or afterBlocks
	pass    ir.Phase
	putOff  bool // beside is what programs of some outlines may put off to run beside it: see mayBePutOff
	ahead   bool
	near    bool // priced as if all it reads and writes lay in the cache
}

// The parts of a model.
const (
	beforeBlocks = iota
	inBlock
	afterBlocks
	modelParts
)

// workTimes is, for one micro-batch of a size, the time of each part of the model, with one block.
type workTimes [modelParts]partTimes

type partTimes struct {
	all     cost.Picoseconds // forward and backward
	forward cost.Picoseconds
	moved   cost.Picoseconds // of forward, what slices of the loss may do in the backward pass
	way     cost.Picoseconds // of all, up to the send of the gradient to the position before
	late    cost.Picoseconds // of all, sums of gradients that with overlap come when these are reduced: nothing waits for them
	weight  cost.Picoseconds // of all, weight gradients, which a zero-bubble schedule makes in a pass of its own
	ahead   cost.Picoseconds // of all, what recomputation may do before the gradient arrives
	update  cost.Picoseconds // once a step
	closing cost.Picoseconds // of update, what may run at the end of the last backward pass already
	normed  cost.Picoseconds // of update, closing and what else comes before the norm of all gradients
	after   cost.Picoseconds // of update, what comes after it
	// gathers, regathers and reduces are what the communication stream does: it gathers in the forward and in the backward
	// pass, and reduces in the latter.
	gathers, regathers, reduces cost.Picoseconds
	once                        cost.Picoseconds // what it does besides in the last backward pass
	soon                        cost.Picoseconds // of once, gradients that come with that of the input, before a pass for those of weights
	delays                      cost.Picoseconds // of closing, by how much once delays it
	renews                      cost.Picoseconds // what it does in the update: it gathers new weights
}

// early is what of the update comes before the norm of all gradients, but for closing. It may be done for all blocks but the last one
// while the stream sums gradients.
func (t *partTimes) early() cost.Picoseconds { return t.normed - t.closing }

// backward is the most that a backward pass does in order.
func (t *partTimes) backward() cost.Picoseconds { return t.all - t.forward + t.moved }

// streams is all that the communication stream does for a micro-batch.
func (t *partTimes) streams() cost.Picoseconds { return t.gathers + t.regathers + t.reduces }

func (t *workTimes) plus(u *workTimes) workTimes {
	sum := *t
	for i := range sum {
		sum[i].all += u[i].all
		sum[i].forward += u[i].forward
		sum[i].way += u[i].way
		sum[i].late += u[i].late
		sum[i].weight += u[i].weight
		sum[i].ahead += u[i].ahead
		sum[i].update += u[i].update
		sum[i].closing += u[i].closing
		sum[i].normed += u[i].normed
		sum[i].after += u[i].after
		sum[i].gathers += u[i].gathers
		sum[i].regathers += u[i].regathers
		sum[i].reduces += u[i].reduces
		sum[i].once += u[i].once
		sum[i].soon += u[i].soon
		sum[i].delays += u[i].delays
		sum[i].renews += u[i].renews
	}
	return sum
}

// stream takes over what the communication stream does; of reductions only if all are there: see [work.sums].
func (t *workTimes) stream(of *workTimes, reduces bool) {
	for i := range t {
		x, y := &t[i], &of[i]
		if x.gathers, x.regathers, x.renews = y.gathers, y.regathers, y.renews; reduces {
			x.reduces, x.once, x.soon, x.delays = y.reduces, y.once, y.soon, y.delays
		}
	}
}

// add adds the time of an instruction.
func (t *workTimes) add(in *workInstr, time cost.Picoseconds) {
	part := &t[in.part]
	if in.pass == ir.Update {
		part.update += time
		switch n := in.Node; {
		case n.Op == ir.OpAdamW, n.Op == ir.OpAllGather, n.Op == ir.OpCast && n.Args[0].Def.Op == ir.OpAdamW:
			part.after += time
		case in.Last, n.Op == ir.OpCast: // it narrows a sum of gradients, which data-parallel ranks do before they reduce it
			part.closing += time
			part.normed += time
		case n.Op == ir.OpSumSquares, n.Op == ir.OpFixedSquares, n.Op == ir.OpToPartial:
			part.normed += time
		}
		return
	}
	part.all += time
	if in.pass == ir.Forward {
		part.forward += time
	}
	if in.pass == ir.WeightGrad {
		part.weight += time
	}
	if in.Node.Op != ir.OpAccumulate && !in.Delayed { // with overlap gradients are added up, and cast for that, after the send
		part.way += time
	}
	if in.Delayed {
		part.late += time
	}
	if in.ahead {
		part.ahead += time
	}
}

type workKey struct {
	of                  *blueprint
	cp, tp, rows, order int
	places              *groupPlaces
	trunk, piped        bool
}

// sizeOn says what times of work depend on: the micro-batch size, where the ranks lie, whether the schedule runs
// kernels beside tensor-parallel collectives, and in how many parts a trunk makes products and collectives (pieces.go).
// pieces is 0 for other work, whose program has the number of its outline. ofParts says that sequences are in as many parts.
type sizeOn struct {
	size int
	spot
	inOrder bool
	pieces  int
	ofParts bool
}

// inOrder reports whether a schedule runs no kernels beside tensor-parallel collectives, whatever the options say: a
// zero-bubble schedule moves the products of weight gradients, which would run there, to a pass of their own.
func inOrder(schedule partition.Schedule) bool { return schedule.SplitsBackward() }

// work returns what the blueprint of one stage executes in order at the degrees of an outline. With trunk it leaves out what
// depends on ZeRO and on the number of data-parallel ranks, which gathers, reduces or adds up parameters and gradients. What
// remains is computed anew for each micro-batch, the products of weight gradients included.
func (s *searcher) work(of *blueprint, o outline, trunk bool) *work {
	places := s.groupPlacesOf(o)
	piped := !trunk && o.pp > 1
	key := workKey{of, o.cp, o.tp, o.rows, o.order, places, trunk, piped}
	if w := s.works[key]; w != nil {
		return w
	}
	if places != nil {
		usual := o
		usual.ranks = ""
		s.works[key] = places.work(s.work(of, usual, trunk))
		return s.works[key]
	}
	job := of.plan
	job.DP, job.ZeROGroup, job.TP, job.TPRows = 1, 0, o.tp, o.rows
	if job.CP > 0 {
		job.CP = o.cp
	}
	job.PlanNGPUs, job.RuntimeNGPUs = o.cp*o.tp, s.opts.RuntimeNGPUs // all ranks share the machine, or the network
	job.PoolOrder = s.cluster.Orders()[o.order]
	w := &work{of: of, piped: piped, trunk: trunk, sliced: s.opts.searchesSlices() && o.cp == 1, exchange: -1, spots: map[*spotGroups][]*cost.Program{}, known: map[sizeOn]*workTimes{}, kernels: map[sizeOn]*workTimes{}, parted: map[sizeOn]*workTimes{}, recomputed: map[recomputeKey]*recomputeTimes{}, slots: map[int]*slots{}}
	w.mesh.Axes = slices.Clone(of.progs[kept].Mesh.Axes)
	for i := range w.mesh.Axes {
		switch a := &w.mesh.Axes[i]; a.Name {
		case partition.AxisRep, partition.AxisDP:
			a.Size = 1
		case partition.AxisCP:
			a.Size = o.cp
		case partition.AxisTP:
			a.Size = o.tp / max(o.rows, 1)
		case partition.AxisTPR:
			a.Size = o.rows
		}
	}
	w.lie(s.cluster, job)
	s.works[key] = w
	for _, phase := range []ir.Phase{ir.Forward, ir.Backward, ir.Update} {
		w.collect(of.progs[kept].Stages[0].Bodies[phase].Instrs, phase, trunk)
	}
	return w
}

// lie prices tensor- and context-parallel groups for every place in the network that they may have in some plan. Which of
// them a plan has is open: bounds take the fastest.
func (w *work) lie(c *cost.Cluster, job partition.Plan) {
	ranks := job.PlanNGPUs
	job.PlanNGPUs = job.RuntimeNGPUs / ranks * ranks
	job.Stages = make([]partition.Stage, job.RuntimeNGPUs/ranks)
	price := cost.NewProgram(c, &job, w.mesh)
	type way struct {
		kinds  cost.Kinds
		groups spotGroups
	}
	var ways []way
	for at := range job.Stages {
		if at > 0 && len(c.Pools) == 0 && price.Offset(at) == price.Offset(0) {
			break
		}
		x := way{kinds: price.Kinds(at)}
		for i, name := range spotAxes {
			if axis := w.mesh.Axis(name); axis >= 0 {
				x.groups[i] = price.As(at).Group(axis)
			}
		}
		if !slices.Contains(ways, x) {
			ways = append(ways, x)
			w.prices, w.kinds = append(w.prices, price.As(at)), append(w.kinds, x.kinds)
		}
	}
}

// collect sorts the instructions of a body: by part of the model and pass, and into those that count for all outlines,
// those whose time depends on the number of data-parallel ranks, and those that are left out.
func (w *work) collect(instrs []codegen.Instr, phase ir.Phase, trunk bool) {
	part, after := beforeBlocks, afterBlocks
	parts := map[int]int{} // part of the model by segment
	if phase == ir.Backward {
		part, after = afterBlocks, beforeBlocks
		instrs = w.undecided(instrs)
	}
	if !trunk || phase != ir.Update {
		w.instrs = slices.Grow(w.instrs, len(instrs))
	}
	for i := range instrs {
		in := &instrs[i]
		n := in.Node
		if in.Async || in.Fused && !w.piped {
			continue // it runs on the communication stream, or is timed with the first of its bucket
		}
		all := codegen.Bucket(instrs, i)
		if w.piped {
			all = all[:1]
		}
		x := workInstr{Instr: in, all: all, part: part, pass: phase, ahead: phase == ir.Backward && mayGoAhead(n), beside: instrs[i+1:][:in.Beside]}
		switch {
		case w.of.ofBlock[n]:
			x.part, part = inBlock, after
		case n.Phase == ir.Update:
			x.part = beforeBlocks
		case in.Delayed: // with overlap it runs after a later block, beside which its gradient is reduced
			x.part = parts[in.Segment]
		default:
			parts[in.Segment] = part
		}
		switch {
		case in.Last: // it runs after what the pass sends
			x.pass = ir.Update
		case w.of.ofWeight[n]:
			x.pass = ir.WeightGrad
		}
		if w.sliced && x.part != inBlock && (x.part == afterBlocks || n.Phase == ir.Update) && variesBySlices(n) {
			continue
		}
		if w.of.plan.TPPieces > 1 && phase == ir.Backward && x.part == inBlock && in.Parts == 0 && ofTP(n) {
			x.product = w.productNextTo(instrs, n)
		}
		x.near = w.mayLieInCache(&x)
		ofBatch, shared := w.shares(all)
		w.sums = w.sums || x.part == inBlock && !ofBatch && (n.Op == ir.OpAllReduce || n.Op == ir.OpReduceScatter) && !ofTP(n)
		switch {
		case trunk:
			w.addToTrunk(&x, instrs, i, phase, ofBatch)
		case n.Op == ir.OpAddN && phase == ir.Update: // in another stage it may have other operands
		case w.piped && n.Op == ir.OpToPartial && phase == ir.Update && !w.partial(instrs, n): // in another stage all terms of the norm may be whole
		case w.piped && w.of.lone && x.part != inBlock && partition.WidensGradient(n): // a term of a table that two stages use: each has one, which is nothing to add up
		case shared:
			w.shared = append(w.shared, x)
		default:
			w.instrs = append(w.instrs, x)
		}
	}
}

// partial reports whether some terms of the norm that blocks have are partial over the axis of an instruction that makes others so.
func (w *work) partial(instrs []codegen.Instr, n *ir.Node) bool {
	axis := w.mesh.Axis(n.Attr.(ir.CommAttr).Axis)
	return slices.ContainsFunc(instrs, func(in codegen.Instr) bool {
		return in.Node.Op == ir.OpSumSquares && w.of.ofBlock[in.Node] && in.Node.Results[0].Spec[axis].Kind == ir.Partial
	})
}

// addToTrunk adds instruction i of a body to a trunk, if all outlines of its family do it anew for each micro-batch. Other
// computations of blocks are the rest of the trunk's program (see apart).
func (w *work) addToTrunk(x *workInstr, instrs []codegen.Instr, i int, phase ir.Phase, ofBatch bool) {
	n := x.Node
	switch {
	case x.Parts > 0 && !w.pairUp(x) || w.gathers(n) || w.gathersFor(n, instrs):
	case n.Op == ir.OpAddN && phase == ir.Update: // in another stage it may have other operands
	case phase == ir.Update || !ofBatch:
		if x.part == inBlock && n.Op.Class() == ir.Compute {
			w.rest = append(w.rest, *x)
		}
	default:
		if slices.ContainsFunc(x.Accum, func(a codegen.Accum) bool { return a != codegen.Overwrite }) { // elsewhere the gradient may not be added up here
			once := slices.Clone(x.all)
			once[0].Accum = make([]codegen.Accum, len(x.Accum))
			x.Instr, x.all = &once[0], once
		}
		if len(x.beside) == 0 && x.part == inBlock && phase != ir.Update && ofTP(n) {
			x.putOff, x.beside = true, w.mayBePutOff(instrs, i)
		}
		w.instrs = append(w.instrs, *x)
	}
}

// mayLieInCache reports whether in some plan all that an instruction reads and writes may lie in a cache, where it takes the
// least: a slice of the loss may, or a part of a product, though all of it does not.
func (w *work) mayLieInCache(x *workInstr) bool {
	slice := w.sliced && x.part == afterBlocks && x.pass != ir.Update && x.Node.Op.Class() != ir.Comm
	part := w.of.plan.TPPieces > 1 && x.part == inBlock && x.Node.Op == ir.OpMatMul && !w.of.ofWeight[x.Node]
	return (slice || part) && w.prices[0].Cached()
}

// shares reports whether a bucket works on micro-batches (an operand or a result is cut into them, or it is a product or
// attention), and whether its time depends on the number of data-parallel ranks.
func (w *work) shares(all []codegen.Instr) (ofBatch, shared bool) {
	mb := w.mesh.Axis(partition.AxisMB)
	over := func(v *ir.Value) {
		ofBatch = ofBatch || v.Spec[mb].Kind == ir.Shard
		for a, axis := range w.mesh.Axes {
			if (axis.Name == partition.AxisDP || axis.Name == partition.AxisRep) && v.Spec[a].Kind == ir.Shard && v.Spec[mb].Kind != ir.Shard {
				shared = true
			}
		}
	}
	for i := range all {
		n := all[i].Node
		ofBatch = ofBatch || n.Op == ir.OpMatMul || isAttention(n.Op)
		for _, a := range n.Args {
			over(a)
		}
		for _, r := range n.Results {
			over(r)
		}
		if attr, ok := n.Attr.(ir.CommAttr); ok && (attr.Axis == partition.AxisDP || attr.Axis == partition.AxisRep) {
			shared = true
		}
	}
	return ofBatch, shared
}

// at returns the times of what does not depend on the number of data-parallel ranks.
func (w *work) at(on sizeOn, batch int) *workTimes {
	if len(w.prices) == 1 {
		on.groups = nil // they lie alike everywhere
	}
	if known := w.known[on]; known != nil {
		return known
	}
	mesh := w.meshOf(on.size, batch)
	alike := sizeOn{size: on.size, spot: spot{kinds: on.kinds}}
	if w.kernels[alike] == nil {
		w.kernels[alike] = w.computes(mesh, on.kinds)
	}
	both := w.exchanges(mesh, on.spot, (on.size*w.rows() > 1 || on.ofParts) && (on.pieces > 0 || !w.trunk))
	for _, inOrder := range []bool{false, true} {
		t := both[ordered(inOrder)].plus(w.kernels[alike])
		if on.pieces > 0 {
			t = t.plus(w.divided(on, batch))
		}
		w.known[sizeOn{on.size, on.spot, inOrder, on.pieces, on.ofParts}] = &t
	}
	return w.known[on]
}

// ordered indexes pairs of times: 0 with kernels beside collectives, 1 with all in order.
func ordered(inOrder bool) int {
	if inOrder {
		return 1
	}
	return 0
}

// meshOf is the mesh with micro-batches of a size.
func (w *work) meshOf(size, batch int) ir.Mesh {
	mesh := w.mesh
	mesh.Axes = slices.Clone(mesh.Axes)
	mb := &mesh.Axes[mesh.Axis(partition.AxisMB)]
	mb.Chunk, mb.Size = size*w.rows(), (batch+size-1)/size
	return mesh
}

// rows is how many rows of the batch the work's program has for a sequence.
func (w *work) rows() int { return max(1, w.of.plan.SequenceParts) }

// times prices the work in both ways that [ordered] has. parts is as in exchanges.
func (w *work) times(mesh ir.Mesh, kinds cost.Kinds, parts bool) [2]workTimes {
	kernels, both := w.computes(mesh, kinds), w.exchanges(mesh, spot{kinds: kinds}, parts)
	return [2]workTimes{both[0].plus(kernels), both[1].plus(kernels)}
}

// computes prices all but the collectives, which exchanges prices.
func (w *work) computes(mesh ir.Mesh, kinds cost.Kinds) *workTimes {
	t, prices := &workTimes{}, w.on(spot{kinds: kinds})[:1]
	near := []*cost.Program{prices[0].Near()}
	for i := range w.instrs {
		in, among := &w.instrs[i], prices
		switch {
		case in.Node.Op.Class() == ir.Comm:
			continue
		case in.near:
			among = near
		}
		t.add(in, least(among, in, mesh))
	}
	return t
}

// least is the time of an instruction by the cheapest of some prices.
func least(prices []*cost.Program, in *workInstr, mesh ir.Mesh) cost.Picoseconds {
	time := never
	for _, price := range prices {
		other, _ := price.Bucket(in.all, mesh, ir.Coord{})
		time = min(time, other)
	}
	return time
}

// sharedTimes prices, for a plan, what depends on its number of data-parallel ranks, at every place of its ways.
func (w *work) sharedTimes(p *partition.Plan, way *ways, price *cost.Program, batch int) []workTimes {
	mesh := p.Mesh(batch)
	all := make([]workTimes, len(way.places))
	for k := range all {
		of := []*cost.Program{price.As(slices.Index(way.at, k))}
		for i := range w.shared {
			in := &w.shared[i]
			all[k].add(in, max(0, least(of, in, mesh)-hides(of, in, mesh)))
		}
	}
	return all
}

// mostSequences is how many sequences of a batch the data-parallel rank that has most of them trains on.
func (s *searcher) mostSequences(o outline) int {
	replicas := s.replicas(o)
	return (s.batch + replicas - 1) / replicas
}

// split divides the sequences of the data-parallel rank that has most into m micro-batches of a size, of which the last
// may be smaller.
func (s *searcher) split(o outline, size int) (m, last int) {
	local := s.mostSequences(o)
	m = (local + size - 1) / size
	return m, local - (m-1)*size
}

// loneOf reports whether an outline with micro-batches of a size has the programs of [blueprints.lone].
func (s *searcher) loneOf(o outline, size int) bool {
	m, _ := s.split(o, size)
	return s.lone(m)
}

// trunkKey is what a trunk depends on.
type trunkKey struct {
	cp, tp, order int
	sequence      bool
	lone          bool // see [blueprints.lone]
	split
	places *groupPlaces
}

// trunk returns the work that all outlines with the same tensor and context parallelism do, nil where they have no program.
// Gradients are those of several micro-batches.
func (s *searcher) trunk(o outline) *work { return s.trunkFor(o, false) }

// trunkFor is trunk with gradients as steps of one micro-batch have them (see [blueprints.lone]), or of several.
func (s *searcher) trunkFor(o outline, lone bool) *work {
	key := trunkKey{o.cp, o.tp, o.order, o.sequence, lone, o.split, s.groupPlacesOf(o)}
	w, known := s.trunks[key]
	if !known {
		if of, err := s.trunkOf(o, 1, lone); err == nil {
			w = s.work(of, o, true)
		}
		s.trunks[key] = w
	}
	return w
}

// trunkOf returns the blueprint of a trunk, cut into so many stages.
func (s *searcher) trunkOf(o outline, stages int, lone bool) (*blueprint, error) {
	plan, err := s.template(outline{degrees: degrees{plan: o.cp * o.tp * stages, dp: 1, cp: o.cp, tp: o.tp, pp: stages}, sharding: sharding{sequence: o.sequence, slices: s.opts.slices(), pieces: s.trunkPieces, split: o.split}})
	if err != nil {
		return nil, err
	}
	plan.RuntimeNGPUs = plan.PlanNGPUs
	plan.SequenceParts = 0 // whether there are any depends on the outline, and changes only the times of pairs
	return s.find(&plan, lone)
}

// exchanged bounds all plans of an outline from below, whatever their micro-batch size, by the tensor- and context-parallel
// collectives of the position with the most blocks, which has an even share or more. The time of a collective is a
// constant and a multiple of its bytes, so that several small ones take at least their share of the time of one for the
// whole batch, but for rounding: a picosecond each.
func (s *searcher) exchanged(o outline) cost.Picoseconds {
	trunk := s.trunk(o)
	if trunk == nil || len(s.cluster.Pools) > 0 || !s.rates.Straight() {
		return 0
	}
	if trunk.exchange < 0 {
		trunk.exchange = 0
		mesh := trunk.meshOf(s.batch, s.batch)
		for i := range trunk.instrs {
			if in := &trunk.instrs[i]; in.part == inBlock && in.Node.Op.Class() == ir.Comm {
				trunk.exchange += max(0, least(trunk.prices, in, mesh)-1)
			}
		}
	}
	blocks := (s.graphs.blocks + o.pp - 1) / o.pp
	return cost.Picoseconds(float64(trunk.exchange) / float64(s.batch) * float64(s.mostSequences(o)*blocks) * (1 - 1e-9))
}

// floor bounds the plans of an outline with micro-batches of a size under a schedule from below, by what the trunk does in
// order: see [searcher.least].
func (s *searcher) floor(o outline, trunk *work, size int, schedule partition.Schedule) cost.Picoseconds {
	if trunk == nil {
		return 0
	}
	return s.leastOn(o, nil, size, schedule, nil, false, func(size, _ int, at spot) workTimes {
		return *trunk.at(sizeOn{size, at, inOrder(schedule), o.pieces, s.ofParts(o)}, s.batch)
	})
}

// flowing bounds the same plans by chains of events through all positions: see [searcher.flow]. It counts the trunk and
// what [searcher.moved] adds, and the recomputation that memory makes necessary unless more is nil. An outline anywhere
// (rankorder.go) has no place in the network, and so sends nothing.
func (s *searcher) flowing(p *pending, size int, schedule partition.Schedule, more *again) cost.Picoseconds {
	if p.trunk == nil {
		if p.trunk = s.trunk(p.outline); p.trunk == nil {
			return 0
		}
		p.way = s.waysOf(p.outline)
	}
	lone := s.loneOf(p.outline, size)
	return s.leastOn(p.outline, p.way, size, schedule, more, true, func(size, place int, at spot) workTimes {
		moved := s.moved(p.outline, p.way.places[place], lone)
		t := p.trunk.at(sizeOn{size, at, inOrder(schedule), p.pieces, s.ofParts(p.outline)}, s.batch).plus(moved)
		if head := &t[afterBlocks]; p.slices > 0 {
			head.moved = head.forward
		}
		return t
	})
}

// refined bounds the same plans by the chains of events over all that the stages do in order. It fails when a stage has no
// program.
func (s *searcher) refined(p *pending, size int, schedule partition.Schedule, more *again) (cost.Picoseconds, error) {
	lone := s.loneOf(p.outline, size)
	of := &p.several
	if lone {
		of = &p.lone
	}
	if of.work == nil {
		plan, err := s.template(p.outline)
		if err != nil {
			return 0, err
		}
		inner, err := s.inner(plan, lone)
		if err != nil {
			return 0, err
		}
		of.work = s.work(inner, p.outline, false)
		of.shared = of.work.sharedTimes(&plan, s.waysOf(p.outline), s.rates.Program(&plan, plan.Mesh(s.batch)), s.batch)
	}
	return s.leastOn(p.outline, s.waysOf(p.outline), size, schedule, more, true, func(size, place int, at spot) workTimes {
		t := of.work.at(sizeOn{size, at, inOrder(schedule), 0, false}, s.batch).plus(&of.shared[place])
		if o := p.outline; o.overlap && s.trunkFor(o, lone) != nil {
			t.stream(s.moved(o, s.waysOf(o).places[place], lone), !of.work.sums)
		}
		return t
	}), nil
}

// busy lowers a bound where ranks that wait leave their cores to others, which then work faster.
func (s *searcher) busy(o outline, m int, schedule partition.Schedule, t cost.Picoseconds) cost.Picoseconds {
	if share := s.rates.Busy(schedule, o.pp, o.chunks, m); share < 1 && t < never {
		return cost.Picoseconds(float64(t) * share)
	}
	return t
}
