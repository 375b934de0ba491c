package planner

import (
	"reflect"
	"slices"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// Clusters with several kinds of devices ([cost.Pool]). There a position of the pipeline has the
// speed and the memory of the kinds that its ranks lie on, and the order of the pools is part of
// the space. In any case each position has prices of its own ([skeleton.each], price.go), and so
// have the bounds of cuts that follow from them. What remains is here: the limit on memory by
// position, and floors.

// image returns a function that has the same result for degrees whose plans need not be told apart:
// they differ in the order of pools that are equal, or one stage has all devices of the cluster, in
// whatever order.
func (s *searcher) image() func(degrees) degrees {
	pools := s.cluster.Pools
	like := make([]int, len(pools)) // the first pool that is equal
	for i, p := range pools {
		like[i] = slices.IndexFunc(pools, func(q cost.Pool) bool { return reflect.DeepEqual(p, q) })
	}
	var kinds [][]int // by order of the pools
	for _, order := range s.cluster.Orders() {
		in := slices.Clone(like)
		for place, pool := range order {
			in[place] = like[pool]
		}
		kinds = append(kinds, in)
	}
	all := s.opts.RuntimeNGPUs == s.cluster.Devices()
	return func(d degrees) degrees {
		if d.order = slices.IndexFunc(kinds, func(in []int) bool { return slices.Equal(in, kinds[d.order]) }); d.pp == 1 && all {
			d.order = 0
		}
		return d
	}
}

// limitAt returns the bytes that a rank at a position of a plan may take.
func (s *searcher) limitAt(p *partition.Plan, position int) int64 {
	if len(s.cluster.Pools) == 0 {
		return s.limit
	}
	return min(s.limit, s.cluster.MemoryAt(p, position))
}

// lacks returns by how much less memory the devices of each position have than s.limit, which is
// that of the roomiest kind. The bounds of memory treat it as taken. It is nil on one kind of
// device.
func (s *searcher) lacks(p *partition.Plan) []int64 {
	if len(s.cluster.Pools) == 0 {
		return nil
	}
	lacks := make([]int64, p.PP())
	for at := range lacks {
		lacks[at] = s.limit - s.limitAt(p, at)
	}
	return lacks
}

// over returns a position at which a plan needs more memory than there is, -1 if it fits.
func (s *searcher) over(p *partition.Plan, peaks []int64) int {
	for i, peak := range peaks {
		if peak > s.limitAt(p, i) {
			return i
		}
	}
	return -1
}

// on returns the prices of the work at a spot, for every way its groups may lie there.
func (w *work) on(at spot) []*cost.Program {
	switch {
	case at.groups != nil && len(w.prices) > 1:
		return w.onGroups(at.groups)
	case at.kinds == 0:
		return w.prices
	}
	var prices []*cost.Program
	for i, price := range w.prices {
		if w.kinds[i].Within(at.kinds) {
			prices = append(prices, price.OnKinds(at.kinds))
		}
	}
	return prices
}

// onGroups returns the prices of the work with its groups lying in one way.
func (w *work) onGroups(x *spotGroups) []*cost.Program {
	if known := w.spots[x]; known != nil {
		return known
	}
	groups := map[int]cost.Group{}
	for i, name := range spotAxes {
		if axis := w.mesh.Axis(name); axis >= 0 {
			groups[axis] = x[i]
		}
	}
	w.spots[x] = []*cost.Program{w.prices[0].Grouped(groups)}
	return w.spots[x]
}

// everywhere lists the kinds of devices that a position may lie on.
func (w *work) everywhere() []cost.Kinds {
	var all cost.Kinds
	for _, kinds := range w.kinds {
		all |= kinds
	}
	if all == 0 {
		return []cost.Kinds{0}
	}
	var some []cost.Kinds
	for kinds := cost.Kinds(1); kinds != 0 && kinds <= all; kinds++ {
		if kinds.Within(all) && len(w.on(spot{kinds: kinds})) > 0 {
			some = append(some, kinds)
		}
	}
	return some
}

// leastOn bounds the plans of an outline by [searcher.least], or, with flows, by [searcher.flow].
// times returns what a position does for a micro-batch of a size at a place of the ways of the
// outline. If way is nil or says anywhere, that is any place, and positions send nothing.
func (s *searcher) leastOn(o outline, way *ways, size int, schedule partition.Schedule, more *again, flows bool, times func(size, place int, at spot) workTimes) cost.Picoseconds {
	m, last := s.split(o, size)
	p := &s.passage
	*p = passage{outline: o, schedule: schedule, m: m, more: more, enough: p.enough, posts: o.posts()}
	if way != nil && way.at != nil {
		p.sent[whole] = s.sends(o, way, size)
		if p.sent[rest] = p.sent[whole]; last != size {
			p.sent[rest] = s.sends(o, way, last)
		}
	} else {
		if len(s.unsent) < o.pp {
			s.unsent = make([]partTimes, o.pp)
		}
		p.sent = [2][]partTimes{whole: s.unsent, rest: s.unsent}
	}
	if way != nil && o.pp > 1 {
		p.ends = *s.endsOf(o, way, s.lone(m))
	}
	spots := s.spotsOf(o, way, p)
	for place, at := range spots {
		both := [2]workTimes{whole: times(size, place, at)}
		if both[rest] = both[whole]; last != size {
			both[rest] = times(last, place, at)
		}
		if place == 0 {
			p.first, p.last = both[whole], both[rest]
		}
		if len(spots) > 1 {
			p.first.fastest(&both[whole])
			p.last.fastest(&both[rest])
			p.each = append(p.each, both)
		}
	}
	if !flows && len(s.cluster.Pools) == 0 {
		return s.busy(o, m, schedule, s.least(p))
	}
	return s.flow(p)
}

// spotsOf lists where the positions of an outline may lie, and notes in a passage where each does.
func (s *searcher) spotsOf(o outline, way *ways, p *passage) []spot {
	switch {
	case way != nil:
		p.places = way.at
		return way.spots
	case len(s.cluster.Pools) == 0:
		return anySpot
	}
	plan := partition.Plan{
		PlanNGPUs: o.plan, RuntimeNGPUs: s.opts.RuntimeNGPUs, DP: o.dp, CP: o.cp, TP: o.tp,
		Stages: make([]partition.Stage, o.pp), PoolOrder: s.cluster.Orders()[o.order],
	}
	var all []spot
	for at := range o.pp {
		all, p.places = append(all, spot{kinds: s.cluster.KindsAt(&plan, at)}), append(p.places, at)
	}
	return all
}

// fastest takes the smaller of each two times. It does so for each pass by itself, as bounds
// subtract passes from one another.
func (t *workTimes) fastest(u *workTimes) {
	for i := range t {
		a, b := &t[i], &u[i]
		input := min(a.all-a.forward-a.weight, b.all-b.forward-b.weight)
		back := min(a.way-a.forward, b.way-b.forward)
		a.forward, a.weight = min(a.forward, b.forward), min(a.weight, b.weight)
		a.all, a.way = a.forward+input+a.weight, a.forward+back
		a.ahead, a.late, a.moved = max(a.ahead, b.ahead), max(a.late, b.late), max(a.moved, b.moved)
		after := min(a.update-a.closing, b.update-b.closing)
		a.closing = min(a.closing, b.closing)
		a.update, a.gathers, a.once = a.closing+after, min(a.gathers, b.gathers), min(a.once, b.once)
		a.normed, a.after = min(a.normed, b.normed), min(a.after, b.after)
		a.renews = min(a.renews, b.renews)
		a.delays = max(a.delays, b.delays)
		a.regathers, a.reduces = min(a.regathers, b.regathers), min(a.reduces, b.reduces)
	}
}
