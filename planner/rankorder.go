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
// so much that the floors of what they share rule them out together: they are looked at
// only when something is known that fits, and the floors of their family are below its time.

// rankOrder is an order of the axes of a unit beside the usual one.
type rankOrder struct {
	ranks  string // as in [partition.Plan.RankOrder]
	nearer bool   // groups of tensor or context parallelism may communicate faster than in the usual order
}

// rankOrders lists the orders beside the usual one that the search tries of a unit: those that
// differ (see [degrees.differs]), and with data-parallel ranks outermost only where a smaller
// unit, which is the same, cannot be.
func (s *searcher) rankOrders(d degrees) []rankOrder {
	o := s.opts
	if o.RankOrder != "" || o.Policy != AutoDist || len(s.cluster.Pools) > 0 || !s.rates.Hierarchical(o.RuntimeNGPUs) {
		return nil
	}
	d.plan, d.order = 0, 0
	if all, known := s.permuted[d]; known {
		return all
	}
	var all []rankOrder
	sizes, smaller := d.sizes(), o.PlanNGPUs == 0 && o.DP == 0
	var extend func(order, left []string)
	extend = func(order, left []string) {
		if len(left) == 0 && d.differs(order, s.rates) && !(smaller && order[len(order)-1] == partition.AxisDP) {
			if x := partition.RankOrderOf(strings.Join(order, "-"), sizes); x != "" {
				all = append(all, rankOrder{x, s.nearer(outline{degrees: d, ranks: x})})
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

// waiting is outlines of the same degrees and family that wait to be looked at in other
// orders of ranks than the usual one.
type waiting struct {
	ranks    string  // "" for all orders in which no group is nearer than in the usual one: its floors hold there, too
	first    *floors // in that order
	outlines *[]outline
}

// wait lets outlines in the usual order wait for others.
func (s *searcher) wait(all []outline) {
	type group struct {
		first *floors
		degrees
	}
	groups := map[group]*[]outline{}
	s.waiting = nil
	for _, o := range all {
		orders := s.rankOrders(o.degrees)
		if len(orders) == 0 || s.relieves(o) {
			continue
		}
		key := group{s.sizedOf(o), o.degrees}
		of := groups[key]
		if of == nil {
			of = &[]outline{}
			groups[key], s.waiting = of, append(s.waiting, waiting{"", key.first, of})
			for _, x := range orders {
				if o := o; x.nearer {
					o.ranks = x.ranks
					s.waiting = append(s.waiting, waiting{x.ranks, s.sizedOf(o), of})
				}
			}
		}
		*of = append(*of, o)
	}
}

// reorder adds what may have plans of at most the given time in other orders of ranks to
// what is pending, and reports whether there is any. Before something fits it is of no use,
// as plans need the same memory in any order.
func (s *searcher) reorder(limit cost.Picoseconds) bool {
	before := len(s.pending)
	var left []waiting
	for i := 0; i < len(s.waiting); i++ { // those, too, that are added here
		w := s.waiting[i]
		o := (*w.outlines)[0]
		if o.ranks = w.ranks; w.ranks != "" {
			s.raiseAll(&pending{outline: o, first: w.first}, limit)
		}
		switch {
		case w.first.least > limit:
			left = append(left, w)
		case w.ranks == "":
			for _, x := range s.rankOrders(o.degrees) {
				if o.ranks = x.ranks; !x.nearer {
					s.waiting = append(s.waiting, waiting{x.ranks, s.sizedOf(o), w.outlines})
				}
			}
		default:
			for _, o := range *w.outlines {
				if o.ranks = w.ranks; !s.twin(o) {
					s.pending = append(s.pending, &pending{outline: o, first: w.first})
				}
			}
		}
	}
	s.waiting = left
	return len(s.pending) > before
}

// lies is how groups of tensor and context parallelism may lie in the network.
type lies [2][]cost.Group

// liesKey is what they follow from: their sizes, and how far neighbours are apart.
type liesKey struct{ tp, cp, tpApart, cpApart int }

// liesOf returns how the groups of an outline lie in another order than the usual one,
// the same value for all that lie alike; nil where they lie as in that.
func (s *searcher) liesOf(o outline) *lies {
	if o.ranks == "" || o.cp == 1 && o.tp == 1 {
		return nil
	}
	key := liesKey{o.tp, o.cp, 1, 1}
	next := 1
	for left := o.ranks; left != ""; {
		var name string
		switch name, left, _ = strings.Cut(left, "-"); name {
		case partition.AxisTP:
			key.tpApart, next = next, next*o.tp
		case partition.AxisCP:
			key.cpApart, next = next, next*o.cp
		case partition.AxisDP:
			next *= o.dp
		case partition.AxisPP:
			next *= o.pp
		}
	}
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

// nearer reports whether a group of an outline may communicate faster than all that its
// work may have in the usual order.
func (s *searcher) nearer(o outline) bool {
	l := s.liesOf(o)
	o.ranks = ""
	w := s.trunk(o)
	if l == nil || w == nil {
		return l != nil
	}
	for k, name := range []string{partition.AxisTP, partition.AxisCP} {
		axis := w.mesh.Axis(name)
		if axis >= 0 && !slices.ContainsFunc(w.prices, func(price *cost.Program) bool {
			return !slices.ContainsFunc(l[k], func(g cost.Group) bool { return !s.rates.NoFaster(g, price.Group(axis)) })
		}) {
			return true
		}
	}
	return false
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
