package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// With [partition.Plan.TPPieces], a matrix product and a dependent tensor-parallel collective next to it are
// made in parts that overlap. A product waits for what is gathered, and a sum over ranks for the product that
// makes its terms. But each sequence of a micro-batch is independent: so both are made in parts of whole
// sequences, and each part of the collective runs beside a part of the product that does not depend on it. That
// is the part of the sequences that have been gathered before, or of those that are summed later (Wang et al.
// ASPLOS'23, "Overlap Communication with Dependent Computation via Decomposition"; the pipelined overlap of
// Transformer Engine).
//
//	gather 0 | gather 1 beside product 0 | gather 2 beside product 1 | product 2
//
// Sequences are consecutive in memory, so each part is written in place and nothing is copied. A tensor is only
// cut if each of its sequences starts at an aligned address. What is cut does not depend on the micro-batch
// size: with fewer sequences than parts, the last parts are empty. Gradients of weights are sums over all
// sequences and are made whole.
//
// A collective beside an independent, whole product (beside.go) is hidden except for the time by which it is
// longer. One in parts always exposes its first or its last part, and makes the product less efficient. So
// beside.go goes first, if the plan has it, and parts are for the collectives that it cannot hide: those of the
// forward pass, the gradient with which the backward pass of a block begins, recomputed blocks, and sums for
// which nothing can be delayed. Under a zero-bubble schedule, which runs nothing beside collectives, they are
// all gradients of activations.

// inPieces marks the pairs of adjacent nodes that are made in parts. Nodes between the two that depend on
// weights alone, such as gathers of ZeRO, are moved in front of them, so that all plans that shard weights
// alike make the same pairs in parts. So are slices of what all blocks are given, such as positions, which
// stand before the first block that reads them: all blocks begin alike.
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
		case n.Op.Class() == ir.Leaf: // it has no instruction, or belongs to another block
		case first >= 0 && b.makesPieces(b.nodes[first], n):
			moved := b.nodes[first]
			copy(b.nodes[first:i-1], b.nodes[first+1:i])
			b.nodes[i-1] = moved
			b.pieces[moved.ID()], b.pieces[n.ID()], first = n, moved, -1
		case first >= 0 && (b.ofWeights(n) || n.Op == ir.OpSlice && n.Block() == "" && n.Args[0].Def != b.nodes[first]):
		default:
			first = i
		}
	}
}

// inPiecesWith returns the other node of a pair that is made in parts, or nil if n is made whole.
func (b *stageBuilder) inPiecesWith(n *ir.Node) *ir.Node {
	if b.pieces == nil {
		return nil
	}
	return b.pieces[n.ID()]
}

// instrs returns the number of instructions of a node.
func (b *stageBuilder) instrs(n *ir.Node) int {
	if b.inPiecesWith(n) != nil {
		return b.prog.Plan.TPPieces
	}
	return 1
}

// ofWeights reports whether a node does not depend on the batch: its operands and results are the same for all
// micro-batches.
func (b *stageBuilder) ofWeights(n *ir.Node) bool {
	return n.Op != ir.OpSend && n.Op != ir.OpRecv && !slices.ContainsFunc(n.Args, b.overTime) && !slices.ContainsFunc(n.Results, b.overTime)
}

// makesPieces reports whether two adjacent nodes of a block are made in parts: one is a product, the other a
// tensor-parallel collective that nothing runs beside yet, and the second reads the first.
func (b *stageBuilder) makesPieces(first, second *ir.Node) bool {
	c, product := first, second
	if !Collective(c.Op) {
		c, product = second, first
	}
	enters := c == first && first.Phase == ir.Backward && first.Block() != second.Block() // the collective is named after the block that made its operand
	switch x, y := b.spot(first), b.spot(second); {
	case first.Phase > ir.Backward || first.Phase != second.Phase || first.Stage != second.Stage:
		return false
	case second.Block() == "" || first.Block() != second.Block() && !enters:
		return false
	case x.async || y.async || x.segment != y.segment || second.Args[0] != first.Results[0]:
		return false
	case !b.ofTensorParallel(c) || product.Op != ir.OpMatMul:
		return false
	case c == first && c.Op == ir.OpAllReduce: // an all_reduce is in place, and would overwrite parts that are still to come
		return false
	case b.kernelsBeside != nil && (b.kernelsBeside[c.ID()] > 0 || b.besideOf[product.ID()] != nil):
		return false
	}
	return bySequence(b.prog.Mesh, c) && bySequence(b.prog.Mesh, product) && b.aligned(c) && b.aligned(product)
}

// bySequence reports whether a node makes each sequence of its results from the same sequence of its operands:
// micro-batches cut its first dimension, and a collective exchanges another one.
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

// EvenTokens is a number of tokens that takes a multiple of the alignment of memory, whatever there is of each.
const EvenTokens = align / 2

// EvenContext reports whether each of cp ranks has a multiple of [EvenTokens] of a sequence of tokens.
func EvenContext(tokens, cp int) bool { return tokens%(cp*EvenTokens) == 0 }

// aligned reports whether every sequence of the operands and results of a node starts at an aligned address on
// a mesh of any size. It counts only the dimensions that no axis shards, and the positions that context-parallel ranks
// share evenly.
func (b *stageBuilder) aligned(n *ir.Node) bool {
	mesh := b.prog.Mesh
	cp := mesh.Axis(partition.AxisCP)
	for _, v := range slices.Concat(n.Args, n.Results) {
		if !sequenceWise(mesh, v) {
			continue
		}
		bytes := v.Type.DType.Size()
		for d, size := range v.Type.Shape[1:] {
			switch {
			case !v.Spec.Shards(d + 1):
				bytes *= int64(size)
			case d == 0 && cp >= 0 && onlyOn(v.Spec, cp, 1) && EvenContext(size, mesh.Axes[cp].Size):
				bytes *= EvenTokens
			}
		}
		if bytes%align != 0 {
			return false
		}
	}
	return true
}

// onlyOn reports whether an axis shards a dimension, and no other does.
func onlyOn(spec ir.ShardSpec, axis, dim int) bool {
	for a, p := range spec {
		if (p == ir.ShardOn(dim)) != (a == axis) {
			return false
		}
	}
	return true
}

// sequenceWise reports whether a value consists of independent sequences in its first dimension, so that an
// instruction in parts touches only some of it.
func sequenceWise(mesh ir.Mesh, v *ir.Value) bool {
	mb := mesh.Axis(partition.AxisMB)
	return mb >= 0 && v.Spec[mb] == ir.ShardOn(0)
}

// emitPieces writes the instructions of a pair in parts; second reads the result of first.
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

// ShareOf returns the range of sequences of a value, counted within what mesh position at holds, that the
// instruction touches. ok is false if it touches the whole value.
func (in *Instr) ShareOf(mesh ir.Mesh, v *ir.Value, at ir.Coord) (share ir.Span, ok bool) {
	if in.Parts == 0 || !sequenceWise(mesh, v) {
		return ir.Span{}, false
	}
	return ir.Axis{Size: in.Parts}.Cut(sequences(mesh, v, at), in.Part), true
}

// sequences returns the number of sequences of a value that a mesh position holds.
func sequences(mesh ir.Mesh, v *ir.Value, at ir.Coord) int {
	n := v.Type.Shape[0]
	for a, p := range v.Spec {
		if p == ir.ShardOn(0) {
			n = mesh.Axes[a].Cut(n, at[a]).Len
		}
	}
	return n
}

// Elems returns the number of elements of v that the instruction reads or writes at a mesh position.
func (in *Instr) Elems(mesh ir.Mesh, v *ir.Value, at ir.Coord) int64 {
	elems := mesh.LocalElems(v.Type.Shape, v.Spec, at)
	if share, ok := in.ShareOf(mesh, v, at); ok && elems > 0 {
		elems = elems / int64(sequences(mesh, v, at)) * int64(share.Len)
	}
	return elems
}

// Slab returns the part of v that the instruction reads or writes at mesh position c.
func (in *Instr) Slab(mesh ir.Mesh, v *ir.Value, c ir.Coord) ir.Slab {
	slab := mesh.Local(v.Type.Shape, v.Spec, c)
	if share, ok := in.ShareOf(mesh, v, c); ok {
		slab.Offset, slab.Local = slices.Clone(slab.Offset), slices.Clone(slab.Local)
		slab.Offset[0] += share.Off
		slab.Local[0] = share.Len
	}
	return slab
}

// checkParts makes sure that a node is only made in parts if it may be, and that each task makes every part
// once, in order. runs are the node's instructions.
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
