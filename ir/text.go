package ir

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Column is an optional part of a printed node. Results, op and operands are always printed first.
type Column uint8

// The columns, in the order in which they print.
const (
	NameColumn  Column = iota // "h.0.ln_1/layer_norm"
	AttrColumn                // {eps=1e-05}
	TypeColumn                // f32[7,33,24], f32[7,33], one per result
	SpecColumn                // [dp,_,_], [dp,_], one per result; only with a mesh
	PhaseColumn               // fwd stage=1; the stage when it is not 0
	PosColumn                 // // gpt.go:40
	numColumns
)

// PrintOptions selects what [Graph.Fprint] prints. The zero value prints everything, which [Parse] reads back.
type PrintOptions struct {
	Columns []Column // nil for all
}

// String prints the graph in full, one node a line.
func (g *Graph) String() string {
	var b strings.Builder
	g.Fprint(&b, PrintOptions{}) // a Builder does not fail
	return b.String()
}

// Fprint prints the graph in the form
//
//	graph gpt mesh(dp=2, tp=4)
//	  %0 = param              "wte.weight" {init=normal std=0.02}  f32[65,24]   [tp,_]
//	  %1 = input              "idx"                                i32[7,33]    [dp,_]
//	  %2 = embedding %0 %1    "wte/embedding"                      f32[7,33,24] [dp,_,_]+{tp} fwd // gpt.go:40
//	  output "x" %2
//	  update %0 <- %5
//
// with aligned columns. It also prints a graph that [Graph.Verify] rejects, but that may not parse back.
func (g *Graph) Fprint(w io.Writer, opts PrintOptions) error {
	rows := make([][]string, len(g.Nodes))
	for i, n := range g.Nodes {
		rows[i] = g.row(n, opts)
	}
	widths := columnWidths(rows)
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "graph %s", bareOrQuoted(g.Name))
	if len(g.Mesh.Axes) > 0 {
		fmt.Fprintf(out, " %s", g.Mesh)
	}
	out.WriteByte('\n')
	for _, row := range rows {
		var line strings.Builder
		for c, cell := range row {
			if widths[c] == 0 {
				continue
			}
			line.WriteString(" " + cell + strings.Repeat(" ", max(0, widths[c]-utf8.RuneCountInString(cell))))
		}
		fmt.Fprintf(out, " %s\n", strings.TrimRight(line.String(), " "))
	}
	for _, o := range g.Outputs {
		fmt.Fprintf(out, "  output %s %s\n", strconv.Quote(o.Name), valueID(o.Value))
	}
	for _, u := range g.Updates {
		fmt.Fprintf(out, "  update %s <- %s\n", valueID(u.Param), valueID(u.New))
	}
	return out.Flush()
}

// maxPad bounds the width to which a column is aligned, so that one long cell
// does not push all others off the screen.
const maxPad = 48

func columnWidths(rows [][]string) []int {
	widths := make([]int, 1+numColumns)
	for _, row := range rows {
		for c, cell := range row {
			widths[c] = max(widths[c], min(maxPad, utf8.RuneCountInString(cell)))
		}
	}
	return widths
}

// row returns the cells of one node; columns that are not shown are empty.
func (g *Graph) row(n *Node, opts PrintOptions) []string {
	cells := make([]string, 1+numColumns)
	cells[0] = head(n)
	for c := range numColumns {
		if opts.Columns == nil || slices.Contains(opts.Columns, c) {
			cells[1+c] = g.cell(n, c)
		}
	}
	return cells
}

// head prints the results, op and operands of a node.
func head(n *Node) string {
	ids := make([]string, len(n.Results))
	for i, r := range n.Results {
		ids[i] = valueID(r)
	}
	s := strings.Join(ids, ", ") + " = " + n.Op.String()
	for _, a := range n.Args {
		s += " " + valueID(a)
	}
	return s
}

func (g *Graph) cell(n *Node, c Column) string {
	var parts []string
	switch c {
	case NameColumn:
		return strconv.Quote(n.Name)
	case AttrColumn:
		return formatAttr(n.Attr)
	case TypeColumn:
		for _, r := range n.Results {
			parts = append(parts, r.Type.String())
		}
		return strings.Join(parts, ", ")
	case SpecColumn:
		if len(g.Mesh.Axes) == 0 {
			return ""
		}
		for _, r := range n.Results {
			parts = append(parts, g.specText(r))
		}
		return strings.Join(parts, ", ")
	case PhaseColumn:
		if n.Op >= numOps || n.Op.Class() != Leaf || n.Phase != Forward {
			parts = append(parts, n.Phase.String())
		}
		if n.Stage != 0 {
			parts = append(parts, fmt.Sprintf("stage=%d", n.Stage))
		}
		return strings.Join(parts, " ")
	case PosColumn:
		if n.Pos != "" {
			return "// " + n.Pos
		}
	}
	return ""
}

// specText prints the placement of a value, whether it is legal or not.
func (g *Graph) specText(v *Value) string {
	if g.Mesh.checkSpec(v) != nil {
		return describe(v.Spec[:])
	}
	return v.Spec.Format(g.Mesh, len(v.Type.Shape))
}

func valueID(v *Value) string {
	if v == nil {
		return "%nil"
	}
	return "%" + strconv.Itoa(v.ID)
}

func bareOrQuoted(s string) string {
	if isBare(s) {
		return s
	}
	return strconv.Quote(s)
}
