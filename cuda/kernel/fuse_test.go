package kernel_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/cuda/kernel/kerneltest"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/backendtest"
)

// TestFused compares fused kernels with package interp, and the bits of their results with those of
// the kernels alone. Products and their epilogues are left to a library.
func TestFused(t *testing.T) {
	t.Parallel()
	path := kerneltest.Build(t)
	backendtest.RunFused(t, func(t *testing.T) runtime.Backend { return backend{t: t, path: path} },
		func(op ir.Op, _ ir.Attr) bool { return leftToOthers(op) || op == ir.OpMatMul })
}

// TestFuseKeepsOrder groups random kernels that overwrite each other's operands. Two that conflict
// must keep their order, and may share a group only if the second reads the first.
func TestFuseKeepsOrder(t *testing.T) {
	grouped := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 5))
		g := ir.NewGraph("random")
		x, err := g.Leaf(ir.OpInput, "x", ir.Type{DType: ir.F32, Shape: []int{4, 4}}, nil)
		require.NoError(t, err)
		w, err := g.Leaf(ir.OpInput, "w", ir.Type{DType: ir.F32, Shape: []int{4}}, nil)
		require.NoError(t, err)
		at := map[*ir.Value]int64{}
		values := []*ir.Value{x, x, x}
		tensor := func(v *ir.Value) runtime.Tensor {
			if _, ok := at[v]; !ok {
				at[v] = 64 * rng.Int64N(12)
			}
			return runtime.Tensor{Offset: at[v], DType: v.Type.DType, Slab: ir.Whole(v.Type.Shape)}
		}
		var run []*runtime.Kernel
		for i := range 12 {
			op, attr, args := ir.OpAdd, ir.Attr(nil), []*ir.Value{values[len(values)-1], values[rng.IntN(len(values))]}
			switch rng.IntN(4) {
			case 0:
				op, attr, args = ir.OpLayerNorm, ir.LayerNormAttr{Eps: 1}, []*ir.Value{args[0], w}
			case 1:
				op, args = ir.OpSumSquares, args[1:]
			case 2:
				op, attr, args = ir.OpCast, ir.CastAttr{To: ir.F32}, args[1:]
			}
			n, err := g.Add(op, attr, fmt.Sprint("n", i), ir.Forward, args...)
			require.NoError(t, err)
			k := &runtime.Kernel{Node: n, Accum: make([]bool, len(n.Results))}
			for _, v := range args {
				k.Args = append(k.Args, tensor(v))
			}
			for _, v := range n.Results {
				k.Results = append(k.Results, tensor(v))
			}
			if op != ir.OpSumSquares {
				values = append(values, n.Results[0])
			}
			run = append(run, k)
		}
		group, place := map[*runtime.Kernel]int{}, map[*runtime.Kernel]int{}
		for i, g := range kernel.Fuse(run, nil) {
			for _, k := range g {
				group[k], place[k] = i, len(place)
			}
			grouped += len(g) - 1
		}
		require.Len(t, place, len(run))
		for i, a := range run {
			for _, b := range run[i+1:] {
				if !kernel.Conflict(a, b) {
					continue
				}
				require.Less(t, place[a], place[b], "seed %d", seed)
				if group[a] == group[b] {
					require.Equal(t, []ir.Op{ir.OpAdd, ir.OpLayerNorm}, []ir.Op{a.Node.Op, b.Node.Op}, "seed %d", seed)
					require.Equal(t, a.Node.Results[0], b.Node.Args[0])
					for _, statistic := range b.Results[1:] { // a statistic of a row, while other rows are still read
						for _, t2 := range append(a.Args, a.Results...) {
							require.NotEqual(t, statistic.Offset, t2.Offset, "seed %d", seed)
						}
					}
				}
			}
		}
	}
	require.Greater(t, grouped, 300)
}

// TestFuseIsFast groups the updates of a model whose states are on the host: each is between the copies of its states.
// The time must not grow with the cube of their number, which took minutes for 580 weights.
func TestFuseIsFast(t *testing.T) {
	const weights = 580
	vector := ir.Type{DType: ir.F32, Shape: []int{16}}
	value := func() *ir.Value { return &ir.Value{Type: vector} }
	shared := []*ir.Value{value(), value(), value()}
	var run []*runtime.Kernel
	end := int64(0)
	tensor := func(space runtime.Space) runtime.Tensor {
		end += 64
		return runtime.Tensor{Space: space, Offset: end, DType: ir.F32, Slab: ir.Whole(vector.Shape)}
	}
	add := func(op ir.Op, attr ir.Attr, values []*ir.Value, args, results []runtime.Tensor) {
		n := &ir.Node{Op: op, Attr: attr, Args: values, Results: []*ir.Value{value()}}
		run = append(run, &runtime.Kernel{Node: n, Args: args, Results: results, Accum: make([]bool, len(results))})
	}
	scalars := []runtime.Tensor{tensor(runtime.OnDevice), tensor(runtime.OnDevice), tensor(runtime.OnDevice)}
	for range weights {
		states := []runtime.Tensor{tensor(runtime.OnDevice), tensor(runtime.OnDevice), tensor(runtime.OnDevice)}
		var away []runtime.Tensor
		for _, x := range states {
			away = append(away, tensor(runtime.OnHost))
			add(ir.OpFetch, nil, []*ir.Value{value()}, away[len(away)-1:], []runtime.Tensor{x})
		}
		args := append(append(slices.Clone(states), tensor(runtime.OnDevice)), scalars...)
		add(ir.OpAdamW, ir.AdamWAttr{Eps: 1}, append([]*ir.Value{value(), value(), value(), value()}, shared...), args, states)
		for i, x := range states {
			add(ir.OpStash, nil, []*ir.Value{value()}, []runtime.Tensor{x}, away[i:i+1])
		}
	}
	start := time.Now()
	require.Len(t, kernel.Fuse(run, nil), len(run))
	require.Less(t, time.Since(start), 10*time.Second)
}
