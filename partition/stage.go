package partition

import (
	"fmt"
	"slices"
	"strings"

	"github.com/autopar/autopar/ir"
)

// BaseName strips the stage suffix that cutting adds to leaves which several
// stages hold: the base name of wte.weight@s3 is wte.weight.
func BaseName(name string) string {
	if i := strings.LastIndex(name, "@s"); i >= 0 && strings.Trim(name[i+2:], "0123456789") == "" {
		return name[:i]
	}
	return name
}

// cutter distributes the nodes of a graph over pipeline stages. It walks the
// graph in order and rebuilds it, asking for each operand "at" the stage that
// needs it: leaves and step-level scalars are duplicated there, anything else
// is sent.
type cutter struct {
	src, dst *ir.Graph
	owner    map[*ir.Node]int   // stage of a node that runs on exactly one
	holders  map[*ir.Node][]int // stages that use a parameter in forward or backward
	made     map[placed]*ir.Value
	terms    map[placed]*ir.Value // an add_n's operands on one stage, summed
}

type placed struct {
	value *ir.Value
	stage int
}

// cut returns the graph with every node assigned to a stage and sends and
// receives between them.
func cut(g *ir.Graph, p *Plan) *ir.Graph {
	c := &cutter{
		src: g, dst: ir.NewGraph(g.Name),
		owner: map[*ir.Node]int{}, holders: map[*ir.Node][]int{}, made: map[placed]*ir.Value{},
		terms: map[placed]*ir.Value{},
	}
	c.assign(p)
	for _, n := range g.Nodes {
		switch s, owned := c.owner[n]; {
		case n.Op == ir.OpAdamW:
			// Every stage that holds a tied parameter makes the same update.
			for _, s := range c.holders[n.Args[0].Def] {
				c.emit(n, s)
			}
		case owned:
			c.emit(n, s)
		}
	}
	for _, o := range g.Outputs {
		s := c.owner[o.Value.Def] // stage 0 for what every stage can make
		c.dst.Outputs = append(c.dst.Outputs, ir.Output{Name: o.Name, Value: c.at(o.Value, s, ir.Update)})
	}
	for _, u := range g.Updates {
		for s := range p.PP() {
			if param, ok := c.made[placed{u.Param, s}]; ok {
				c.dst.Updates = append(c.dst.Updates, ir.StateUpdate{Param: param, New: c.at(u.New, s, ir.Update)})
			}
		}
	}
	c.dst.Renumber()
	return c.dst
}

// assign decides the stage of every node that has just one, and the stages that
// hold each parameter.
func (c *cutter) assign(p *Plan) {
	blocks := Blocks(c.src)
	stageOfBlock := map[string]int{}
	for s, st := range p.Stages {
		for _, b := range blocks[st.First:st.Last] {
			stageOfBlock[b] = s
		}
	}
	forward := map[string]int{}     // forward node name -> stage
	params := map[string]*ir.Node{} // parameter name -> leaf
	outside := 0                    // stage of forward nodes outside blocks
	for _, n := range c.src.Nodes {
		if n.Op == ir.OpParam {
			params[n.Name] = n
		}
		if n.Op.Class() == ir.Leaf {
			continue
		}
		if n.Phase == ir.Update {
			if n.Op == ir.OpSumSquares || n.Op == ir.OpFixedSquares {
				name, _, _ := strings.Cut(n.Name, "/")
				c.owner[n] = c.holders[params[name]][0]
			} else if s, ok := c.follows(n); ok {
				c.owner[n] = s
			}
			continue
		}
		s, inBlock := stageOfBlock[n.Block()]
		of, _, _ := strings.Cut(n.Name, "@")
		switch {
		case inBlock && n.Phase == ir.Forward:
			outside = p.PP() - 1
		case inBlock:
		case n.Phase == ir.Forward:
			s = outside
		default:
			var ok bool
			if s, ok = forward[of]; !ok {
				s = outside // the forward node waits for the whole batch: the loss
			}
		}
		if n.Phase == ir.Forward {
			forward[n.Name] = s
		}
		c.owner[n] = s
		for _, a := range n.Args {
			if d := a.Def; d.Op == ir.OpParam && !slices.Contains(c.holders[d], s) {
				c.holders[d] = append(c.holders[d], s)
				slices.Sort(c.holders[d])
			}
		}
	}
}

// follows returns the stage that alone makes what an update node reads, other than
// leaves: the sum of the loss, or a gradient in fixed point.
func (c *cutter) follows(n *ir.Node) (stage int, ok bool) {
	if n.Op == ir.OpAddN || n.Op == ir.OpAdamW {
		return 0, false // see addN and the holders of parameters
	}
	for _, a := range n.Args {
		if a.Def.Op.Class() == ir.Leaf {
			continue
		}
		s, owned := c.owner[a.Def]
		if !owned || ok && s != stage {
			return 0, false
		}
		stage, ok = s, true
	}
	return stage, ok
}

// emit appends the copy of a node that runs on a stage.
func (c *cutter) emit(n *ir.Node, s int) *ir.Node {
	m := n.Copy()
	m.Stage, m.Name = s, c.name(n, s)
	for _, a := range n.Args {
		m.Args = append(m.Args, c.at(a, s, n.Phase))
	}
	c.place(n, m, s)
	return m
}

// name returns the name of a node's copy on stage s: the plain name on its home
// stage, with a suffix elsewhere.
func (c *cutter) name(n *ir.Node, s int) string {
	home, owned := c.owner[n]
	switch holders := c.holders[n]; {
	case len(holders) > 0:
		home = holders[0]
	case n.Op == ir.OpAdamW:
		home = c.holders[n.Args[0].Def][0]
	case n.Op == ir.OpParam: // optimizer state: named after its parameter
		home = s
		if i := strings.LastIndex(n.Name, "."); i >= 0 {
			if w := c.src.Find(n.Name[:i]); w != nil {
				home = c.holders[w][0]
			}
		}
	case !owned:
		home = 0
	}
	if s == home {
		return n.Name
	}
	return fmt.Sprintf("%s@s%d", n.Name, s)
}

func (c *cutter) place(n, m *ir.Node, s int) {
	for i, r := range n.Results {
		v := &ir.Value{Type: r.Type, Def: m, Index: i}
		m.Results = append(m.Results, v)
		c.made[placed{r, s}] = v
	}
	c.dst.Nodes = append(c.dst.Nodes, m)
}

// at returns the copy of v that stage s can read in the given phase.
func (c *cutter) at(v *ir.Value, s int, phase ir.Phase) *ir.Value {
	if m, ok := c.made[placed{v, s}]; ok {
		return m
	}
	n := v.Def
	owner, owned := c.owner[n]
	switch {
	case n.Op.Class() == ir.Leaf:
		c.emit(n, s)
	case owned:
		if _, ok := c.made[placed{v, owner}]; !ok {
			panic(fmt.Sprintf("BUG: stage %d needs %s before stage %d makes it", s, v.Name(), owner))
		}
		c.send(v, owner, s, phase)
	case n.Op == ir.OpAddN:
		c.addN(n, s)
	default:
		c.emit(n, s)
	}
	return c.made[placed{v, s}]
}

// send moves v from the stage that owns it.
func (c *cutter) send(v *ir.Value, from, to int, phase ir.Phase) {
	src := c.made[placed{v, from}]
	send := &ir.Node{
		Op: ir.OpSend, Attr: ir.P2PAttr{Stage: to}, Args: []*ir.Value{src},
		Name: fmt.Sprintf("%s@send%d", v.Name(), to), Phase: phase, Stage: from,
	}
	wire := &ir.Value{Type: v.Type, Def: send}
	send.Results = []*ir.Value{wire}
	recv := &ir.Node{
		Op: ir.OpRecv, Attr: ir.P2PAttr{Stage: from}, Args: []*ir.Value{wire},
		Name: fmt.Sprintf("%s@recv%d", v.Name(), to), Phase: phase, Stage: to,
	}
	got := &ir.Value{Type: v.Type, Def: recv}
	recv.Results = []*ir.Value{got}
	c.dst.Nodes = append(c.dst.Nodes, send, recv)
	c.made[placed{v, to}] = got
}

// addN sums first what each stage owns, there, and then the stages' terms in
// stage order, so that every stage gets the same bits and one value crosses
// each boundary.
func (c *cutter) addN(n *ir.Node, s int) {
	byStage := map[int][]*ir.Value{}
	var stages []int
	for _, a := range n.Args {
		t, owned := c.owner[a.Def]
		if !owned {
			t = s
		}
		if !slices.Contains(stages, t) {
			stages = append(stages, t)
		}
		byStage[t] = append(byStage[t], a)
	}
	slices.Sort(stages)
	if len(stages) == 1 && stages[0] == s {
		c.emit(n, s)
		return
	}
	m := &ir.Node{Op: n.Op, Phase: n.Phase, Stage: s, Pos: n.Pos, Name: c.name(n, s)}
	for _, t := range stages {
		m.Args = append(m.Args, c.at(c.term(n, byStage[t], t), s, n.Phase))
	}
	c.place(n, m, s)
}

// term returns the source value that stands for the sum of stage t's operands of
// an add_n; it is added to the source graph's bookkeeping once.
func (c *cutter) term(n *ir.Node, args []*ir.Value, t int) *ir.Value {
	if len(args) == 1 {
		return args[0]
	}
	key := placed{n.Results[0], t}
	if v, ok := c.terms[key]; ok {
		return v
	}
	node := &ir.Node{Op: n.Op, Args: args, Phase: n.Phase, Pos: n.Pos, Name: fmt.Sprintf("%s@stage%d", n.Name, t)}
	v := &ir.Value{Type: n.Results[0].Type, Def: node}
	node.Results = []*ir.Value{v}
	c.owner[node] = t
	c.terms[key] = v
	c.emit(node, t)
	return v
}
