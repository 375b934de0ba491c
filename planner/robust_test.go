package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// candidates searches and returns what it found, the best first.
func robustCandidates(t *testing.T, c *cost.Cluster) (plans []*partition.Plan, times []cost.Picoseconds) {
	t.Helper()
	found, err := Search(step(t, tiny(4), 8), 8, c, Options{PlanNGPUs: 8, TopK: 5})
	require.NoError(t, err)
	plans, times = append(plans, found.Plan), append(times, found.Prediction.Step)
	for _, a := range found.Alternatives {
		plans, times = append(plans, a.Plan), append(times, a.Prediction.Step)
	}
	require.Greater(t, len(plans), 2)
	return plans, times
}

// TestRobust: on the stated cluster contenders take what the search said; the
// regrets are those of a count of its own, with every plan predicted whole; and the
// same seed draws the same.
func TestRobust(t *testing.T) {
	const seed, samples = 7, 9
	c := randomCluster(rand.New(rand.NewPCG(seed, 1)))
	plans, times := robustCandidates(t, c)
	g := step(t, tiny(4), 8)
	r, err := Robust(g, 8, c, plans, samples, seed)
	require.NoError(t, err)
	again, err := Robust(g, 8, c, plans, samples, seed)
	require.NoError(t, err)
	require.Equal(t, r, again)
	for i, x := range r.Contenders {
		require.Equal(t, times[i].Seconds(), x.StepSeconds)
	}
	worst, wins := make([]float64, len(plans)), make([]int, len(plans))
	for s := range samples {
		d := perturbed(c, seed, s)
		var steps []cost.Picoseconds
		best := never
		for _, p := range plans {
			x, err := Predict(g, 8, d, p, nil)
			require.NoError(t, err)
			steps = append(steps, x.Step)
			best = min(best, x.Step)
		}
		for i, t := range steps {
			worst[i] = max(worst[i], float64(t-best)/float64(best))
			if t == best {
				wins[i]++
			}
		}
	}
	for i, x := range r.Contenders {
		require.Equal(t, worst[i], x.Worst, "plan %d", i)
		require.Equal(t, wins[i], x.Best, "plan %d", i)
		require.True(t, x.Median <= x.P90 && x.P90 <= x.Worst && x.Mean <= x.Worst)
		require.LessOrEqual(t, r.Contenders[r.Least].Worst, x.Worst)
	}
}

// TestRobustWithoutUncertainty: where all is known the chosen plan is always best.
func TestRobustWithoutUncertainty(t *testing.T) {
	c := randomCluster(rand.New(rand.NewPCG(3, 1)))
	c.Uncertainty = map[string]float64{}
	for _, k := range c.Constants() {
		c.Uncertainty[k.Key] = 0
	}
	plans, _ := robustCandidates(t, c)
	r, err := Robust(step(t, tiny(4), 8), 8, c, plans, 5, 1)
	require.NoError(t, err)
	require.Equal(t, 5, r.Contenders[0].Best)
	require.Zero(t, r.Contenders[0].Worst)
	require.Zero(t, r.Least)
	require.Positive(t, r.Contenders[1].Worst)
}

// TestPerturbed: figures move by about their uncertainty, each by itself, and by no
// more than chance allows.
func TestPerturbed(t *testing.T) {
	c := randomCluster(rand.New(rand.NewPCG(4, 1)))
	c.Device.Efficiency.Matmul = 0.5
	up, sum := 0, 0.0
	const samples = 400
	for s := range samples {
		ratio := perturbed(c, 5, s).Device.Efficiency.Matmul / 0.5
		if ratio > 1 {
			up++
		}
		sum += (ratio - 1) * (ratio - 1) / samples
	}
	require.InDelta(t, samples/2, up, 3*10, "seed 5")
	require.InDelta(t, 0.05*0.05, sum, 0.0006)
	a, b := perturbed(c, 5, 0), perturbed(c, 5, 1)
	require.NotEqual(t, a.IntraNode.Latency/c.IntraNode.Latency, a.InterNode.Latency/c.InterNode.Latency)
	require.NotEqual(t, a.IntraNode.Latency, b.IntraNode.Latency)
	require.NoError(t, a.Validate())
}
