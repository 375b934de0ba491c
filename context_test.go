package autopar_test

import (
	"math"
	"testing"

	"github.com/autopar/autopar/partition"
)

// contextPlan is parityPlan with context parallelism.
func contextPlan(dp, cp, tp, pp int) *partition.Plan {
	p := parityPlan(dp, tp, pp, 2, partition.OneFOneB, false)
	p.CP = cp
	p.PlanNGPUs *= cp
	p.RuntimeNGPUs *= cp
	return p
}

// differences are the largest between two trajectories.
func differences(one, got trajectory) (dLoss, dNorm float64) {
	for s := range one.loss {
		dLoss = max(dLoss, math.Abs(got.loss[s]-one.loss[s]))
		dNorm = max(dNorm, math.Abs(got.norm[s]-one.norm[s])/one.norm[s])
	}
	return dLoss, dNorm
}

func TestContextParity(t *testing.T) {
	one := trainBatch(t, parityPlan(1, 1, 1, parityBatch, partition.GPipe, false), parityBatch, 6)
	for _, p := range []*partition.Plan{
		contextPlan(1, 2, 1, 1), contextPlan(1, 3, 1, 1), contextPlan(1, 4, 1, 1), contextPlan(2, 2, 1, 1), contextPlan(1, 2, 2, 1), contextPlan(1, 2, 1, 2),
	} {
		dLoss, dNorm := differences(one, trainBatch(t, p, parityBatch, 6))
		t.Logf("dp %d cp %d tp %d pp %d: %.1e %.1e", p.DP, p.CP, p.TP, p.PP(), dLoss, dNorm)
		if !(dLoss <= 1e-5) || !(dNorm <= 1e-6) {
			t.Error("too far")
		}
	}
}
