package galvatron

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// This file searches Galvatron's plan space under Galvatron's cost model, by branch and bound over mixes of
// strategies.

// Search returns the plan of least cost for a batch among those that Galvatron searches, and the number of outlines
// that it considered. An outline fixes the numbers of micro-batches and stages, how many devices may share a sample,
// whether tensor parallelism is used, and the strategy of what is outside the layers.
//
// Stages have the numbers of layers that Galvatron gives them. (Its cost of a pipeline assumes that the first or last
// stage is the slowest, so other cuts could hide layers in the middle.) Within a stage, layers may have any mix of
// strategies. The time of a stage is bounded from below by the fastest fractional mix of its layers that fits, which
// has at most two strategies. This bound rules out most plans; mixes of two strategies are tried first, so that it
// does so early.
//
// Search does not consider stages that take longer than necessary so that later stages hide their gradient
// reductions, which the cost model might reward.
func (m *Model) Search(batch int) (*Plan, int, error) {
	s := &searcher{Model: m, batch: batch, best: math.Inf(1)}
	outlines := s.outlines()
	for _, kinds := range []int{2, len(outlines)} {
		for _, o := range outlines {
			s.outline(o, kinds)
		}
	}
	if s.plan == nil {
		return nil, len(outlines), fmt.Errorf("galvatron: no plan for a batch of %d fits %d MB on %d devices", batch, m.Limit(), m.Devices)
	}
	return s.plan, len(outlines), nil
}

type searcher struct {
	*Model
	batch int
	best  float64
	plan  *Plan
}

// outline is what all stages of a plan have in common.
type outline struct {
	chunks, stages, sharing int
	tensor                  bool // tensor parallelism is among the strategies
	embedding               Strategy
}

// strategies lists the strategies of a layer, with recomputation and without.
func (m *Model) strategies(batch, chunks, stages, sharing int, tensor bool) []Strategy {
	var all []Strategy
	for n := 1; n <= sharing && n*stages <= m.Devices; n *= 2 {
		dp := m.Devices / stages / n
		if dp > batch/chunks || m.Devices%(stages*n) != 0 {
			continue
		}
		types := []Type{ZeRO2, ZeRO3}
		if dp == 1 {
			types = []Type{DDP}
		}
		for _, t := range types {
			for _, checkpoint := range []bool{false, true} {
				if tensor || n == 1 {
					all = append(all, Strategy{stages, n, 1, dp, t, checkpoint})
				}
				if n > 1 {
					all = append(all, Strategy{stages, 1, n, dp, t, checkpoint})
				}
			}
		}
	}
	return slices.DeleteFunc(all, func(s Strategy) bool { return !m.covers(s) })
}

// outlines lists all outlines. One with a larger buffer also includes plans that need less of it, which are cheaper
// with a smaller one.
func (s *searcher) outlines() []outline {
	var all []outline
	for chunks := 1; chunks <= s.batch; chunks++ {
		for stages := 1; stages <= min(chunks, s.Layers, s.Devices) && s.batch%chunks == 0; stages *= 2 {
			for sharing := 1; sharing*stages <= s.Devices; sharing *= 2 {
				for _, tensor := range []bool{false, true} {
					if !tensor && sharing*stages*2 <= s.Devices || tensor && sharing == 1 {
						continue // without a buffer the largest sharing includes all others; with one rank there is no tensor parallelism
					}
					for _, e := range s.strategies(s.batch, chunks, stages, sharing, tensor) {
						if !e.Checkpoint {
							all = append(all, outline{chunks, stages, sharing, tensor, e})
						}
					}
				}
			}
		}
	}
	return all
}

// mix is layers of a stage with their total time and memory: some with one strategy, and the rest another mix.
type mix struct {
	plain, sync float64
	memory      int
	strategy    Strategy
	layers      int // number of layers with that strategy
	kinds       int // number of strategies in all
	rest        *mix
}

// all lists the strategy of every layer.
func (x *mix) all() []Strategy {
	if x.rest == nil {
		return nil
	}
	return append(x.rest.all(), slices.Repeat([]Strategy{x.strategy}, x.layers)...)
}

// priced is a strategy with the time and memory of one layer on a stage.
type priced struct {
	Strategy
	mix
}

// division returns the number of layers of every stage. The last has those that are left over.
func (m *Model) division(stages int) []int {
	all := slices.Repeat([]int{m.Layers / stages}, stages)
	all[stages-1] += m.Layers % stages
	return all
}

// outline looks for a better plan with an outline, among mixes of at most so many strategies per stage.
func (s *searcher) outline(o outline, most int) {
	c := &cutter{
		searcher: s, outline: o, division: s.division(o.stages), ends: s.ends(o.embedding, s.batch, o.chunks), mixes: make([][]mix, o.stages), rest: make([]float64, o.stages+1),
		plain: make([]float64, o.stages), sync: make([]float64, o.stages), picked: make([]mix, o.stages),
	}
	strategies := s.strategies(s.batch, o.chunks, o.stages, o.sharing, o.tensor)
	kinds := make([][]priced, o.stages) // by stage
	limits := s.endsMemory(o.embedding, s.batch, o.chunks)
	for at := o.stages - 1; at >= 0; at-- {
		limits[at] = s.Limit() - limits[at]
		if o.tensor {
			limits[at] -= s.buffer(s.batch, o.chunks, o.stages, o.sharing)
		}
		for _, x := range strategies {
			k := priced{x, mix{memory: s.layerMemory(x, s.batch, o.chunks, at)}}
			k.sync, k.plain = s.layer(x, s.batch, o.chunks)
			kinds[at] = append(kinds[at], k)
		}
		c.rest[at] = c.rest[at+1] + c.ends[at] + fastest(kinds[at], c.division[at], limits[at])
	}
	// Every stage once, and the last one again for every other micro-batch.
	if c.rest[0]+float64(o.chunks-1)*c.rest[o.stages-1] >= s.best {
		return
	}
	for at := range c.mixes {
		m := mixer{most: most, below: s.best - c.rest[0] + c.rest[at] - c.rest[at+1] - c.ends[at]}
		if at == o.stages-1 {
			m.below = (s.best-c.rest[0]+c.rest[at])/float64(o.chunks) - c.ends[at]
		} else {
			m.below -= float64(o.chunks-1) * c.rest[o.stages-1]
		}
		c.mixes[at] = m.mixes(kinds[at], c.division[at], limits[at])
	}
	c.descend(0)
}

// fastest is a lower bound of the seconds of n layers: the fastest fractional mix that fits, which has at most two
// strategies.
func fastest(kinds []priced, n, limit int) float64 {
	least, each := math.Inf(1), float64(limit)/float64(n)
	for _, a := range kinds {
		if float64(a.memory) <= each {
			least = min(least, a.plain)
			continue
		}
		for _, b := range kinds {
			if float64(b.memory) < each {
				share := (each - float64(b.memory)) / float64(a.memory-b.memory)
				least = min(least, share*a.plain+(1-share)*b.plain)
			}
		}
	}
	return least * float64(n)
}

// mixer lists mixes of at most so many strategies that take less than a time.
type mixer struct {
	most  int
	below float64
}

// mixes lists the mixes of n layers that fit, without those that another one dominates in time with and without
// reduction of gradients. It adds one strategy after the other. For each number of layers left it keeps only mixes
// that may still become the best.
func (m *mixer) mixes(all []priced, n, limit int) []mix {
	var kinds []priced
	for i, x := range all { // strategies that another one dominates are of no use
		if !slices.ContainsFunc(all[:i], func(y priced) bool { return y.dominates(&x.mix) }) &&
			!slices.ContainsFunc(all[i+1:], func(y priced) bool { return y.dominates(&x.mix) && !x.dominates(&y.mix) }) {
			kinds = append(kinds, x)
		}
	}
	slices.SortStableFunc(kinds, func(a, b priced) int { return cmp.Compare(a.plain, b.plain) })
	open := make([][]mix, n+1) // by number of layers left
	open[n] = []mix{{}}
	for i, k := range kinds {
		next := make([][]mix, n+1)
		for left, some := range open {
			for at := range some {
				x := &some[at]
				for c := 0; c <= left && x.memory+c*k.memory <= limit; c++ {
					y := *x
					if c > 0 {
						y = mix{x.plain + float64(c)*k.plain, x.sync + float64(c)*k.sync, x.memory + c*k.memory, k.Strategy, c, x.kinds + 1, x}
					}
					if y.kinds <= m.most && (c == left && y.plain < m.below || c < left && y.plain+fastest(kinds[i+1:], left-c, limit-y.memory) < m.below) {
						next[left-c] = append(next[left-c], y)
					}
				}
			}
		}
		for left := range next {
			next[left] = undominated(next[left])
		}
		open = next
	}
	for i := range open[0] {
		open[0][i].memory = 0 // it fits; using less is no advantage
	}
	return undominated(open[0])
}

// undominated sorts mixes by time and removes those that another one dominates.
func undominated(all []mix) []mix {
	slices.SortStableFunc(all, func(a, b mix) int {
		return cmp.Or(cmp.Compare(a.plain, b.plain), cmp.Compare(a.sync, b.sync), cmp.Compare(a.memory, b.memory))
	})
	var kept []mix
	for i := range all {
		if !slices.ContainsFunc(kept, func(x mix) bool { return x.dominates(&all[i]) }) {
			kept = append(kept, all[i])
		}
	}
	return kept
}

func (x *mix) dominates(y *mix) bool {
	return x.plain <= y.plain && x.sync <= y.sync && x.memory <= y.memory
}

// cutter picks a mix for every stage of an outline.
type cutter struct {
	*searcher
	outline
	division    []int
	ends        []float64
	mixes       [][]mix   // by stage, in order of time
	rest        []float64 // by stage, a lower bound of the seconds of it and those after it, for one micro-batch
	plain, sync []float64
	picked      []mix
}

func (c *cutter) descend(at int) {
	if at == len(c.mixes) {
		if t := pipeline(c.plain, c.sync, c.chunks); t < c.best {
			c.best, c.plan = t, c.found()
		}
		return
	}
	before := 0.0
	for _, t := range c.plain[:at] {
		before += t
	}
	for _, x := range c.mixes[at] {
		t := c.ends[at] + x.plain
		if before+t+c.rest[at+1]+float64(c.chunks-1)*c.atLeast(at, t) >= c.best {
			break // the following ones are slower
		}
		c.plain[at], c.sync[at], c.picked[at] = t, x.sync, x
		c.descend(at + 1)
	}
}

// atLeast is a lower bound of the last stage's time if stage at takes t.
func (c *cutter) atLeast(at int, t float64) float64 {
	if last := len(c.mixes) - 1; at < last {
		return c.rest[last]
	}
	return t
}

// found returns the plan that is picked.
func (c *cutter) found() *Plan {
	p := &Plan{Batch: c.batch, Chunks: c.chunks, Division: c.division, Embedding: c.embedding, Buffer: c.sharing}
	for _, x := range c.picked {
		p.Layers = append(p.Layers, x.all()...)
	}
	return p
}
