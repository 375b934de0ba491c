package cpu

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// Fuse implements [runtime.Fuser]. Groups are chains of element-wise kernels, such as a bias and GELU, each on what the one before
// makes; a chain may begin with the gradient of a norm. All have the results that they have alone, bit for bit. Products are no
// part of them: within one, the same operations took longer than after it, since what they read does not lie in blocks and since
// tile registers lose speed while they wait.
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
	case ir.OpAdd, ir.OpGELU, ir.OpGELUGrad, ir.OpLayerNormGrad, ir.OpRMSNormGrad:
		return runtime.Fusion{Joins: joins}
	}
	return runtime.Fusion{}
}

// joins reports whether a kernel is an element-wise operation on what the last of a group has made.
func joins(g runtime.Group, k *runtime.Kernel, _ map[*ir.Value]int) bool {
	first, last := g[0], g[len(g)-1]
	if _, ok := stepOf(k); !ok || !wide(first) || !wide(k) || ir.Frac(first.Node.Attr) > 0 || last.Results[0].Slab.Elems() != k.Results[0].Slab.Elems() {
		return false
	}
	for _, other := range g {
		if a, b := columns(other), columns(k); a != b && a > 0 && b > 0 {
			return false
		}
	}
	return slices.Contains(k.Node.Args[:alike(k)], last.Node.Results[0])
}

// wide reports whether all numbers of a kernel are f32.
func wide(k *runtime.Kernel) bool {
	other := func(t runtime.Tensor) bool { return t.DType != ir.F32 }
	return !slices.ContainsFunc(k.Args, other) && !slices.ContainsFunc(k.Results, other)
}

// alike returns how many operands of an element-wise kernel have the size of its result.
func alike(k *runtime.Kernel) int {
	if len(k.Args) > 1 && k.Args[1].Slab.Elems() == k.Args[0].Slab.Elems() {
		return 2
	}
	return 1
}

// columns returns the width that the matrices of a kernel need to have, 0 for any.
func columns(k *runtime.Kernel) int {
	switch {
	case k.Node.Op == ir.OpLayerNormGrad || k.Node.Op == ir.OpRMSNormGrad:
		_, n := rows(k.Results[0])
		return n
	case k.Node.Op == ir.OpAdd && alike(k) == 1:
		return int(k.Args[1].Slab.Elems())
	}
	return 0
}

// stepOf returns what an element-wise kernel does.
func stepOf(k *runtime.Kernel) (kernel.StepOp, bool) {
	switch k.Node.Op {
	case ir.OpAdd:
		if alike(k) == 2 {
			return kernel.StepAdd, true
		}
		return kernel.StepBias, k.Args[1].Slab.Elems() > 0
	case ir.OpGELU:
		if k.Node.Attr.(ir.GELUAttr).Tanh {
			return kernel.StepGELUTanh, true
		}
		return kernel.StepGELU, true
	case ir.OpGELUGrad:
		if k.Node.Attr.(ir.GELUAttr).Tanh {
			return kernel.StepGELUTanhGrad, true
		}
		return kernel.StepGELUGrad, true
	}
	return 0, false
}

// launchGroup runs a group where its first kernel is launched, and nothing where others are.
func (d *Device) launchGroup(g runtime.Group) error {
	if g == nil {
		return nil
	}
	n := len(d.result(g[0], 0))
	cols := n
	if shape := g[0].Results[0].Slab.Local; len(shape) > 0 {
		cols = shape[len(shape)-1]
	}
	d.steps = d.steps[:0]
	for _, k := range g {
		if c := columns(k); c > 0 {
			cols = c
		}
		op, ok := stepOf(k)
		if !ok {
			continue // the gradient of a norm
		}
		s := kernel.Step{Op: op, Dst: d.result(k, 0), A: d.arg(k, 0)}
		if len(k.Args) > 1 {
			s.B = d.arg(k, 1)
		}
		d.steps = append(d.steps, s)
	}
	if len(d.steps) < len(g) {
		err := launches[g[0].Node.Op](d, g[0])
		d.steps = d.steps[:0]
		return err
	}
	if n > 0 {
		kernel.Chain(d.pool, n/cols, cols, d.steps...)
	}
	d.steps = d.steps[:0]
	return nil
}
