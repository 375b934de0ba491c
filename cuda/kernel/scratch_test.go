package kernel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// TestScratchOfCasts: a cast needs scratch memory for its result if it is in place, and else none. Before
// the arena exists it is known already which ones are.
func TestScratchOfCasts(t *testing.T) {
	const elems = 1000
	cast := func(from, to int64) *runtime.Kernel {
		at := func(offset int64, d ir.DType) []runtime.Tensor {
			return []runtime.Tensor{{Offset: offset, DType: d, Slab: ir.Whole([]int{elems})}}
		}
		return &runtime.Kernel{Node: &ir.Node{Op: ir.OpCast, Name: "cast"}, Args: at(from, ir.F32), Results: at(to, ir.BF16), Accum: []bool{false}}
	}
	require.Zero(t, kernel.Scratch(kernel.Group{cast(0, 4096), cast(8192, 12288)}))
	require.EqualValues(t, 2*elems, kernel.Scratch(kernel.Group{cast(0, 4096), cast(8192, 8192)}))
}

// TestAnywhere: what is launched for a copy, and what for none, is known before the arena exists, so that
// its program is compiled before the first step.
func TestAnywhere(t *testing.T) {
	at := func(offset int64) runtime.Tensor {
		return runtime.Tensor{Offset: offset, DType: ir.Q64, Slab: ir.Whole([]int{8})}
	}
	for _, to := range []int64{0, 128} {
		k := &runtime.Kernel{Node: &ir.Node{Op: ir.OpAddN, Name: "sum"}, Args: []runtime.Tensor{at(0), at(64)}, Results: []runtime.Tensor{at(to)}, Accum: []bool{false}}
		before, err := kernel.Launches(kernel.Group{k}, kernel.Anywhere, 0)
		require.NoError(t, err)
		after, err := kernel.Launches(kernel.Group{k}, func(t runtime.Tensor) uint64 { return 0x7f0000001000 + uint64(t.Offset) }, 0)
		require.NoError(t, err)
		require.Len(t, before, len(after))
		for i := range after {
			require.Equal(t, after[i].Name, before[i].Name)
		}
	}
}
