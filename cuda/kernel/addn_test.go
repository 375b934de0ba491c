package kernel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// TestManyTerms adds more values than one launch can: each launch continues from the sum so far, as
// the gradient's norm over all parameters does.
func TestManyTerms(t *testing.T) {
	const terms = 40
	k := runtime.Kernel{Node: &ir.Node{Op: ir.OpAddN, Name: "sum"}, Accum: []bool{false}}
	at := func(i int64) runtime.Tensor { return runtime.Tensor{Offset: 64 * i, Slab: ir.Whole([]int{3})} }
	for i := range int64(terms) {
		k.Args = append(k.Args, at(i+1))
	}
	k.Results = []runtime.Tensor{at(100)}
	launches, err := kernel.Launches(kernel.Group{&k}, func(t runtime.Tensor) uint64 { return uint64(t.Offset) }, 0)
	require.NoError(t, err)
	require.Len(t, launches, 3)
	next := uint64(1)
	for i, l := range launches {
		require.EqualValues(t, 6400, l.Args[0])
		in := l.Args[3 : 3+l.Args[2]]
		if i > 0 {
			require.EqualValues(t, 6400, in[0])
			in = in[1:]
		}
		for _, a := range in {
			require.Equal(t, 64*next, a)
			next++
		}
	}
	require.EqualValues(t, terms+1, next)
	k.Results[0].DType = ir.BF16
	for i := range k.Args {
		k.Args[i].DType = ir.BF16
	}
	_, err = kernel.Launches(kernel.Group{&k}, func(runtime.Tensor) uint64 { return 0 }, 0)
	require.ErrorContains(t, err, "40 operands of bf16")
}
