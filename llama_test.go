package autopar_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/exact"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// llamaModel has Llama's choices at sizes that nothing divides: 3 heads of 14,
// an MLP of 37, and biases in its linears, which Llama has not.
func llamaModel() gpt.Config {
	c := parityModel
	c.NHead, c.NKVHead, c.NEmbd, c.FFNHidden = 3, 3, 42, 37
	c.Activation, c.Norm, c.Position, c.TieEmbeddings = gpt.SwiGLU, gpt.RMSNorm, gpt.RoPE, false
	return c
}

// llamaLayout is a tensor-parallel placement: gate and up split alike by
// columns, the projection down by rows, the head by the vocabulary. The token table,
// which is only looked up, stays whole, as the planner leaves it.
func llamaLayout(tp int) []partition.Placement {
	p := []partition.Placement{
		{Match: `h\.[0-9]+\.mlp\.c_fc\.weight`, Spec: "[_,tp,_]"},
		{Match: `h\.[0-9]+\.mlp\.c_fc\.bias`, Spec: "[_,tp]"},
		{Match: `h\.[0-9]+\.mlp\.c_proj\.weight`, Spec: "[_,tp]"},
		{Match: `lm_head\.weight`, Spec: "[tp,_]"},
	}
	if tp <= llamaModel().NHead {
		p = append(p,
			partition.Placement{Match: `h\.[0-9]+\.attn\.c_attn\.weight`, Spec: "[_,tp,_,_]"},
			partition.Placement{Match: `h\.[0-9]+\.attn\.c_attn\.bias`, Spec: "[_,tp,_]"},
			partition.Placement{Match: `h\.[0-9]+\.attn\.c_proj\.weight`, Spec: "[_,tp,_]"})
	}
	return p
}

// stepOf traces a training step of a model on the batch of the parity tests.
func stepOf(t *testing.T, c gpt.Config) *ir.Graph {
	opt := gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}
	g, err := gpt.TrainStep(c, opt, parityBatch, c.BlockSize)
	require.NoError(t, err)
	return g
}

// TestReproducibleLlama: with sums in fixed point a Llama's losses, norms, weights
// and moments have the same bits under three plans, with grouped heads too.
func TestReproducibleLlama(t *testing.T) {
	for _, c := range []gpt.Config{llamaModel(), groupedModels()[0]} {
		g, err := exact.Sums(stepOf(t, c))
		require.NoError(t, err)
		require.NoError(t, g.Verify())
		run := func(p *partition.Plan) (trajectory, map[string][]float32) {
			place(p, groupedLayout(c, p.TP))
			copied, _ := g.Clone()
			prog, exec := compile(t, copied, p, parityBatch)
			require.NoError(t, exec.InitParams(prog, 1337))
			seen := stepsOf(t, prog, exec, parityBatch, 5)
			return seen, gather(t, prog, exec)
		}
		want, weights := run(parityPlan(1, 1, 1, parityBatch, partition.GPipe, false))
		for _, p := range []*partition.Plan{
			parityPlan(3, 1, 2, 2, partition.OneFOneB, true), parityPlan(2, 1, 1, 1, partition.GPipe, false),
		} {
			p.ZeRO = p.DP - 1
			seen, got := run(p)
			require.Equal(t, want, seen)
			require.Equal(t, weights, got)
		}
	}
}

// TestParityOfLlama is TestParity for a model with RMSNorm, RoPE, SwiGLU and a
// head of its own: a sample of the plans, larger with -parity-all.
func TestParityOfLlama(t *testing.T) {
	train := func(p *partition.Plan, steps int) trajectory {
		place(p, llamaLayout(p.TP))
		prog, exec := compile(t, stepOf(t, llamaModel()), p, parityBatch)
		require.NoError(t, exec.InitParams(prog, 1337))
		return stepsOf(t, prog, exec, parityBatch, steps)
	}
	one := train(parityPlan(1, 1, 1, parityBatch, partition.GPipe, false), learningSteps)
	require.Less(t, one.loss[len(one.loss)-1], one.loss[0]-0.01, "it learns")
	for _, c := range sampleOf(t, allParityPlans(), most(200, 10)) {
		p := c.plan
		dLoss, dNorm := differences(one, train(p, paritySteps()))
		row := fmt.Sprintf("dp %d, cp %d, tp %d, pp %d, sp %v, zero %d, %s, recompute %s: max |Δloss| %.1e, max rel Δ‖grad‖ %.1e",
			p.DP, p.ContextParallel(), p.TP, p.PP(), p.SequenceParallel, p.ZeRO, p.ScheduleText(), c.recompute, dLoss, dNorm)
		t.Log(row)
		if !(dLoss <= 1e-5) || !(dNorm <= 1e-6) {
			t.Error(row)
		}
	}
}
