package trace_test

import (
	"fmt"
	goruntime "runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/trace"
)

// line returns trace_test.go:N for the line that is offset lines below its caller.
func line(offset int) string {
	_, _, n, _ := goruntime.Caller(1)
	return fmt.Sprintf("trace_test.go:%d", n+offset)
}

func weight(t *trace.Tracer, name string, shape ...int) trace.Tensor {
	return t.Param(name, shape, trace.ParamAttr{Init: trace.InitNormal, Std: 1, Decay: true})
}

func TestNamesAndPositions(t *testing.T) {
	tr := trace.New("net")
	x := tr.Input("x", trace.F32, 7, 5)
	fc := tr.Scope("h", 3).Scope("mlp").Scope("c_fc")
	w, b := weight(fc, "weight", 3, 5), weight(fc, "bias", 3)
	want := line(1)
	y := fc.Linear(x, w, b, 1)
	y = fc.Add(y, y)
	require.Equal(t, []int{7, 3}, y.Shape())
	require.Equal(t, "h.3.mlp.c_fc/add_1", y.Name())
	tr.Output("y", y)
	g, err := tr.Finish()
	require.NoError(t, err)
	require.NoError(t, g.Verify())

	var names []string
	for _, n := range g.Nodes {
		names = append(names, n.Name)
	}
	require.Equal(t, []string{
		"x", "h.3.mlp.c_fc.weight", "h.3.mlp.c_fc.bias",
		"h.3.mlp.c_fc/matmul", "h.3.mlp.c_fc/add", "h.3.mlp.c_fc/add_1",
	}, names)
	require.Equal(t, want, g.Find("h.3.mlp.c_fc/matmul").Pos)
	require.Equal(t, want, g.Find("h.3.mlp.c_fc/add").Pos, "the inner call's line is not the user's")
	require.Equal(t, "h.3", g.Find("h.3.mlp.c_fc/add").Block())
	require.Equal(t, "y", g.Outputs[0].Name)
}

func TestUnusedNodesAreDropped(t *testing.T) {
	tr := trace.New("net")
	x := tr.Input("x", trace.F32, 5)
	tr.GELU(x, true)
	tr.Output("x", x)
	g, err := tr.Finish()
	require.NoError(t, err)
	require.Len(t, g.Nodes, 1)
}

// The key of a random site is its final name, so two sites never share a mask.
func TestDropoutKeys(t *testing.T) {
	tr := trace.New("net")
	random := trace.Stream{Seed: tr.Input("seed", trace.I32), Step: tr.Input("step", trace.I32)}
	x := tr.Input("x", trace.F32, 2, 7, 3, 3, 5)
	mlp := tr.Scope("mlp")
	require.Equal(t, x, mlp.Dropout(x, 0, trace.Stream{}), "p = 0 records nothing and needs no stream")
	a := mlp.Dropout(x, 0.1, random)
	b := mlp.Dropout(a, 0.2, random)
	c := mlp.Attention(b, 0.3, random)
	tr.Output("c", c)
	g, err := tr.Finish()
	require.NoError(t, err)
	require.Equal(t, ir.DropoutAttr{P: 0.1, Key: "mlp/dropout"}, g.Find("mlp/dropout").Attr)
	require.Equal(t, ir.DropoutAttr{P: 0.2, Key: "mlp/dropout_1"}, g.Find("mlp/dropout_1").Attr)
	require.Equal(t, ir.DropoutAttr{P: 0.3, Key: "mlp/attention"}, g.Find("mlp/attention").Attr)
}

// Two sites whose names have one hash would share a mask; without dropout they have none.
func TestDropoutKeysMeet(t *testing.T) {
	for _, p := range []float64{0, 0.1} {
		tr := trace.New("net")
		random := trace.Stream{Seed: tr.Input("seed", trace.I32), Step: tr.Input("step", trace.I32)}
		x := tr.Input("x", trace.F32, 2, 7, 3, 3, 5)
		tr.Scope("h.1285.attn").Attention(x, p, random)
		y := tr.Scope("h.5943.mlp").Dropout(x, 0.1, random)
		tr.Output("y", y)
		_, err := tr.Finish()
		if p == 0 {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "h.5943.mlp/dropout would drop the same elements as h.1285.attn/attention: the hash of both names is ")
		}
	}
}

// A training step of one linear layer: gradient, norm, clip, AdamW.
func TestTrainingStep(t *testing.T) {
	tr := trace.New("net")
	step, lr := tr.Input("step", trace.I32), tr.Input("lr", trace.F32)
	x, targets := tr.Input("x", trace.F32, 7, 5), tr.Input("targets", trace.I32, 7)
	w := weight(tr, "w", 3, 5)
	b := tr.Param("b", []int{3}, trace.ParamAttr{})
	loss := tr.Sum(tr.CrossEntropy(tr.Linear(x, w, b, 1), targets))
	weights := tr.Weights()
	require.Equal(t, []trace.Tensor{w, b}, weights)
	grads := tr.Grad(loss, weights, ir.F32)

	tr = tr.Phase(trace.Update)
	norm := tr.Scope("grad_norm").GlobalNorm(weights, grads)
	clip := tr.Scope("grad_norm").ClipScale(norm, 1)
	attr := trace.AdamWAttr{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1}
	for i := range weights {
		tr.AdamW(weights[i], grads[i], clip, lr, step, trace.Optimizer{AdamWAttr: attr})
	}
	require.Equal(t, weights, tr.Weights(), "moments are no weights")
	g, err := tr.Finish()
	require.NoError(t, err)
	require.NoError(t, g.Verify())

	require.Len(t, g.Updates, 6)
	require.Equal(t, attr, g.Find("w/adamw").Attr)
	attr.WeightDecay = 0
	require.Equal(t, attr, g.Find("b/adamw").Attr, "b is not declared with Decay")
	for _, name := range []string{"w/sum_squares", "b/sum_squares", "grad_norm/add_n", "grad_norm/sqrt", "grad_norm/clip_scale", "w/adamw", "w.exp_avg", "b.exp_avg_sq"} {
		require.NotNil(t, g.Find(name), name)
		require.Equal(t, ir.Update, g.Find(name).Phase, name)
	}
	require.Equal(t, ir.ParamAttr{State: true}, g.Find("w.exp_avg").Attr)
	require.Equal(t, ir.Backward, g.Find("matmul@dw").Phase)
}

func TestAttentionDecodeUpdatesItsCache(t *testing.T) {
	tr := trace.New("net")
	qkv, pos := tr.Input("qkv", trace.F32, 2, 1, 3, 3, 5), tr.Input("pos", trace.I32)
	cache := tr.Param("cache", []int{2, 7, 2, 3, 5}, trace.ParamAttr{State: true})
	tr.Output("o", tr.AttentionDecode(qkv, cache, pos))
	g, err := tr.Finish()
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	require.Equal(t, "cache", g.Updates[0].Param.Name())
	require.Equal(t, "attention_decode#1", g.Updates[0].New.Name())
}

// The first mistake is returned with its line; what follows does nothing.
func TestErrors(t *testing.T) {
	tests := []struct {
		name string
		run  func(tr *trace.Tracer, x trace.Tensor)
		want string
	}{
		{"shape", func(tr *trace.Tracer, x trace.Tensor) {
			tr.Scope("h", 0).Linear(x, weight(tr, "w", 3, 4), trace.Tensor{}, 1)
		}, "matmul: dimension 1 of operand b is 4, but k0 is 5 elsewhere (at h.0/matmul)"},
		{"missing", func(tr *trace.Tracer, x trace.Tensor) { tr.Add(x, trace.Tensor{}) }, "operand 1 is missing"},
		{"other graph", func(tr *trace.Tracer, x trace.Tensor) {
			tr.Add(x, trace.New("other").Input("z", trace.F32, 5))
		}, "operand 1, z f32[5], belongs to another graph"},
		{"name taken", func(tr *trace.Tracer, x trace.Tensor) { weight(tr, "x", 3) }, `param: the name "x" is taken`},
		{"bad size", func(tr *trace.Tracer, x trace.Tensor) { weight(tr, "w", 3, 0) }, `param "w": dimension 1 is 0, want at least 1`},
		{"output twice", func(tr *trace.Tracer, x trace.Tensor) {
			tr.Output("x", x)
			tr.Output("x", x)
		}, `output "x" is named twice`},
		{"output missing", func(tr *trace.Tracer, x trace.Tensor) { tr.Output("x", trace.Tensor{}) }, "operand 0 is missing"},
		{"update of no parameter", func(tr *trace.Tracer, x trace.Tensor) { tr.Update(x, x) }, "x f32[7,5] cannot become x f32[7,5]"},
		{"update of another shape", func(tr *trace.Tracer, x trace.Tensor) { tr.Update(weight(tr, "w", 5), x) }, "w f32[5] cannot become x f32[7,5]"},
		{"adamw of no parameter", func(tr *trace.Tracer, x trace.Tensor) {
			tr.AdamW(x, x, x, x, x, trace.Optimizer{})
		}, "adamw: x f32[7,5] is not a parameter"},
		{"gradient", func(tr *trace.Tracer, x trace.Tensor) { tr.Grad(x, []trace.Tensor{x}, ir.F32) }, "loss x is f32[7,5], want f32[]"},
		{"user's own", func(tr *trace.Tracer, x trace.Tensor) { tr.Failf("%d is odd", 3) }, "3 is odd"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := trace.New("net")
			tt.run(tr, tr.Input("x", trace.F32, 7, 5))

			// None of these may panic or replace the error.
			z := tr.LayerNorm(tr.GELU(weight(tr, "late", 3), false), trace.Tensor{}, trace.Tensor{}, 1)
			z = tr.Attention(tr.Dropout(tr.CrossEntropy(z, z), 0.5, trace.Stream{}), 0, trace.Stream{})
			z = tr.AttentionDecode(tr.Embedding(z, z), z, z)
			grads := tr.Grad(tr.Scale(tr.Sum(z), z), []trace.Tensor{z}, ir.F32)
			tr.AdamW(z, grads[0], tr.ClipScale(tr.GlobalNorm(grads, grads), 1), z, z, trace.Optimizer{})
			tr.Output("z", z)
			tr.Update(z, z)
			tr.Failf("too late")
			require.Empty(t, z.Name())
			require.Nil(t, z.Shape())

			g, err := tr.Finish()
			require.Nil(t, g)
			require.ErrorContains(t, err, tt.want)
			require.Regexp(t, `^trace: trace_test\.go:[0-9]+: `, err.Error())
		})
	}
}
