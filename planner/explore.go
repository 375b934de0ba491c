package planner

import (
	"cmp"
	"container/heap"
	"slices"
	"sort"
	"time"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// Best-first branch and bound over outlines. The space is refined from coarse to fine, only where a
// lower bound of the step time (a floor) leaves hope of a plan of interest:
//
//	tract      an outline, wherever in the network its ranks lie        (rankorder.go)
//	pending    an outline in one unit and one order of its ranks
//	sized      a micro-batch size and a schedule of it, with a floor
//	point      a priced pipeline: one sized of a pending outline        (search.go, cut.go)
//	candidate  a plan: a point with its cut and recomputation
//
// Floors have levels: cheap ones come first, and the next level is computed only for those that the
// one before has not ruled out. Floors of tracts and pending outlines need programs of one block at
// most. [searcher.search] calls [searcher.run], which does everything else here.

// pending is an outline some of whose micro-batch sizes and schedules have not been priced.
type pending struct {
	outline
	base          *pending   // unless nil, this outline only spares memory that base needs: see relieve
	points        []*point   // those that have been priced
	parts         []*pending // the same outline with each number of parts, once divided: see [searcher.divide]
	spared        bool       // the outlines that spare memory beside it are pending, too
	way           *ways      // of the outline; nil until its flow is bounded: see [searcher.flowing]
	trunk         *work      // likewise
	lone, several ownWork    // of steps of one micro-batch (see [blueprints.lone]), and of others
	skel          *skeleton  // nil until the first of its points is priced
	first         *floors    // of a tract: the first floors, shared by its family
	left          []sized    // what has not been priced; nil as long as that is all of first
}

// ownWork is what a stage of an outline does, nil until known, and what of that depends on the number of
// data-parallel ranks: see [searcher.refined].
type ownWork struct {
	work   *work
	shared []workTimes // by place of the ways
}

// sized is a micro-batch size and a schedule of an outline with two lower bounds of the time of its
// plans: floor, and free, which would hold even with unlimited memory.
type sized struct {
	size        int
	schedule    partition.Schedule
	free, floor cost.Picoseconds
	level       level
	idle        bool // it would spare memory that is not short: see relieve
}

// level says which effects a floor accounts for. Each level includes those before.
type level uint8

const (
	busyTrunk      level = iota // what the trunk does at a position, in order: see [searcher.floor]
	flowFree                    // and the chains of events through all positions: see [searcher.flowing]
	flowLimited                 // and the recomputation that memory makes necessary
	refinedFree                 // all that the outline's own program of one stage does, not only the trunk: see [searcher.refined]
	refinedLimited              // and the recomputation that memory makes necessary
)

// rest lists the sizes and schedules that have not been priced.
func (p *pending) rest() []sized {
	if p.left == nil {
		return p.first.sizes
	}
	return p.left
}

// floor is the least floor of those, except for idle ones.
func (p *pending) floor() cost.Picoseconds {
	if p.left == nil {
		return p.first.least
	}
	least := never
	for i := range p.left {
		least = min(least, p.left[i].least())
	}
	return least
}

// least is the floor, or never if x is idle.
func (x *sized) least() cost.Picoseconds {
	if x.idle {
		return never
	}
	return x.floor
}

// free lists the rest with floors as they are without a limit on memory.
func (p *pending) free() []sized {
	all := slices.Clone(p.rest())
	for i := range all {
		all[i].floor, all[i].level = all[i].free, busyTrunk
	}
	return all
}

// byFloor orders the most promising outline first.
func byFloor(a, b *pending) int { return cmp.Compare(a.floor(), b.floor()) }

// insertByFloor inserts an outline into a list that is sorted by floor, behind equals.
func insertByFloor(open []*pending, p *pending) []*pending {
	floor := p.floor()
	return slices.Insert(open, sort.Search(len(open), func(i int) bool { return open[i].floor() > floor }), p)
}

// resort moves the first outline, whose floor may have risen, to its place in a list that is sorted
// by floor, ahead of equals. No other floor has changed, as [searcher.raise] works on a copy of the
// floors that outlines share.
func resort(open []*pending) {
	first := open[0]
	floor := first.floor()
	at := sort.Search(len(open)-1, func(i int) bool { return open[1+i].floor() >= floor })
	copy(open, open[1:1+at])
	open[at] = first
}

// openList returns the open list: the pending outlines that may still have plans of interest, sorted
// by floor. It raises their floors first, as far as that needs no program of theirs. With relief it
// lists the outlines that only spare memory, else the others.
//
// It also lets the space grow: tracts that may have plans of interest are opened, and an outline
// that would be promising without a limit on memory is joined by those that spare memory beside it.
func (s *searcher) openList(relief bool) []*pending {
	for i := 0; i < len(s.tracts); i++ { // opening some appends others: see [searcher.openTract]
		if t := s.tracts[i]; !relief && !t.opened && t.least() <= s.found.limit() && s.mayImprove(t, s.limitAnywhere(t)) {
			s.openTract(t)
		}
	}
	var open []*pending
	for _, p := range s.pending { // what is appended meanwhile is listed next time
		if (p.base != nil) != relief || p.floor() > s.found.limit() {
			continue
		}
		limit := s.found.limitOf(p.degrees)
		if p.floor() > limit {
			continue
		}
		s.raise(p, limit, flowLimited)
		if !p.spared && slices.ContainsFunc(p.left, func(x sized) bool { return x.free <= limit }) {
			p.spared = true
			s.pending = append(s.pending, s.sparing(p)...)
		}
		if p.floor() <= limit {
			open = append(open, p)
		}
	}
	slices.SortStableFunc(open, byFloor)
	return open
}

// best is the index of the size and schedule with the least floor.
func (p *pending) best() int {
	at := 0
	for i := range p.left {
		if p.left[i].least() < p.left[at].least() {
			at = i
		}
	}
	return at
}

// expand removes the most promising size and schedule from a pending outline and returns it as a
// point. It returns nil if raising the floors made another outline the more promising one, or if
// nothing is left that may take at most the limit.
func (s *searcher) expand(p *pending, limit cost.Picoseconds) *point {
	floor := p.floor()
	err := s.raise(p, limit, refinedLimited)
	if err == nil && p.floor() > floor {
		return nil
	}
	if err == nil && p.skel == nil {
		if p.skel, err = s.bareSkeleton(p.outline); err == nil {
			p.skel.most = s.opts.recompute(p.replicate).extents()[0] // more is compiled when it is needed: see [cutter.mayFit]
			_, err = p.skel.try(p.left[p.best()].size)
		}
	}
	var first *point
	if err != nil {
		s.refused, s.refusals[p.outline] = err, err
		p.left = p.left[:0]
	} else {
		s.stats.PlansConsidered++
		at := p.best()
		first = &point{degrees: p.degrees, split: p.split, cutter: newCutter(s, p.skel, p.left[at].size, p.left[at].schedule)}
		p.left, p.points = slices.Delete(p.left, at, at+1), append(p.points, first)
	}
	if len(p.left) == 0 {
		s.pending = slices.DeleteFunc(s.pending, func(q *pending) bool { return q == p })
	}
	return first
}

// raise computes further levels of those floors that are at most the limit, until they exceed it or
// have reached a level. From refinedFree on it fails if the outline has no program.
func (s *searcher) raise(p *pending, limit cost.Picoseconds, to level) error {
	defer func() { s.passage.enough = never }()
	if p.left == nil {
		if p.first.least <= limit {
			s.list(p)
		}
		if p.floor() > limit {
			return nil
		}
		p.left = slices.Clone(p.first.sizes)
	}
	for i := range p.left {
		for x := &p.left[i]; x.least() <= limit && x.level < to; {
			if err := s.raiseLevel(p, x, limit); err != nil {
				return err
			}
		}
	}
	return nil
}

// raiseLevel computes the next level of the floor of x. Below refinedFree it stops as soon as the bound
// exceeds the limit; then x stays at its level, unless the bound was complete anyway.
func (s *searcher) raiseLevel(p *pending, x *sized, limit cost.Picoseconds) error {
	next := x.level + 1
	var more *again
	if next == flowLimited || next == refinedLimited {
		more = s.again(p.outline, x.size, x.schedule)
	}
	var bound cost.Picoseconds
	if next < refinedFree {
		s.passage.enough = limit
		bound = s.flowing(p, x.size, x.schedule, more)
	} else {
		s.passage.enough = never // complete, as the certificate tells from the level which bound this is: see [Region.noteLeft]
		var err error
		if bound, err = s.refined(p, x.size, x.schedule, more); err != nil {
			return err
		}
	}
	if x.floor = max(x.floor, bound); more == nil {
		x.free = max(x.free, bound)
	}
	if bound <= limit || !s.passage.short {
		x.level = next
	}
	return nil
}

// run is the main loop. It returns the best plan for each of the best degrees, all the points it
// priced, and whether the first plan is certainly optimal.
//
// The ceiling on the time of interest rises in small steps until enough plans have been found under
// it. Under a low ceiling most pipelines have no cut to look at, so that the search spends no steps on
// pipelines whose bound is far below what their cuts take. And once all under a ceiling has been looked
// at, what was found is the best there is.
func (s *searcher) run() ([]*candidate, []*point, bool) {
	var points []*point
	found := newIncumbents(s.opts.TopK+1, s.image())
	s.found = found
	least := s.leastFloor()
	for found.ceiling = least + least/64; ; found.ceiling += found.ceiling/64 + 1 {
		last := found.ceiling > 4*least
		if last {
			found.ceiling = never - 1
		}
		points = s.exhaust(points)
		if kept := found.ranked(); len(kept) > 0 && s.widens(kept[0].plan) {
			s.widen()
			points = s.exhaust(points)
		}
		if s.certain.IsZero() && s.winnerKnown(points) {
			s.certain = time.Now()
		}
		if last || len(found.ranked()) > s.opts.TopK || len(found.best) == s.numDegrees() {
			break
		}
	}
	optimal := s.prove(points)
	if kept := found.ranked(); len(kept) > 0 && s.widens(kept[0].plan) { // the proof has found another winner
		s.widen()
		points = s.exhaust(points)
		optimal = s.prove(points)
	}
	if s.certain.IsZero() {
		s.certain = time.Now()
	}
	kept := found.ranked()
	return kept[:min(len(kept), s.opts.TopK+1)], points, optimal
}

// numDegrees is how many different degrees the space has.
func (s *searcher) numDegrees() int {
	all := 0
	for _, units := range s.units {
		all += len(units)
	}
	return all
}

// leastFloor is the least of the first floors of all tracts that have programs. It lists only tracts
// whose bound by what is exchanged is below the least so far.
func (s *searcher) leastFloor() cost.Picoseconds {
	least := never
	for _, t := range s.tracts {
		if t.floor() < least {
			s.list(t.pending)
		}
		if floor := t.floor(); floor > 0 { // 0 without programs, see [searcher.floor]
			least = min(least, floor)
		}
	}
	return least
}

// exhaust looks at all that may have plans under the current limits, the most promising first: it
// divides or expands the first outline of the open list, or works on the best point if that has the
// lower bound. It returns the points with those it has added.
func (s *searcher) exhaust(points []*point) []*point {
	found := s.found
	open, unsolved := s.openList(false), s.unsolved(points)
	for done := false; !done; {
		p := s.nextPoint(unsolved)
		switch {
		case len(open) > 0 && open[0].floor() > found.limitOf(open[0].degrees):
			open = open[1:]
		case len(open) > 0 && (p == nil || open[0].floor() <= p.least):
			if q := open[0]; q.pieces == anyPieces {
				open = open[1:]
				for _, part := range s.divide(q, found.limitOf(q.degrees)) {
					open = insertByFloor(open, part)
				}
			} else {
				if p := s.expand(q, found.limitOf(q.degrees)); p != nil {
					heap.Push(unsolved, boundedPoint{p, len(points), p.least})
					points = append(points, p)
				}
				resort(open)
			}
		case p != nil && p.rough:
			p.settle()
		case p != nil:
			s.solvePoint(p)
		default: // nothing is left but other orders of ranks, and what only spares memory
			if len(found.best) > 0 && s.reorder() {
				open = s.openList(false)
			}
			if len(open) == 0 {
				open = s.relieve()
			}
			if len(open) == 0 && s.slice(points) {
				open = s.openList(false)
			}
			done = len(open) == 0
			unsolved = s.unsolved(points) // what has looked for more may have settled some
		}
	}
	return points
}

// boundedPoint is a point with its place in the list of all and its bound.
type boundedPoint struct {
	*point
	at    int
	least cost.Picoseconds
}

// byBound is a heap of points, that with the least bound on top, of equal ones the first.
type byBound []boundedPoint

func (h byBound) Len() int      { return len(h) }
func (h byBound) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h byBound) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].least, h[j].least), cmp.Compare(h[i].at, h[j].at)) < 0
}
func (h *byBound) Push(x any) { *h = append(*h, x.(boundedPoint)) }
func (h *byBound) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// unsolved lists the points of interest for [searcher.nextPoint].
func (s *searcher) unsolved(points []*point) *byBound {
	h := &byBound{}
	for i, p := range points {
		if s.ofInterest(p) {
			*h = append(*h, boundedPoint{p, i, p.least})
		}
	}
	heap.Init(h)
	return h
}

// ofInterest reports whether a point may have a plan of interest that was not searched.
func (s *searcher) ofInterest(p *point) bool {
	limit := s.found.limitOf(p.degrees)
	return !p.solved && p.least <= limit && limit >= p.rest
}

// nextPoint returns the unsolved point with the least bound, nil if none is of interest. What is not is dropped: limits fall
// until the ceiling rises.
func (s *searcher) nextPoint(unsolved *byBound) *point {
	for len(*unsolved) > 0 {
		switch top := &(*unsolved)[0]; {
		case !s.ofInterest(top.point):
			heap.Pop(unsolved)
		case top.point.least != top.least: // it was settled
			top.least = top.point.least
			heap.Fix(unsolved, 0)
		default:
			return top.point
		}
	}
	return nil
}

// solvePoint searches the cuts of a point under the current limit. If that gives up, the point is left
// until the limit has risen above the present ceiling by as much as the point's bound is below it, or
// to the time of the cut that the bounds led to.
func (s *searcher) solvePoint(p *point) {
	limit := s.found.limitOf(p.degrees)
	x, certain := p.solve(limit, quick, quick)
	p.solved, p.unsure, p.rest = x != nil, !certain, limit+1
	if p.unsure {
		p.rest = max(p.rest, min(2*s.found.ceiling-p.least, p.dived))
	}
	s.found.take(p.degrees, x)
}

// winnerKnown reports, after exhaust, whether the best plan under the ceiling is the best there is: one was found, and no search
// of cuts that may have a faster one gave up.
func (s *searcher) winnerKnown(points []*point) bool {
	kept := s.found.ranked()
	return len(kept) > 0 && !slices.ContainsFunc(points, func(p *point) bool { return p.unsure && p.least < kept[0].time })
}

// prove reports whether the best plan is optimal. Where the search of a point's cuts gave up, it is
// repeated with the steps that are left for the proof, but only below the time of the best plan. If
// it gives up again, the gap is noted. The points with the least bounds, which make the gap, come first.
// Before that all of these points climb further than they did.
func (s *searcher) prove(points []*point) bool {
	optimal, steps, bound := true, s.steps, never
	points = slices.DeleteFunc(slices.Clone(points), func(p *point) bool { return !p.unsure })
	slices.SortStableFunc(points, func(p, q *point) int { return cmp.Compare(p.least, q.least) })
	open := func(p *point) (than cost.Picoseconds, ok bool) {
		kept := s.found.ranked()
		if len(kept) == 0 || p.least >= kept[0].time {
			return 0, false
		}
		return kept[0].time - 1, true
	}
	share := steps / max(len(points), 10)
	for _, p := range points { // the faster the best plan is, the less there is to prove
		if ceiling, ok := open(p); ok {
			x, _ := p.solve(ceiling, 0, share)
			s.found.take(p.degrees, x)
		}
	}
	for _, p := range points {
		ceiling, ok := open(p)
		if !ok {
			continue
		}
		x, certain := p.solve(ceiling, steps, 0)
		steps = max(p.budget, 0)
		s.found.take(p.degrees, x)
		if !certain {
			optimal, bound = false, min(bound, p.least)
		}
	}
	if !optimal {
		s.stats.Gap = 1 - float64(bound)/float64(s.found.ranked()[0].time)
	}
	return optimal
}

// floorsOf returns the first floors that an outline (anywhere) shares with its family. Until they
// are listed, only the bound by what is exchanged is known.
func (s *searcher) floorsOf(o outline) *floors {
	key := family{o.degrees, o.chunks, o.sequence, o.overlap, o.zero >= 2, o.split}
	all := s.families[key]
	if all == nil {
		all = &floors{least: s.exchanged(o)}
		s.families[key] = all
	}
	return all
}

// list computes the first floors of a tract, for every micro-batch size and schedule that it may
// have.
func (s *searcher) list(t *pending) {
	if t.first.sizes != nil {
		return
	}
	all, replicas := s.trunkFloors(t.outline), s.replicas(t.outline)
	outOfStep := func(x sized) bool { return !t.inStep(x.size, replicas, s.batch) }
	if slices.ContainsFunc(all, outOfStep) { // otherwise families share them
		all = slices.DeleteFunc(slices.Clone(all), outOfStep)
	}
	t.first.sizes, t.first.least = all, never
	for i := range all {
		t.first.least = min(t.first.least, all[i].floor)
	}
}

// trunkFloors bounds every micro-batch size and schedule by the trunk alone. The result does not
// depend on how data-parallel ranks communicate, so that outlines share it across ZeRO stages and
// overlap.
func (s *searcher) trunkFloors(o outline) []sized {
	o.overlap, o.zero = false, 0
	key := family{degrees: o.degrees, chunks: o.chunks, sequence: o.sequence, split: o.split}
	if all, known := s.busyTrunks[key]; known {
		return all
	}
	trunk, all, exchanged := s.trunk(o), s.unbounded(o), s.exchanged(o)
	for i := range all {
		x := &all[i]
		x.free = max(exchanged, s.floor(o, trunk, x.size, x.schedule))
		x.floor = x.free
	}
	s.busyTrunks[key] = all
	return all
}

// unbounded lists the micro-batch sizes and schedules that an outline may have, without any bound
// yet.
func (s *searcher) unbounded(o outline) []sized {
	schedules, sizes := schedules(s.opts, o.pp, o.chunks), s.sizes(o)
	all := make([]sized, 0, len(sizes)*len(schedules))
	for _, b := range sizes {
		for _, schedule := range schedules {
			all = append(all, sized{size: b, schedule: schedule})
		}
	}
	return all
}

// floors are the first floors of all outlines of a family.
type floors struct {
	sizes []sized // nil until they are listed
	least cost.Picoseconds
}

// family is what the first floors of an outline depend on.
type family struct {
	degrees
	chunks                   int
	sequence, overlap, often bool // often: data-parallel ranks communicate in every micro-batch
	split
}
