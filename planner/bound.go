package planner

import (
	"slices"
	"sort"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// bounds are lower bounds of the time of a pipeline, whatever the other stages
// hold, given that one stage has a number of blocks. They are derived from one
// chain of events that every schedule without interleaving has: micro-batch 0
// goes forward through all stages and backward to stage i; stage i then does what
// it has left; its last backward goes on to stage 0, which updates, and what waits for
// that follows (see tails). Whatever the cut, all blocks lie on that chain once forward and
// once backward.
type bounds struct {
	pipe     *pipeline
	limit    int64                // bytes
	again    [][][]option         // [stage][n-1]: the recomputations that may fit
	compared [][]bool             // [stage][n-1]: see choices
	time     [][]cost.Picoseconds // [stage][n-1]: with the best of them
	atLeast  [][]cost.Picoseconds // of n blocks or more
	through  []line               // forward and backward of micro-batch 0, for prefixes
	work     []line               // with what communication streams do
	passes   []line               // all micro-batches, but for gradients of weights that are apart
	ahead    []cost.Picoseconds   // by stage: see gathersAhead
	end      cost.Picoseconds     // what follows on the last backward pass of stage 0
	back     cost.Picoseconds     // a block in the backward pass of micro-batch 0
	before   []cost.Picoseconds   // by stage: micro-batch 0 through the stages before, but for blocks
	each     cost.Picoseconds     // one of those blocks
	overall  cost.Picoseconds     // see ofAll, 0 as long as nobody has asked
}

// never is the bound of what does not fit.
const never = cost.Picoseconds(1) << 62

func newBounds(p *pipeline, limit int64, opts Options, learned map[tried]bool) *bounds {
	opts.Recompute = opts.recompute(p.skel.outline.replicate)
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
	same := map[*stageTimes]int{} // the first of the stages that take the same times
	for i := range p.stages {
		s := p.stages[i]
		if k, known := same[s]; known {
			works[i], back[first][i], back[rest][i] = works[k], back[first][k], back[rest][k]
			forward.fixed += p.ahead(i).fixed
			b.like(k)
			continue
		}
		same[s] = i
		works[i] = newStageWork(p, i, m)
		f := p.ahead(i)
		forward.fixed += f.fixed
		if i == 0 || f.block[kept] < forward.block[kept] {
			forward.block = f.block
		}
		f = s.forward[first].through()
		for _, size := range []int{first, rest} {
			back[size][i] = p.body(i, ir.Backward, size).through()
			block[size] = min(block[size], back[size][i].block[kept])
		}
		x := p.body(i, ir.Backward, rest).through()
		for e := range extents {
			f.block[e] += x.block[e]
			f.early[e] += x.early[e]
		}
		f.fixed += x.fixed
		ahead := cost.Picoseconds(0)
		for size := range 2 {
			l := p.body(i, ir.Backward, size).through()
			ahead = max(ahead, l.gathersAhead(), works[i].weight[size].spares())
		}
		b.ahead = append(b.ahead, ahead)
		b.through = append(b.through, f)
		b.work = append(b.work, works[i].both)
		b.passes = append(b.passes, works[i].passes)
	}
	tails := newTails(p)
	b.end = tails.of(0, 1) + works[0].weight[rest].at(1, recomputation{}) - works[0].weight[rest].spares()
	var through [2][]cost.Picoseconds
	for size := range through {
		for _, l := range back[size] {
			through[size] = append(through[size], l.fixed-l.gathersAhead())
		}
	}
	for i := range stages {
		start := forward.at(blocks, recomputation{}) // to the first backward pass of stage i, but for blocks
		flow := start + cost.Picoseconds(blocks)*block[rest] + b.end
		for j := range stages {
			size := first
			if j < i {
				size = rest
			}
			flow += through[size][j]
			if j >= i {
				start += through[size][j]
			}
		}
		// By how much longer micro-batch 0 takes through a block here than on the fastest stage.
		slower := p.stages[i].forward[first].through().block[kept] - forward.block[kept] + back[first][i].block[kept] - block[first]
		b.again = append(b.again, make([][]option, 0, blocks-stages+1))
		b.time = append(b.time, make([]cost.Picoseconds, 0, blocks-stages+1))
		b.compared = append(b.compared, make([]bool, blocks-stages+1))
		for n := 1; n <= blocks-stages+1; n++ {
			// So many blocks at least are not before stage i.
			from := n + stages - 1 - i
			if i == 0 {
				from = blocks
			}
			var all []option
			least, tail := never, tails.of(i, n)
			for _, r := range b.options(i, n, opts, learned) {
				tail := tail + p.outlasts(i, n, r)
				left := works[i].left(p, i, n, r)
				way := cost.Picoseconds(n)*slower + left
				t := flow + cost.Picoseconds(from)*(block[first]-block[rest]) + way
				late := start + way + works[i].weights.at(n, r) + tail
				t = max(t, works[i].all.at(n, r)+tail, late+cost.Picoseconds(from)*block[first])
				all, least = append(all, option{r, t, late}), min(least, t)
			}
			b.again[i] = append(b.again[i], all)
			b.time[i] = append(b.time[i], least)
		}
	}
	b.back, b.each = block[first], never
	before := cost.Picoseconds(0)
	for i := range b.through {
		l := &b.through[i]
		b.before, b.each = append(b.before, before), min(b.each, l.block[kept])
		before += l.fixed - l.gathersAhead()
	}
	for _, time := range b.time {
		b.atLeast = append(b.atLeast, orMore(time))
	}
	return b
}

// orMore lists the least of each time and those after it.
func orMore(time []cost.Picoseconds) []cost.Picoseconds {
	least := slices.Clone(time)
	for n := len(least) - 2; n >= 0; n-- {
		least[n] = min(least[n], least[n+1])
	}
	return least
}

// leave leaves a stage only some numbers of blocks, by one less than they are.
func (b *bounds) leave(stage int, some []bool) {
	for n, ok := range some {
		if !ok {
			b.again[stage][n], b.time[stage][n] = nil, never
		}
	}
	b.atLeast[stage] = orMore(b.time[stage])
}

// lastPass is the pass in which the gradients of stage i are completed.
func (p *pipeline) lastPass(i int) body {
	if p.template.Schedule == partition.ZeroBubble {
		return p.body(i, ir.WeightGrad, rest)
	}
	return p.body(i, ir.Backward, rest)
}

// outlasts bounds from below by how much later the stream of stage i with n blocks is done
// than its last pass, on account of what that hands to it once nobody is waited for.
func (p *pipeline) outlasts(i, n int, r recomputation) cost.Picoseconds {
	last := p.lastPass(i)
	all := last[0].flow.outlasts(tally{n}, r)
	if all == nil {
		return 0
	}
	from := 0
	for k := range last {
		if last[k].kind == sim.Recv {
			from = last[k].nth
		}
	}
	return slices.Max(all[from:])
}

// ahead is the least time of the forward pass of stage i that lies on the way of a
// micro-batch through all stages: of the first, or under gpipe of the first up to a stage,
// which makes all forward passes, and of the last after it.
func (p *pipeline) ahead(i int) line {
	l := p.stages[i].forward[p.size(0)].through()
	if p.template.Schedule == partition.GPipe {
		last := p.stages[i].forward[rest].through()
		l.fixed, l.block[kept] = min(l.fixed, last.fixed), min(l.block[kept], last.block[kept])
	}
	return l
}

// like adds a stage that takes the same times as an earlier one.
func (b *bounds) like(stage int) {
	b.ahead = append(b.ahead, b.ahead[stage])
	b.through = append(b.through, b.through[stage])
	b.work = append(b.work, b.work[stage])
	b.passes = append(b.passes, b.passes[stage])
}

// gathersAhead is by how much less the last block of a stage may take backward
// from its gradient on when it is recomputed: what recomputation gathers before
// the gradient is there (weights, keys and values) need not be gathered after.
func (l *line) gathersAhead() cost.Picoseconds {
	var less cost.Picoseconds
	for e := range extents {
		less = max(less, l.block[kept]-l.block[e]-l.early[e])
	}
	return less
}

// spares is by how much less gradients of weights that are apart may take when their block is
// recomputed: what they read has been gathered for that.
func (l *line) spares() cost.Picoseconds {
	return max(0, l.block[kept]-l.block[selective], l.block[kept]-l.block[full])
}

// stageWork is all the work of a stage but for its update.
type stageWork struct {
	forward, backward, weight [2]line
	last                      line // the last backward pass, up to what it sends
	passes                    line // forward and backward, m micro-batches, the last up to what it sends
	weights                   line // gradients of weights that are apart, m micro-batches
	all                       line // both in full
	both                      line // with what communication streams do
}

// newStageWork adds up the work of stage i over m micro-batches.
func newStageWork(p *pipeline, i int, m cost.Picoseconds) stageWork {
	var w, beside stageWork
	for size := range 2 {
		forward, backward, weight := p.body(i, ir.Forward, size), p.body(i, ir.Backward, size), p.body(i, ir.WeightGrad, size)
		w.forward[size], w.backward[size], w.weight[size] = forward.busy(), backward.busy(), weight.busy()
		beside.forward[size], beside.backward[size], beside.weight[size] = forward.beside(), backward.beside(), weight.beside()
	}
	w.total(m)
	beside.total(m)
	w.both = w.all.plus(beside.all)
	w.last = p.body(i, ir.Backward, rest).sent()
	w.passes = w.passes.plus(w.last)
	w.passes.fixed -= w.backward[rest].fixed
	for e := range extents {
		w.passes.block[e] -= w.backward[rest].block[e]
	}
	return w
}

// total adds up m micro-batches.
func (w *stageWork) total(m cost.Picoseconds) {
	sum := func(total *line, of [2]line) {
		total.fixed += (m-1)*of[whole].fixed + of[rest].fixed
		for e := range extents {
			total.block[e] += (m-1)*of[whole].block[e] + of[rest].block[e]
		}
	}
	sum(&w.passes, w.forward)
	sum(&w.passes, w.backward)
	sum(&w.weights, w.weight)
	w.all = w.passes.plus(w.weights)
}

// plus adds two lines, of which only the first may have an early part.
func (l line) plus(m line) line {
	l.fixed += m.fixed
	for e := range extents {
		l.block[e] += m.block[e]
	}
	return l
}

// left is what stage i has left to do after its first backward: all other
// backwards, and the forwards that the way of micro-batch 0 does not hide.
func (w *stageWork) left(p *pipeline, i, n int, r recomputation) cost.Picoseconds {
	var t cost.Picoseconds
	if p.microBatches > 1 {
		t += cost.Picoseconds(p.microBatches-2)*w.backward[whole].at(n, r) + w.last.at(n, r)
	}
	if late := p.microBatches - p.early[i]; late > 0 {
		t += cost.Picoseconds(late-1)*w.forward[whole].at(n, r) + w.forward[rest].at(n, r)
	}
	return t
}

// most returns how many blocks a stage can hold in at most the given time, 0 if
// not even one.
func (b *bounds) most(stage int, time cost.Picoseconds) int {
	return sort.Search(len(b.atLeast[stage]), func(i int) bool { return b.atLeast[stage][i] > time })
}

// from bounds plans in which stage i has n blocks, of so many that are not before it, which
// are recomputed by an option; micro-batch 0 takes at least a time through the stages
// before.
func (b *bounds) from(i, left, n int, o *option, before cost.Picoseconds) cost.Picoseconds {
	return max(o.time, before+b.passes[i].at(n, o.recomputation)+b.end, o.late+cost.Picoseconds(left)*b.back)
}

// ofAll bounds all plans: it is never where there are none.
func (b *bounds) ofAll() cost.Picoseconds {
	if b.overall == 0 {
		b.overall = b.reach(never - 1)[0][b.pipe.skel.blocks]
	}
	return b.overall
}

// reach bounds the plans whose stages from one on have a number of blocks between them, by
// stage and number: never where that takes longer than the ceiling.
func (b *bounds) reach(ceiling cost.Picoseconds) [][]cost.Picoseconds {
	stages, blocks := len(b.again), b.pipe.skel.blocks
	all := make([][]cost.Picoseconds, stages+1)
	all[stages] = slices.Repeat([]cost.Picoseconds{never}, blocks+1)
	all[stages][0] = 0
	for i := stages - 1; i >= 0; i-- {
		all[i] = slices.Repeat([]cost.Picoseconds{never}, blocks+1)
		from, to := stages-i, blocks-i
		if i == 0 {
			from = blocks
		}
		for left := from; left <= to; left++ {
			before := b.before[i] + cost.Picoseconds(blocks-left)*b.each
			least := never
			for n := 1; n <= left-(stages-1-i); n++ {
				after := all[i+1][left-n]
				if b.time[i][n-1] > ceiling || after >= least {
					continue
				}
				for k := range b.again[i][n-1] {
					least = min(least, max(after, b.from(i, left, n, &b.again[i][n-1][k], before)))
				}
			}
			if least <= ceiling {
				all[i][left] = least
			}
		}
	}
	return all
}

// best is a lower bound over all cuts: the least time in which the stages can
// hold all blocks between them. never means that the model does not fit.
func (b *bounds) best() cost.Picoseconds {
	enough := func(t cost.Picoseconds) bool {
		left := b.pipe.skel.blocks
		for i := range b.atLeast {
			n := b.most(i, t)
			if n == 0 {
				return false
			}
			left -= n
		}
		return left <= 0
	}
	low := cost.Picoseconds(0) // no stage takes less with one block
	for _, least := range b.atLeast {
		low = max(low, least[0])
	}
	if low == never || !enough(never-1) {
		return never
	}
	if enough(low) {
		return low
	}
	// What is added to a time that is not enough doubles until it is.
	step := low/64 + 1
	for ; !enough(min(low+step, never-1)); step *= 2 {
		low += step
	}
	high := min(low+step, never-1)
	for high-low > 1 { // high is enough, low is not
		if half := low + (high-low)/2; enough(half) {
			high = half
		} else {
			low = half
		}
	}
	return high
}
