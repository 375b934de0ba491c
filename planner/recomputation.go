package planner

import (
	"cmp"
	"slices"
	"sort"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// extent is how much of a block is computed again in the backward pass.
type extent int

const (
	kept      extent = iota // nothing
	selective               // its attention
	full                    // all
	extents
)

// recomputation is how many blocks of a stage are recomputed: from the first, so
// many in full and then so many selectively.
type recomputation struct{ full, selective int }

func recomputationOf(s partition.Stage) recomputation {
	return recomputation{s.Recompute, s.Selective}
}

// stage returns a stage of n blocks from first on.
func (r recomputation) stage(first, n int) partition.Stage {
	return partition.Stage{First: first, Last: first + n, Recompute: r.full, Selective: r.selective}
}

// counts returns how many of n blocks there are of each extent.
func (r recomputation) counts(n int) [extents]int {
	return [extents]int{kept: n - r.full - r.selective, selective: r.selective, full: r.full}
}

// last returns the extent of the last of n blocks, which the backward pass meets
// first.
func (r recomputation) last(n int) extent {
	switch {
	case r.full == n:
		return full
	case r.full+r.selective == n:
		return selective
	}
	return kept
}

// first returns the extent of the first block.
func (r recomputation) first() extent {
	switch {
	case r.full > 0:
		return full
	case r.selective > 0:
		return selective
	}
	return kept
}

// choices lists a stage of n blocks without recomputation, with all of them
// recomputed selectively and in full, as far as they are to choose from.
func (r Recompute) choices(n int) []recomputation {
	switch all := []recomputation{{}, {selective: n}, {full: n}}; r {
	case RecomputeNone:
		return all[:1]
	case RecomputeSelective:
		return all[1:2]
	case RecomputeFull:
		return all[2:]
	default:
		return all
	}
}

// tried is a stage with blocks of which some are recomputed, found not to fit
// when it was allocated for real.
type tried struct {
	stage, blocks int
	recomputed    recomputation
}

func triedOf(stage int, s partition.Stage) tried {
	return tried{stage, s.Last - s.First, recomputationOf(s)}
}

// option is a recomputation of a stage that may be part of the fastest plan, with a
// lower bound of the time of plans that have it.
type option struct {
	recomputation
	time cost.Picoseconds
	// late is a lower bound but for the blocks that are not before the stage: see
	// [bounds.from].
	late cost.Picoseconds
}

// options lists the recomputations with which n blocks may fit a stage, but for those
// that take at least as long as another in every stretch between two transfers, so
// that no plan is faster with them: a step ends no earlier when part of it takes
// longer. Blocks that are recomputed besides only make stretches longer, but for the
// last, which the backward pass meets first: it is computed again while the gradient
// is waited for. So of each extent of the last block the least that fits competes.
func (b *bounds) options(stage, n int, opts Options, learned map[tried]bool) []recomputation {
	if opts.Policy == Megatron && n*len(b.pipe.stages) != b.pipe.skel.blocks {
		return nil // its stages are equal
	}
	m, room := &b.pipe.memory[stage], b.pipe.room[stage]
	fits := func(r recomputation) bool {
		return m.atLeast(n, r, room) <= b.limit && !learned[tried{stage, n, r}]
	}
	if choices := opts.Recompute.choices(n); len(choices) == 1 {
		if fits(choices[0]) {
			return choices
		}
		return nil
	}
	if fits(recomputation{}) && b.ahead[stage] == 0 {
		return []recomputation{{}}
	}
	if m.least(n, room) > b.limit {
		return nil
	}
	var all []recomputation
	for f := 0; f < n; f++ {
		for s := m.fewestSelective(n, f, room, b.limit); s < n-f; s++ {
			if r := (recomputation{f, s}); fits(r) {
				all = append(all, r)
				break
			}
		}
		if len(all) > 0 && all[len(all)-1] == (recomputation{f, 0}) {
			break // more in full would only be more
		}
	}
	for f := 0; f < n; f++ {
		if r := (recomputation{f, n - f}); fits(r) {
			all = append(all, r)
			break
		}
	}
	if r := (recomputation{full: n}); fits(r) {
		all = append(all, r)
	}
	return b.undominated(stage, n, all)
}

// undominated leaves out what takes at least as long as another everywhere; of equals
// all but the one of the least work, and of those the one with the fewest full ones.
// With overlap, where comparing them takes longer than bounding them, it sorts them.
func (b *bounds) undominated(stage, n int, all []recomputation) []recomputation {
	slices.SortFunc(all, func(x, y recomputation) int {
		return cmp.Or(cmp.Compare(b.work[stage].at(n, x), b.work[stage].at(n, y)), cmp.Compare(x.full, y.full), cmp.Compare(x.selective, y.selective))
	})
	if len(all) < 2 || b.pipe.template.Overlap {
		return all
	}
	var kept []recomputation
	var times [][]cost.Picoseconds
	for _, r := range all {
		mine := b.pipe.stretches(stage, n, r)
		dominated := slices.ContainsFunc(times, func(other []cost.Picoseconds) bool {
			for i := range other {
				if other[i] > mine[i] {
					return false
				}
			}
			return true
		})
		if !dominated {
			kept, times = append(kept, r), append(times, mine)
		}
	}
	return kept
}

// stretches lists the time of everything that a stage does between two transfers, in a
// plan without overlap.
func (p *pipeline) stretches(stage, n int, r recomputation) []cost.Picoseconds {
	var all []cost.Picoseconds
	for _, phase := range []ir.Phase{ir.Backward, ir.WeightGrad} {
		for size := range 2 {
			body := p.body(stage, phase, size)
			for i := range body {
				all = append(all, body[i].at(n, r))
			}
		}
	}
	return all
}

// fewestSelective returns the fewest selectively recomputed of n blocks with
// which they may fit besides f recomputed in full; more than n-f if none does.
func (m *stageMemory) fewestSelective(n, f int, room codegen.Chunk, limit int64) int {
	fits := func(s int) bool { return m.atLeast(n, recomputation{f, s}, room) <= limit }
	if fits(0) {
		return 0
	}
	if m.moreSlot[selective] >= m.moreSlot[kept] || m.apart[selective] > m.apart[kept] {
		return 1 // selective recomputation may save nothing: nothing to skip
	}
	return 1 + sort.Search(n-f, func(k int) bool { return fits(1 + k) })
}

// least bounds n blocks with any recomputation.
func (m *stageMemory) least(n int, room codegen.Chunk) int64 {
	slot, more, temp, apart := m.slot[kept], m.moreSlot[kept], m.temp[kept], m.apart[kept]
	for e := selective; e < extents; e++ {
		slot, more, temp, apart = min(slot, m.slot[e]), min(more, m.moreSlot[e]), min(temp, m.temp[e]), min(apart, m.apart[e])
	}
	return m.persist + int64(n-1)*m.morePersist + int64(room.Slots)*max(slot+int64(n-1)*more, int64(n)*apart) + int64(room.Inboxes)*m.inbox + temp
}
