package planner

import (
	"slices"
	"sort"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// This file bounds the step time of a pipeline from below while its cut is open, by chains of events: sequences of passes,
// transfers and updates that wait for each other under every schedule, so that a step takes at least the time of any of
// them. least uses closed forms; fill then finds the least time in which the positions can hold all blocks between them,
// as each block at a position lengthens that position's chains. Both take times of single blocks, from floor.go, and add
// the recomputation that memory makes necessary (again, in relax.go). Called from leastOn, in pools.go.

// passage is what the chains of an outline are made of: its micro-batches on their way through the positions.
type passage struct {
	outline
	schedule    partition.Schedule
	m           int // number of micro-batches
	more        *again
	first, last workTimes      // of a whole micro-batch and of the last one: lower bounds at every position
	each        [][2]workTimes // by place, where they differ; nil where all positions take as long
	places      []int          // by position, the index in each
	sent        [2][]partTimes // by position: transfers of a whole micro-batch and of the last one
	ends        ends           // see endsOf; of one position nothing
	posts       bool           // positions go on while what they send is on its way
	// enough is what the caller needs: above it a bound is not raised further, and short is set.
	enough cost.Picoseconds
	short  bool
}

// position returns the times of a whole micro-batch and of the last one at a position.
func (p *passage) position(at int) (first, last *workTimes) {
	if p.each == nil {
		return &p.first, &p.last
	}
	x := &p.each[p.places[at]]
	return &x[whole], &x[rest]
}

// flow is the larger of the bounds of least and fill. Interleaved schedules, whose cut is even, are rehearsed instead of filled.
func (s *searcher) flow(p *passage) cost.Picoseconds {
	least := s.least(p)
	bound := s.busy(p.outline, p.m, p.schedule, least)
	if p.pp == 1 {
		return bound
	}
	if p.short = bound > p.enough; p.short {
		return bound
	}
	if p.chunks > 1 {
		return max(bound, s.busy(p.outline, p.m, p.schedule, s.rehearse(p)))
	}
	return s.busy(p.outline, p.m, p.schedule, fill(s.positions(p), s.graphs.blocks, p.more, least))
}

// all is the time of every micro-batch through a part of the model, n times.
func (p *passage) all(part, n int) cost.Picoseconds {
	return cost.Picoseconds(n) * (cost.Picoseconds(p.m-1)*p.first[part].all + p.last[part].all)
}

// way is the time of the last micro-batch, the smallest, through a part of the model there and back, n times.
func (p *passage) way(part, n int) cost.Picoseconds {
	if p.schedule.SplitsBackward() { // on its way back it does not wait for weight gradients
		return cost.Picoseconds(n) * p.last[part].forward
	}
	return cost.Picoseconds(n) * p.last[part].way
}

// update is the time of the update of n blocks.
func (p *passage) update(n int) cost.Picoseconds { return cost.Picoseconds(n) * p.last[inBlock].update }

// tail bounds the time from when a position has its gradients to the end of the step: so much, and more for each of its blocks.
type tail struct{ fixed, block cost.Picoseconds }

// tails returns the tails of a position of several: its update in order; what comes before the norm of all gradients is known,
// then the gathers of its stream; or the norm goes on, and what the positions at the ends do with it. What a position at an end sums
// in order, for a table, it may do while its stream sums the last block's gradients, which then delays nothing. So from when its
// stream is done, streamed, there may be nothing left of that, nor of what it does with the gradients of each block before the norm.
func (p *passage) tails(at int, streamed bool) [3]tail {
	_, last := p.position(at)
	block, before, after, renews := &last[inBlock], cost.Picoseconds(0), cost.Picoseconds(0), cost.Picoseconds(0)
	switch at {
	case 0:
		before, after, renews = p.ends.first.before, p.ends.first.after, last[beforeBlocks].renews
	case p.pp - 1:
		before, after, renews = p.ends.last.before, p.ends.last.after, last[afterBlocks].renews
	}
	update, squares := block.update, block.normed
	if before = max(0, before-block.delays); streamed {
		before, update, squares = 0, block.update-block.early(), block.closing
	}
	if p.ends.up == nil { // nothing waits for all gradients
		return [3]tail{{before + after, update}, {renews, block.renews}, {}}
	}
	normed := before + p.ends.up[at] + p.ends.summed
	return [3]tail{
		{normed + p.ends.down[at] + after, update},
		{normed + p.ends.down[at] + renews, squares + block.renews},
		{normed + max(p.ends.down[0]+p.afterNorm(0), p.afterNorm(p.pp-1)), squares},
	}
}

// afterNorm is what a position at an end does when it has the norm of all gradients. It has a block at least.
func (p *passage) afterNorm(at int) cost.Picoseconds {
	_, last := p.position(at)
	block, after, renews := &last[inBlock], p.ends.first.after, last[beforeBlocks].renews
	if at > 0 {
		after, renews = p.ends.last.after, last[afterBlocks].renews
	}
	return max(after+block.after, after+renews, renews+block.renews)
}

// finish is the time from when a position has its gradients, with n blocks, to the end of the step.
func (p *passage) finish(at, n int, streamed bool) (time cost.Picoseconds) {
	for _, t := range p.tails(at, streamed) {
		time = max(time, t.fixed+cost.Picoseconds(n)*t.block)
	}
	return time
}

// recomputing is the number of backward passes in which memory makes as much recomputation necessary.
func (p *passage) recomputing() cost.Picoseconds {
	if p.first != p.last {
		return cost.Picoseconds(p.m - 1)
	}
	return cost.Picoseconds(p.m)
}

// aheadOf is the most that a stage may do before its gradient arrives if it recomputes its last block and the head: a chain
// through the stage may be so much shorter than the sum of its times.
func aheadOf(first, last *workTimes) cost.Picoseconds {
	return max(first[inBlock].ahead, last[inBlock].ahead) + max(first[afterBlocks].ahead, last[afterBlocks].ahead)
}

// least bounds the step with m micro-batches, of which the last may be smaller, by closed forms.
//
// Position i of a pipeline starts when micro-batch 0 has come through the positions before it, does all its work, and then
// its last backward pass goes on to position 0, which updates. So a step takes at least the time of one micro-batch through
// the positions before i and of all micro-batches through i. How many blocks lie before i is open, but all other blocks lie
// before the last position, and some position has an even share of the blocks or more.
func (s *searcher) least(p *passage) cost.Picoseconds {
	switch {
	case p.pp == 1:
		return s.leastOfOne(p)
	case p.chunks > 1:
		return s.leastOfEven(p)
	}
	blocks, ahead := s.graphs.blocks, aheadOf(&p.first, &p.last)
	bound := s.alone(p) - cost.Picoseconds(p.pp)*ahead
	share := (blocks + p.pp - 1) / p.pp
	bound = max(bound, p.all(inBlock, share)+p.update(share), p.all(beforeBlocks, 1)+p.all(inBlock, 1)+p.finish(0, 1, false))
	ending := p.finish(0, 1, false) // position 0 updates a block at least
	if p.schedule.SplitsBackward() {
		for at := 1; at < p.pp; at++ { // or the position itself: it may make gradients of weights after its last backward pass
			ending = min(ending, p.finish(at, 1, false))
		}
	}
	less := cost.Picoseconds(p.pp)*ahead - ending
	bound = max(bound, p.way(beforeBlocks, 1)+p.way(inBlock, blocks-1)+p.all(inBlock, 1)+p.all(afterBlocks, 1)-less)
	// If blocks could be divided, every position i would have n_i of them with way * (n_0 + ... + n_(i-1)) + all * n_i <= T.
	// The least T for all blocks makes these equalities: n_i is then (1 - way/all)^i * T/all, whose sum is to be the number
	// of blocks.
	if every := p.all(inBlock, 1); every > 0 {
		ratio, left := float64(p.way(inBlock, 1))/float64(every), 1.0
		for range p.pp {
			left *= 1 - ratio
		}
		bound = max(bound, cost.Picoseconds(float64(p.way(inBlock, blocks))/(1-left)*(1-1e-9))-less)
	}
	return bound
}

// leastOfOne is least with one position: of each pass what it does in order, or what it gives to its stream, and the updates.
func (s *searcher) leastOfOne(p *passage) cost.Picoseconds {
	blocks, recomputed := s.graphs.blocks, cost.Picoseconds(0)
	if p.more != nil {
		recomputed = p.more.time(blocks, blocks*s.rooms(p.outline, p.m, p.schedule)[0][0].Slots)
	}
	if recomputed == never {
		return never
	}
	inOrder := p.recomputing()*recomputed + p.all(beforeBlocks, 1) + p.all(inBlock, blocks) + p.all(afterBlocks, 1)
	before, block, n := &p.last[beforeBlocks], &p.last[inBlock], cost.Picoseconds(blocks)
	inOrder += max(before.update+n*block.update, before.normed+before.renews+p.last[afterBlocks].renews+n*(block.normed+block.renews))
	stream, split := s.streamed(p, &p.first[inBlock]), p.schedule.SplitsBackward()
	forward, backward := stream.alone(&p.first, cost.Picoseconds(blocks), recomputed, split)
	inOrder += cost.Picoseconds(p.m-1) * (forward + backward)
	if p.first != p.last {
		recomputed = 0 // see recomputing
	}
	stream = s.streamed(p, &p.last[inBlock])
	forward, backward = stream.alone(&p.last, cost.Picoseconds(blocks), recomputed, split)
	early := before.early() + n*block.early() + p.last[afterBlocks].early()
	return inOrder + forward + max(backward, max(p.exposed(&p.last, 0), stream.last(&p.last, cost.Picoseconds(blocks), recomputed))-early)
}

// leastOfEven is least with interleaving, which cuts blocks evenly, so that it is known how many lie where.
func (s *searcher) leastOfEven(p *passage) cost.Picoseconds {
	even, ahead := s.evenOf(p.outline, 0), aheadOf(&p.first, &p.last)
	if p.more != nil {
		even = s.evenOf(p.outline, p.m)
	}
	blocks := s.graphs.blocks
	bound := s.alone(p) - cost.Picoseconds(even.stages)*ahead
	for at, its := range even.at {
		first, last := p.position(at)
		stream := s.streamed(p, &first[inBlock])
		within := stream.within(false, false) // of the stages between the first and the last
		recomputed := p.more.time(its.blocks, its.flights)
		if recomputed == never {
			return never
		}
		own := func(part int) cost.Picoseconds { return cost.Picoseconds(p.m-1)*first[part].all + last[part].all }
		n := cost.Picoseconds(its.blocks)
		before := cost.Picoseconds(its.before)
		time := p.recomputing()*recomputed + n*own(inBlock) + before*p.last[inBlock].forward - cost.Picoseconds(at+1)*ahead
		time += cost.Picoseconds(p.m-1)*p.sent[whole][at].all + p.sent[rest][at].all
		tasks := p.chunks // of a micro-batch, in each direction
		if tasks == anyChunks {
			tasks = 2
		}
		more := recomputed + cost.Picoseconds(tasks)*within
		ending := max(p.finish(at, its.blocks, false), max(p.exposed(last, at), p.outlastEven(at, its.blocks, blocks, more))+p.finish(at, its.blocks, true))
		if at > 0 { // or its last backward pass goes on to position 0, which may have begun to update
			n := even.at[0].blocks
			ending = max(ending, before*p.last[inBlock].returned()+p.finish(0, n, false)-cost.Picoseconds(n)*p.last[inBlock].closing)
		}
		time += ending
		switch at {
		case 0:
			time, tasks = time+own(beforeBlocks), tasks-1
		case p.pp - 1:
			time, tasks = time+own(afterBlocks), tasks-1
		}
		time += cost.Picoseconds(p.m*tasks) * within
		bound = max(bound, time)
		if p.posts && p.chunks != anyChunks && at == p.pp-1 {
			bound = max(bound, s.fromLastStage(p, even, recomputed))
		}
	}
	return bound
}

// exposed bounds from below by how much a position outlasts its work in order: after the last backward pass over its blocks
// its stream still has to reduce the gradients of the block that came last.
func (p *passage) exposed(last *workTimes, at int) cost.Picoseconds {
	after := cost.Picoseconds(0) // what the position does in order after that
	switch x := &last[beforeBlocks]; {
	case at > 0:
	case p.schedule.SplitsBackward():
		after = x.weight + x.closing
	default:
		after = x.all - x.forward + x.closing
	}
	return max(0, p.once(&last[inBlock])-last[inBlock].delays-after) // what delays the position while it waits delays nothing
}

// once is what the stream does besides in the last pass that completes gradients.
func (p *passage) once(t *partTimes) cost.Picoseconds {
	if p.schedule.SplitsBackward() {
		return t.once - t.soon
	}
	return t.once
}

// outlastEven is what exposed says, of an interleaved schedule of so many blocks, of which the position has some. From the first pass on that
// completes gradients, the last one of the last chunk, the position runs no forward pass, and of the others at most one group of
// micro-batches through all its chunks. Then its stream has all to do that it does once. more is what a micro-batch adds to the work in order.
func (p *passage) outlastEven(at, some, blocks int, more cost.Picoseconds) cost.Picoseconds {
	if p.chunks == anyChunks {
		return 0
	}
	const one = cost.Picoseconds(1)
	first, last := p.position(at)
	late, n, stages := cost.Picoseconds((p.m-1)%p.pp+1), cost.Picoseconds(some), p.stages()
	least, most := late*n-(late-1)*cost.Picoseconds((blocks+stages-1)/stages), late*n-(late-1)*cost.Picoseconds(blocks/stages) // blocks that they go through
	order, stream := late*(more+p.sent[whole][at].all), cost.Picoseconds(0)
	add := func(part int, least, most, once cost.Picoseconds) {
		x, y := &first[part], &last[part]
		order += most*x.backward() + once*y.closing
		stream += least*(y.regathers+y.reduces) + once*y.once
	}
	add(inBlock, least, most, n)
	switch at {
	case 0:
		add(beforeBlocks, one, late, one)
	case p.pp - 1:
		add(afterBlocks, one, one, one)
	}
	return max(0, stream-order)
}

// alone is the time of the first micro-batch through all positions and back, if nothing else kept them busy.
func (s *searcher) alone(p *passage) cost.Picoseconds {
	way := func(t *partTimes) cost.Picoseconds {
		if p.schedule.SplitsBackward() { // weight gradients are left for later
			return t.all - t.weight
		}
		return t.way
	}
	time := way(&p.first[beforeBlocks]) + cost.Picoseconds(s.graphs.blocks)*way(&p.first[inBlock]) + way(&p.first[afterBlocks])
	for at := range p.pp {
		time += p.sent[whole][at].way
	}
	return time
}

// position has the lower bounds of the step that grow with the number of blocks at one position.
type position struct {
	chains  [24]chain // at most seven that end with an update, each in three ways, and three that do not: see positions
	n       int       // number of chains
	flights int       // micro-batches in flight
}

// chain is a lower bound of the step with n blocks at a position: fixed + n * block, and the recomputation of n blocks in so
// many backward passes.
type chain struct{ fixed, block, passes cost.Picoseconds }

// add adds a chain, unless another is as long with any number of blocks. most is how many there are: where a chain gets shorter
// with each, it counts them all.
func (p *position) add(c chain, most cost.Picoseconds) {
	if c.block < 0 {
		c.fixed, c.block = c.fixed+most*c.block, 0
	}
	for _, other := range p.chains[:p.n] {
		if other.block >= c.block && other.fixed+other.block >= c.fixed+c.block && other.passes >= c.passes {
			return
		}
	}
	p.chains[p.n] = c
	p.n++
}

// addEnding adds a chain that ends with the update, once with each tail. less is what of the update of a block it has already.
func (p *position) addEnding(c chain, tails *[3]tail, less, most cost.Picoseconds) {
	for _, t := range tails {
		p.add(chain{c.fixed + t.fixed, c.block + t.block - less, c.passes}, most)
	}
}

// holds returns the most blocks that the position can have if the step takes at most t, with unlimited memory.
func (p *position) holds(t cost.Picoseconds, blocks int) int {
	n := cost.Picoseconds(blocks)
	for i := range p.chains[:p.n] {
		switch c := &p.chains[i]; {
		case t < c.fixed+c.block:
			return 0
		case c.block > 0:
			n = min(n, (t-c.fixed)/c.block)
		}
	}
	return int(n)
}

// holdsWith is holds with the recomputation that memory makes necessary.
func (p *position) holdsWith(t cost.Picoseconds, blocks int, more *again) int {
	most := p.holds(t, blocks)
	fits := func(n int) bool {
		recomputed := more.time(n, n*p.flights)
		if recomputed == never {
			return false
		}
		for i := range p.chains[:p.n] {
			if c := &p.chains[i]; c.fixed+cost.Picoseconds(n)*c.block+c.passes*recomputed > t {
				return false
			}
		}
		return true
	}
	if most == 0 || more == nil || fits(most) {
		return most
	}
	return sort.Search(most-1, func(n int) bool { return !fits(n + 1) })
}

// fill returns a time in which the positions cannot hold all blocks between them: the largest such time, to within a
// thousandth of it. It returns from if that is enough, and never if no time is.
func fill(positions []position, blocks int, more *again, from cost.Picoseconds) cost.Picoseconds {
	enough := func(t cost.Picoseconds) bool {
		left := blocks
		for i := range positions {
			n := positions[i].holdsWith(t, blocks, more)
			if n == 0 {
				return false
			}
			left -= n
		}
		return left <= 0
	}
	switch {
	case from == never || more != nil && !enough(never-1):
		return never
	case enough(from):
		return from
	}
	low, step := from, from/64+1
	for ; !enough(low + step); step *= 2 {
		low += step
	}
	for high := low + step; high-low > high/1024+1; {
		if half := low + (high-low)/2; enough(half) {
			high = half
		} else {
			low = half
		}
	}
	return low
}

// positions lists the chains of the positions of a pipeline under a schedule without interleaving. The result is valid until
// the next call. With micro-batches 0 to m-1, the chains of position i are (see bounds in bound.go):
//
//   - through: micro-batch 0 goes forward through all positions and back to i, which then does the work it has left; the
//     backward pass of micro-batch m-1 goes on to position 0, which updates;
//   - update: the same, but i itself updates once its work is done;
//   - drain: the same, but for the last pass of i, which is as long as its stream, with all that this does once;
//   - busy: all that i does in order, then the update;
//   - beside: all that the communication stream of i does.
//
// Each of those that end with an update does so in all ways that tails has. Through, update and drain also count passes by their
// streams: see waiting.
func (s *searcher) positions(p *passage) []position {
	blocks, m := cost.Picoseconds(s.graphs.blocks), p.m
	split := p.schedule.SplitsBackward()
	// back is a backward pass, up to what the position before waits for.
	back := func(of *partTimes) cost.Picoseconds {
		if split {
			return of.all - of.forward - of.weight
		}
		return of.way - of.forward
	}
	forward := func(first, last *partTimes) cost.Picoseconds {
		if p.schedule == partition.GPipe { // which runs all forward passes first: the last one may be on this way
			return min(first.forward, last.forward)
		}
		return first.forward
	}
	// start is how chains through all positions begin: micro-batch 0 goes forward through all of them, and back through the
	// head and the transfers as far as the position in hand. Blocks are added there. One of another position may be at any of
	// those: it counts the time at the fastest.
	first, last := p.position(0)
	start, update0 := forward(&first[beforeBlocks], &last[beforeBlocks]), p.finish(0, 1, false)
	var ahead, backs, returns fastest // a block forward, back with the first micro-batch and back with the last
	sentBack := cost.Picoseconds(0)   // the transfers back of the first micro-batch
	for at := range p.pp {
		first, last = p.position(at)
		ahead.note(forward(&first[inBlock], &last[inBlock]))
		backs.note(back(&first[inBlock]))
		returns.note(back(&last[inBlock]))
		start -= aheadOf(first, last)
		start += forward(&p.sent[whole][at], &p.sent[rest][at])
		sentBack += p.sent[whole][at].returned()
	}
	head := min(back(&first[afterBlocks]), back(&last[afterBlocks]))
	start += forward(&first[afterBlocks], &last[afterBlocks]) + head + sentBack
	m1, m2 := cost.Picoseconds(max(0, m-1)), cost.Picoseconds(max(0, m-2))
	s.scratch = slices.Grow(s.scratch[:0], p.pp)[:p.pp]
	all := s.scratch
	clear(all)
	var rooms [][]codegen.Chunk
	if p.more != nil {
		rooms = s.rooms(p.outline, m, p.schedule)
	}
	sentOn := cost.Picoseconds(0) // the transfers back of the last micro-batch from positions before the one in hand
	for at := range all {
		x := &all[at]
		first, last := p.position(at)
		if p.more != nil {
			x.flights = rooms[at][0].Slots
		}
		late := cost.Picoseconds(m - earlyForwards(p.schedule, m, p.pp, at)) // forward passes that are left after that
		var through, update, drain, busy, beside chain
		// At least so many blocks, besides its own, are not before the position; for the first position all blocks.
		after := cost.Picoseconds(p.pp - 1 - at)
		if at == 0 {
			after = blocks
		}
		if p.posts {
			start -= p.sent[whole][at].returned() // the position goes on meanwhile
		}
		there, here := ahead.besides(at), backs.besides(at)
		returned := min(here, returns.besides(at))
		through.fixed = start + sentOn + blocks*(there+returned) + after*(here-returned)
		update.fixed = start + blocks*there + after*here
		drain.fixed = update.fixed
		// own is what a block of its own adds to what such a block at another position counts.
		ownBack := back(&first[inBlock])
		own := forward(&first[inBlock], &last[inBlock]) - there + ownBack
		if at == 0 {
			own -= here
			through.block = own
		} else {
			through.block = own - returned
		}
		update.block, drain.block = own, own
		// does adds to the chains what the position does for a part of the model: to what is fixed, or for every block.
		does := func(first, last *partTimes, block bool) {
			add := func(to *chain, t cost.Picoseconds) {
				if block {
					to.block += t
				} else {
					to.fixed += t
				}
			}
			var left cost.Picoseconds // what is left to do after the first backward pass
			if m > 1 {
				whole := first.all - first.forward
				if split {
					whole = back(first)
				}
				left = m2*whole + back(last)
			}
			if late > 0 {
				left += (late-1)*first.forward + last.forward
			}
			add(&through, left)
			add(&update, left)
			add(&drain, left+last.reduces+p.once(last))
			add(&busy, m1*first.all+last.all)
			add(&beside, m1*first.streams()+last.streams())
			switch {
			case split: // weight gradients that come before the last backward pass, and all of them
				add(&through, cost.Picoseconds(max(0, m-1-codegen.WeightLag(p.schedule, at)))*first.weight)
				add(&update, m1*first.weight+last.weight)
				add(&drain, m1*first.weight)
			case m > 1: // else it may gather before the gradient arrives
				add(&drain, last.regathers-back(last))
			}
		}
		does(&first[inBlock], &last[inBlock], true)
		if p.posts { // beside what it has left to do
			through.fixed += p.sent[rest][at].returned()
		} else {
			does(&p.sent[whole][at], &p.sent[rest][at], false)
		}
		switch {
		case at == 0:
			does(&first[beforeBlocks], &last[beforeBlocks], false)
		case at == p.pp-1:
			does(&first[afterBlocks], &last[afterBlocks], false)
		}
		stream := s.streamed(p, &first[inBlock])
		busy.fixed += cost.Picoseconds(m) * stream.within(at == 0, at == p.pp-1)
		if m == 1 && !split { // its last pass is the one of micro-batch 0, which its stream has beside it
			drain.block -= ownBack
			if at == p.pp-1 {
				drain.fixed -= head
			}
			if !p.posts {
				drain.fixed -= p.sent[whole][at].returned()
			}
		}
		if !p.posts {
			start -= p.sent[whole][at].returned()
		}
		sentOn += p.sent[rest][at].returned()
		through.fixed += update0 // the first position updates one block at least
		through.passes, update.passes, drain.passes, busy.passes = m2, m2, m2, m1
		if sameTimes := *first == *last; sameTimes {
			through.passes, update.passes, busy.passes = m1, m1, cost.Picoseconds(m)
			if split {
				drain.passes = m1
			}
		}
		streamed, tails, exposed, closing := p.tails(at, true), p.tails(at, false), chain{fixed: p.exposed(last, at)}, last[inBlock].closing
		for _, c := range []chain{busy, update} {
			x.addEnding(c.plus(exposed), &streamed, 0, blocks)
			x.addEnding(c, &tails, 0, blocks)
		}
		x.add(beside, blocks)
		x.addEnding(drain, &streamed, closing, blocks)
		x.add(through, blocks)
		if before, all := p.waiting(at); all.fixed+all.block > 0 {
			if !split {
				through.passes, update.passes, drain.passes = 0, 0, 0 // recomputation may run beside the stream
			}
			x.addEnding(update.plus(all).plus(exposed), &streamed, 0, blocks)
			x.addEnding(drain.plus(all), &streamed, closing, blocks)
			x.add(through.plus(before), blocks)
		}
	}
	return all
}

// waiting is how much longer than in order passes of a position take by its stream, in a chain that goes through the position and in
// one that ends with its update: a pass that reduces gradients ends only when all is done that it has given to the stream. These are
// the passes but the last one, or under a zero-bubble schedule those for weight gradients.
func (p *passage) waiting(at int) (through, update chain) {
	first, _ := p.position(at)
	split := p.schedule.SplitsBackward()
	var longer chain
	add := func(to *cost.Picoseconds, t *partTimes) {
		if *to += t.reduces - t.weight; !split {
			*to += t.regathers - (t.backward() - t.weight)
		}
	}
	add(&longer.block, &first[inBlock])
	if !p.posts { // else no work of the position waits for what it sends
		add(&longer.fixed, &p.sent[whole][at])
	}
	switch at {
	case 0:
		add(&longer.fixed, &first[beforeBlocks])
	case p.pp - 1:
		add(&longer.fixed, &first[afterBlocks])
	}
	throughs := p.m - 1
	if split {
		throughs = max(0, p.m-1-codegen.WeightLag(p.schedule, at))
	}
	through, update = longer.times(throughs), longer.times(p.m-1)
	if !split && at < p.pp-1 && p.m > 1 { // the first may have gathered the weights of two blocks when its gradient arrives
		through.fixed -= 2 * first[inBlock].regathers
		update.fixed -= 2 * first[inBlock].regathers
	}
	return through, update
}

// plus adds to a chain what another takes besides.
func (c chain) plus(d chain) chain {
	return chain{c.fixed + d.fixed, c.block + d.block, c.passes}
}

// times is a chain so many times.
func (c chain) times(n int) chain {
	return chain{c.fixed * cost.Picoseconds(n), c.block * cost.Picoseconds(n), 0}
}

// sends returns, by position of an outline, the time to send a micro-batch of a size forward and its gradient back: all of it is
// on the way of a micro-batch, but where positions go on meanwhile no work of theirs. It is
// nothing where ranks share their cores: a rank that sends may then have those of ranks that wait.
func (s *searcher) sends(o outline, way *ways, size int) []partTimes {
	key := sendKey{o.sequence, o.waits, o.split, size, o.chunks}
	all, known := way.sent[key]
	if known {
		return all
	}
	all = make([]partTimes, o.pp)
	way.sent[key] = all
	if o.pp == 1 || s.rates.Crowded(o.pp) {
		return all
	}
	trunk := s.trunk(o)
	mesh := trunk.meshOf(size, s.batch)
	price := s.transfers(o, way, mesh)
	for _, n := range s.sending(trunk, o) {
		hop := n.Attr.(ir.P2PAttr).Stage - n.Stage
		for at := range o.pp {
			// All stages of a position send the same way, except one at an end of the pipeline, which has nowhere to send.
			sending, from := max(o.chunks, 1), at
			if to := at + hop; to < 0 || to == o.pp {
				sending, from = sending-1, at+max(0, -hop)*o.pp
			}
			if sending == 0 {
				continue
			}
			time := cost.Picoseconds(sending) * price.Send(n, mesh, ir.Coord{}, from, from+hop)
			t := &all[at]
			if t.way += time; !o.posts() {
				t.all += time
			}
			if n.Phase == ir.Forward {
				t.forward += time
			}
		}
	}
	return all
}

// transfers prices what the positions of an outline send each other. The mesh may be that of any micro-batch size.
func (s *searcher) transfers(o outline, way *ways, mesh ir.Mesh) *cost.Program {
	price := way.transfers[o.chunks]
	if price == nil {
		plan := *way.plan
		plan.ZeROGroup, plan.Stages = 0, make([]partition.Stage, o.stages())
		if o.chunks > 1 {
			plan.Interleave = o.chunks
		}
		price = s.rates.Program(&plan, mesh)
		way.transfers[o.chunks] = price
	}
	return price
}

// sending lists the transfers of a micro-batch between two stages of a trunk, none where it cannot be cut in two.
func (s *searcher) sending(trunk *work, o outline) []*ir.Node {
	if trunk.sending != nil {
		return *trunk.sending
	}
	var all []*ir.Node
	if of, err := s.trunkOf(o, 2, false); err == nil {
		for _, n := range of.prog(kept).Graph.Nodes {
			if n.Op == ir.OpSend && n.Phase != ir.Update {
				all = append(all, n)
			}
		}
	}
	trunk.sending = &all
	return all
}

// sendKey is what sends depends on besides the degrees.
type sendKey struct {
	sequence, waits bool
	split
	size, chunks int
}
