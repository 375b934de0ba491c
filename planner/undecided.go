package planner

import (
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Which products and collectives a program makes in parts (package codegen, pieces.go) is the same in all programs of a family of
// outlines in the forward pass, and of the gradient with which the backward pass of a block begins. Else it is what is left when
// whole products have been put beside collectives: all, under a schedule that does not do so, and which products are taken may
// differ with the weights that are gathered. What may be either way floors count as whole, but for what the product that it
// may be in parts with could hide of it: two that are made in parts together take no less than either does whole.

// undecided returns the instructions of a backward pass with what is in parts in some programs only as one again.
func (w *work) undecided(instrs []codegen.Instr) []codegen.Instr {
	if !slices.ContainsFunc(instrs, func(in codegen.Instr) bool { return in.Parts > 0 }) {
		return instrs
	}
	inParts, entering := map[*ir.Node]bool{}, map[*ir.Node]bool{}
	for i := range instrs {
		inParts[instrs[i].Node] = instrs[i].Parts > 0
	}
	for n, parts := range inParts {
		if parts && inParts[n.Args[0].Def] && n.Args[0].Def.Block() != n.Block() { // the gradient with which a block begins
			entering[n.Args[0].Def], entering[n] = true, true
		}
	}
	var all []codegen.Instr
	for _, in := range instrs {
		if in.Parts > 0 && !entering[in.Node] {
			if in.Part > 0 {
				continue
			}
			in.Part, in.Parts, in.Beside = 0, 0, 0
		}
		all = append(all, in)
	}
	return all
}

// productNextTo returns the products with which a collective of a block's backward pass may be made in parts under some
// schedule: those that make its operand, or read its result, by sequence.
func (w *work) productNextTo(instrs []codegen.Instr, n *ir.Node) (next []codegen.Instr) {
	mb := w.mesh.Axis(partition.AxisMB)
	for _, in := range instrs {
		x := in.Node
		if x.Op == ir.OpMatMul && in.Parts == 0 && x.Results[0].Spec[mb].Kind == ir.Shard && (n.Args[0] == x.Results[0] || x.Args[0] == n.Results[0]) {
			next = append(next, in)
		}
	}
	return next
}
