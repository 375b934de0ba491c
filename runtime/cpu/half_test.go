package cpu

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// TestEmptyTwoByteOperands: a rank whose part of what a product sums is empty has a result of zeros. The operands take no
// memory, so they may lie where the result begins, and are disjoint from it.
func TestEmptyTwoByteOperands(t *testing.T) {
	b, err := New(Options{Threads: 1})
	require.NoError(t, err)
	devices, err := b.Open(runtime.World{Ranks: 1, Timeout: time.Minute})
	require.NoError(t, err)
	d := devices[0]
	defer d.Close()
	const m, n, k = 3, 50, 2
	g := ir.NewGraph("product")
	x, err := g.Leaf(ir.OpInput, "x", ir.Type{DType: ir.BF16, Shape: []int{m, k}}, nil)
	require.NoError(t, err)
	w, err := g.Leaf(ir.OpInput, "w", ir.Type{DType: ir.BF16, Shape: []int{n, k}}, nil)
	require.NoError(t, err)
	node, err := g.Add(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNT, K: 1}, "y", ir.Forward, x, w)
	require.NoError(t, err)
	part := func(rows, cols, here int) runtime.Tensor {
		return runtime.Tensor{DType: ir.BF16, Slab: ir.Slab{Global: []int{rows, cols}, Offset: []int{0, cols - here}, Local: []int{rows, here}}}
	}
	require.NoError(t, d.Alloc(runtime.OnDevice, 2*m*n))
	got := make([]byte, 2*m*n)
	for i := range got {
		got[i] = 1
	}
	require.NoError(t, d.Upload(runtime.OnDevice, 0, got))
	require.NoError(t, d.Launch(&runtime.Kernel{Node: node, Accum: make([]bool, 1), Args: []runtime.Tensor{part(m, k, 0), part(n, k, 0)},
		Results: []runtime.Tensor{part(m, n, n)}}))
	require.NoError(t, d.Download(got, runtime.OnDevice, 0))
	require.Equal(t, make([]byte, 2*m*n), got)
}
