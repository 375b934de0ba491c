package planner

import "github.com/autopar/autopar/planner/cost"

// This file is the part of floors (floor.go) that says how long tasks wait for their communication stream in a plan with
// overlap (flow.go). A pass gathers the parameters of a block (ZeRO 3) while the block before it computes, and reduces the
// gradients of a block (from ZeRO 2 on) while the next one does. It ends when all that is done. So nothing hides the first
// gather and the last reduction but what stands outside of blocks, and a pass takes no less than its stream.

// streamed is what the passes of an outline give to the stream for a block, and by how much each of these delays the pass, as
// part of the times in order. A wait hides what has been given before it delays: at the first block of a pass its own gather
// and that of the next block.
type streamed struct {
	gather, regather, reduce cost.Picoseconds // in the forward pass, in the backward pass
	slow                     struct{ gather, regather, reduce cost.Picoseconds }
	late                     cost.Picoseconds // sums of gradients: see [partTimes]
}

// streamed returns that of an outline, from the times of a block.
func (s *searcher) streamed(p *passage, block *partTimes) streamed {
	x := streamed{gather: block.gathers, regather: block.regathers, reduce: block.reduces, late: block.late}
	slow := &x.slow // at most: devices of some positions may be delayed by less, or by nothing
	for _, at := range s.waysOf(p.outline).places {
		slow.gather, slow.regather, slow.reduce = max(slow.gather, at.slows(x.gather)), max(slow.regather, at.slows(x.regather)), max(slow.reduce, at.slows(x.reduce))
	}
	return x
}

// alone is how long a forward and a backward pass wait that have all parts of the model, with n blocks, of which the backward
// pass recomputes some.
func (x *streamed) alone(t *workTimes, n, recomputed cost.Picoseconds, split bool) (forward, backward cost.Picoseconds) {
	before, block, after := &t[beforeBlocks], &t[inBlock], &t[afterBlocks]
	blocks, order := n*block.forward, before.forward+n*block.forward+after.forward
	// Nothing hides the first gather. Then: all in order; all other gathers, the last block and the head; or the gather of the
	// first block, then all blocks.
	least := max(
		order-x.slow.gather,
		n*x.gather+block.forward-x.slow.gather+after.forward,
		max(before.forward, x.gather)+blocks-2*x.slow.gather+after.forward,
	)
	forward = max(0, before.gathers+least-order)

	first, each, last := after.backward()-after.late, block.all-block.forward-block.late, before.all-before.forward-before.late
	blocks = n*each + recomputed
	order = after.backward() + n*(block.all-block.forward) + recomputed + before.all - before.forward
	if split { // the gradients of weights have a pass of their own
		return forward, max(0, n*(x.regather+x.reduce)-order)
	}
	// Nothing hides the first gather and the last reduction. Between them: all in order; the head, then all but one gather and
	// all reductions; or the head and all blocks, then the reduction of the last one.
	least = max(
		first+blocks+last-x.slow.regather,
		max(first, x.regather)+max(0, n-1)*x.regather+n*x.reduce,
		first+blocks-x.slow.regather-x.slow.reduce+max(x.reduce, last),
	)
	return forward, max(0, after.regathers+least+before.reduces-order)
}

// last is how long the update after the last backward pass waits for its stream, which then does once what is left to do, if
// the pass does everything in order.
func (x *streamed) last(t *workTimes, n, recomputed cost.Picoseconds) cost.Picoseconds {
	before, block, after := &t[beforeBlocks], &t[inBlock], &t[afterBlocks]
	first := after.backward() - after.late
	order := after.backward() + n*(block.all-block.forward) + before.all - before.forward + recomputed
	closing := before.closing + n*block.closing + after.closing
	return max(0, after.regathers+max(first, x.regather)+max(0, n-1)*x.regather+n*(x.reduce+block.once)+after.once+before.reduces+before.once-order-closing)
}

// within is how long a forward and a backward pass of a stage wait: for their first gathers, and the last reduction, where
// nothing outside of blocks stands beside them, as the embedding does at the first stage and the head at the last one.
func (x *streamed) within(first, last bool) (wait cost.Picoseconds) {
	if !first {
		wait += x.firstGather() + x.lastReduce()
	}
	if !last {
		wait += x.firstRegather()
	}
	return wait
}

func (x *streamed) firstGather() cost.Picoseconds   { return max(0, x.gather-2*x.slow.gather) }
func (x *streamed) firstRegather() cost.Picoseconds { return max(0, x.regather-2*x.slow.regather) }
func (x *streamed) lastReduce() cost.Picoseconds    { return max(0, x.reduce-x.slow.reduce-x.late) }
