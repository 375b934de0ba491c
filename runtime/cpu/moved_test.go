package cpu

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// TestMoved checks that ranks receive from each other exactly the bytes that the program counts.
func TestMoved(t *testing.T) {
	for _, d := range []ir.DType{ir.F32, ir.BF16} {
		t.Run(d.String(), func(t *testing.T) { testMoved(t, d) })
	}
}

func testMoved(t *testing.T, d ir.DType) {
	const batch, seqLen = 3, 5
	cfg := gpt.Config{
		NLayer: 2, NHead: 3, NEmbd: 12, BlockSize: seqLen, VocabSize: 65, Bias: true,
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: true,
		Float: d,
	}
	g, err := gpt.TrainStep(cfg, gpt.Optimizer{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, GradClip: 1}, batch, seqLen)
	require.NoError(t, err)
	plan := &partition.Plan{
		PlanNGPUs: 8, RuntimeNGPUs: 8, DP: 2, TP: 2, MicroBatch: 1, Schedule: partition.OneFOneB,
		Stages: []partition.Stage{{First: 0, Last: 1}, {First: 1, Last: 2}},
		Placements: []partition.Placement{
			{Match: `h\.[0-9]+\.attn\.c_attn\.weight`, Spec: "[_,tp,_,_]"},
			{Match: `h\.[0-9]+\.mlp\.c_fc\.weight`, Spec: "[tp,_]"},
			{Match: `h\.[0-9]+\.ln_1\.weight`, Spec: "[tp]"},
			{Match: `wte\.weight`, Spec: "[tp,_]"},
			{Match: `wpe\.weight`, Spec: "[_,tp]"},
		},
	}
	prog, err := codegen.Compile(g, plan, batch, nil)
	require.NoError(t, err)

	b, err := New(Options{})
	require.NoError(t, err)
	e, err := runtime.New(prog, b, runtime.Options{Timeout: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	require.NoError(t, e.InitParams(prog, 1))
	ids := make([]int32, batch*seqLen)
	_, err = e.Step(context.Background(), prog, runtime.Feeds{
		"ids": runtime.Ints(ids...), "targets": runtime.Ints(ids...), "positions": runtime.Ints(0, 1, 2, 3, 4),
		"seed": runtime.Ints(1), "step": runtime.Ints(0), "lr": runtime.Floats(0.1), "loss_weight": runtime.Floats(1. / (batch * seqLen)),
	})
	require.NoError(t, err)
	for r := range prog.Schedules {
		received := int64(0)
		s := &prog.Schedules[r]
		for _, task := range s.Tasks {
			for _, in := range prog.Stages[s.Stage].Run(task) {
				if in.Node.Op != ir.OpSend {
					received += prog.CommBytes(s, &in, task)
				}
			}
		}
		require.Equal(t, received, b.devices[r].moved.Load(), "rank %d", r)
		require.NotZero(t, received)
	}
}
