package autopar_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// precision is how a run computes and what it keeps in f32.
type precision struct {
	name     string
	float    ir.DType
	noMaster bool
}

func precisions() []precision {
	return []precision{
		{"bf16", ir.BF16, false},
		{"all bf16", ir.BF16, true},
		{"f16", ir.F16, false},
	}
}

// trainerIn is trainer in another precision.
func trainerIn(t testing.TB, c precision, p *partition.Plan, batch int) (*codegen.Program, *runtime.Executor) {
	model := parityModel
	model.Float = c.float
	opt := gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1, NoMaster: c.noMaster}
	g, err := gpt.TrainStep(model, opt, batch, parityModel.BlockSize)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	prog, exec := compile(t, g, p, batch)
	require.NoError(t, exec.InitParams(prog, 1337))
	return prog, exec
}

// TestHalfPrecisionParity trains under plans of every kind in each precision.
// Partial sums that ranks exchange are rounded, so losses differ by roundings of
// activations: see the bound.
func TestHalfPrecisionParity(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("sample seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, c := range precisions() {
		prog, exec := trainerIn(t, c, parityPlan(1, 1, 1, parityBatch, partition.GPipe, false), parityBatch)
		one := stepsOf(t, prog, exec, parityBatch, *paritySteps)
		require.Less(t, one.loss[len(one.loss)-1], one.loss[0]-0.05, "it learns")
		var plans []*partition.Plan
		for _, n := range []int{2, 3, 4, 8} {
			plans = append(plans, parityPlans(n)...)
		}
		for i, p := range plans {
			if !*parityAll && rng.IntN(6) > 0 {
				continue
			}
			p.MicroBatch = []int{2, 11, 3}[i%3]
			t.Log(c.name, p.DP, p.TP, p.PP(), p.ZeRO, p.MicroBatch)
			prog, exec := trainerIn(t, c, p, parityBatch)
			got := stepsOf(t, prog, exec, parityBatch, *paritySteps)
			var dLoss, dNorm float64
			for s := range one.loss {
				dLoss = max(dLoss, math.Abs(got.loss[s]-one.loss[s]))
				dNorm = max(dNorm, math.Abs(got.norm[s]-one.norm[s])/one.norm[s])
			}
			fmt.Printf("%s dp %d tp %d pp %d sp %v zero %d micro-batch %d: %.1e %.1e\n", c.name, p.DP, p.TP, p.PP(), p.SequenceParallel, p.ZeRO, p.MicroBatch, dLoss, dNorm)
		}
	}
}

var _ = context.Background
