package runtime

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// Group is kernels that a device does as one, where the first is launched.
type Group []*Kernel

// Fusion is a way for kernels to be done as one.
type Fusion struct {
	// Joins reports whether a kernel may be the next of a group. uses counts the reads of every value of the program, and its
	// outputs.
	Joins func(g Group, k *Kernel, uses map[*ir.Value]int) bool
	// Together says that the kernels of a group are done at once, each on its own; else rows of the first are rows of the
	// others, and what stands in the place of something is made of the same row of it.
	Together bool
}

// Groups cuts kernels that are launched one after another into groups, which are to be run in the order of their first kernels.
// of tells how kernels join those of an op.
func Groups(run []*Kernel, uses map[*ir.Value]int, of func(ir.Op) Fusion) []Group {
	var groups []Group
	taken := make([]bool, len(run))
	for i, first := range run {
		if taken[i] {
			continue
		}
		g := Group{first}
		if f := of(first.Node.Op); f.Joins != nil {
			var between []*Kernel // of other groups, that the next of this one goes before
			for j := i + 1; j < len(run) && (len(between) < reach || f.Together); j++ {
				k := run[j]
				if taken[j] {
					continue
				}
				if f.Joins(g, k, uses) && !slices.ContainsFunc(between, func(b *Kernel) bool { return Conflict(b, k) }) &&
					safe(append(g, k), f.Together) {
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

// reach is before how many others a kernel may be done to join one that it has something from.
const reach = 8

// Conflict reports whether two kernels cannot change places.
func Conflict(a, b *Kernel) bool {
	touches := func(r Tensor, ts []Tensor) bool {
		return slices.ContainsFunc(ts, func(t Tensor) bool { return overlap(r, t) })
	}
	for _, r := range a.Results {
		if touches(r, b.Args) || touches(r, b.Results) {
			return true
		}
	}
	return slices.ContainsFunc(b.Results, func(r Tensor) bool { return touches(r, a.Args) })
}

func overlap(a, b Tensor) bool {
	return a.Space == b.Space && a.Offset < b.Offset+b.Bytes() && b.Offset < a.Offset+a.Bytes()
}

// safe reports whether the last kernel of a group may be done with the others, as its results and theirs lie.
func safe(g Group, together bool) bool {
	last := g[len(g)-1]
	for _, k := range g[:len(g)-1] {
		copied := k.Node.Op == ir.OpAdamW && last.Node.Op == ir.OpCast && last.Node.Args[0] == k.Node.Results[0]
		if together && !copied {
			if Conflict(k, last) {
				return false
			}
			continue
		}
		// last reads result 0 of k, element by element or row by row.
		for _, r := range last.Results {
			for i, t := range append(slices.Clone(k.Args), k.Results...) {
				row := t.Offset == r.Offset && t.DType == r.DType && slices.Equal(t.Slab.Local, r.Slab.Local)
				row = row && (k.Node.Op != ir.OpMatMul || i >= len(k.Args)) // whose rows are made of all of an operand
				if overlap(r, t) && !row {
					return false
				}
			}
		}
		for j, t := range last.Args {
			for _, r := range k.Results {
				if overlap(r, t) && !g.makes(last.Node.Args[j]) {
					return false
				}
			}
		}
	}
	return true
}

// makes reports whether a value is a result of a kernel of the group.
func (g Group) makes(v *ir.Value) bool {
	return slices.ContainsFunc(g, func(k *Kernel) bool { return slices.Contains(k.Node.Results, v) })
}
