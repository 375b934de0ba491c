package planner

import (
	"slices"
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// The axes of a unit may lie over its ranks in other orders than [partition.UsualOrder].
// Programs and their memory are the same in any; what differs is how groups and transfers
// go through the network. Most other orders take tensor-parallel ranks apart, which costs
// so much that the floors of what they share rule them out together: a row of outlines is
// looked at one by one only when something is known that fits, and their floor is below
// its time.

// row of outlines that are in other orders than the usual one and have the same floors.
type reordered struct {
	like     outline // one of them
	outlines []outline
	floors   []sized
}

// borrowed is the level of a floor of the usual order, before its own is known.
const borrowed level = -1

// rankOrders lists the orders beside the first that the search tries of a unit: those that
// differ (see [degrees.differs]), and with data-parallel ranks outermost only where a smaller
// unit, which is the same, cannot be.
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
			all = append(all, strings.Join(order, "-"))
		}
		for i, name := range left {
			extend(append(order[:len(order):len(order)], name), slices.Delete(slices.Clone(left), i, i+1))
		}
	}
	usual := strings.Split(partition.UsualOrder, "-")
	extend(nil, slices.DeleteFunc(usual, func(name string) bool { return sizes[name] == 1 }))
	if len(all) > 0 && partition.RankOrderOf(all[0], sizes) == "" {
		all = all[1:]
	}
	s.permuted[d] = all
	return all
}

// differs reports whether an order of axes is not the same as one before it: whether of no
// two neighbours that are not in the usual order both lie inside the units of each level of
// the network, or both over them, so that exchanging them changes nothing.
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

// rows sorts the other orders of outlines into rows.
func (s *searcher) rows(all []outline) {
	s.reordered = nil
	at := map[family]int{}
	for _, o := range all {
		if s.relieves(o) {
			continue
		}
		for _, o.ranks = range s.rankOrders(o.degrees) {
			key := s.familyOf(o)
			i, known := at[key]
			if !known {
				i = len(s.reordered)
				at[key] = i
				s.reordered = append(s.reordered, &reordered{like: o, floors: s.borrow(o)})
			}
			s.reordered[i].outlines = append(s.reordered[i].outlines, o)
		}
	}
}

// borrow returns floors of an outline to start from: those of the usual order, where groups
// are no faster in another, or nothing.
func (s *searcher) borrow(o outline) []sized {
	usual := o
	usual.ranks = ""
	floors := slices.Clone(s.sizedOf(usual))
	slower := s.slower(o, usual)
	for i := range floors {
		if floors[i].level = borrowed; !slower {
			floors[i].floor = 0
		}
	}
	return floors
}

// reorder adds the rows that may have plans of at most the given time to what is pending,
// and reports whether there are any.
func (s *searcher) reorder(limit cost.Picoseconds) bool {
	var all []outline
	s.reordered = slices.DeleteFunc(s.reordered, func(r *reordered) bool {
		fast := false
		for i := range r.floors {
			x := &r.floors[i]
			if x.level == borrowed && x.floor <= limit {
				x.floor, x.level = s.floor(r.like, s.trunk(r.like), x.size, x.schedule), busyTrunk
			}
			fast = fast || x.floor <= limit
		}
		if fast {
			all = append(all, r.outlines...)
		}
		return fast
	})
	slices.SortStableFunc(all, func(a, b outline) int { return strings.Compare(a.ranks, b.ranks) })
	for _, o := range s.distinct(all) {
		s.pending = append(s.pending, &pending{outline: o, left: slices.Clone(s.sizedOf(o))})
	}
	return len(all) > 0
}

// lies is how groups of tensor and context parallelism may lie in the network.
type lies [2][]cost.Group

// liesKey is what they follow from: their sizes, and how far neighbours are apart.
type liesKey struct{ tp, cp, tpApart, cpApart int }

// liesOf returns how the groups of an outline lie in another order than the usual one,
// the same value for all that lie alike; nil where they lie as in that.
func (s *searcher) liesOf(o outline) *lies {
	if o.ranks == "" {
		return nil
	}
	p := partition.Plan{PlanNGPUs: o.plan, DP: o.dp, CP: o.cp, TP: o.tp, Stages: make([]partition.Stage, o.pp), RankOrder: o.ranks}
	key := liesKey{o.tp, o.cp, p.Apart(partition.AxisTP), p.Apart(partition.AxisCP)}
	if (key.tp == 1 || key.tpApart == 1) && (key.cp == 1 || key.cpApart == key.tp) {
		return nil
	}
	if known := s.lies[key]; known != nil {
		return known
	}
	l := &lies{s.rates.Groups(key.tp, key.tpApart), s.rates.Groups(key.cp, key.cpApart)}
	for _, other := range s.lies {
		if slices.Equal(l[0], other[0]) && slices.Equal(l[1], other[1]) {
			l = other
			break
		}
	}
	s.lies[key] = l
	return l
}

// slower reports whether no group of an outline communicates faster than one that its
// work may have in the usual order.
func (s *searcher) slower(o, usual outline) bool {
	l, w := s.liesOf(o), s.trunk(usual)
	if l == nil || w == nil {
		return false
	}
	for k, name := range []string{partition.AxisTP, partition.AxisCP} {
		axis := w.mesh.Axis(name)
		if axis >= 0 && !slices.ContainsFunc(w.prices, func(price *cost.Program) bool {
			return !slices.ContainsFunc(l[k], func(g cost.Group) bool { return !s.rates.NoFaster(g, price.Group(axis)) })
		}) {
			return false
		}
	}
	return true
}

// work returns work of which only the groups lie otherwise than as usual.
func (l *lies) work(usual *work) *work {
	w := *usual
	w.usual, w.known, w.prices = usual, map[sizeOn]*workTimes{}, nil
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

// asUsual returns the times of work for a micro-batch of a size: as usual, but for what
// is communicated.
func (w *work) asUsual(size, batch int) *workTimes {
	t := *w.usual.at(size, batch, 0)
	mesh := w.meshOf(size, batch)
	for i := range w.instrs {
		if in := &w.instrs[i]; in.Node.Op.Class() == ir.Comm {
			t.add(in, least(w.prices, in, mesh)-least(w.usual.prices, in, mesh))
		}
	}
	return &t
}
