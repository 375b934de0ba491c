package planner

import (
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// Floors are bounds that cost next to nothing, so that most of the space is never
// priced. A first one holds whatever is sharded beside tensor and context parallelism
// and however the model is cut; a second one, of an outline, has all that its stages
// do. Both come from programs of one stage.

// work is what a program of one stage does. Most of it takes the same time with any
// number of data-parallel ranks: micro-batches are of the size they are, so that its
// time is known for all outlines once it is for one.
type work struct {
	of      *blueprint
	instrs  []workInstr
	shared  []workInstr     // on whose time the number of data-parallel ranks has a bearing
	prices  []*cost.Program // by how its groups may lie in the units of the network
	kinds   []cost.Kinds    // and on which pools
	mesh    ir.Mesh         // of one data-parallel rank
	known   map[sizeOn]*workTimes
	kernels map[sizeOn]*workTimes // of these, what is not communicated, in whatever order ranks lie
	trunk   bool                  // see [searcher.trunk]
	piped   bool                  // it stands for stages of a pipeline, which join no collectives of the update
	sliced  bool                  // of the head it has what any number of slices of the loss do
	shelf   *shelf                // of a trunk
	flights map[flightKey]*flight
	slots   map[int]*slots // by size of micro-batches
	again   [extents]*work // its backward pass with recomputation
	// rest is what blocks do in the plan of a trunk that is not part of it (see apart).
	rest         []workInstr
	steady, near *workTimes
	parted       map[sizeOn]*workTimes
	// pairs are what of a trunk is made in parts, in instrs as if it were whole.
	pairs []pair
	// exchange is what a block exchanges for the whole batch in one micro-batch, -1 until it is asked for.
	exchange cost.Picoseconds
	// sending is what two stages of a trunk send, nil until it is asked for.
	sending *[]*ir.Node
}

type workInstr struct {
	*codegen.Instr
	all []codegen.Instr // with those it is made with
	// beside is what runs beside it: only what it takes longer than they counts, unless all
	// is in order, as under a zero-bubble schedule.
	beside []codegen.Instr
	// product is that with which a whole collective is made in parts in some programs, or under some schedules.
	product []codegen.Instr
	part    int // of the model
	pass    ir.Phase
	putOff  bool // what is beside it is so in the programs of some outlines only, if not beside another
	ahead   bool
	near    bool // priced as if what it reads and writes lay in the cache
}

// The parts of a model.
const (
	beforeBlocks = iota
	inBlock
	afterBlocks
	modelParts
)

// workTimes is the time of the parts for a micro-batch of a size, one block.
type workTimes [modelParts]partTimes

type partTimes struct {
	all     cost.Picoseconds // forward and backward
	forward cost.Picoseconds
	way     cost.Picoseconds // of all, what the position before waits for
	weight  cost.Picoseconds // of all, gradients of weights, which a zero-bubble schedule has apart
	ahead   cost.Picoseconds // what recomputation may do before the gradient is there
	update  cost.Picoseconds // once a step
	closing cost.Picoseconds // of update, what ends the last backward pass
	beside  cost.Picoseconds // what the communication stream does, forward and backward
	once    cost.Picoseconds // and in the last backward pass besides
}

// plus adds times.
func (t *workTimes) plus(u *workTimes) workTimes {
	sum := *t
	for i := range sum {
		sum[i].all += u[i].all
		sum[i].forward += u[i].forward
		sum[i].way += u[i].way
		sum[i].weight += u[i].weight
		sum[i].ahead += u[i].ahead
		sum[i].update += u[i].update
		sum[i].closing += u[i].closing
		sum[i].beside += u[i].beside
		sum[i].once += u[i].once
	}
	return sum
}

// add adds an instruction's.
func (t *workTimes) add(in *workInstr, time cost.Picoseconds) {
	part := &t[in.part]
	if in.pass == ir.Update {
		part.update += time
		if in.Last || in.Node.Op == ir.OpCast { // of a sum of gradients, which with data-parallel ranks is made before they reduce it
			part.closing += time
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
	if in.Node.Op != ir.OpAccumulate { // with overlap gradients are added up after the send
		part.way += time
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

// sizeOn is a size of micro-batches on some kinds of devices, under schedules that run
// something beside tensor-parallel collectives or not, in so many parts (see [outline]), which but for a
// trunk's are those of the program.
type sizeOn struct {
	size    int
	kinds   cost.Kinds
	inOrder bool
	pieces  int
}

// inOrder reports whether a schedule runs nothing beside the collectives of tensor-parallel
// ranks, whatever the options say.
func inOrder(schedule partition.Schedule) bool { return schedule == partition.ZeroBubble }

// work returns what a blueprint of one stage does with the degrees of an outline: all
// of it that is done in order, or only the trunk: what is made anew with each
// micro-batch, and the products of the gradients of weights; not what gathers, reduces
// or adds up parameters and their gradients.
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
	job.PlanNGPUs, job.RuntimeNGPUs = o.cp*o.tp, s.opts.RuntimeNGPUs // they share the machine, or the network
	job.PoolOrder = s.cluster.Orders()[o.order]
	w := &work{of: of, piped: piped, trunk: trunk, sliced: s.opts.searchesSlices() && o.cp == 1, exchange: -1, known: map[sizeOn]*workTimes{}, kernels: map[sizeOn]*workTimes{}, parted: map[sizeOn]*workTimes{}, flights: map[flightKey]*flight{}, slots: map[int]*slots{}}
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

// lie prices the groups of tensor and context parallelism as they may lie in the units
// of the network, wherever in a plan they are: which of them a plan has is open.
func (w *work) lie(c *cost.Cluster, job partition.Plan) {
	ranks := job.PlanNGPUs
	job.PlanNGPUs = job.RuntimeNGPUs / ranks * ranks
	job.Stages = make([]partition.Stage, job.RuntimeNGPUs/ranks)
	price := cost.NewProgram(c, &job, w.mesh)
	type way struct {
		kinds  cost.Kinds
		groups [3]cost.Group
	}
	var ways []way
	for at := range job.Stages {
		if at > 0 && len(c.Pools) == 0 && price.Offset(at) == price.Offset(0) {
			break
		}
		x := way{kinds: price.Kinds(at)}
		for i, name := range []string{partition.AxisTP, partition.AxisTPR, partition.AxisCP} {
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

// collect takes the instructions of a body.
func (w *work) collect(instrs []codegen.Instr, phase ir.Phase, trunk bool) {
	part, after := beforeBlocks, afterBlocks
	parts := map[int]int{} // by segment
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
			continue // not in order, or with the one before
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
		case n.Op == ir.OpAccumulate && w.of.async[n.Args[0].Def]: // it stands behind a block beside which the gradient is reduced
			x.part = parts[in.Segment]
		default:
			parts[in.Segment] = part
		}
		switch {
		case in.Last: // after what the pass sends
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
		if w.sliced && x.part == afterBlocks && x.pass != ir.Update {
			x.near = n.Op.Class() != ir.Comm && w.prices[0].Cached()
		}
		if w.of.plan.TPPieces > 1 && x.part == inBlock && n.Op == ir.OpMatMul && !w.of.ofWeight[n] { // a part may, where all does not
			x.near = w.prices[0].Cached()
		}
		follows, shared := w.shares(all)
		switch {
		case trunk && (in.Parts > 0 && !w.pairUp(&x) || w.gathers(n) || w.gathersFor(n, instrs)):
			continue
		case n.Op == ir.OpAddN && phase == ir.Update: // may have other operands in another stage
		case trunk && (phase == ir.Update || !follows):
			if x.part == inBlock && n.Op.Class() == ir.Compute {
				w.rest = append(w.rest, x)
			}
		case trunk:
			once := slices.Clone(x.all)
			once[0].Accum = make([]codegen.Accum, len(in.Accum)) // gradients may be added up elsewhere
			x.Instr, x.all = &once[0], once
			if len(x.beside) == 0 && x.part == inBlock && phase != ir.Update && ofTP(n) {
				x.putOff, x.beside = true, w.mayBePutOff(instrs, i)
			}
			w.instrs = append(w.instrs, x)
		case shared:
			w.shared = append(w.shared, x)
		default:
			w.instrs = append(w.instrs, x)
		}
	}
}

// shares reports whether what is made in one go follows the batch, or is a product, and
// whether its time depends on the number of data-parallel ranks.
func (w *work) shares(all []codegen.Instr) (follows, shared bool) {
	mb := w.mesh.Axis(partition.AxisMB)
	over := func(v *ir.Value) {
		follows = follows || v.Spec[mb].Kind == ir.Shard
		for a, axis := range w.mesh.Axes {
			if (axis.Name == partition.AxisDP || axis.Name == partition.AxisRep) && v.Spec[a].Kind == ir.Shard && v.Spec[mb].Kind != ir.Shard {
				shared = true
			}
		}
	}
	for i := range all {
		n := all[i].Node
		follows = follows || n.Op == ir.OpMatMul || isAttention(n.Op)
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
	return follows, shared
}

// at returns the times for a micro-batch of a size on some kinds of devices, of what does
// not depend on the number of data-parallel ranks.
func (w *work) at(on sizeOn, batch int) *workTimes {
	if known := w.known[on]; known != nil {
		return known
	}
	mesh := w.meshOf(on.size, batch)
	alike := sizeOn{size: on.size, kinds: on.kinds}
	if w.kernels[alike] == nil {
		w.kernels[alike] = w.computes(mesh, on.kinds)
	}
	both := w.exchanges(mesh, on.kinds, on.size > 1 && (on.pieces > 0 || !w.trunk))
	for _, inOrder := range []bool{false, true} {
		t := both[ordered(inOrder)].plus(w.kernels[alike])
		if on.pieces > 0 {
			t = t.plus(w.divided(on, batch))
		}
		w.known[sizeOn{on.size, on.kinds, inOrder, on.pieces}] = &t
	}
	return w.known[on]
}

// ordered is the place of times in which something runs beside collectives, or nothing does.
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
	mb.Chunk, mb.Size = size, (batch+size-1)/size
	return mesh
}

// times prices the work with what runs beside collectives, and with all of it in order.
func (w *work) times(mesh ir.Mesh, kinds cost.Kinds, parts bool) [2]workTimes {
	kernels, both := w.computes(mesh, kinds), w.exchanges(mesh, kinds, parts)
	return [2]workTimes{both[0].plus(kernels), both[1].plus(kernels)}
}

// computes is what of these times is not that of collectives.
func (w *work) computes(mesh ir.Mesh, kinds cost.Kinds) *workTimes {
	t, prices := &workTimes{}, w.on(kinds)[:1]
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

// least is the least time of an instruction by some prices.
func least(prices []*cost.Program, in *workInstr, mesh ir.Mesh) cost.Picoseconds {
	time := never
	for _, price := range prices {
		other, _ := price.Bucket(in.all, mesh, ir.Coord{})
		time = min(time, other)
	}
	return time
}

// sharedTimes returns the rest, of a plan: the least of all positions on the same kinds.
func (w *work) sharedTimes(p *partition.Plan, price *cost.Program, batch int) map[cost.Kinds]*workTimes {
	mesh := p.Mesh(batch)
	all := map[cost.Kinds]*workTimes{}
	seen := map[int]bool{}
	for at := range p.PP() {
		offset := price.Offset(at)
		if seen[offset] {
			continue
		}
		as, t := price.As(at), &workTimes{}
		for i := range w.shared {
			in, of := &w.shared[i], []*cost.Program{as}
			t.add(in, max(0, least(of, in, mesh)-hides(of, in, mesh)))
		}
		seen[offset] = true
		if least := all[price.Kinds(at)]; least != nil {
			least.fastest(t)
		} else {
			all[price.Kinds(at)] = t
		}
	}
	return all
}

// split is how micro-batches of a size divide the sequences of a data-parallel rank:
// into m, of which the last has a size of its own.
func (s *searcher) split(o outline, size int) (m, last int) {
	replicas := o.dp * (s.opts.RuntimeNGPUs / o.plan)
	local := (s.batch + replicas - 1) / replicas
	m = (local + size - 1) / size
	return m, local - (m-1)*size
}

// trunkKey is what a trunk follows from.
type trunkKey struct {
	cp, tp, order int
	sequence      bool
	split
	places *groupPlaces
}

// trunk returns the work that outlines with the same tensor and context parallelism
// all do, nil where they have no programs.
func (s *searcher) trunk(o outline) *work {
	key := trunkKey{o.cp, o.tp, o.order, o.sequence, o.split, s.groupPlacesOf(o)}
	w, known := s.trunks[key]
	if !known {
		if of, err := s.trunkOf(o, 1); err == nil {
			w = s.work(of, o, true)
		}
		s.trunks[key] = w
	}
	return w
}

// trunkOf returns the blueprint of a trunk in so many stages.
func (s *searcher) trunkOf(o outline, stages int) (*blueprint, error) {
	plan, err := s.template(outline{degrees: degrees{plan: o.cp * o.tp * stages, dp: 1, cp: o.cp, tp: o.tp, pp: stages}, sharding: sharding{sequence: o.sequence, slices: s.opts.slices(), pieces: s.trunkPieces, split: o.split}})
	if err != nil {
		return nil, err
	}
	plan.RuntimeNGPUs = plan.PlanNGPUs
	return s.find(&plan)
}

// exchanged bounds the plans of an outline from below, whatever the size of micro-batches, by
// what tensor- and context-parallel ranks exchange for the blocks of the position that has
// most. The time of a collective is a straight line over the bytes, so that it takes no less
// in parts than the same share of one for the whole batch, but for the rounding of each.
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
	replicas := s.replicas(o)
	local := (s.batch + replicas - 1) / replicas
	blocks := (s.graphs.blocks + o.pp - 1) / o.pp
	return cost.Picoseconds(float64(trunk.exchange) / float64(s.batch) * float64(local*blocks) * (1 - 1e-9))
}

// floor bounds the plans of an outline with micro-batches of a size from below, of a
// schedule, by what the trunk does in order.
func (s *searcher) floor(o outline, trunk *work, size int, schedule partition.Schedule) cost.Picoseconds {
	if trunk == nil {
		return 0
	}
	return s.leastOn(o, nil, size, schedule, nil, false, func(size int, kinds cost.Kinds) workTimes {
		return *trunk.at(sizeOn{size, kinds, inOrder(schedule), o.pieces}, s.batch)
	})
}

// flowing bounds the plans of an outline with micro-batches of a size by the way of those through the trunk, with the
// recomputation that memory makes necessary unless that is nil. Anywhere they send nothing.
func (s *searcher) flowing(p *pending, size int, schedule partition.Schedule, more *again) cost.Picoseconds {
	if p.trunk == nil {
		if p.trunk = s.trunk(p.outline); p.trunk == nil {
			return 0
		}
		p.moved = s.moved(p.outline)
		if p.ranks != anywhere {
			p.way = s.waysOf(p.outline)
		}
	}
	return s.leastOn(p.outline, p.way, size, schedule, more, true, func(size int, kinds cost.Kinds) workTimes {
		return p.trunk.at(sizeOn{size, kinds, inOrder(schedule), p.pieces}, s.batch).plus(p.moved)
	})
}

// refined bounds the same plans by the way through all that the stages do in order. It
// fails when a stage has no program.
func (s *searcher) refined(p *pending, size int, schedule partition.Schedule, more *again) (cost.Picoseconds, error) {
	if p.work == nil {
		plan, err := s.template(p.outline)
		if err != nil {
			return 0, err
		}
		inner, err := s.inner(plan)
		if err != nil {
			return 0, err
		}
		p.work = s.work(inner, p.outline, false)
		p.shared = p.work.sharedTimes(&plan, s.rates.Program(&plan, plan.Mesh(s.batch)), s.batch)
	}
	return s.leastOn(p.outline, s.waysOf(p.outline), size, schedule, more, true, func(size int, kinds cost.Kinds) workTimes {
		return p.work.at(sizeOn{size, kinds, inOrder(schedule), 0}, s.batch).plus(p.shared[kinds])
	}), nil
}

// busy is a bound where ranks that wait leave their cores to others.
func (s *searcher) busy(o outline, m int, schedule partition.Schedule, t cost.Picoseconds) cost.Picoseconds {
	if share := s.rates.Busy(schedule, o.pp, o.chunks, m); share < 1 && t < never {
		return cost.Picoseconds(float64(t) * share)
	}
	return t
}
