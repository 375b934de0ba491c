package planner

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// This file times a body (a pass of a stage, or its update) in a plan with overlap, where collectives run on a communication
// stream beside the kernels. The time of a body is then not the sum of its instructions but a max-plus expression (Baccelli
// et al. 1992, section 1.2) of its marks: when the stream was done with what it had, when the body began, and when each of
// its transfers ended. price.go builds a flow with follow, and takes from it what [sim.Op] needs to repeat that expression.

// flow is a body as segments, in the order in which codegen hands their communication to the stream (codegen, overlap.go). A
// stage with n blocks has the segments of a block n times, so that the time for any number of blocks takes a few additions
// for each.
type flow struct {
	// segments are those of the program with one block, by the extent to which it is recomputed.
	segments [extents][]segment
	beside   bool // communication runs beside the kernels; otherwise it takes their time
	backward bool // blocks run from the last to the first
	joins    bool // it begins when the stream is done with what it had
	// slows is by how much a bucket on the stream delays what the body does beside it: see [cost.Model.Slows].
	slows  func(cost.Picoseconds) cost.Picoseconds
	lastly bool // it reduces sums further only at its end, as it sends before that
	known  map[flowKey]flowTimes
}

type flowKey struct {
	blocks tally
	recomputation
}

// flowTimes is what a flow takes with a number of blocks.
type flowTimes struct {
	spans  []span
	leaves []cost.Picoseconds // when the stream is done with what the body leaves it: see [sim.Op]
}

// tally is how many blocks a body has. An update counts them by chunk of the blueprint, a pass has only the first count.
type tally [fewChunks]int

func (t tally) all() int {
	sum := 0
	for _, n := range t {
		sum += n
	}
	return sum
}

// segment is a segment of a body, as codegen cuts it (overlap.go).
type segment struct {
	block            bool
	chunk            int                // of the block: see tally
	gathers, reduces []cost.Picoseconds // times of buckets: what the segment needs, and what it completes
	late             []bool             // by reduction: the end of the body does not wait for it
	// each is how many of the reductions, from the first, are done before the gradients of the segment are added up.
	each    int
	sums    cost.Picoseconds   // adding up those gradients, and narrowing the sums
	further []cost.Picoseconds // times of buckets that reduce the sums further; the end of the body does not wait for them
	items   []item
	blocks  [4]*segment // see ofBlock
}

// item is work in order, or a transfer.
type item struct {
	kind sim.OpKind
	time cost.Picoseconds
	each bool // of blocks: in a segment outside of them it is there once for every block of the stage
	// given is set for what is made for blocks of nothing that they make: the first block has it, wherever it stands.
	given bool
	// chunk is that of the blocks, for each.
	chunk int
	sum   *sum // an add_n over the blocks of the stage
}

// span is a part of a body between transfers, as [sim.Op] has it: it ends at least time after the last mark (the start of the
// body, or the end of a transfer) and at least since[i] after mark i.
type span struct {
	time  cost.Picoseconds
	since []cost.Picoseconds
}

// streams reports whether the communication stream has anything to do.
func (f *flow) streams() bool {
	return f != nil && slices.ContainsFunc(f.segments[kept], func(s segment) bool { return len(s.gathers)+len(s.reduces)+len(s.further) > 0 })
}

// at returns the times with n blocks, recomputed as r says.
func (f *flow) at(n tally, r recomputation) flowTimes {
	key := flowKey{n, r}
	if s, ok := f.known[key]; ok {
		return s
	}
	s := f.run(f.expand(n, r), n)
	f.known[key] = s
	return s
}

// expand lists the segments with so many blocks, recomputed as r says.
func (f *flow) expand(blocks tally, r recomputation) []*segment {
	var all []*segment
	for k := range f.segments[kept] {
		s := &f.segments[kept][k]
		if !s.block {
			all = append(all, s)
			continue
		}
		n := blocks[s.chunk]
		for i := range n {
			if f.backward {
				s = &f.segments[r.of(n-1-i)][k]
			}
			all = append(all, s.ofBlock(i == 0, i == n-1))
		}
	}
	return all
}

// ofBlock returns the segment of one of the blocks, from that of the only block of the program. Transfers and other items
// outside of blocks may stand in the segment of the block, as that computes next. The first block receives, and sends what
// there is before it has done anything; the last one sends what it has made. Other items are the first block's if they stand
// before its own work or are given to it, and the last one's if they stand after that.
func (s *segment) ofBlock(first, last bool) *segment {
	at := 0
	if first {
		at++
	}
	if last {
		at += 2
	}
	if s.blocks[at] != nil {
		return s.blocks[at]
	}
	of := *s
	of.items = nil
	own := false
	for _, x := range s.items {
		there := true
		switch early := !own || x.given; {
		case x.kind == sim.Recv:
			there = first
		case x.kind == sim.Send:
			there = own && last || !own && first
		case !x.each:
			there = early && first || !early && last
		}
		if !there {
			continue
		}
		own = own || x.kind == sim.Work && x.each
		x.each, x.given = false, false
		of.items = append(of.items, x)
	}
	s.blocks[at] = &of
	return &of
}

// moment is a time as a max-plus expression: the latest of the marks of a body, each with some time added; negative where a
// mark does not matter.
type moment []cost.Picoseconds

func (m moment) add(t cost.Picoseconds) {
	for i, x := range m {
		if x >= 0 {
			m[i] += t
		}
	}
}

// wait makes a moment no earlier than another.
func (m *moment) wait(other moment) {
	for len(*m) < len(other) {
		*m = append(*m, -1)
	}
	for i, x := range other {
		(*m)[i] = max((*m)[i], x)
	}
}

// runner is at a segment of a body.
type runner struct {
	*flow
	now, stream moment // in order, and on the communication stream
	gathered    moment // what the next segment needs; nil if nothing
	reduced     moment // what the segment before has reduced of its gradients, before they are added up; likewise
	left        moment // late reductions so far
	joined      moment // the last of the other buckets: the body waits for those at its end
	spans       []span
}

// run goes through the segments in the order of codegen. Among alike segments it goes on only until each takes as long as the
// one before: as max-plus expressions are linear, so do all others.
func (f *flow) run(segments []*segment, n tally) flowTimes {
	r := &runner{flow: f, now: moment{-1, 0}, stream: moment{0, -1}}
	if f.joins {
		r.now.wait(r.stream)
	}
	none := &segment{}
	at := func(k int) *segment {
		if k < 0 || k >= len(segments) {
			return none
		}
		return segments[k]
	}
	r.gather(at(0))
	var before, after [6]moment
	alike := 0                             // so many segments before k+1 are the same as that one
	for k := 0; k < len(segments)+2; k++ { // two more, for what follows the last segments
		if alike++; at(k) != at(k+1) {
			alike = 0
		}
		if alike == 3 { // all that a step has to do with
			r.save(&before)
		}
		r.step(at(k-2), at(k-1), at(k), at(k+1), n)
		if alike < 3 {
			continue
		}
		r.save(&after)
		if grown := growth(&before, &after); grown != nil {
			first := k
			for k+2 < len(segments) && at(k+1) == at(k+2) {
				k++
			}
			r.grow(grown, cost.Picoseconds(k-first))
		}
		before, after = after, before
	}
	if f.lastly {
		for _, s := range segments {
			r.further(s)
		}
	}
	r.now.wait(r.joined)
	r.close()
	return flowTimes{r.spans, r.left}
}

// step does the items of a segment. Between those of the one before and its own, the reductions of that one and the gathers for
// the next are handed to the stream, and gradients of the second before are added up once they are reduced. Then what reduces
// these sums further is handed over, unless that waits for the end.
func (r *runner) step(second, before, s, next *segment, n tally) {
	gathered, reduced := r.gathered, r.reduced
	r.reduced = nil
	for i, t := range before.reduces {
		done := r.give(t)
		if i < before.each {
			r.reduced = done
		}
		if before.late[i] {
			r.left = done
		} else {
			r.joined = done
		}
	}
	r.gather(next)
	if second.sums > 0 {
		r.now.wait(reduced)
		r.now.add(second.sums)
	}
	if !r.lastly {
		r.further(second)
	}
	r.now.wait(gathered)
	for _, x := range s.items {
		switch {
		case x.kind != sim.Work:
			r.transfer()
		case x.sum != nil:
			r.now.add(x.sum.time(x.sum.fixed + n.all()*x.sum.perBlock))
		case x.each:
			r.now.add(cost.Picoseconds(n[x.chunk]) * x.time)
		default:
			r.now.add(x.time)
		}
	}
}

// further hands what reduces the sums of a segment further to the stream.
func (r *runner) further(s *segment) {
	for _, t := range s.further {
		r.left = r.give(t)
	}
}

// gather hands what a segment gathers to the stream.
func (r *runner) gather(s *segment) {
	r.gathered = nil
	for _, t := range s.gathers {
		r.gathered = r.give(t)
		r.joined = r.gathered
	}
}

// moments lists all that the next steps depend on.
func (r *runner) moments() [6]*moment {
	return [6]*moment{&r.now, &r.stream, &r.gathered, &r.reduced, &r.left, &r.joined}
}

// save copies the moments.
func (r *runner) save(to *[6]moment) {
	for i, m := range r.moments() {
		to[i] = append(to[i][:0], *m...)
	}
}

// growth returns by how much all moments have grown, by mark; nil if they have not grown alike.
func growth(before, after *[6]moment) moment {
	grown := slices.Repeat(moment{-1}, len(after[0]))
	for k := range after {
		if len(before[k]) != len(after[k]) {
			return nil
		}
		for i, t := range after[k] {
			was := before[k][i]
			switch {
			case t < 0 && was < 0:
			case t < 0 || was < 0 || grown[i] >= 0 && grown[i] != t-was:
				return nil
			default:
				grown[i] = t - was
			}
		}
	}
	return grown
}

// grow adds what so many steps add to all moments, which may have memory in common.
func (r *runner) grow(by moment, steps cost.Picoseconds) {
	for _, m := range r.moments() {
		*m = slices.Clone(*m)
		for i, t := range *m {
			if t >= 0 {
				(*m)[i] += steps * by[i]
			}
		}
	}
}

// give hands a bucket to the stream, and returns when it is done.
func (r *runner) give(t cost.Picoseconds) moment {
	if !r.beside { // it takes its time in order, as the ranks share a device
		r.now.add(t)
		t = 0
	}
	r.stream.wait(r.now)
	r.stream.add(t)
	r.now.add(r.slows(t))
	return slices.Clone(r.stream)
}

// transfer ends a span: the next one counts from the end of the transfer, a new mark.
func (r *runner) transfer() {
	r.close()
	next := make(moment, len(r.now)+1)
	for i := range r.now {
		next[i] = -1
	}
	r.now = next
}

// close notes a span. The last mark is where it began.
func (r *runner) close() {
	last := len(r.now) - 1
	r.spans = append(r.spans, span{time: max(0, r.now[last]), since: r.now[:last]})
}

// follow adds an instruction to the flow. x has its time, or for the first of a bucket that of the bucket.
func (f *flow) follow(e extent, in *codegen.Instr, block bool, x item) {
	for len(f.segments[e]) <= in.Segment {
		f.segments[e] = append(f.segments[e], segment{})
	}
	s := &f.segments[e][in.Segment]
	n := in.Node
	switch {
	case in.Delayed && in.Async:
		s.further = append(s.further, x.time)
	case in.Delayed:
		s.sums += x.time
	case in.Async && n.Op == ir.OpAllGather && n.Phase != ir.Update:
		s.gathers = append(s.gathers, x.time)
	case in.Async:
		s.reduces, s.late = append(s.reduces, x.time), append(s.late, in.Last)
		if !in.Last {
			s.each = len(s.reduces)
		}
	default:
		if block {
			s.block, s.chunk = true, x.chunk
		}
		if k := len(s.items) - 1; k >= 0 && x.kind == sim.Work && x.sum == nil {
			if before := &s.items[k]; before.kind == sim.Work && before.sum == nil && before.each == x.each && before.given == x.given && before.chunk == x.chunk {
				before.time += x.time
				return
			}
		}
		s.items = append(s.items, x)
	}
}

// alike makes sure that recomputation to an extent does not change the number of segments.
func (f *flow) alike(e extent) {
	if len(f.segments[e]) != len(f.segments[kept]) {
		panic(fmt.Sprintf("BUG: a body has %d segments, with recomputation %d", len(f.segments[kept]), len(f.segments[e])))
	}
}
