package planner

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// What the instructions of a stage take, as functions of its number of blocks and of what they
// recompute. There are three steps:
//
//   - [skeleton.prices]: the time of each instruction of the blueprint, on the mesh of the plan;
//   - [skeleton.body]: sums of those between transfers ([part]), fixed and per block ([line]);
//   - [body.price]: the times of simulator ops for a given number of blocks and recomputation.
//
// [skeleton.times] does the first two, for cut.go; pipeline.go does the third for every cut.
// With overlap, what a part takes depends on the communication stream: flow.go has it.

// priced is an instruction with its time. The first of a bucket has the time of the whole bucket. A
// collective with kernels beside it has the time by which it outlasts them, or delays them; hidden
// is the rest of it.
type priced struct {
	*codegen.Instr
	time, hidden cost.Picoseconds
}

// prices lists the instructions of a stage in a phase, for micro-batches of a size.
func (s *skeleton) prices(of extent, stage int, phase ir.Phase, size int, mesh ir.Mesh, at ir.Coord) []priced {
	instrs := s.stage(of, stage, phase)
	price := s.price.As(stage)
	all := make([]priced, 0, len(instrs))
	for i := range instrs {
		in := &instrs[i]
		if in.Fused || in.Last && size != rest {
			continue
		}
		x := priced{Instr: in}
		if in.Node.Op == ir.OpSend {
			x.time = s.price.Send(in.Node, mesh, at, stage, stage+s.of.hop(&s.plan, in.Node))
		} else {
			x.time, _ = price.Bucket(codegen.Bucket(instrs, i), mesh, at)
		}
		if in.Beside > 0 && price.Overlaps() {
			all := x.time
			x.time = max(all-price.InOrder(instrs[i+1:][:in.Beside], mesh, at), price.Slows(all))
			x.hidden = all - x.time
		}
		all = append(all, x)
	}
	return all
}

// pass selects a pass from the instructions of a phase: all of them, or, of a backward phase that
// is not split by its own program, one of its two parts, input and [ir.WeightGrad].
func (s *skeleton) pass(all []priced, phase ir.Phase) []priced {
	if phase != input && phase != ir.WeightGrad || s.of.plan.Schedule.SplitsBackward() {
		return all
	}
	var some []priced
	for _, in := range all {
		if s.of.ofWeight[in.Node] == (phase == ir.WeightGrad) {
			some = append(some, in)
		}
	}
	return some
}

// input is the pass that a zero-bubble schedule leaves of a backward phase: gradients of the inputs of
// a stage, without those of weights.
const input = ir.NumPhases

// part is the work of a body between two transfers, or one transfer.
type part struct {
	kind   sim.OpKind
	hop    int  // how many stages further the other end of a transfer is
	wire   int  // its index among the transfers in that direction
	posted bool // a send beside which the stage goes on: no work in order
	line        // time of what runs in order
	beside line // time of the communication stream
	slow   line // by how much that delays what runs in order
	sums   []sum
	flow   *flow // of the body, in a plan with overlap; this part is its work number nth
	nth    int
	// chunks is set in an update that several chunks share: the time of one block of each chunk
	// that the blueprint has, as these may stand on different sides of a transfer.
	chunks [fewChunks]cost.Picoseconds
	// ahead is the part of a block's backward pass that recomputation may do before the gradient
	// arrives.
	ahead cost.Picoseconds
}

// sum is an add_n with operands from every block of the stage.
type sum struct {
	fixed, perBlock int
	time            func(operands int) cost.Picoseconds
}

// at returns the time with n blocks, recomputed as r says.
func (p *part) at(n int, r recomputation) cost.Picoseconds {
	t := p.line.at(n, r)
	for _, s := range p.sums {
		t += s.time(s.fixed + n*s.perBlock)
	}
	return t
}

// body is the parts of one phase of a stage.
type body []part

// line is a time that grows linearly with the number of blocks of a stage.
type line struct {
	fixed cost.Picoseconds
	block [extents]cost.Picoseconds // of one block, by extent
	// early is added if the last block, which comes first in the backward pass, is recomputed. That
	// happens before the gradient is received: early is the time of the recomputation in the part
	// before the transfer, and minus that in the part after it.
	early [extents]cost.Picoseconds
}

func (l *line) at(n int, r recomputation) cost.Picoseconds {
	t := l.fixed + l.early[r.last(n)]
	for e, count := range r.counts(n) {
		t += cost.Picoseconds(count) * l.block[e]
	}
	return t
}

// price sets the times of the ops for a body with n blocks, recomputed as r says.
func (b body) price(ops []sim.Op, n tally, r recomputation) {
	for k := range b {
		p, op := &b[k], &ops[k]
		if p.flow == nil || p.kind != sim.Work {
			op.Time = p.at(n.all(), r)
			for chunk, time := range p.chunks {
				op.Time += cost.Picoseconds(n[chunk]) * time
			}
			continue
		}
		times := p.flow.at(n, r)
		op.Time, op.Since = times.spans[p.nth].time, times.spans[p.nth].since
		if p.nth == len(times.spans)-1 {
			op.Leaves = times.leaves
		}
	}
}

func (l *line) add(p *part) {
	l.fixed += p.fixed
	for e := range extents {
		l.block[e] += p.block[e]
		l.early[e] += p.early[e]
	}
	for _, s := range p.sums {
		l.fixed += s.time(s.fixed + s.perBlock) // with one block: a lower bound
	}
}

// busy is all work of a body that is done in order.
func (b body) busy() line {
	var l line
	for i := range b {
		if !b[i].posted {
			l.add(&b[i])
			l = l.plus(b[i].slow)
		}
	}
	return l
}

// beside is all work of a body's communication stream.
func (b body) beside() line {
	var l line
	for i := range b {
		l = l.plus(b[i].beside)
	}
	return l
}

// sent is what a body does in order up to its first send, or all of it if it sends nothing. In a
// plan with overlap, sums and reductions of gradients come after that.
func (b body) sent() line {
	var l line
	for i := range b {
		l.add(&b[i])
		l = l.plus(b[i].slow)
		if b[i].kind == sim.Send {
			break
		}
	}
	return l
}

// through is the work between the last receive before the first send and the end of that send: the
// least time that a micro-batch takes through the stage.
func (b body) through() line {
	var l line
	for i := range b {
		if b[i].kind == sim.Recv {
			l = line{}
		}
		l.add(&b[i])
		if b[i].kind == sim.Send {
			break
		}
	}
	return l
}

// stageTimes is what a stage takes: for a whole micro-batch, for the last one, which may be
// smaller, and, as the first stage of its position, once per step.
type stageTimes struct {
	forward, backward [2]body
	// input and weight are the backward pass in two, as a zero-bubble schedule has it.
	input, weight [2]body
	update        body
}

// pass returns where the times of a pass are stored.
func (t *stageTimes) pass(phase ir.Phase) *[2]body {
	switch phase {
	case ir.Forward:
		return &t.forward
	case ir.Backward:
		return &t.backward
	case input:
		return &t.input
	case ir.WeightGrad:
		return &t.weight
	}
	panic(fmt.Sprintf("BUG: no pass %s", phase))
}

// passes lists the passes for which a phase of the blueprint's program has the instructions. The
// backward phase serves the whole backward pass and both of its parts, except with overlap, under
// which a split backward pass has a program of its own.
func (s *skeleton) passes(phase ir.Phase) []ir.Phase {
	split := s.of.plan.Schedule.SplitsBackward()
	switch {
	case phase == ir.WeightGrad && !split:
		return nil
	case phase == ir.Backward && split:
		return []ir.Phase{input}
	case phase == ir.Backward && !s.overlaps():
		return []ir.Phase{ir.Backward, input, ir.WeightGrad}
	}
	return []ir.Phase{phase}
}

// overlaps reports whether the plan overlaps communication with anything. Then a split backward
// pass has a program of its own.
func (s *skeleton) overlaps() bool { return s.plan.Overlap || s.plan.OverlapTP || s.plan.TPPieces > 1 }

// uneven reports whether the last of m micro-batches is smaller than the others.
func (s *skeleton) uneven(m, microBatch int) bool {
	replicas := s.plan.DataParallel()
	return (s.batch+replicas-1)/replicas != m*microBatch
}

// each calls f for a whole and for the last micro-batch, once for every stage with times of its
// own, and fills in the entries of all. Stages share times if the same stage of the blueprint
// stands for them and they lie alike in the network.
func (s *skeleton) each(all []*stageTimes, microBatch int, f func(t *stageTimes, stage, size int, mesh ir.Mesh, at ir.Coord)) {
	mesh := s.mesh(microBatch)
	var first, last ir.Coord
	if mb := mesh.Axis(partition.AxisMB); s.uneven(mesh.Axes[mb].Size, microBatch) {
		last[mb] = mesh.Axes[mb].Size - 1
	}
	type alike struct{ stage, offset int }
	done := map[alike]*stageTimes{}
	for i := range all {
		position, _ := s.plan.Position(i)
		key := alike{s.like[i], s.price.Offset(position)}
		if done[key] == nil {
			if all[i] == nil {
				all[i] = &stageTimes{}
			}
			f(all[i], i, whole, mesh, first)
			f(all[i], i, rest, mesh, last)
			done[key] = all[i]
		}
		all[i] = done[key]
	}
}

// The two sizes of micro-batches: all but the last, and the last.
const (
	whole = iota
	rest
)

// timesKey is what the times of a skeleton's stages depend on.
type timesKey struct {
	microBatch int
	schedule   partition.Schedule // "" where it does not matter
}

// knownTimes are those of stages with blocks recomputed to an extent at most.
type knownTimes struct {
	stages []*stageTimes
	most   extent
}

// under returns the skeleton with the programs and prices of a schedule, and the key of its times: the
// schedule, or "" where all schedules share them. They do not on a crowded machine, where prices
// depend on how many ranks wait, nor where overlap gives a split backward pass an order of its own.
func (s *skeleton) under(schedule partition.Schedule) (*skeleton, partition.Schedule) {
	crowded, split := s.price.Crowded(s.plan.PP()), s.overlaps() && schedule.SplitsBackward()
	if !crowded && !split {
		return s, ""
	}
	under := *s
	if crowded {
		under.price = s.price.Scheduled(schedule)
	}
	if split {
		under.of = s.of.zeroBubble()
	}
	return &under, schedule
}

// times returns what every stage takes, for a micro-batch size and a schedule.
func (s *skeleton) times(microBatch int, schedule partition.Schedule) []*stageTimes {
	s, schedule = s.on(microBatch).under(schedule)
	key := timesKey{microBatch, schedule}
	known := s.known[key]
	if known.stages == nil {
		known.stages = make([]*stageTimes, len(s.plan.Stages))
		s.priceStages(known.stages, microBatch, kept)
	} else if known.most < s.most {
		s.priceStages(known.stages, microBatch, known.most+1)
	}
	s.known[key] = knownTimes{known.stages, s.most}
	return known.stages
}

// priceStages prices every stage with its blocks recomputed to the given extent, and to all further ones
// up to s.most. Times of lesser extents are there already.
func (s *skeleton) priceStages(all []*stageTimes, microBatch int, from extent) {
	even := s.of.even(s.mesh(microBatch))
	s.each(all, microBatch, func(t *stageTimes, i, size int, mesh ir.Mesh, at ir.Coord) {
		for phase := range ir.Update {
			if size == rest && even && !s.ofLast(i, phase) {
				for _, pass := range s.passes(phase) {
					t.pass(pass)[rest] = t.pass(pass)[whole]
				}
				continue
			}
			most := s.most
			if phase == ir.Forward {
				most = kept
			}
			for e := from; e <= most; e++ {
				prices := s.prices(e, i, phase, size, mesh, at)
				for _, pass := range s.passes(phase) {
					if e == kept {
						t.pass(pass)[size] = s.body(i, pass, prices, mesh, at)
					} else {
						s.recompute(t.pass(pass)[size], i, pass, prices, mesh, at, e)
					}
				}
			}
		}
		if i < s.plan.PP() && size == whole && from == kept {
			t.update = s.body(i, ir.Update, s.prices(kept, i, ir.Update, size, mesh, at), mesh, at)
		}
	})
}

// ofLast reports whether a stage does something in the last micro-batch only.
func (s *skeleton) ofLast(stage int, phase ir.Phase) bool {
	return slices.ContainsFunc(s.stage(kept, stage, phase), func(in codegen.Instr) bool { return in.Last })
}

// mesh is that of the plan with another micro-batch size.
func (s *skeleton) mesh(microBatch int) ir.Mesh {
	p := s.plan
	p.MicroBatch = microBatch
	return p.Mesh(s.batch)
}

// body composes a pass of a stage, or its update, from the prices of its phase: with blocks that
// recompute nothing. Until recompute corrects them, other extents have the same times.
func (s *skeleton) body(stage int, pass ir.Phase, prices []priced, mesh ir.Mesh, at ir.Coord) body {
	var f *flow
	instrs := s.pass(prices, pass)
	if s.plan.Overlap {
		f = &flow{beside: s.price.Overlaps(), backward: pass != ir.Forward && pass != ir.Update, joins: pass == ir.Update, slows: s.price.As(stage).Slows, known: map[flowKey]flowTimes{}}
		f.lastly = s.plan.Chunks() == 1 && slices.ContainsFunc(instrs, func(in priced) bool { return in.Node.Op == ir.OpSend })
	}
	parts := s.parts(stage, instrs, mesh, at, kept, f)
	for i := range parts {
		for e := range extents {
			parts[i].block[e] = parts[i].block[kept]
			parts[i].beside.block[e] = parts[i].beside.block[kept]
			parts[i].slow.block[e] = parts[i].slow.block[kept]
		}
	}
	return parts
}

// recompute adds to a pass the times of blocks that are recomputed to an extent.
func (s *skeleton) recompute(parts body, stage int, pass ir.Phase, prices []priced, mesh ir.Mesh, at ir.Coord, e extent) {
	f := parts[0].flow
	recomputed := s.parts(stage, s.pass(prices, pass), mesh, at, e, f)
	if len(recomputed) != len(parts) {
		panic(fmt.Sprintf("BUG: stage %d: recomputation changes its transfers", stage))
	}
	for i := range parts {
		parts[i].block[e] = recomputed[i].block[kept]
		parts[i].beside.block[e] = recomputed[i].beside.block[kept]
		parts[i].slow.block[e] = recomputed[i].slow.block[kept]
	}
	if len(parts) > 2 && parts[1].kind == sim.Recv {
		early := parts[0].block[e] - parts[0].block[kept]
		parts[0].block[e], parts[0].early[e] = parts[0].block[kept], early
		parts[2].block[e], parts[2].early[e] = parts[2].block[e]+early, -early
	}
	if f != nil {
		f.alike(e)
	}
}

// parts sums prices between transfers. In a plan with overlap, f also learns them, as those of
// blocks recomputed to the given extent.
func (s *skeleton) parts(stage int, instrs []priced, mesh ir.Mesh, at ir.Coord, e extent, f *flow) body {
	price := s.price.As(stage)
	parts := body{{flow: f}} // begins with work, whatever comes first
	next := func(kind sim.OpKind) *part {
		k := len(parts) - 1
		if kind == sim.Work && parts[k].kind == sim.Work {
			return &parts[k]
		}
		p := part{kind: kind, flow: f, nth: parts[k].nth}
		if kind != sim.Work {
			p.nth++
		}
		parts = append(parts, p)
		return &parts[k+1]
	}
	for _, in := range instrs {
		n, time := in.Node, in.time
		kind := sim.Work
		switch n.Op {
		case ir.OpSend:
			kind = sim.Send
		case ir.OpRecv:
			kind = sim.Recv
		}
		if f != nil && kind != sim.Work {
			next(sim.Work) // there is work between two transfers, too
		}
		if in.Posted && !price.Overlaps() { // the rank copies by itself, but waits for nobody
			p := next(sim.Work)
			if p.fixed += time; f != nil {
				f.follow(e, in.Instr, false, item{time: time})
			}
			time = 0
		}
		p := next(kind)
		x := item{kind: kind, time: time, each: s.of.ofBlock[n], given: s.of.given[n]}
		if s.plan.Chunks() > 1 && n.Phase == ir.Update && !in.Last {
			x.chunk = s.of.chunkOf[n.Block()]
		}
		switch {
		case kind == sim.Send:
			p.fixed, p.wire, p.hop, p.posted = time, s.of.wires[n], s.of.hop(&s.plan, n), in.Posted
			if in.Posted { // nothing that the body does in order
				x.time = 0
			}
		case kind == sim.Recv:
			p.fixed, p.wire, p.hop = time, s.of.wires[n.Args[0].Def], s.of.hop(&s.plan, n)
		case in.Async && s.of.ofBlock[n]:
			p.beside.block[kept] += time
			p.slow.block[kept] += price.Slows(time)
		case in.Async:
			p.beside.fixed += time
			p.slow.fixed += price.Slows(time)
		case s.of.ofBlock[n] && s.plan.Chunks() > 1 && n.Phase == ir.Update && !in.Last:
			p.chunks[x.chunk] += time
		case s.of.ofBlock[n]:
			p.block[kept] += time
			if mayGoAhead(n) {
				p.ahead += time
			}
		case n.Op == ir.OpAddN && blockOperands(n) > 0:
			inner := blockOperands(n)
			p.sums = append(p.sums, sum{len(n.Args) - inner, inner / s.of.plan.Chunks(), func(operands int) cost.Picoseconds {
				return price.AddN(in.Instr, mesh, at, operands)
			}})
			x.sum = &p.sums[len(p.sums)-1]
		default:
			p.fixed += time
		}
		if f != nil {
			f.follow(e, in.Instr, n.Op.Class() == ir.Compute && n.Block() != "", x)
		}
	}
	if f != nil {
		next(sim.Work) // what the body waits for at its end
	}
	if first := slices.IndexFunc(parts, func(p part) bool { return p.kind == sim.Recv }); first > 0 && instrs[0].Node.Phase != ir.Update {
		for i := range first { // what a pass gives to its stream before it receives anything may delay nothing but its waiting
			parts[i].slow = line{}
		}
	}
	return parts
}

// mayGoAhead reports whether recomputation, which may run before the gradient arrives, already does
// what a node of the backward pass does.
func mayGoAhead(n *ir.Node) bool {
	return n.Op == ir.OpAllGather || n.Op == ir.OpAllToAll || n.Op == ir.OpSlice || n.Op == ir.OpFetch || n.Op == ir.OpKeysValues
}

// blockOperands counts the operands of a node that are made by blocks of its own stage.
func blockOperands(n *ir.Node) int {
	count := 0
	for _, a := range n.Args {
		if a.Def.Block() != "" && a.Def.Op != ir.OpRecv {
			count++
		}
	}
	return count
}
