package partition

import (
	"github.com/autopar/autopar/ir"
)

// Blocks lists the repeated blocks of a graph in forward order: "h.0", "h.1", ...
func Blocks(g *ir.Graph) []string {
	var blocks []string
	for _, n := range g.Nodes {
		if n.Phase != ir.Forward || n.Op.Class() == ir.Leaf {
			continue
		}
		if b := n.Block(); b != "" && (len(blocks) == 0 || blocks[len(blocks)-1] != b) {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// extent says how much of a block is recomputed.
type extent uint8

const (
	nothing extent = iota
	pointwiseOnly
	attentionOnly
	full
)

// covers reports whether the results of an op are recomputed.
func (e extent) covers(op ir.Op) bool {
	switch e {
	case pointwiseOnly:
		return Pointwise(op)
	case attentionOnly:
		return op == ir.OpAttention
	}
	return e == full
}

// Pointwise reports whether [Stage.Pointwise] recomputes an op: a norm or an activation function. The backward
// pass keeps the large operand of these anyway.
func Pointwise(op ir.Op) bool {
	switch op {
	case ir.OpLayerNorm, ir.OpRMSNorm, ir.OpGELU, ir.OpSwiGLU:
		return true
	}
	return false
}

// recompute lets the backward pass of each listed block recompute activations of the block (Chen et al. 2016),
// to the given extent. It clones the forward nodes that the backward pass needs into the backward phase.
// Dropout masks are a function of position, so the clones produce the same bits.
func recompute(g *ir.Graph, blocks map[string]extent) {
	if len(blocks) == 0 {
		return
	}
	byBlock := map[string][]*ir.Node{}
	blockOf := make([]string, g.IDs()) // by ID of a node: its block, if that is listed
	for _, n := range g.Nodes {
		if block := n.Block(); blocks[block] != nothing {
			blockOf[n.ID()] = block
			byBlock[block] = append(byBlock[block], n)
		}
	}
	r := &recomputer{blockOf: blockOf, again: make([]*ir.Value, g.IDs()), need: make([]bool, g.IDs())}
	out := make([]*ir.Node, 0, len(g.Nodes)*3/2)
	expanded := map[string]bool{}
	for _, n := range g.Nodes {
		block := blockOf[n.ID()]
		if n.Phase != ir.Backward || block == "" {
			out = append(out, n)
			continue
		}
		if !expanded[block] {
			expanded[block] = true
			out = append(out, r.cloneForward(byBlock[block], block, blocks[block])...)
		}
		for i, a := range n.Args {
			if again := r.again[a.ID]; again != nil {
				n.Args[i] = again
			}
		}
		out = append(out, n)
	}
	g.Nodes = out
	g.Renumber()
}

// recomputer clones nodes. Its tables are indexed by ID.
type recomputer struct {
	arena   ir.Arena
	blockOf []string    // by node
	again   []*ir.Value // by forward value: its recomputed copy
	need    []bool      // nodes that have to be recomputed
}

// cloneForward returns clones of the forward nodes of a block that its backward nodes need, in forward order,
// and records their results in again.
func (r *recomputer) cloneForward(nodes []*ir.Node, block string, much extent) []*ir.Node {
	mine := func(v *ir.Value) bool {
		d := v.Def
		return d.Phase == ir.Forward && d.Op.Class() == ir.Compute && r.blockOf[d.ID()] == block && much.covers(d.Op)
	}
	for i := len(nodes) - 1; i >= 0; i-- {
		n := nodes[i]
		if n.Phase != ir.Backward && !r.need[n.ID()] {
			continue
		}
		for _, a := range n.Args {
			if mine(a) {
				r.need[a.Def.ID()] = true
			}
		}
	}
	var clones []*ir.Node
	for _, n := range nodes {
		if !r.need[n.ID()] {
			continue
		}
		c := r.arena.Node(*n, len(n.Args), len(n.Results))
		c.Name, c.Phase = n.Name+"@re", ir.Backward
		for i, a := range n.Args {
			if again := r.again[a.ID]; again != nil {
				a = again
			}
			c.Args[i] = a
		}
		for i, old := range n.Results {
			c.Results[i] = r.arena.Value(ir.Value{Type: old.Type, Def: c, Index: i})
			r.again[old.ID] = c.Results[i]
		}
		clones = append(clones, c)
	}
	return clones
}
