package planner

import (
	"slices"
	"sort"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// A passage is the way of micro-batches through the positions of a pipeline, of which the
// cut is open. It bounds the step from below by chains of events: what lies on them for
// every position, whatever its number of blocks, and how many blocks then fit in a time.

// passage is the whole micro-batches and the last one of an outline on their way
// through its positions.
type passage struct {
	outline
	schedule    partition.Schedule
	m           int // micro-batches
	more        *again
	first, last workTimes      // at least, at every position
	each        [][2]workTimes // by position; nil where all take as long
	sent        [2][]partTimes // by position, of whole ones and the last
	// A bound above enough is not raised further: it is short.
	enough cost.Picoseconds
	short  bool
}

// at is what micro-batches take at a position, whole ones and the last.
func (p *passage) at(position int) (first, last *workTimes) {
	if p.each == nil {
		return &p.first, &p.last
	}
	return &p.each[position][whole], &p.each[position][rest]
}

// flow is the larger of the bounds by what positions do and by chains of events through
// all of them.
func (s *searcher) flow(p *passage) cost.Picoseconds {
	least := s.least(p)
	bound := s.busy(p.outline, p.m, p.schedule, least)
	if p.pp == 1 || p.chunks > 1 {
		return bound
	}
	if p.short = bound > p.enough; p.short {
		return bound
	}
	return s.busy(p.outline, p.m, p.schedule, fill(s.positions(p), s.graphs.blocks, p.more, least))
}

// least bounds the time of m micro-batches, all but the last of one size.
//
// Position i of a pipeline starts when micro-batch 0 has come through the positions
// before, does all its work, and then its last backward pass goes on to position 0,
// which updates: the time is at least that of one micro-batch through the positions
// before and of all micro-batches through position i. How many blocks lie before is
// open; all lie on that way for the last position, and some position has its even share.
func (s *searcher) least(p *passage) cost.Picoseconds {
	o, first, last, m, schedule, more := p.outline, &p.first, &p.last, p.m, p.schedule, p.more
	blocks := s.graphs.blocks
	// all is every micro-batch through a part of the model, way one there and back.
	all := func(part, n int) cost.Picoseconds {
		return cost.Picoseconds(n) * (cost.Picoseconds(m-1)*first[part].all + last[part].all)
	}
	way := func(part, n int) cost.Picoseconds {
		if schedule == partition.ZeroBubble { // on its way back gradients of weights are left to do
			return cost.Picoseconds(n) * last[part].forward
		}
		return cost.Picoseconds(n) * last[part].way
	}
	update := func(n int) cost.Picoseconds { return cost.Picoseconds(n) * last[inBlock].update }
	passes := cost.Picoseconds(m) // in which as much is recomputed
	if *first != *last {
		passes--
	}
	if o.pp == 1 {
		recomputed := cost.Picoseconds(0)
		if more != nil {
			recomputed = more.time(blocks, blocks*s.rooms(o, m, schedule)[0][0].Slots)
		}
		if recomputed == never {
			return never
		}
		inOrder := passes*recomputed + all(beforeBlocks, 1) + all(inBlock, blocks) + all(afterBlocks, 1) + update(blocks) + last[beforeBlocks].update
		inOrder += p.exposed(last, 0)
		return max(inOrder, cost.Picoseconds(blocks)*(cost.Picoseconds(m-1)*first[inBlock].beside+last[inBlock].beside))
	}
	ahead := max(first[inBlock].ahead, last[inBlock].ahead) + max(first[afterBlocks].ahead, last[afterBlocks].ahead)
	if o.chunks > 1 {
		even := s.evenOf(o, 0)
		if more != nil {
			even = s.evenOf(o, m)
		}
		bound := s.alone(p) - cost.Picoseconds(even.stages)*ahead
		for at, its := range even.at {
			recomputed := more.time(its.blocks, its.flights)
			if recomputed == never {
				return never
			}
			time := passes*recomputed + all(inBlock, its.blocks) + way(inBlock, its.before) - cost.Picoseconds(at+1)*ahead + update(its.blocks)
			time += cost.Picoseconds(m-1)*p.sent[whole][at].all + p.sent[rest][at].all
			time += p.exposed(last, at)
			switch at {
			case 0:
				time += all(beforeBlocks, 1)
			case o.pp - 1:
				time += all(afterBlocks, 1)
			}
			bound = max(bound, time)
		}
		return bound
	}
	bound := s.alone(p) - cost.Picoseconds(o.stages())*ahead
	share := (blocks + o.pp - 1) / o.pp
	bound = max(bound, all(inBlock, share)+update(share), all(beforeBlocks, 1)+all(inBlock, 1)+update(1))
	late := cost.Picoseconds(o.pp)*ahead - update(1)
	bound = max(bound, way(beforeBlocks, 1)+way(inBlock, blocks-1)+all(inBlock, 1)+all(afterBlocks, 1)-late)
	// With blocks that can be divided, positions that all end at once have ever fewer
	// of them: after each, 1-way/all of what was left of the time is.
	if every := all(inBlock, 1); every > 0 {
		ratio, left := float64(way(inBlock, 1))/float64(every), 1.0
		for range o.pp {
			left *= 1 - ratio
		}
		bound = max(bound, cost.Picoseconds(float64(way(inBlock, blocks))/(1-left)*(1-1e-9))-late)
	}
	return bound
}

// exposed bounds from below how much longer than its work in order a position takes, as after the
// last pass over some blocks the stream still has to reduce the gradients of the last block.
func (p *passage) exposed(last *workTimes, at int) cost.Picoseconds {
	after := cost.Picoseconds(0) // what the position does once the pass is over all blocks
	switch x := &last[beforeBlocks]; {
	case at > 0:
	case p.schedule == partition.ZeroBubble:
		after = x.weight + x.closing
	default:
		after = x.all - x.forward + x.closing
	}
	return max(0, last[inBlock].once-after)
}

// alone is the way of the first micro-batch through all positions and back.
func (s *searcher) alone(p *passage) cost.Picoseconds {
	way := func(t *partTimes) cost.Picoseconds {
		if p.schedule == partition.ZeroBubble { // gradients of weights are left to do
			return t.all - t.weight
		}
		return t.way
	}
	time := way(&p.first[beforeBlocks]) + cost.Picoseconds(s.graphs.blocks)*way(&p.first[inBlock]) + way(&p.first[afterBlocks])
	for at := range p.pp {
		time += way(&p.sent[whole][at])
	}
	return time
}

// position bounds the step of a pipeline from below, by the blocks at one position.
type position struct {
	chains  [4]chain
	flights int // micro-batches
}

// chain is a chain of events in which each block of a position adds to the time, and
// what is recomputed in so many backward passes.
type chain struct{ fixed, block, passes cost.Picoseconds }

// holds returns how many blocks the position can have at most in a time, if there is as
// much memory as it wants.
func (p *position) holds(t cost.Picoseconds, blocks int) int {
	n := cost.Picoseconds(blocks)
	for i := range p.chains {
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
		for i := range p.chains {
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

// fill returns a time in which the positions cannot have all blocks between them, by
// less than a thousandth of it, or from, if they can; never if they cannot in any.
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

// positions lists those of a pipeline of m micro-batches under a schedule without
// interleaving, until it is called again.
//
// Two chains of events lead through all positions (see bounds): micro-batch 0 goes
// forward through all of them and back to one, which then does what it has left; and
// either updates, or its last backward pass goes on to the first position. The third
// is all that the position does in order, the fourth what its communication stream does.
func (s *searcher) positions(p *passage) []position {
	blocks, m := cost.Picoseconds(s.graphs.blocks), p.m
	split := p.schedule == partition.ZeroBubble
	// back is a backward pass, up to what the position before waits for.
	back := func(of *partTimes) cost.Picoseconds {
		if split {
			return of.all - of.forward - of.weight
		}
		return of.way - of.forward
	}
	forward := func(first, last *partTimes) cost.Picoseconds {
		if p.schedule == partition.GPipe { // the last of them goes on
			return min(first.forward, last.forward)
		}
		return first.forward
	}
	// A block may be at any position, and takes no less than at the fastest.
	first, last := p.at(0)
	start, block, update0 := forward(&first[beforeBlocks], &last[beforeBlocks]), never, last[inBlock].update
	each := [2]cost.Picoseconds{never, never} // backward, of the first micro-batch and the last
	sentBack := cost.Picoseconds(0)           // by the positions after
	for at := range p.pp {
		first, last = p.at(at)
		block = min(block, forward(&first[inBlock], &last[inBlock]))
		each = [2]cost.Picoseconds{min(each[whole], back(&first[inBlock])), min(each[rest], back(&last[inBlock]))}
		start -= max(first[inBlock].ahead, last[inBlock].ahead) + max(first[afterBlocks].ahead, last[afterBlocks].ahead)
		start += forward(&p.sent[whole][at], &p.sent[rest][at])
		sentBack += back(&p.sent[whole][at])
	}
	each[rest] = min(each[whole], each[rest])
	start += blocks*block + forward(&first[afterBlocks], &last[afterBlocks]) + min(back(&first[afterBlocks]), back(&last[afterBlocks])) + sentBack
	m1, m2 := cost.Picoseconds(max(0, m-1)), cost.Picoseconds(max(0, m-2))
	s.scratch = slices.Grow(s.scratch[:0], p.pp)[:p.pp]
	all := s.scratch
	clear(all)
	var rooms [][]codegen.Chunk
	if p.more != nil {
		rooms = s.rooms(p.outline, m, p.schedule)
	}
	sentOn := cost.Picoseconds(0) // by the positions before, of the last micro-batch
	for at := range all {
		x := &all[at]
		first, last := p.at(at)
		if p.more != nil {
			x.flights = rooms[at][0].Slots
		}
		late := cost.Picoseconds(m - earlyForwards(p.schedule, m, p.pp, at))
		through, update, busy, beside := &x.chains[0], &x.chains[1], &x.chains[2], &x.chains[3]
		// So many blocks at least, besides its own, are not before the position.
		after := cost.Picoseconds(p.pp - 1 - at)
		if at == 0 {
			after = blocks
		}
		through.fixed, update.fixed = start+sentOn+blocks*each[rest]+after*(each[whole]-each[rest]), start+after*each[whole]
		// does adds what the position does of a part: to what is fixed, or for every block.
		does := func(first, last *partTimes, to func(*chain) *cost.Picoseconds) {
			var left cost.Picoseconds // after the first backward pass
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
			*to(through) += left
			*to(update) += left
			*to(busy) += m1*first.all + last.all
			*to(beside) += m1*first.beside + last.beside
			if split { // gradients of weights before the last backward pass, and of all
				*to(through) += cost.Picoseconds(max(0, m-1-at)) * first.weight
				*to(update) += m1*first.weight + last.weight
			}
		}
		fixed := func(c *chain) *cost.Picoseconds { return &c.fixed }
		does(&first[inBlock], &last[inBlock], func(c *chain) *cost.Picoseconds { return &c.block })
		does(&p.sent[whole][at], &p.sent[rest][at], fixed)
		switch {
		case at == 0:
			does(&first[beforeBlocks], &last[beforeBlocks], fixed)
		case at == p.pp-1:
			does(&first[afterBlocks], &last[afterBlocks], fixed)
		}
		if at > 0 {
			through.block += each[whole] - each[rest]
			update.block += each[whole]
		}
		start -= back(&p.sent[whole][at])
		sentOn += back(&p.sent[rest][at])
		through.fixed += update0 // of the first position
		update.block += last[inBlock].update
		busy.block += last[inBlock].update
		through.passes, update.passes, busy.passes = m2, m2, m1
		if sameTimes := *first == *last; sameTimes {
			through.passes, update.passes, busy.passes = m1, m1, cost.Picoseconds(m)
		}
		exposed := p.exposed(last, at)
		update.fixed += exposed
		busy.fixed += exposed
	}
	return all
}

// sends returns, by position of an outline, what it takes to send a micro-batch of a size
// on its way and its gradient back. Where ranks share their cores with those that wait, which may
// be while they send, it is nothing.
func (s *searcher) sends(o outline, way *ways, size int) []partTimes {
	key := sendKey{o.sequence, o.split, size, o.chunks}
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
	for _, n := range s.sending(trunk, o) {
		hop := n.Attr.(ir.P2PAttr).Stage - n.Stage
		for at := range o.pp {
			// All stages of a position send the same way, but that at an end of the pipeline nowhere.
			sending, from := max(o.chunks, 1), at
			if to := at + hop; to < 0 || to == o.pp {
				sending, from = sending-1, at+max(0, -hop)*o.pp
			}
			if sending == 0 {
				continue
			}
			time := cost.Picoseconds(sending) * price.Send(n, mesh, ir.Coord{}, from, from+hop)
			t := &all[at]
			t.all += time
			t.way += time
			if n.Phase == ir.Forward {
				t.forward += time
			}
		}
	}
	return all
}

// sending lists the transfers of a micro-batch between two stages of a trunk, none where
// it cannot be cut.
func (s *searcher) sending(trunk *work, o outline) []*ir.Node {
	if trunk.sending != nil {
		return *trunk.sending
	}
	var all []*ir.Node
	if of, err := s.trunkOf(o, 2); err == nil {
		for _, n := range of.prog(kept).Graph.Nodes {
			if n.Op == ir.OpSend && n.Phase != ir.Update {
				all = append(all, n)
			}
		}
	}
	trunk.sending = &all
	return all
}

// sendKey is what sends follow from beside degrees.
type sendKey struct {
	sequence bool
	split
	size, chunks int
}
