package partition

import (
	"fmt"
	"slices"
	"strings"

	"github.com/autopar/autopar/ir"
)

// BaseName strips the suffix @sN that cutting adds to leaves held by several stages: the base name of
// wte.weight@s3 is wte.weight.
func BaseName(name string) string {
	i := strings.LastIndexByte(name, '@')
	if stage, ok := strings.CutPrefix(name[i+1:], "s"); i >= 0 && ok && strings.Trim(stage, "0123456789") == "" {
		return name[:i]
	}
	return name
}

// cutter distributes the nodes of a graph over pipeline stages. It walks the graph in order and rebuilds it.
// For each operand it asks for the copy "at" the stage that needs it: leaves and scalars that exist once per
// step are duplicated there, anything else is sent.
//
// What runs for every micro-batch belongs to a stage. What exists once per step (parameters, scalars, the
// update) belongs to a position of the pipeline. All stages that the position runs share it, and it carries the
// number of the first of them.
type cutter struct {
	src, dst *ir.Graph
	plan     *Plan
	arena    ir.Arena
	// Indexed by the ID of a node or value of the source graph; terms that are added get higher IDs.
	owner   []int       // the stage of a node that runs on exactly one, else nowhere
	holders [][]int     // for a parameter: the positions that use it in the forward or backward pass
	weights []*ir.Value // for an adamw: the weight that it updates
	made    []copied
	terms   map[placed]*ir.Value // what an add_n, or the cast of one, is on one position
	params  map[string]*ir.Node  // parameters by name; nil with a single stage
	err     error
}

// nowhere is the owner of a node that is duplicated wherever it is needed.
const nowhere = -1

// copied holds the copies of a value by stage: the first one inline, because nearly always it is the only one,
// the others in a map.
type copied struct {
	stage int
	on    *ir.Value
	more  map[int]*ir.Value
}

// copyOf returns the copy of a value on a stage, or nil.
func (c *cutter) copyOf(v *ir.Value, s int) *ir.Value {
	m := &c.made[v.ID]
	if m.on != nil && m.stage == s {
		return m.on
	}
	return m.more[s]
}

// copyIs records the copy of a value on a stage.
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

// weightsOf returns, by the ID of each adamw node, the weight that it updates. With mixed precision the node's
// first operand is the master copy of that weight, and rounded is its new value cast to the weight's type.
// Otherwise the weight is the first operand, and rounded is nil. Both are nil for other nodes.
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

// cut returns the graph with every node assigned to a stage, and with sends and receives between stages. blocks
// are the repeated blocks of the graph.
func cut(g *ir.Graph, p *Plan, blocks []string) (*ir.Graph, error) {
	weights, rounded := weightsOf(g)
	terms := 8 * p.PP() // estimate of the number of added terms
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
			// Every position that holds a tied parameter makes the same update.
			for _, s := range c.holders[c.weights[n.ID()].Def.ID()] {
				c.emit(n, s)
				if rounded[n.ID()] != nil { // right away: otherwise all master copies fetched from the host would be on the device at the same time
					c.at(rounded[n.ID()], s, ir.Update)
				}
			}
		case s != nowhere:
			c.emit(n, s)
		}
	}
	for _, o := range g.Outputs {
		s := max(c.owner[o.Value.Def.ID()], 0) // 0: the value can be made on every stage
		c.dst.Outputs = append(c.dst.Outputs, ir.Output{Name: o.Name, Value: c.at(o.Value, s, ir.Update)})
	}
	for _, u := range g.Updates {
		for s := range p.PP() {
			if param := c.copyOf(u.Param, s); param != nil {
				c.dst.Updates = append(c.dst.Updates, ir.StateUpdate{Param: param, New: c.at(u.New, s, ir.Update)})
			}
		}
	}
	sendEarly(c.dst)
	c.dst.Renumber()
	return c.dst, c.err
}

// sendEarly lets a stage send what another one needs for the update as soon as it has made it. Two stages that exchange
// gradients of a tied table thus send at the same time, not one after the other.
func sendEarly(g *ir.Graph) {
	sent := func(n *ir.Node) bool { return n.Op == ir.OpSend && n.Phase == ir.Update }
	early := map[*ir.Node][]*ir.Node{} // by the node after which they come: nil where the passes have made it, before the update
	for _, n := range g.Nodes {
		if sent(n) {
			of := n.Args[0].Def
			if of.Phase != ir.Update {
				of = nil
			}
			early[of] = append(early[of], n)
		}
	}
	if len(early) == 0 {
		return
	}
	nodes := make([]*ir.Node, 0, len(g.Nodes))
	for _, n := range g.Nodes {
		if sent(n) {
			continue
		}
		if n.Phase == ir.Update && n.Op.Class() != ir.Leaf {
			nodes = append(nodes, early[nil]...)
			delete(early, nil)
		}
		nodes = append(append(nodes, n), early[n]...)
	}
	g.Nodes = append(nodes, early[nil]...)
}

// site returns the stage that carries the copy of a node needed by stage s: s itself, or its position if the
// node exists once per step.
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

// followsBatch reports whether the first dimension of an input is the batch, which holds for all inputs of two
// or more dimensions.
func followsBatch(input *ir.Value) bool { return len(input.Type.Shape) >= 2 }

// assign sets the owner of every node that runs on just one stage, and the holders of each parameter.
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
	forward := map[string]int{} // by name of a forward node: its stage
	outside := 0                // stage of forward nodes outside of blocks: the first, and after the blocks the last
	first := []int{0}           // shared by all parameters that only the first position holds: most of them, and with one stage all
	for _, n := range c.src.Nodes {
		if n.Op == ir.OpParam && !alone {
			c.params[n.Name] = n
		}
		if n.Op.Class() == ir.Leaf || n.Op == ir.OpFold {
			continue // duplicated wherever it is needed
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
				s = outside // the forward node runs after the whole batch: the loss
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

// follows returns the position that alone makes the non-leaf operands of an update node, such as the sum of the
// loss, or a gradient in fixed point.
func (c *cutter) follows(n *ir.Node) (stage int, ok bool) {
	if n.Op == ir.OpAddN || n.Op == ir.OpAdamW {
		return 0, false // several positions may run these: see addN and holders
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

// name returns the name of a node's copy on stage s: the plain name on its home stage, with the suffix @sN
// elsewhere.
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
	case n.Op == ir.OpParam: // optimizer state, which has the home of its parameter
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

// at returns the copy of v that stage s reads in a phase, and makes it if there is none yet.
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
			return m // it is summed over micro-batches, so it belongs to the position
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

// send sends the copy src of v from one stage or position to another.
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

// addN makes a sum whose terms are on several positions. Each position first sums its own terms; then the
// positions' sums are added in order, so that every position gets the same bits. Two positions exchange their
// sums. With more, each position adds its own to the running total from the position before, and the result is
// sent back the same way, so that all inner positions run the same instructions.
//
// n is the add_n (sum) itself, or a cast of it. In that case each position casts its own sum, and messages have
// the type of the result.
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

// chain gives position s the sum of one term of each position, which is added up from the first position to the
// last and sent back.
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

// term returns the source value for the sum of the operands of an add_n that are on position t.
func (c *cutter) term(n *ir.Node, args []*ir.Value, t int) *ir.Value {
	if len(args) == 1 {
		return args[0]
	}
	return c.termOf(n, args, t)
}

// termOf returns the source value for what n makes of operands on stage t.
func (c *cutter) termOf(n *ir.Node, args []*ir.Value, t int) *ir.Value {
	return c.partial(n, args, fmt.Sprintf("%s@stage%d", n.Name, t), placed{n.Results[0], t}, t)
}

// partial returns the source value for an op like n applied to other operands on stage t: a part of the result
// of n. It is made once for each key, and emitted.
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
