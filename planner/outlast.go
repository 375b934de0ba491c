package planner

import (
	"slices"

	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// This file bounds by how much the communication stream of a body outlasts what the body does in order, in a plan with overlap
// (flow.go). bound.go adds it to the last pass of a stage and tail.go to updates: work in order alone would miss the
// reductions of gradients that come last.

// outlasts bounds from below by how much the stream of a body with n blocks is done later than what the body does in order, once
// for each part of the body between transfers, from what that part hands to the stream. When a segment hands over
// reductions, the stream still has these, all later ones, and later gathers to do, and the work in order that is left is known. What the
// stream had before, and what waits for it, is left out, but for the last sums. The result is nil where nothing runs beside the kernels.
//
// The body is followed from its end. Of alike blocks in a row it is enough to look at the first and the last.
func (f *flow) outlasts(n tally, r recomputation) []cost.Picoseconds {
	if f == nil || !f.beside {
		return nil
	}
	t, waited := &outlast{flow: f}, true
	for i := range f.segments[kept] {
		s := &f.segments[kept][i]
		waited = waited && len(s.further) == 0 && !slices.Contains(s.late, true)
		if times := cost.Picoseconds(1); f.lastly {
			if s.block {
				times = cost.Picoseconds(n[s.chunk])
			}
			t.give(f.handed(s.further), times)
		}
	}
	t.most = t.stream - t.order
	for k := len(f.segments[kept]) - 1; k >= 0; k-- {
		s, before := &f.segments[kept][k], cost.Picoseconds(0)
		if waited && len(s.reduces) > 0 {
			t.after, waited = s.sums, false
		}
		if k > 0 {
			before = f.segments[kept][k-1].sums
		}
		if t.before = before; !s.block {
			t.add(s, n, true, true)
			continue
		}
		of := func(block int) *segment { return &f.segments[f.extent(r, block)][k] }
		blocks := n[s.chunk]
		if blocks > 1 {
			t.before = s.sums
		}
		t.add(of(0), n, blocks == 1, true)
		for first := 1; first < blocks-1; { // in blocks from the end of the body
			next := blocks - 1
			if f.backward {
				next = min(next, r.until(first))
			}
			t.repeat(of(first), next-first)
			first = next
		}
		if blocks > 1 {
			t.before = before
			t.add(of(blocks-1), n, true, false)
		}
	}
	t.all = append(t.all, t.most)
	slices.Reverse(t.all)
	return t.all
}

// extent is that of a block, counted from the end of the body.
func (f *flow) extent(r recomputation, block int) extent {
	if !f.backward {
		return kept
	}
	return r.of(block)
}

// outlast is at a place of a body, followed from its end.
type outlast struct {
	*flow
	stream, order cost.Picoseconds // what the stream and the body in order have to do from there on
	next          handed           // what the segment after this one gathers, which the stream had before
	// before are the sums of the segment before this one, which follow when this one's reductions are handed over. after are
	// those that follow all reductions, where the stream has nothing more.
	before, after cost.Picoseconds
	most          cost.Picoseconds   // the largest difference in this part
	all           []cost.Picoseconds // most of the parts after it, the last part first
}

// handed is what the stream is given at once, and by how much that delays the body.
type handed struct{ stream, slow cost.Picoseconds }

func (t *outlast) give(h handed, times cost.Picoseconds) {
	t.stream += times * h.stream
	t.order += times * h.slow
}

// hand notes the difference at a segment that hands over reductions.
func (t *outlast) hand(s *segment) {
	reduces, gathers := t.hands(s)
	t.give(reduces, 1)
	if len(s.reduces) > 0 {
		t.most = max(t.most, t.stream-t.order-s.sums-t.before+t.after)
	}
	t.give(t.next, 1)
	t.next = gathers
}

// hands is what a segment reduces and gathers, without what is reduced at the end of the body.
func (f *flow) hands(s *segment) (reduces, gathers handed) {
	reduces = f.handed(s.reduces)
	if further := f.handed(s.further); !f.lastly {
		reduces.stream += further.stream
		reduces.slow += further.slow
	}
	return reduces, f.handed(s.gathers)
}

func (f *flow) handed(times []cost.Picoseconds) (h handed) {
	for _, time := range times {
		h.stream += time
		h.slow += f.slows(time)
	}
	return h
}

// add goes through a segment; first and last say whether a block is at an end of the body.
func (t *outlast) add(s *segment, n tally, first, last bool) {
	t.hand(s)
	t.order += s.sums
	of := s
	if s.block {
		of = s.ofBlock(first, last)
	}
	for i := len(of.items) - 1; i >= 0; i-- {
		x := &of.items[i]
		switch {
		case x.sum != nil:
			t.order += x.sum.time(x.sum.fixed + n.all()*x.sum.perBlock)
		case x.each && !s.block:
			t.order += cost.Picoseconds(n[x.chunk]) * x.time
		default:
			t.order += x.time
		}
		if x.kind != sim.Work {
			t.all = append(t.all, t.most)
			t.most = 0
		}
	}
}

// repeat goes through so many inner blocks that are alike.
func (t *outlast) repeat(s *segment, count int) {
	t.hand(s)
	each := s.sums
	for _, x := range s.items {
		if x.each {
			each += x.time
		}
	}
	if count > 1 {
		reduces, gathers := t.hands(s)
		t.give(reduces, cost.Picoseconds(count-2))
		t.give(gathers, cost.Picoseconds(count-2))
		t.order += cost.Picoseconds(count-1) * each
		t.hand(s)
	}
	t.order += each
}

// leads bounds from below how long a body waits for what its first segment gathers, or its first two. Nothing hides that but what
// the first one does, and delays by these gathers and those of the next. What the first one reduces comes on the stream after
// that, so that a body may wait for so long and its stream outlast it (see outlasts).
func (b body) leads() cost.Picoseconds {
	if len(b) == 0 || b[0].flow == nil || !b[0].flow.beside {
		return 0
	}
	f := b[0].flow
	least := f.leads(0)
	if first := &f.segments[kept][0]; !first.block && len(f.segments[kept]) > 1 && !slices.ContainsFunc(first.items, func(x item) bool { return x.kind != sim.Work || x.each || x.sum != nil }) {
		least = max(least, f.leads(1))
	}
	return max(0, least)
}

// leads is [body.leads] of what the segments up to one gather, the least of all extents of recomputation.
func (f *flow) leads(upTo int) cost.Picoseconds {
	least, next := never, cost.Picoseconds(0) // next: the most by which the gathers of one segment delay what runs beside them
	for _, segments := range f.segments {
		if len(segments) <= upTo {
			continue // blocks are not recomputed to this extent
		}
		lead := cost.Picoseconds(0)
		for i := range segments {
			s := &segments[i]
			reduces, gathers := f.hands(s)
			if next = max(next, gathers.slow); i <= upTo {
				lead += gathers.stream - gathers.slow
			}
			if i < upTo {
				lead -= reduces.slow
				for _, x := range s.items {
					lead -= x.time
				}
			}
		}
		least = min(least, lead)
	}
	return least - next
}
