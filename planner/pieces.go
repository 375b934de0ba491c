package planner

import (
	"math"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// This file searches in how many parts products and the tensor-parallel collectives next to them are made (codegen, pieces.go).
// A part is some whole sequences of the micro-batch or, where sequences can be in parts (ofParts), the same part of each. More
// parts hide more of the collectives, but products of fewer rows are less efficient, and there is more to launch. So the number
// is a dimension of the space: 1, 2 or 4, where overlap of tensor parallelism is on and something can be made in parts. Of
// whole sequences a micro-batch must have some for more than half of the parts. (Of 3 sequences 4 parts are 3 and an empty one.)
//
// It is decided late. Which neighbours are made in parts is the same for all plans that cut weights alike. So the program of a
// trunk tells what any number of parts takes: floors have the least of all numbers (anyPieces), and only an outline that these
// leave is looked at with each number by itself (divide).

// mostPieces is the most parts that are searched, in powers of two.
const mostPieces = 4

// anyPieces stands, as the number of parts of an outline, for every number that the search tries.
const anyPieces = math.MaxInt

// piecesOf is the number of parts of a plan as outlines have it, 0 for one.
func piecesOf(p *partition.Plan) int {
	if p.TPPieces > 1 {
		return p.TPPieces
	}
	return 0
}

// Divisions lists a plan for a graph and a global batch with each number of parts that the search has tried on a cluster, its
// own among them, and everything else as it is. It is nil where the search has tried none.
func Divisions(p *partition.Plan, g *ir.Graph, batch int, c *cost.Cluster) (plans []partition.Plan) {
	if p.TPPieces < 2 && (!p.OverlapTP || c.Device.Shared) {
		return nil
	}
	mayPart := !p.BatchParallel && p.BatchShares == nil && batch%p.DataParallel() == 0
	counts := append(pieceCounts(), piecesOf(p))
	slices.Sort(counts)
	for _, n := range slices.Compact(counts) {
		q := *p
		if n != piecesOf(p) {
			q.TPPieces, q.SequenceParts = n, 0
			if n > 0 && mayPart && mayShare(max(n, mostPieces), p.ContextParallel(), p.TP, sequenceTokens(g)) && haveParts(max(n, mostPieces), max(1, p.LossSlices), g) {
				q.SequenceParts = n
			} else if !divides(p.MicroBatch, n) {
				continue
			}
		}
		plans = append(plans, q)
	}
	return plans
}

// ofParts reports whether the pieces of an outline are of parts of sequences.
func (s *searcher) ofParts(o outline) bool {
	n := o.pieces
	if s.opts.TPPieces == 0 && (n == anyPieces || slices.Contains(pieceCounts()[1:], n)) { // for all numbers that are searched, or for none
		n = mostPieces
	}
	if n < 2 || o.tp == 1 || o.batch || s.batch%o.replicas(s.opts) != 0 {
		return false
	}
	known, ok := s.parted[n]
	if !ok {
		known = haveParts(n, max(1, s.opts.LossSlices), s.graphs.with(s.graphs.scale)) && (s.opts.Eval == nil || haveParts(n, 1, s.opts.Eval))
		s.parted[n] = known
	}
	return known && mayShare(n, o.cp, o.tp, s.contexts.tokens)
}

// mayShare reports whether each of n parts of a sequence has a token for every rank, and context-parallel ranks share it evenly.
func mayShare(n, cp, tp, tokens int) bool {
	return tokens/(n*cp) >= tp && codegen.EvenContext(tokens/n, cp)
}

// haveParts reports whether the sequences of a graph can be in n parts. In those what can be made in parts of whole sequences
// can be made in parts of these.
func haveParts(n, slices int, g *ir.Graph) bool {
	tokens := sequenceTokens(g)
	if tokens == 0 || tokens%(n*codegen.EvenTokens) != 0 || tokens/n%slices != 0 {
		return false
	}
	_, err := partition.CutSequences(g, n)
	return err == nil
}

// pieces is the number of parts that the options fix, 0 for one, or anyPieces where they leave it open on a cluster.
func (o Options) pieces(c *cost.Cluster) int {
	switch {
	case o.TPPieces > 1:
		return o.TPPieces
	case o.TPPieces == 0 && o.Policy == AutoDist && o.OverlapTP == "on" && !c.Device.Shared:
		return anyPieces
	}
	return 0
}

// pieces is the number of parts with which an outline is first looked at: that of the options, or 0 if nothing of it can be
// made in parts.
func (s *searcher) pieces(o outline) int {
	n := s.opts.pieces(s.cluster)
	if o.tp == 1 || n == anyPieces && !s.inParts(o) {
		return 0
	}
	return n
}

// inParts reports whether outlines with the same tensor parallelism make anything in parts.
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

// divides reports whether the space has micro-batches of a size in so many parts of whole sequences.
func divides(size, pieces int) bool { return pieces < 2 || 2*size > pieces }

// divisible lists the sizes of micro-batches that the space has in so many parts, which may be parts of sequences.
func divisible(sizes []int, pieces int, ofParts bool) []int {
	return slices.DeleteFunc(slices.Clone(sizes), func(size int) bool { return !ofParts && !divides(size, pieces) })
}

// undivided returns the outline that stands for all numbers of parts, if the options leave that open.
func (s *searcher) undivided(o outline) outline {
	if s.pieces(o) == anyPieces {
		o.pieces = anyPieces
	}
	return o
}

// whole returns an outline with no parts if it stands for all numbers.
func (o outline) whole() outline {
	if o.pieces == anyPieces {
		o.pieces = 0
	}
	return o
}

// pieceCounts lists the numbers of parts that are searched, 0 for one.
func pieceCounts() []int {
	counts := []int{0}
	for n := 2; n <= mostPieces; n *= 2 {
		counts = append(counts, n)
	}
	return counts
}

// divide replaces a pending outline that stands for several numbers of parts by one for each number, and returns those whose
// floors are at most the limit.
func (s *searcher) divide(p *pending, limit cost.Picoseconds) []*pending {
	var open []*pending
	for _, o := range p.inPieces() {
		q := &pending{outline: o, base: p.base, spared: true}
		for _, x := range p.left {
			if divides(x.size, o.pieces) || s.ofParts(o) {
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

// pair is a product and a tensor-parallel collective, the second of which reads the result of the first. Plans with parts make
// them in parts.
type pair struct {
	first, second workInstr
	parted        map[int]*pair // with sequences in so many parts
}

// inRows returns the pair with its sequences in parts, which are rows of the batch.
func (x *pair) inRows(parts int, mesh ir.Mesh, g *ir.Graph) *pair {
	if known := x.parted[parts]; known != nil {
		return known
	}
	rows := map[*ir.Value]*ir.Value{}
	value := func(v *ir.Value) *ir.Value {
		if rows[v] == nil {
			w := *v
			if v.Spec[mesh.Axis(partition.AxisMB)] == ir.ShardOn(0) {
				w.Type.Shape = slices.Clone(v.Type.Shape)
				w.Type.Shape[0] *= parts
				w.Type.Shape[1] /= parts
			}
			rows[v] = &w
		}
		return rows[v]
	}
	of := func(in workInstr) workInstr {
		n, one := *in.Node, *in.Instr
		n.Args, n.Results = nil, nil
		for _, v := range in.Node.Args {
			n.Args = append(n.Args, value(v))
		}
		for _, v := range in.Node.Results {
			n.Results = append(n.Results, value(v))
			value(v).Def = &n
		}
		if err := g.Retype(&n); err != nil {
			panic("BUG: " + err.Error())
		}
		one.Node = &n
		in.Instr, in.all = &one, []codegen.Instr{one}
		return in
	}
	if x.parted == nil {
		x.parted = map[int]*pair{}
	}
	first := of(x.first)
	x.parted[parts] = &pair{first: first, second: of(x.second)}
	return x.parted[parts]
}

// pairUp notes an instruction of a pair as a whole one, from its first part. It returns false for all other parts.
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

// divided returns by how much longer the pairs of a trunk take in parts, for each pass: less than 0 where that hides more than
// it costs. For anyPieces it is the least over all numbers.
func (w *work) divided(on sizeOn, batch int) *workTimes {
	if known := w.parted[on]; known != nil {
		return known
	}
	t := &workTimes{}
	w.parted[on] = t
	if on.pieces == anyPieces && on.size == 1 && !on.ofParts { // fewer sequences than parts are not made in less time
		return t
	}
	counts := []int{on.pieces}
	if on.pieces == anyPieces {
		counts = pieceCounts()[1:]
	}
	each, rowsOf := make([]workTimes, len(counts)), make([]ir.Mesh, len(counts))
	mesh, prices := w.meshOf(on.size, batch), w.on(on.spot)
	for k, pieces := range counts {
		if rowsOf[k] = mesh; on.ofParts {
			rowsOf[k] = w.meshOf(on.size*pieces, batch*pieces)
		}
	}
	for i := range w.pairs {
		x := &w.pairs[i]
		inOne := x.time(mesh, prices)
		for k, pieces := range counts {
			of := x
			if on.ofParts {
				of = x.inRows(pieces, w.mesh, w.of.graphs.graph)
			}
			each[k].add(&x.first, of.inParts(pieces, rowsOf[k], prices)-inOne)
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

// time is the time of a pair that is made whole.
func (x *pair) time(mesh ir.Mesh, prices []*cost.Program) cost.Picoseconds {
	return x.first.alone(mesh, prices) + x.second.alone(mesh, prices)
}

// alone is the least time of an instruction. Kernels take the same by all prices.
func (in *workInstr) alone(mesh ir.Mesh, prices []*cost.Program) cost.Picoseconds {
	if in.Node.Op.Class() != ir.Comm {
		prices = prices[:1]
	}
	return least(prices, in, mesh)
}

// inParts is the time of a pair in parts. Every part of the collective except one runs beside a part of the product: that of
// the sequences before, which have been gathered, or that of the sequences after, while these are summed.
func (x *pair) inParts(parts int, mesh ir.Mesh, prices []*cost.Program) cost.Picoseconds {
	var last [2]struct {
		sequences int
		time      cost.Picoseconds
	}
	of := func(k int, in *workInstr, i int) cost.Picoseconds { // parts with as many sequences take as long
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
		// The first part of one side comes first, then each part of the first beside the one before it of the second.
		first, second := of(0, &x.first, i), of(1, &x.second, i-1)
		if collective {
			time += second + max(prices[0].Slows(first), first-second)
		} else {
			time += first + max(prices[0].Slows(second), second-first)
		}
	}
	return time + of(1, &x.second, parts-1)
}

// fixedSequences reports whether sequences cannot be in parts whatever their length, because of what the graphs do with them.
func (s *searcher) fixedSequences() bool {
	for _, g := range []*ir.Graph{s.graphs.with(s.graphs.scale), s.opts.Eval} {
		if g == nil {
			continue
		}
		tokens := sequenceTokens(g)
		if tokens == 0 {
			return true
		}
		if _, err := partition.CutSequences(g, tokens); err != nil {
			return true
		}
	}
	return false
}
