package cpu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// chain is a product with a bias, GELU, and an addition to another value.
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
	if c.place(y); over != nil {
		at := c.at[y]
		at.Offset = c.at[over].Offset
		c.at[y] = at
	}
	k := &runtime.Kernel{Node: n, Results: []runtime.Tensor{c.at[y]}, Accum: []bool{false}}
	for _, a := range args {
		k.Args = append(k.Args, c.at[a])
	}
	c.run = append(c.run, k)
	return y
}

// Element-wise operations join the product that they follow, unless that would change what they or the product read.
func TestFuse(t *testing.T) {
	const m, n, k = 37, 24, 24
	for _, c := range []struct {
		name  string
		dtype ir.DType
		over  int // the place of the last result: -1 its own, else that of an operand of the product, or 2 of the sum
		accum bool
		want  []int // kernels a group
	}{
		{"all", ir.F32, -1, false, []int{4, 1}},
		{"in place", ir.F32, 2, false, []int{4, 1}},
		{"over the left operand", ir.F32, 0, false, []int{3, 1, 1}},
		{"adds to its result", ir.F32, -1, true, []int{1, 1, 1, 1, 1}},
		{"two bytes", ir.BF16, -1, false, []int{1, 1, 1, 1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ch := &chain{t: t, g: ir.NewGraph("chain"), at: map[*ir.Value]runtime.Tensor{}}
			x, w, bias, other := ch.input(c.dtype, m, k), ch.input(c.dtype, n, k), ch.input(c.dtype, n), ch.input(c.dtype, m, n)
			y := ch.do(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNT, K: 1}, nil, x, w)
			ch.run[0].Accum[0] = c.accum
			h := ch.do(ir.OpAdd, nil, y, y, bias)
			z := ch.do(ir.OpGELU, ir.GELUAttr{Tanh: true}, nil, h)
			over := map[int]*ir.Value{0: x, 2: other}[c.over]
			ch.do(ir.OpAdd, nil, over, other, z)
			ch.do(ir.OpScale, nil, nil, h, ch.input(ir.F32)) // reads what the group keeps
			var sizes []int
			for _, g := range runtime.Groups(ch.run, nil, fusion) {
				sizes = append(sizes, len(g))
			}
			require.Equal(t, c.want, sizes)
		})
	}
}
