package planner

import (
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// On a cluster of several kinds of devices ([cost.Pool]) a position of the pipeline has
// the speed and the memory of the kinds that its ranks lie on, and the order of the
// pools is part of the space. The price of a position is its own in any case (each, in
// price.go), and so are the bounds that follow from prices. What is here is the rest:
// its memory, and floors.

// limitAt returns the bytes that a rank at a position of a plan may take.
func (s *searcher) limitAt(p *partition.Plan, position int) int64 {
	if len(s.cluster.Pools) == 0 {
		return s.limit
	}
	return min(s.limit, s.cluster.MemoryAt(p, position))
}

// lacks returns by how much less the devices of each position of a plan have than the
// limit, which is that of the roomiest kind: as if so much of it were taken. It is nil
// where there is one kind.
func (s *searcher) lacks(p *partition.Plan) []int64 {
	if len(s.cluster.Pools) == 0 {
		return nil
	}
	lacks := make([]int64, p.PP())
	for at := range lacks {
		lacks[at] = s.limit - s.limitAt(p, at)
	}
	return lacks
}

// over returns a position at which a plan needs more memory than there is, -1 where it
// fits.
func (s *searcher) over(p *partition.Plan, peaks []int64) int {
	for i, peak := range peaks {
		if peak > s.limitAt(p, i) {
			return i
		}
	}
	return -1
}

// on returns the prices of the work on some kinds of devices, by how its groups may lie
// in positions on those.
func (w *work) on(kinds cost.Kinds) []*cost.Program {
	if kinds == 0 {
		return w.prices
	}
	var prices []*cost.Program
	for i, price := range w.prices {
		if w.kinds[i].Within(kinds) {
			prices = append(prices, price.Under(kinds))
		}
	}
	return prices
}

// leastOn is [searcher.least] of times that depend on the kinds of devices.
//
// On several kinds it is the bound with each time that of the fastest of them, or what
// follows from every position doing all its work. Let a be the time of one block at a
// position, for all micro-batches and the update, and f that of what is before the first
// block or after the last. With n blocks at every position f + n·a <= T; so the sum of
// (T-f)/a over the positions is at least the number of blocks.
func (s *searcher) leastOn(o outline, m int, schedule partition.Schedule, times func(cost.Kinds) (first, last *workTimes)) cost.Picoseconds {
	if len(s.cluster.Pools) == 0 {
		first, last := times(0)
		return s.least(o, first, last, m, schedule)
	}
	plan := partition.Plan{
		PlanNGPUs: o.plan, RuntimeNGPUs: s.opts.RuntimeNGPUs, DP: o.dp, CP: o.cp, TP: o.tp,
		Stages: make([]partition.Stage, o.pp), PoolOrder: s.cluster.Orders()[o.order],
	}
	var fastest [2]workTimes
	bound, blocks, speed := cost.Picoseconds(0), float64(s.graphs.blocks), 0.0
	cut := evenCut(s.graphs.blocks, o.stages(), func(int) extent { return kept })
	for at := range o.pp {
		first, last := times(s.cluster.KindsAt(&plan, at))
		if at == 0 {
			fastest = [2]workTimes{*first, *last}
		} else {
			fastest[0].fastest(first)
			fastest[1].fastest(last)
		}
		all := func(part int) cost.Picoseconds { return cost.Picoseconds(m-1)*first[part].all + last[part].all }
		ends := cost.Picoseconds(0)
		if at == 0 {
			ends += all(beforeBlocks)
		}
		if at == o.pp-1 {
			ends += all(afterBlocks)
		}
		block := all(inBlock) + last[inBlock].update
		if block == 0 {
			continue // the whole model counts as one block, and is before it
		}
		speed += 1 / float64(block)
		blocks += float64(ends) / float64(block)
		if o.chunks > 1 { // cut evenly
			mine := 0
			for i := at; i < len(cut); i += o.pp {
				mine += cut[i].Last - cut[i].First
			}
			bound = max(bound, cost.Picoseconds(mine)*block)
		}
	}
	if speed > 0 {
		bound = max(bound, cost.Picoseconds(blocks/speed*(1-1e-9)))
	}
	return max(bound, s.least(o, &fastest[0], &fastest[1], m, schedule))
}

// fastest takes the smaller of each two times.
func (t *workTimes) fastest(u *workTimes) {
	for i := range t {
		t[i].all, t[i].forward = min(t[i].all, u[i].all), min(t[i].forward, u[i].forward)
		t[i].way, t[i].ahead = min(t[i].way, u[i].way), max(t[i].ahead, u[i].ahead)
		t[i].update = min(t[i].update, u[i].update)
	}
}
