package planner

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// flow is a body of a plan with overlap: segments, of which those of a block are
// there as often as the stage has blocks, and the order in which codegen hands
// their communication to the stream. With it the time of a body is no sum any
// more, but it is a max-plus expression of the times at which the stream was done with
// what it had, the body began and its transfers ended, in which any number of blocks
// costs a handful of additions each (Baccelli et al. 1992, section 1.2).
type flow struct {
	// segments of the skeleton by how much of the block is recomputed.
	segments [extents][]stretch
	beside   bool // communication runs beside the kernels; otherwise it takes their time
	backward bool // blocks come from the last to the first
	joins    bool // it begins when the stream is done with what it had
	known    map[flowKey]flowTimes
}

type flowKey struct {
	blocks tally
	recomputation
}

// flowTimes is what a flow takes.
type flowTimes struct {
	spans  []span
	leaves []cost.Picoseconds // see [sim.Op]
}

// tally is how many blocks a body has, of an update those of each chunk that the
// blueprint has.
type tally [fewChunks]int

func (t tally) all() int {
	sum := 0
	for _, n := range t {
		sum += n
	}
	return sum
}

// stretch is one segment: see codegen's overlap.
type stretch struct {
	block            bool
	chunk            int                // see [tally]
	gathers, reduces []cost.Picoseconds // buckets
	late             []bool             // of reductions: the end of the body does not wait for them
	// each is how many of the reductions the accumulations wait for.
	each  int
	sums  cost.Picoseconds // accumulations
	items []item
}

// item is work of a segment, or a transfer.
type item struct {
	kind sim.OpKind
	time cost.Picoseconds
	each bool // once for every block of the stage, though outside them
	// given is made for blocks out of nothing that they make: the first of them has it, wherever it stands.
	given bool
	// chunk is that of those blocks.
	chunk int
	sum   *sum // an add_n over blocks instead
}

// span is the time of a part of a body: what it takes from the end of the last
// transfer on, or the start, and at least since the marks before that.
type span struct {
	time  cost.Picoseconds
	since []cost.Picoseconds
}

// streams reports whether the stream has anything to do.
func (f *flow) streams() bool {
	return f != nil && slices.ContainsFunc(f.segments[kept], func(s stretch) bool { return len(s.gathers)+len(s.reduces) > 0 })
}

// at returns the times of the body with n blocks, r of them recomputed.
func (f *flow) at(n tally, r recomputation) flowTimes {
	key := flowKey{n, r}
	if s, ok := f.known[key]; ok {
		return s
	}
	s := f.run(f.expand(n, r), n)
	f.known[key] = s
	return s
}

// expand lists the segments of a body with n blocks.
func (f *flow) expand(blocks tally, r recomputation) []stretch {
	var all []stretch
	for k, s := range f.segments[kept] {
		if !s.block {
			all = append(all, s)
			continue
		}
		n := blocks[s.chunk]
		for i := range n {
			s := s
			if f.backward {
				s = f.segments[r.of(n-1-i)][k]
			}
			s.items = ofBlock(s.items, i == 0, i == n-1)
			all = append(all, s)
		}
	}
	return all
}

// ofBlock returns the items of one of the blocks. The first block receives, and
// sends what is there before it does anything; the last sends what it has made.
// Communication outside of blocks stands in the segment of a block where that
// computes next: in the first before it has done anything of its own, in the last
// after that, but for what is given to the first.
func ofBlock(items []item, first, last bool) []item {
	var rest []item
	own := false
	for _, x := range items {
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
		rest = append(rest, x)
	}
	return rest
}

// moment is a time as the latest of the marks of a body, each with some time
// added; negative where a mark does not matter.
type moment []cost.Picoseconds

func (m moment) plus(t cost.Picoseconds) moment {
	next := make(moment, len(m))
	for i, x := range m {
		next[i] = x
		if x >= 0 {
			next[i] += t
		}
	}
	return next
}

func later(a, b moment) moment {
	if len(a) < len(b) {
		a, b = b, a
	}
	next := append(moment(nil), a...)
	for i, x := range b {
		next[i] = max(next[i], x)
	}
	return next
}

// runner follows the two streams of a body.
type runner struct {
	beside      bool // else the work of a bucket is done in order, and only then is it met for
	now, stream moment
	spans       []span
}

// run goes through the segments of a body with n blocks as codegen orders them.
func (f *flow) run(segments []stretch, n tally) flowTimes {
	r := &runner{beside: f.beside, now: moment{-1, 0}, stream: moment{0, -1}}
	if f.joins {
		r.now = later(r.now, r.stream)
	}
	var left, joined moment // what is late, and what else the stream does
	gathered := make([]moment, len(segments))
	reduced := make([]moment, len(segments))
	at := func(k int) *stretch {
		if k < 0 || k >= len(segments) {
			return &stretch{}
		}
		return &segments[k]
	}
	gather := func(k int) {
		for _, t := range at(k).gathers {
			gathered[k] = r.give(t)
			joined = gathered[k]
		}
	}
	gather(0)
	for k := range len(segments) + 2 {
		for i, t := range at(k - 1).reduces {
			done := r.give(t)
			if i < at(k-1).each {
				reduced[k-1] = done
			}
			if at(k - 1).late[i] {
				left = done
			} else {
				joined = done
			}
		}
		gather(k + 1)
		if s := at(k - 2); s.sums > 0 {
			r.now = later(r.now, reduced[k-2]).plus(s.sums)
		}
		if len(at(k).gathers) > 0 {
			r.now = later(r.now, gathered[k])
		}
		for _, x := range at(k).items {
			switch {
			case x.kind != sim.Work:
				r.transfer()
			case x.sum != nil:
				r.now = r.now.plus(x.sum.time(x.sum.fixed + n.all()*x.sum.perBlock))
			case x.each:
				r.now = r.now.plus(cost.Picoseconds(n[x.chunk]) * x.time)
			default:
				r.now = r.now.plus(x.time)
			}
		}
	}
	r.now = later(r.now, joined)
	r.close()
	return flowTimes{r.spans, left}
}

// give hands a bucket to the stream, and returns when it is done.
func (r *runner) give(t cost.Picoseconds) moment {
	if !r.beside {
		r.now, t = r.now.plus(t), 0
	}
	r.stream = later(r.stream, r.now).plus(t)
	return r.stream
}

// transfer ends a part: what comes after starts from the end of the transfer.
func (r *runner) transfer() {
	r.close()
	next := make(moment, len(r.now)+1)
	for i := range r.now {
		next[i] = -1
	}
	r.now = next
}

// close notes the time of a part. The last mark is where it began.
func (r *runner) close() {
	last := len(r.now) - 1
	r.spans = append(r.spans, span{time: max(0, r.now[last]), since: r.now[:last]})
}

// follow adds an instruction to the flow, with its time or, for the first of a
// bucket, that of the bucket.
func (f *flow) follow(e extent, in *codegen.Instr, block bool, async map[*ir.Node]bool, x item) {
	for len(f.segments[e]) <= in.Segment {
		f.segments[e] = append(f.segments[e], stretch{})
	}
	s := &f.segments[e][in.Segment]
	n := in.Node
	switch {
	case in.Async && n.Op == ir.OpAllGather && n.Phase != ir.Update:
		s.gathers = append(s.gathers, x.time)
	case in.Async:
		s.reduces, s.late = append(s.reduces, x.time), append(s.late, in.Last)
		if !in.Last {
			s.each = len(s.reduces)
		}
	case n.Op == ir.OpAccumulate && async[n.Args[0].Def]:
		s.sums += x.time
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

// alike makes sure that recomputation to an extent leaves the segments what they are.
func (f *flow) alike(e extent) {
	if len(f.segments[e]) != len(f.segments[kept]) {
		panic(fmt.Sprintf("BUG: a body has %d segments, with recomputation %d", len(f.segments[kept]), len(f.segments[e])))
	}
}
