package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/planner/cost"
)

// TestWaitsAreNoLonger: what floors say that passes with all parts of a model wait for their streams is never more than in
// flows of the same times, and often all of it; nor what they say of passes of blocks alone, nor what bounds of cuts say of how
// long a body waits for its first gathers and outlasts what it does in order.
func TestWaitsAreNoLonger(t *testing.T) {
	const seed = 11
	r := rand.New(rand.NewPCG(seed, 0))
	all, exact := 0, 0
	for k := range 3000 {
		tenths := cost.Picoseconds(r.IntN(4))
		slows := func(t cost.Picoseconds) cost.Picoseconds { return tenths * t / 10 }
		draw := func(most int) cost.Picoseconds { return cost.Picoseconds(r.IntN(most)) }
		some := func(t cost.Picoseconds) []cost.Picoseconds {
			if t == 0 {
				return nil
			}
			return []cost.Picoseconds{t}
		}
		x := &streamed{reduce: draw(60)}
		first, head, last := draw(40), draw(40), draw(40) // gathers of the embedding and, backward, of the head; its reduction
		if r.IntN(2) == 0 {                               // ZeRO 3
			x.gather, x.regather = draw(60), draw(60)
		} else {
			first, head = 0, 0
		}
		x.slow.gather, x.slow.regather, x.slow.reduce = slows(x.gather), slows(x.regather), slows(x.reduce)
		segmentOf := func(items cost.Picoseconds, block bool, gather, reduce cost.Picoseconds) segment {
			s := segment{block: block, items: []item{{time: items, each: block}}, gathers: some(gather), reduces: some(reduce)}
			s.each, s.late = len(s.reduces), make([]bool, len(s.reduces))
			return s
		}
		pass := func(backward bool, segments ...segment) *flow {
			f := &flow{beside: true, backward: backward, slows: slows, known: map[flowKey]flowTimes{}}
			for e := range extents {
				f.segments[e] = segments
			}
			return f
		}
		var work workTimes
		before, block, after := 1+draw(90), 1+draw(50), 1+draw(90)
		work[beforeBlocks] = partTimes{forward: before, gathers: first, regathers: 0, reduces: last}
		work[inBlock].forward = block + x.slow.gather
		work[afterBlocks] = partTimes{forward: after, regathers: head}
		forward := pass(false, segmentOf(before, false, first, 0), segmentOf(block, true, x.gather, 0), segmentOf(after, false, 0, 0))
		before, block, after = 1+draw(90), 1+draw(90), 1+draw(90)
		if r.IntN(8) == 0 {
			for i := range work {
				work[i].late = draw(60)
			}
		}
		x.late = work[inBlock].late
		work[beforeBlocks].all = work[beforeBlocks].forward + before + work[beforeBlocks].late
		work[inBlock].all = work[inBlock].forward + block + x.slow.regather + x.slow.reduce + x.late
		work[afterBlocks].all = work[afterBlocks].forward + after + work[afterBlocks].late
		ofBlock, ofHead, ofTable := segmentOf(block, true, x.regather, x.reduce), segmentOf(after, false, head, 0), segmentOf(before, false, 0, last)
		ofTable.sums, ofBlock.sums, ofHead.sums = work[beforeBlocks].late, work[inBlock].late, work[afterBlocks].late
		middle := [2]*flow{pass(false, forward.segments[kept][1]), pass(true, ofBlock)}
		backward := pass(true, ofHead, ofBlock, ofTable)
		for n := 1; n < 6; n++ {
			blocks := cost.Picoseconds(n)
			ahead, back := x.alone(&work, blocks, 0, false)
			order := work[beforeBlocks].forward + blocks*work[inBlock].forward + work[afterBlocks].forward
			took := forward.at(tally{n}, recomputation{}).spans[0].time
			require.LessOrEqual(t, order+ahead, took, "seed %d case %d: forward, %d blocks", seed, k, n)
			whole := work[beforeBlocks].all + blocks*work[inBlock].all + work[afterBlocks].all
			takes := backward.at(tally{n}, recomputation{}).spans[0].time
			require.LessOrEqual(t, whole-order+back, takes, "seed %d case %d: backward, %d blocks", seed, k, n)
			within := middle[0].at(tally{n}, recomputation{}).spans[0].time + middle[1].at(tally{n}, recomputation{}).spans[0].time
			require.LessOrEqual(t, blocks*work[inBlock].all+x.within(false, false), within, "seed %d case %d: between other stages, %d blocks", seed, k, n)
			if order+ahead == took && whole-order+back == takes {
				all++
			}
			led := workOf(forward, n) + body{{flow: forward}}.leads()
			require.LessOrEqual(t, led, took, "seed %d case %d: forward, with its first gathers, %d blocks", seed, k, n)
			lead, outlasts := body{{flow: backward}}.leads(), backward.outlasts(tally{n}, recomputation{})[0]
			bounded := workOf(backward, n) + lead + outlasts
			require.LessOrEqual(t, bounded, takes, "seed %d case %d: backward, with its first gather and what its stream outlasts, %d blocks", seed, k, n)
			if led == took && bounded == takes && lead > 0 && outlasts > 0 {
				exact++
			}
		}
	}
	require.Greater(t, all, 1000)
	require.Greater(t, exact, 1000)
}

// workOf is what a pass of a flow with n blocks does in order, if it waits for nothing.
func workOf(f *flow, n int) (sum cost.Picoseconds) {
	for _, s := range f.expand(tally{n}, recomputation{}) {
		for _, x := range s.items {
			sum += x.time
		}
		sum += s.sums
		for _, times := range [][]cost.Picoseconds{s.gathers, s.reduces, s.further} {
			for _, time := range times {
				sum += f.slows(time)
			}
		}
	}
	return sum
}
