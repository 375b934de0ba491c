package explain

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// Dot writes the forward pass as a Graphviz graph: a cluster per stage, in it a cluster for the repeated block, which is
// drawn once, and a node per op with the placement of its result. Communication has a colour and its bytes.
func (r *Report) Dot(w io.Writer) error {
	d := &dot{Report: r, out: bufio.NewWriter(w), ids: map[string]string{}, drawn: map[string]bool{}}
	d.line("digraph plan {")
	d.line("  label=%q; labelloc=t; rankdir=TB; fontname=\"sans-serif\";", fmt.Sprintf("%s on %s, %s", r.Model, Count(r.RuntimeNGPUs, "rank"), r.Mesh))
	d.line("  node [shape=box, style=\"rounded,filled\", fillcolor=white, fontname=\"sans-serif\", fontsize=10];")
	d.line("  edge [fontname=\"sans-serif\", fontsize=9];")
	for _, st := range r.Stages {
		d.stage(st)
	}
	for _, n := range r.prog.Graph.Nodes {
		d.edges(n)
	}
	d.line("}")
	return d.out.Flush()
}

type dot struct {
	*Report
	out   *bufio.Writer
	ids   map[string]string // drawn node -> Graphviz id
	drawn map[string]bool   // edges that have been written, as text
}

func (d *dot) line(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// key identifies a drawn node: repeats of a block on one stage have the same key.
func key(n *ir.Node) string { return fmt.Sprintf("%d %s", n.Stage, class(n.Name)) }

// visible reports whether a node is drawn: nodes of the forward pass, except inputs, constants and optimizer state.
func visible(n *ir.Node) bool {
	attr, isParam := n.Attr.(ir.ParamAttr)
	return n.Phase == ir.Forward && n.Op != ir.OpInput && n.Op != ir.OpConst && n.Op != ir.OpAccumulate && !(isParam && attr.State)
}

func (d *dot) stage(st *Stage) {
	label := fmt.Sprintf("stage %d: %s, arena %s bytes", st.Index, rankText(st.Ranks), Grouped(st.Memory.Arena))
	d.line("  subgraph cluster_stage%d {", st.Index)
	d.line("    label=%q; style=filled; fillcolor=\"#f4f6f8\";", label)
	for _, inBlock := range []bool{false, true} {
		var lines []string
		for _, n := range d.prog.Graph.Nodes {
			if position, _ := d.prog.Plan.Position(n.Stage); position != st.Index || !visible(n) || (n.Block() != "" && n.Op != ir.OpSend && n.Op != ir.OpRecv) != inBlock || d.ids[key(n)] != "" {
				continue
			}
			id := fmt.Sprintf("n%d", len(d.ids))
			d.ids[key(n)] = id
			lines = append(lines, fmt.Sprintf("%s [%s];", id, d.attributes(n)))
		}
		indent := "    "
		if inBlock && len(lines) > 0 {
			d.line("    subgraph cluster_stage%d_block {", st.Index)
			d.line("      label=%q; style=filled; fillcolor=\"#e3e9ef\";", fmt.Sprintf("%s: x%d", st.spans(), len(st.Blocks)))
			indent = "      "
		}
		for _, l := range lines {
			d.line("%s%s", indent, l)
		}
		if inBlock && len(lines) > 0 {
			d.line("    }")
		}
	}
	d.line("  }")
}

// spans names the first and last blocks of a stage, of each chunk if there are several.
func (st *Stage) spans() string {
	chunks := st.Chunks
	if len(chunks) == 0 {
		chunks = [][]string{st.Blocks}
	}
	var all []string
	for _, blocks := range chunks {
		all = append(all, blocks[0]+" to "+blocks[len(blocks)-1])
	}
	return strings.Join(all, ", ")
}

func (d *dot) attributes(n *ir.Node) string {
	v := n.Results[0]
	label := []string{class(n.Name), v.Type.String() + " " + d.spec(v)}
	style := ""
	switch {
	case n.Op == ir.OpParam:
		style = ", shape=cylinder, style=filled, fillcolor=\"#fff3cd\""
	case communicates(n.Op):
		label = []string{d.commText(n), d.spec(n.Args[0]) + " → " + d.spec(v)}
		style = ", shape=box, style=filled, fillcolor=\"#f8d7da\""
	case n.Op.Class() == ir.Comm:
		label = []string{n.Op.String(), d.spec(v)}
	}
	return "label=" + strconv.Quote(strings.Join(label, "\n")) + style
}

// edges draws the edges to a node from its operands. An edge to the next block becomes one from the drawn block to itself.
func (d *dot) edges(n *ir.Node) {
	to := d.ids[key(n)]
	if to == "" {
		return
	}
	for _, a := range n.Args {
		from := d.ids[key(a.Def)]
		if from == "" {
			continue
		}
		style := ""
		switch {
		case n.Op == ir.OpRecv:
			style = " [color=\"#b02a37\", penwidth=2]"
		case n.Stage == a.Def.Stage && !codegen.Collective(a.Def.Op) && n.Block() != "" && a.Def.Block() != "" && n.Block() != a.Def.Block() && a.Def.Op != ir.OpRecv && n.Op != ir.OpSend:
			style = " [style=dashed, constraint=false, label=\"next block\"]"
		}
		line := fmt.Sprintf("  %s -> %s%s;", from, to, style)
		if !d.drawn[line] {
			d.drawn[line] = true
			d.line("%s", line)
		}
	}
}
