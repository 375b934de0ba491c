package planner

import (
	"cmp"
	"container/heap"
	"iter"
	"slices"

	"github.com/autopar/autopar/partition"
)

// This file lists outlines in order of a lower bound of the peak memory of their fullest rank, for infeasible (leanest.go). It
// tightens the bound of an outline only when it is the least: from that with one micro-batch in flight (leastKept) to that of
// each micro-batch size and schedule (keeps), and then to one with a compiled program (lasts).

// sketch is an outline with a micro-batch size and a schedule. Its fullest rank needs at least keeps bytes.
type sketch struct {
	*pending
	size     int
	schedule partition.Schedule
	place    [2]int // of the outline, and in it, to order sketches with equal bounds
	keeps    int64
	compiled bool // keeps counts the bound of a compiled program (lasts)
}

// sketches is a heap of sketches, by keeps.
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

// byKeeps lists what is left of the space and can be compiled, in order of keeps. It asks for the micro-batches of an outline,
// and for a program, only when their bound so far is the least.
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

// sketchable reports whether the outline of a sketch can be compiled. That begins with nothing recomputed.
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

// lasts bounds from below the largest stage with micro-batches of a size, whatever is recomputed, by what is persistent and what
// is temporary in the update.
func (s *skeleton) lasts(size int) int64 {
	memory := s.memoryOf(size)
	of := func(at, n int) int64 {
		m := &memory[at]
		return m.persist + int64(n-s.plan.Chunks())*m.morePersist + m.update.of(n)
	}
	if s.plan.Chunks() > 1 { // every position has as many blocks
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
