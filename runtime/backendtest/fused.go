package backendtest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
	"github.com/autopar/autopar/runtime"
)

// RunFused checks kernels that a [runtime.Fuser] may fuse against package interp, on random inputs
// and with poisoned results: sums with norms, statistics of softmax, updates, casts and sums of
// squares of more tensors than one launch takes, and products with biases unless leaveOut says to
// skip products. A kernel must have the bits that it has alone, except for products and sums in
// another order.
func RunFused(t *testing.T, open Open, leaveOut func(ir.Op, ir.Attr) bool) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	chains := func(name string, make func(c *chain)) {
		t.Run(name, func(t *testing.T) {
			ds, _ := devices(t, open, 1, time.Minute)
			c := newChain(t, ds[0], seed)
			make(c)
		})
	}
	for _, d := range []ir.DType{ir.F32, ir.BF16} {
		for _, cols := range []int{35, 264, 1032} {
			for _, over := range []int{-1, 0} {
				for _, rms := range []bool{false, true} {
					name := fmt.Sprintf("%s/%d columns/result over operand %d/rms %t", d, cols, over, rms)
					chains("norm of a sum/"+name, func(c *chain) { c.normOfSum(d, cols, over, rms) })
					chains("sum with a norm's gradient/"+name, func(c *chain) { c.sumOfGrad(d, cols, over, rms) })
				}
			}
		}
		for _, cols := range []int{65, 2312} {
			chains(fmt.Sprintf("softmax/%s/%d columns", d, cols), func(c *chain) {
				x := c.input(d, -9, 9, 2, 5, cols)
				top := c.do(ir.OpRowMax, nil, nil, x)
				c.sums = true
				c.check(top[0], c.do(ir.OpRowSumExp, nil, nil, x, top[0])[0])
			})
		}
		chains(fmt.Sprintf("sums of squares/%s", d), func(c *chain) {
			var want []*ir.Value
			for _, n := range tensorSizes(130) {
				want = append(want, c.do(ir.OpSumSquares, nil, nil, c.input(d, -1, 1, n))...)
			}
			c.check(want...)
		})
		if !leaveOut(ir.OpMatMul, ir.MatMulAttr{}) {
			for _, width := range []int{64, 35} {
				name := fmt.Sprintf("%s/%d columns", d, width)
				chains("product with a bias/"+name, func(c *chain) {
					c.sums = true
					x, w, bias := c.input(d, -1, 1, 3, 7, 40), c.input(d, -1, 1, width, 40), c.input(d, -1, 1, width)
					y := c.do(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNT, K: 1}, nil, x, w)
					c.check(c.do(ir.OpAdd, nil, nil, y[0], bias)...)
				})
				chains("gradients of weight and bias/"+name, func(c *chain) {
					c.sums = true
					dy, x := c.input(d, -1, 1, 3, 7, width), c.input(d, -1, 1, 3, 7, 40)
					db := c.do(ir.OpSumTo, ir.SumToAttr{Keep: 1}, nil, dy)
					c.check(db[0], c.do(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulTN, K: 2}, nil, dy, x)[0])
				})
			}
		}
	}
	chains("updates", func(c *chain) { c.updates() })
	chains("casts", func(c *chain) {
		var want []*ir.Value
		for i, n := range tensorSizes(130) {
			want = append(want, c.do(ir.OpCast, ir.CastAttr{To: ir.BF16}, []int{i%2 - 1}, c.input(ir.F32, -1, 1, n))...)
		}
		c.check(want...)
	})
}

// tensorSizes returns n sizes of tensors: some of several blocks, some not of whole vectors.
func tensorSizes(n int) []int {
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = []int{1, 35, 264, 7, 1024, 100}[i%6]
	}
	sizes[1], sizes[n-1] = 17000, 16384
	return sizes
}

// chain is a sequence of kernels.
type chain struct {
	t      *testing.T
	device runtime.Device
	graph  *ir.Graph
	rng    *rand.Rand
	values map[*ir.Value]interp.Tensor // in f64
	at     map[*ir.Value]runtime.Tensor
	run    []*runtime.Kernel
	arena
	sums bool // the order of sums may differ
}

func newChain(t *testing.T, d runtime.Device, seed uint64) *chain {
	return &chain{
		t: t, device: d, graph: ir.NewGraph("chain"), rng: rand.New(rand.NewPCG(seed, 3)),
		values: map[*ir.Value]interp.Tensor{}, at: map[*ir.Value]runtime.Tensor{},
	}
}

// input makes an operand of random numbers in [low, high).
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
	c.values[v], c.at[v] = x, c.tensor(d, ir.Whole(shape))
	return v
}

// do adds a kernel. Result i has the place of operand over[i], unless that is negative.
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
			c.at[v] = c.tensor(v.Type.DType, ir.Whole(v.Type.Shape))
		}
		c.values[v] = out[i]
		k.Results = append(k.Results, c.at[v])
	}
	c.run = append(c.run, k)
	return n.Results
}

func (c *chain) normOfSum(d ir.DType, cols, over int, rms bool) {
	a, b, w := c.input(d, -2, 2, 3, 7, cols), c.input(d, -2, 2, 3, 7, cols), c.input(d, -1, 1, cols)
	s := c.do(ir.OpAdd, nil, []int{over}, a, b)
	if rms {
		c.check(append(s, c.do(ir.OpRMSNorm, ir.RMSNormAttr{Eps: 1e-5}, nil, s[0], w)...)...)
		return
	}
	c.check(append(s, c.do(ir.OpLayerNorm, ir.LayerNormAttr{Eps: 1e-5, Bias: true}, nil, s[0], w, c.input(d, -1, 1, cols))...)...)
}

func (c *chain) sumOfGrad(d ir.DType, cols, over int, rms bool) {
	x, dy, more := c.input(d, -2, 2, 3, 7, cols), c.input(d, -2, 2, 3, 7, cols), c.input(d, -2, 2, 3, 7, cols)
	w, mean, rstd := c.input(d, -1, 1, cols), c.input(ir.F32, -1, 1, 3, 7), c.input(ir.F32, 0.5, 2, 3, 7)
	var g []*ir.Value
	if rms {
		g = c.do(ir.OpRMSNormGrad, ir.RMSNormAttr{Eps: 1e-5}, nil, dy, x, w, rstd)
	} else {
		g = c.do(ir.OpLayerNormGrad, ir.LayerNormAttr{Eps: 1e-5, Bias: true}, nil, dy, x, w, mean, rstd)
	}
	s := c.do(ir.OpAdd, nil, []int{over}, more, g[0])
	c.check(append(s, g[1:]...)...) // nothing else reads the gradient itself
}

// updates checks mixed precision: weights in f32 with gradients in bf16, and copies of the weights
// in bf16.
func (c *chain) updates() {
	clip, lr, step := c.input(ir.F32, 0.5, 1), c.input(ir.F32, 0.1, 0.2), c.input(ir.I32, 1, 50)
	var want []*ir.Value
	sizes := tensorSizes(100)
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
	c.check(want...)
}

// check runs the chain fused and compares the wanted values with f64, and then not fused to compare
// bits.
func (c *chain) check(want ...*ir.Value) {
	uses := map[*ir.Value]int{}
	for _, n := range c.graph.Nodes {
		for _, v := range n.Args {
			uses[v]++
		}
	}
	var apart []*runtime.Kernel
	for _, k := range c.run {
		k := *k
		apart = append(apart, &k)
	}
	if checker, ok := c.device.(runtime.Checker); ok {
		for _, k := range append(apart, c.run...) {
			require.NoError(c.t, checker.Check(k))
		}
	}
	if fuser, ok := c.device.(runtime.Fuser); ok {
		require.NoError(c.t, fuser.Fuse(c.run, uses))
	}
	require.NoError(c.t, c.device.Alloc(runtime.OnDevice, c.end))
	fused := c.results(c.run, want)
	if alone := c.results(apart, want); !c.sums {
		for i, v := range want {
			require.Equal(c.t, alone[i], fused[i], "%s has other bits than alone", v.Name())
		}
	}
	for i, v := range want {
		tolerance, largest := map[ir.DType]float64{ir.F32: 1e-5, ir.BF16: 3 * epsilon(ir.BF16)}[v.Type.DType], 0.0
		for _, w := range c.values[v].F {
			largest = max(largest, math.Abs(w))
		}
		if c.run[0].Args[0].DType.Half() {
			tolerance = max(tolerance, 2*epsilon(ir.BF16))
		}
		for j, x := range decode(v.Type.DType, fused[i]) {
			require.InDelta(c.t, c.values[v].F[j], x, tolerance*max(largest, 1), "%s, element %d", v.Name(), j)
		}
	}
}

// results runs kernels on the inputs, in a poisoned arena, and returns the bytes of some values.
func (c *chain) results(run []*runtime.Kernel, of []*ir.Value) (all [][]byte) {
	memory := make([]float32, c.end/4)
	for i := range memory {
		memory[i] = poison
	}
	for v, x := range c.values {
		if v.Def.Op != ir.OpInput {
			continue
		}
		to := bytesOf(memory)[c.at[v].Offset:]
		copy(to, bytesOf(x.I))
		for i, f := range x.F {
			v.Type.DType.Write(to[int64(i)*v.Type.DType.Size():], float32(f))
		}
	}
	require.NoError(c.t, c.device.Upload(runtime.OnDevice, 0, bytesOf(memory)))
	for _, k := range run {
		require.NoError(c.t, c.device.Launch(k))
	}
	for _, v := range of {
		b := make([]byte, c.at[v].Bytes())
		require.NoError(c.t, c.device.Download(b, runtime.OnDevice, c.at[v].Offset))
		all = append(all, b)
	}
	return all
}
