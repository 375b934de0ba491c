package interp_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
	"github.com/autopar/autopar/ir/irtest"
)

func normal(rng *rand.Rand, shape ...int) interp.Tensor {
	x := interp.Zeros(ir.Type{Shape: shape})
	for i := range x.F {
		x.F[i] = rng.NormFloat64()
	}
	return x
}

// checkGrad compares gradients with central differences of Σ dy·y, where y is
// the first result of op on args. grads holds the gradient of each operand, nil
// for those without.
func checkGrad(t *testing.T, op ir.Op, attr ir.Attr, args []interp.Tensor, dy interp.Tensor, grads ...[]float64) {
	t.Helper()
	objective := func() float64 {
		s := 0.0
		for i, y := range eval(t, op, attr, args...)[0].F {
			s += y * dy.F[i]
		}
		return s
	}
	const h = 1e-5
	for a, grad := range grads {
		for i := range grad {
			at := args[a].F[i]
			args[a].F[i] = at + h
			up := objective()
			args[a].F[i] = at - h
			down := objective()
			args[a].F[i] = at
			require.InDelta(t, (up-down)/(2*h), grad[i], 1e-8, "operand %d, element %d", a, i)
		}
	}
}

func TestGELUGrad(t *testing.T) {
	rng := irtest.Rand(t, 1)
	x, dy := normal(rng, 7, 3), normal(rng, 7, 3)
	for _, attr := range []ir.GELUAttr{{Tanh: false}, {Tanh: true}} {
		dx := eval(t, ir.OpGELUGrad, attr, dy, x)[0]
		checkGrad(t, ir.OpGELU, attr, []interp.Tensor{x}, dy, dx.F)
	}
}

func TestLayerNormGrad(t *testing.T) {
	rng := irtest.Rand(t, 2)
	x, w, b, dy := normal(rng, 2, 3, 5), normal(rng, 5), normal(rng, 5), normal(rng, 2, 3, 5)
	for _, bias := range []bool{false, true} {
		attr := ir.LayerNormAttr{Eps: 1e-3, Bias: bias}
		args := []interp.Tensor{x, w, b}
		if !bias {
			args = args[:2]
		}
		out := eval(t, ir.OpLayerNorm, attr, args...)
		grads := eval(t, ir.OpLayerNormGrad, attr, dy, x, w, out[1], out[2])
		require.Len(t, grads, len(args))
		var want [][]float64
		for _, g := range grads {
			want = append(want, g.F)
		}
		checkGrad(t, ir.OpLayerNorm, attr, args, dy, want...)
	}
}

func TestEmbeddingGrad(t *testing.T) {
	rng := irtest.Rand(t, 3)
	table, dy := normal(rng, 4, 3), normal(rng, 5, 3)
	ids := interp.Ints([]int32{1, 3, 1, 0, 1}, 5)
	grad := eval(t, ir.OpEmbeddingGrad, ir.EmbeddingGradAttr{Rows: 4}, ids, dy)[0]
	checkGrad(t, ir.OpEmbedding, nil, []interp.Tensor{table, ids}, dy, grad.F)
}

func TestAttentionGrad(t *testing.T) {
	rng := irtest.Rand(t, 4)
	qkv, dout := normal(rng, 2, 5, 3, 3, 2), normal(rng, 2, 5, 3, 2)
	seed, step := interp.IntScalar(11), interp.IntScalar(3)
	for _, p := range []float64{0, 0.3} {
		attr := ir.DropoutAttr{P: p, Key: "attn"}
		out := eval(t, ir.OpAttention, attr, qkv, seed, step)
		grad := eval(t, ir.OpAttentionGrad, attr, dout, qkv, out[0], out[1], seed, step)[0]
		checkGrad(t, ir.OpAttention, attr, []interp.Tensor{qkv, seed, step}, dout, grad.F)
	}
}

// TestCrossEntropyGrad differentiates the loss as the graph computes it, in four
// ops.
func TestCrossEntropyGrad(t *testing.T) {
	rng := irtest.Rand(t, 5)
	x, dnll := normal(rng, 3, 7), normal(rng, 3)
	targets := interp.Ints([]int32{6, -1, 0}, 3)
	forward := func() (nll, top, sum interp.Tensor) {
		top = eval(t, ir.OpRowMax, nil, x)[0]
		sum = eval(t, ir.OpRowSumExp, nil, x, top)[0]
		pick := eval(t, ir.OpRowPick, nil, x, targets)[0]
		return eval(t, ir.OpNLL, nil, top, sum, pick, targets)[0], top, sum
	}
	objective := func() float64 {
		nll, _, _ := forward()
		s := 0.0
		for i := range nll.F {
			s += nll.F[i] * dnll.F[i]
		}
		return s
	}
	_, top, sum := forward()
	grad := eval(t, ir.OpCrossEntropyGrad, nil, x, top, sum, targets, dnll)[0]
	const h = 1e-5
	for i := range x.F {
		at := x.F[i]
		x.F[i] = at + h
		up := objective()
		x.F[i] = at - h
		down := objective()
		x.F[i] = at
		require.InDelta(t, (up-down)/(2*h), grad.F[i], 1e-8, "element %d", i)
	}
}
