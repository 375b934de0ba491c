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

// extent is how much of a block is computed again.
type extent uint8

const (
	nothing extent = iota
	attentionOnly
	full
)

// recompute makes the backward pass of each listed block compute the block's
// activations again from its input (Chen et al. 2016), by cloning the forward
// nodes it needs into the backward phase. Dropout masks are a function of
// position, so the clones produce the same bits.
func recompute(g *ir.Graph, blocks map[string]extent) {
	if len(blocks) == 0 {
		return
	}
	again := map[*ir.Value]*ir.Value{} // forward value -> its recomputation
	var out []*ir.Node
	expanded := map[string]bool{}
	for _, n := range g.Nodes {
		block := ""
		if n.Phase == ir.Backward {
			block = n.Block()
		}
		if blocks[block] == nothing {
			out = append(out, n)
			continue
		}
		if !expanded[block] {
			expanded[block] = true
			out = append(out, cloneForward(g, block, blocks[block], again)...)
		}
		for i, a := range n.Args {
			if r, ok := again[a]; ok {
				n.Args[i] = r
			}
		}
		out = append(out, n)
	}
	g.Nodes = out
	g.Renumber()
}

// cloneForward returns copies of the forward nodes of a block that its backward
// nodes need, in forward order, and records them in again.
func cloneForward(g *ir.Graph, block string, much extent, again map[*ir.Value]*ir.Value) []*ir.Node {
	mine := func(v *ir.Value) bool {
		d := v.Def
		return d.Phase == ir.Forward && d.Op.Class() == ir.Compute && d.Block() == block && (much == full || d.Op == ir.OpAttention)
	}
	need := map[*ir.Node]bool{}
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		n := g.Nodes[i]
		if n.Block() != block || (n.Phase != ir.Backward && !need[n]) {
			continue
		}
		for _, a := range n.Args {
			if mine(a) {
				need[a.Def] = true
			}
		}
	}
	var clones []*ir.Node
	for _, n := range g.Nodes {
		if !need[n] {
			continue
		}
		c := n.Copy()
		c.Name, c.Phase = n.Name+"@re", ir.Backward
		for _, a := range n.Args {
			if r, ok := again[a]; ok {
				a = r
			}
			c.Args = append(c.Args, a)
		}
		for i, r := range n.Results {
			v := &ir.Value{Type: r.Type, Def: c, Index: i}
			c.Results = append(c.Results, v)
			again[r] = v
		}
		clones = append(clones, c)
	}
	return clones
}
