package autopar_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// TestIgnoredTargets trains on batches in which whole sequences, the same positions of all sequences, or all tokens but one
// have no target, so that micro-batches, data-parallel and context-parallel ranks and slices of the loss have none: losses
// and gradient norms are those of one rank.
func TestIgnoredTargets(t *testing.T) {
	T := parityModel.BlockSize
	for name, counts := range map[string]func(sequence, position int) bool{
		"last sequences":  func(s, _ int) bool { return s >= parityBatch-4 },
		"first positions": func(_, p int) bool { return p < T/2 },
		"one token":       func(s, p int) bool { return s == 3 && p == T-1 },
		"none":            func(_, _ int) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			prog, exec := trainer(t, parityPlan(1, 1, 1, parityBatch, partition.GPipe, false), parityBatch)
			one := maskedSteps(t, prog, exec, counts)
			for i, c := range sampleOf(t, allParityPlans(), most(100, 3)) {
				if c.plan.ContextParallel() == 1 && i%2 == 0 {
					c.plan.LossSlices = T
				}
				prog, exec := trainer(t, c.plan, parityBatch)
				got := maskedSteps(t, prog, exec, counts)
				require.NoError(t, exec.Close())
				for s := range one.loss {
					require.InDelta(t, one.loss[s], got.loss[s], 1e-5, "%+v", c.plan)
					require.InDelta(t, one.norm[s], got.norm[s], 1e-6*one.norm[s], "%+v", c.plan)
				}
			}
		})
	}
}

// maskedSteps trains on random text of which only the tokens that count have a target.
func maskedSteps(t *testing.T, prog *codegen.Program, exec *runtime.Executor, counts func(sequence, position int) bool) trajectory {
	rng := rand.New(rand.NewPCG(7, 7))
	T := tokensOf(prog)
	ids, targets := make([]int32, parityBatch*T), make([]int32, parityBatch*T)
	var out trajectory
	for step := range 3 {
		n := 0
		for i := range ids {
			ids[i], targets[i] = int32(rng.IntN(65)), -1
			if counts(i/T, i%T) {
				targets[i] = int32(rng.IntN(65))
				n++
			}
		}
		r, err := exec.Step(context.Background(), prog, runtime.Feeds{
			"ids": runtime.Ints(ids...), "targets": runtime.Ints(targets...), "positions": runtime.Ints(upTo(T)...),
			"seed": runtime.Ints(1337), "step": runtime.Ints(int32(step)),
			"lr": runtime.Floats(1e-5), "loss_weight": runtime.Floats(1 / float32(max(n, 1))),
		})
		require.NoError(t, err)
		out.loss = append(out.loss, float64(r["loss"]))
		out.norm = append(out.norm, float64(r["grad_norm"]))
	}
	return out
}
