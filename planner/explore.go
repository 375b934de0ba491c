package planner

import (
	"cmp"
	"slices"
	"sort"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// pending is an outline of which some sizes of micro-batches have not been looked at.
type pending struct {
	outline
	base    *pending                  // unless nil, it only spares memory that this one needs: see relieve
	points  []*point                  // of it that are looked at
	parts   []*pending                // with each number of parts, once it is divided
	sighted bool                      // those that spare memory beside it are pending, too
	way     *ways                     // of the outline, nil until its flow is bounded: see [searcher.flowing]
	trunk   *work                     // the same
	moved   *workTimes                // the same
	work    *work                     // that a stage does, nil until it is known
	shared  map[cost.Kinds]*workTimes // see work
	skel    *skeleton
	first   *floors // of a tract
	left    []sized // nil as long as they are the first
}

// sized is a size of micro-batches and a schedule, under which no plan takes less time
// than floor, nor than free if memory were without limit.
type sized struct {
	size        int
	schedule    partition.Schedule
	free, floor cost.Picoseconds
	level       level
	idle        bool // it spares memory that is not short: see relieve
}

// level says what a floor knows, besides what those before do.
type level uint8

const (
	busyTrunk      level = iota // what the trunk does in order: see [searcher.floor]
	flowFree                    // the way through all positions: see [searcher.flowing]
	flowLimited                 // the recomputation that memory makes necessary
	refinedFree                 // all that the outline does: see [searcher.refined]
	refinedLimited              // with recomputation
)

// rest lists the sizes which are left.
func (p *pending) rest() []sized {
	if p.left == nil {
		return p.first.sizes
	}
	return p.left
}

// floor is that of the sizes which are left, but for idle ones.
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

// least is the floor, never of what is idle.
func (x *sized) least() cost.Picoseconds {
	if x.idle {
		return never
	}
	return x.floor
}

// free lists the sizes which are left with the floors that hold if memory is without limit.
func (p *pending) free() []sized {
	all := slices.Clone(p.rest())
	for i := range all {
		all[i].floor, all[i].level = all[i].free, busyTrunk
	}
	return all
}

// byFloor puts the most promising first.
func byFloor(a, b *pending) int { return cmp.Compare(a.floor(), b.floor()) }

// enlist puts an outline behind those, the most promising first, that are as promising.
func enlist(open []*pending, p *pending) []*pending {
	floor := p.floor()
	return slices.Insert(open, sort.Search(len(open), func(i int) bool { return open[i].floor() > floor }), p)
}

// sink puts the first outline, which may be less promising now, ahead of those that are as promising. Of the others no floor
// has changed: what is raised for a family is its first.
func sink(open []*pending) {
	first := open[0]
	floor := first.floor()
	at := sort.Search(len(open)-1, func(i int) bool { return open[1+i].floor() >= floor })
	copy(open, open[1:1+at])
	open[at] = first
}

// sight lists the pending outlines that may have plans of interest, of
// those that only spare memory or of the others, by all floors that need no program of
// theirs; the most promising first. So are those of tracts that may have some; and what
// would take as little with more memory is joined by what spares that.
func (s *searcher) sight(relief bool) []*pending {
	for i := 0; i < len(s.tracts); i++ { // those of numbers of chunks are appended
		if t := s.tracts[i]; !relief && !t.opened && t.least() <= s.found.limit() && s.survey(t, s.limitAnywhere(t)) {
			s.enter(t)
		}
	}
	var open []*pending
	for _, p := range s.pending { // not those that are appended
		if (p.base != nil) != relief || p.floor() > s.found.limit() {
			continue
		}
		limit := s.found.limitOf(p.degrees)
		if p.floor() > limit {
			continue
		}
		s.raise(p, limit, flowLimited)
		if !p.sighted && slices.ContainsFunc(p.left, func(x sized) bool { return x.free <= limit }) {
			p.sighted = true
			s.pending = append(s.pending, s.sparing(p)...)
		}
		if p.floor() <= limit {
			open = append(open, p)
		}
	}
	slices.SortStableFunc(open, byFloor)
	return open
}

// best is the place of the size with the least floor of those that are left.
func (p *pending) best() int {
	at := 0
	for i := range p.left {
		if p.left[i].least() < p.left[at].least() {
			at = i
		}
	}
	return at
}

// price returns the most promising point of an outline, no longer pending; nil if, by all
// floors, another outline may be more promising, or nothing is left that may take at most
// the given time.
func (s *searcher) price(p *pending, limit cost.Picoseconds) *point {
	floor := p.floor()
	err := s.raise(p, limit, refinedLimited)
	if err == nil && p.floor() > floor {
		return nil
	}
	if err == nil && p.skel == nil {
		if p.skel, err = s.skeleton(p.outline); err == nil {
			p.skel.most = s.opts.recompute(p.replicate).extents()[0] // see [cutter.mayFit]
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

// raise raises the floors that are at most the limit, above it or up to a level. It fails from
// refinedFree on when there is no program.
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
			next := x.level + 1
			var more *again
			if next == flowLimited || next == refinedLimited {
				more = s.again(p.outline, x.size, x.schedule)
			}
			bound, err := cost.Picoseconds(0), error(nil)
			if next >= refinedFree {
				s.passage.enough = never // it says which bound it is, see [Region.leave]
				bound, err = s.refined(p, x.size, x.schedule, more)
			} else {
				s.passage.enough = limit
				bound = s.flowing(p, x.size, x.schedule, more)
			}
			if err != nil {
				return err
			}
			if x.floor = max(x.floor, bound); more == nil {
				x.free = max(x.free, bound)
			}
			if bound <= limit || !s.passage.short {
				x.level = next
			}
		}
	}
	return nil
}

// run returns the best plan of each of the best degrees, all the points it looked
// at, and whether the first plan is certainly the best.
//
// The ceiling on the time rises in small steps until enough has been found under
// it. Below a low ceiling most points have no cut worth a look, so that nothing
// much is spent on those whose bound promises more than they hold; and what is
// found under a ceiling is the best there is.
func (s *searcher) run() ([]*candidate, []*point, bool) {
	var points []*point
	found := newIncumbents(s.opts.TopK + 1)
	s.found = found
	least := never
	for _, t := range s.tracts {
		if t.floor() < least {
			s.list(t.pending)
		}
		if floor := t.floor(); floor > 0 { // where it is 0 there are no programs
			least = min(least, floor)
		}
	}
	every := 0 // how many degrees there are
	for _, units := range s.units {
		every += len(units)
	}
	// next returns the most promising point that is not solved, nil if none is worth it.
	next := func(points []*point) (first *point) {
		for _, p := range points {
			if p.solved || first != nil && p.least >= first.least {
				continue
			}
			if limit := found.limitOf(p.degrees); p.least <= limit && limit >= p.rest {
				first = p
			}
		}
		return first
	}
	for found.ceiling = least + least/64; ; found.ceiling += found.ceiling/64 + 1 {
		last := found.ceiling > 4*least
		if last {
			found.ceiling = never - 1
		}
		open := s.sight(false)
		for done := false; !done; {
			p := next(points)
			switch {
			case len(open) > 0 && open[0].floor() > found.limitOf(open[0].degrees):
				open = open[1:]
			case len(open) > 0 && (p == nil || open[0].floor() <= p.least):
				if q := open[0]; q.pieces == anyPieces {
					open = open[1:]
					for _, part := range s.divide(q, found.limitOf(q.degrees)) {
						open = enlist(open, part)
					}
				} else {
					if p := s.price(q, found.limitOf(q.degrees)); p != nil {
						points = append(points, p)
					}
					sink(open)
				}
			case p != nil && p.rough:
				p.settle()
			case p != nil:
				limit := found.limitOf(p.degrees)
				x, certain := p.solve(limit, quick)
				p.solved, p.unsure, p.rest = x != nil, !certain, limit+1
				if p.unsure {
					p.rest = max(p.rest, min(2*found.ceiling-p.least, p.dived))
				}
				found.take(p.degrees, x)
			default: // until nothing relieves what was found, nor is in another order
				if len(found.best) > 0 && s.reorder() {
					open = s.sight(false)
				}
				if len(open) == 0 {
					open = s.relieve()
				}
				if len(open) == 0 && s.slice(points) {
					open = s.sight(false)
				}
				done = len(open) == 0
			}
		}
		if last || len(found.best) > s.opts.TopK || len(found.best) == every {
			break
		}
	}
	// Where the search gave up, look again below the winner only.
	optimal, steps, bound := true, s.steps, never
	for _, p := range points {
		kept := found.ranked()
		if len(kept) == 0 || !p.unsure || p.least >= kept[0].time {
			continue
		}
		x, certain := p.solve(kept[0].time-1, steps)
		steps = max(p.budget, 0)
		found.take(p.degrees, x)
		if !certain {
			optimal, bound = false, min(bound, p.least)
		}
	}
	if kept := found.ranked(); !optimal {
		s.stats.Gap = 1 - float64(bound)/float64(kept[0].time)
	}
	kept := found.ranked()
	return kept[:min(len(kept), s.opts.TopK+1)], points, optimal
}
