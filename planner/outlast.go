package planner

import (
	"slices"

	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// outlasts bounds from below by how much later the stream of a body with n blocks is done
// than what the body does in order, on account of what it hands to its stream between two
// transfers, by how many of those came before: the stream still has all that is handed to
// it from there on, while what is left to do in order is known. What it had before, and
// what waits for it, is left out. It is nil where nothing runs beside the kernels.
//
// Of alike blocks in a row the first or the last leads to the largest.
// The blocks come from the last to the first, or are all alike.
func (f *flow) outlasts(n tally, r recomputation) []cost.Picoseconds {
	if f == nil || !f.beside {
		return nil
	}
	t := &outlast{}
	for i := range f.segments[kept] {
		t.sums = max(t.sums, 2*f.segments[kept][i].sums) // they follow two segments later
	}
	for k := len(f.segments[kept]) - 1; k >= 0; k-- {
		s := &f.segments[kept][k]
		if !s.block {
			t.add(s, n, true, true)
			continue
		}
		of := func(block int) *stretch { return &f.segments[f.extent(r, block)][k] }
		blocks := n[s.chunk]
		t.add(of(0), n, blocks == 1, true)
		for first := 1; first < blocks-1; { // from the end of the body
			next := blocks - 1
			if f.backward {
				next = min(next, r.until(first))
			}
			t.repeat(of(first), next-first)
			first = next
		}
		if blocks > 1 {
			t.add(of(blocks-1), n, true, false)
		}
	}
	t.all = append(t.all, t.most)
	slices.Reverse(t.all)
	return t.all
}

// extent is that of a block which is so many blocks from the end.
func (f *flow) extent(r recomputation, block int) extent {
	if !f.backward {
		return kept
	}
	return r.of(block)
}

// outlast goes through a body from its end.
type outlast struct {
	stream, order cost.Picoseconds // what follows
	sums          cost.Picoseconds
	most          cost.Picoseconds   // since a transfer
	all           []cost.Picoseconds // before later transfers
}

// hand is where a segment hands over what it reduces.
func (t *outlast) hand(s *stretch) {
	for _, time := range s.reduces {
		t.stream += time
	}
	if len(s.reduces) > 0 {
		t.most = max(t.most, t.stream-t.order-t.sums)
	}
}

// add goes through a segment, of a block perhaps one of the ends of a body.
func (t *outlast) add(s *stretch, n tally, first, last bool) {
	t.hand(s)
	t.order += s.sums
	items := s.items
	if s.block {
		items = ofBlock(items, first, last)
	}
	for i := len(items) - 1; i >= 0; i-- {
		x := &items[i]
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
func (t *outlast) repeat(s *stretch, count int) {
	t.hand(s)
	each, reduce := s.sums, cost.Picoseconds(0)
	for _, x := range s.items {
		if x.each {
			each += x.time
		}
	}
	for _, time := range s.reduces {
		reduce += time
	}
	if count > 1 {
		t.stream += cost.Picoseconds(count-2) * reduce
		t.order += cost.Picoseconds(count-1) * each
		t.hand(s)
	}
	t.order += each
}
