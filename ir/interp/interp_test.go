package interp_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
	"github.com/autopar/autopar/ir/irtest"
	"github.com/autopar/autopar/ir/philox"
)

// node builds one node on leaves of the types of args.
func node(t *testing.T, op ir.Op, attr ir.Attr, args ...interp.Tensor) *ir.Node {
	t.Helper()
	g := ir.NewGraph("one")
	var values []*ir.Value
	for _, a := range args {
		typ := a.Type()
		if op == ir.OpFromFixed || op == ir.OpFixedRoot {
			typ.DType = ir.Q64
		}
		v, err := g.Leaf(ir.OpInput, "x", typ, nil)
		require.NoError(t, err)
		values = append(values, v)
	}
	n, err := g.Add(op, attr, "node", ir.Forward, values...)
	require.NoError(t, err)
	return n
}

// eval evaluates one op on the given operands.
func eval(t *testing.T, op ir.Op, attr ir.Attr, args ...interp.Tensor) []interp.Tensor {
	t.Helper()
	out, err := interp.Eval(node(t, op, attr, args...), args)
	require.NoError(t, err)
	return out
}

func floats(shape []int, elems ...float64) interp.Tensor { return interp.Floats(elems, shape...) }

// TestByHand checks ops against values worked out by hand or, for the erf of
// GELU, taken from tables of the normal distribution.
func TestByHand(t *testing.T) {
	s2, s3, s23, s32 := []int{2}, []int{3}, []int{2, 3}, []int{3, 2}
	x := floats(s23, 1, 2, 3, 4, 5, 6)
	y := floats(s32, 1, 0, 2, 1, 0, -1)
	logits := floats(s23, 0, math.Log(2), 0, 5, 5, 5+math.Log(2))
	targets := interp.Ints([]int32{1, -1}, 2)
	half := interp.Scalar(0.5)
	s8 := math.Sqrt(8)
	tests := []struct {
		name string
		op   ir.Op
		attr ir.Attr
		args []interp.Tensor
		want [][]float64
	}{
		{"add broadcast", ir.OpAdd, nil, []interp.Tensor{x, floats(s3, 10, 20, 30)}, [][]float64{{11, 22, 33, 14, 25, 36}}},
		{"add_n", ir.OpAddN, nil, []interp.Tensor{x, x, x}, [][]float64{{3, 6, 9, 12, 15, 18}}},
		{"scale", ir.OpScale, nil, []interp.Tensor{x, half}, [][]float64{{.5, 1, 1.5, 2, 2.5, 3}}},
		{"sum_to", ir.OpSumTo, ir.SumToAttr{Keep: 1}, []interp.Tensor{x}, [][]float64{{5, 7, 9}}},
		{"sum_to fixed", ir.OpSumTo, ir.SumToAttr{Keep: 1, Frac: 8}, []interp.Tensor{x}, [][]float64{{5, 7, 9}}},
		{"from_fixed", ir.OpFromFixed, ir.FixedAttr{Frac: 8}, []interp.Tensor{x}, [][]float64{{1, 2, 3, 4, 5, 6}}},
		{"fixed_squares", ir.OpFixedSquares, nil, []interp.Tensor{floats(s2, 3, 0x1p-17)}, [][]float64{{9, 0x1p-34}}},
		{"fixed_squares rounds", ir.OpFixedSquares, nil, []interp.Tensor{floats(s2, 0x1.8p-16, 0)}, [][]float64{{0x1p-31, 0x1p-34}}},
		{"fixed_root", ir.OpFixedRoot, nil, []interp.Tensor{floats(s2, 8, 1)}, [][]float64{{3}}},
		{"expand", ir.OpExpand, nil, []interp.Tensor{floats(s3, 7, 8, 9), x}, [][]float64{{7, 8, 9, 7, 8, 9}}},
		{"sum", ir.OpSum, nil, []interp.Tensor{x}, [][]float64{{21}}},
		{"sum_squares", ir.OpSumSquares, nil, []interp.Tensor{x}, [][]float64{{91}}},
		{"sqrt", ir.OpSqrt, nil, []interp.Tensor{interp.Scalar(2.25)}, [][]float64{{1.5}}},
		{"clip_scale above", ir.OpClipScale, ir.ClipAttr{MaxNorm: 1}, []interp.Tensor{interp.Scalar(4 - 1e-6)}, [][]float64{{0.25}}},
		{"clip_scale below", ir.OpClipScale, ir.ClipAttr{MaxNorm: 1}, []interp.Tensor{half}, [][]float64{{1}}},
		{"matmul nt", ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNT, K: 1}, []interp.Tensor{x, floats(s23, 1, 0, 0, 0, 1, 1)}, [][]float64{{1, 5, 4, 11}}},
		{"matmul nn", ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNN, K: 1}, []interp.Tensor{x, y}, [][]float64{{5, -1, 14, -1}}},
		{"matmul tn", ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulTN, K: 1}, []interp.Tensor{x, floats(s2, 1, -1)}, [][]float64{{-3, -3, -3}}},
		{"matmul nt, two contracted", ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNT, K: 2}, []interp.Tensor{x, x}, [][]float64{{91}}},
		{"embedding", ir.OpEmbedding, nil, []interp.Tensor{x, interp.Ints([]int32{1, 0, 1}, 3)}, [][]float64{{4, 5, 6, 1, 2, 3, 4, 5, 6}}},
		{"embedding_grad", ir.OpEmbeddingGrad, ir.EmbeddingGradAttr{Rows: 3}, []interp.Tensor{interp.Ints([]int32{2, 2}, 2), x}, [][]float64{{0, 0, 0, 0, 0, 0, 5, 7, 9}}},
		{"layer_norm", ir.OpLayerNorm, ir.LayerNormAttr{Eps: 0, Bias: true}, []interp.Tensor{floats([]int{1, 4}, 1, 1, 3, 3), floats([]int{4}, 1, 2, 1, 2), floats([]int{4}, 0, 0, 0, 1)}, [][]float64{{-1, -2, 1, 3}, {2}, {1}}},
		{"rms_norm", ir.OpRMSNorm, ir.RMSNormAttr{Eps: 1.5}, []interp.Tensor{floats([]int{1, 4}, 2, -2, 3, 3), floats([]int{4}, 1, 2, 1, 2)}, [][]float64{{2 / s8, -4 / s8, 3 / s8, 6 / s8}, {1 / s8}}},
		{"swiglu", ir.OpSwiGLU, nil, []interp.Tensor{floats([]int{1, 2, 2}, 0, math.Log(3), 5, 4)}, [][]float64{{0, 3 * math.Log(3)}}},
		// Elements 0 and 2 are a pair, turned by one radian a position; 1 and 3 by a tenth.
		{"rope", ir.OpRoPE, ir.RoPEAttr{Theta: 100}, []interp.Tensor{floats([]int{1, 1, 3, 1, 4}, 1, 0, 0, 2, 0, 1, 1, 0, 7, 8, 9, 10), interp.Ints([]int32{2}, 1)},
			[][]float64{{math.Cos(2), -2 * math.Sin(.2), math.Sin(2), 2 * math.Cos(.2), -math.Sin(2), math.Cos(.2), math.Cos(2), math.Sin(.2), 7, 8, 9, 10}}},
		{"gelu erf", ir.OpGELU, ir.GELUAttr{}, []interp.Tensor{floats(s3, 0, 1, -2)}, [][]float64{{0, 0.8413447460685429, -0.0455002638963584}}},
		{"row_max", ir.OpRowMax, nil, []interp.Tensor{logits}, [][]float64{{math.Log(2), 5 + math.Log(2)}}},
		{"row_sum_exp", ir.OpRowSumExp, nil, []interp.Tensor{logits, floats(s2, 0, 5)}, [][]float64{{4, 4}}},
		{"row_pick", ir.OpRowPick, nil, []interp.Tensor{logits, targets}, [][]float64{{math.Log(2), 0}}},
		{"nll", ir.OpNLL, nil, []interp.Tensor{floats(s2, 0, 5), floats(s2, 4, 4), floats(s2, math.Log(2), 0), targets}, [][]float64{{math.Log(2), 0}}},
		{"cross_entropy_grad", ir.OpCrossEntropyGrad, nil, []interp.Tensor{logits, floats(s2, 0, 5), floats(s2, 4, 4), targets, floats(s2, 2, 2)}, [][]float64{{0.5, -1, 0.5, 0, 0, 0}}},
		// The first step of AdamW moves by lr against the sign of the gradient:
		// 2 (1 - 0.1*0.5) - 0.1 and 2 (1 - 0.1*0.5) + 0.1.
		{"adamw first step", ir.OpAdamW, ir.AdamWAttr{Beta1: 0.9, Beta2: 0.99, WeightDecay: 0.5},
			[]interp.Tensor{floats(s2, 2, 2), floats(s2, 0, 0), floats(s2, 0, 0), floats(s2, 8, -4), half, interp.Scalar(0.1), interp.IntScalar(0)},
			[][]float64{{1.8, 2}, {0.4, -0.2}, {0.16, 0.04}}},
		// With m and v as after infinitely many steps of gradient 3 the move is lr
		// only if the corrections use t = step + 1: 1-0.5² = 0.75 for both.
		{"adamw second step", ir.OpAdamW, ir.AdamWAttr{Beta1: 0.5, Beta2: 0.5},
			[]interp.Tensor{floats(s2, 1, 1), floats(s2, 3, 3), floats(s2, 9, 9), floats(s2, 3, 3), interp.Scalar(1), interp.Scalar(0.3), interp.IntScalar(1)},
			[][]float64{{1 - 0.3*4/math.Sqrt(12), 1 - 0.3*4/math.Sqrt(12)}, {3, 3}, {9, 9}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out := eval(t, tt.op, tt.attr, tt.args...)
			require.Len(t, out, len(tt.want))
			for i, want := range tt.want {
				require.InDeltaSlice(t, want, out[i].F, 1e-12, "result %d", i)
			}
		})
	}
}

// TestGELUForms checks the known largest gap between the exact and the tanh form.
func TestGELUForms(t *testing.T) {
	gap := 0.0
	for x := -6.0; x <= 6; x += 1e-3 {
		in := interp.Scalar(x)
		exact := eval(t, ir.OpGELU, ir.GELUAttr{}, in)[0].F[0]
		tanh := eval(t, ir.OpGELU, ir.GELUAttr{Tanh: true}, in)[0].F[0]
		gap = max(gap, math.Abs(exact-tanh))
	}
	require.InDelta(t, 4.7e-4, gap, 0.1e-4)
}

func TestDropoutMask(t *testing.T) {
	const n, p = 4096, 0.25
	ones := interp.Tensor{Shape: []int{n}, F: make([]float64, n)}
	for i := range ones.F {
		ones.F[i] = 1
	}
	y := eval(t, ir.OpDropout, ir.DropoutAttr{P: p, Key: "h.0/dropout"}, ones, interp.IntScalar(1337), interp.IntScalar(9))[0].F
	key := philox.Key{Seed: 1337, Op: philox.OpKey("h.0/dropout"), Step: 9}
	kept := 0
	for i, e := range y {
		if key.Keep(uint64(i), p) {
			kept++
			require.Equal(t, 1/(1-p), e)
		} else {
			require.Zero(t, e)
		}
	}
	require.InDelta(t, (1-p)*n, kept, 4*math.Sqrt(n*p*(1-p)), "kept")
}

// TestAttentionIsCausal: nothing before a changed position changes.
func TestAttentionIsCausal(t *testing.T) {
	rng := irtest.Rand(t, 3)
	const batch, length, heads, width = 2, 5, 3, 4
	qkv := interp.Zeros(ir.Type{Shape: []int{batch, length, 3, heads, width}})
	for i := range qkv.F {
		qkv.F[i] = rng.NormFloat64()
	}
	seed, step := interp.IntScalar(1), interp.IntScalar(2)
	before := eval(t, ir.OpAttention, ir.DropoutAttr{}, qkv, seed, step)[0].F
	const changed = 3
	for i := range qkv.F {
		if i/(3*heads*width)%length == changed {
			qkv.F[i]++
		}
	}
	after := eval(t, ir.OpAttention, ir.DropoutAttr{}, qkv, seed, step)[0].F
	for i := range before {
		if at := i / (heads * width) % length; at < changed {
			require.Equal(t, before[i], after[i])
		} else if at == changed {
			require.NotEqual(t, before[i], after[i])
		}
	}
}

// TestDecodeIsAttention: decoding position by position gives the rows of
// attention over the whole sequence.
func TestDecodeIsAttention(t *testing.T) {
	rng := irtest.Rand(t, 4)
	const batch, length, heads, width = 2, 4, 3, 5
	qkv := interp.Zeros(ir.Type{Shape: []int{batch, length, 3, heads, width}})
	for i := range qkv.F {
		qkv.F[i] = rng.NormFloat64()
	}
	whole := eval(t, ir.OpAttention, ir.DropoutAttr{}, qkv, interp.IntScalar(0), interp.IntScalar(0))[0].F
	cache := interp.Zeros(ir.Type{Shape: []int{batch, length, 2, heads, width}})
	for pos := range length {
		one := interp.Zeros(ir.Type{Shape: []int{batch, 1, 3, heads, width}})
		const n = 3 * heads * width
		for b := range batch {
			copy(one.F[b*n:(b+1)*n], qkv.F[(b*length+pos)*n:])
		}
		out := eval(t, ir.OpAttentionDecode, nil, one, cache, interp.IntScalar(int32(pos)))
		cache = out[1]
		for b := range batch {
			want := whole[(b*length+pos)*heads*width:][:heads*width]
			require.InDeltaSlice(t, want, out[0].F[b*heads*width:][:heads*width], 1e-12)
		}
	}
}

// TestAttentionOfParts: rows of the batch that are parts of one sequence attend like the sequence.
func TestAttentionOfParts(t *testing.T) {
	rng := irtest.Rand(t, 6)
	const batch, length, parts, group, heads, width = 2, 6, 3, 2, 2, 4
	random := func(shape ...int) interp.Tensor {
		x := interp.Zeros(ir.Type{Shape: shape})
		for i := range x.F {
			x.F[i] = rng.NormFloat64()
		}
		return x
	}
	in := func(x interp.Tensor, shape ...int) interp.Tensor { return floats(shape, x.F...) }
	seed, step := interp.IntScalar(3), interp.IntScalar(5)
	attr := ir.DropoutAttr{P: 0.4, Key: "attn"}
	qkv, do := random(batch, length, group+2, heads, width), random(batch, length, group, heads, width)
	want := eval(t, ir.OpAttention, attr, qkv, seed, step)
	wantGrad := eval(t, ir.OpAttentionGrad, attr, do, qkv, want[0], want[1], seed, step)[0]

	attr.Parts = parts
	const rows, tokens = batch * parts, length / parts
	qkv, do = in(qkv, rows, tokens, group+2, heads, width), in(do, rows, tokens, group, heads, width)
	got := eval(t, ir.OpAttention, attr, qkv, seed, step)
	require.Equal(t, want[0].F, got[0].F)
	for b := range batch {
		for h := range group * heads {
			for i := range length { // logarithms of sums are [B,G,NH,T]
				require.Equal(t, want[1].F[(b*group*heads+h)*length+i], got[1].F[((b*parts+i/tokens)*group*heads+h)*tokens+i%tokens])
			}
		}
	}
	require.Equal(t, wantGrad.F, eval(t, ir.OpAttentionGrad, attr, do, qkv, got[0], got[1], seed, step)[0].F)
}

// TestGroupedAttention: query heads that share keys and values attend like heads that each have a copy of them,
// and the gradient of what is shared is the sum over the copies. The dropout mask of query g of head h is that
// of head g NH + h.
func TestGroupedAttention(t *testing.T) {
	rng := irtest.Rand(t, 6)
	const batch, length, group, heads, width = 2, 5, 3, 2, 4
	qkv := interp.Zeros(ir.Type{Shape: []int{batch, length, group + 2, heads, width}})
	for i := range qkv.F {
		qkv.F[i] = rng.NormFloat64()
	}
	const part = heads * width
	copies := interp.Zeros(ir.Type{Shape: []int{batch, length, 3, group * heads, width}})
	for row := range batch * length {
		from, to := qkv.F[row*(group+2)*part:], copies.F[row*3*group*part:]
		copy(to, from[:group*part])
		for g := range group {
			copy(to[(group+g)*part:], from[group*part:][:part])
			copy(to[(2*group+g)*part:], from[(group+1)*part:][:part])
		}
	}
	attr, seed, step := ir.DropoutAttr{P: 0.3, Key: "site"}, interp.IntScalar(1), interp.IntScalar(2)
	got, want := eval(t, ir.OpAttention, attr, qkv, seed, step), eval(t, ir.OpAttention, attr, copies, seed, step)
	require.Equal(t, []int{batch, length, group, heads, width}, got[0].Shape)
	require.Equal(t, want[0].F, got[0].F)
	require.Equal(t, want[1].F, got[1].F)

	do := interp.Zeros(got[0].Type())
	for i := range do.F {
		do.F[i] = rng.NormFloat64()
	}
	whole := interp.Tensor{Shape: want[0].Shape, F: do.F}
	dqkv := eval(t, ir.OpAttentionGrad, attr, do, qkv, got[0], got[1], seed, step)[0].F
	each := eval(t, ir.OpAttentionGrad, attr, whole, copies, want[0], want[1], seed, step)[0].F
	for row := range batch * length {
		from, sum := each[row*3*group*part:], make([]float64, (group+2)*part)
		copy(sum, from[:group*part])
		for i := range 2 * group * part { // keys, then values
			sum[group*part+i/(group*part)*part+i%part] += from[group*part+i]
		}
		require.InDeltaSlice(t, sum, dqkv[row*(group+2)*part:][:(group+2)*part], 1e-12)
	}
}

func TestInitParam(t *testing.T) {
	typ := ir.Type{Shape: []int{65, 24}}
	w := interp.InitParam("wte.weight", ir.ParamAttr{Init: ir.InitNormal, Std: 0.02}, typ, 1337)
	key := philox.Key{Seed: 1337, Op: philox.OpKey("wte.weight")}
	squares := 0.0
	for i, x := range w.F {
		require.Equal(t, float64(float32(0.02*key.Normal(uint64(i)))), x)
		squares += x * x
	}
	require.InEpsilon(t, 0.02, math.Sqrt(squares/float64(len(w.F))), 0.06)
	require.Equal(t, []float64{1, 1}, interp.InitParam("w", ir.ParamAttr{Init: ir.InitOnes}, ir.Type{Shape: []int{2}}, 1).F)
	require.Equal(t, []float64{0, 0}, interp.InitParam("b", ir.ParamAttr{}, ir.Type{Shape: []int{2}}, 1).F)
}

func TestErrors(t *testing.T) {
	x := floats([]int{2, 3}, 1, 2, 3, 4, 5, 6)
	row := floats([]int{2}, 1, 1)
	ids := func(e ...int32) interp.Tensor { return interp.Ints(e, len(e)) }
	tests := []struct {
		op   ir.Op
		attr ir.Attr
		args []interp.Tensor
		want string
	}{
		{ir.OpEmbedding, nil, []interp.Tensor{x, ids(0, 2)}, `interp: embedding "node": id 2 at index 1 is out of range [0, 2)`},
		{ir.OpEmbedding, nil, []interp.Tensor{x, ids(-1)}, `interp: embedding "node": id -1 at index 0 is out of range [0, 2)`},
		{ir.OpEmbeddingGrad, ir.EmbeddingGradAttr{Rows: 4}, []interp.Tensor{ids(3, 4), x}, `interp: embedding_grad "node": id 4 at index 1 is out of range [0, 4)`},
		{ir.OpRowPick, nil, []interp.Tensor{x, ids(0, 3)}, `interp: row_pick "node": target 3 at index 1 is out of range [0, 3)`},
		{ir.OpCrossEntropyGrad, nil, []interp.Tensor{x, row, row, ids(7, 0), row}, `interp: cross_entropy_grad "node": target 7 at index 0 is out of range [0, 3)`},
		{ir.OpAttentionDecode, nil, []interp.Tensor{interp.Zeros(ir.Type{Shape: []int{1, 1, 3, 1, 1}}), interp.Zeros(ir.Type{Shape: []int{1, 4, 2, 1, 1}}), interp.IntScalar(4)},
			`interp: attention_decode "node": pos 4 is out of range [0, 4)`},
	}
	for _, tt := range tests {
		_, err := interp.Eval(node(t, tt.op, tt.attr, tt.args...), tt.args)
		require.EqualError(t, err, tt.want)
	}

	n := node(t, ir.OpSum, nil, x)
	_, err := interp.Eval(n, []interp.Tensor{row})
	require.EqualError(t, err, `interp: sum "node": operand 0: tensor is f32[2], want f32[2,3]`)
	_, err = interp.Eval(n, []interp.Tensor{{Shape: []int{2, 3}, F: []float64{1}}})
	require.EqualError(t, err, `interp: sum "node": operand 0: tensor of type f32[2,3] has 1 elements, want 6`)
	_, err = interp.Eval(n, nil)
	require.EqualError(t, err, `interp: sum "node": 0 operands, want 1`)
}

func TestRun(t *testing.T) {
	g, err := ir.Parse("step", `
graph step
  %0 = param "w" {init=ones} f32[2]
  %1 = param "frozen" f32[2]
  %2 = input "x" f32[2]
  %3 = add %0 %2 "new"
  %4 = sum %3 "loss"
  output "loss" %4
  update %0 <- %3
`)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	w, x := floats([]int{2}, 1, 2), floats([]int{2}, 10, 20)
	feeds := map[string]interp.Tensor{"w": w, "frozen": w, "x": x}
	var trace []string
	res, err := interp.Run(g, feeds, interp.Options{Trace: func(v *ir.Value, _ interp.Tensor) { trace = append(trace, v.Name()) }})
	require.NoError(t, err)
	require.Equal(t, []string{"w", "frozen", "x", "new", "loss"}, trace)
	require.Equal(t, []float64{33}, res.Outputs["loss"].F)
	require.Equal(t, map[string]interp.Tensor{"w": floats([]int{2}, 11, 22), "frozen": w}, res.State)

	delete(feeds, "x")
	_, err = interp.Run(g, feeds, interp.Options{})
	require.EqualError(t, err, `interp: input "x" is not fed`)
	feeds["x"] = interp.Scalar(1)
	_, err = interp.Run(g, feeds, interp.Options{})
	require.EqualError(t, err, `interp: input "x": tensor is f32[], want f32[2]`)
	feeds["x"], feeds["y"] = x, x
	_, err = interp.Run(g, feeds, interp.Options{})
	require.EqualError(t, err, `interp: "y" is fed, but graph "step" has no such parameter or input`)
}

func TestEveryComputeOpHasAKernel(t *testing.T) {
	for _, op := range ir.Ops() {
		fed := op == ir.OpParam || op == ir.OpInput
		require.Equal(t, !fed, interp.HasKernel(op), "%s", op)
	}
}

// TestRoPEIsRelative: the product of a rotated query and key depends only on their distance.
func TestRoPEIsRelative(t *testing.T) {
	rng := irtest.Rand(t, 5)
	const length, width = 5, 6
	qkv := interp.Zeros(ir.Type{Shape: []int{1, length, 3, 1, width}})
	for i := range 3 * width {
		x := rng.NormFloat64()
		for at := range length { // the same token everywhere
			qkv.F[at*3*width+i] = x
		}
	}
	y := eval(t, ir.OpRoPE, ir.RoPEAttr{Theta: 100}, qkv, interp.Ints([]int32{0, 3, 40, 43, 7}, length))[0].F
	score := func(query, key int) float64 {
		s := 0.0
		for d := range width {
			s += y[query*3*width+d] * y[(key*3+1)*width+d]
		}
		return s
	}
	require.InDelta(t, score(1, 0), score(3, 2), 1e-12)
	require.NotEqual(t, score(1, 0), score(4, 0))
	require.InDelta(t, score(0, 0), score(4, 4), 1e-12)
}
