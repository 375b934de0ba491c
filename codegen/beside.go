package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Tensor-parallel ranks exchange activations and their gradients in every block, and most
// kernels around need what they exchange. But of the two products that a linear layer has in
// the backward pass neither needs the other: the gradient of its input is summed over the
// ranks while that of its weight is made (Megatron-LM's asynchronous all-reduce: Narayanan et
// al. SC'21), and under sequence parallelism the input, of which each rank has kept its part,
// is gathered again while the gradient of the input is made (Korthikanti et al. 2022, section
// 4.2.2; the bulk overlap of Transformer Engine).
//
// It is found rather than known: a collective goes back to the nearest place, after what it
// reads is made, that a product follows which does not read it. That product and the kernels
// around it run beside the collective. Where there is none, as all that follows waits for what
// is gathered, the nearest product before it that it does not read is put off, with all that
// reads that product: the gradient of the weight that the MLP ends with is made while the
// gradient of attention's output is gathered. Such a group begins and ends in one block and one
// task, and nothing in it waits for anything else, so that it takes the time of the longer of
// the two sides: it is priced, and proven, by itself. Few buffers live longer: what is
// gathered is there while the product makes what is summed, as it would be a product later,
// and of one product at a time that is put off what it reads stays until then.

// beside reorders the nodes of the passes and says which run beside a collective.
func (b *stageBuilder) beside() {
	if !b.prog.Plan.OverlapTP {
		return
	}
	if b.along == nil {
		b.along, b.during = make([]int, len(b.of)), make([]*ir.Node, len(b.of))
	}
	enter := entries(b.nodes)
	for from, to := 0, 0; from < len(b.nodes); from = to {
		for to = from + 1; to < len(b.nodes) && b.continues(b.nodes[to-1], b.nodes[to]) && !enter[b.nodes[to]] && !b.received(to-1); to++ {
		}
		b.pair(b.nodes[from:to])
	}
}

// leavesFirst puts what there is from the start before all else, as it is no instruction between others: weights
// that ZeRO has gathered, say.
func (b *stageBuilder) leavesFirst() {
	at := func(n *ir.Node) int {
		if b.silent(n) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(b.nodes, func(x, y *ir.Node) int { return at(x) - at(y) })
}

// continues reports whether nothing forbids that a node changes places with the one before:
// both are of a block and a task, neither is known to another rank by its place but for
// collectives, and nothing else waits there.
func (b *stageBuilder) continues(before, n *ir.Node) bool {
	if n.Phase == ir.Update || n.Phase != before.Phase || n.Stage != before.Stage || n.Block() != before.Block() {
		return false
	}
	x, y := b.spot(before), b.spot(n)
	return x.segment == y.segment && b.movable(before) && b.movable(n)
}

// received reports whether a node is the first after a transfer that waits for the communication stream. Where nothing
// is received that node waits itself, and stays where it is.
func (b *stageBuilder) received(i int) bool {
	return i > 0 && b.nodes[i-1].Op == ir.OpRecv && b.spot(b.nodes[i-1]).await != nil
}

// entries returns the first node of every block's backward pass that reads what the pass has made
// in another block: after what is recomputed, a gradient, and before it what is gathered or cut for
// that node besides, in one step or several. The first block of a stage waits there for the gradient to be received, and the
// others, which are to be like it, put nothing across.
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

// rearranged reports whether a node only changes where a value lies.
func rearranged(n *ir.Node) bool {
	return n.Op.Class() == ir.Comm && n.Op != ir.OpSend && n.Op != ir.OpRecv
}

// movable reports whether a node is a kernel, a copy or a collective of every micro-batch that
// no instruction of the communication stream is tied to.
func (b *stageBuilder) movable(n *ir.Node) bool {
	s := b.spot(n)
	late := n.Op == ir.OpAccumulate && b.spot(n.Args[0].Def).async
	return !s.async && !s.last && s.await == nil && !late && (launched(n) || Collective(n.Op) || HostCopy(n.Op))
}

// launched reports whether a node is work of the rank alone, on its device.
func launched(n *ir.Node) bool {
	switch n.Op {
	case ir.OpSend, ir.OpRecv:
		return false
	}
	return n.Op.Class() != ir.Leaf && !Collective(n.Op) && !HostCopy(n.Op)
}

// pair finds what runs beside the collectives of a stretch of nodes.
func (b *stageBuilder) pair(nodes []*ir.Node) {
	for _, find := range []func([]*ir.Node, int) (int, []*ir.Node){b.window, b.putOff} {
		for i, c := range nodes {
			if !b.ofTensorParallel(c) || b.along[c.ID()] > 0 {
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
				b.during[n.ID()] = c
				if !b.folded[n.ID()] {
					b.along[c.ID()]++
				}
			}
		}
	}
}

// keysValuesFirst puts what takes out and gathers keys and values before the first of nodes, a collective, and the kernels that
// run beside it.
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

// ofTensorParallel reports whether a node makes tensor-parallel ranks communicate.
func (b *stageBuilder) ofTensorParallel(n *ir.Node) bool {
	if !Collective(n.Op) {
		return false
	}
	axis := n.Attr.(ir.CommAttr).Axis
	return (axis == partition.AxisTP || axis == partition.AxisTPR) && b.prog.Mesh.Size(axis) > 1
}

// window returns the place to which collective i of a stretch goes, and the kernels after it
// that run beside it: none if it stays as it is.
func (b *stageBuilder) window(nodes []*ir.Node, i int) (at int, kernels []*ir.Node) {
	c := nodes[i]
	for at = i; ; at-- {
		if kernels = b.after(nodes, at, i); slices.ContainsFunc(kernels, func(n *ir.Node) bool { return n.Op == ir.OpMatMul }) {
			return at, kernels
		}
		if at == 0 || nodes[at-1] == c.Args[0].Def || b.during[nodes[at-1].ID()] != nil {
			return i, nil
		}
	}
}

// after returns the kernels in a row that would follow collective i at a place and could run
// beside it. One more node of the stretch comes after them. What exchanges keys and values that none of the kernels makes is no
// end of the row, but comes before it: where attention is recomputed that stands elsewhere, and the row must be no shorter
// where it is not, or recomputation would hide more than it takes.
func (b *stageBuilder) after(nodes []*ir.Node, at, i int) []*ir.Node {
	var kernels []*ir.Node
	for k := at; k < len(nodes); k++ {
		n := nodes[k]
		switch {
		case k == i:
		case b.goesBefore(n, nodes[i], kernels):
		case !launched(n) || b.during[n.ID()] != nil || slices.Contains(n.Args, nodes[i].Results[0]):
			return kernels
		default:
			kernels = append(kernels, n)
		}
	}
	return nil // nothing of the stretch would wait for it
}

// goesBefore reports whether a node is of the keys and values, alone, and can come before a collective and a row of kernels.
func (b *stageBuilder) goesBefore(n, c *ir.Node, kernels []*ir.Node) bool {
	return KeysValues(n) && b.during[n.ID()] == nil && b.along[n.ID()] == 0 && !readsAny(n, []*ir.Node{c}) && !readsAny(n, kernels)
}

// putOff moves the nearest product before collective i of a stretch that nothing up to the
// collective needs, with all that reads it, behind the others there. It returns the place to
// which the collective goes, before them, and the kernels after it that run beside it: none if
// there is no such product. Nothing is put off for keys and values that are gathered again: where attention is
// recomputed that stands elsewhere, and what it leaves to others could save more time than recomputation takes.
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

// KeysValues reports whether a node takes keys and values out of what attention reads, or then exchanges or places them.
func KeysValues(n *ir.Node) bool {
	for rearranged(n) {
		n = n.Args[0].Def
	}
	return n.Op == ir.OpKeysValues
}

// from returns the first of some nodes and all of them that follow from it, or nil if one is no
// kernel or runs beside a collective already.
func (b *stageBuilder) from(nodes []*ir.Node) []*ir.Node {
	var late []*ir.Node
	for i, n := range nodes {
		if i > 0 && !readsAny(n, late) {
			continue
		}
		if !launched(n) || b.during[n.ID()] != nil {
			return nil
		}
		late = append(late, n)
	}
	return late
}

// readsAny reports whether a node reads what one of some others makes.
func readsAny(n *ir.Node, others []*ir.Node) bool {
	return slices.ContainsFunc(n.Args, func(a *ir.Value) bool { return slices.Contains(others, a.Def) })
}
