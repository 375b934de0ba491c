package planner

import (
	"fmt"
	"iter"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// The certificate of optimality: what it claims, and how the search writes it down.
// [SearchCertified] searches, and then goes through the whole space once more ([searcher.regions])
// to note for each cell (outline, micro-batch size and schedule) why the search left it: the floor
// or bound that ruled it out, or that it was searched cut by cut. Neighbouring cells with the same
// reason are merged into regions. certificate_text.go writes and reads the file, certify.go checks
// it.

// Certificate is a proof, checked by [Certify] without trust in the search, of the claim
//
//	for every plan p of S:  C(winner) <= C(p), or p does not fit.
//
// S, the declared space, follows from a graph, a global batch, a cluster and options. The type
// declared enumerates it. It consists of
//
//   - units of devices, cut into dp x cp x tp x pp, with 1, 2 or 4 chunks per rank or as many as
//     cut the blocks evenly, their ranks along the pools of the cluster in every order;
//   - the axes of a unit over its ranks in every order, if the cluster has one kind of device and
//     the ranks are on more than one unit of its innermost level;
//   - sequence parallelism, ZeRO stage and group, offload, and overlap on and off;
//   - stages that wait for what they send, and stages that do not, unless ranks share a device;
//   - overlap of tensor parallelism in all plans that have tensor parallelism or in none, as given,
//     except under zero-bubble schedules, which have none;
//   - modules that tensor-parallel ranks replicate: of attention, MLP and vocabulary any but all,
//     under sequence parallelism, inside a node, in the usual order of ranks, where the batch has
//     no sequence for each of dp x tp, or tp is given, and with no recomputation but what is given;
//   - with batch parallelism: attention, MLP or both replicated, and the vocabulary split, inside a
//     node, in the usual order of ranks, without context parallelism, where the batch has a
//     sequence for each of dp x tp and the vocabulary has at least four times as many symbols as a
//     data-parallel rank has tokens in a step; or what is given;
//   - attention, MLP or both cut in two dimensions over a grid of tensor-parallel ranks with no
//     more rows than columns, under the same conditions as replication or with sixteen such ranks
//     or more, but not beside replicated modules, nor, with context parallelism, beside ZeRO in
//     groups;
//   - the loss in 2, 4, 8 or 16 slices where they are equal, without context parallelism, of plans
//     that do not fit with half as many;
//   - products and collectives of tensor parallelism that are next to each other in 1, 2 or 4
//     parts, where its overlap is on, anything can be made in parts, and a micro-batch has
//     sequences for more than half of them; or as given;
//   - micro-batch sizes: all up to 16 sequences, and of more the divisors and powers of two;
//   - schedules 1f1b, gpipe, zero-bubble, interleaved, eager-1f1b and eager-zero-bubble;
//   - all cuts of the blocks into contiguous stages, and for every stage all numbers of blocks
//     recomputed in full, followed by all numbers of blocks of which attention, or else norms and
//     activation functions, are recomputed.
//
// Not in S are: context parallelism where it hardly pays, see [Options]; uneven cuts of interleaved
// schedules, and any recomputation there other than the least of none, pointwise and all with which
// a rank fits; attention of some blocks beside pointwise recomputation of others in one stage; ZeRO
// groups that are neither all ranks nor the largest inside a node (of which nodes consist, where one
// does); schedules other than 1f1b with one position; unequal shares of the batch; and placements of
// parameters other than whole, on a grid, or those that tensor parallelism of a degree has.
//
// C is the time of planner/sim in whole picoseconds, and a plan fits if codegen lays out no arena
// larger than the limit in bytes. Of plans of equal time the search takes those whose stages do not
// wait for what they send, of these the one with the least peak memory, and then the first by
// comparePlans; the claim is about time alone.
//
// Regions tile S: every outline, micro-batch size and schedule is in exactly one.
type Certificate struct {
	GraphHash, ConfigHash, ClusterHash string
	Options                            Options // as given, without Eval, names in Replicate in the order of the modules
	Limit                              int64   // bytes per rank
	Everywhere                         bool    // S is widened: see [searcher.widens]

	Plan  *partition.Plan
	Step  cost.Picoseconds
	Peaks []int64 // bytes by position

	Regions []Region
}

// Region is a part of the space, with the reason why no plan of it is faster than the winner.
type Region struct {
	outline            // without ranks, waits, slices and pieces
	ranks     []string // orders, as in [partition.Plan.RankOrder]
	waits     []bool   // whether positions wait for what they send
	slices    []int    // of the loss, 0 for one
	pieces    []int    // of tensor parallelism, 0 for one; sizes too small for a number of pieces are not in the region with it
	ofParts   bool     // but pieces are parts of sequences, so that no size is too small
	sizes     []int
	schedules []partition.Schedule
	reason    reason
	bound     cost.Picoseconds // of byTrunk, byStages, byCuts: no plan takes less time
	holds     int              // of byMemory: the most blocks that all stages together can hold
	unit      int              // of byTwin: devices of the twin's unit
	as        string           // of byTwin: the twin's order of ranks
	line      int              // of the file, from 1
}

// reason is why a region holds no better plan.
type reason string

// The reasons.
const (
	byTrunk  reason = "trunk"    // the bound: what every outline with its tp and cp does, moves and must recompute
	byStages reason = "stages"   // the bound: all that the stages of the outline do in order
	byCuts   reason = "cuts"     // the bound: the flow through stages with any number of blocks
	byMemory reason = "memory"   // the stages cannot hold all blocks, whatever they recompute
	byTwin   reason = "alike"    // everything goes through the network as with a smaller unit, or another order of ranks
	refused  reason = "refused"  // there is no program
	bySearch reason = "searched" // searched cut by cut
	spares   reason = "spares"   // it only spares memory: no faster than plans without, which fit
)

// UnprovenError says that a search gave up before it had proved that its plan is the fastest.
type UnprovenError struct {
	Steps int     // of branch and bound
	Gap   float64 // by how much a plan could be faster, as a fraction
}

func (e *UnprovenError) Error() string {
	return fmt.Sprintf("planner: no certificate: after %d steps the search gave up on proving that no plan is faster; one could be by %.2g %%; with some degrees given there is less to prove",
		e.Steps, 100*e.Gap)
}

// SearchCertified is [Search] with a proof of the result, for which it takes more steps. If these are not
// enough for certainty, it returns the result with an *UnprovenError.
func SearchCertified(g *ir.Graph, batch int, c *cost.Cluster, opts Options) (*Result, *Certificate, error) {
	return certified(g, batch, c, opts, 10*thorough)
}

// certified is [SearchCertified] with a number of steps.
func certified(g *ir.Graph, batch int, c *cost.Cluster, opts Options, steps int) (*Result, *Certificate, error) {
	res, s, err := newSearch(g, batch, c, opts, steps)
	if err != nil {
		return nil, nil, err
	}
	if !res.Stats.Optimal {
		return res, nil, &UnprovenError{steps, res.Stats.Gap}
	}
	opts.Eval, opts.Replicate = nil, s.opts.Replicate
	cert := &Certificate{
		GraphHash: graphHash(g), ClusterHash: clusterHash(c), Options: opts, Limit: s.limit, Everywhere: s.everywhere,
		Plan: res.Plan, Step: res.Prediction.Step, Peaks: res.Prediction.PeakBytes,
	}
	cert.Regions = s.regions(cert.Step)
	for i := range cert.Regions {
		cert.Regions[i].line = len(cert.header()) + 2 + i
	}
	return res, cert, nil
}

func clusterHash(c *cost.Cluster) string { return hash([]byte(mustJSON(c))) }

// cell is the smallest part of a region.
type cell struct {
	outline
	size     int
	schedule partition.Schedule
}

// regions says of the whole space why the search left it, or that it searched it.
func (s *searcher) regions(winner cost.Picoseconds) []Region {
	points, met := map[cell]*point{}, map[outline]bool{}
	for _, p := range s.looked {
		p.known()
		t := &p.pipe.template
		o := p.outline()
		points[cell{o, t.MicroBatch, t.Schedule}], met[s.undivided(o)] = p, true
	}
	floors := map[outline][]sized{}
	for _, p := range s.pending {
		floors[p.outline], met[s.undivided(p.outline)] = p.rest(), true
	}
	// What was not looked at was left with its tract, or is a twin.
	left := map[outline]bool{}
	var whole []outline
	for _, t := range s.tracts {
		if t.opened && t.chunks == anyChunks {
			continue // there is a tract for each number of chunks
		}
		s.list(t.pending)
		beside := t.spares
		if beside == nil {
			beside = s.sparing(t.pending)
		}
		for _, p := range append([]*pending{t.pending}, beside...) {
			s.raise(p, winner-1, flowLimited)
			for _, x := range s.counted(p.outline) {
				for _, usual := range s.places(x) {
					for _, o := range append([]outline{usual}, s.otherOrders(usual)...) {
						if !met[o] {
							floors[o], left[o] = p.rest(), p.floor() >= winner
						}
						whole = append(whole, o)
					}
				}
			}
		}
	}
	twins := s.twins(whole, left, met)
	var regions []Region
	first := 0 // index of the first region of the same outline in the usual order of ranks
	for _, o := range whole {
		if o.ranks == "" || s.opts.RankOrder != "" {
			first = len(regions)
		}
		for _, x := range s.regionsOf(o, winner, twins, points, floors) {
			regions = merge(regions, first, x, func(r *Region) { r.ranks = append(r.ranks, o.ranks) }, func(r *Region) bool {
				return o.ranks != "" && r.ranks[0] != "" && slices.Equal(r.slices, x.slices) && slices.Equal(r.pieces, x.pieces) &&
					slices.Equal(r.sizes, x.sizes) && slices.Equal(r.schedules, x.schedules) && r.unit == x.unit && r.as == x.as
			})
		}
	}
	return waitingOrNot(regions)
}

// waitingOrNot makes one region of two that differ only in whether positions wait for what they send.
func waitingOrNot(all []Region) []Region {
	type others struct {
		outline
		lists string
		reason
		unit int
		as   string
	}
	var regions []Region
	met := map[others]int{}
	for _, r := range all {
		key := others{r.outline, fmt.Sprint(r.ranks, r.slices, r.pieces, r.sizes, r.schedules), r.reason, r.unit, r.as}
		at, known := met[key]
		if !known {
			met[key], regions = len(regions), append(regions, r)
			continue
		}
		x := &regions[at]
		x.waits = append(slices.Clone(x.waits), r.waits...)
		x.bound, x.holds = min(x.bound, r.bound), max(x.holds, r.holds)
	}
	return regions
}

// regionsOf returns the regions of an outline.
func (s *searcher) regionsOf(o outline, winner cost.Picoseconds, twins map[outline]twin, points map[cell]*point, floors map[outline][]sized) []Region {
	whole := Region{outline: o, ranks: []string{o.ranks}, waits: []bool{o.waits}, slices: []int{o.slices}, sizes: s.sizes(o), schedules: schedules(s.opts, o.pp, o.chunks)}
	whole.outline.ranks, whole.outline.waits, whole.outline.slices, whole.outline.pieces = "", false, 0, 0
	more := s.slicesBeside(o)
	if as, twin := twins[o]; twin {
		whole.reason, whole.unit, whole.as = byTwin, as.unit, as.ranks
		whole.slices, whole.ofParts = append(whole.slices, more...), s.ofParts(o)
		for _, x := range o.inPieces() {
			whole.pieces = append(whole.pieces, x.pieces)
		}
		return []Region{whole}
	}
	var regions []Region
	for _, of := range o.inPieces() {
		left, divided := floors[of]
		if !divided {
			left = floors[o]
		}
		part := whole
		if part.pieces = []int{of.pieces}; o.pieces == anyPieces {
			part.ofParts = s.ofParts(o)
			part.sizes = divisible(whole.sizes, of.pieces, part.ofParts)
		}
		if len(part.sizes) == 0 {
			continue
		}
		for _, x := range s.regionsOfParts(&part, of, winner, more, points, left) {
			regions = merge(regions, 0, x, func(r *Region) { r.pieces = append(r.pieces, of.pieces) }, func(r *Region) bool {
				return slices.Equal(r.slices, x.slices) && slices.Equal(divisible(r.sizes, of.pieces, r.ofParts), x.sizes) && slices.Equal(r.schedules, x.schedules)
			})
		}
	}
	return regions
}

// regionsOfParts returns the regions of an outline with one number of parts.
func (s *searcher) regionsOfParts(whole *Region, o outline, winner cost.Picoseconds, more []int, points map[cell]*point, left []sized) []Region {
	if s.refusals[o] != nil {
		all := *whole
		all.reason, all.slices = refused, append(slices.Clone(whole.slices), more...)
		return []Region{all}
	}
	regions := s.regionsIn(whole, o, winner, points, left)
	for _, o.slices = range more {
		for _, x := range s.regionsIn(whole, o, winner, points, left) {
			regions = merge(regions, 0, x, func(r *Region) { r.slices = append(r.slices, o.slices) }, func(r *Region) bool {
				return r.slices[len(r.slices)-1] < o.slices && slices.Equal(r.sizes, x.sizes) && slices.Equal(r.schedules, x.schedules)
			})
		}
	}
	return regions
}

// regionsIn returns the regions of an outline with one number of parts and of slices of the loss.
func (s *searcher) regionsIn(whole *Region, o outline, winner cost.Picoseconds, points map[cell]*point, floors []sized) []Region {
	if s.refusals[o] != nil {
		all := *whole
		all.slices, all.reason = []int{o.slices}, refused
		return []Region{all}
	}
	var regions []Region
	for _, size := range whole.sizes {
		at := len(regions)
		for _, schedule := range whole.schedules {
			x := Region{outline: whole.outline, ranks: whole.ranks, waits: whole.waits, slices: []int{o.slices}, pieces: whole.pieces, ofParts: whole.ofParts, sizes: []int{size}, schedules: []partition.Schedule{schedule}}
			if p := points[cell{o, size, schedule}]; p != nil {
				p.noteLooked(&x, winner)
			} else {
				x.noteLeft(floors, winner)
			}
			regions = merge(regions, at, x, func(r *Region) { r.schedules = append(r.schedules, schedule) }, nil)
		}
		found := slices.Clone(regions[at:])
		regions = regions[:at]
		for i := range found {
			regions = merge(regions, 0, found[i], func(r *Region) { r.sizes = append(r.sizes, size) }, func(r *Region) bool { return slices.Equal(r.schedules, found[i].schedules) })
		}
	}
	return regions
}

// points is how many cells a region has.
func (r *Region) points() int {
	sizes := 0
	for _, n := range r.pieces {
		sizes += len(r.sizesIn(n))
	}
	return len(r.ranks) * len(r.waits) * len(r.slices) * sizes * len(r.schedules)
}

// sizesIn lists the micro-batch sizes that a region has in so many parts.
func (r *Region) sizesIn(pieces int) []int {
	if len(r.pieces) == 1 {
		return r.sizes
	}
	return divisible(r.sizes, pieces, r.ofParts)
}

// outlines lists the outlines of a region, with one slice and part.
func (r *Region) outlines() iter.Seq[outline] {
	return func(yield func(outline) bool) {
		o := r.outline
		for _, o.ranks = range r.ranks {
			for _, o.waits = range r.waits {
				if !yield(o) {
					return
				}
			}
		}
	}
}

// cells lists the cells of a region.
func (r *Region) cells() iter.Seq[cell] {
	return func(yield func(cell) bool) {
		for o := range r.outlines() {
			for _, o.slices = range r.slices {
				for _, o.pieces = range r.pieces {
					for _, size := range r.sizesIn(o.pieces) {
						for _, schedule := range r.schedules {
							if !yield(cell{o, size, schedule}) {
								return
							}
						}
					}
				}
			}
		}
	}
}

// twin is the unit and the order of ranks of an outline to which another is equivalent.
type twin struct {
	unit  int
	ranks string
}

// twins lists the outlines that were not looked at because all their communication goes the same
// ways as that of another with a smaller unit, or another order of ranks. Those that bounds rule
// out are left to these.
func (s *searcher) twins(all []outline, left, met map[outline]bool) map[outline]twin {
	type way struct {
		outline
		text string
	}
	firsts, twins := map[way]twin{}, map[outline]twin{}
	for _, looked := range []bool{true, false} {
		for _, o := range all {
			if met[o] != looked || left[o] {
				continue
			}
			key := way{o, s.waysOf(o).text}
			key.plan, key.dp, key.ranks = 0, s.replicas(o), ""
			if x, known := firsts[key]; !known {
				firsts[key] = twin{o.plan, o.ranks}
			} else if !looked {
				twins[o] = x
			}
		}
	}
	return twins
}

// noteLeft notes why a cell was not looked at, from the floors of its outline, which hold for any
// number of slices of the loss.
func (r *Region) noteLeft(floors []sized, winner cost.Picoseconds) {
	at := slices.IndexFunc(floors, func(x sized) bool { return x.size == r.sizes[0] && x.schedule == r.schedules[0] })
	if at < 0 { // it was looked at with fewer slices, but not with so many
		r.reason = spares
		return
	}
	switch x := &floors[at]; {
	case x.floor < winner:
		r.reason = spares
	case x.level >= refinedFree:
		r.reason, r.bound = byStages, x.floor
	default:
		r.reason, r.bound = byTrunk, x.floor
	}
}

// noteLooked notes why a point holds no plan that takes less than the winner.
func (p *point) noteLooked(r *Region, winner cost.Picoseconds) {
	first := len(p.learned) == 0 && slices.Max(p.choice) == 0 // the bound is still the first one, which can be computed again
	switch holds := p.pipe.holds(p.search.limit); {
	case holds < p.pipe.skel.blocks:
		r.reason, r.holds = byMemory, holds
	case first && p.least >= winner && p.least < never:
		r.reason, r.bound = byCuts, p.least
	default:
		r.reason = bySearch
	}
}

// holds returns how many blocks the stages can hold at most between them, recomputing whatever
// spares the most. Under interleaved schedules, whose chunks share memory, it does not say less
// than all.
func (p *pipeline) holds(limit int64) int {
	p.measureApart()
	sum := 0
	for i := range p.memory {
		n := 0
		for n < p.skel.blocks && p.memory[i].least(n+1, p.room[i]) <= limit {
			n++
		}
		if n == 0 && p.template.Chunks() == 1 {
			return 0
		}
		sum += n
	}
	if p.template.Chunks() > 1 {
		return p.skel.blocks
	}
	return min(sum, p.skel.blocks)
}

// merge adds a region to regions[from:]: into one of the same reason that is like it, or as a new
// one. A nil like accepts any. Of two bounds the weaker one remains.
func merge(regions []Region, from int, x Region, into func(*Region), like func(*Region) bool) []Region {
	for i := from; i < len(regions); i++ {
		if r := &regions[i]; r.reason == x.reason && (like == nil || like(r)) {
			into(r)
			r.bound, r.holds = min(r.bound, x.bound), max(r.holds, x.holds)
			return regions
		}
	}
	return append(regions, x)
}

// certificateSchema is the first line of a certificate.
const certificateSchema = "autopar certificate 1"
