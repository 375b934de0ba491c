package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Most kernels around a collective of tensor-parallel ranks wait for it: a product for what is
// gathered, or the sum for the product that makes its terms. But neither needs all of the other: sequences are products
// of their own. So a product and the collective next to it are made in parts of whole sequences, and each part of the
// collective runs beside a part of the product that does not need it: that of the sequences before, which have been gathered,
// or of those after, while these are summed (Wang et al. ASPLOS'23, "Overlap Communication with Dependent Computation
// via Decomposition"; the pipelined overlap of Transformer Engine).
//
//	gather 0 | gather 1 beside product 0 | gather 2 beside product 1 | product 2
//
// Sequences follow each other in memory, so that a part is where it belongs and nothing is copied: only tensors of
// which every sequence starts where a tensor may are cut. What is cut does not depend on the size of
// micro-batches: where there are fewer sequences than parts the last parts are empty. Gradients of weights, which are sums over
// all sequences, are made whole.
//
// A collective beside a whole product is hidden but for what it takes longer; of one in parts the first or the last part never is, and
// the product is less efficient. So whole products are put beside collectives first, if the plan has that (beside.go), and in
// parts are made those collectives and products for which that finds nothing: the forward pass, the gradient with which the
// backward pass of a block begins, blocks that are recomputed, sums of products behind which nothing is put off, and under a
// zero-bubble schedule, which runs nothing beside, all gradients of activations.

// inPieces notes which neighbours among the nodes are made in parts. What is made of weights alone, such as those that ZeRO
// gathers, stands before them, so that all plans that cut weights alike make the same in parts.
func (b *stageBuilder) inPieces() {
	if b.prog.Plan.TPPieces < 2 {
		return
	}
	if b.pieces == nil {
		b.pieces = make([]*ir.Node, len(b.of))
	}
	first := -1
	for i, n := range b.nodes {
		switch {
		case n.Op.Class() == ir.Leaf: // of no instruction, or of another block
		case first >= 0 && b.makesPieces(b.nodes[first], n):
			moved := b.nodes[first]
			copy(b.nodes[first:i-1], b.nodes[first+1:i])
			b.nodes[i-1] = moved
			b.pieces[moved.ID()], b.pieces[n.ID()], first = n, moved, -1
		case first >= 0 && b.ofWeights(n):
		default:
			first = i
		}
	}
}

// inPiecesWith returns the node with which a node is made in parts, nil if it is made whole.
func (b *stageBuilder) inPiecesWith(n *ir.Node) *ir.Node {
	if b.pieces == nil {
		return nil
	}
	return b.pieces[n.ID()]
}

// instrs is how many instructions a node has.
func (b *stageBuilder) instrs(n *ir.Node) int {
	if b.inPiecesWith(n) != nil {
		return b.prog.Plan.TPPieces
	}
	return 1
}

// ofWeights reports whether a node follows no batch: what it reads and makes is the same for all micro-batches.
func (b *stageBuilder) ofWeights(n *ir.Node) bool {
	return n.Op != ir.OpSend && n.Op != ir.OpRecv && !slices.ContainsFunc(n.Args, b.overTime) && !slices.ContainsFunc(n.Results, b.overTime)
}

// makesPieces reports whether two nodes in a row are made in parts: a product and a collective of tensor-parallel
// ranks, beside which nothing runs yet, in a block.
func (b *stageBuilder) makesPieces(first, second *ir.Node) bool {
	c, product := first, second
	if !Collective(c.Op) {
		c, product = second, first
	}
	enters := c == first && first.Phase == ir.Backward && first.Block() != second.Block() // it is called after the block that made it
	switch x, y := b.spot(first), b.spot(second); {
	case first.Phase > ir.Backward || first.Phase != second.Phase || first.Stage != second.Stage:
		return false
	case second.Block() == "" || first.Block() != second.Block() && !enters:
		return false
	case x.async || y.async || x.segment != y.segment || second.Args[0] != first.Results[0]:
		return false
	case !b.ofTensorParallel(c) || product.Op != ir.OpMatMul:
		return false
	case c == first && c.Op == ir.OpAllReduce: // it is made in place, where the parts to come have to stay
		return false
	case b.along != nil && (b.along[c.ID()] > 0 || b.during[product.ID()] != nil):
		return false
	}
	return bySequence(b.prog.Mesh, c) && bySequence(b.prog.Mesh, product) && b.aligned(c) && b.aligned(product)
}

// bySequence reports whether a node makes every sequence of its results of the same sequence of its
// operands: whether it is cut into micro-batches in the first dimension, and the ranks of a collective exchange another.
func bySequence(mesh ir.Mesh, n *ir.Node) bool {
	if attr, ok := n.Attr.(ir.CommAttr); ok && (n.Op == ir.OpAllToAll || n.Op != ir.OpAllReduce && attr.Dim == 0) {
		return false
	}
	mb := mesh.Axis(partition.AxisMB)
	for _, a := range n.Args {
		if mb < 0 || a.Spec[mb].Kind != ir.Replicate && a.Spec[mb] != ir.ShardOn(0) {
			return false
		}
	}
	return !slices.ContainsFunc(n.Results, func(r *ir.Value) bool { return r.Spec[mb] != ir.ShardOn(0) })
}

// aligned reports whether every sequence of what a node reads and writes by sequence starts where a
// tensor may, whatever the size of the mesh: as dimensions that no axis cuts have it.
func (b *stageBuilder) aligned(n *ir.Node) bool {
	for _, v := range slices.Concat(n.Args, n.Results) {
		if !sequenceWise(b.prog.Mesh, v) {
			continue
		}
		bytes := v.Type.DType.Size()
		for d, size := range v.Type.Shape[1:] {
			if !v.Spec.Shards(d + 1) {
				bytes *= int64(size)
			}
		}
		if bytes%align != 0 {
			return false
		}
	}
	return true
}

// sequenceWise reports whether a value is one of every sequence by itself, so that an instruction
// in parts has only some of it.
func sequenceWise(mesh ir.Mesh, v *ir.Value) bool {
	mb := mesh.Axis(partition.AxisMB)
	return mb >= 0 && v.Spec[mb] == ir.ShardOn(0)
}

// emitPieces writes the instructions of two nodes of which the second reads what the first makes, in parts.
func (b *stageBuilder) emitPieces(first, second *ir.Node) {
	one, two := b.instr(first), b.instr(second)
	parts := b.prog.Plan.TPPieces
	part := func(in Instr, i, beside int) {
		in.Part, in.Parts, in.Beside = i, parts, beside
		b.append(in)
	}
	part(one, 0, 0)
	for i := 1; i < parts; i++ {
		if Collective(first.Op) {
			part(one, i, 1)
			part(two, i-1, 0)
		} else {
			part(two, i-1, 1)
			part(one, i, 0)
		}
	}
	part(two, parts-1, 0)
}

// Share returns which of so many sequences an instruction has to do with.
func (in *Instr) Share(sequences int) ir.Span {
	if in.Parts == 0 {
		return ir.Span{Len: sequences}
	}
	return ir.Axis{Size: in.Parts}.Cut(sequences, in.Part)
}

// ShareOf returns which of the sequences of a value that a position of a mesh holds an instruction has to do
// with; ok is false where it has to do with all of the value.
func (in *Instr) ShareOf(mesh ir.Mesh, v *ir.Value, at ir.Coord) (share ir.Span, ok bool) {
	if in.Parts == 0 || !sequenceWise(mesh, v) {
		return ir.Span{}, false
	}
	return in.Share(sequences(mesh, v, at)), true
}

// sequences is how many of the sequences of a value a position of a mesh holds.
func sequences(mesh ir.Mesh, v *ir.Value, at ir.Coord) int {
	n := v.Type.Shape[0]
	for a, p := range v.Spec {
		if p == ir.ShardOn(0) {
			n = mesh.Axes[a].Cut(n, at[a]).Len
		}
	}
	return n
}

// Elems returns how many elements of value v an instruction reads or writes at a position of the mesh.
func (in *Instr) Elems(mesh ir.Mesh, v *ir.Value, at ir.Coord) int64 {
	elems := mesh.LocalElems(v.Type.Shape, v.Spec, at)
	if share, ok := in.ShareOf(mesh, v, at); ok && elems > 0 {
		elems = elems / int64(sequences(mesh, v, at)) * int64(share.Len)
	}
	return elems
}

// Slab returns the part of value v that an instruction reads or writes at position c of the mesh.
func (in *Instr) Slab(mesh ir.Mesh, v *ir.Value, c ir.Coord) ir.Slab {
	slab := mesh.Local(v.Type.Shape, v.Spec, c)
	if share, ok := in.ShareOf(mesh, v, c); ok {
		slab.Offset, slab.Local = slices.Clone(slab.Offset), slices.Clone(slab.Local)
		slab.Offset[0] += share.Off
		slab.Local[0] = share.Len
	}
	return slab
}

// checkParts makes sure that a node that runs in parts may, and tells how often it runs in a task: once for each part,
// from the first on.
func (c *code) checkParts(n *ir.Node, runs []*Instr) error {
	parts := runs[0].Parts
	for i, in := range runs {
		if in.Parts != parts || in.Part != i {
			return c.fail(n, nil, "runs part %d of %d after %d of %d", in.Part, in.Parts, i, parts)
		}
	}
	switch {
	case parts < 0 || len(runs) != max(parts, 1):
		return c.fail(n, nil, "runs %d times per task, want %d", len(runs), max(parts, 1))
	case parts > 0 && !bySequence(c.prog.Mesh, n):
		return c.fail(n, nil, "runs in %d parts of the sequences, which it does not make one by one", parts)
	}
	return nil
}
