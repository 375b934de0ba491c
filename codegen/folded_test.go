package codegen_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// TestFoldIsProven: a program with context parallelism is equivalent to the traced graph, and no longer so if
// one instruction lacks the fold.
func TestFoldIsProven(t *testing.T) {
	const batch = 4
	cfg := gpt.Config{
		NLayer: 2, NHead: 3, NKVHead: 3, NEmbd: 24, BlockSize: 33, VocabSize: 65, Dropout: 0.2, Bias: true,
		Activation: "gelu", Norm: "layernorm", Position: "learned", TieEmbeddings: true,
	}
	traced, err := gpt.TrainStep(cfg, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, batch, cfg.BlockSize)
	require.NoError(t, err)
	plan := &partition.Plan{
		PlanNGPUs: 6, RuntimeNGPUs: 6, DP: 1, CP: 3, TP: 1, MicroBatch: 2, Schedule: partition.OneFOneB,
		Stages: []partition.Stage{{First: 0, Last: 1, Selective: 1}, {First: 1, Last: 2, Recompute: 1}},
	}
	attr := func(change func(a *ir.DropoutAttr)) func(n *ir.Node) {
		return func(n *ir.Node) {
			a := n.Attr.(ir.DropoutAttr)
			change(&a)
			n.Attr = a
		}
	}
	for _, tt := range []struct {
		node   string
		change func(n *ir.Node)
		want   string
	}{
		{"", nil, ""},
		{"embed/dropout", attr(func(a *ir.DropoutAttr) { a.Fold = 0 }), "embed/dropout"},
		{"h.1.mlp/dropout", attr(func(a *ir.DropoutAttr) { a.Dim = 2 }), "h.1.mlp/dropout"},
		{"h.0.attn/attention", attr(func(a *ir.DropoutAttr) { a.Fold = 2 }), "h.0.attn/attention"},
		{"h.1.attn/attention@re", attr(func(a *ir.DropoutAttr) { a.Key = "h.0.attn/attention" }), "h.1.attn/attention"},
		{"h.1.attn/attention@dqkv@apart", func(n *ir.Node) { n.Args[2] = n.Args[1] }, "h.1.attn/attention@dqkv@apart"},
		{"targets@fold", func(n *ir.Node) { n.Attr = ir.CommAttr{Axis: partition.AxisCP, Dim: 0, Parts: 3} }, "targets@fold"},
	} {
		prog, err := codegen.Compile(traced, plan, batch, nil)
		require.NoError(t, err)
		for _, n := range prog.Graph.Nodes {
			if tt.change != nil && partition.BaseName(n.Name) == tt.node {
				tt.change(n)
			}
		}
		err = codegen.CheckEquivalent(prog, traced)
		if tt.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, tt.want, tt.node)
		require.ErrorAs(t, err, new(*codegen.CheckError))
	}
}
