package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// TestAnyChunks: what is bounded with any number of chunks takes no longer than with each
// number that is searched, with memory that is short or not.
func TestAnyChunks(t *testing.T) {
	const seed = 23
	r := rand.New(rand.NewPCG(seed, 0))
	bounds, tight, short := 0, 0, 0
	for k := range 100 {
		model, batch := tiny([]int{12, 13, 24}[r.IntN(3)]), 4+r.IntN(30)
		pp, tp := 2+r.IntN(2), 1+r.IntN(2)
		s := newSearcher(step(t, model, batch), batch, randomCluster(r), Options{RuntimeNGPUs: 2 * tp * pp})
		d := degrees{plan: 2 * tp * pp, dp: 2, cp: 1, tp: tp, pp: pp}
		o := s.anywhere(outline{degrees: d, sharding: sharding{zero: r.IntN(4), sequence: tp > 1}, chunks: anyChunks})
		size := 1 + r.IntN((batch+1)/2)
		keeps := s.again(o, size, partition.Interleaved)
		s.limit = int64(model.NLayer/pp) * (keeps.persist + keeps.slots[0][kept]*int64(1+r.IntN(2*pp)))
		all := func(o outline) [3]cost.Picoseconds {
			more := s.again(o, size, partition.Interleaved)
			return [3]cost.Picoseconds{
				s.floor(o, s.trunk(o), size, partition.Interleaved),
				s.flowing(&pending{outline: o}, size, partition.Interleaved, nil), s.flowing(&pending{outline: o}, size, partition.Interleaved, more),
			}
		}
		any := all(o)
		least := [3]cost.Picoseconds{never, never, never}
		for _, x := range s.counted(o) {
			for i, bound := range all(x) {
				require.LessOrEqual(t, any[i], bound, "seed %d case %d: bound %d of %d chunks, %d blocks, micro-batches of %d of %d: %+v", seed, k, i, x.chunks, model.NLayer, size, batch, d)
				least[i] = min(least[i], bound)
				bounds++
			}
		}
		for i := range any {
			if any[i] == least[i] {
				tight++
			}
		}
		if any[2] > any[1] {
			short++
		}
	}
	t.Logf("%d bounds, %d as tight as that of the best number, %d cases with memory that is short", bounds, tight, short)
	require.Positive(t, tight)
	require.Positive(t, short)
}
