package planner

import (
	"sort"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/partition"
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

// cheapest returns the recomputation of least time with which n blocks may fit a
// stage, that of fewer full ones if several are, and false if none fits. Time is
// all that the stage does in a step.
func (b *bounds) cheapest(stage, n int, opts Options, learned map[tried]bool) (recomputation, bool) {
	if opts.Policy == Megatron && n*len(b.pipe.stages) != b.pipe.skel.blocks {
		return recomputation{}, false // its stages are equal
	}
	m, room := &b.pipe.memory[stage], b.pipe.room[stage]
	fits := func(r recomputation) bool {
		return m.atLeast(n, r, room) <= b.limit && !learned[tried{stage, n, r}]
	}
	if choices := opts.Recompute.choices(n); fits(choices[0]) || len(choices) == 1 {
		return choices[0], fits(choices[0])
	}
	if m.least(n, room) > b.limit {
		return recomputation{}, false
	}
	var best recomputation
	bestTime := never
	for f := 0; f <= n; f++ {
		if b.work[stage].at(n, recomputation{full: f}) >= bestTime {
			break
		}
		for s := m.fewestSelective(n, f, room, b.limit); s <= n-f; s++ {
			if r := (recomputation{f, s}); fits(r) {
				if t := b.work[stage].at(n, r); t < bestTime {
					best, bestTime = r, t
				}
				break
			}
		}
	}
	return best, bestTime < never
}

// fewestSelective returns the fewest selectively recomputed of n blocks with
// which they may fit besides f recomputed in full; more than n-f if none does.
func (m *stageMemory) fewestSelective(n, f int, room codegen.Chunk, limit int64) int {
	fits := func(s int) bool { return m.atLeast(n, recomputation{f, s}, room) <= limit }
	if fits(0) {
		return 0
	}
	if m.moreSlot[selective] >= m.moreSlot[kept] {
		return 1 // selective recomputation saves nothing: nothing to skip
	}
	return 1 + sort.Search(n-f, func(k int) bool { return fits(1 + k) })
}

// least bounds n blocks with any recomputation.
func (m *stageMemory) least(n int, room codegen.Chunk) int64 {
	slot, more, temp := m.slot[kept], m.moreSlot[kept], m.temp[kept]
	for e := selective; e < extents; e++ {
		slot, more, temp = min(slot, m.slot[e]), min(more, m.moreSlot[e]), min(temp, m.temp[e])
	}
	return m.persist + int64(n-1)*m.morePersist + int64(room.Slots)*(slot+int64(n-1)*more) + int64(room.Inboxes)*m.inbox + temp
}
