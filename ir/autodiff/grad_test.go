package autodiff

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
)

// builder makes small graphs; any mistake ends the test.
type builder struct {
	t *testing.T
	g *ir.Graph
}

func newBuilder(t *testing.T) *builder { return &builder{t, ir.NewGraph("test")} }

func (b *builder) leaf(op ir.Op, name string, dtype ir.DType, shape ...int) *ir.Value {
	v, err := b.g.Leaf(op, name, ir.Type{DType: dtype, Shape: shape}, nil)
	require.NoError(b.t, err)
	if op == ir.OpParam {
		v.Def.Attr = ir.ParamAttr{}
	}
	return v
}

func (b *builder) param(name string, shape ...int) *ir.Value {
	return b.leaf(ir.OpParam, name, ir.F32, shape...)
}

func (b *builder) ints(name string, shape ...int) *ir.Value {
	return b.leaf(ir.OpInput, name, ir.I32, shape...)
}

func (b *builder) op(op ir.Op, attr ir.Attr, args ...*ir.Value) *ir.Value {
	n, err := b.g.Add(op, attr, op.String(), ir.Forward, args...)
	require.NoError(b.t, err)
	return n.Results[0]
}

// loss reduces y to a scalar with a different weight for each element.
func (b *builder) loss(y *ir.Value) *ir.Value {
	if rank := len(y.Type.Shape); rank > 0 {
		weights := b.leaf(ir.OpInput, "weights", ir.F32, append([]int{1}, y.Type.Shape...)...)
		y = b.op(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNN, K: rank}, weights, y)
	}
	return b.op(ir.OpSum, nil, y)
}

// cases has, for every op through which gradients flow, graphs that use it. Ids
// and targets are drawn from [-1, 5) where the name says so, else from [0, 5).
var cases = []struct {
	name  string
	build func(b *builder) *ir.Value
}{
	{"add", func(b *builder) *ir.Value { return b.op(ir.OpAdd, nil, b.param("a", 3, 5), b.param("b", 3, 5)) }},
	{"add broadcast", func(b *builder) *ir.Value { return b.op(ir.OpAdd, nil, b.param("a", 3, 2, 5), b.param("b", 2, 5)) }},
	{"add scalar", func(b *builder) *ir.Value { return b.op(ir.OpAdd, nil, b.param("a", 3), b.param("b")) }},
	{"add to itself", func(b *builder) *ir.Value {
		x := b.param("x", 7)
		return b.op(ir.OpAdd, nil, x, x)
	}},
	{"add_n", func(b *builder) *ir.Value {
		x, y := b.param("x", 3, 3), b.param("y", 3, 3)
		return b.op(ir.OpAddN, nil, x, y, x)
	}},
	{"activation used three times", func(b *builder) *ir.Value {
		x := b.op(ir.OpGELU, ir.GELUAttr{}, b.param("x", 5))
		y := b.op(ir.OpAdd, nil, x, b.op(ir.OpGELU, ir.GELUAttr{}, x))
		return b.op(ir.OpAdd, nil, b.op(ir.OpGELU, ir.GELUAttr{Tanh: true}, x), y)
	}},
	{"scale", func(b *builder) *ir.Value {
		return b.op(ir.OpScale, nil, b.param("x", 3, 5), b.leaf(ir.OpInput, "s", ir.F32))
	}},
	{"cast", func(b *builder) *ir.Value {
		return b.op(ir.OpCast, ir.CastAttr{To: ir.F32}, b.op(ir.OpGELU, ir.GELUAttr{}, b.param("x", 5)))
	}},
	{"sum_to", func(b *builder) *ir.Value {
		return b.op(ir.OpSumTo, ir.SumToAttr{Keep: 1}, b.op(ir.OpGELU, ir.GELUAttr{}, b.param("x", 2, 3, 5)))
	}},
	{"sum_to nothing kept", func(b *builder) *ir.Value { return b.op(ir.OpSumTo, ir.SumToAttr{}, b.param("x", 2, 3)) }},
	{"sum", func(b *builder) *ir.Value {
		return b.op(ir.OpSum, nil, b.op(ir.OpGELU, ir.GELUAttr{}, b.param("x", 2, 3)))
	}},
	{"expand", func(b *builder) *ir.Value {
		return b.op(ir.OpExpand, nil, b.param("x", 5), b.leaf(ir.OpInput, "like", ir.F32, 2, 3, 5))
	}},
	{"matmul nt", matmul(ir.MatMulNT, 1, []int{2, 3, 5}, []int{7, 5})},
	{"matmul nt k=2", matmul(ir.MatMulNT, 2, []int{2, 4, 3, 5}, []int{7, 3, 5})},
	{"matmul nt wide", matmul(ir.MatMulNT, 1, []int{2, 5}, []int{3, 2, 4, 5})},
	{"matmul nn", matmul(ir.MatMulNN, 1, []int{2, 3, 5}, []int{5, 7})},
	{"matmul nn k=2", matmul(ir.MatMulNN, 2, []int{2, 3, 5}, []int{3, 5, 7, 2})},
	{"matmul tn", matmul(ir.MatMulTN, 1, []int{5, 2, 3}, []int{5, 7})},
	{"matmul tn k=2", matmul(ir.MatMulTN, 2, []int{3, 5, 2}, []int{3, 5, 7, 4})},
	{"matmul of one value", func(b *builder) *ir.Value {
		x := b.param("x", 3, 5)
		return b.op(ir.OpMatMul, ir.MatMulAttr{K: 1}, x, x)
	}},
	{"embedding", func(b *builder) *ir.Value {
		return b.op(ir.OpEmbedding, nil, b.param("table", 5, 3), b.ints("ids", 2, 7))
	}},
	{"layer_norm", func(b *builder) *ir.Value {
		return b.op(ir.OpLayerNorm, ir.LayerNormAttr{Eps: 1e-5}, b.param("x", 2, 3, 7), b.param("w", 7))
	}},
	{"layer_norm bias", func(b *builder) *ir.Value {
		return b.op(ir.OpLayerNorm, ir.LayerNormAttr{Eps: 1e-2, Bias: true}, b.param("x", 3, 7), b.param("w", 7), b.param("b", 7))
	}},
	{"gelu", func(b *builder) *ir.Value { return b.op(ir.OpGELU, ir.GELUAttr{}, b.param("x", 33)) }},
	{"gelu tanh", func(b *builder) *ir.Value { return b.op(ir.OpGELU, ir.GELUAttr{Tanh: true}, b.param("x", 33)) }},
	{"rms_norm", func(b *builder) *ir.Value {
		return b.op(ir.OpRMSNorm, ir.RMSNormAttr{Eps: 1e-2}, b.param("x", 2, 3, 7), b.param("w", 7))
	}},
	{"swiglu", func(b *builder) *ir.Value { return b.op(ir.OpSwiGLU, nil, b.param("x", 3, 2, 7)) }},
	{"rope", func(b *builder) *ir.Value {
		return b.op(ir.OpRoPE, ir.RoPEAttr{Theta: 100}, b.param("qkv", 2, 5, 3, 3, 6), b.ints("positions", 5))
	}},
	{"dropout", func(b *builder) *ir.Value {
		return b.op(ir.OpDropout, ir.DropoutAttr{P: 0.3, Key: "site"}, b.param("x", 5, 7), b.ints("seed"), b.ints("step"))
	}},
	{"attention", attention(0, 3)},
	{"attention dropout", attention(0.3, 3)},
	{"attention of grouped heads", attention(0.3, 5)},
	{"cross entropy", func(b *builder) *ir.Value {
		x, targets := b.param("x", 3, 7, 5), b.ints("signed targets", 3, 7)
		rowMax := b.op(ir.OpRowMax, nil, x)
		return b.op(ir.OpNLL, nil, rowMax, b.op(ir.OpRowSumExp, nil, x, rowMax), b.op(ir.OpRowPick, nil, x, targets), targets)
	}},
}

func matmul(form ir.MatMulForm, k int, x, w []int) func(b *builder) *ir.Value {
	return func(b *builder) *ir.Value {
		return b.op(ir.OpMatMul, ir.MatMulAttr{Form: form, K: k}, b.param("x", x...), b.param("w", w...))
	}
}

// attention has roles - 2 queries to a head of keys and values.
func attention(p float64, roles int) func(b *builder) *ir.Value {
	return func(b *builder) *ir.Value {
		return b.op(ir.OpAttention, ir.DropoutAttr{P: p, Key: "site"}, b.param("qkv", 2, 5, roles, 3, 4), b.ints("seed"), b.ints("step"))
	}
}

func TestEveryDifferentiableOpHasARule(t *testing.T) {
	for _, op := range ir.Ops() {
		_, has := rules[op]
		require.Equal(t, op.HasGrad(), has, "%s", op)
	}
}

// TestRulesAgainstFiniteDifferences compares every element of every parameter's
// gradient with a central difference in float64.
func TestRulesAgainstFiniteDifferences(t *testing.T) {
	covered := map[ir.Op]bool{}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBuilder(t)
			loss := b.loss(c.build(b))
			for _, n := range b.g.Nodes {
				covered[n.Op] = true
			}
			checkGradients(t, b.g, loss, uint64(i))
		})
	}
	for op := range rules {
		require.True(t, covered[op], "no case has %s", op)
	}
}

func checkGradients(t *testing.T, g *ir.Graph, loss *ir.Value, seed uint64) {
	t.Helper()
	g.Outputs = []ir.Output{{Name: "loss", Value: loss}}
	forward, _ := g.Clone()
	forwardNodes := len(g.Nodes)
	grads, err := Grad(g, loss, g.Params(), ir.F32)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	for i, n := range g.Nodes {
		require.Equal(t, i < forwardNodes, n.Phase == ir.Forward, "phase of %s", n.Name)
	}
	for p, d := range grads {
		g.Outputs = append(g.Outputs, ir.Output{Name: p.Name(), Value: d})
	}

	feeds := randomFeeds(g, seed)
	backward, err := interp.Run(g, feeds, interp.Options{})
	require.NoError(t, err)
	at := func() float64 {
		r, err := interp.Run(forward, feeds, interp.Options{})
		require.NoError(t, err)
		return r.Outputs["loss"].F[0]
	}
	const h = 1e-5
	for _, p := range g.Params() {
		x := feeds[p.Name()].F
		for i, x0 := range x {
			x[i] = x0 + h
			above := at()
			x[i] = x0 - h
			below := at()
			x[i] = x0
			want, got := (above-below)/(2*h), backward.Outputs[p.Name()].F[i]
			require.InDelta(t, want, got, 1e-8*(1+math.Abs(want)), "d loss / d %s[%d], seed %d", p.Name(), i, seed)
		}
	}
}

func randomFeeds(g *ir.Graph, seed uint64) map[string]interp.Tensor {
	rng := rand.New(rand.NewPCG(seed, 1))
	feeds := map[string]interp.Tensor{}
	for _, v := range append(g.Params(), g.Inputs()...) {
		z := interp.Zeros(v.Type)
		for i := range z.F {
			z.F[i] = rng.NormFloat64()
		}
		for i := range z.I {
			z.I[i] = int32(rng.IntN(5))
			if v.Name() == "signed targets" {
				z.I[i] = int32(rng.IntN(6)) - 1
			}
		}
		feeds[v.Name()] = z
	}
	return feeds
}

// A tied table has one add_n in phase Update, so that its uses can be accumulated separately. The sum for an
// activation is in the block of the use that completes it.
func TestSeveralUses(t *testing.T) {
	b := newBuilder(t)
	table, ids := b.param("table", 5, 3), b.ints("ids", 7)
	x := b.op(ir.OpEmbedding, nil, table, ids)
	n, err := b.g.Add(ir.OpGELU, ir.GELUAttr{}, "h.1.mlp/gelu", ir.Forward, x)
	require.NoError(t, err)
	n.Pos = "model.go:7"
	x = b.op(ir.OpAdd, nil, x, n.Results[0])
	loss := b.loss(b.op(ir.OpMatMul, ir.MatMulAttr{K: 1}, x, table))
	grads, err := Grad(b.g, loss, []*ir.Value{table}, ir.F32)
	require.NoError(t, err)

	sum := b.g.Find("table@grad")
	require.Equal(t, grads[table], sum.Results[0])
	require.Equal(t, ir.OpAddN, sum.Op)
	require.Equal(t, ir.Update, sum.Phase)
	require.Equal(t, "matmul@dw", sum.Args[0].Name())
	require.Equal(t, "embedding@dtable", sum.Args[1].Name())

	residual := b.g.Find("h.1.mlp/gelu@add")
	require.Equal(t, ir.OpAdd, residual.Op)
	require.Equal(t, ir.Backward, residual.Phase)
	require.Equal(t, "h.1", residual.Block())
	require.Equal(t, "model.go:7", residual.Pos)
}

// Nothing is computed for values that depend on none of wrt.
func TestNoUnneededGradients(t *testing.T) {
	b := newBuilder(t)
	frozen, w := b.param("frozen", 7, 5), b.param("w", 7, 7)
	hidden := b.op(ir.OpMatMul, ir.MatMulAttr{K: 1}, b.leaf(ir.OpInput, "x", ir.F32, 2, 5), frozen)
	hidden = b.op(ir.OpAdd, nil, hidden, hidden)
	y := b.op(ir.OpMatMul, ir.MatMulAttr{K: 1}, hidden, w)
	y = b.op(ir.OpAdd, nil, b.op(ir.OpAdd, nil, y, hidden), hidden)
	b.op(ir.OpGELU, ir.GELUAttr{}, y) // not used by the loss
	loss := b.op(ir.OpSum, nil, y)
	before := len(b.g.Nodes)
	_, err := Grad(b.g, loss, []*ir.Value{w}, ir.F32)
	require.NoError(t, err)
	var added []string
	for _, n := range b.g.Nodes[before:] {
		added = append(added, n.Name)
	}
	require.Equal(t, []string{"sum@seed", "sum@dx", "matmul_1@dw"}, added)
}

// A value that is no parameter can be asked for too.
func TestGradientOfActivation(t *testing.T) {
	b := newBuilder(t)
	x := b.op(ir.OpLayerNorm, ir.LayerNormAttr{}, b.param("x", 2, 5), b.param("w", 5))
	loss := b.op(ir.OpSum, nil, b.op(ir.OpAdd, nil, x, x))
	grads, err := Grad(b.g, loss, []*ir.Value{x, loss}, ir.F32)
	require.NoError(t, err)
	require.Nil(t, b.g.Find("layer_norm@dx"), "x is where the gradient ends")
	require.Equal(t, x.Type, grads[x].Type)
	require.Equal(t, "sum@seed", grads[loss].Name())
}

func TestErrors(t *testing.T) {
	tests := []struct {
		name  string
		build func(b *builder) (loss *ir.Value, wrt []*ir.Value)
		want  string
	}{
		{"loss not scalar", func(b *builder) (*ir.Value, []*ir.Value) {
			x := b.param("x", 3)
			return x, []*ir.Value{x}
		}, "loss x is f32[3], want f32[]"},
		{"not connected", func(b *builder) (*ir.Value, []*ir.Value) {
			return b.op(ir.OpSum, nil, b.param("x", 3)), []*ir.Value{b.param("y", 3)}
		}, "loss does not depend on y"},
		{"like has no values", func(b *builder) (*ir.Value, []*ir.Value) {
			y := b.param("y", 3)
			return b.loss(b.op(ir.OpExpand, nil, b.param("x"), y)), []*ir.Value{y}
		}, "loss does not depend on y"},
		{"no rule", func(b *builder) (*ir.Value, []*ir.Value) {
			x := b.param("x", 3)
			return b.op(ir.OpSumSquares, nil, x), []*ir.Value{x}
		}, "sum_squares: no gradient flows through sum_squares"},
		{"factor", func(b *builder) (*ir.Value, []*ir.Value) {
			s := b.param("s")
			return b.loss(b.op(ir.OpScale, nil, b.param("x", 3), s)), []*ir.Value{s}
		}, "the factor s of scale has no gradient"},
		{"row reduction by itself", func(b *builder) (*ir.Value, []*ir.Value) {
			x := b.param("x", 3, 5)
			return b.op(ir.OpSum, nil, b.op(ir.OpRowMax, nil, x)), []*ir.Value{x}
		}, "row_max is differentiable through nll only"},
		{"nll of two values", func(b *builder) (*ir.Value, []*ir.Value) {
			x, y, targets := b.param("x", 3, 5), b.param("y", 3, 5), b.ints("targets", 3)
			m := b.op(ir.OpRowMax, nil, x)
			pick := b.op(ir.OpRowPick, nil, y, targets)
			return b.loss(b.op(ir.OpNLL, nil, m, b.op(ir.OpRowSumExp, nil, x, m), pick, targets)), []*ir.Value{x}
		}, "max, sum and pick are of x, x and y"},
		{"nll of other targets", func(b *builder) (*ir.Value, []*ir.Value) {
			x, targets := b.param("x", 3, 5), b.ints("targets", 3)
			m := b.op(ir.OpRowMax, nil, x)
			pick := b.op(ir.OpRowPick, nil, x, b.ints("others", 3))
			return b.loss(b.op(ir.OpNLL, nil, m, b.op(ir.OpRowSumExp, nil, x, m), pick, targets)), []*ir.Value{x}
		}, "pick the same targets"},
		{"nll of anything", func(b *builder) (*ir.Value, []*ir.Value) {
			x, targets := b.param("x", 3), b.ints("targets", 3)
			return b.loss(b.op(ir.OpNLL, nil, x, x, x, targets)), []*ir.Value{x}
		}, "operand x is param, want row_max"},
		{"second result", func(b *builder) (*ir.Value, []*ir.Value) {
			x := b.param("x", 3, 5)
			y := b.op(ir.OpLayerNorm, ir.LayerNormAttr{}, x, b.param("w", 5))
			return b.op(ir.OpSum, nil, y.Def.Results[1]), []*ir.Value{x}
		}, "depends on result 1 of layer_norm"},
		{"full contraction", func(b *builder) (*ir.Value, []*ir.Value) {
			x := b.param("x", 3, 5)
			return b.op(ir.OpMatMul, ir.MatMulAttr{K: 2}, x, b.param("w", 3, 5)), []*ir.Value{x}
		}, "matmul of f32[3,5] and f32[3,5] contracts all dimensions"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBuilder(t)
			loss, wrt := tt.build(b)
			_, err := Grad(b.g, loss, wrt, ir.F32)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func ExampleGrad() {
	g := ir.NewGraph("square")
	x, _ := g.Leaf(ir.OpParam, "x", ir.Type{Shape: []int{3, 1}}, ir.ParamAttr{})
	gram, _ := g.Add(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNT, K: 1}, "gram", ir.Forward, x, x)
	loss, _ := g.Add(ir.OpSum, nil, "loss", ir.Forward, gram.Results[0])
	grads, err := Grad(g, loss.Results[0], []*ir.Value{x}, ir.F32)
	if err != nil {
		panic(err)
	}
	fmt.Println(grads[x].Name(), grads[x].Type)
	for _, n := range g.Nodes[3:] {
		fmt.Println(n.Phase, n.Name, n.Op)
	}
	// Output:
	// x@grad f32[3,1]
	// bwd loss@seed const
	// bwd loss@dx expand
	// bwd gram@dx matmul
	// bwd gram@dw matmul
	// upd x@grad add_n
}
