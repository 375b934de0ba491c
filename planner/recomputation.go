package planner

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// What a stage may recompute, and which of these choices compete. A stage recomputes its first blocks
// in full, the next ones in part, and the others not at all ([recomputation]). Recomputing more than
// memory makes necessary can only pay in the block that the backward pass meets first, so few choices
// remain for each number of blocks ([bounds.options]); bound.go and cut.go branch over those.

// extent is how much of a block is recomputed in the backward pass.
type extent int

const (
	kept      extent = iota // nothing
	pointwise               // its norms and activation functions
	selective               // its attention
	full                    // all
	extents
)

// partial reports whether a part of a block is recomputed, not all.
func (e extent) partial() bool { return e == pointwise || e == selective }

// covers reports whether the result of an op of a block is recomputed.
func (e extent) covers(op ir.Op) bool {
	switch e {
	case pointwise:
		return partition.Pointwise(op)
	case selective:
		return op == ir.OpAttention || op == ir.OpAttentionKV
	}
	return e == full
}

// drops reports whether a value is such a result, wherever it lies and in whatever precision.
func (e extent) drops(v *ir.Value) bool {
	n := v.Def
	for len(n.Args) > 0 && (n.Op.Class() == ir.Comm || n.Op == ir.OpCast) {
		n = n.Args[0].Def
	}
	return e.covers(n.Op)
}

// recomputation is how many blocks of a stage are recomputed: the first ones in full, the next ones
// selectively or pointwise.
type recomputation struct{ full, selective, pointwise int }

func recomputationOf(s partition.Stage) recomputation {
	return recomputation{s.Recompute, s.Selective, s.Pointwise}
}

// uniform recomputes n blocks to one extent.
func uniform(e extent, n int) recomputation {
	var counts [extents]int
	counts[e] = n
	return recomputation{counts[full], counts[selective], counts[pointwise]}
}

// stage returns a stage of n blocks from first on.
func (r recomputation) stage(first, n int) partition.Stage {
	return partition.Stage{First: first, Last: first + n, Recompute: r.full, Selective: r.selective, Pointwise: r.pointwise}
}

// some returns how many blocks recompute something.
func (r recomputation) some() int { return r.full + r.selective + r.pointwise }

// counts returns how many of n blocks are recomputed to each extent.
func (r recomputation) counts(n int) [extents]int {
	return [extents]int{kept: n - r.some(), pointwise: r.pointwise, selective: r.selective, full: r.full}
}

// of returns the extent of a block of the stage.
func (r recomputation) of(block int) extent {
	switch {
	case block < r.full:
		return full
	case block < r.full+r.selective:
		return selective
	case block < r.some():
		return pointwise
	}
	return kept
}

// until returns the first block after the given one that has another extent, or a number beyond all
// blocks.
func (r recomputation) until(block int) int {
	for _, end := range []int{r.full, r.full + r.selective, r.some()} {
		if block < end {
			return end
		}
	}
	return math.MaxInt
}

// last returns the extent of the last of n blocks, which the backward pass meets first.
func (r recomputation) last(n int) extent { return r.of(n - 1) }

// first returns the extent of the first block.
func (r recomputation) first() extent { return r.of(0) }

// choices lists the ways to recompute all n blocks of a stage to the same extent.
func (r Recompute) choices(n int) []recomputation {
	var all []recomputation
	for _, e := range r.extents() {
		all = append(all, uniform(e, n))
	}
	return all
}

// tried is a stage with some blocks recomputed that was found not to fit when its memory was laid
// out.
type tried struct {
	stage, blocks int
	recomputed    recomputation
}

func triedOf(stage int, s partition.Stage) tried {
	return tried{stage, s.Last - s.First, recomputationOf(s)}
}

// option is a recomputation of a stage that may be part of the fastest plan, with a lower bound of
// the time of plans that have it.
type option struct {
	recomputation
	time cost.Picoseconds
	// flow and late are lower bounds too, by turn, without the blocks that do not lie before the stage: see
	// [bounds.from].
	flow, late [3]cost.Picoseconds
	around     cost.Picoseconds // likewise, of the stage's rounds
	passes     cost.Picoseconds // all its passes, without weight gradients if those have passes of their own
}

// recomputations lists those with which n blocks may fit a stage and that may be part of the fastest
// plan.
func (b *bounds) recomputations(stage, n int) []recomputation {
	var all []recomputation
	b.eachThatFits(stage, n, func(r recomputation) { all = append(all, r) })
	if len(all) < 2 {
		return all
	}
	return b.undominated(stage, n, all)
}

// eachThatFits calls f for the recomputations with which n blocks may fit a stage and that may be
// part of the fastest plan, and for some that [bounds.undominated] leaves out. A step ends no earlier
// if a part of it takes longer, so a recomputation is left out if it takes at least as long as
// another one in every stretch between two transfers. Recomputing one more block makes stretches
// longer, with one exception: the last block, which the backward pass meets first, is recomputed
// while its gradient is waited for. So for each extent of the last block, the least recomputation
// that fits competes.
func (b *bounds) eachThatFits(stage, n int, f func(recomputation)) {
	if b.opts.Policy == Megatron && n*len(b.pipe.stages) != b.pipe.skel.blocks {
		return // stages are equal
	}
	m, room := &b.pipe.memory[stage], b.pipe.room[stage]
	fits := func(r recomputation) bool { return b.fits(stage, n, r, b.learned) }
	if choices := b.opts.Recompute.choices(n); len(choices) == 1 {
		if fits(choices[0]) {
			f(choices[0])
		}
		return
	}
	if fits(recomputation{}) && b.ahead[stage] == 0 {
		f(recomputation{})
		return
	}
	if m.least(n, room) > b.limit {
		return
	}
	partly := []extent{pointwise, selective}
	var last, next [extents]int // the fewest with one block less in full, and as many as that suggests now
	for count := range n {      // the last block kept
		if r := (recomputation{full: count}); fits(r) {
			f(r)
			break // more in full only takes longer
		}
		for _, e := range partly {
			few := m.fewest(e, n, count, next[e], room, b.limit)
			last[e], next[e] = few, 2*few-last[e]
			for k := few; k < n-count; k++ {
				if r := mixed(count, e, k); fits(r) {
					f(r)
					break
				}
			}
		}
	}
	for _, e := range partly { // the last block recomputed in part
		for count := range n {
			if r := mixed(count, e, n-count); fits(r) {
				f(r)
				break
			}
		}
	}
	if r := (recomputation{full: n}); fits(r) { // or in full
		f(r)
	}
}

// fits reports whether a stage with n blocks may fit, as far as its bound and what was learned say.
func (b *bounds) fits(stage, n int, r recomputation, learned map[tried]bool) bool {
	return b.pipe.memory[stage].atLeast(n, r, b.pipe.room[stage]) <= b.limit && !learned[tried{stage, n, r}]
}

// mixed recomputes f blocks in full and so many others to another extent.
func mixed(f int, e extent, count int) recomputation {
	r := uniform(e, count)
	r.full += f
	return r
}

// undominated leaves out recomputations that take at least as long as another one in every stretch. Of
// equals it keeps the one of the least work, then the one with the fewest full blocks. With overlap it
// only sorts them, as comparing takes longer than bounding: see [bounds.choices].
func (b *bounds) undominated(stage, n int, all []recomputation) []recomputation {
	slices.SortFunc(all, func(x, y recomputation) int {
		return cmp.Or(cmp.Compare(b.work[stage].at(n, x), b.work[stage].at(n, y)), cmp.Compare(x.full, y.full), cmp.Compare(x.selective, y.selective), cmp.Compare(x.pointwise, y.pointwise))
	})
	if b.pipe.template.Overlap {
		return all
	}
	return undominated(all, func(r recomputation) []cost.Picoseconds { return b.pipe.stretches(stage, n, r) })
}

// undominated leaves out what takes at least as long, in every stretch, as some element before it.
func undominated[T any](all []T, stretches func(T) []cost.Picoseconds) []T {
	if len(all) < 2 {
		return all
	}
	var kept []T
	var times [][]cost.Picoseconds
	for _, x := range all {
		mine := stretches(x)
		dominated := slices.ContainsFunc(times, func(other []cost.Picoseconds) bool {
			for i := range other {
				if other[i] > mine[i] {
					return false
				}
			}
			return true
		})
		if !dominated {
			kept, times = append(kept, x), append(times, mine)
		}
	}
	return kept
}

// choices returns the options of a stage with n blocks. With overlap it is only here that dominated
// ones are left out, as few numbers of blocks are ever asked for.
func (b *bounds) choices(stage, n int) []option {
	all, of := b.options(stage, n), b.blocks(stage, n)
	if b.pipe.template.Overlap && !of.compared {
		of.compared, of.front = true, nil
		of.options = undominated(all, func(o option) []cost.Picoseconds { return b.pipe.stretches(stage, n, o.recomputation) })
	}
	return of.options
}

// stretches lists the times of everything that a stage does between two transfers. With overlap, if
// the communication stream does anything, it lists instead the coefficients by which these times
// follow from the marks of its bodies (see flow).
func (p *pipeline) stretches(stage, n int, r recomputation) []cost.Picoseconds {
	all := make([]cost.Picoseconds, 0, 16)
	for _, phase := range []ir.Phase{ir.Backward, ir.WeightGrad} {
		for size := range 2 {
			body := p.body(stage, phase, size)
			if len(body) > 0 && body[0].flow.streams() {
				f := body[0].flow // not remembered: few of these are ever simulated
				times := f.run(f.expand(tally{n}, r), tally{n})
				for _, span := range times.spans {
					all = append(append(all, span.time), span.since...)
				}
				all = append(all, times.leaves...)
				continue
			}
			for i := range body {
				all = append(all, body[i].at(n, r))
			}
		}
	}
	return all
}

// fewest returns the fewest of n blocks, at least one, that must be recomputed to an extent besides
// f in full for the stage to fit, with none of the others recomputed; n-f or more if it never fits.
// It looks near a guess first.
func (m *stageMemory) fewest(e extent, n, f, guess int, room codegen.Chunk, limit int64) int {
	fits := func(k int) bool { return m.atLeast(n, mixed(f, e, k), room) <= limit }
	if m.moreSlot[e] >= m.moreSlot[kept] || m.apart[e] > m.apart[kept] {
		return 1 // this recomputation may save nothing, so no number can be skipped
	}
	// Memory falls with k, except that a third block is between two others.
	k := 1
	if m.tempMiddle[e] > m.temp[kept] {
		for ; k <= 2; k++ {
			if fits(k) {
				return k
			}
		}
	}
	return k + searchNear(max(0, n-f-k), guess-k, func(i int) bool { return fits(k + i) })
}

// searchNear is [sort.Search] that takes few calls of f if the result is near a guess.
func searchNear(n, guess int, f func(int) bool) int {
	low, high := 0, n // the result is one of these or lies between them
	for at, step := min(max(guess, 0), n-1), 1; low <= at && at < high; step *= 2 {
		if f(at) {
			high = at
			at -= step
		} else {
			low = at + 1
			at += step
		}
	}
	return low + sort.Search(high-low, func(i int) bool { return f(low + i) })
}

// least bounds the arena of n blocks from below, with any recomputation.
func (m *stageMemory) least(n int, room codegen.Chunk) int64 {
	slot, more, temp, apart := m.slot[kept], m.moreSlot[kept], m.temp[kept], m.apart[kept]
	for e := kept + 1; e < extents; e++ {
		slot, more, temp, apart = min(slot, m.slot[e]), min(more, m.moreSlot[e]), min(temp, m.temp[e]), min(apart, m.apart[e])
	}
	slots := max(int64(room.Slots)*max(slot+int64(n-1)*more, m.apartFixed+int64(n)*apart), m.sums.of(n))
	return m.persist + int64(n-1)*m.morePersist + slots + int64(room.Inboxes)*m.inbox + max(temp, m.update.of(n))
}
