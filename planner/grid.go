package planner

import (
	"slices"
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Modules whose weights tensor parallelism cuts in two dimensions. Tensor-parallel ranks may form a
// grid of rows and columns: a product's weight is cut over the rows in its inputs and over the
// columns in its outputs, and the next weight the other way round (partition.Plan.TPRows). A rank
// then gathers only its row's part of the tokens' features, and in exchange sums inner activations
// over the rows. With R rows and C columns an MLP of inner width 4 times that of the model moves
// 2/R + 8(R-1)/(R C) times the bytes of its tokens, where a cut in one dimension moves 2 times as
// many. It takes about sixteen ranks to gain, for attention eight. Modules that are not on the grid
// are cut in one dimension over all ranks.

// fewestGrid is the number of tensor-parallel ranks from which a grid is searched even if the batch has
// enough sequences for other ways.
const fewestGrid = 16

// split says how tensor parallelism cuts weights, if not those of every module in one dimension.
type split struct {
	replicate string // modules whose weights all ranks hold, joined by "+"
	grid      string // modules whose weights are cut in two dimensions, joined by "+"
	rows      int    // of the grid; 0 without one
	batch     bool   // ranks share the batch: see [partition.Plan.BatchParallel]
}

// gridRows lists the numbers of rows that a grid of tp ranks may have: no more than columns.
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

// splits lists the other ways to cut weights that the search tries in an outline, besides one
// dimension or what the options replicate. If the options ask for a grid, there is nothing else.
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

// grids lists the grids of so many rows that an outline may have. They are in the usual order of
// ranks, and beside ZeRO groups or context parallelism, not both, as a mesh has no more axes.
func (s *searcher) grids(o outline, rows int) []split {
	if o.tp%rows != 0 || o.tp == rows || s.opts.ranks(o.degrees) != "" || o.cp > 1 && o.group > 0 {
		return nil
	}
	if s.gridded == nil {
		s.gridded = s.layouts.gridModules()
	}
	return grids(s.gridded, rows)
}

// gridModules lists the modules of blocks that have one product after another.
func (l *layouts) gridModules() []string {
	var names []string
	for _, g := range l.groups() {
		if p := placementOf(g.weights[0], -1); ir.BlockOf(g.weights[0].Def.Name) != "" && len(g.weights) > 1 {
			names = append(names, p.Module())
		}
	}
	return names
}

// onGrid returns the layout for tensor-parallel ranks with some modules on a grid.
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

// overRows cuts a weight that is cut over the columns of ranks over their rows, too, in the largest
// dimension on the other side of its product: in inputs where columns cut outputs. Vectors stay as
// they are, and so does a matrix of an adapter whose rank is less than the number of rows.
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
