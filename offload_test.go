package autopar_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// offloadPlans are plans of many shapes to offload from.
func offloadPlans() []*partition.Plan {
	plans := []*partition.Plan{
		parityPlan(1, 1, 1, 4, partition.GPipe, false),
		parityPlan(2, 1, 1, 2, partition.OneFOneB, true),
		parityPlan(1, 3, 2, 3, partition.GPipe, true),
		parityPlan(2, 2, 2, 1, partition.OneFOneB, false),
	}
	for zero := 1; zero <= 3; zero++ {
		p := parityPlan(3, 1, 2, 2, partition.OneFOneB, true)
		p.ZeRO = zero
		plans = append(plans, p)
		q := parityPlan(4, 2, 1, 2, partition.OneFOneB, false)
		q.ZeRO, q.ZeROGroup, q.SequenceParallel = zero, 2, true
		plans = append(plans, q)
	}
	return plans
}

// TestOffloadKeepsTheBits: what is fetched is what was stashed, so losses and
// gradient norms do not differ by a bit. Device memory falls by what moved to the
// host, and the ranks copy as often, and as many bytes, as the program says.
func TestOffloadKeepsTheBits(t *testing.T) {
	const batch, steps = 11, 6
	for i, p := range offloadPlans() {
		var want trajectory
		var device int64
		for _, what := range []partition.Offload{partition.OffloadNone, partition.OffloadOptimizer, partition.OffloadParams} {
			name := fmt.Sprintf("plan %d: dp %d tp %d pp %d zero %d, offload %s", i, p.DP, p.TP, p.PP(), p.ZeRO, what)
			p.Offload = what
			prog, exec := trainer(t, p, batch)
			got := stepsOf(t, prog, exec, batch, steps)
			st := prog.Stages[0]
			if what == partition.OffloadNone {
				want, device = got, st.Persist
				require.Zero(t, st.Host, name)
			}
			require.Equal(t, want, got, name)
			var moved int64
			for _, v := range prog.Graph.Params() {
				if v.Def.Stage != 0 || !v.OnHost() {
					continue
				}
				attr := v.Def.Attr.(ir.ParamAttr)
				require.True(t, attr.State || what == partition.OffloadParams, "%s: %s", name, v.Name())
				moved += (prog.Slab(v, ir.Coord{}).Elems()*4 + 63) / 64 * 64
			}
			require.Equal(t, moved, st.Host, name)
			require.Equal(t, device-moved, st.Persist, name)
		}
	}
}
