package autopar_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// TestLossSlicesParity trains with the head and the loss in slices, under plans of every kind and with tied and untied
// tables: losses and gradient norms are those of one rank that makes all logits at once.
func TestLossSlicesParity(t *testing.T) {
	const steps = 4
	untied := parityModel
	untied.Norm, untied.Position, untied.TieEmbeddings, untied.Bias = gpt.RMSNorm, gpt.RoPE, false, false
	for _, model := range []gpt.Config{parityModel, untied} {
		g := stepOf(t, model)
		train := func(p *partition.Plan) trajectory {
			prog, exec := compile(t, g, p, parityBatch)
			require.NoError(t, exec.InitParams(prog, 1337))
			return stepsOf(t, prog, exec, parityBatch, steps)
		}
		one := train(parityPlan(1, 1, 1, parityBatch, partition.GPipe, false))
		for _, c := range []struct {
			dp, tp, pp, micro, zero int
			sequence, overlap       bool
			schedule                partition.Schedule
		}{
			{dp: 1, tp: 1, pp: 1, micro: 4}, {dp: 3, tp: 1, pp: 1, micro: 2, zero: 1}, {dp: 2, tp: 2, pp: 1, micro: 3, zero: 2, sequence: true},
			{dp: 2, tp: 1, pp: 1, micro: 2, zero: 3, overlap: true}, {dp: 1, tp: 2, pp: 2, micro: 2}, {dp: 2, tp: 1, pp: 2, micro: 2, zero: 1, overlap: true},
			{dp: 1, tp: 1, pp: 4, micro: 3, schedule: partition.GPipe}, {dp: 1, tp: 1, pp: 2, micro: 2, schedule: partition.ZeroBubble},
		} {
			t.Run(fmt.Sprintf("%s/%+v", model.Position, c), func(t *testing.T) {
				if c.schedule == "" {
					c.schedule = partition.OneFOneB
				}
				p := parityPlan(c.dp, c.tp, c.pp, c.micro, c.schedule, c.micro == 2)
				p.ZeRO, p.SequenceParallel, p.Overlap, p.LossSlices = c.zero, c.sequence, c.overlap, model.BlockSize
				dLoss, dNorm := differences(one, train(p))
				require.LessOrEqual(t, dLoss, 1e-5)
				require.LessOrEqual(t, dNorm, 1e-6)
			})
		}
	}
}

// TestLossSlicesTakeLess: there are never more logits than those of a slice, in training and in the evaluation.
func TestLossSlicesTakeLess(t *testing.T) {
	const vocab = 4099
	model := parityModel
	model.VocabSize, model.NLayer, model.BlockSize = vocab, 2, 16
	step := stepOf(t, model)
	eval, err := gpt.EvalStep(model, parityBatch, model.BlockSize)
	require.NoError(t, err)
	for _, g := range []*ir.Graph{step, eval} {
		var arenas []int64
		for _, slices := range []int{0, 4} {
			p := parityPlan(1, 1, 1, parityBatch, partition.GPipe, false)
			p.Stages[0].Last, p.LossSlices = model.NLayer, slices
			prog, err := codegen.Compile(g, p, parityBatch, nil)
			require.NoError(t, err)
			require.NoError(t, codegen.Verify(prog, g))
			st := prog.Stages[0]
			for id := range st.Buffers {
				if b := &st.Buffers[id]; slices > 1 && b.Value.Type.Shape != nil && len(b.Value.Type.Shape) == 3 && b.Value.Type.Shape[2] == vocab {
					require.Equal(t, int64(parityBatch*model.BlockSize/slices*vocab*4), b.Size, b.Value.Name())
				}
			}
			arenas = append(arenas, st.Arena())
		}
		logits := int64(parityBatch * model.BlockSize * vocab * 4)
		require.Greater(t, arenas[0]-arenas[1], logits/2)
	}
}
