package planner

import (
	"slices"
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Tensor-parallel ranks may form a grid of rows and columns, over which the weights of a module
// are cut in both dimensions: inputs of a product over rows, outputs over columns, and the next
// weight the other way round (partition.Plan.TPRows). A rank then gathers only its row's part
// of the tokens' features, and in exchange sums inner activations over the rows. With R rows and C
// columns an MLP of inner width 4 times that of the model moves 2/R + 8(R-1)/(R C) of what its tokens are,
// where one dimension moves twice that: it takes sixteen ranks or so to gain, for attention eight.
// Modules that are not on the grid are cut in one dimension over all of its ranks.

// fewestGrid is how many tensor-parallel ranks a grid is searched for, also where the batch has
// enough sequences for other ways.
const fewestGrid = 16

// split is how tensor parallelism cuts weights, where not those of every module in one dimension.
type split struct {
	replicate string // modules whose weights all its ranks hold, joined by "+"
	grid      string // modules whose weights it cuts in both dimensions, the same
	rows      int    // of the grid, 0 without one
	batch     bool   // its ranks share the batch between its regions: see [partition.Plan.BatchParallel]
}

// gridRows lists the numbers of rows that grids of ranks have: no more than columns.
func gridRows(tp int) []int {
	return slices.DeleteFunc(divisors(tp), func(rows int) bool { return rows == 1 || rows*rows > tp })
}

// grids lists what may be on a grid of so many rows: every set of modules.
func grids(modules []string, rows int) []split {
	var all []split
	for _, grid := range sets(modules) {
		all = append(all, split{grid: grid, rows: rows})
	}
	return all
}

// splits lists how the search cuts weights in an outline, beside in one dimension or as the options
// replicate modules; where they ask for a grid there is nothing else.
func (s *searcher) splits(o outline) []split {
	if rows := s.opts.TPRows; rows > 1 {
		return s.grids(o, rows)
	}
	if o.batch {
		return nil
	}
	var all []split
	for _, replicate := range s.replications(o) {
		all = append(all, split{replicate: replicate})
	}
	if s.opts.Policy == AutoDist && s.opts.TPRows == 0 && s.opts.replicate() == "" && o.sequence && s.within(o.degrees) && (s.pays(o) || o.tp >= fewestGrid) {
		for _, rows := range gridRows(o.tp) {
			all = append(all, s.grids(o, rows)...)
		}
	}
	return all
}

// grids lists those of so many rows that an outline may have: in the usual order of ranks, and of
// ZeRO groups and context parallelism one beside, as a mesh has no more axes.
func (s *searcher) grids(o outline, rows int) []split {
	if o.tp%rows != 0 || o.tp == rows || s.opts.ranks(o.degrees) != "" || o.cp > 1 && o.group > 0 {
		return nil
	}
	if s.gridded == nil {
		s.gridded = s.layouts.gridModules()
	}
	return grids(s.gridded, rows)
}

// gridModules lists the modules of blocks that have a product after another.
func (l *layouts) gridModules() []string {
	var names []string
	for _, g := range l.groups() {
		if p := splitOf(g.weights[0], -1); ir.BlockOf(g.weights[0].Def.Name) != "" && len(g.weights) > 1 {
			names = append(names, p.Module())
		}
	}
	return names
}

// onGrid returns the layout for tensor-parallel ranks with some modules on a grid of them.
func (l *layouts) onGrid(tp int, x split) []partition.Placement {
	line, columns := l.find(tp), l.find(tp/x.rows)
	modules := strings.Split(x.grid, "+")
	of := func(p partition.Placement) bool { return slices.Contains(modules, p.Module()) }
	var all []partition.Placement
	for _, p := range columns {
		if of(p) {
			all = append(all, l.overRows(p, x.rows))
		}
	}
	for _, p := range line {
		if !of(p) {
			p.Spec = strings.Replace(p.Spec, partition.AxisTP, partition.AxisTP+"."+partition.AxisTPR, 1)
			all = append(all, p)
		}
	}
	return all
}

// overRows cuts a weight that is cut over columns of ranks over their rows too, in the largest
// dimension on the other side of its product: inputs where columns have outputs. Vectors lie as
// they did, and so does a matrix of an adapter whose rank is less than there are rows.
func (l *layouts) overRows(p partition.Placement, rows int) partition.Placement {
	for _, n := range l.graph.Nodes {
		if n.Phase != ir.Forward || n.Op != ir.OpMatMul || classOf(n.Args[1].Def.Name) != p.Match {
			continue
		}
		shape, words := n.Args[1].Type.Shape, strings.Split(strings.Trim(p.Spec, "[]"), ",")
		outputs := len(shape) - n.Attr.(ir.MatMulAttr).K
		from, to := outputs, len(shape)
		if splitDim(p.Spec) >= outputs {
			from, to = 0, outputs
		}
		at := from
		for d := from; d < to; d++ {
			if shape[d] > shape[at] {
				at = d
			}
		}
		if shape[at] >= rows {
			words[at] = partition.AxisTPR
			p.Spec = "[" + strings.Join(words, ",") + "]"
		}
		break
	}
	return p
}
