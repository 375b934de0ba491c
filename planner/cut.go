package planner

import (
	"cmp"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// Branch and bound over the cuts of one pipeline: which blocks lie on which stage, and how many of
// them are recomputed. explore.go makes a [cutter] for each pipeline it prices, and has it work in
// steps, since most pipelines are ruled out by an early one:
//
//   - newCutter bounds the pipeline by programs with no more recomputation than the options ask for.
//     If there are programs with more, the cutter is then rough.
//   - settle compiles programs with recomputation, decides whether anything fits, and bounds each
//     stage by its number of blocks (bound.go).
//   - solve searches: dive follows the bounds to a first cut, descend enumerates cuts depth first,
//     leaf simulates each that the bounds leave, and pick lays out the memory of the fastest. If
//     descend gives up, climb looks at cuts near the best one.
//
// Memory is bounded from below, too. If a stage of the fastest plan does not fit although its bound
// said so, that is learned, and solve searches again.

// candidate is a complete plan with its cost.
type candidate struct {
	pipe  *pipeline
	plan  *partition.Plan
	cut   []partition.Stage // the stages of plan, in the blocks of [shrunken]
	time  cost.Picoseconds
	peaks []int64 // bytes by position
}

func (c *candidate) peak() int64 {
	var peak int64
	for _, b := range c.peaks {
		peak = max(peak, b)
	}
	return peak
}

// less orders plans by time; then those whose stages do not wait for what they send are first; then by peak memory, and then by
// comparePlans.
func (c *candidate) less(d *candidate) bool {
	switch {
	case c.time != d.time:
		return c.time < d.time
	case waits(c.plan) != waits(d.plan):
		return waits(d.plan)
	case c.peak() != d.peak():
		return c.peak() < d.peak()
	}
	return comparePlans(c.plan, d.plan) < 0
}

// cutter is the branch and bound over the cuts of one pipeline.
type cutter struct {
	search  *searcher
	pipe    *pipeline
	bounds  *bounds
	free    *freed           // nil until asked for
	least   cost.Picoseconds // a lower bound of the time of all cuts; never if none fits
	learned map[tried]bool
	choice  []int                  // of an interleaved schedule, by position: the step of [Recompute.ladder] that it is on
	rough   bool                   // not settled yet: least assumes that no more is recomputed than the options ask for
	reach   [][]cost.Picoseconds   // see [bounds.reach]
	narrow  [][][]cost.Picoseconds // the same by the number of blocks of stage 0; nil unless the search is to be thorough
	shell   bool                   // the shells of its stages do not fit; more of their memory is not known
	bare    cost.Picoseconds       // see withoutHead; computed when as much was learned as knew says
	knew    int
	laid    map[int]bool     // with how many blocks the last position fits when laid out (see layLast); 0 if it has several chunks
	head    cost.Picoseconds // see inHead; never until asked for

	ceiling cost.Picoseconds // slower plans are of no interest
	ties    []*candidate     // the fastest cuts so far, all of the same time
	cut     []partition.Stage
	budget  int              // steps that are left; below zero the search has given up
	dived   cost.Picoseconds // time of the cut that dive found; never until it found one
}

// Limits on work. If a search gives up, its result is not claimed to be optimal. Of cuts that take
// the same time, only the first maxTies are compared by memory.
const (
	quick    = 20_000    // steps of one search of a pipeline's cuts
	thorough = 5_000_000 // steps of the proof that nothing beats the winner
	maxTies  = 32
)

// descend places stages from the given one on, with so many blocks left to place. before is what
// chains take with the earlier stages.
func (c *cutter) descend(stage, left int, before passed) {
	stages := len(c.pipe.stages)
	if stage == stages {
		c.leaf()
		return
	}
	after := stages - 1 - stage
	most, least := left-after, 1
	if after == 0 {
		least = left
	}
	for n := most; n >= least && c.budget >= 0; n-- {
		reach := c.reach
		if c.narrow != nil {
			first := n
			if stage > 0 {
				first = c.cut[0].Last
			}
			if reach = c.narrow[first]; reach == nil {
				continue
			}
		}
		if reach[stage+1][left-n] > c.ceiling || c.bounds.time(stage, n) > c.ceiling {
			continue // n blocks do not fit, though more may
		}
		again := c.bounds.choices(stage, n)
		for k := range again {
			c.budget--
			r := &again[k]
			if c.bounds.from(stage, left, r, before) > c.ceiling {
				continue
			}
			first := c.pipe.skel.blocks - left
			c.cut[stage] = r.stage(first, n)
			c.descend(stage+1, left-n, c.bounds.past(before, stage, n, r.recomputation))
		}
	}
}

// narrowed bounds the cuts by the number of blocks of stage 0, and returns the least.
func (c *cutter) narrowed(ceiling cost.Picoseconds) cost.Picoseconds {
	least, blocks := never, c.pipe.skel.blocks
	c.narrow = make([][][]cost.Picoseconds, blocks+1)
	for n := 1; n <= blocks-len(c.cut)+1; n++ {
		if c.bounds.time(0, n) <= ceiling {
			c.narrow[n] = c.bounds.reach(ceiling, n)
			least = min(least, c.narrow[n][0][blocks])
		}
	}
	return least
}

// dive follows the bounds greedily to one cut. It returns nil if that takes longer than the
// ceiling; else it lowers the ceiling.
func (c *cutter) dive() *candidate {
	left, before := c.pipe.skel.blocks, passed{}
	for i := range c.cut {
		least, most := never, 0
		var best option
		for n := 1; n <= left-(len(c.cut)-1-i); n++ {
			after := c.reach[i+1][left-n]
			if after > c.ceiling || c.bounds.time(i, n) > c.ceiling {
				continue
			}
			all := c.bounds.options(i, n)
			for k := range all {
				o := &all[k]
				if time := max(after, c.bounds.from(i, left, o, before)); time < least {
					least, most, best = time, n, *o
				}
			}
		}
		if least > c.ceiling {
			return nil
		}
		c.cut[i] = best.stage(c.pipe.skel.blocks-left, most)
		left, before = left-most, c.bounds.past(before, i, most, best.recomputation)
	}
	time := c.pipe.time(c.cut)
	if c.dived = time; time > c.ceiling {
		return nil
	}
	c.ceiling = time
	return &candidate{pipe: c.pipe, plan: c.pipe.plan(c.cut), cut: slices.Clone(c.cut), time: time}
}

// climb looks for faster cuts near an even one, and near the fastest if there is one: it moves a block to another stage as long as
// that makes the cut faster, and steps are left.
func (c *cutter) climb(steps int) {
	c.budget = steps
	stages := len(c.cut)
	starts := [][]int{make([]int, stages)}
	for i := range stages {
		starts[0][i] = evenShare(c.pipe.skel.blocks, stages, i)
	}
	if len(c.ties) > 0 {
		starts = append(starts, make([]int, stages))
		for i, st := range c.ties[0].cut {
			starts[1][i] = st.Last - st.First
		}
	}
	for _, n := range starts {
		least := c.leafOf(n, never)
		for k, tried := 0, 0; tried < stages*stages && c.budget >= 0; k, tried = k+1, tried+1 {
			from, to := k%stages, k/stages%stages
			if from == to || n[from] == 1 {
				continue
			}
			n[from], n[to] = n[from]-1, n[to]+1
			if time := c.leafOf(n, least); time < least {
				least, tried = time, 0
			} else {
				n[from], n[to] = n[from]+1, n[to]-1
			}
		}
	}
}

// leafOf is [cutter.leaf] of the cut with n blocks on each stage, recomputed as their bounds are least. It is never where a stage
// does not fit, or its bound says that the cut does not take less than a time.
func (c *cutter) leafOf(n []int, less cost.Picoseconds) cost.Picoseconds {
	first := 0
	for i, n := range n {
		all := c.bounds.options(i, n)
		if len(all) == 0 || c.bounds.time(i, n) >= less {
			return never
		}
		c.cut[i] = slices.MinFunc(all, func(a, b option) int { return cmp.Compare(a.time, b.time) }).stage(first, n)
		first += n
	}
	return c.leaf()
}

// leaf simulates a complete cut, and keeps it if none is faster. It returns its time.
func (c *cutter) leaf() cost.Picoseconds {
	c.budget -= 100 + len(c.cut)*(8+c.pipe.microBatches/4) // a simulation costs as much as many steps
	c.search.stats.PlansConsidered++
	time := c.pipe.time(c.cut)
	if time > c.ceiling {
		return time
	}
	if len(c.ties) > 0 && time < c.ties[0].time {
		c.ties = c.ties[:0]
	}
	c.ceiling = time
	c.ties = append(c.ties, &candidate{pipe: c.pipe, plan: c.pipe.plan(c.cut), cut: slices.Clone(c.cut), time: time})
	if len(c.ties) == maxTies {
		c.ceiling-- // from here on only faster ones
	}
	return time
}

// pick lays out the memory of the fastest cuts and returns the one that needs the least. fits is
// false if one of them exceeds the limit.
func (c *cutter) pick() (best *candidate, fits bool) {
	slices.SortStableFunc(c.ties, func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(c.leastPeak(a.cut), c.leastPeak(b.cut)), comparePlans(a.plan, b.plan))
	})
	fits = true
	for _, x := range c.ties {
		if best != nil && c.leastPeak(x.cut) > best.peak() {
			break
		}
		if over := c.allocate(x); over >= 0 {
			c.learned[triedOf(over, x.cut[over])] = true
			fits = false
		} else if best == nil || x.less(best) {
			best = x
		}
	}
	return best, fits
}

// leastPeak bounds the memory of the fullest stage from below.
func (c *cutter) leastPeak(cut []partition.Stage) int64 {
	var peak int64
	for i, s := range cut {
		least := c.pipe.memory[i].atLeast(s.Last-s.First, recomputationOf(s), c.pipe.room[i])
		if lacks := c.pipe.skel.lacks; lacks != nil {
			least -= lacks[i]
		}
		peak = max(peak, least)
	}
	return peak
}

// allocate lays out the memory of every stage, if a bound lets all fit. It returns a stage that exceeds the limit, or -1.
func (c *cutter) allocate(x *candidate) int {
	var err error
	x.peaks, err = c.search.leastPeaks(x.plan)
	mustCompile(err)
	if over := c.search.over(x.plan, x.peaks); over >= 0 {
		return over
	}
	x.peaks, _, err = c.search.peaks(x.plan)
	mustCompile(err)
	return c.search.over(x.plan, x.peaks)
}

func newCutter(s *searcher, skel *skeleton, size int, schedule partition.Schedule) *cutter {
	p := openPipeline(skel, size, schedule)
	c := &cutter{search: s, pipe: p, learned: map[tried]bool{}, laid: map[int]bool{}, cut: make([]partition.Stage, len(skel.plan.Stages)), choice: make([]int, p.template.PP()), least: never, dived: never, head: never}
	if c.chunks() > 1 {
		p.most, p.stages = skel.most, skel.times(size, schedule)
		c.rough, c.least = true, p.time(p.interleavedCut(c.recompute(), c.choice))
		p.frame = nil
		return c
	}
	if !c.fitsShells() {
		return c
	}
	if c.rough = c.shelled(); c.rough {
		p.stages = skel.times(size, schedule)
		c.least = p.leastKept()
	} else if c.mayFit() {
		p.stages = skel.times(size, schedule)
		c.bound()
	}
	return c
}

// leastKept bounds plans with any recomputation by the times of blocks that recompute nothing. A
// block that is recomputed takes no less, except for what its recomputation does before its
// gradient has arrived, and for what it spares in a pass for weight gradients: at most all that
// is done there beside their products.
func (p *pipeline) leastKept() cost.Picoseconds {
	q := *p
	q.memory = make([]stageMemory, len(p.stages)) // unlimited
	if p.template.Schedule.SplitsBackward() {
		q.spared = p.besideProducts()
	}
	least := newBounds(&q, 1<<62, Options{Recompute: RecomputeNone}, nil).best()
	for i := range p.stages {
		ahead := [2]cost.Picoseconds{}
		for size := range ahead {
			for _, part := range p.body(i, ir.Backward, size) {
				ahead[size] += part.ahead
			}
		}
		least -= max(ahead[whole], ahead[rest])
	}
	return least
}

// besideProducts returns, by stage, what a block does in order in the pass for weight gradients beside products.
func (p *pipeline) besideProducts() []cost.Picoseconds {
	under, _ := p.skel.under(p.template.Schedule)
	phase := ir.Backward
	if under.of.plan.Schedule.SplitsBackward() {
		phase = ir.WeightGrad
	}
	all := make([]cost.Picoseconds, len(p.stages))
	for i := range all {
		if i > 0 && p.stages[i] == p.stages[i-1] {
			all[i] = all[i-1]
			continue
		}
		instrs := under.prices(kept, i, phase, rest, under.mesh(p.template.MicroBatch), ir.Coord{})
		for _, x := range under.pass(instrs, ir.WeightGrad) {
			if under.of.ofBlock[x.Node] && !x.Async && x.Node.Op != ir.OpMatMul {
				all[i] += x.time
			}
		}
	}
	return all
}

// mayFit reports whether the pipeline may fit with any recomputation that is searched. It compiles
// that recomputation only if the shells fit.
func (c *cutter) mayFit() bool {
	if !c.fitsShells() {
		return false
	}
	if c.chunks() == 1 { // what interleaved ones need is compiled as it is asked for
		c.complete()
	}
	return c.pipe.mayFit(c.search.limit)
}

// fitsShells reports whether the shells of the stages fit, or there is nothing more to compile.
func (c *cutter) fitsShells() bool {
	c.shell = c.shelled() && !c.pipe.fits(c.shells(), c.search.limit)
	return !c.shell
}

// shells is [skeleton.shells] of the pipeline.
func (c *cutter) shells() []stageMemory {
	t, slot := &c.pipe.template, int64(0)
	if o := c.pipe.skel.outline; c.search.trunk(o) != nil {
		_, slot, _ = c.search.keepsLeast(o, t.MicroBatch, t.Schedule)
	}
	return c.pipe.skel.shells(t.MicroBatch, slot)
}

// shelled reports whether there are programs with recomputation still to compile.
func (c *cutter) shelled() bool { return c.pipe.skel.most < slices.Max(c.recompute().extents()) }

// complete compiles all recomputation that is searched, for the memory of the stages.
func (c *cutter) complete() {
	c.shell = false
	p, most := c.pipe, slices.Max(c.recompute().extents())
	if c.chunks() > 1 {
		p.upTo(most)
		return
	}
	p.skel.upTo(most)
	p.remember(p.skel.memoryOf(p.template.MicroBatch))
}

// known does all that was put off, except for choosing the recomputation of an interleaved
// schedule.
func (c *cutter) known() {
	if c.chunks() == 1 {
		c.settle()
	}
	c.remember()
	if c.shell {
		c.complete()
	}
}

// remember makes known the memory of the stages of an interleaved schedule, which nobody asks for while it is rough.
func (c *cutter) remember() {
	if p := c.pipe; c.chunks() > 1 && p.memory == nil {
		size := p.template.MicroBatch
		p.remember(p.skel.memoryOf(size))
		p.stages = p.skel.times(size, p.template.Schedule)
	}
}

// settle compiles what is recomputed, finds out whether it fits, and bounds the cuts.
func (c *cutter) settle() {
	if !c.rough {
		return
	}
	c.rough, c.least, c.bare = false, never, 0
	c.remember()
	p := c.pipe
	kept := p.stages
	p.stages = nil // times with recomputation are not priced before it is known to fit
	if !c.mayFit() {
		if c.chunks() > 1 {
			p.stages = kept
		}
		return
	}
	p.stages = p.skel.times(p.template.MicroBatch, p.template.Schedule)
	c.bound()
}

func (c *cutter) bound() {
	if c.pipe.template.Chunks() > 1 {
		c.least = c.leastInterleaved()
		c.pipe.frame = nil
		return
	}
	c.bounds = newBounds(c.pipe, c.search.limit, c.search.opts, c.learned)
	c.least = c.bounds.best()
}

// solve returns the best plan that takes at most ceiling, nil if there is none, and whether that is
// certain after the given number of steps. If it is not, climb may take as many as are left to it.
func (c *cutter) solve(ceiling cost.Picoseconds, steps, climb int) (*candidate, bool) {
	defer func() { c.pipe.frame = nil }() // it is large: it has every micro-batch of every position
	c.budget = steps
	if c.pipe.template.Chunks() > 1 {
		return c.solveInterleaved(ceiling), true
	}
	for certain := false; ; {
		c.ceiling, c.ties, c.reach, c.narrow = ceiling, nil, c.bounds.reach(ceiling, 0), nil
		least := c.reach[0][c.pipe.skel.blocks]
		if steps > quick && least <= ceiling {
			least = c.narrowed(ceiling)
		}
		if c.least = max(c.least, min(least, ceiling+1)); c.least > ceiling {
			return nil, true
		}
		first := c.dive()
		c.descend(0, c.pipe.skel.blocks, passed{})
		if len(c.ties) == 0 && first != nil {
			c.ties = append(c.ties, first) // the budget was spent before descend met it
		}
		if certain = c.budget >= 0; !certain && climb > 0 {
			c.climb(climb)
			c.budget = -1
		}
		best, fits := c.pick()
		if fits {
			return best, certain
		}
		c.pipe.measureApart()
		c.bound() // a bound of memory was too low, which is now learned
	}
}
