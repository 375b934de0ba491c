package kernel_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
	"github.com/autopar/autopar/runtime"
)

// chain is kernels that are to become one group.
type chain struct {
	t      *testing.T
	graph  *ir.Graph
	rng    *rand.Rand
	values map[*ir.Value]interp.Tensor // in f64
	at     map[*ir.Value]runtime.Tensor
	run    []*runtime.Kernel
	end    int64
}

func newChain(t *testing.T, seed uint64) *chain {
	return &chain{t: t, graph: ir.NewGraph("chain"), rng: rand.New(rand.NewPCG(seed, 3)), values: map[*ir.Value]interp.Tensor{}, at: map[*ir.Value]runtime.Tensor{}}
}

func (c *chain) place(v *ir.Value) runtime.Tensor {
	t := runtime.Tensor{Offset: c.end, DType: v.Type.DType, Slab: ir.Whole(v.Type.Shape)}
	c.end += (t.Bytes() + 63) / 64 * 64
	return t
}

// input makes an operand of random numbers from low on, about high-low apart.
func (c *chain) input(d ir.DType, low, high float64, shape ...int) *ir.Value {
	v, err := c.graph.Leaf(ir.OpInput, fmt.Sprintf("x%d", len(c.at)), ir.Type{DType: d, Shape: shape}, nil)
	require.NoError(c.t, err)
	x := interp.Zeros(v.Type)
	for i := range x.F {
		x.F[i] = d.Round(low + (high-low)*c.rng.Float64())
	}
	for i := range x.I {
		x.I[i] = int32(low) + c.rng.Int32N(int32(high-low))
	}
	c.values[v], c.at[v] = x, c.place(v)
	return v
}

// do adds a kernel, whose result i is at the place of operand over[i] if that is not negative.
func (c *chain) do(op ir.Op, attr ir.Attr, over []int, args ...*ir.Value) []*ir.Value {
	n, err := c.graph.Add(op, attr, fmt.Sprintf("n%d", len(c.run)), ir.Forward, args...)
	require.NoError(c.t, err)
	var in []interp.Tensor
	k := &runtime.Kernel{Node: n, Accum: make([]bool, len(n.Results))}
	for _, a := range args {
		in = append(in, c.values[a])
		k.Args = append(k.Args, c.at[a])
	}
	out, err := interp.Eval(n, in)
	require.NoError(c.t, err)
	for i, v := range n.Results {
		if i < len(over) && over[i] >= 0 {
			c.at[v] = runtime.Tensor{Offset: k.Args[over[i]].Offset, DType: v.Type.DType, Slab: ir.Whole(v.Type.Shape)}
		} else {
			c.at[v] = c.place(v)
		}
		c.values[v] = out[i]
		k.Results = append(k.Results, c.at[v])
	}
	c.run = append(c.run, k)
	return n.Results
}

// check runs the chain as one group and, for its bits, kernel by kernel, and compares what is wanted with f64.
func (c *chain) check(path string, sums bool, want ...*ir.Value) {
	uses := map[*ir.Value]int{}
	for _, n := range c.graph.Nodes {
		for _, v := range n.Args {
			uses[v]++
		}
	}
	groups := kernel.Fuse(c.run, uses)
	require.Len(c.t, groups, 1, "groups")
	require.Len(c.t, groups[0], len(c.run))
	d := &device{worker: startWorker(c.t, path)}
	require.NoError(c.t, d.Alloc(runtime.OnDevice, c.end))
	results := func(groups []kernel.Group) (all [][]byte) {
		for v, x := range c.values {
			if v.Def.Op == ir.OpInput {
				data := ints(x.I...)
				if len(x.I) == 0 {
					f := make([]float32, len(x.F))
					for i := range f {
						f[i] = float32(x.F[i])
					}
					data = encode(v.Type.DType, f)
				}
				require.NoError(c.t, d.Upload(runtime.OnDevice, c.at[v].Offset, data))
			}
		}
		for _, g := range groups {
			require.NoError(c.t, d.once(g))
		}
		for _, v := range want {
			b := make([]byte, c.at[v].Bytes())
			require.NoError(c.t, d.Download(b, runtime.OnDevice, c.at[v].Offset))
			all = append(all, b)
		}
		return all
	}
	fused := results(groups)
	d.reverse = true
	require.Equal(c.t, fused, results(groups), "blocks and threads in reverse")
	d.reverse = false
	var apart []kernel.Group
	for _, k := range c.run {
		apart = append(apart, kernel.Group{k})
	}
	for i, b := range results(apart) {
		if !sums {
			require.Equal(c.t, b, fused[i], "%s has other bits than alone", want[i].Name())
		}
	}
	for i, v := range want {
		tolerance, largest := map[ir.DType]float64{ir.F32: 1e-5, ir.BF16: 0x3p-8, ir.F16: 0x3p-11}[v.Type.DType], 0.0
		for _, w := range c.values[v].F {
			largest = max(largest, math.Abs(w))
		}
		if c.run[0].Args[0].DType.Half() {
			tolerance = max(tolerance, 0x1p-7)
		}
		for j, w := range c.values[v].F {
			got := v.Type.DType.Read(fused[i][int64(j)*v.Type.DType.Size():])
			require.InDelta(c.t, w, got, tolerance*max(largest, 1), "%s, element %d", v.Name(), j)
		}
	}
}

// TestFusedNorms does residual sums with norms, forward and backward: with results apart and in the places of operands, of rows
// that are whole vectors and those that are not.
func TestFusedNorms(t *testing.T) {
	t.Parallel()
	path := buildWorker(t)
	apart, over := []int{-1}, []int{0}
	for i, d := range []ir.DType{ir.F32, ir.BF16} {
		for _, cols := range []int{35, 264} {
			for _, rms := range []bool{false, true} {
				for _, place := range [][]int{apart, over} {
					t.Run(fmt.Sprintf("%s/%d/rms %t/%v", d, cols, rms, place), func(t *testing.T) {
						c := newChain(t, uint64(i*1000+cols))
						a, b, w := c.input(d, -2, 2, 3, 7, cols), c.input(d, -2, 2, 3, 7, cols), c.input(d, -1, 1, cols)
						s := c.do(ir.OpAdd, nil, place, a, b)
						if rms {
							r := c.do(ir.OpRMSNorm, ir.RMSNormAttr{Eps: 1e-5}, nil, s[0], w)
							c.check(path, false, s[0], r[0], r[1])
						} else {
							r := c.do(ir.OpLayerNorm, ir.LayerNormAttr{Eps: 1e-5, Bias: true}, nil, s[0], w, c.input(d, -1, 1, cols))
							c.check(path, false, s[0], r[0], r[1], r[2])
						}
						c = newChain(t, uint64(i*1000+cols))
						x, dy, more, rows := c.input(d, -2, 2, 3, 7, cols), c.input(d, -2, 2, 3, 7, cols), c.input(d, -2, 2, 3, 7, cols), []int{3, 7}
						w, mean, rstd := c.input(d, -1, 1, cols), c.input(ir.F32, -1, 1, rows...), c.input(ir.F32, 0.5, 2, rows...)
						var g []*ir.Value
						if rms {
							g = c.do(ir.OpRMSNormGrad, ir.RMSNormAttr{Eps: 1e-5}, nil, dy, x, w, rstd)
						} else {
							g = c.do(ir.OpLayerNormGrad, ir.LayerNormAttr{Eps: 1e-5, Bias: true}, nil, dy, x, w, mean, rstd)
						}
						s = c.do(ir.OpAdd, nil, place, more, g[0])
						c.check(path, false, append(s, g[1:]...)...)
					})
				}
			}
		}
	}
}

// TestFusedSoftmax takes maxima and sums of exponentials in one pass.
func TestFusedSoftmax(t *testing.T) {
	t.Parallel()
	path := buildWorker(t)
	for i, d := range []ir.DType{ir.F32, ir.BF16} {
		for _, cols := range []int{65, 2312} {
			c := newChain(t, uint64(i*10000+cols))
			x := c.input(d, -9, 9, 2, 5, cols)
			top := c.do(ir.OpRowMax, nil, nil, x)
			c.check(path, true, top[0], c.do(ir.OpRowSumExp, nil, nil, x, top[0])[0])
		}
	}
}

// TestFusedUpdates does many tensors in one launch: updates with copies of new weights, casts in place, and sums of squares.
func TestFusedUpdates(t *testing.T) {
	t.Parallel()
	path := buildWorker(t)
	sizes := []int{1, 17000, 35, 264, 16384}
	t.Run("adamw", func(t *testing.T) {
		c := newChain(t, 1)
		clip, lr, step := c.input(ir.F32, 0.5, 1), c.input(ir.F32, 0.1, 0.2), c.input(ir.I32, 1, 50)
		var want []*ir.Value
		for i, n := range sizes {
			w, m, v, g := c.input(ir.F32, -1, 1, n), c.input(ir.F32, -1, 1, n), c.input(ir.F32, 0.1, 1, n), c.input(ir.BF16, -1, 1, n)
			attr := ir.AdamWAttr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1 * float64(i%2)}
			want = append(want, c.do(ir.OpAdamW, attr, []int{0, 1, 2}, w, m, v, g, clip, lr, step)...)
		}
		for i := range sizes {
			if i != 2 {
				want = append(want, c.do(ir.OpCast, ir.CastAttr{To: ir.BF16}, nil, want[3*i])[0])
			}
		}
		c.check(path, false, want...)
	})
	t.Run("cast", func(t *testing.T) {
		c := newChain(t, 2)
		var want []*ir.Value
		for i, n := range sizes {
			want = append(want, c.do(ir.OpCast, ir.CastAttr{To: ir.BF16}, []int{i%2 - 1}, c.input(ir.F32, -1, 1, n))...)
		}
		c.check(path, false, want...)
	})
	t.Run("squares", func(t *testing.T) {
		for _, d := range []ir.DType{ir.F32, ir.BF16} {
			c := newChain(t, 3)
			var want []*ir.Value
			for _, n := range sizes {
				want = append(want, c.do(ir.OpSumSquares, nil, nil, c.input(d, -1, 1, n))...)
			}
			c.check(path, false, want...)
		}
	})
}

// TestManyIDs sums an embedding's gradient over more ids than a block looks at in one go, most of them of few rows.
func TestManyIDs(t *testing.T) {
	t.Parallel()
	path := buildWorker(t)
	c := newChain(t, 4)
	ids, dy := c.input(ir.I32, 0, 131, 3, 3001), c.input(ir.BF16, -1, 1, 3, 3001, 8)
	for i, id := range c.values[ids].I {
		if i%3 > 0 {
			c.values[ids].I[i] = id % 5
		}
	}
	c.check(path, false, c.do(ir.OpEmbeddingGrad, ir.EmbeddingGradAttr{Rows: 131}, nil, ids, dy)...)
}

// TestFuseKeepsOrder cuts random kernels, which overwrite each other's operands, into groups: two that conflict stay in their
// order, and are of one group only where the second reads the first.
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
					for _, statistic := range b.Results[1:] { // of a row, while others are still read
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
