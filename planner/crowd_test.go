package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// TestSchedulesOfACrowd: schedules share prices, but on a shared machine where one leaves
// the cores more than another.
func TestSchedulesOfACrowd(t *testing.T) {
	c, err := cost.Load("cpu")
	require.NoError(t, err)
	prices := func(schedules ...partition.Schedule) []*stageTimes {
		s := newSearcher(step(t, tiny(4), 6), 6, c, Options{RuntimeNGPUs: 2})
		skel, err := s.skeleton(outline{degrees: degrees{dp: 1, cp: 1, tp: 1, pp: 2, plan: 2}, chunks: 1})
		require.NoError(t, err)
		var first []*stageTimes
		for _, schedule := range schedules {
			first = append(first, skel.times(1, schedule)[0])
		}
		return first
	}
	crowd := prices(partition.OneFOneB, partition.ZeroBubble, partition.OneFOneB)
	require.Same(t, crowd[0], crowd[2])
	fast, slow := crowd[0].forward[whole].busy(), crowd[1].forward[whole].busy()
	require.Less(t, fast.block[kept], slow.block[kept], "1F1B leaves more of the core")
	require.Equal(t, crowd[0].update.busy(), crowd[1].update.busy(), "updates come when nobody waits")

	c = cluster(t, "h100")
	alone := prices(partition.OneFOneB, partition.ZeroBubble)
	require.Same(t, alone[0], alone[1])
}

// TestSharedSearchIsExact: also where ranks share the processors, and heads that do not divide among them.
func TestSharedSearchIsExact(t *testing.T) {
	t.Parallel()
	const seed = 5
	r := rand.New(rand.NewPCG(seed, 0))
	uneven, plans := 0, 0
	for k := range 4 {
		model := tiny(2) // of three heads
		model.Bias, model.Dropout = false, 0
		batch := 2 + r.IntN(3)
		b := &brute{
			t: t, g: step(t, model, batch), blocks: model.NLayer, batch: batch, tokens: model.BlockSize, cluster: sharing(r, randomCluster(r)), limit: 1 << 40,
			opts: Options{RuntimeNGPUs: 2, PlanNGPUs: 2, TP: 2, MemoryLimit: 1 << 40, Overlap: "off", OverlapTP: "off", Offload: "none"},
		}
		if k%2 == 1 {
			b.opts.RuntimeNGPUs, b.opts.PlanNGPUs = 4, 4
		}
		if b.skip() {
			continue
		}
		res, _ := b.compare(seed, k)
		require.NotNil(t, res)
		if plans += b.plans; res.Plan.TP > 1 {
			uneven++
		}
	}
	t.Logf("%d plans, %d winners with heads that do not divide", plans, uneven)
	require.Positive(t, uneven)
}
