package cpu

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// Fuse implements [runtime.Fuser]. The kernels of a group are element-wise operations on what the first makes, done to each block
// of it while it is in a cache: of a product a bias, GELU or its gradient and an addition, of a norm's gradient an addition. All
// have the results that they have alone, bit for bit.
func (d *Device) Fuse(run []*runtime.Kernel, uses map[*ir.Value]int) error {
	if d.backend.opts.Apart {
		return nil
	}
	for _, g := range runtime.Groups(run, uses, fusion) {
		if len(g) == 1 {
			continue
		}
		for _, k := range g {
			d.fused[k] = nil
		}
		d.fused[g[0]] = g
	}
	return nil
}

func fusion(op ir.Op) runtime.Fusion {
	switch op {
	case ir.OpMatMul, ir.OpLayerNormGrad, ir.OpRMSNormGrad:
		return runtime.Fusion{Joins: joins}
	}
	return runtime.Fusion{}
}

// joins reports whether a kernel is an element-wise operation on what the last of a group has made.
func joins(g runtime.Group, k *runtime.Kernel, _ map[*ir.Value]int) bool {
	first, last := g[0], g[len(g)-1]
	if slices.ContainsFunc(first.Accum, func(acc bool) bool { return acc && first.Node.Op == ir.OpMatMul }) || k.Accum[0] ||
		ir.Frac(first.Node.Attr) > 0 || !wide(first) || !wide(k) {
		return false
	}
	_, ok := afterOf(first, k)
	return ok && slices.Contains(k.Node.Args[:reads(k)], last.Node.Results[0]) && k.Results[0].Slab.Elems() == first.Results[0].Slab.Elems()
}

// wide reports whether all floating-point numbers of a kernel are f32.
func wide(k *runtime.Kernel) bool {
	other := func(t runtime.Tensor) bool { return t.DType != ir.F32 }
	return !slices.ContainsFunc(k.Args, other) && !slices.ContainsFunc(k.Results, other)
}

// reads returns how many of the operands of an element-wise kernel it reads at the element that it makes.
func reads(k *runtime.Kernel) int {
	if len(k.Args) > 1 && k.Args[1].Slab.Elems() == k.Args[0].Slab.Elems() {
		return 2
	}
	return 1
}

// afterOf returns what a kernel does to the result of another, if it can be done after it block by block.
func afterOf(first, k *runtime.Kernel) (kernel.AfterOp, bool) {
	switch k.Node.Op {
	case ir.OpAdd:
		if reads(k) == 2 {
			return kernel.AfterAdd, true
		}
		return kernel.AfterBias, first.Node.Op == ir.OpMatMul && k.Args[1].Slab.Elems() == columns(first)
	case ir.OpGELU:
		if k.Node.Attr.(ir.GELUAttr).Tanh {
			return kernel.AfterGELUTanh, true
		}
		return kernel.AfterGELU, true
	case ir.OpGELUGrad:
		if k.Node.Attr.(ir.GELUAttr).Tanh {
			return kernel.AfterGELUTanhGrad, true
		}
		return kernel.AfterGELUGrad, true
	}
	return 0, false
}

// columns returns how many a product's result has as a matrix.
func columns(product *runtime.Kernel) int64 {
	attr, b := product.Node.Attr.(ir.MatMulAttr), product.Args[1].Slab.Local
	if attr.Form == ir.MatMulNT {
		return ir.Elems(b[:len(b)-attr.K])
	}
	return ir.Elems(b[attr.K:])
}

// launchGroup runs the first kernel of a group and the others after it, or nothing where the first has been.
func (d *Device) launchGroup(g runtime.Group) error {
	if g == nil {
		return nil
	}
	d.after = d.after[:0]
	for _, k := range g[1:] {
		op, _ := afterOf(g[0], k)
		x := kernel.After{Op: op, Dst: d.result(k, 0), A: d.arg(k, 0)}
		if len(k.Args) > 1 {
			x.B = d.arg(k, 1)
		}
		d.after = append(d.after, x)
	}
	err := launches[g[0].Node.Op](d, g[0])
	d.after = d.after[:0]
	return err
}
