package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
)

// TestReproducibleAcrossPlans: with train.reproducible a run that stops twice and continues under
// other plans has the bits of a run on one rank that did not stop: losses, norms, evaluations,
// weights, moments and the best validation loss. With tensor parallelism this holds across plans
// with the same tensor-parallel layout.
func TestReproducibleAcrossPlans(t *testing.T) {
	plan := func(dp, tp, pp, micro, zero int, schedule partition.Schedule) *partition.Plan {
		p := planOf(dp, tp, pp)
		p.MicroBatch, p.ZeRO, p.Schedule = micro, zero, schedule
		p.Stages[0].Recompute = zero % 2
		return p
	}
	units := plan(1, 1, 2, 3, 1, partition.GPipe)
	units.RuntimeNGPUs = 6
	for name, plans := range map[string][4]*partition.Plan{
		"tp 1": {plan(1, 1, 1, 7, 0, partition.GPipe), units, plan(2, 1, 2, 1, 3, partition.OneFOneB), plan(4, 1, 1, 2, 2, partition.OneFOneB)},
		"tp 2": {plan(1, 2, 1, 7, 0, partition.GPipe), plan(3, 2, 1, 2, 1, partition.GPipe), plan(2, 2, 2, 1, 3, partition.OneFOneB), plan(1, 2, 2, 3, 0, partition.GPipe)},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := tinyConfig(t, textData(t), "train.reproducible=true")
			require.NoError(t, cfg.Validate())
			whole, parts := t.TempDir(), t.TempDir()
			want, _ := train(t, cfg, plans[0], RunOptions{Out: whole})
			for i, stop := range []int{5, 9, 0} {
				got, _ := train(t, cfg, plans[1+i], RunOptions{Out: parts, Steps: stop, Resume: i > 0})
				if stop == 0 {
					require.Equal(t, want.Loss, got.Loss)
					require.Equal(t, want.BestVal, got.BestVal)
				}
			}
			steps, evals := readMetrics(t, whole)
			gotSteps, gotEvals := readMetrics(t, parts)
			require.Len(t, gotSteps, len(steps))
			for i := range steps {
				require.Equal(t, steps[i].Loss, gotSteps[i].Loss, "iteration %d", i)
				require.Equal(t, steps[i].GradNorm, gotSteps[i].GradNorm, "iteration %d", i)
			}
			require.NotEmpty(t, evals)
			require.Equal(t, evals, gotEvals)
			require.Equal(t, contents(t, whole), contents(t, parts))
		})
	}
}
