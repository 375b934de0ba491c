package planner

import (
	"cmp"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// How the communication of an outline goes through the network. That depends on its degrees, unit,
// order of ranks, ZeRO groups and grid ([waysKey]), but not on its programs. Two things follow. Outlines
// that differ only in unit and order need to be looked at once if everything goes the same ways
// (twin). And data-parallel collectives and host copies can be bounded without a program (collective
// and hostCopy, for relax.go). Where ranks may lie is in rankorder.go.

// waysKey is what the ways of an outline depend on.
type waysKey struct {
	degrees
	group, rows int
	ranks       string
}

func waysKeyOf(o outline) waysKey { return waysKey{o.degrees, o.group, o.rows, o.ranks} }

// ways says how all communication of an outline goes through the network, and prices it.
type ways struct {
	text      string                // equal for outlines whose communication goes alike
	prices    []*cost.Program       // one for each position whose groups lie differently
	at        []int                 // by position: the index of its prices; nil anywhere
	places    []*ways               // by that index: the ways as they are there; anywhere, the ways themselves
	spots     []spot                // where the places are
	dp, rep   int                   // the mesh axes of those groups, and of the ranks that have equal shares
	anywhere  int                   // their size, if they may lie anywhere; else 0
	plan      *partition.Plan       // one that communicates so; nil anywhere
	transfers map[int]*cost.Program // what prices its transfers, by chunks per rank

	moved map[movedKey]*workTimes // see [searcher.moved]
	ends  map[endsKey]*ends       // see [searcher.endsOf]
	sent  map[sendKey][]partTimes // see [searcher.sends]
}

// movedKey is what moved depends on besides the ways.
type movedKey struct {
	sharding
	lone bool // see [blueprints.lone]
}

// twin reports whether an outline costs exactly what an earlier one costs. Outlines that differ
// only in the size of the unit or the order of its ranks run the same programs; if all their groups
// and transfers also take the same ways through the network, every plan takes the same time and
// memory.
func (s *searcher) twin(o outline) bool {
	key := waysKeyOf(o)
	twin, known := s.isTwin[key]
	if !known {
		ways, unit := s.waysOf(o).text, key
		unit.plan, unit.dp, unit.ranks = 0, s.replicas(o), ""
		twin = slices.Contains(s.seen[unit], ways)
		s.seen[unit], s.isTwin[key] = append(s.seen[unit], ways), twin
	}
	return twin
}

// replicas is how many data-parallel ranks the whole run has.
func (s *searcher) replicas(o outline) int { return o.dp * (s.opts.RuntimeNGPUs / o.plan) }

// waysOf returns the ways of an outline.
func (s *searcher) waysOf(o outline) *ways {
	key := waysKeyOf(o)
	w, known := s.orders[key]
	if known {
		return w
	}
	if o.ranks == anywhere {
		w = &ways{prices: s.trunk(o).prices, anywhere: cmp.Or(o.group, s.replicas(o)), moved: map[movedKey]*workTimes{}, ends: map[endsKey]*ends{}}
		w.places, w.spots = []*ways{w}, anySpot
		s.orders[key] = w
		return w
	}
	p := &partition.Plan{
		PlanNGPUs: o.plan, RuntimeNGPUs: s.opts.RuntimeNGPUs, DP: o.dp, CP: o.cp, TP: o.tp, TPRows: o.rows, ZeROGroup: o.group,
		MicroBatch: s.batch, Stages: make([]partition.Stage, o.pp), PoolOrder: s.cluster.Orders()[o.order], RankOrder: o.ranks,
	}
	mesh := p.Mesh(s.batch)
	price := s.rates.Program(p, mesh)
	w = &ways{text: price.Ways(), dp: mesh.Axis(partition.AxisDP), rep: mesh.Axis(partition.AxisRep), ends: map[endsKey]*ends{}, sent: map[sendKey][]partTimes{}, plan: p, transfers: map[int]*cost.Program{}}
	type place struct {
		kinds  cost.Kinds
		groups [ir.MaxAxes]cost.Group
	}
	var places []place
	var offsets []int
	for at := range o.pp {
		offset := price.Offset(at)
		if like := slices.Index(offsets, offset); like >= 0 {
			offsets, w.at = append(offsets, offset), append(w.at, w.at[like])
			continue
		}
		as := price.As(at)
		x := place{kinds: price.Kinds(at)}
		for axis := range mesh.Axes {
			x.groups[axis] = as.Group(axis)
		}
		k := slices.Index(places, x)
		if k < 0 {
			k = len(places)
			view := &ways{prices: []*cost.Program{as}, dp: w.dp, rep: w.rep, moved: map[movedKey]*workTimes{}, spots: []spot{{kinds: x.kinds}}}
			if len(s.cluster.Pools) == 0 {
				view.spots[0].groups = s.lying(mesh, x.groups[:])
			}
			places, w.prices, w.places, w.spots = append(places, x), append(w.prices, as), append(w.places, view), append(w.spots, view.spots[0])
		}
		offsets, w.at = append(offsets, offset), append(w.at, k)
	}
	s.orders[key] = w
	return w
}

// spot is where the ranks of a position lie: on which kinds of devices, and, on a cluster of one kind, where their tensor- and
// context-parallel groups lie in the network. With nil groups these may lie anywhere.
type spot struct {
	kinds  cost.Kinds
	groups *spotGroups
}

// spotGroups are the groups of the axes in spotAxes.
type spotGroups [3]cost.Group

// anySpot are the spots of what may lie anywhere.
var anySpot = []spot{{}}

var spotAxes = [3]string{partition.AxisTP, partition.AxisTPR, partition.AxisCP}

// lying returns the groups of a spot, of all that the axes of a mesh have there: the same value for all that are equal.
func (s *searcher) lying(mesh ir.Mesh, groups []cost.Group) *spotGroups {
	x := &spotGroups{}
	for i, name := range spotAxes {
		if axis := mesh.Axis(name); axis >= 0 {
			x[i] = groups[axis]
		}
	}
	for _, known := range s.spots {
		if *known == *x {
			return known
		}
	}
	s.spots = append(s.spots, x)
	return x
}

// collective is the least time of a collective over data-parallel ranks, at any position.
func (w *ways) collective(op ir.Op, bytes int64) cost.Picoseconds {
	if w.anywhere > 0 {
		return w.prices[0].Nearest(op, bytes, w.anywhere)
	}
	least := never
	for _, price := range w.prices {
		least = min(least, price.Replicas(op, bytes, price.Group(w.dp)))
	}
	return least
}

// further is the least time of a sum over so many ranks that have equal shares of what ZeRO shards, at any position.
func (w *ways) further(bytes int64, ranks int) cost.Picoseconds {
	if w.anywhere > 0 {
		return w.prices[0].Nearest(ir.OpAllReduce, bytes, ranks)
	}
	least := never
	for _, price := range w.prices {
		least = min(least, price.Replicas(ir.OpAllReduce, bytes, price.Group(w.rep)))
	}
	return least
}

// slows is by how much collectives over data-parallel ranks that take a time delay kernels beside them at least, at any
// position. What each of them delays is rounded down.
func (w *ways) slows(collectives cost.Picoseconds) cost.Picoseconds {
	const several = 8
	least := never
	for _, price := range w.prices {
		least = min(least, price.Slows(collectives))
	}
	return max(0, least-several)
}

// hostCopy is the least time of a copy between device and host.
func (w *ways) hostCopy(bytes int64) cost.Picoseconds {
	least := never
	for _, price := range w.prices {
		least = min(least, price.HostCopy(bytes))
	}
	return least
}
