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
	i := strings.LastIndexByte(name, '@')
	if stage, ok := strings.CutPrefix(name[i+1:], "s"); i >= 0 && ok && strings.Trim(stage, "0123456789") == "" {
		return name[:i]
	}
	return name
}

// cutter distributes the nodes of a graph over pipeline stages. It walks the
// graph in order and rebuilds it, asking for each operand "at" the stage that
// needs it: leaves and step-level scalars are duplicated there, anything else
// is sent.
//
// What is done for every micro-batch belongs to a stage. What is there once per
// step (parameters, scalars, the update) belongs to a position of the pipeline,
// all of whose stages share it, and carries the number of its first stage.
type cutter struct {
	src, dst *ir.Graph
	plan     *Plan
	arena    ir.Arena
	// By the ID of a node or value of the source graph, and of terms after those.
	owner   []int       // stage of a node that runs on exactly one, else nowhere
	holders [][]int     // positions that use a parameter in forward or backward
	weights []*ir.Value // of each adamw
	made    []copied
	terms   map[placed]*ir.Value // what an add_n, or the cast of one, is on one position
	params  map[string]*ir.Node  // parameters by name, nil with one stage
	err     error
}

// nowhere is the owner of a node that is duplicated where it is needed.
const nowhere = -1

// copied is the copies of a value: on the first stage that has one, where nearly
// always is the only one, and on others.
type copied struct {
	stage int
	on    *ir.Value
	more  map[int]*ir.Value
}

// copyOf returns the copy of a value on a stage, nil if there is none.
func (c *cutter) copyOf(v *ir.Value, s int) *ir.Value {
	m := &c.made[v.ID]
	if m.on != nil && m.stage == s {
		return m.on
	}
	return m.more[s]
}

// copyIs enters the copy of a value on a stage.
func (c *cutter) copyIs(v *ir.Value, s int, on *ir.Value) {
	m := &c.made[v.ID]
	switch {
	case m.on == nil || m.stage == s:
		m.stage, m.on = s, on
	case m.more == nil:
		m.more = map[int]*ir.Value{s: on}
	default:
		m.more[s] = on
	}
}

// weightsOf returns the weight that each adamw updates: its first operand, or that
// of which this is the master copy, and then what it is rounded to. By the ID of the node; nil for others.
func weightsOf(g *ir.Graph) (of, rounded []*ir.Value) {
	of, rounded = make([]*ir.Value, g.IDs()), make([]*ir.Value, g.IDs())
	for _, n := range g.Nodes {
		if n.Op == ir.OpAdamW {
			of[n.ID()] = n.Args[0]
		}
	}
	for _, u := range g.Updates {
		if cast := u.New.Def; cast.Op == ir.OpCast && cast.Args[0].Def.Op == ir.OpAdamW {
			of[cast.Args[0].Def.ID()], rounded[cast.Args[0].Def.ID()] = u.Param, u.New
		}
	}
	return of, rounded
}

type placed struct {
	value *ir.Value
	stage int
}

// cut returns the graph, of these blocks, with every node assigned to a stage and sends and
// receives between them.
func cut(g *ir.Graph, p *Plan, blocks []string) (*ir.Graph, error) {
	weights, rounded := weightsOf(g)
	terms := 8 * p.PP() // that are made of sums, about
	c := &cutter{
		src: g, dst: ir.NewGraph(g.Name), plan: p,
		owner: make([]int, g.IDs(), g.IDs()+terms), holders: make([][]int, g.IDs(), g.IDs()+terms), made: make([]copied, g.IDs(), g.IDs()+terms),
		terms: map[placed]*ir.Value{}, weights: slices.Grow(weights, terms),
	}
	if len(p.Stages) > 1 {
		c.params = make(map[string]*ir.Node, len(g.Nodes)/6)
	}
	c.dst.Nodes = make([]*ir.Node, 0, len(g.Nodes)*9/8)
	c.arena.Expect(len(g.Nodes))
	c.assign(p, blocks)
	for _, n := range g.Nodes {
		switch s := c.owner[n.ID()]; {
		case n.Op == ir.OpAdamW:
			// Every stage that holds a tied parameter makes the same update.
			for _, s := range c.holders[c.weights[n.ID()].Def.ID()] {
				c.emit(n, s)
				if rounded[n.ID()] != nil { // at once: master copies that came from the host do not wait for each other on the device
					c.at(rounded[n.ID()], s, ir.Update)
				}
			}
		case s != nowhere:
			c.emit(n, s)
		}
	}
	for _, o := range g.Outputs {
		s := max(c.owner[o.Value.Def.ID()], 0) // stage 0 for what every stage can make
		c.dst.Outputs = append(c.dst.Outputs, ir.Output{Name: o.Name, Value: c.at(o.Value, s, ir.Update)})
	}
	for _, u := range g.Updates {
		for s := range p.PP() {
			if param := c.copyOf(u.Param, s); param != nil {
				c.dst.Updates = append(c.dst.Updates, ir.StateUpdate{Param: param, New: c.at(u.New, s, ir.Update)})
			}
		}
	}
	c.dst.Renumber()
	return c.dst, c.err
}

// site returns where a node is that stage s needs: on s itself, or on its
// position if the node is there once per step.
func (c *cutter) site(n *ir.Node, s int) int {
	perMicroBatch := n.Phase != ir.Update
	if n.Op.Class() == ir.Leaf {
		perMicroBatch = n.Op == ir.OpInput && followsBatch(n.Results[0])
	}
	if perMicroBatch {
		return s
	}
	position, _ := c.plan.Position(s)
	return position
}

// followsBatch reports whether the first dimension of an input is the batch's: it
// is of every input of two or more dimensions.
func followsBatch(input *ir.Value) bool { return len(input.Type.Shape) >= 2 }

// assign decides the stage of every node that has just one, and the stages that
// hold each parameter.
func (c *cutter) assign(p *Plan, blocks []string) {
	stageOfBlock := make(map[string]int, len(blocks))
	for s, st := range p.Stages {
		for _, b := range blocks[st.First:st.Last] {
			stageOfBlock[b] = s
		}
	}
	for i := range c.owner {
		c.owner[i] = nowhere
	}
	alone := c.params == nil
	forward := map[string]int{} // forward node name -> stage
	outside := 0                // stage of forward nodes outside blocks
	first := []int{0}           // where most parameters are, and all where there is nowhere else
	for _, n := range c.src.Nodes {
		if n.Op == ir.OpParam && !alone {
			c.params[n.Name] = n
		}
		if n.Op.Class() == ir.Leaf || n.Op == ir.OpFold {
			continue // duplicated where it is needed
		}
		if n.Phase == ir.Update {
			if squares := n.Op == ir.OpSumSquares || n.Op == ir.OpFixedSquares; squares && alone {
				c.owner[n.ID()] = 0
			} else if squares {
				name, _, _ := strings.Cut(n.Name, "/")
				c.owner[n.ID()] = c.holders[c.params[name].ID()][0]
			} else if s, ok := c.follows(n); ok {
				c.owner[n.ID()] = s
			}
			continue
		}
		s, inBlock := 0, alone
		if !alone {
			s, inBlock = stageOfBlock[n.Block()]
		}
		switch {
		case inBlock && n.Phase == ir.Forward:
			outside = len(p.Stages) - 1
		case inBlock:
		case n.Phase == ir.Forward:
			s = outside
		default:
			of, _, _ := strings.Cut(n.Name, "@")
			var ok bool
			if s, ok = forward[of]; !ok {
				s = outside // the forward node waits for the whole batch: the loss
			}
		}
		if n.Phase == ir.Forward && !alone {
			forward[n.Name] = s
		}
		c.owner[n.ID()] = s
		for _, a := range n.Args {
			if a.Def.Op != ir.OpParam {
				continue
			}
			holders := &c.holders[a.ID]
			switch at := c.site(a.Def, s); {
			case len(*holders) == 0 && at == 0:
				*holders = first
			case !slices.Contains(*holders, at):
				*holders = append(*holders, at)
				slices.Sort(*holders)
			}
		}
	}
}

// follows returns the position that alone makes what an update node reads, other than
// leaves: the sum of the loss, or a gradient in fixed point.
func (c *cutter) follows(n *ir.Node) (stage int, ok bool) {
	if n.Op == ir.OpAddN || n.Op == ir.OpAdamW {
		return 0, false // see addN and the holders of parameters
	}
	for _, a := range n.Args {
		if a.Def.Op.Class() == ir.Leaf {
			continue
		}
		s := c.owner[a.Def.ID()]
		owned := s != nowhere
		s, _ = c.plan.Position(s)
		if !owned || ok && s != stage {
			return 0, false
		}
		stage, ok = s, true
	}
	return stage, ok
}

// emit appends the copy of a node that runs on a stage.
func (c *cutter) emit(n *ir.Node, s int) {
	m := c.arena.Node(*n, len(n.Args), len(n.Results))
	m.Stage, m.Name = s, c.name(n, s)
	for i, a := range n.Args {
		m.Args[i] = c.at(a, s, n.Phase)
	}
	c.place(n, m, s)
}

// name returns the name of a node's copy on stage s: the plain name on its home
// stage, with a suffix elsewhere.
func (c *cutter) name(n *ir.Node, s int) string {
	if c.plan.PP() == 1 {
		return n.Name
	}
	home := c.owner[n.ID()]
	switch holders := c.holders[n.ID()]; {
	case len(holders) > 0:
		home = holders[0]
	case n.Op == ir.OpAdamW:
		home = c.holders[c.weights[n.ID()].ID][0]
	case n.Op == ir.OpCast && c.weights[n.Args[0].Def.ID()] != nil:
		home = c.holders[c.weights[n.Args[0].Def.ID()].ID][0]
	case n.Op == ir.OpParam: // optimizer state: named after its parameter
		home = s
		if i := strings.LastIndex(n.Name, "."); i >= 0 {
			if w := c.params[n.Name[:i]]; w != nil {
				home = c.holders[w.ID()][0]
			}
		}
	case home == nowhere:
		home = 0
	}
	if s == home {
		return n.Name
	}
	return fmt.Sprintf("%s@s%d", n.Name, s)
}

func (c *cutter) place(n, m *ir.Node, s int) {
	for i, r := range n.Results {
		m.Results[i] = c.arena.Value(ir.Value{Type: r.Type, Def: m, Index: i})
		c.copyIs(r, s, m.Results[i])
	}
	c.dst.Nodes = append(c.dst.Nodes, m)
}

// at returns the copy of v that stage s can read in the given phase.
func (c *cutter) at(v *ir.Value, s int, phase ir.Phase) *ir.Value {
	n := v.Def
	owner := c.owner[n.ID()]
	owned := owner != nowhere
	if !owned {
		s = c.site(n, s)
	}
	if m := c.copyOf(v, s); m != nil {
		return m
	}
	switch {
	case n.Op.Class() == ir.Leaf:
		c.emit(n, s)
	case owned:
		m := c.copyOf(v, owner)
		if m == nil {
			panic(fmt.Sprintf("BUG: stage %d needs %s before stage %d makes it", s, v.Name(), owner))
		}
		from, _ := c.plan.Position(owner)
		if to, _ := c.plan.Position(s); from == to {
			if phase != ir.Update && c.err == nil {
				c.err = planErrorf("interleave", "stage %d reads %s of stage %d, and both run on the same ranks: stages may only read from their neighbours", s, v.Name(), owner)
			}
			return m // summed over micro-batches, it belongs to the position
		}
		if phase != ir.Update {
			from = owner
		}
		c.send(v, m, from, s, phase)
	case n.Op == ir.OpAddN:
		c.addN(n, n, s)
	case n.Op == ir.OpCast && n.Args[0].Def.Op == ir.OpAddN:
		c.addN(n, n.Args[0].Def, s)
	default:
		c.emit(n, s)
	}
	return c.copyOf(v, s)
}

// send moves v from the stage or position that has it, as src.
func (c *cutter) send(v, src *ir.Value, from, to int, phase ir.Phase) {
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
	c.copyIs(v, to, got)
}

// addN sums first what each position owns, there, and then the positions' terms in
// order, so that every position gets the same bits. Two positions exchange their
// terms. Of more each adds its own to what the one before hands on, and the sum comes
// back the same way, so that all positions but the ends do the same. n is the add_n,
// or a cast of it: then each position casts its term, and what crosses is of the type
// of the result.
func (c *cutter) addN(n, sum *ir.Node, s int) {
	byStage := map[int][]*ir.Value{}
	var stages []int
	for _, a := range sum.Args {
		t := c.owner[a.Def.ID()]
		if t == nowhere {
			t = s
		}
		t, _ = c.plan.Position(t)
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
	var terms []*ir.Value
	for _, t := range stages {
		v := c.term(sum, byStage[t], t)
		if n != sum {
			v = c.termOf(n, []*ir.Value{v}, t)
		}
		terms = append(terms, v)
	}
	if positions := c.plan.PP(); positions > 2 && len(terms) == positions {
		c.chain(n, terms, s)
		return
	}
	m := &ir.Node{Op: ir.OpAddN, Phase: n.Phase, Stage: s, Pos: n.Pos, Name: c.name(n, s), Results: make([]*ir.Value, 1)}
	for _, v := range terms {
		m.Args = append(m.Args, c.at(v, s, n.Phase))
	}
	m.Sign()
	c.place(n, m, s)
}

// chain gives position s the sum of one term of each position, handed on from the
// first to the last and back.
func (c *cutter) chain(n *ir.Node, terms []*ir.Value, s int) {
	total := terms[0]
	for t, v := range terms[1:] {
		total = c.partial(n, []*ir.Value{total, v}, fmt.Sprintf("%s@sum%d", n.Name, t+1), placed{total, t + 1}, t+1)
	}
	for t := len(terms) - 2; t >= s; t-- {
		if c.copyOf(total, t) == nil {
			c.send(total, c.copyOf(total, t+1), t+1, t, n.Phase)
		}
	}
	c.copyIs(n.Results[0], s, c.copyOf(total, s))
}

// term returns the source value that stands for the sum of position t's operands of
// an add_n; it is added to the source graph's bookkeeping once.
func (c *cutter) term(n *ir.Node, args []*ir.Value, t int) *ir.Value {
	if len(args) == 1 {
		return args[0]
	}
	return c.termOf(n, args, t)
}

// termOf is what n makes of the operands that are on stage t.
func (c *cutter) termOf(n *ir.Node, args []*ir.Value, t int) *ir.Value {
	return c.partial(n, args, fmt.Sprintf("%s@stage%d", n.Name, t), placed{n.Results[0], t}, t)
}

// partial is what an op like n makes of other operands on stage t, a part of what n
// makes, once for each key.
func (c *cutter) partial(n *ir.Node, args []*ir.Value, name string, key placed, t int) *ir.Value {
	if v, ok := c.terms[key]; ok {
		return v
	}
	node := c.arena.Node(ir.Node{Op: n.Op, Attr: n.Attr, Phase: n.Phase, Pos: n.Pos, Name: name}, 0, 1)
	node.Args = args
	node.Sign()
	v := c.arena.Value(ir.Value{ID: len(c.made), Type: n.Results[0].Type, Def: node})
	node.Results[0] = v
	c.owner, c.holders = append(c.owner, t), append(c.holders, nil)
	c.weights, c.made = append(c.weights, nil), append(c.made, copied{})
	c.terms[key] = v
	c.emit(node, t)
	return v
}
