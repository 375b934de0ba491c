package planner

import (
	"slices"

	"github.com/autopar/autopar/planner/cost"
)

// incumbents are the best plans found so far, one for each of some degrees, and say under which
// time others are of interest.
type incumbents struct {
	best    map[degrees]*candidate
	wanted  int              // how many of the best degrees are asked for
	ceiling cost.Picoseconds // of what is looked at for now: see [searcher.run]
	worst   cost.Picoseconds // of those that are wanted; never-1 as long as there are fewer
}

func newIncumbents(wanted int) *incumbents {
	return &incumbents{best: map[degrees]*candidate{}, wanted: wanted, ceiling: never - 1, worst: never - 1}
}

// take keeps a plan of some degrees if it is the best of them; nil is none.
func (x *incumbents) take(d degrees, c *candidate) {
	if c == nil || x.best[d] != nil && !c.less(x.best[d]) {
		return
	}
	x.best[d] = c
	if all := x.ranked(); len(all) >= x.wanted {
		x.worst = all[x.wanted-1].time
	}
}

// ranked lists them, best first.
func (x *incumbents) ranked() []*candidate {
	all := make([]*candidate, 0, len(x.best))
	for _, c := range x.best {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *candidate) int {
		if a.less(b) {
			return -1
		}
		return 1
	})
	return all
}

// limit is the most time of plans of interest.
func (x *incumbents) limit() cost.Picoseconds { return min(x.ceiling, x.worst) }

// limitOf is that of plans of some degrees: slower ones than the best of the same degrees are
// no alternatives. Where the options leave fewer degrees than are wanted, nothing else limits them.
func (x *incumbents) limitOf(d degrees) cost.Picoseconds {
	if mine := x.best[d]; mine != nil {
		return min(x.limit(), mine.time)
	}
	return x.limit()
}

// gainOf is the most time of plans of some degrees that take less than the best of them.
func (x *incumbents) gainOf(d degrees) cost.Picoseconds {
	if mine := x.best[d]; mine != nil {
		return min(x.limit(), mine.time-1)
	}
	return x.limit()
}

// gain is the most time of plans that take less than the best of all.
func (x *incumbents) gain() cost.Picoseconds {
	least := x.limit()
	for _, c := range x.best {
		least = min(least, c.time-1)
	}
	return least
}

// limitAnywhere is that of plans of a tract, in any of its units.
func (s *searcher) limitAnywhere(t *tract) (most cost.Picoseconds) {
	for _, d := range s.units[t.degrees] {
		most = max(most, s.found.limitOf(d))
	}
	return most
}
