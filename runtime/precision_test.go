package runtime_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/runtime"
)

func graphIn(t testing.TB, d ir.DType, noMaster bool) *ir.Graph {
	t.Helper()
	c, o := config(), optimizer
	c.Float, o.NoMaster = d, noMaster
	g, err := gpt.TrainStep(c, o, batch, seqLen)
	require.NoError(t, err)
	return g
}

// TestInterpInHalfPrecision compares two steps on one rank with package interp, which rounds each
// result to its format as the device does. Sums in float32 are sometimes rounded the other way at a
// tie, and then everything that follows may differ by a rounding.
func TestInterpInHalfPrecision(t *testing.T) {
	for _, c := range []struct {
		float    ir.DType
		noMaster bool
		epsilon  float64
	}{{ir.BF16, false, 1e-3}, {ir.BF16, true, 1e-3}, {ir.F16, false, 1e-4}} {
		g := graphIn(t, c.float, c.noMaster)
		prog := compile(t, g, oneRank, nil)
		e := start(t, prog, runtime.Options{})
		state := map[string]interp.Tensor{}
		for _, p := range g.Params() {
			state[p.Name()] = interp.InitParam(p.Name(), p.Def.Attr.(ir.ParamAttr), p.Type, 42)
		}
		for _, s := range runtime.Shards(prog, 0) {
			require.Equal(t, state[s.Name].F, numbers(t, e, s), "initial value of %s", s.Name)
		}
		for step := range 2 {
			got, err := e.Step(context.Background(), prog, feeds(step))
			require.NoError(t, err)
			for _, in := range g.Inputs() {
				state[in.Name()] = tensor(in.Type, feeds(step)[in.Name()])
			}
			want, err := interp.Run(g, state, interp.Options{})
			require.NoError(t, err)
			state = want.State
			require.InEpsilon(t, want.Outputs["loss"].F[0], got["loss"], c.epsilon, "%s step %d", c.float, step)
			require.InEpsilon(t, want.Outputs["grad_norm"].F[0], got["grad_norm"], 4*c.epsilon, "%s step %d", c.float, step)
			if c.float == ir.F16 {
				require.Equal(t, want.Outputs["loss_scale"].F[0], float64(got["loss_scale"]))
			}
		}
	}
}

// numbers returns the elements of a shard.
func numbers(t *testing.T, e *runtime.Executor, s runtime.Shard) []float64 {
	b := make([]byte, s.Bytes())
	require.NoError(t, e.ReadShard(s, b))
	x := make([]float64, s.Slab.Elems())
	for i := range x {
		x[i] = float64(s.Type.DType.Read(b[int(s.Type.DType.Size())*i:]))
	}
	return x
}

// TestUnknownTypes: an op on a type without a kernel is an error when the program is loaded.
func TestUnknownTypes(t *testing.T) {
	prog := compile(t, trainGraph(t), oneRank, nil)
	e := start(t, prog, runtime.Options{})
	other := compile(t, trainGraph(t), oneRank, nil)
	for _, n := range other.Graph.Nodes {
		if n.Op == ir.OpGELU {
			n.Results[0].Type.DType = ir.I32
		}
	}
	require.ErrorContains(t, e.Add(other), "cpu: no kernel for gelu with result 0 of i32")
}
