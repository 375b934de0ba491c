package kernel_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/cuda/kernel/kerneltest"
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

// TestCastInPlace: large casts in place take little scratch memory, and give what casts to another place give.
func TestCastInPlace(t *testing.T) {
	t.Parallel()
	d := openDevice(t)
	const scratch, few = 1 << 20, 256
	rng := rand.New(rand.NewPCG(5, 0))
	for _, types := range [][2]ir.DType{{ir.F32, ir.BF16}, {ir.F32, ir.F16}, {ir.BF16, ir.F32}, {ir.BF16, ir.F16}} {
		for _, n := range []int64{1000, 1024, 5003, 100_000} {
			from, to := types[0], types[1]
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(from.Round(rng.NormFloat64()))
			}
			launches, used := kernel.CastInPlace(from, to, d.Base, d.Base+scratch, n, few)
			require.LessOrEqual(t, used, int64(few))
			require.Less(t, len(launches), 16)
			for _, reverse := range []bool{false, true} {
				d.Reverse = reverse
				d.Write(kerneltest.Bytes{Data: encode(from, x)})
				d.Poison(scratch, used+64)
				require.NoError(t, d.Worker.Launch(launches...))
				got, guard := make([]byte, n*to.Size()), make([]byte, 64)
				require.NoError(t, d.Read(kerneltest.Bytes{Data: got}, kerneltest.Bytes{At: scratch + used, Data: guard}))
				require.True(t, bytes.Equal(encode(to, x), got), "%d from %s to %s, blocks in reverse: %v", n, from, to, reverse)
				require.Equal(t, bytes.Repeat([]byte{0xff}, 64), guard)
			}
		}
	}
}
