package planner

import (
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// This file keeps floors admissible for products and collectives that may be made in parts (codegen, pieces.go). Which are is
// the same in all programs of a family of outlines in the forward pass, and for the gradient with which a block's backward pass
// begins. In the rest of the backward pass, parts are made of what is left when whole products have been put beside
// collectives: of everything under a schedule that puts none there, and else of what depends on which weights are gathered.
// Floors count what may be either way as whole, less what the product with which it may be in parts could hide of it: a
// product and a collective in parts take no less than the longer of the two does whole.

// undecided returns the instructions of a backward pass, with those that only some programs make in parts whole again.
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
	all := make([]codegen.Instr, 0, len(instrs))
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

// productNextTo returns the products with which some schedule may make a collective of a block's backward pass in parts: those
// that make its operand or read its result, sequence by sequence.
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
