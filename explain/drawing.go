package explain

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strings"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// This file has the SVG primitives of the page, and its drawings of the mesh and of a block. chart.go draws what
// has a time axis, and fronts.

// drawing is an inline SVG. Colours come from the style sheet of the page.
type drawing struct {
	strings.Builder
	width, height float64
}

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(d, format, args...) }

// text writes text at a point. class is a class of the style sheet; anchor is start, middle or end.
func (d *drawing) text(x, y float64, class, anchor, text string) {
	d.add(`<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`, x, y, class, anchor, html.EscapeString(text))
}

// box draws a rectangle with a tip that shows when the pointer is over it.
func (d *drawing) box(x, y, w, h float64, class, tip string) {
	d.add(`<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" class="%s">`, x, y, w, h, class)
	if tip != "" {
		d.add(`<title>%s</title>`, html.EscapeString(tip))
	}
	d.add(`</rect>`)
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	d.add(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

// svg returns the drawing as an element. Screen readers read label.
func (d *drawing) svg(id, label string) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg id="%s" role="img" aria-label="%s" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" xmlns="http://www.w3.org/2000/svg">%s</svg>`,
		id, html.EscapeString(label), d.width, d.height, d.width, d.height, d.String()))
}

// Bounds of the drawing of the mesh.
const (
	meshUnits = 4   // units drawn
	meshRows  = 8   // data-parallel ranks below each other
	meshCols  = 128 // cells across
	meshWidth = 1160.0
)

// meshDrawing shows the ranks, as far as there is room. Units lie below each other, in a unit its stages side by side. A
// stage has a row for each data-parallel rank, in several columns if they are many, and a row has a cell for each context-
// and tensor-parallel rank. The ranks of every other node are outlined.
func (r *Report) meshDrawing() template.HTML {
	p := r.prog.Plan.Even() // in the order of ranks
	inner := p.ContextParallel() * p.TP
	units, rows, stages := min(p.Units(), meshUnits), min(p.DP, meshRows), p.PP()
	shown := min(stages, max(1, meshCols/inner))
	folds := min((p.DP+rows-1)/rows, max(1, meshCols/(inner*shown)))
	const gap, pad, top = 14, 12, 40
	cell := 34.0
	if across := shown * inner * folds; across > 24 {
		cell = max(7, min(34, (meshWidth-gap*float64(shown))/float64(across)))
	}
	block := float64(inner) * cell // width of a row
	stage := block*float64(folds) + gap
	width := max(float64(shown)*stage+2*pad, 480)
	unit := float64(rows)*cell + top + pad
	d := &drawing{width: width, height: float64(units)*(unit+pad) + 24}
	nodes := 1
	if r.Prediction != nil {
		nodes += r.Prediction.cluster.Node(p, p.RuntimeNGPUs-1)
	}
	for u := range units {
		y := float64(u) * (unit + pad)
		d.box(1, y+1, width-2, unit, "frame", "")
		d.text(pad, y+17, "small muted", "start", fmt.Sprintf("unit %d of %d", u, p.Units()))
		for s := range shown {
			x := pad + float64(s)*stage
			if stage-gap > 20 {
				d.text(x+(stage-gap)/2, y+33, "small", "middle", stageLabel(s, stage-gap))
			}
			for row := range min(p.DP, rows*folds) {
				for i, device := range p.Devices(u*p.DP + row) {
					rank := p.WorldRank(s, device)
					sched := &r.prog.Schedules[rank]
					cx, cy := x+float64(row/rows)*block+float64(i)*cell, y+top+float64(row%rows)*cell
					tip := fmt.Sprintf("rank %d: stage %d", rank, s)
					if at := r.coordinates(sched); at != "" {
						tip += ", " + at
					}
					node := ""
					if nodes > 1 {
						n := r.Prediction.cluster.Node(p, rank)
						tip += fmt.Sprintf(", node %d", n)
						if kind := r.Prediction.cluster.KindText(p, s); kind != "" {
							tip += ", " + kind
						}
						node = fmt.Sprintf(" node%d", n%2)
					}
					if cell < 14 {
						node += " dot"
					}
					d.box(cx+1.5, cy+1.5, cell-3, cell-3, fmt.Sprintf("cell stage%d%s", s%8, node), tip)
					if cell >= 20 {
						d.text(cx+cell/2, cy+cell/2+4, "cellno", "middle", fmt.Sprint(rank))
					}
				}
			}
		}
	}
	d.text(pad, d.height-8, "small muted", "start", meshNote(p, units, min(p.DP, rows*folds), shown, nodes))
	return d.svg("mesh", "the mesh of ranks")
}

func stageLabel(s int, width float64) string {
	if width < 50 {
		return fmt.Sprint(s)
	}
	return fmt.Sprintf("stage %d", s)
}

// meshNote says what the rows and columns are, and what is not drawn.
func meshNote(p *partition.Plan, units, rows, stages, nodes int) string {
	note := fmt.Sprintf("down: dp %d", p.DP)
	if n := p.ContextParallel(); n > 1 {
		note += fmt.Sprintf("; across: cp %d x tp %d", n, p.TP)
	} else {
		note += fmt.Sprintf("; across: tp %d", p.TP)
	}
	if p.RankOrder != "" {
		note += "; ranks in order " + p.RankOrderText()
	}
	if nodes > 1 {
		note += "; every other node is outlined"
	}
	var left []string
	if units < p.Units() {
		left = append(left, fmt.Sprintf("%d more units", p.Units()-units))
	}
	if rows < p.DP {
		left = append(left, fmt.Sprintf("%d more rows", p.DP-rows))
	}
	if stages < p.PP() {
		left = append(left, fmt.Sprintf("%d more stages", p.PP()-stages))
	}
	if len(left) > 0 {
		note += "; not drawn: " + strings.Join(left, ", ")
	}
	return note
}

// The measures of the block diagram.
const (
	diagramLeft  = 104.0 // room for the weights, left of the ops
	diagramBox   = 254.0 // width of an op
	diagramRight = 34.0  // room for the arcs, right of the ops
	diagramSheet = 84.0  // width of a weight
	diagramPill  = 20.0  // by how much a collective is narrower than an op, on either side
	diagramStep  = 50.0  // from one op to the next
	diagramTop   = 34.0
)

// blockDrawing shows the forward pass in three columns: before the blocks, one block, and after the blocks. It shows each op
// with the placement of its result, the op's weights cut as ranks hold them, and the collectives between the ops.
func (r *Report) blockDrawing() template.HTML {
	d := &drawing{}
	groups := r.diagramGroups()
	const column = diagramLeft + diagramBox + diagramRight
	for i, g := range groups {
		x := float64(i) * column
		d.text(x+diagramLeft+diagramBox/2, 18, "head", "middle", g.title)
		r.column(d, x, g.nodes)
		d.height = max(d.height, diagramTop+float64(len(g.nodes))*diagramStep+10)
	}
	d.width = float64(len(groups)) * column
	return d.svg("block", "the forward pass with the placement of every tensor")
}

type diagramGroup struct {
	title string
	nodes []*ir.Node
}

// diagramGroups lists the columns of the block diagram; empty ones are left out.
func (r *Report) diagramGroups() []diagramGroup {
	first := r.Stages[0].Blocks[0]
	last := len(r.prog.Plan.Stages) - 1
	before, block, after := diagramGroup{title: "before the blocks"}, diagramGroup{}, diagramGroup{title: "after the blocks"}
	block.title = fmt.Sprintf("a block, of %d", len(partition.Blocks(r.prog.Graph)))
	seen := false
	for _, n := range r.prog.Graph.Nodes {
		if !visible(n) || n.Op.Class() == ir.Leaf || n.Op == ir.OpSend || n.Op == ir.OpRecv {
			continue
		}
		switch {
		case n.Block() == first:
			seen = true
			block.nodes = append(block.nodes, n)
		case n.Block() != "":
		case n.Stage == 0 && !seen:
			before.nodes = append(before.nodes, n)
		case n.Stage == last && seen:
			after.nodes = append(after.nodes, n)
		}
	}
	groups := []diagramGroup{before, block, after}
	return slices.DeleteFunc(groups, func(g diagramGroup) bool { return len(g.nodes) == 0 })
}

// column draws ops below each other, with lines from their operands.
func (r *Report) column(d *drawing, x float64, nodes []*ir.Node) {
	at := map[*ir.Node]int{}
	left := x + diagramLeft
	middle := left + diagramBox/2
	right := func(n *ir.Node) float64 {
		if n.Op.Class() == ir.Comm {
			return left + diagramBox - diagramPill
		}
		return left + diagramBox
	}
	y := func(i int) float64 { return diagramTop + float64(i)*diagramStep }
	for i, n := range nodes {
		for _, a := range n.Args {
			j, drawn := at[a.Def]
			switch {
			case !drawn && (origin(a).Def.Op.Class() == ir.Leaf || n.Block() == ""):
			case !drawn && i == 0:
				d.line(middle, y(i)-10, middle, y(i), "wire")
			case !drawn: // it comes from the block before
				bend := left + diagramBox + 8 + 3*float64(min(i, 8))
				d.add(`<path d="M%.1f %.1f H%.1f V%.1f H%.1f" class="wire skip"/>`, middle, y(0)-8, bend, y(i)+16, right(n))
			case j == i-1:
				d.line(middle, y(j)+36, middle, y(i), "wire")
			default:
				bend := left + diagramBox + min(diagramRight-6, 8+3*float64(i-j))
				d.add(`<path d="M%.1f %.1f H%.1f V%.1f H%.1f" class="wire skip"/>`, right(a.Def), y(j)+20, bend, y(i)+16, right(n))
			}
		}
		at[n] = i
	}
	for i, n := range nodes {
		v := n.Results[0]
		if n.Op.Class() == ir.Comm {
			class := "pill"
			if !communicates(n.Op) {
				class += " local"
			}
			d.box(left+diagramPill, y(i), diagramBox-2*diagramPill, 36, class, n.Name)
			text, bytes, _ := strings.Cut(r.commText(n), " (")
			d.text(middle, y(i)+15, "small strong", "middle", text)
			if bytes == "" {
				bytes = "to " + r.spec(v)
			}
			d.text(middle, y(i)+29, "tiny muted", "middle", strings.TrimSuffix(bytes, ")"))
			continue
		}
		d.box(left, y(i), diagramBox, 36, "op", n.Name+" · "+v.Type.String())
		d.text(left+10, y(i)+15, "small", "start", shortName(n))
		d.text(left+10, y(i)+29, "tiny mono muted", "start", v.Type.String()+" "+r.spec(v))
		for k, w := range weightsOf(n) {
			if k == 0 {
				r.weightDrawing(d, x+4, y(i)-2, w)
				d.line(x+4+diagramSheet, y(i)+18, left, y(i)+18, "wire")
			}
		}
	}
}

// shortName is a node's name without its block.
func shortName(n *ir.Node) string {
	return strings.TrimLeft(strings.TrimPrefix(n.Name, n.Block()), "./")
}

// weightsOf lists the parameters among the operands of a node, before any collective.
func weightsOf(n *ir.Node) []*ir.Value {
	var weights []*ir.Value
	for _, a := range n.Args {
		if v := origin(a); v.Def.Op == ir.OpParam {
			weights = append(weights, v)
		}
	}
	return weights
}

// weightDrawing shows a weight as a sheet cut into the parts that ranks hold. Its first dimension goes down, the others go
// across; the part of the first rank is filled.
func (r *Report) weightDrawing(d *drawing, x, y float64, v *ir.Value) {
	const w, h = diagramSheet, 40.0
	tip := fmt.Sprintf("%s %s %s: %s", v.Name(), v.Type, r.spec(v), r.why.weight(v))
	d.box(x, y, w, h, "sheet", tip)
	down, across := 1, 1
	axes := ""
	for axis, a := range r.prog.Mesh.Axes {
		if v.Spec[axis].Kind != ir.Shard || a.Time {
			continue
		}
		axes = a.Name
		if int(v.Spec[axis].Dim) == 0 && len(v.Type.Shape) > 1 {
			down *= a.Size
		} else {
			across *= a.Size
		}
	}
	if down*across > 1 {
		d.box(x, y, w/float64(across), h/float64(down), "part "+axes, tip)
		// More than 16 lines would merge into a grey area.
		for i := 1; i < down && down <= 16; i++ {
			d.line(x, y+h*float64(i)/float64(down), x+w, y+h*float64(i)/float64(down), "cut")
		}
		for i := 1; i < across && across <= 16; i++ {
			d.line(x+w*float64(i)/float64(across), y, x+w*float64(i)/float64(across), y+h, "cut")
		}
	}
	d.text(x+w/2, y+h/2+13, "tiny mono muted", "middle", r.spec(v))
	shape := make([]string, len(v.Type.Shape))
	for i, n := range v.Type.Shape {
		shape[i] = fmt.Sprint(n)
	}
	d.text(x+w/2, y+h/2-3, "tiny mono", "middle", strings.Join(shape, "x"))
}

// ticks returns round numbers from 0 to about a maximum.
func ticks(most float64) []float64 {
	if most <= 0 {
		return []float64{0}
	}
	step := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, by := range []float64{1, 2, 5, 10} {
		if most/(step*by) <= 6 {
			step *= by
			break
		}
	}
	var all []float64
	for i := 0; float64(i)*step <= most*1.0001; i++ {
		all = append(all, float64(i)*step)
	}
	return all
}

// coordinates names a rank's coordinates on the mesh: "dp 1, tp 0".
func (r *Report) coordinates(s *codegen.Schedule) string {
	var parts []string
	for i, a := range r.prog.Mesh.Axes {
		if !a.Time && a.Size > 1 {
			parts = append(parts, fmt.Sprintf("%s %d", a.Name, s.Coord[i]))
		}
	}
	return strings.Join(parts, ", ")
}
