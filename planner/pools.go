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
			prices = append(prices, price.OnKinds(kinds))
		}
	}
	return prices
}

// leastOn is [searcher.least] of times that depend on the kinds of devices: with each time
// that of the fastest of them, or by [rates.least] where that is more.
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
	all := make(rates, o.pp)
	for at := range all {
		first, last := times(s.cluster.KindsAt(&plan, at))
		if at == 0 {
			fastest = [2]workTimes{*first, *last}
		} else {
			fastest[0].fastest(first)
			fastest[1].fastest(last)
		}
		of := func(part int) float64 { return float64(cost.Picoseconds(m-1)*first[part].all + last[part].all) }
		r := rate{all: of(inBlock), way: float64(last[inBlock].way), update: float64(last[inBlock].update)}
		if schedule == partition.ZeroBubble { // gradients of weights are left to do
			r.way = float64(last[inBlock].forward)
		}
		if at == 0 {
			r.ends = of(beforeBlocks)
		}
		if at == o.pp-1 {
			r.ends += of(afterBlocks)
		}
		all[at] = r
	}
	bound := s.least(o, &fastest[0], &fastest[1], m, schedule)
	if o.chunks > 1 { // cut evenly
		for i, st := range evenCut(s.graphs.blocks, o.stages(), func(int) extent { return kept }) {
			all[i%o.pp].blocks += float64(st.Last - st.First)
		}
		for _, r := range all {
			bound = max(bound, cost.Picoseconds(r.blocks*(r.all+r.update)))
		}
		return bound
	}
	return max(bound, all.least(float64(s.graphs.blocks), gathersAhead(&fastest[0], &fastest[1])))
}

// gathersAhead bounds what a position may do of a pass before its gradient is there.
func gathersAhead(first, last *workTimes) float64 {
	return float64(max(first[inBlock].ahead, last[inBlock].ahead) + max(first[afterBlocks].ahead, last[afterBlocks].ahead))
}

// rate is what a position of a pipeline takes at least, in picoseconds.
type rate struct {
	all    float64 // one block, all micro-batches
	way    float64 // one block, one micro-batch there and back: what the position before waits for
	update float64 // one block, once
	ends   float64 // what is before the first block and after the last, all micro-batches
	blocks float64 // that it has, where that is known
}

// rates are those of all positions.
type rates []rate

// least bounds the time T of a pipeline of positions that have n_i blocks between them,
// whose numbers are open. A position does all its work:
//
//	ends_i + n_i (all_i + update_i) <= T,
//
// and begins it when micro-batch 0 has come through the positions before, to which the
// last one goes back (PLANNING.md 2.7), so that but for what is done ahead
//
//	ends_i + n_i all_i + sum over j < i of n_j way_j <= T.
//
// The sum of either over the positions, times weights for which every n_j has a factor of
// at least 1 in it, has all blocks on its left side and T times all weights on its right.
func (p rates) least(blocks, ahead float64) cost.Picoseconds {
	bound := 0.0
	for _, flows := range []bool{false, true} {
		left, weights := blocks, 0.0
		for i := len(p) - 1; i >= 0; i-- {
			r, each, way := p[i], p[i].all+p[i].update, 0.0
			if flows {
				each, way = r.all, r.way
			}
			if each == 0 {
				return 0 // the whole model counts as one block, and is before it
			}
			weight := max(0, 1-way*weights) / each
			left += weight * r.ends
			weights += weight
		}
		t := left / weights
		if flows {
			t -= float64(len(p)) * ahead
		}
		bound = max(bound, t)
	}
	return cost.Picoseconds(bound * (1 - 1e-9))
}

// fastest takes the smaller of each two times.
func (t *workTimes) fastest(u *workTimes) {
	for i := range t {
		t[i].all, t[i].forward = min(t[i].all, u[i].all), min(t[i].forward, u[i].forward)
		t[i].way, t[i].ahead = min(t[i].way, u[i].way), max(t[i].ahead, u[i].ahead)
		t[i].update = min(t[i].update, u[i].update)
	}
}
