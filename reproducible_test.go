package autopar_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir/exact"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// exactTrainer compiles the reproducible training step for a plan and initializes
// the weights.
func exactTrainer(t testing.TB, p *partition.Plan, batch int) (*codegen.Program, *runtime.Executor) {
	opt := gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}
	g, err := gpt.TrainStep(parityModel, opt, batch, parityModel.BlockSize)
	require.NoError(t, err)
	g, err = exact.Sums(g)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	prog, exec := compile(t, g, p, batch)
	require.NoError(t, exec.InitParams(prog, 1337))
	return prog, exec
}

// exactRun trains and returns what was seen, and the weights and moments.
func exactRun(t testing.TB, p *partition.Plan, steps int) (trajectory, map[string][]float32) {
	prog, exec := exactTrainer(t, p, parityBatch)
	seen := stepsOf(t, prog, exec, parityBatch, steps)
	return seen, gather(t, prog, exec)
}

// reproduciblePlans lists plans without tensor parallelism: every data-parallel
// degree to 4, as ranks of one unit and as units, pipeline depth 1, 2 and 4, every
// ZeRO stage, in groups too, with micro-batch, schedule and recomputation in turn.
func reproduciblePlans() []*partition.Plan {
	var plans []*partition.Plan
	for dp := 1; dp <= 4; dp++ {
		for _, pp := range []int{1, 2, 4} {
			for zero := 0; zero <= 3 && (zero == 0 || dp > 1); zero++ {
				i := len(plans)
				p := parityPlan(dp, 1, pp, 1+i%3, []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.ZeroBubble}[i/3%3], false)
				if i%2 == 0 && pp > 1 {
					interleave(p, 2)
				}
				if i%4 == 1 {
					p.PlanNGPUs, p.DP = pp, 1 // dp units
				}
				if p.ZeRO = zero; dp == 4 && zero > 0 && pp > 1 {
					p.ZeROGroup = 2
				}
				for s := range p.Stages {
					half := (p.Stages[s].Last - p.Stages[s].First + 1) / 2
					switch i % 6 {
					case 1:
						p.Stages[s].Recompute = half
					case 2:
						p.Stages[s].Selective = half
					case 3:
						p.Stages[s].Recompute, p.Stages[s].Selective = half/2, half/2
					case 4:
						p.Stages[s].Recompute = p.Stages[s].Last - p.Stages[s].First
					case 5:
						p.Stages[s].Recompute, p.Stages[s].Pointwise = half/2, p.Stages[s].Last-p.Stages[s].First-half/2
					}
				}
				plans = append(plans, p)
			}
		}
	}
	return plans
}

func describePlan(p *partition.Plan) string {
	return fmt.Sprintf("%d units of dp %d x pp %d, micro-batch %d, %s, ZeRO %d in groups of %d, overlap %v, of p2p %v, stages %v",
		p.Units(), p.DP, p.PP(), p.MicroBatch, p.ScheduleText(), p.ZeRO, p.ZeROGroup, p.Overlap, p.OverlapP2P, p.Stages)
}

// TestReproducible trains with train.reproducible under a random sample of plans
// without tensor parallelism, or with -parity-all under every one of the list:
// losses, gradient norms, weights and moments have the same bits under all.
func TestReproducible(t *testing.T) {
	steps := most(12, 6)
	seed := rand.Uint64()
	t.Logf("sample seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	want, weights := exactRun(t, parityPlan(1, 1, 1, parityBatch, partition.GPipe, false), steps)
	plain := oneRank(t, steps)
	require.InDeltaSlice(t, plain.loss, want.loss, 1e-5, "and as without")
	for i := range plain.norm {
		require.InEpsilon(t, plain.norm[i], want.norm[i], 1e-6)
	}
	for _, p := range reproduciblePlans() {
		if !*parityAll && rng.IntN(4) > 0 {
			continue
		}
		got, end := exactRun(t, p, steps)
		require.Equal(t, want, got, describePlan(p))
		require.Equal(t, weights, end, describePlan(p))
	}
}

// TestSamePlanSameBits runs twice, with and without train.reproducible, on ranks
// that meet in another order each time.
func TestSamePlanSameBits(t *testing.T) {
	p := parityPlan(2, 2, 2, 2, partition.OneFOneB, true)
	p.ZeRO = 2
	for _, make := range []func(testing.TB, *partition.Plan, int) (*codegen.Program, *runtime.Executor){trainer, exactTrainer} {
		var losses []trajectory
		var weights []map[string][]float32
		for range 2 {
			prog, exec := make(t, p, parityBatch)
			losses = append(losses, stepsOf(t, prog, exec, parityBatch, 5))
			weights = append(weights, gather(t, prog, exec))
		}
		require.Equal(t, losses[0], losses[1])
		require.Equal(t, weights[0], weights[1])
	}
}

// TestReproducibleOverflow: a loss weight a million times too large makes gradients
// that fixed point cannot hold, which is an error that says where.
func TestReproducibleOverflow(t *testing.T) {
	prog, exec := exactTrainer(t, parityPlan(2, 1, 1, 2, partition.GPipe, false), parityBatch)
	ids := make([]int32, parityBatch*parityModel.BlockSize)
	_, err := exec.Step(context.Background(), prog, runtime.Feeds{
		"ids": runtime.Ints(ids...), "targets": runtime.Ints(ids...), "positions": runtime.Ints(upTo(parityModel.BlockSize)...),
		"seed": runtime.Ints(1), "step": runtime.Ints(0), "lr": runtime.Floats(1e-3), "loss_weight": runtime.Floats(1e6),
	})
	var failed *runtime.StepError
	require.ErrorAs(t, err, &failed)
	require.ErrorContains(t, err, "fixed point of 50 fraction bits (train.reproducible) holds numbers below 8192")
	require.ErrorContains(t, err, "@d")
}

// TestReproducibleOverTensorParallel: sums over tensor-parallel ranks keep the shape
// the plan gives them. So a tensor-parallel layout has bits of its own, within the
// tolerance of parity of one rank's, and they are the same under every plan of it.
func TestReproducibleOverTensorParallel(t *testing.T) {
	const steps = 5
	one, end := exactRun(t, parityPlan(1, 1, 1, parityBatch, partition.GPipe, false), steps)
	for tp, sequence := range map[int]bool{2: true, 3: false} {
		alone := parityPlan(1, tp, 1, parityBatch, partition.GPipe, false)
		alone.SequenceParallel = sequence
		want, weights := exactRun(t, alone, steps)
		require.NotEqual(t, end, weights)
		require.InDeltaSlice(t, one.loss, want.loss, 1e-5)
		for i := range one.norm {
			require.InEpsilon(t, one.norm[i], want.norm[i], 1e-6)
		}
		for zero, p := range []*partition.Plan{
			parityPlan(1, tp, 2, 2, partition.OneFOneB, true),
			parityPlan(2, tp, 1, 3, partition.GPipe, true),
			parityPlan(2, tp, 2, 1, partition.OneFOneB, false),
			parityPlan(3, tp, 1, 2, partition.GPipe, false),
		} {
			p.SequenceParallel = sequence
			if p.DP > 1 {
				p.ZeRO = zero
			}
			got, end := exactRun(t, p, steps)
			require.Equal(t, want, got, "tp %d, %s", tp, describePlan(p))
			require.Equal(t, weights, end, "tp %d, %s", tp, describePlan(p))
		}
	}
}
