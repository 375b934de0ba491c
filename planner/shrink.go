package planner

import (
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Graphs with fewer of their repeated blocks. A model's blocks differ only in names, so a graph with
// one or a few of them prices and lays out all. newBlockRow checks that the blocks are alike, and
// [blockRow.keep] makes the short graph. [shrunken] in skeleton.go keeps them for the search;
// package galvatron profiles them, by [Shrink].

// Shrink returns the graph with only the first keep of its repeated blocks, if all blocks are
// alike: whatever an honest pricing of the shorter graph says of a block is true of each of the
// repeats. It returns false if there are no more than keep blocks, or if they differ.
//
// Blocks are alike if their nodes, taken in order, have the same ops, attributes and types, and the
// same arguments: an argument from inside the block is at the same place, one from outside all
// blocks is the same value, and one from a neighbouring block is at the same place of that
// neighbour. At the ends of the row, where there is no neighbour, a value from outside may stand in
// for it.
//
// The neighbours of the removed blocks are joined: a value from the first removed block is replaced
// by what the last block has there, and a value from the last block by that of the last block kept.
// An add_n over all blocks (the gradient norm) loses the operands of those removed.
func Shrink(g *ir.Graph, keep int) (*ir.Graph, bool) {
	row, ok := newBlockRow(g)
	if !ok || keep < 1 || len(row.blocks) <= keep {
		return nil, false
	}
	return row.keep(keep)
}

// blockRow has the nodes of each repeated block in graph order. All blocks are alike.
type blockRow struct {
	graph  *ir.Graph
	names  []string
	blocks [][]*ir.Node
	at     []place     // by node ID
	block  []int       // by node, in graph order
	made   []*ir.Value // scratch: the copies made for the last short graph, by ID of the original
	begun  []bool      // scratch, by node ID
}

// place is where a node stands: its block and its index there. A node of no block has block
// outside.
type place struct{ block, index int }

const outside = -1

// newBlockRow sorts nodes by block; ok is false if blocks differ, or there are fewer than two.
func newBlockRow(g *ir.Graph) (row *blockRow, ok bool) {
	names := partition.Blocks(g)
	r := &blockRow{graph: g, names: names, blocks: make([][]*ir.Node, len(names)), at: make([]place, g.IDs()), block: make([]int, len(g.Nodes))}
	number := map[string]int{}
	for i, n := range names {
		number[n] = i
	}
	b, last := outside, ""
	for i, n := range g.Nodes {
		if name := n.Block(); name != last {
			var inside bool
			if b, inside = number[name]; !inside {
				b = outside
			}
			last = name
		}
		if r.block[i] = b; b == outside {
			r.at[n.ID()].block = outside
			continue
		}
		r.at[n.ID()] = place{b, len(r.blocks[b])}
		r.blocks[b] = append(r.blocks[b], n)
	}
	return r, len(names) > 1 && r.alike()
}

func (r *blockRow) alike() bool {
	// Of two blocks, the second is compared with the first. Of more, all are compared with an inner
	// one, whose neighbours are both blocks.
	like := max(0, min(1, len(r.blocks)-2))
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
	if !r.sameAttr(a, b, x.Attr, y.Attr) {
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
	p, q := r.at[x.Def.ID()], r.at[y.Def.ID()]
	inX, inY := p.block != outside, q.block != outside
	switch {
	case inX && inY:
		return p.index == q.index && p.block-a == q.block-b
	case inX: // y must have no such neighbour, where something from outside stands in
		beyond := b + p.block - a
		return p.block != a && (beyond < 0 || beyond >= len(r.blocks))
	case inY:
		beyond := a + q.block - b
		return q.block != b && (beyond < 0 || beyond >= len(r.blocks))
	}
	return x == y
}

// sameAttr compares attributes except for the name of the block in them.
func (r *blockRow) sameAttr(a, b int, x, y ir.Attr) bool {
	switch x := x.(type) {
	case ir.DropoutAttr:
		y, ok := y.(ir.DropoutAttr)
		x.Key, y.Key = strings.TrimPrefix(x.Key, r.names[a]), strings.TrimPrefix(y.Key, r.names[b])
		return ok && x == y
	case ir.ParamAttr:
		y, ok := y.(ir.ParamAttr)
		x.Master, y.Master = strings.TrimPrefix(x.Master, r.names[a]), strings.TrimPrefix(y.Master, r.names[b])
		return ok && x == y
	}
	return x == y
}

// keep returns a graph with the first n blocks; ok is false if a block reads from further away than
// its neighbours.
func (r *blockRow) keep(n int) (small *ir.Graph, ok bool) {
	if r.made == nil {
		r.made, r.begun = make([]*ir.Value, r.graph.IDs()), make([]bool, r.graph.IDs())
	}
	clear(r.made)
	clear(r.begun)
	s := &shortener{blockRow: r, n: n, dst: ir.NewGraph(r.graph.Name)}
	s.dst.Mesh = r.graph.Mesh
	s.dst.Expect(len(r.graph.Nodes) - (len(r.blocks)-n)*len(r.blocks[0]))
	for i, node := range r.graph.Nodes {
		if r.block[i] < n && !s.add(node) {
			return nil, false
		}
	}
	for _, o := range r.graph.Outputs {
		s.dst.Outputs = append(s.dst.Outputs, ir.Output{Name: o.Name, Value: s.made[s.stand(o.Value).ID]})
	}
	for _, u := range r.graph.Updates {
		if !s.removed(u.Param.Def) {
			s.dst.Updates = append(s.dst.Updates, ir.StateUpdate{Param: s.made[u.Param.ID], New: s.made[u.New.ID]})
		}
	}
	return s.dst, true
}

// shortener builds the graph with the first n blocks of a row.
type shortener struct {
	*blockRow
	n   int
	dst *ir.Graph
}

func (s *shortener) removed(n *ir.Node) bool { return s.at[n.ID()].block >= s.n }

// stand returns what a node outside the removed blocks reads in place of v.
func (s *shortener) stand(v *ir.Value) *ir.Value {
	if !s.removed(v.Def) {
		return v
	}
	return s.blocks[s.n-1][s.at[v.Def.ID()].index].Results[v.Index]
}

// add copies a node after the nodes that it now reads from. Otherwise the order stays.
func (s *shortener) add(n *ir.Node) bool {
	if s.begun[n.ID()] {
		return s.made[n.ID()] != nil // nil: it would read from itself
	}
	s.begun[n.ID()] = true
	args := make([]*ir.Value, 0, len(n.Args))
	for j, a := range n.Args {
		p := s.at[n.ID()]
		switch {
		case !s.removed(a.Def):
		case n.Op == ir.OpAddN:
			continue
		case p.block != outside:
			// What follows the last block now follows the last one kept.
			a = s.blocks[len(s.blocks)-1][p.index].Args[j]
		default:
			a = s.stand(a)
		}
		if s.removed(a.Def) || !s.add(a.Def) {
			return false
		}
		args = append(args, s.made[a.ID])
	}
	for i, r := range s.dst.AddLike(n, args...).Results {
		s.made[n.Results[i].ID] = r
	}
	return true
}
