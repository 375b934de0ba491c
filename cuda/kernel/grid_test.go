package kernel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// TestGrids: dimensions that a GPU counts in 16 bits hold heads and sequences, not tokens. More
// sequences than that are an error, not a launch that fails.
func TestGrids(t *testing.T) {
	launches := func(batch, tokens int) ([]kernel.Launch, error) {
		whole := func(d ir.DType, shape ...int) runtime.Tensor { return runtime.Tensor{DType: d, Slab: ir.Whole(shape)} }
		o, lse := whole(ir.BF16, batch, tokens, 1, 2, 128), whole(ir.F32, batch, 1, 2, tokens)
		qkv, number := whole(ir.BF16, batch, tokens, 3, 2, 128), whole(ir.I32)
		k := runtime.Kernel{
			Node: &ir.Node{Op: ir.OpAttentionGrad, Name: "grad", Attr: ir.DropoutAttr{}}, Accum: []bool{false},
			Args: []runtime.Tensor{o, qkv, o, lse, number, number}, Results: []runtime.Tensor{qkv},
		}
		return kernel.Launches(kernel.Group{&k}, func(runtime.Tensor) uint64 { return 0 }, 0)
	}
	all, err := launches(1, 1<<22)
	require.NoError(t, err)
	require.Len(t, all, 3)
	for _, l := range all {
		require.Less(t, l.Grid[1], uint32(1<<16), l.Name)
	}
	require.Equal(t, [3]uint32{1 << 18, 2, 1}, all[0].Grid, "sixteen threads a row")
	_, err = launches(1<<16, 16)
	require.ErrorContains(t, err, "cuda: no kernel for attention_grad of that size: attention_delta_bf16 would have a grid of 1 x 2 x 65536 blocks")
}
