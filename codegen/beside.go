package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// With [partition.Plan.OverlapTP], tensor-parallel collectives run at the same time as matrix products that do
// not depend on them. Tensor-parallel ranks exchange activations and their gradients in every block, and most
// kernels nearby need what is exchanged. But in the backward pass of a linear layer its two products are
// independent. So the gradient of the input is summed over the ranks while the gradient of the weight is
// computed (Megatron-LM's asynchronous all-reduce: Narayanan et al. SC'21). And under sequence parallelism the
// input, of which each rank has kept its share, is gathered again while the gradient of the input is computed
// (Korthikanti et al. 2022, section 4.2.2; the bulk overlap of Transformer Engine).
//
// These cases are found by a search, not listed. There are two steps.
//
//   - window: a collective moves back to the nearest place, after its operand is made, where a product follows
//     that does not read its result. That product and the kernels around it run beside the collective.
//   - putOff: if everything after a collective waits for its result, the nearest earlier product that the
//     collective does not depend on is delayed, with all kernels that depend on that product, and runs beside
//     it. For example, the weight gradient of the last linear layer of the MLP is computed while the gradient
//     of the attention output is gathered.
//
// A collective with its kernels stays within one block and one task, and nothing in it waits for anything else.
// So it takes the longer of the two sides, and can be priced and checked by itself. It lengthens few lifetimes:
// what is gathered is live while one product runs that would otherwise have run before the gather, and the
// operands of one delayed product at a time are live until it runs.

// beside reorders the nodes of the passes and decides which of them run beside a collective.
func (b *stageBuilder) beside() {
	if !b.prog.Plan.OverlapTP {
		return
	}
	if b.kernelsBeside == nil {
		b.kernelsBeside, b.besideOf = make([]int, len(b.of)), make([]*ir.Node, len(b.of))
	}
	enter := entries(b.nodes)
	for from, to := 0, 0; from < len(b.nodes); from = to {
		for to = from + 1; to < len(b.nodes) && b.continues(b.nodes[to-1], b.nodes[to]) && !enter[b.nodes[to]] && !b.received(to-1); to++ {
		}
		b.pair(b.nodes[from:to])
	}
}

// continues reports whether a node may change places with the previous node: both belong to one block and one
// task, no other rank depends on their order (except that of collectives), and nothing else waits between them.
func (b *stageBuilder) continues(before, n *ir.Node) bool {
	if n.Phase == ir.Update || n.Phase != before.Phase || n.Stage != before.Stage || n.Block() != before.Block() {
		return false
	}
	x, y := b.spot(before), b.spot(n)
	return x.segment == y.segment && b.movable(before) && b.movable(n)
}

// received reports whether node i follows a receive that waits for the communication stream. In a stage that
// receives nothing there, node i itself waits, so it must not move either.
func (b *stageBuilder) received(i int) bool {
	return i > 0 && b.nodes[i-1].Op == ir.OpRecv && b.spot(b.nodes[i-1]).await != nil
}

// entries returns, for each block's backward pass, the first node that reads a gradient from another block, not
// counting what is recomputed. Nodes before it that only move or slice operands for it, in one or more steps,
// count as part of the entry. In the first block of a stage the entry waits for the gradient to be received;
// all other blocks must be like it, so no block may move nodes across its entry.
func entries(nodes []*ir.Node) map[*ir.Node]bool {
	entered, first := map[string]bool{}, map[*ir.Node]bool{}
	for at, n := range nodes {
		if n.Phase != ir.Backward {
			continue
		}
		i, block := at, n.Block()
		if !entered[block] && slices.ContainsFunc(n.Args, func(a *ir.Value) bool {
			return a.Def.Phase == n.Phase && a.Def.Op.Class() != ir.Leaf && a.Def.Block() != block
		}) {
			readBy := func(before *ir.Node) bool {
				return slices.ContainsFunc(nodes[i:at+1], func(n *ir.Node) bool { return readsAny(n, []*ir.Node{before}) })
			}
			for i > 0 && rearranged(nodes[i-1]) && readBy(nodes[i-1]) {
				i--
			}
			entered[block], first[nodes[i]] = true, true
		}
	}
	return first
}

// rearranged reports whether a node only changes the placement of a value, without a transfer between stages.
func rearranged(n *ir.Node) bool {
	return n.Op.Class() == ir.Comm && n.Op != ir.OpSend && n.Op != ir.OpRecv
}

// movable reports whether a node is a kernel, a copy or a collective that runs in every micro-batch and that
// nothing ties to the communication stream.
func (b *stageBuilder) movable(n *ir.Node) bool {
	s := b.spot(n)
	late := n.Op == ir.OpAccumulate && b.spot(n.Args[0].Def).async
	return !s.async && !s.last && s.await == nil && !late && (launched(n) || Collective(n.Op) || HostCopy(n.Op))
}

// launched reports whether a node is a kernel: it runs on the rank's own device, without communication.
func launched(n *ir.Node) bool {
	switch n.Op {
	case ir.OpSend, ir.OpRecv:
		return false
	}
	return n.Op.Class() != ir.Leaf && !Collective(n.Op) && !HostCopy(n.Op)
}

// pair finds the kernels that run beside the collectives of a stretch of nodes, and reorders the stretch
// accordingly.
func (b *stageBuilder) pair(nodes []*ir.Node) {
	for _, find := range []func([]*ir.Node, int) (int, []*ir.Node){b.window, b.putOff} {
		for i, c := range nodes {
			if !b.ofTensorParallel(c) || b.kernelsBeside[c.ID()] > 0 {
				continue
			}
			at, kernels := find(nodes, i)
			if len(kernels) == 0 {
				continue
			}
			copy(nodes[at+1:i+1], nodes[at:i])
			nodes[at] = c
			keysValuesFirst(nodes[at:], kernels)
			for _, n := range kernels {
				b.besideOf[n.ID()] = c
				if !b.folded[n.ID()] {
					b.kernelsBeside[c.ID()]++
				}
			}
		}
	}
}

// keysValuesFirst moves nodes that extract and gather keys and values (see KeysValues) in front of nodes[0], a
// collective, and the kernels that run beside it.
func keysValuesFirst(nodes, kernels []*ir.Node) {
	at := func(n *ir.Node) int {
		if n != nodes[0] && KeysValues(n) && !slices.Contains(kernels, n) {
			return 0
		}
		return 1
	}
	row := slices.Clone(nodes[:1+slices.Index(nodes, kernels[len(kernels)-1])])
	slices.SortStableFunc(row, func(x, y *ir.Node) int { return at(x) - at(y) })
	copy(nodes, row)
}

// ofTensorParallel reports whether a node is a collective of tensor-parallel ranks.
func (b *stageBuilder) ofTensorParallel(n *ir.Node) bool {
	if !Collective(n.Op) {
		return false
	}
	axis := n.Attr.(ir.CommAttr).Axis
	return (axis == partition.AxisTP || axis == partition.AxisTPR) && b.prog.Mesh.Size(axis) > 1
}

// window returns the index to which collective i of a stretch moves, and the kernels after it that run beside
// it. It returns no kernels if the collective stays where it is.
func (b *stageBuilder) window(nodes []*ir.Node, i int) (at int, kernels []*ir.Node) {
	c := nodes[i]
	for at = i; ; at-- {
		if kernels = b.after(nodes, at, i); slices.ContainsFunc(kernels, func(n *ir.Node) bool { return n.Op == ir.OpMatMul }) {
			return at, kernels
		}
		if at == 0 || nodes[at-1] == c.Args[0].Def || b.besideOf[nodes[at-1].ID()] != nil {
			return i, nil
		}
	}
}

// after returns the consecutive kernels that would follow collective i at index at and that do not depend on
// it. It returns none unless another node of the stretch follows them, because something must wait for the
// collective.
//
// Nodes that exchange keys and values, and depend on none of the kernels, do not end the row: they are moved in
// front of it. Where attention is recomputed these nodes stand elsewhere. The row must not be shorter where it
// is not recomputed, or recomputation would hide more time than it costs.
func (b *stageBuilder) after(nodes []*ir.Node, at, i int) []*ir.Node {
	var kernels []*ir.Node
	for k := at; k < len(nodes); k++ {
		n := nodes[k]
		switch {
		case k == i:
		case b.goesBefore(n, nodes[i], kernels):
		case !launched(n) || b.besideOf[n.ID()] != nil || slices.Contains(n.Args, nodes[i].Results[0]):
			return kernels
		default:
			kernels = append(kernels, n)
		}
	}
	return nil // nothing in the stretch would wait for the collective
}

// goesBefore reports whether a node handles keys and values, is not paired yet, and may run before a collective
// and a row of kernels.
func (b *stageBuilder) goesBefore(n, c *ir.Node, kernels []*ir.Node) bool {
	return KeysValues(n) && b.besideOf[n.ID()] == nil && b.kernelsBeside[n.ID()] == 0 && !readsAny(n, []*ir.Node{c}) && !readsAny(n, kernels)
}

// putOff looks backwards from collective i of a stretch for the nearest product that nothing up to the
// collective needs. It moves that product, and all nodes that depend on it, to just before the collective, and
// returns the index for the collective (before them) and the kernels that then run beside it. It returns no
// kernels if there is no such product.
//
// Nothing is delayed for the gathering of keys and values. Where attention is recomputed they are gathered
// elsewhere, and the product that is then free for another collective could save more time than recomputation
// costs.
func (b *stageBuilder) putOff(nodes []*ir.Node, i int) (at int, kernels []*ir.Node) {
	if KeysValues(nodes[i]) {
		return i, nil
	}
	for k := i - 1; k >= 0; k-- {
		if nodes[k].Op != ir.OpMatMul {
			continue
		}
		late := b.from(nodes[k:i])
		if late == nil || readsAny(nodes[i], late) {
			continue
		}
		before := slices.Clone(nodes[k:i])
		rest := slices.DeleteFunc(nodes[k:i], func(n *ir.Node) bool { return slices.Contains(late, n) })
		at = k + len(rest)
		copy(nodes[at:i], late)
		if kernels = b.after(nodes, at, i); len(kernels) > 0 {
			return at, kernels
		}
		copy(nodes[k:i], before)
	}
	return i, nil
}

// KeysValues reports whether a node extracts keys and values from the operand of attention, or exchanges or
// moves what was extracted.
func KeysValues(n *ir.Node) bool {
	for rearranged(n) {
		n = n.Args[0].Def
	}
	return n.Op == ir.OpKeysValues
}

// from returns the first of nodes and all others that depend on it. It returns nil if one of them is no kernel,
// or runs beside a collective already.
func (b *stageBuilder) from(nodes []*ir.Node) []*ir.Node {
	var late []*ir.Node
	for i, n := range nodes {
		if i > 0 && !readsAny(n, late) {
			continue
		}
		if !launched(n) || b.besideOf[n.ID()] != nil {
			return nil
		}
		late = append(late, n)
	}
	return late
}

// readsAny reports whether a node reads a result of any of others.
func readsAny(n *ir.Node, others []*ir.Node) bool {
	return slices.ContainsFunc(n.Args, func(a *ir.Value) bool { return slices.Contains(others, a.Def) })
}
