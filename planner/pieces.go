package planner

import (
	"math"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// Products and the collectives of tensor-parallel ranks next to them may be made in parts of whole sequences (package
// codegen, pieces.go). More parts hide more of the collectives, but products of fewer rows are less efficient and there is
// more to launch, so that their number is a dimension of the space: 1, 2 or 4, where overlap of tensor parallelism is on,
// something can be made in parts, and a micro-batch has sequences for more than half of them: of 3 sequences 4 parts are 3,
// and an empty one.
//
// It is decided late. Which neighbours are made in parts, and so what parts take, is the same for all plans that cut weights
// alike, so that the program of a trunk tells it for every number: floors have the least of all, and only where these leave
// something is an outline looked at with each number by itself.

// mostPieces is the most parts that are searched, in powers of two.
const mostPieces = 4

// anyPieces stands, as the parts of an outline, for every number that the search tries.
const anyPieces = math.MaxInt

// piecesOf is how an outline has the parts of a plan.
func piecesOf(p *partition.Plan) int {
	if p.TPPieces > 1 {
		return p.TPPieces
	}
	return 0
}

// PieceCounts lists the numbers of parts, 1 for whole, that the search has tried for a plan on a cluster, its own among them;
// nil where it has tried none.
func PieceCounts(p *partition.Plan, c *cost.Cluster) []int {
	if p.TPPieces < 2 && (!p.OverlapTP || c.Device.Shared) {
		return nil
	}
	counts := []int{1}
	for _, n := range append(pieceCounts()[1:], p.TPPieces) {
		if n == p.TPPieces || divides(p.MicroBatch, n) {
			counts = append(counts, n)
		}
	}
	slices.Sort(counts)
	return slices.Compact(slices.DeleteFunc(counts, func(n int) bool { return n == 0 }))
}

// pieces is how many parts the options fix, 0 for one, anyPieces where they leave that open on a cluster.
func (o Options) pieces(c *cost.Cluster) int {
	switch {
	case o.TPPieces > 1:
		return o.TPPieces
	case o.TPPieces == 0 && o.Policy == AutoDist && o.OverlapTP == "on" && !c.Device.Shared:
		return anyPieces
	}
	return 0
}

// pieces is how many parts an outline has that does not say so: that of the options, if anything is made in parts.
func (s *searcher) pieces(o outline) int {
	n := s.opts.pieces(s.cluster)
	if o.tp == 1 || n == anyPieces && !s.inParts(o) {
		return 0
	}
	return n
}

// inParts reports whether outlines with the same tensor parallelism can make anything in parts.
func (s *searcher) inParts(o outline) bool {
	trunk := s.trunk(o)
	return trunk != nil && len(trunk.pairs) > 0
}

// inPieces lists an outline with every number of parts that it stands for.
func (o outline) inPieces() []outline {
	if o.pieces != anyPieces {
		return []outline{o}
	}
	var all []outline
	for _, o.pieces = range pieceCounts() {
		all = append(all, o)
	}
	return all
}

// divides reports whether the search has micro-batches of a size in so many parts.
func divides(size, pieces int) bool { return pieces < 2 || 2*size > pieces }

// divisible lists those of some sizes of micro-batches that the search has in so many parts.
func divisible(sizes []int, pieces int) []int {
	return slices.DeleteFunc(slices.Clone(sizes), func(size int) bool { return !divides(size, pieces) })
}

// undivided returns an outline with the number of parts that stands for its own.
func (s *searcher) undivided(o outline) outline {
	if s.pieces(o) == anyPieces {
		o.pieces = anyPieces
	}
	return o
}

// whole returns an outline without parts where it stands for all numbers of them.
func (o outline) whole() outline {
	if o.pieces == anyPieces {
		o.pieces = 0
	}
	return o
}

// pieceCounts lists the numbers of parts that are searched, of which 0 is one.
func pieceCounts() []int {
	counts := []int{0}
	for n := 2; n <= mostPieces; n *= 2 {
		counts = append(counts, n)
	}
	return counts
}

// divide replaces a pending outline that stands for several numbers of parts by one for each, and returns those whose floors
// are at most the limit.
func (s *searcher) divide(p *pending, limit cost.Picoseconds) []*pending {
	var open []*pending
	for _, o := range p.inPieces() {
		q := &pending{outline: o, base: p.base, spared: true}
		for _, x := range p.left {
			if divides(x.size, o.pieces) {
				x.level = busyTrunk
				q.left = append(q.left, x)
			}
		}
		if len(q.left) == 0 {
			continue
		}
		p.parts, s.pending = append(p.parts, q), append(s.pending, q)
		if s.raise(q, limit, flowLimited); q.floor() <= limit {
			open = append(open, q)
		}
	}
	p.left = p.left[:0]
	s.pending = slices.DeleteFunc(s.pending, func(q *pending) bool { return q == p })
	return open
}

// pair is a product and a collective of tensor-parallel ranks, of which the second reads what the first makes, that are
// made in parts if a plan has those.
type pair struct{ first, second workInstr }

// pairUp takes the first part of an instruction for all of it, and notes which are pairs. It reports whether it is a first part.
func (w *work) pairUp(x *workInstr) bool {
	if x.Part > 0 {
		return false
	}
	one := *x.Instr
	one.Parts, one.Beside = 0, 0
	x.Instr, x.all, x.beside = &one, []codegen.Instr{one}, nil
	if last := len(w.pairs) - 1; last >= 0 && w.pairs[last].second.Instr == nil {
		w.pairs[last].second = *x
	} else {
		w.pairs = append(w.pairs, pair{first: *x})
	}
	return true
}

// divided returns how much longer the pairs of a trunk take when they are made in parts, for each pass: less than
// nothing if that hides more than it costs. For any number of parts it is the least.
func (w *work) divided(on sizeOn, batch int) *workTimes {
	if known := w.parted[on]; known != nil {
		return known
	}
	t := &workTimes{}
	w.parted[on] = t
	if on.pieces == anyPieces && on.size == 1 { // fewer sequences than parts are not made in less time
		return t
	}
	counts := []int{on.pieces}
	if on.pieces == anyPieces {
		counts = pieceCounts()[1:]
	}
	each := make([]workTimes, len(counts))
	mesh, prices := w.meshOf(on.size, batch), w.on(on.kinds)
	for i := range w.pairs {
		x := &w.pairs[i]
		inOne := x.time(mesh, prices)
		for k, pieces := range counts {
			each[k].add(&x.first, x.inParts(pieces, mesh, prices)-inOne)
		}
	}
	if on.pieces != anyPieces {
		*t = each[0]
		return t
	}
	for k := range each {
		on.pieces = counts[k]
		w.parted[on] = &each[k]
		t.fastest(&each[k])
	}
	return t
}

// time is that of a pair which is made whole.
func (x *pair) time(mesh ir.Mesh, prices []*cost.Program) cost.Picoseconds {
	return x.first.alone(mesh, prices) + x.second.alone(mesh, prices)
}

// alone is the least time of an instruction: that of a kernel is the same by all prices.
func (in *workInstr) alone(mesh ir.Mesh, prices []*cost.Program) cost.Picoseconds {
	if in.Node.Op.Class() != ir.Comm {
		prices = prices[:1]
	}
	return least(prices, in, mesh)
}

// inParts is the time of a pair that is made in parts, of which each but one of the collective runs beside one of the product:
// that of the sequences before, which have been gathered, or of those after, while these are summed.
func (x *pair) inParts(parts int, mesh ir.Mesh, prices []*cost.Program) cost.Picoseconds {
	var last [2]struct {
		sequences int
		time      cost.Picoseconds
	}
	of := func(k int, in *workInstr, i int) cost.Picoseconds { // those of as many sequences take as long
		one := *in.Instr
		one.Part, one.Parts = i, parts
		share, _ := one.ShareOf(mesh, one.Node.Results[0], ir.Coord{})
		if last[k].time == 0 || last[k].sequences != share.Len {
			in := *in
			in.Instr, in.all = &one, []codegen.Instr{one}
			last[k].sequences, last[k].time = share.Len, in.alone(mesh, prices)
		}
		return last[k].time
	}
	collective := x.first.Node.Op.Class() == ir.Comm
	time := of(0, &x.first, 0)
	for i := 1; i < parts; i++ {
		// The first part of one side, then each part of the first beside the one before of the second.
		first, second := of(0, &x.first, i), of(1, &x.second, i-1)
		if collective {
			time += second + max(0, first-second)
		} else {
			time += first + max(0, second-first)
		}
	}
	return time + of(1, &x.second, parts-1)
}
