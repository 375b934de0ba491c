package cpu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// chain is kernels that are launched one after another.
type chain struct {
	t   *testing.T
	g   *ir.Graph
	at  map[*ir.Value]runtime.Tensor
	end int64
	run []*runtime.Kernel
}

func (c *chain) place(v *ir.Value) {
	t := runtime.Tensor{Offset: c.end, DType: v.Type.DType, Slab: ir.Whole(v.Type.Shape)}
	c.end += (t.Bytes() + align - 1) / align * align
	c.at[v] = t
}

func (c *chain) input(d ir.DType, shape ...int) *ir.Value {
	v, err := c.g.Leaf(ir.OpInput, fmt.Sprint("x", len(c.at)), ir.Type{DType: d, Shape: shape}, nil)
	require.NoError(c.t, err)
	c.place(v)
	return v
}

// do adds a kernel, whose result is at the place of another value unless that is nil.
func (c *chain) do(op ir.Op, attr ir.Attr, over *ir.Value, args ...*ir.Value) *ir.Value {
	n, err := c.g.Add(op, attr, fmt.Sprint("n", len(c.run)), ir.Forward, args...)
	require.NoError(c.t, err)
	y := n.Results[0]
	k := &runtime.Kernel{Node: n, Accum: make([]bool, len(n.Results))}
	for _, v := range n.Results {
		c.place(v)
	}
	if over != nil {
		at := c.at[y]
		at.Offset = c.at[over].Offset
		c.at[y] = at
	}
	for _, v := range n.Results {
		k.Results = append(k.Results, c.at[v])
	}
	for _, a := range args {
		k.Args = append(k.Args, c.at[a])
	}
	c.run = append(c.run, k)
	return y
}

// Element-wise operations join the one that they follow, unless that would change what one of them reads.
func TestFuse(t *testing.T) {
	const m, n, k = 37, 24, 16
	for _, c := range []struct {
		name  string
		dtype ir.DType
		over  string // what the last result takes the place of
		want  []int  // kernels a group: the product, a bias, GELU and an addition, and what reads the first sum
	}{
		{"all", ir.F32, "", []int{1, 3, 1}},
		{"in place", ir.F32, "other", []int{1, 3, 1}},
		{"over what all rows read", ir.F32, "bias", []int{1, 2, 1, 1}},
		{"two bytes", ir.BF16, "", []int{1, 1, 1, 1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ch := &chain{t: t, g: ir.NewGraph("chain"), at: map[*ir.Value]runtime.Tensor{}}
			x, w, other, bias := ch.input(c.dtype, m, k), ch.input(c.dtype, n, k), ch.input(c.dtype, m, n), ch.input(c.dtype, n)
			y := ch.do(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNT, K: 1}, nil, x, w)
			h := ch.do(ir.OpAdd, nil, y, y, bias)
			z := ch.do(ir.OpGELU, ir.GELUAttr{Tanh: true}, nil, h)
			ch.do(ir.OpAdd, nil, map[string]*ir.Value{"other": other, "bias": bias}[c.over], other, z)
			ch.do(ir.OpScale, nil, nil, h, ch.input(ir.F32))
			require.Equal(t, c.want, ch.groups())
		})
	}
}

// Sums join the gradient of a norm.
func TestFuseNorm(t *testing.T) {
	const m, n = 6, 24
	ch := &chain{t: t, g: ir.NewGraph("chain"), at: map[*ir.Value]runtime.Tensor{}}
	dy, x, w, mean, rstd := ch.input(ir.F32, m, n), ch.input(ir.F32, m, n), ch.input(ir.F32, n), ch.input(ir.F32, m), ch.input(ir.F32, m)
	dx := ch.do(ir.OpLayerNormGrad, ir.LayerNormAttr{Eps: 1e-5}, nil, dy, x, w, mean, rstd)
	sum := ch.do(ir.OpAdd, nil, dx, dy, dx)
	ch.do(ir.OpAdd, nil, nil, sum, ch.input(ir.F32, m, n))
	require.Equal(t, []int{3}, ch.groups())
}

func (c *chain) groups() (sizes []int) {
	for _, g := range runtime.Groups(c.run, nil, fusion) {
		sizes = append(sizes, len(g))
	}
	return sizes
}
