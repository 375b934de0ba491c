package planner

import (
	"math"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// Interleaved schedules: position i of a pipeline runs several stages (chunks), every pp-th one.
// The search tries fewer such plans than of others, because a rank shares its memory among its
// chunks and a cut has many stages. Blocks are cut as evenly as possible (evenCut), and all stages
// of a rank recompute to the same extent. So a choice of extent for each position determines the
// plan, which need not be bounded: it is simulated (solveInterleaved, called by [cutter.solve]).

// chunkCounts lists how many chunks per rank the search tries, 1 for schedules without
// interleaving: 2, 4 and all that cut the blocks evenly, or what the options fix.
func chunkCounts(o Options, blocks, pp int) []int {
	var counts []int
	if o.Interleave <= 1 && o.Schedule != partition.Interleaved {
		counts = append(counts, 1)
	}
	if o.Schedule != "" && o.Schedule != partition.Interleaved || pp == 1 {
		return counts
	}
	for k := 2; pp*k <= blocks; k++ {
		switch even := blocks%(pp*k) == 0; {
		case o.Interleave > 0 && k != o.Interleave, o.Interleave == 0 && k != 2 && k != 4 && !even:
		case o.Policy == Megatron && !even:
		default:
			counts = append(counts, k)
		}
	}
	return counts
}

// evenCut cuts blocks into stages whose sizes differ by at most one. The larger ones come first, as
// the last stage also has the head of the model.
func evenCut(blocks, stages int, r func(stage int) extent) []partition.Stage {
	cut := make([]partition.Stage, stages)
	first := 0
	for i := range cut {
		n := evenShare(blocks, stages, i)
		cut[i] = uniform(r(i), n).stage(first, n)
		first += n
	}
	return cut
}

// evenShare is how many blocks a stage of an even cut has.
func evenShare(blocks, stages, stage int) int {
	if stage < blocks%stages {
		return blocks/stages + 1
	}
	return blocks / stages
}

// anyChunks, as the chunks of an outline, stands for every number above one that the search tries.
// Such an outline is bounded by the least that any of them has; only if that leaves hope is each
// looked at by itself. (Where ranks share their cores there is no such outline: how many ranks wait
// depends on the number of chunks.)
const anyChunks = math.MaxInt

// chunkCounts lists the numbers of chunks that tracts have.
func (s *searcher) chunkCounts(pp int) []int {
	counts := chunkCounts(s.opts, s.graphs.blocks, pp)
	several := slices.IndexFunc(counts, func(n int) bool { return n > 1 })
	if several < 0 || len(s.cluster.Pools) > 0 || s.rates.Crowded(pp) {
		return counts
	}
	return append(counts[:several], anyChunks)
}

// counted lists an outline with every number of chunks that it stands for.
func (s *searcher) counted(o outline) []outline {
	if o.chunks != anyChunks {
		return []outline{o}
	}
	var all []outline
	for _, o.chunks = range chunkCounts(s.opts, s.graphs.blocks, o.pp) {
		if o.chunks > 1 {
			all = append(all, o)
		}
	}
	return all
}

// evenShares is what an even cut gives the positions of a pipeline: the least of all cuts, if the outline
// stands for several numbers of chunks.
type evenShares struct {
	stages int // the most of all cuts
	at     []evenPart
}

// evenPart is what a position has: its blocks, the blocks before its first stage, and the sum over
// its blocks of the micro-batches in flight for which a block keeps something.
type evenPart struct{ blocks, before, flights int }

// evenOf returns what an interleaved outline with m micro-batches gives its positions. For m = 0 it
// does not say what is in flight.
func (s *searcher) evenOf(o outline, m int) evenShares {
	key := roomsKey{partition.Interleaved, o.pp, o.chunks, m}
	all, known := s.evens[key]
	if known {
		return all
	}
	blocks := s.graphs.blocks
	for k, x := range s.counted(o) {
		if k == 0 {
			all.at = make([]evenPart, o.pp)
		}
		all.stages = max(all.stages, x.stages())
		var rooms [][]codegen.Chunk
		if m > 0 {
			rooms = s.rooms(x, m, partition.Interleaved)
		}
		before := 0
		for at := range all.at {
			mine := evenPart{before: before}
			for i := at; i < x.stages(); i += o.pp {
				n := evenShare(blocks, x.stages(), i)
				mine.blocks += n
				if m > 0 {
					mine.flights += n * rooms[at][i/o.pp].Slots
				}
			}
			if least := &all.at[at]; k == 0 {
				*least = mine
			} else {
				*least = evenPart{min(least.blocks, mine.blocks), min(least.before, mine.before), min(least.flights, mine.flights)}
			}
			before += evenShare(blocks, x.stages(), at)
		}
	}
	s.evens[key] = all
	return all
}

// extents lists the extents to which a block may be recomputed.
func (r Recompute) extents() []extent {
	switch r {
	case RecomputeNone:
		return []extent{kept}
	case RecomputePointwise:
		return []extent{pointwise}
	case RecomputeSelective:
		return []extent{selective}
	case RecomputeFull:
		return []extent{full}
	}
	return []extent{kept, pointwise, selective, full}
}

// ladder lists the extents to which all blocks of a rank may be recomputed under interleaved
// schedules, the least work first. Each step does all that the one before does. Attention alone
// would be no step.
func (r Recompute) ladder() []extent {
	if r == RecomputeSearched {
		return []extent{kept, pointwise, full}
	}
	return r.extents()
}

// interleavedCut is the even cut with a step of the ladder for each position.
func (p *pipeline) interleavedCut(recompute Recompute, choice []int) []partition.Stage {
	all := recompute.ladder()
	p.upTo(all[slices.Max(choice)])
	return evenCut(p.skel.blocks, len(p.template.Stages), func(stage int) extent {
		at, _ := p.template.Position(stage)
		return all[choice[at]]
	})
}

// upTo makes known the memory and times of blocks that are recomputed to an extent. Less is usually
// enough.
func (p *pipeline) upTo(e extent) {
	if e <= p.most {
		return
	}
	p.skel.upTo(e)
	size := p.template.MicroBatch
	if p.most = p.skel.most; p.memory != nil {
		p.memory = p.skel.memoryOf(size)
	}
	if p.headless {
		p.memory = slices.Clone(p.memory)
		p.leaveHead()
	}
	if p.stages != nil {
		p.stages = p.skel.times(size, p.template.Schedule)
	}
}

// interleavedPeak bounds the arena of a position from below.
func (p *pipeline) interleavedPeak(cut []partition.Stage, at int) int64 {
	m := &p.memory[at]
	bytes, blocks := m.persist, 0
	var temp int64 // as if every chunk recomputed like the last one, which may have the loss
	for i := at; i < len(cut); i += p.template.PP() {
		n, one, inbox := cut[i].Last-cut[i].First, &m.slot, m.inbox
		if p.skel.of.chunk(&p.template, at == p.template.PP()-1, i/p.template.PP()) > 0 {
			one, inbox = &m.lastSlot, m.lastInbox
		}
		var slot int64
		slot, temp = m.kept(one, n, recomputationOf(cut[i]))
		blocks += n
		bytes += int64(n-1)*m.morePersist + int64(p.room[i].Slots)*slot + int64(p.room[i].Inboxes)*inbox
	}
	return bytes + max(temp, m.update.of(blocks))
}

// mayFitInterleaved reports whether every position may fit with all of its blocks recomputed to
// some extent.
func (p *pipeline) mayFitInterleaved(limit int64) bool {
	fits := make([]bool, p.template.PP())
	for e := kept; e < extents && slices.Contains(fits, false); e++ {
		p.upTo(e)
		cut := evenCut(p.skel.blocks, len(p.template.Stages), func(int) extent { return e })
		for at := range fits {
			fits[at] = fits[at] || p.interleavedPeak(cut, at) <= limit
		}
	}
	return !slices.Contains(fits, false)
}

// solveInterleaved returns the plan in which every position does the least work with which it fits.
// It is nil if that takes longer than the ceiling, or some position never fits.
func (c *cutter) solveInterleaved(ceiling cost.Picoseconds) *candidate {
	for c.least <= ceiling {
		c.search.stats.PlansConsidered++
		cut := c.pipe.interleavedCut(c.recompute(), c.choice)
		x := &candidate{pipe: c.pipe, plan: c.pipe.plan(cut), cut: cut, time: c.least}
		if c.allocate(x) < 0 {
			c.laid[0] = true
			return x
		}
		for at, peak := range x.peaks {
			if peak > c.search.limitAt(x.plan, at) && !c.more(at) {
				c.least, c.bare = never, 0 // no more can be recomputed, but slices of the loss may now be of use
				return nil
			}
		}
		c.least = c.leastInterleaved()
	}
	return nil
}

func (c *cutter) recompute() Recompute { return c.search.opts.recompute(c.pipe.skel.outline.replicate) }

// more moves a position one step up the ladder for good; false if it is at the top.
func (c *cutter) more(at int) bool {
	if c.choice[at]+1 == len(c.recompute().ladder()) {
		return false
	}
	c.choice[at]++
	return true
}

// leastInterleaved is the time with only the recomputation that is known to be necessary, a lower
// bound. It is never if some position does not fit.
func (c *cutter) leastInterleaved() cost.Picoseconds {
	if !c.choose() {
		return never
	}
	return c.pipe.time(c.pipe.interleavedCut(c.recompute(), c.choice))
}

// choose moves every position up the ladder as far as is known to be necessary; false if one does
// not fit.
func (c *cutter) choose() bool {
	for at := range c.choice {
		for c.pipe.interleavedPeak(c.pipe.interleavedCut(c.recompute(), c.choice), at) > c.search.limit {
			if !c.more(at) {
				return false
			}
		}
	}
	return true
}
