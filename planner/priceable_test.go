package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestLongestStep: a step whose picoseconds could not be counted is refused, not priced with what is left of them.
func TestLongestStep(t *testing.T) {
	const batch = 1 << 20
	g := step(t, preset(t, "gpt2"), batch)
	c := cluster(t, "cpu")
	opts := Options{PlanNGPUs: 1, RuntimeNGPUs: 1, MicroBatch: 1, MemoryLimit: 1 << 40}
	plan := &partition.Plan{PlanNGPUs: 1, RuntimeNGPUs: 1, DP: 1, TP: 1, MicroBatch: 1, Schedule: partition.GPipe, Stages: []partition.Stage{{Last: 12}}}
	var refused *OptionError
	_, err := Search(g, batch, c, opts)
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "batch.global", refused.Option)
	_, err = Predict(g, batch, c, plan, nil)
	require.ErrorAs(t, err, &refused)

	long := preset(t, "gpt2")
	long.BlockSize = 1 << 20
	slow := cluster(t, "h100")
	slow.Device.FLOPS = map[string]float64{"f32": 1e10}
	err = priceable(step(t, long, 1), 1, slow, 1)
	require.ErrorContains(t, err, "batch.global: is 1 sequences, 88.9 days a step at the peak rate", "most of that is attention")
	slow = cluster(t, "h100")
	slow.Device.MemoryBandwidth = 1e3
	err = priceable(step(t, preset(t, "gpt2"), 64), 64, slow, 1)
	require.ErrorContains(t, err, "days a step at the rates that kernels reach", "nearly all of it memory")

	half := preset(t, "gpt2")
	half.Float = ir.BF16
	c.Device.FLOPS["bf16"] = 10 * c.Device.FLOPS["f32"]
	require.NoError(t, priceable(step(t, half, batch), batch, c, 1), "by the rate of its type")

	c.Device.FLOPS["f32"] *= 10
	p, err := Predict(g, batch, c, plan, nil)
	require.NoError(t, err)
	require.Positive(t, p.Step)
}
