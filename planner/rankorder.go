package planner

import (
	"cmp"
	"slices"
	"strings"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// Where the ranks of an outline lie in the network follows from the size of a unit and from the
// order of its axes over its ranks: [partition.UsualOrder] or another. Programs and their memory
// are the same wherever they lie; only the ways of groups and transfers through the network differ.
// So an outline is bounded first as if every axis had the best place by itself ("anywhere", a
// [tract]), and only if that leaves hope is it looked at place by place. explore.go bounds tracts
// first, and opens them.

// anywhere, as the order of ranks of an outline, stands for all units and orders. The unit of such
// an outline is the whole run.
const anywhere = "anywhere"

// anywhere returns the outline anywhere. On a cluster of several kinds of devices outlines stay
// where they are, as the unit says which positions lie on which kind.
func (s *searcher) anywhere(o outline) outline {
	if len(s.cluster.Pools) == 0 {
		o.plan, o.dp, o.ranks = s.opts.RuntimeNGPUs, s.replicas(o), anywhere
	}
	return o
}

// tract is an outline anywhere, with one number of chunks or any, and what is known of its places.
type tract struct {
	*pending
	spares []*pending // the outlines that spare memory beside it, if the limit on memory slows it down
	// opened: its places in the usual order of ranks are pending, or, if it stands for any number
	// of chunks, the tracts of each number have been added. reordered: its places in other orders
	// are pending, too.
	opened, reordered bool
}

// least is the least floor of the tract and of what spares memory beside it.
func (t *tract) least() cost.Picoseconds {
	least := t.floor()
	for _, p := range t.spares {
		least = min(least, p.floor())
	}
	return least
}

// tractsOf lists the outlines of some degrees, as tracts.
func (s *searcher) tractsOf(all []degrees) []*tract {
	var list []*tract
	s.units = map[degrees][]degrees{}
	for _, d := range all {
		key := s.anywhere(outline{degrees: d}).degrees
		if s.units[key] = append(s.units[key], d); len(s.units[key]) > 1 {
			continue
		}
		for o := range outlines(s.opts, d, s.chunkCounts(d.pp), s.batched(d), s.cluster) {
			if s.relieves(o) {
				continue
			}
			if s.opts.TPRows < 2 || o.batch {
				list = append(list, s.tract(s.anywhere(o)))
			}
			for _, o.split = range s.splits(o) {
				list = append(list, s.tract(s.anywhere(o)))
			}
		}
	}
	return list
}

func (s *searcher) tract(o outline) *tract {
	o.pieces = s.pieces(o)
	return &tract{pending: &pending{outline: o, first: s.floorsOf(o)}}
}

// openTract adds the places of a tract in the usual order of ranks to what is pending; if the tract
// stands for any number of chunks, it adds a tract for each number instead.
func (s *searcher) openTract(t *tract) {
	t.opened = true
	if t.chunks != anyChunks {
		s.place(t, false)
		return
	}
	t.reordered = true
	for _, o := range s.counted(t.outline) {
		s.tracts = append(s.tracts, s.tract(o))
	}
}

// mayImprove raises those floors of a tract that are at most the limit. It reports whether the
// tract, or what spares memory beside it, may have plans that take at most that time.
func (s *searcher) mayImprove(t *tract, limit cost.Picoseconds) bool {
	if t.floor() <= limit {
		if s.raise(t.pending, limit, flowLimited); t.spares == nil && slices.ContainsFunc(t.rest(), func(x sized) bool { return x.held(limit) }) {
			t.spares = s.sparing(t.pending)
		}
	}
	for _, p := range t.spares {
		s.raise(p, limit, flowLimited)
	}
	return t.least() <= limit
}

// place adds a tract to what is pending in all of its units, either with their ranks in the usual
// order (or that of the options), or in all other orders.
func (s *searcher) place(t *tract, reorder bool) {
	places := s.places(t.outline)
	if reorder {
		var others []outline
		for _, o := range places {
			others = append(others, s.otherOrders(o)...)
		}
		places = others
	}
	slices.SortStableFunc(places, func(a, b outline) int { return cmp.Compare(a.ranks, b.ranks) }) // as comparePlans does
	for _, o := range places {
		if !s.twin(o) {
			s.pending = append(s.pending, &pending{outline: o, left: t.free()})
		}
	}
}

// reorder makes tracts that may have plans of interest pending in other orders of ranks, and
// reports whether it added any. It is called only once something fits: plans need the same memory
// in any order.
func (s *searcher) reorder() bool {
	before := len(s.pending)
	for _, t := range s.tracts {
		if t.opened && !t.reordered && t.least() <= s.limitAnywhere(t) {
			t.reordered = true
			s.place(t, true)
		}
	}
	return len(s.pending) > before
}

// unopened lists the outlines of tracts that were never opened, and of what spares memory beside
// them, each at the first of its places.
func (s *searcher) unopened() []*pending {
	var all []*pending
	for _, t := range s.tracts {
		if t.opened {
			continue
		}
		for _, p := range append([]*pending{t.pending}, s.sparing(t.pending)...) {
			for _, o := range s.counted(p.outline) {
				all = append(all, &pending{outline: s.places(o)[0]})
			}
		}
	}
	return all
}

// ranks is the order of ranks in which a unit is looked at first.
func (o Options) ranks(d degrees) string {
	if o.RankOrder == "" {
		return ""
	}
	return partition.RankOrderOf(o.RankOrder, d.sizes())
}

// places lists an outline anywhere in each of its units, with ranks in the usual order or that of
// the options.
func (s *searcher) places(o outline) []outline {
	units := s.units[o.degrees]
	all := make([]outline, 0, len(units))
	for _, o.degrees = range units {
		o.ranks = s.opts.ranks(o.degrees)
		all = append(all, o)
	}
	return all
}

// otherOrders lists an outline in the other orders of its ranks that are searched.
func (s *searcher) otherOrders(o outline) []outline {
	if o.split != (split{replicate: s.opts.replicate()}) {
		return nil // these are searched in the usual order only
	}
	orders := s.rankOrders(o.degrees)
	all := make([]outline, 0, len(orders))
	for _, o.ranks = range orders {
		all = append(all, o)
	}
	return all
}

// rankOrders lists the orders besides the usual one that the search tries for a unit: those that
// differ (see [degrees.differs]). Data-parallel ranks are outermost only if a smaller unit is not
// allowed, which would be the same.
func (s *searcher) rankOrders(d degrees) []string {
	o := s.opts
	if o.RankOrder != "" || o.Policy != AutoDist || len(s.cluster.Pools) > 0 || !s.rates.Hierarchical(o.RuntimeNGPUs) {
		return nil
	}
	d.plan, d.order = 0, 0
	if all, known := s.permuted[d]; known {
		return all
	}
	var all []string
	sizes, smaller := d.sizes(), o.PlanNGPUs == 0 && o.DP == 0
	var extend func(order, left []string)
	extend = func(order, left []string) {
		if len(left) == 0 && d.differs(order, s.rates) && !(smaller && order[len(order)-1] == partition.AxisDP) {
			if x := partition.RankOrderOf(strings.Join(order, "-"), sizes); x != "" {
				all = append(all, x)
			}
		}
		for i, name := range left {
			extend(append(order[:len(order):len(order)], name), slices.Delete(slices.Clone(left), i, i+1))
		}
	}
	usual := strings.Split(partition.UsualOrder, "-")
	extend(nil, slices.DeleteFunc(usual, func(name string) bool { return sizes[name] == 1 }))
	s.permuted[d] = all
	return all
}

// differs reports whether an order of axes is not equivalent to one that comes before it.
// Exchanging two neighbouring axes changes nothing if no unit of any level of the network divides
// their ranks: if both lie inside a unit, or both lie over whole units. So of equivalent orders
// only the one in which all such neighbours are in the usual order differs.
func (d degrees) differs(order []string, m *cost.Model) bool {
	sizes, apart := d.sizes(), 1
	for i, name := range order[:max(len(order), 1)-1] {
		next := order[i+1]
		if strings.Index(partition.UsualOrder, name) > strings.Index(partition.UsualOrder, next) && !m.Divides(apart, sizes[name]*sizes[next]) {
			return false
		}
		apart *= sizes[name]
	}
	return len(order) > 0
}

// sizes are those of the axes of a unit, by name.
func (d degrees) sizes() map[string]int {
	return map[string]int{partition.AxisTP: d.tp, partition.AxisCP: d.cp, partition.AxisDP: d.dp, partition.AxisPP: d.pp}
}

// groupPlaces is where the groups of tensor and of context parallelism may lie in the network.
type groupPlaces [2][]cost.Group

// groupPlacesKey is what that depends on: the sizes of both and the distance between neighbours, 0 for
// anywhere.
type groupPlacesKey struct{ tp, cp, tpApart, cpApart int }

// groupPlacesOf returns where the groups of an outline lie, the same value for all that lie alike. It is
// nil if they lie as in the usual order of ranks, or, anywhere, if no order lets them communicate
// faster. Groups of a grid always lie as in the usual order.
func (s *searcher) groupPlacesOf(o outline) *groupPlaces {
	switch {
	case o.ranks == "" || o.cp == 1 && o.tp == 1 || o.rows > 0:
		return nil
	case o.ranks == anywhere:
		return s.groupPlacesAnywhere(o)
	}
	apart := partition.StridesOf(o.ranks, o.tp, o.cp, o.dp, o.pp)
	if (o.tp == 1 || apart.TP == 1) && (o.cp == 1 || apart.CP == o.tp) {
		return nil
	}
	key := groupPlacesKey{o.tp, o.cp, apart.TP, apart.CP}
	if known := s.groupPlaces[key]; known != nil {
		return known
	}
	l := &groupPlaces{s.rates.Groups(key.tp, key.tpApart), s.rates.Groups(key.cp, key.cpApart)}
	for _, other := range s.groupPlaces {
		if other != nil && slices.Equal(l[0], other[0]) && slices.Equal(l[1], other[1]) {
			l = other
			break
		}
	}
	s.groupPlaces[key] = l
	return l
}

// groupPlacesAnywhere returns the groups of tensor and context parallelism of an outline anywhere:
// those in the usual order of ranks, the slowest of which is waited for, and those in other orders that
// may communicate faster. It is nil if none may.
func (s *searcher) groupPlacesAnywhere(o outline) *groupPlaces {
	key := groupPlacesKey{tp: o.tp, cp: o.cp}
	l, known := s.groupPlaces[key]
	if known {
		return l
	}
	o.ranks = ""
	trunk, nearer := s.trunk(o), false
	if trunk == nil {
		return nil
	}
	l = &groupPlaces{}
	for k, name := range []string{partition.AxisTP, partition.AxisCP} {
		axis := trunk.mesh.Axis(name)
		if axis < 0 {
			continue
		}
		size := trunk.mesh.Axes[axis].Size
		for _, price := range trunk.prices {
			l[k] = append(l[k], price.Group(axis))
		}
		for _, apart := range divisors(s.opts.RuntimeNGPUs / size) {
			for _, g := range s.rates.Groups(size, apart) {
				if !slices.ContainsFunc(l[k], func(than cost.Group) bool { return s.rates.NoFaster(g, than) }) {
					l[k], nearer = append(l[k], g), true
				}
			}
		}
	}
	if !nearer {
		l = nil
	}
	s.groupPlaces[key] = l
	return l
}

// work returns the work of the usual order with its groups lying elsewhere.
func (l *groupPlaces) work(usual *work) *work {
	w := *usual
	w.known, w.parted, w.prices, w.exchange = map[sizeOn]*workTimes{}, map[sizeOn]*workTimes{}, nil, -1
	w.spots = map[*spotGroups][]*cost.Program{}
	w.recomputed, w.passes = map[recomputeKey]*recomputeTimes{}, [extents]*work{}
	for i := range max(len(l[0]), len(l[1])) {
		groups := map[int]cost.Group{}
		for k, name := range []string{partition.AxisTP, partition.AxisCP} {
			if axis := w.mesh.Axis(name); axis >= 0 {
				groups[axis] = l[k][min(i, len(l[k])-1)]
			}
		}
		w.prices = append(w.prices, usual.prices[0].Grouped(groups))
	}
	return &w
}
