package planner

import (
	"maps"
	"slices"

	"github.com/autopar/autopar/planner/cost"
)

// The best plans so far, and the limits on time that follow from them. Besides the winner, the
// search returns the best plan for each of the [Options.TopK] next best degrees; so a plan is of
// interest if it may be the best of its degrees, and those degrees among the best.

// incumbents are the best plans found so far, one for each of some degrees.
type incumbents struct {
	best    map[degrees]*candidate
	image   func(degrees) degrees // see [searcher.image]; of degrees with one image the best plan counts
	wanted  int                   // how many degrees are asked for
	ceiling cost.Picoseconds      // the current limit of the search: see [searcher.run]
	worst   cost.Picoseconds      // time of the last of the wanted plans; never-1 as long as there are fewer
}

func newIncumbents(wanted int, image func(degrees) degrees) *incumbents {
	return &incumbents{best: map[degrees]*candidate{}, image: image, wanted: wanted, ceiling: never - 1, worst: never - 1}
}

// take keeps a plan if it is the best of its degrees. A nil plan is ignored.
func (x *incumbents) take(d degrees, c *candidate) {
	if c == nil || x.best[d] != nil && !c.less(x.best[d]) {
		return
	}
	x.best[d] = c
	if all := x.ranked(); len(all) >= x.wanted {
		x.worst = all[x.wanted-1].time
	}
}

// ranked lists the plans, best first.
func (x *incumbents) ranked() []*candidate {
	apart := map[degrees]*candidate{}
	for d, c := range x.best {
		if d = x.image(d); apart[d] == nil || c.less(apart[d]) {
			apart[d] = c
		}
	}
	all := slices.Collect(maps.Values(apart))
	slices.SortFunc(all, func(a, b *candidate) int {
		if a.less(b) {
			return -1
		}
		return 1
	})
	return all
}

// limit is the longest time of a plan of interest.
func (x *incumbents) limit() cost.Picoseconds { return min(x.ceiling, x.worst) }

// limitOf is that for plans of some degrees: one that is slower than the best of the same degrees
// is no alternative. If the options leave fewer degrees than are wanted, nothing else limits them.
func (x *incumbents) limitOf(d degrees) cost.Picoseconds {
	if mine := x.best[d]; mine != nil {
		return min(x.limit(), mine.time)
	}
	return x.limit()
}

// gainOf is the longest time with which a plan would be faster than the best of its degrees.
func (x *incumbents) gainOf(d degrees) cost.Picoseconds {
	if mine := x.best[d]; mine != nil {
		return min(x.limit(), mine.time-1)
	}
	return x.limit()
}

// gain is the longest time with which a plan would be faster than the best of all.
func (x *incumbents) gain() cost.Picoseconds {
	least := x.limit()
	for _, c := range x.best {
		least = min(least, c.time-1)
	}
	return least
}

// limitAnywhere is the largest limitOf for the degrees that a tract stands for.
func (s *searcher) limitAnywhere(t *tract) (most cost.Picoseconds) {
	for _, d := range s.units[t.degrees] {
		most = max(most, s.found.limitOf(d))
	}
	return most
}
