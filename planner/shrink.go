package planner

import (
	"reflect"
	"slices"
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Shrink returns the graph with only the first keep of its repeated blocks, when
// all blocks are alike: whatever an honest pricing of the shorter graph says of a
// block is true of each of the repeats. It returns false when there are no more
// than keep blocks, or they differ.
//
// Blocks are alike when their nodes, taken in order, have the same ops,
// attributes and types, and the same arguments: from inside the block at the same
// place, from outside all blocks the same value, and from a neighbour at the same
// place of the neighbour. At the ends of the row, where there is no neighbour, a
// value from outside stands in for it.
//
// The removed blocks' neighbours close ranks: a value from the first removed
// block is replaced by what the last block has there, and a value of the last
// block by that of the last one kept. An add_n over all blocks (the gradient norm)
// loses the operands of those removed.
func Shrink(g *ir.Graph, keep int) (*ir.Graph, bool) {
	names := partition.Blocks(g)
	if keep < 1 || len(names) <= keep {
		return nil, false
	}
	work, _ := g.Clone()
	row := newBlockRow(work, names)
	if !row.alike() {
		return nil, false
	}
	row.truncate(work, keep)
	for _, n := range work.Nodes {
		for _, a := range n.Args {
			if p, ok := row.at[a.Def]; ok && p.block >= keep {
				return nil, false // reads further than its neighbours
			}
		}
	}
	sortTopologically(work)
	work.Renumber()
	return work, true
}

// blockRow is the nodes of each repeated block in graph order.
type blockRow struct {
	names  []string
	blocks [][]*ir.Node
	at     map[*ir.Node]place
}

// place is where a node stands: block and index in it.
type place struct{ block, index int }

func newBlockRow(g *ir.Graph, names []string) *blockRow {
	r := &blockRow{names: names, blocks: make([][]*ir.Node, len(names)), at: map[*ir.Node]place{}}
	number := map[string]int{}
	for i, n := range names {
		number[n] = i
	}
	for _, n := range g.Nodes {
		if b, ok := number[n.Block()]; ok {
			r.at[n] = place{b, len(r.blocks[b])}
			r.blocks[b] = append(r.blocks[b], n)
		}
	}
	return r
}

func (r *blockRow) alike() bool {
	// Of two blocks, the second is compared with the first; of more, all with an
	// inner one, whose neighbours are both blocks.
	like := min(1, len(r.blocks)-2)
	if like < 0 {
		like = 0
	}
	for b := range r.blocks {
		if len(r.blocks[b]) != len(r.blocks[like]) {
			return false
		}
		for i := range r.blocks[b] {
			if !r.sameNode(like, b, i) {
				return false
			}
		}
	}
	return true
}

// sameNode compares node i of block b with that of block a.
func (r *blockRow) sameNode(a, b, i int) bool {
	x, y := r.blocks[a][i], r.blocks[b][i]
	if x.Op != y.Op || x.Phase != y.Phase || len(x.Args) != len(y.Args) || len(x.Results) != len(y.Results) {
		return false
	}
	if strings.TrimPrefix(x.Name, r.names[a]) != strings.TrimPrefix(y.Name, r.names[b]) {
		return false
	}
	if !reflect.DeepEqual(r.anonymous(x.Attr, a), r.anonymous(y.Attr, b)) {
		return false
	}
	for j := range x.Results {
		if !x.Results[j].Type.Equal(y.Results[j].Type) {
			return false
		}
	}
	for j := range x.Args {
		if !r.sameArg(a, b, x.Args[j], y.Args[j]) {
			return false
		}
	}
	return true
}

func (r *blockRow) sameArg(a, b int, x, y *ir.Value) bool {
	if x.Index != y.Index || !x.Type.Equal(y.Type) {
		return false
	}
	p, inX := r.at[x.Def]
	q, inY := r.at[y.Def]
	switch {
	case inX && inY:
		return p.index == q.index && p.block-a == q.block-b
	case inX: // y has no such neighbour, or x is no neighbour at all
		beyond := b + p.block - a
		return p.block != a && (beyond < 0 || beyond >= len(r.blocks))
	case inY:
		beyond := a + q.block - b
		return q.block != b && (beyond < 0 || beyond >= len(r.blocks))
	}
	return x == y
}

// anonymous removes the block's name from attributes.
func (r *blockRow) anonymous(attr ir.Attr, block int) ir.Attr {
	switch a := attr.(type) {
	case ir.DropoutAttr:
		a.Key = strings.TrimPrefix(a.Key, r.names[block])
		return a
	case ir.ParamAttr:
		a.Master = strings.TrimPrefix(a.Master, r.names[block])
		return a
	}
	return attr
}

// truncate keeps the first keep blocks of the graph.
func (r *blockRow) truncate(g *ir.Graph, keep int) {
	last := len(r.blocks) - 1
	removed := func(v *ir.Value) bool {
		p, ok := r.at[v.Def]
		return ok && p.block >= keep
	}
	// stand returns what a node outside the removed blocks reads for v.
	stand := func(v *ir.Value) *ir.Value {
		p := r.at[v.Def]
		return r.blocks[keep-1][p.index].Results[v.Index]
	}
	var nodes []*ir.Node
	for _, n := range g.Nodes {
		p, inside := r.at[n]
		switch {
		case inside && p.block >= keep:
			continue
		case n.Op == ir.OpAddN:
			n.Args = slices.DeleteFunc(n.Args, removed)
		case inside:
			for j, a := range n.Args {
				if removed(a) {
					// What follows the last block follows the last one kept.
					n.Args[j] = r.blocks[last][p.index].Args[j]
				}
			}
		default:
			for j, a := range n.Args {
				if removed(a) {
					n.Args[j] = stand(a)
				}
			}
		}
		nodes = append(nodes, n)
	}
	g.Nodes = nodes
	for i, o := range g.Outputs {
		if removed(o.Value) {
			g.Outputs[i].Value = stand(o.Value)
		}
	}
	g.Updates = slices.DeleteFunc(g.Updates, func(u ir.StateUpdate) bool { return removed(u.Param) })
}

// sortTopologically moves nodes behind their arguments where a rewiring made an
// argument come later than its reader, and leaves the order otherwise.
func sortTopologically(g *ir.Graph) {
	done := make(map[*ir.Node]bool, len(g.Nodes))
	nodes := make([]*ir.Node, 0, len(g.Nodes))
	var visit func(n *ir.Node)
	visit = func(n *ir.Node) {
		if done[n] {
			return
		}
		done[n] = true
		for _, a := range n.Args {
			visit(a.Def)
		}
		nodes = append(nodes, n)
	}
	for _, n := range g.Nodes {
		visit(n)
	}
	g.Nodes = nodes
}
