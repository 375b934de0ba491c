package exact_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/exact"
	"github.com/autopar/autopar/ir/interp"
	"github.com/autopar/autopar/models/gpt"
)

func model(bias bool) gpt.Config {
	return gpt.Config{
		NLayer: 2, NHead: 3, NEmbd: 12, BlockSize: 5, VocabSize: 13, Dropout: 0.2, Bias: bias,
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: true,
	}
}

func steps(t *testing.T, bias bool) map[string]*ir.Graph {
	t.Helper()
	opt := gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}
	training, err := gpt.TrainStep(model(bias), opt, 3, 5)
	require.NoError(t, err)
	opt.GradClip = 0
	unclipped, err := gpt.TrainStep(model(bias), opt, 3, 5)
	require.NoError(t, err)
	evaluation, err := gpt.EvalStep(model(bias), 3, 5)
	require.NoError(t, err)
	return map[string]*ir.Graph{"training": training, "without clip": unclipped, "evaluation": evaluation}
}

// feed draws a value for every parameter and input.
func feed(g *ir.Graph, rng *rand.Rand) map[string]interp.Tensor {
	feeds := map[string]interp.Tensor{}
	for _, v := range append(g.Params(), g.Inputs()...) {
		x := interp.Zeros(v.Type)
		for i := range x.I {
			x.I[i] = rng.Int32N(5)
		}
		for i := range x.F {
			x.F[i] = rng.Float64() / 8 // moments are not negative
		}
		feeds[v.Name()] = x
	}
	return feeds
}

// TestSumsKeepsTheStep: the graph computes the same outputs and state, from the
// same parameters and inputs.
func TestSumsKeepsTheStep(t *testing.T) {
	for _, bias := range []bool{false, true} {
		for name, g := range steps(t, bias) {
			before := g.String()
			e, err := exact.Sums(g)
			require.NoError(t, err, name)
			require.NoError(t, e.Verify(), name)
			require.Equal(t, before, g.String(), "the given graph is not changed")
			feeds := feed(g, rand.New(rand.NewPCG(1, 2)))
			want, err := interp.Run(g, feeds, interp.Options{})
			require.NoError(t, err)
			got, err := interp.Run(e, feeds, interp.Options{})
			require.NoError(t, err)
			require.Equal(t, len(want.Outputs), len(got.Outputs))
			for k := range want.Outputs {
				require.InDeltaSlice(t, want.Outputs[k].F, got.Outputs[k].F, 1e-12, "%s: %s", name, k)
			}
			for k := range want.State {
				require.InDeltaSlice(t, want.State[k].F, got.State[k].F, 1e-9, "%s: %s", name, k)
			}
			if name != "evaluation" {
				require.NotEmpty(t, got.State)
			}
		}
	}
}

// TestNoFloatSumOverTheBatch: what loses the batch, or adds up over gradients, is
// fixed point, and becomes f32 in the update phase.
func TestNoFloatSumOverTheBatch(t *testing.T) {
	for name, g := range steps(t, true) {
		e, err := exact.Sums(g)
		require.NoError(t, err)
		batched := map[*ir.Value]bool{}
		sums := 0
		for _, n := range e.Nodes {
			follows := n.Op == ir.OpInput && len(n.Results[0].Type.Shape) > 1
			for _, a := range n.Args {
				follows = follows || batched[a]
			}
			for _, r := range n.Results {
				if !follows {
					continue
				}
				if r.Type.DType == ir.Q64 {
					sums++
					continue
				}
				require.Equal(t, 3, r.Type.Shape[0], "%s: %s", name, r.Name())
				batched[r] = true
			}
			require.NotEqual(t, ir.OpSumSquares, n.Op)
			if n.Op == ir.OpAddN {
				require.Equal(t, ir.Q64, n.Results[0].Type.DType, "%s: %s", name, n.Name)
			}
			if n.Op == ir.OpFromFixed {
				require.Equal(t, ir.Update, n.Phase)
			}
		}
		require.Positive(t, sums, name)
	}
}

// TestRefusals: what cannot be summed exactly, or would be needed too early.
func TestRefusals(t *testing.T) {
	build := func(do func(g *ir.Graph, x *ir.Value) error) *ir.Graph {
		g := ir.NewGraph("g")
		x, err := g.Leaf(ir.OpInput, "x", ir.Type{Shape: []int{3, 4}}, nil)
		require.NoError(t, err)
		require.NoError(t, do(g, x))
		return g
	}
	for want, g := range map[string]*ir.Graph{
		"exact: center: operand 0 (x) is of each sequence, but another operand is a sum over the batch": build(func(g *ir.Graph, x *ir.Value) error {
			mean, err := g.Add(ir.OpSumTo, ir.SumToAttr{Keep: 1}, "mean", ir.Forward, x)
			if err != nil {
				return err
			}
			_, err = g.Add(ir.OpAdd, nil, "center", ir.Forward, x, mean.Results[0])
			return err
		}),
		"exact: square: result 0 of sum_squares is a sum over the batch that cannot be made in fixed point": build(func(g *ir.Graph, x *ir.Value) error {
			_, err := g.Add(ir.OpSumSquares, nil, "square", ir.Forward, x)
			return err
		}),
	} {
		_, err := exact.Sums(g)
		require.EqualError(t, err, want)
	}
}
