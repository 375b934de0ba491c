package planner

import (
	"cmp"
	"math"
	"slices"

	"github.com/autopar/autopar/partition"
)

// This file names the closest plan where none fits: the one whose largest stage needs the least memory. It is a best-first
// search with three bounds, each tighter than the one before: what the blocks of an outline keep (sketch.go); bounds of
// stages (memory.go), which name a cut greedily; and exact layouts of such cuts. It ends when no bound is below the best
// layout.

// lean is a pipeline, searched for the cut with the least memory: bounds name a cut, its stages are laid out, and their exact
// sizes replace their bounds in the choice of the next cut.
type lean struct {
	*pipeline
	outline
	recompute Recompute
	opts      *Options
	known     map[tried]int64 // bytes of stages that were laid out, or of positions of interleaved pipelines
	least     int64           // a lower bound of the largest stage of any of its plans
}

// infeasible returns the error that names the closest plan. points are the pipelines that the search has looked at.
func (s *searcher) infeasible(points []*point) error {
	var all []*lean
	var found *lean // the one with the least bound
	open := func(o outline, p *pipeline) {
		x := &lean{pipeline: p, outline: o, recompute: s.opts.recompute(o.replicate), opts: &s.opts, known: map[tried]int64{}}
		x.least = x.bound()
		if all = append(all, x); found == nil || x.least < found.least {
			found = x
		}
	}
	for _, b := range points {
		b.known()
		open(b.outline(), b.pipe)
	}
	var closest *partition.Plan
	least := int64(math.MaxInt64) // what the closest plan needs, and by how much its devices have less than the limit
	lay := func(x *lean) {
		if plan, needs := s.layLeanest(x, least); plan != nil {
			closest, least = plan, needs
		}
	}
	// What is left of the space is compiled in order of what its blocks keep, up to what the best layout needs. The first
	// layout is made when no pipeline to come can have a lower bound than the best so far.
	for x := range s.byKeeps() {
		if found != nil && x.keeps >= found.least {
			if closest == nil {
				lay(found)
			}
			if x.keeps >= least {
				break
			}
		}
		all := s.opts.recompute(x.outline.replicate).extents()
		x.skel.upTo(all[len(all)-1])
		open(x.outline.whole(), newPipeline(x.skel, x.skel.memoryOf(x.size), x.size, x.schedule))
	}
	if found == nil && s.refused == nil {
		return s.sizeless()
	}
	if found == nil {
		return s.noProgram()
	}
	// Pipelines whose bound is below the best layout are laid out, then those with more slices of the loss than they have.
	bound := int64(math.MaxInt64) // of the pipelines that may have a plan with less memory than those that were laid out
	for len(all) > 0 {
		slices.SortStableFunc(all, func(a, b *lean) int { return cmp.Compare(a.least, b.least) })
		for _, x := range all {
			if x.least >= least {
				break
			}
			if lay(x); !x.certain() {
				bound = min(bound, x.least)
			}
		}
		before := all
		all = nil
		for _, x := range before {
			more := x.outline
			more.slices = 2 * max(1, more.slices)
			if !s.opts.searchesSlices() || !slices.Contains(s.slicesBeside(more), more.slices) || x.withoutHead() >= least {
				continue
			}
			if skel, err := s.skeleton(more); err == nil {
				size := x.template.MicroBatch
				open(more, newPipeline(skel, skel.memoryOf(size), size, x.template.Schedule))
			}
		}
	}
	return s.missed(closest, max(0, least-bound))
}

// missed returns the error for the closest plan. Another plan may need less, by unsure bytes at most.
func (s *searcher) missed(closest *partition.Plan, unsure int64) error {
	prog, peaks, err := s.allocate(closest)
	if err != nil {
		return err
	}
	e := &InfeasibleError{Closest: closest}
	for i, peak := range peaks {
		if limit := s.limitAt(closest, i); e.Limit == 0 || peak-limit > e.Needs-e.Limit {
			e.Stage, e.Needs, e.Limit = i, peak, limit
		}
	}
	e.AtLeast = e.Needs - unsure
	e.Largest, e.LargestBytes = largestPart(prog.Stages[e.Stage])
	return e
}

// layLeanest lays out plans of a pipeline that may need less than so many bytes, and returns the one that needs the least and
// how much that is, nil if none needs less. Layouts need more than their bounds: unless the pipeline is certain, it stops at
// a bound that leaves no room for the least difference seen so far. (Not with zero-bubble schedules, whose bounds miss much
// of one cut and little of another.)
func (s *searcher) layLeanest(x *lean, least int64) (closest *partition.Plan, needs int64) {
	missed := int64(0)
	for {
		cut, may := x.leanest()
		if may+missed >= least {
			return closest, least
		}
		plan := x.plan(cut)
		peaks, _, err := s.peaks(plan)
		mustCompile(err)
		before, most := len(x.known), int64(0)
		for at, peak := range peaks {
			if x.skel.lacks != nil {
				peak += x.skel.lacks[at]
			}
			x.known[triedOf(at, cut[at])], most = peak, max(most, peak)
		}
		if miss := most - may; !x.certain() && !x.template.Schedule.SplitsBackward() && (missed == 0 || miss < missed) {
			missed = miss
		}
		if most < least {
			closest, least = plan, most
		}
		if len(x.known) == before {
			return closest, least
		}
	}
}

// bound returns a lower bound of the largest stage of any plan of the pipeline.
func (x *lean) bound() int64 {
	_, least := x.leanest()
	if x.template.Schedule.SplitsBackward() {
		_, least = x.leanestBy(func(stage, n int) (int64, recomputation) {
			return x.memory[stage].least(n, x.room[stage]), recomputation{}
		})
	}
	return least
}

// withoutHead is bound with any number of slices of the loss.
func (x *lean) withoutHead() int64 {
	bare := *x.pipeline
	bare.headless, bare.memory = true, slices.Clone(bare.memory)
	bare.leaveHead()
	return (&lean{pipeline: &bare, recompute: x.recompute, opts: x.opts}).bound()
}

// certain reports whether layLeanest goes through all plans of the pipeline: it has only one cut, and layouts compare all its
// recomputations.
func (x *lean) certain() bool {
	return x.template.Chunks() > 1 || x.skel.blocks == len(x.template.Stages) || len(x.template.Stages) == 1 && x.recompute != RecomputeSearched
}

// leanest returns the cut whose largest stage is smallest, and its bytes, by layouts where they are known and else by bounds.
func (x *lean) leanest() ([]partition.Stage, int64) {
	if x.template.Chunks() > 1 {
		return x.leanestInterleaved()
	}
	return x.leanestBy(x.need)
}

// leanestBy is leanest without interleaving. known returns the bytes of a stage with n blocks, with the recomputation that has
// the least. It is greedy: each further block goes to the stage that is smallest with it.
func (x *lean) leanestBy(known func(stage, n int) (int64, recomputation)) ([]partition.Stage, int64) {
	stages := len(x.template.Stages)
	need := make([]int64, stages) // with one block more
	counts := slices.Repeat([]int{1}, stages)
	if x.opts.Policy == Megatron {
		counts = slices.Repeat([]int{x.skel.blocks / stages}, stages) // its stages are equal
	}
	for i := range need {
		need[i], _ = known(i, counts[i]+1)
	}
	for left := x.skel.blocks - counts[0]*stages; left > 0; left-- {
		best := 0
		for i := range need {
			if need[i] < need[best] {
				best = i
			}
		}
		counts[best]++
		need[best], _ = known(best, counts[best]+1)
	}
	var cut []partition.Stage
	var peak int64
	first := 0
	for i, n := range counts {
		bytes, r := known(i, n)
		peak = max(peak, bytes)
		cut = append(cut, r.stage(first, n))
		first += n
	}
	return cut, peak
}

// need returns the least bytes of a stage with n blocks, and the recomputation that has them.
func (x *lean) need(stage, n int) (bytes int64, least recomputation) {
	for i, r := range x.recompute.corners(n) {
		b, known := x.known[tried{stage, n, r}]
		if !known {
			b = x.memory[stage].atLeast(n, r, x.room[stage])
		}
		if i == 0 || b < bytes {
			bytes, least = b, r
		}
	}
	return bytes, least
}

// corners lists recomputations of n blocks, one of which has the least bound of memory: except for zero-bubble slots, the bound
// is linear in the number of blocks of each extent as long as there are some, so its minimum is at a corner.
func (r Recompute) corners(n int) []recomputation {
	all := r.choices(n)
	if len(all) == 1 {
		return all
	}
	for _, e := range []extent{pointwise, selective} {
		for _, few := range [][2]int{{0, 1}, {0, n - 1}, {1, 0}, {n - 1, 0}, {1, 1}, {1, n - 1}, {n - 1, 1}, {1, n - 2}, {n - 2, 1}} {
			if few[0] >= 0 && few[1] >= 0 && few[0]+few[1] <= n {
				all = append(all, mixed(few[0], e, few[1]))
			}
		}
	}
	return all
}

// leanestInterleaved is leanest with several chunks: every position takes what needs the least.
func (x *lean) leanestInterleaved() ([]partition.Stage, int64) {
	choice := make([]int, x.template.PP())
	var peak int64
	for at := range choice {
		var best int
		var least int64
		for i := range x.recompute.ladder() {
			choice[at] = i
			cut := x.interleavedCut(x.recompute, choice)
			bytes, known := x.known[triedOf(at, cut[at])]
			if !known {
				bytes = x.interleavedPeak(cut, at)
			}
			if i == 0 || bytes < least {
				best, least = i, bytes
			}
		}
		choice[at] = best
		peak = max(peak, least)
	}
	return x.interleavedCut(x.recompute, choice), peak
}
