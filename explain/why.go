package explain

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// whyShown bounds the tensors and ops that one question explains.
const whyShown = 12

// Why explains a tensor or op: where it lies on every rank, the rule of its signature on every mesh axis, what each
// operand needs, the collectives around it, and what the other rules would have moved.
//
// name is a structural name (h.3.attn.c_attn/matmul), a name with * for the repeated block, or a regular expression. If
// blocks have the same explanation, it is given for the first of them.
//
// It fails if no tensor or op is named so.
func (r *Report) Why(w io.Writer, name string) error {
	nodes, err := r.find(name)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	groups := r.alike(nodes)
	for i, g := range groups {
		if i == whyShown {
			fmt.Fprintf(out, "\n… and %d more; a narrower expression shows them\n", len(groups)-whyShown)
			break
		}
		if i > 0 {
			fmt.Fprintln(out)
		}
		r.whyNode(out, g.node, g.also)
	}
	return out.Flush()
}

// likeNodes are nodes with the same explanation.
type likeNodes struct {
	node *ir.Node // the first, which stands for all
	also []string // names of the others
}

// alike groups nodes by explanation: those that differ in their block alone and are placed alike.
func (r *Report) alike(nodes []*ir.Node) []*likeNodes {
	var groups []*likeNodes
	at := map[string]*likeNodes{}
	for _, n := range nodes {
		key := fmt.Sprintf("%s %d %s", class(n.Name), n.Stage, r.placementText(n))
		if g, ok := at[key]; ok {
			g.also = append(g.also, n.Name)
			continue
		}
		at[key] = &likeNodes{node: n}
		groups = append(groups, at[key])
	}
	return groups
}

// find returns the nodes that a name means: see [Report.Why]. The name of a value finds its node: results after the first
// are named by their node, "#" and their number. Nodes made from such a result may have a "#" in their own name, so the
// whole name is tried first.
func (r *Report) find(name string) ([]*ir.Node, error) {
	graph := r.prog.Graph
	if found := r.named(name); len(found) > 0 {
		return found, nil
	}
	if i := strings.LastIndex(name, "#"); i >= 0 {
		if found := r.named(name[:i]); len(found) > 0 {
			return found, nil
		}
	}
	re, err := regexp.Compile(name)
	if err != nil {
		return nil, fmt.Errorf("explain: nothing is named %q, and as a regular expression: %w", name, err)
	}
	var found []*ir.Node
	for _, n := range graph.Nodes {
		if re.MatchString(n.Name) {
			found = append(found, n)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("explain: no tensor or op is named %q or matches it; names look like %s", name, graph.Nodes[0].Name)
	}
	return found, nil
}

// named returns the nodes with a name, or if there is none, those whose class it is.
func (r *Report) named(name string) []*ir.Node {
	var exact, inClass []*ir.Node
	for _, n := range r.prog.Graph.Nodes {
		switch {
		case n.Name == name || partition.BaseName(n.Name) == name:
			exact = append(exact, n)
		case class(n.Name) == name:
			inClass = append(inClass, n)
		}
	}
	if len(exact) > 0 {
		return exact
	}
	return inClass
}

// placementText lists the specs of a node's operands and results. Nodes that are placed differently have different texts.
func (r *Report) placementText(n *ir.Node) string {
	var parts []string
	for _, v := range slices.Concat(n.Args, n.Results) {
		parts = append(parts, r.spec(v))
	}
	return strings.Join(parts, " ")
}

func (r *Report) spec(v *ir.Value) string { return v.Spec.Format(r.prog.Mesh, len(v.Type.Shape)) }

func (r *Report) whyNode(out io.Writer, n *ir.Node, also []string) {
	fmt.Fprintf(out, "%s\n", n.Name)
	if len(also) > 0 {
		fmt.Fprintf(out, "  and alike    %s\n", shorten(also))
	}
	where := fmt.Sprintf("%s in %s", n.Op, stageText(r.prog.Plan, n, n.Stage))
	if n.Op.Class() != ir.Leaf {
		where += ", phase " + n.Phase.String()
	}
	if n.Pos != "" {
		where += ", from " + n.Pos
	}
	fmt.Fprintf(out, "  op           %s\n", where)
	switch n.Op.Class() {
	case ir.Leaf:
		r.whyLeaf(out, n.Results[0])
	case ir.Comm:
		r.whyComm(out, n)
	default:
		r.whyCompute(out, n)
	}
	for _, v := range n.Results {
		r.held(out, v)
	}
}

// stageText names a stage of the plan by its position in the pipeline, as reports number stages, and by its chunk if there
// are several. n is a node on the stage, or one that exchanges with it.
func stageText(p *partition.Plan, n *ir.Node, stage int) string {
	position, chunk := p.Position(stage)
	if p.Chunks() == 1 || n.Phase == ir.Update || n.Op.Class() == ir.Leaf { // the update and leaves belong to all chunks
		return fmt.Sprintf("stage %d", position)
	}
	return fmt.Sprintf("chunk %d of stage %d", chunk, position)
}

// peerText names the stage at the other end of a transfer.
func peerText(p *partition.Plan, n *ir.Node) string {
	return stageText(p, n, n.Attr.(ir.P2PAttr).Stage)
}

func shorten(names []string) string {
	if len(names) <= 2 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s … %s (%d)", names[0], names[len(names)-1], len(names))
}

func (r *Report) whyLeaf(out io.Writer, v *ir.Value) {
	attr, isParam := v.Def.Attr.(ir.ParamAttr)
	fmt.Fprintf(out, "  placement    %s %s\n  reason       %s\n", v.Type, r.spec(v), r.why.leaf(v))
	if attr.Frozen {
		fmt.Fprintln(out, "  trained      no, it is frozen")
	}
	for _, n := range r.why.readers[v] {
		fmt.Fprintf(out, "  read by      %s (%s, %s)\n", n.Name, n.Op, n.Phase)
	}
	if !isParam || attr.State {
		return
	}
	for _, n := range r.prog.Graph.Nodes {
		if n.Stage == v.Def.Stage && codegen.Collective(n.Op) && r.why.owner[n.Args[0]] == v {
			fmt.Fprintf(out, "  gradient     %s\n", r.commText(n))
		}
	}
	for _, n := range r.why.readers[v] {
		if n.Phase == ir.Forward && n.Op.Class() == ir.Compute {
			r.alternatives(out, n)
		}
	}
}

func (r *Report) whyComm(out io.Writer, n *ir.Node) {
	from, to := n.Args[0], n.Results[0]
	fmt.Fprintf(out, "  moves        %s %s -> %s\n", to.Type, r.spec(from), r.spec(to))
	if communicates(n.Op) {
		fmt.Fprintf(out, "  bytes        %s\n", r.commText(n))
	}
	if made := from.Def; n.Op != ir.OpRecv {
		fmt.Fprintf(out, "  made by      %s (%s), which leaves it %s\n", made.Name, made.Op, r.spec(from))
	}
	for _, m := range r.why.readers[to] {
		fmt.Fprintf(out, "  needed by    %s (%s, %s)\n", m.Name, m.Op, m.Phase)
	}
}

func (r *Report) whyCompute(out io.Writer, n *ir.Node) {
	mesh := r.prog.Mesh
	sig := ir.SignatureOf(n)
	fmt.Fprintf(out, "  signature    %s\n", signatureText(sig))
	if by := r.why.placedBy(n.Results[0]); by != "" {
		fmt.Fprintf(out, "  placed       %s\n", by)
	}
	for _, rule := range rulesOf(mesh, n, sig) {
		fmt.Fprintf(out, "  rule         %s: %s\n", mesh.Axes[rule.axis].Name, rule.describe(mesh, n, sig))
	}
	for i, a := range n.Args {
		was := origin(a)
		text := fmt.Sprintf("%s %s needs %s", was.Name(), a.Type, r.spec(a))
		if was == a {
			text += ", as it lies"
		} else {
			text += ", lies " + r.spec(was) + ": "
			var steps []string
			for v := a; v != was; v = v.Def.Args[0] {
				steps = append(steps, r.commText(v.Def))
			}
			slices.Reverse(steps)
			text += strings.Join(steps, ", then ")
		}
		fmt.Fprintf(out, "  operand %-4d %s\n", i, text)
	}
	for _, v := range n.Results {
		fmt.Fprintf(out, "  result %-5d %s %s\n", v.Index, v.Type, r.spec(v))
		for _, m := range r.why.readers[v] {
			if m.Op.Class() == ir.Comm {
				fmt.Fprintf(out, "    then       %s -> %s\n", r.commText(m), r.spec(m.Results[0]))
			}
		}
	}
	r.alternatives(out, n)
}

// commText describes a node that communicates: its op, the size of its group, and the bytes of one run on the first rank
// of the stage.
func (r *Report) commText(n *ir.Node) string {
	s := r.firstRank(n.Stage)
	tasks := r.microBatches(s, n)
	each := r.prog.CommBytes(s, &codegen.Instr{Node: n}, tasks[0])
	text := n.Op.String()
	switch attr := n.Attr.(type) {
	case ir.CommAttr:
		text += " over " + attr.Axis
		if codegen.Collective(n.Op) {
			text += fmt.Sprintf(" of %d", r.prog.Mesh.Size(attr.Axis))
		}
	case ir.P2PAttr:
		text += " " + peerText(r.prog.Plan, n)
	}
	switch n.Op {
	case ir.OpFetch:
		text += " from host memory"
	case ir.OpStash:
		text += " to host memory"
	}
	if each > 0 {
		text += fmt.Sprintf(" (%s bytes, %d per step)", Grouped(each), len(tasks))
	}
	return text
}

// microBatches returns the tasks of a rank that run a node.
func (r *Report) microBatches(s *codegen.Schedule, n *ir.Node) []codegen.Task {
	_, chunk := r.prog.Plan.Position(n.Stage)
	return tasksOf(s, n.Phase, chunk)
}

func (r *Report) firstRank(stage int) *codegen.Schedule {
	return &r.prog.Schedules[r.prog.Plan.WorldRank(stage, 0)]
}

// heldShown bounds the ranks that are listed one by one.
const heldShown = 16

// held lists the part of a value that each rank of its stage holds.
func (r *Report) held(out io.Writer, v *ir.Value) {
	fmt.Fprintf(out, "  held as      %s", v.Name())
	mb := r.prog.Mesh.Axis(partition.AxisMB)
	if v.Spec[mb].Kind == ir.Shard {
		fmt.Fprint(out, ", in the first micro-batch")
	}
	fmt.Fprintln(out)
	position, _ := r.prog.Plan.Position(v.Def.Stage)
	ranks := r.Stages[position].Ranks
	for i, rank := range ranks {
		if i == heldShown {
			fmt.Fprintf(out, "    … and so on to rank %d\n", ranks[len(ranks)-1])
			break
		}
		s := &r.prog.Schedules[rank]
		slab := r.prog.Slab(v, s.Coord)
		fmt.Fprintf(out, "    rank %-4d %s %s bytes%s\n", rank, slabText(slab), Grouped(slab.Elems()*v.Type.DType.Size()), r.coordText(s))
	}
}

func (r *Report) coordText(s *codegen.Schedule) string {
	text := ""
	for i, a := range r.prog.Mesh.Axes {
		if !a.Time && a.Size > 1 {
			text += fmt.Sprintf("  %s=%d", a.Name, s.Coord[i])
		}
	}
	return text
}

// slabText prints a slab as ranges of the dimensions of the global value: [0:33,0:24].
func slabText(s ir.Slab) string {
	parts := make([]string, len(s.Global))
	for d := range parts {
		parts[d] = fmt.Sprintf("%d:%d", s.Offset[d], s.Offset[d]+s.Local[d])
	}
	return "[" + strings.Join(parts, ",") + "]"
}
