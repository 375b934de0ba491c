package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/autopar/autopar/ir"
)

// rule says how one mesh axis splits a node: dim is a dimension of the node's signature, ir.ReplicateAll or
// ir.PassPartial.
type rule struct {
	axis int
	dim  int
}

// rulesOf returns the rules of a compute node, in mesh order. It leaves out axes of one rank, and the axis of
// micro-batches for nodes of the update, which runs once for all.
func rulesOf(mesh ir.Mesh, n *ir.Node, sig *ir.Signature) []rule {
	var rules []rule
	for axis, a := range mesh.Axes {
		if a.Size == 1 && !a.Time || a.Time && n.Phase == ir.Update {
			continue
		}
		if dim, ok := ruleOn(n, sig, axis); ok {
			rules = append(rules, rule{axis, dim})
		}
	}
	return rules
}

// ruleOn finds the rule that gives the placements that a node's operands and results have on an axis.
func ruleOn(n *ir.Node, sig *ir.Signature, axis int) (dim int, ok bool) {
	on := func(values []*ir.Value) []ir.Placement {
		placed := make([]ir.Placement, len(values))
		for i, v := range values {
			placed[i] = v.Spec[axis]
		}
		return placed
	}
	args, results := on(n.Args), on(n.Results)
	// PassPartial comes last: for an op without linear operands it has the same placements as ReplicateAll.
	for dim := ir.ReplicateAll; dim < len(sig.Dims); dim++ {
		wantArgs, wantResults, legal := sig.Rule(dim)
		if legal && slices.Equal(args, wantArgs) && slices.Equal(results, wantResults) {
			return dim, true
		}
	}
	wantArgs, wantResults, legal := sig.Rule(ir.PassPartial)
	return ir.PassPartial, legal && slices.Equal(args, wantArgs) && slices.Equal(results, wantResults)
}

// describe says what a rule of a node does, as in "splits n0 (96 = 48+48)". Of what axes before it split too, it says how it
// splits the first part.
func (r rule) describe(mesh ir.Mesh, n *ir.Node, sig *ir.Signature) string {
	a := mesh.Axes[r.axis]
	switch r.dim {
	case ir.ReplicateAll:
		if a.Time {
			return "does the same in every micro-batch"
		}
		return "repeats the work on every rank"
	case ir.PassPartial:
		return "is linear, and passes partial sums on"
	}
	d := sig.Dims[r.dim]
	which := d.Name
	if !slices.ContainsFunc(sig.Results, func(dims []int) bool { return slices.Contains(dims, r.dim) }) {
		which = "its inner dimension " + d.Name
	}
	size := d.Size
	for _, outer := range rulesOf(mesh, n, sig) {
		if outer.axis < r.axis && outer.dim == r.dim {
			size = mesh.Axes[outer.axis].Cut(size, 0).Len
		}
	}
	text := fmt.Sprintf("splits %s (%s)", which, cutText(a, size))
	_, results, _ := sig.Rule(r.dim)
	for _, p := range results {
		if p.Kind == ir.Partial {
			return fmt.Sprintf("%s, leaving terms of a %s", text, p.Reduce)
		}
	}
	return text
}

// cutText prints how an axis cuts a size: 65 = 33+32, or 96 = 4x24.
func cutText(a ir.Axis, size int) string {
	var parts []string
	same := true
	first := a.Cut(size, 0).Len
	for i := range a.Size {
		n := a.Cut(size, i).Len
		same = same && n == first
		parts = append(parts, fmt.Sprint(n))
	}
	switch {
	case a.Chunk > 0:
		return fmt.Sprintf("by %d", a.Chunk)
	case same:
		return fmt.Sprintf("%d = %dx%d", size, a.Size, first)
	case len(parts) > 4:
		return fmt.Sprintf("%d = %s+...+%s", size, parts[0], parts[len(parts)-1])
	}
	return fmt.Sprintf("%d = %s", size, strings.Join(parts, "+"))
}

// signatureText prints a resolved signature, as in [m0 m1 k0] [n0 k0] -> [m0 m1 n0]. Frozen dimensions have a "!".
func signatureText(sig *ir.Signature) string {
	side := func(values [][]int) string {
		var out []string
		for _, dims := range values {
			var names []string
			for _, d := range dims {
				name := sig.Dims[d].Name
				if sig.Dims[d].Frozen {
					name = "!" + name
				}
				names = append(names, name)
			}
			out = append(out, "["+strings.Join(names, " ")+"]")
		}
		return strings.Join(out, " ")
	}
	return side(sig.Args) + " -> " + side(sig.Results)
}

// origin goes back from an operand, through the collectives that resharded it, to the value as it was made. It stops at
// transfers between stages.
func origin(v *ir.Value) *ir.Value {
	for v.Def.Op.Class() == ir.Comm && v.Def.Op != ir.OpSend && v.Def.Op != ir.OpRecv {
		v = v.Def.Args[0]
	}
	return v
}
