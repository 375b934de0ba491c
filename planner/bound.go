package planner

import (
	"slices"
	"sort"

	"github.com/autopar/autopar/planner/cost"
)

// bounds are lower bounds of the time of a pipeline, whatever the other stages
// hold, given that one stage has a number of blocks. They are derived from one
// chain of events that every schedule without interleaving has: micro-batch 0
// goes forward through all stages and backward to stage i; stage i then does what
// it has left; its last backward goes on to stage 0, which updates. Whatever the
// cut, all blocks lie on that chain once forward and once backward
// (PLANNING.md 2.7).
type bounds struct {
	pipe    *pipeline
	limit   int64   // bytes
	fewest  [][]int // [stage][n-1]: the fewest recomputed blocks that may fit, -1 if none
	time    [][]cost.Picoseconds
	through []line // forward and backward of micro-batch 0, for prefixes
	busy    []line // all micro-batches and the update
}

// never is the bound of what does not fit.
const never = cost.Picoseconds(1) << 62

func newBounds(p *pipeline, limit int64, opts Options, learned map[tried]bool) *bounds {
	b := &bounds{pipe: p, limit: limit}
	stages, blocks := len(p.stages), p.skel.blocks
	m := cost.Picoseconds(p.microBatches)
	first := p.size(0)
	// The way of micro-batch 0 forward and, from stage i on, backward; and of the
	// last one backward before stage i. Blocks are alike, but the links of one
	// stage may be slower than another's: the fastest counts.
	var forward line
	back := [2][]line{make([]line, stages), make([]line, stages)}
	block := [2]cost.Picoseconds{never, never}
	works := make([]stageWork, stages)
	for i := range p.stages {
		s := &p.stages[i]
		works[i] = newStageWork(s, m)
		f := s.forward[first].through()
		forward.fixed += f.fixed
		if i == 0 || f.block < forward.block {
			forward.block = f.block
		}
		for _, size := range []int{first, rest} {
			back[size][i] = s.backward[size].through()
			block[size] = min(block[size], back[size][i].block)
		}
		x := s.backward[rest].through()
		b.through = append(b.through, line{f.fixed + x.fixed, f.block + x.block, f.again + x.again, f.early + x.early})
		b.busy = append(b.busy, works[i].all)
	}
	for i := range stages {
		flow := forward.at(blocks, 0) + cost.Picoseconds(blocks)*block[rest] + works[0].update.at(1, 0)
		for j := range stages {
			if j < i {
				flow += back[rest][j].fixed
			} else {
				flow += back[first][j].fixed
			}
		}
		b.fewest = append(b.fewest, make([]int, 0, blocks))
		b.time = append(b.time, make([]cost.Picoseconds, 0, blocks))
		for n := 1; n <= blocks-stages+1; n++ {
			r := b.fewestFor(i, n, opts, learned)
			t := never
			if r >= 0 {
				// So many blocks at least are not before stage i.
				from := n + stages - 1 - i
				if i == 0 {
					from = blocks
				}
				t = flow + cost.Picoseconds(from)*(block[first]-block[rest]) + works[i].left(p, i, n, r)
				t = max(t, b.busy[i].at(n, r))
			}
			b.fewest[i] = append(b.fewest[i], r)
			b.time[i] = append(b.time[i], t)
		}
	}
	return b
}

// stageWork is all the work of a stage.
type stageWork struct {
	forward, backward [2]line
	update            line
	all               line // of a step of m micro-batches
}

func newStageWork(s *stageTimes, m cost.Picoseconds) stageWork {
	w := stageWork{update: s.update.busy()}
	for size := range 2 {
		w.forward[size], w.backward[size] = s.forward[size].busy(), s.backward[size].busy()
	}
	sum := func(part func(line) cost.Picoseconds) cost.Picoseconds {
		return (m-1)*(part(w.forward[whole])+part(w.backward[whole])) + part(w.forward[rest]) + part(w.backward[rest]) + part(w.update)
	}
	w.all = line{
		fixed: sum(func(l line) cost.Picoseconds { return l.fixed }),
		block: sum(func(l line) cost.Picoseconds { return l.block }),
		again: sum(func(l line) cost.Picoseconds { return l.again }),
	}
	return w
}

// left is what stage i has left to do after its first backward: all other
// backwards, and the forwards that did not come before it.
func (w *stageWork) left(p *pipeline, i, n, r int) cost.Picoseconds {
	var t cost.Picoseconds
	if p.microBatches > 1 {
		t += cost.Picoseconds(p.microBatches-2)*w.backward[whole].at(n, r) + w.backward[rest].at(n, r)
	}
	if late := p.microBatches - p.warmUp(i); late > 0 {
		t += cost.Picoseconds(late-1)*w.forward[whole].at(n, r) + w.forward[rest].at(n, r)
	}
	return t
}

// fewestFor returns the fewest recomputed blocks with which n blocks may fit a
// stage, -1 if no number does.
func (b *bounds) fewestFor(stage, n int, opts Options, learned map[tried]bool) int {
	if opts.Policy == Megatron && n*len(b.pipe.stages) != b.pipe.skel.blocks {
		return -1 // its stages are equal
	}
	from, to := 0, n
	switch opts.Recompute {
	case RecomputeNone:
		to = 0
	case RecomputeFull:
		from = n
	}
	m, slots := &b.pipe.memory[stage], b.pipe.slots[stage]
	for r := from; r <= to; r++ {
		if m.atLeast(n, r, slots) <= b.limit && !learned[tried{stage, n, r}] {
			return r
		}
	}
	return -1
}

// most returns how many blocks a stage can hold in at most the given time, 0 if
// not even one.
func (b *bounds) most(stage int, time cost.Picoseconds) int {
	return sort.Search(len(b.time[stage]), func(i int) bool { return b.time[stage][i] > time })
}

// best is a lower bound over all cuts: the least time in which the stages can
// hold all blocks between them. never means that the model does not fit.
func (b *bounds) best() cost.Picoseconds {
	var times []cost.Picoseconds
	for _, t := range b.time {
		times = append(times, t...)
	}
	slices.Sort(times)
	enough := func(t cost.Picoseconds) bool {
		sum := 0
		for i := range b.time {
			n := b.most(i, t)
			if n == 0 {
				return false
			}
			sum += n
		}
		return sum >= b.pipe.skel.blocks
	}
	at := sort.Search(len(times), func(k int) bool { return times[k] < never && enough(times[k]) || times[k] == never })
	if at == len(times) {
		return never
	}
	return times[at]
}
