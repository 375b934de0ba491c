package kernel

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Fusion: kernels that follow each other on the compute stream and can be done by one launch, or by
// one call of cuBLASLt. The executor tells a device of them when it loads a program
// ([runtime.Fuser]).

// Group is kernels that are done together, at the place of the first: one kernel, or several that
// [Fuse] found.
type Group []*runtime.Kernel

// fusion is a way to do several kernels together. Every result is the one that the kernel has
// alone, bit for bit, with two exceptions where noted: a value that only the group reads is not
// stored, and sums may be taken in another order.
type fusion struct {
	// joins reports whether kernel k may be the next one of group g.
	joins func(g Group, k *runtime.Kernel, uses map[*ir.Value]int) bool
	// together says that the kernels do not depend on each other, except that a cast may copy what an
	// AdamW has updated. Otherwise the second reads result 0 of the first row by row, and a result may
	// overwrite an operand only row by row.
	together bool
	launch   func(l *list) error
}

// fusions are indexed by the op of a group's first kernel. They are not instructions of programs
// because other backends gain nothing by them: so programs and plans are the same for all backends.
// Predictions count them where the cluster's software is autopar-cuda. GELU is not fused with a
// product: cuBLASLt's is the approximation by tanh, and most models have the exact one.
var fusions = [...]fusion{
	ir.OpMatMul:        {joins: biasOfProduct},                // one call of cuBLASLt
	ir.OpSumTo:         {joins: productOfSum, together: true}, // likewise
	ir.OpAdd:           {joins: normOfSum, launch: addNorm},
	ir.OpLayerNormGrad: {joins: sumOfGrad, launch: normGrad},
	ir.OpRMSNormGrad:   {joins: sumOfGrad, launch: normGrad},
	ir.OpRowMax:        {joins: sumExpOfMax, launch: rowMaxSumExp}, // takes the sum in another order
	ir.OpSumSquares:    {joins: alike(sumsMost), launch: sumSquares, together: true},
	ir.OpCast:          {joins: moreCasts, launch: cast, together: true},
	ir.OpAdamW:         {joins: moreUpdates, launch: adamW, together: true},
}

// Fuse divides a run of kernels into groups, to be done in the order of their first kernels. uses
// counts how often every value of the program is read, as an argument or as an output.
func Fuse(run []*runtime.Kernel, uses map[*ir.Value]int) []Group {
	var groups []Group
	taken := make([]bool, len(run))
	for i, first := range run {
		if taken[i] {
			continue
		}
		g := Group{first}
		if op := int(first.Node.Op); op < len(fusions) && fusions[op].joins != nil {
			var between []*runtime.Kernel // kernels of other groups, before which the next kernel of this one would move
			for j := i + 1; j < len(run) && (len(between) < reach || fusions[op].together); j++ {
				k := run[j]
				if taken[j] {
					continue
				}
				if fusions[op].joins(g, k, uses) && !conflicts(between, k) &&
					safe(append(g, k), fusions[op].together) {
					g, taken[j] = append(g, k), true
				} else {
					between = append(between, k)
				}
			}
		}
		groups = append(groups, g)
	}
	return groups
}

// reach is how many kernels of other groups a kernel may move before to join one that it reads
// from.
const reach = 8

// biasOfProduct fuses a product that nothing else reads with the add of a bias to its rows.
func biasOfProduct(g Group, k *runtime.Kernel, uses map[*ir.Value]int) bool {
	product := g[0]
	attr := product.Node.Attr.(ir.MatMulAttr)
	if len(g) > 1 || attr.Frac > 0 || attr.Form != ir.MatMulNT || product.Accum[0] || k.Node.Op != ir.OpAdd {
		return false
	}
	y, b := product.Results[0], product.Args[1]
	return k.Node.Args[0] == product.Node.Results[0] && uses[product.Node.Results[0]] == 1 && y.DType == k.Args[1].DType &&
		k.Args[1].Slab.Elems() == ir.Elems(b.Slab.Local[:len(b.Slab.Local)-attr.K])
}

// productOfSum fuses the gradients of a bias and of a weight, which read the same operand.
func productOfSum(g Group, k *runtime.Kernel, _ map[*ir.Value]int) bool {
	sum := g[0]
	attr, ok := k.Node.Attr.(ir.MatMulAttr)
	if !ok || len(g) > 1 || attr.Frac > 0 || ir.Frac(sum.Node.Attr) > 0 || attr.Form != ir.MatMulTN || k.Accum[0] || sum.Accum[0] {
		return false
	}
	a := k.Args[0]
	return k.Node.Args[0] == sum.Node.Args[0] && sum.Results[0].DType == k.Results[0].DType &&
		sum.Results[0].Slab.Elems() == ir.Elems(a.Slab.Local[attr.K:]) && a.Slab.Elems() > 0
}

// normOfSum fuses an add and the norm of its sum.
func normOfSum(g Group, k *runtime.Kernel, _ map[*ir.Value]int) bool {
	sum := g[0]
	return len(g) == 1 && (k.Node.Op == ir.OpLayerNorm || k.Node.Op == ir.OpRMSNorm) && k.Node.Args[0] == sum.Node.Results[0] &&
		sum.Args[0].Slab.Elems() == sum.Args[1].Slab.Elems()
}

// sumOfGrad fuses the gradient of a norm's input and an add that alone reads it.
func sumOfGrad(g Group, k *runtime.Kernel, uses map[*ir.Value]int) bool {
	dx := g[0].Node.Results[0]
	return len(g) == 1 && k.Node.Op == ir.OpAdd && uses[dx] == 1 && (k.Node.Args[0] == dx) != (k.Node.Args[1] == dx) &&
		k.Args[0].Slab.Elems() == k.Args[1].Slab.Elems()
}

// sumExpOfMax fuses row_max and the row_sum_exp that reads it.
func sumExpOfMax(g Group, k *runtime.Kernel, _ map[*ir.Value]int) bool {
	return len(g) == 1 && k.Node.Op == ir.OpRowSumExp && k.Node.Args[0] == g[0].Node.Args[0] && k.Node.Args[1] == g[0].Node.Results[0]
}

// alike fuses up to most kernels of one op and the same types. None of them may accumulate.
func alike(most int) func(Group, *runtime.Kernel, map[*ir.Value]int) bool {
	return func(g Group, k *runtime.Kernel, _ map[*ir.Value]int) bool {
		first := g[0]
		return len(g) < most && k.Node.Op == first.Node.Op && k.Args[0].DType == first.Args[0].DType &&
			k.Results[0].DType == first.Results[0].DType && !k.Accum[0] && !first.Accum[0]
	}
}

// scratchMost bounds the scratch memory in bytes of casts in place.
const scratchMost = 64 << 20

func moreCasts(g Group, k *runtime.Kernel, uses map[*ir.Value]int) bool {
	if !alike(castsMost)(g, k, uses) {
		return false
	}
	bytes := int64(0)
	for _, k := range append(g, k) {
		if k.Args[0].Offset == k.Results[0].Offset {
			bytes += k.Results[0].Bytes()
		}
	}
	return bytes <= scratchMost
}

// moreUpdates fuses AdamW updates of the same step, and casts of their new weights to the type of
// gradients.
func moreUpdates(g Group, k *runtime.Kernel, _ map[*ir.Value]int) bool {
	first, updates := g[0], 0
	for _, k := range g {
		if k.Node.Op == ir.OpAdamW {
			updates++
		}
	}
	switch k.Node.Op {
	case ir.OpCast:
		return k.Results[0].DType == first.Args[3].DType && !k.Accum[0] &&
			slices.ContainsFunc(g, func(u *runtime.Kernel) bool { return u.Node.Op == ir.OpAdamW && u.Node.Results[0] == k.Node.Args[0] }) &&
			!slices.ContainsFunc(g, func(c *runtime.Kernel) bool { return c.Node.Op == ir.OpCast && c.Node.Args[0] == k.Node.Args[0] })
	case ir.OpAdamW:
		a, b := first.Node.Attr.(ir.AdamWAttr), k.Node.Attr.(ir.AdamWAttr)
		a.WeightDecay = b.WeightDecay // each has its own
		return updates < updatesMost && a == b && k.Args[0].DType == first.Args[0].DType && k.Args[3].DType == first.Args[3].DType &&
			slices.Equal(k.Node.Args[4:], first.Node.Args[4:])
	}
	return false
}

// conflicts reports whether a kernel must stay behind one of those before it. It looks at the nearest first, because
// that is where the kernel's own operands are made: with states of the optimizer on the host, an update reads what the
// three kernels before it have fetched.
func conflicts(before []*runtime.Kernel, k *runtime.Kernel) bool {
	for _, b := range slices.Backward(before) {
		if conflict(b, k) {
			return true
		}
	}
	return false
}

// conflict reports whether two kernels must keep their order.
func conflict(a, b *runtime.Kernel) bool {
	touches := func(r runtime.Tensor, ts []runtime.Tensor) bool {
		return slices.ContainsFunc(ts, func(t runtime.Tensor) bool { return overlap(r, t) })
	}
	for _, r := range a.Results {
		if touches(r, b.Args) || touches(r, b.Results) {
			return true
		}
	}
	return slices.ContainsFunc(b.Results, func(r runtime.Tensor) bool { return touches(r, a.Args) })
}

func overlap(a, b runtime.Tensor) bool {
	return a.Space == b.Space && a.Offset < b.Offset+b.Bytes() && b.Offset < a.Offset+a.Bytes()
}

// safe reports whether the last kernel of a group may be done with the others, given where their
// tensors lie.
func safe(g Group, together bool) bool {
	last := g[len(g)-1]
	for _, k := range g[:len(g)-1] {
		copied := k.Node.Op == ir.OpAdamW && last.Node.Op == ir.OpCast && last.Node.Args[0] == k.Node.Results[0]
		if together && !copied {
			if conflict(k, last) {
				return false
			}
			continue
		}
		// last reads result 0 of k, element by element or row by row.
		for _, r := range last.Results {
			for i, t := range append(slices.Clone(k.Args), k.Results...) {
				row := t.Offset == r.Offset && t.DType == r.DType && slices.Equal(t.Slab.Local, r.Slab.Local)
				row = row && (k.Node.Op != ir.OpMatMul || i >= len(k.Args)) // a row of a product needs all of an operand
				if overlap(r, t) && !row {
					return false
				}
			}
		}
		for j, t := range last.Args {
			for i, r := range k.Results {
				if overlap(r, t) && last.Node.Args[j] != k.Node.Results[i] {
					return false
				}
			}
		}
	}
	return true
}
