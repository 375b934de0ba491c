package planner

import (
	"cmp"
	"container/heap"
	"iter"
	"slices"

	"github.com/autopar/autopar/partition"
)

// sketch is an outline with micro-batches of a size, of which no rank keeps less than the fullest.
type sketch struct {
	*pending
	size     int
	schedule partition.Schedule
	place    [2]int // among outlines, and in its own: of those that keep as much the first comes first
	keeps    int64
	compiled bool // keeps knows what one program of the outline says
}

// sketches is a heap of them.
type sketches []*sketch

func (s sketches) Len() int      { return len(s) }
func (s sketches) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *sketches) Push(x any)   { *s = append(*s, x.(*sketch)) }
func (s sketches) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(s[i].keeps, s[j].keeps), slices.Compare(s[i].place[:], s[j].place[:])) < 0
}
func (s *sketches) Pop() any {
	last := len(*s) - 1
	x := (*s)[last]
	*s = (*s)[:last]
	return x
}

// byKeeps lists what is left of the space that can be compiled, what keeps the least first. It asks for the micro-batches of an
// outline when what that keeps of one is no more than what the next sketch keeps, and for one program when that is due.
func (s *searcher) byKeeps() iter.Seq[*sketch] {
	type due struct {
		*pending
		place int
		keeps int64
	}
	return func(yield func(*sketch) bool) {
		var outlines []due
		for i, p := range append(slices.Clone(s.pending), s.unopened()...) {
			outlines = append(outlines, due{p, i, s.leastKept(p.outline)})
		}
		slices.SortStableFunc(outlines, func(a, b due) int { return cmp.Compare(a.keeps, b.keeps) })
		var open sketches
		for len(outlines)+len(open) > 0 {
			if len(open) == 0 || len(outlines) > 0 && outlines[0].keeps <= open[0].keeps {
				x := outlines[0]
				outlines = outlines[1:]
				sizes := x.left
				if sizes == nil {
					sizes = s.unbounded(x.outline)
				}
				for k, b := range sizes {
					keeps := s.keeps(x.outline, b.size, b.schedule)
					heap.Push(&open, &sketch{pending: x.pending, size: b.size, schedule: b.schedule, place: [2]int{x.place, k}, keeps: keeps})
				}
				continue
			}
			x := heap.Pop(&open).(*sketch)
			switch {
			case x.compiled:
				if !yield(x) {
					return
				}
			case s.sketchable(x):
				x.compiled, x.keeps = true, max(x.keeps, x.skel.lasts(x.size))
				heap.Push(&open, x)
			}
		}
	}
}

// sketchable reports whether the outline of a sketch can be compiled. It begins with nothing recomputed.
func (s *searcher) sketchable(x *sketch) bool {
	if x.skel != nil {
		return true
	}
	if x.skel, s.refused = s.skeleton(x.outline.whole()); s.refused != nil { // parts spare no memory
		return false
	}
	x.skel.most = kept
	return true
}

// lasts bounds from below what the fullest stage needs with micro-batches of a size, whatever is recomputed: what lasts, and what is
// temporary in the update.
func (s *skeleton) lasts(size int) int64 {
	memory := s.memoryOf(size)
	of := func(at, n int) int64 {
		m := &memory[at]
		return m.persist + int64(n-s.plan.Chunks())*m.morePersist + m.update.of(n)
	}
	if s.plan.Chunks() > 1 { // as many blocks at each position
		most := int64(0)
		for at := range memory {
			most = max(most, of(at, s.blocks/len(memory)))
		}
		return most
	}
	bare := &lean{pipeline: &pipeline{skel: s, template: s.plan}, opts: &Options{}}
	_, least := bare.leanestBy(func(stage, n int) (int64, recomputation) { return of(stage, n), recomputation{} })
	return least
}
