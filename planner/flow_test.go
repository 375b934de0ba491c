package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// TestSendAfterWorkOfNoBlock: a stage sends before its blocks have done anything, though something that is no block's is done before.
func TestSendAfterWorkOfNoBlock(t *testing.T) {
	t.Parallel()
	c := tiny(3)
	c.NHead, c.NKVHead, c.NEmbd, c.FFNHidden, c.BlockSize, c.VocabSize, c.Bias = 5, 1, 20, 97, 4, 90, false
	c.Activation = gpt.GELUTanh
	g, nodes := step(t, c, 2), cluster(t, "a100-80g")
	found, err := Search(g, 2, nodes, Options{
		PlanNGPUs: 16, RuntimeNGPUs: 16, DP: 2, PP: 2, TP: 4, CP: 1, MicroBatch: 1, TPPieces: 4,
		Schedule: partition.GPipe, Overlap: "on", OverlapTP: "off", Recompute: RecomputePointwise, RankOrder: "dp-tp-cp-pp",
	})
	require.NoError(t, err)
	p, err := Predict(g, 2, nodes, found.Plan, nil)
	require.NoError(t, err)
	require.Equal(t, p.Step, found.Prediction.Step)
}

// TestAlikeBlocks: a body takes as long whether or not the steps of alike blocks are followed one by one.
func TestAlikeBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	some := func(n int64) cost.Picoseconds { return cost.Picoseconds(r.Int64N(n)) }
	times := func(most int) []cost.Picoseconds {
		all := make([]cost.Picoseconds, r.IntN(most+1))
		for i := range all {
			all[i] = some(20)
		}
		return all
	}
	for range 5_000 {
		f := &flow{beside: r.IntN(5) > 0, joins: r.IntN(2) == 0, lastly: r.IntN(2) == 0, slows: func(t cost.Picoseconds) cost.Picoseconds { return t / 8 }}
		var kinds []*segment
		for range 4 {
			s := &segment{gathers: times(2), reduces: times(2), sums: some(2) * some(9), items: []item{{time: 1 + some(30)}}}
			for range s.reduces {
				s.late = append(s.late, r.IntN(3) == 0)
			}
			if s.each = r.IntN(len(s.reduces) + 1); s.each > 0 {
				s.further = times(1)
			}
			kinds = append(kinds, s)
		}
		kinds[0].items = append(kinds[0].items, item{kind: sim.Recv}, item{time: 5})
		var alike, apart []*segment
		for range 1 + r.IntN(5) {
			s := kinds[r.IntN(len(kinds))]
			for range 1 + r.IntN(40) {
				copied := *s
				alike, apart = append(alike, s), append(apart, &copied)
			}
		}
		require.Equal(t, f.run(apart, tally{1}), f.run(alike, tally{1}))
	}
}
