package ir

import (
	"fmt"
	"slices"
)

// Value is one result of one node.
type Value struct {
	ID    int // number in the graph, printed as %ID; below Graph.IDs
	Type  Type
	Def   *Node
	Index int       // index of the result among those of Def
	Spec  ShardSpec // meaningful once the graph is partitioned
}

// Name returns the structural name: that of the defining node, with #i for
// result i > 0.
func (v *Value) Name() string {
	if v.Index == 0 {
		return v.Def.Name
	}
	return fmt.Sprintf("%s#%d", v.Def.Name, v.Index)
}

// OnHost reports whether the value is in the host memory of its rank instead of device memory.
func (v *Value) OnHost() bool {
	attr, isParam := v.Def.Attr.(ParamAttr)
	return isParam && attr.Host || v.Def.Op == OpStash
}

// Node is one operation.
type Node struct {
	Op      Op
	Phase   Phase
	Attr    Attr
	Args    []*Value
	Results []*Value
	// Name is structural and unique in the graph: module path, '/', op and occurrence, as in
	// h.3.attn.c_attn/matmul. Gradients append @d and the name of what they are a gradient of. Parameters and
	// inputs have the bare path.
	Name  string
	Stage int    // pipeline stage, once partitioned
	Pos   string // source position file:line of the user's code, if any

	sig *Signature // cached for nodes made by Add, and their copies
}

// ID returns a number that identifies the node in its graph: the ID of its first result, which every node has.
func (n *Node) ID() int { return n.Results[0].ID }

// Copy returns a node with the same op, attributes and names but without operands and results, to be filled in
// with values of the same types.
func (n *Node) Copy() *Node {
	m := *n
	m.Args, m.Results = nil, nil
	return &m
}

// Block returns the repeated block that the node belongs to, h.3 for
// h.3.attn.c_attn/matmul: the path up to its first all-digit element, or "".
func (n *Node) Block() string { return BlockOf(n.Name) }

// BlockOf returns the block part of a structural name. See [Node.Block].
func BlockOf(name string) string {
	digits := true // whether the path element so far has only digits
	for i, start := 0, 0; i < len(name); i++ {
		switch c := name[i]; {
		case c == '.' || c == '/':
			if digits && i > start {
				return name[:i]
			}
			start, digits = i+1, true
		case c < '0' || c > '9':
			digits = false
		}
		if i == len(name)-1 && digits && i >= start {
			return name
		}
	}
	return ""
}

// Output is a value the caller may read after a step.
type Output struct {
	Name  string
	Value *Value
}

// StateUpdate says that New is the value of Param in the next step.
type StateUpdate struct{ Param, New *Value }

// Graph is a straight-line program: every node's operands are defined before it.
type Graph struct {
	Name    string
	Mesh    Mesh // empty until partitioned
	Nodes   []*Node
	Outputs []Output
	Updates []StateUpdate

	nextID int
	names  map[string]bool
	arena  Arena
	sigs   *resolver // shared by clones
}

// NewGraph returns an empty graph.
func NewGraph(name string) *Graph {
	return &Graph{Name: name, sigs: new(resolver)}
}

// Expect reserves space for that many nodes of a training step.
func (g *Graph) Expect(nodes int) {
	g.Nodes = slices.Grow(g.Nodes, nodes)
	g.arena.Expect(nodes)
}

// Leaf appends a parameter, input or constant of the given type.
func (g *Graph) Leaf(op Op, name string, t Type, attr Attr) (*Value, error) {
	if op.Class() != Leaf {
		return nil, fmt.Errorf("ir: %s is not a leaf", op)
	}
	for i, s := range t.Shape {
		if s < 1 {
			return nil, fmt.Errorf("ir: %s %q: dimension %d is %d, want at least 1", op, name, i, s)
		}
	}
	n := g.arena.Node(Node{Op: op, Attr: attr, Name: name}, 0, 1)
	g.insert(n, []Type{t})
	return n.Results[0], nil
}

// Add appends a node, inferring the types of its results. A name already taken
// gets an occurrence suffix (_1, _2, ...).
func (g *Graph) Add(op Op, attr Attr, name string, phase Phase, args ...*Value) (*Node, error) {
	like, err := g.sigs.resolve(op, attr, args)
	if err != nil {
		return nil, fmt.Errorf("%w (at %s)", err, name)
	}
	n := g.arena.Node(Node{Op: op, Attr: attr, Name: name, Phase: phase, sig: like.sig}, len(args), len(like.results))
	copy(n.Args, args)
	g.insert(n, like.results)
	return n, nil
}

// AddLike appends a copy of a node with other operands, of the same types. An add_n may get another number of
// them. The name must not be taken.
func (g *Graph) AddLike(n *Node, args ...*Value) *Node {
	m := g.arena.Node(*n, len(args), len(n.Results))
	copy(m.Args, args)
	if len(args) != len(n.Args) {
		like, err := g.sigs.resolve(n.Op, n.Attr, args)
		if err != nil {
			panic("BUG: " + n.Name + " with other operands: " + err.Error())
		}
		m.sig = like.sig
	}
	for i, r := range n.Results {
		v := g.arena.Value(*r)
		v.ID, v.Def = g.nextID, m
		g.nextID++
		m.Results[i] = v
	}
	g.Nodes = append(g.Nodes, m)
	return m
}

func (g *Graph) insert(n *Node, results []Type) {
	if g.names == nil {
		g.names = map[string]bool{}
		for _, m := range g.Nodes {
			g.names[m.Name] = true
		}
	}
	base := n.Name
	for i := 1; g.names[n.Name]; i++ {
		n.Name = fmt.Sprintf("%s_%d", base, i)
	}
	g.names[n.Name] = true
	for i, t := range results {
		n.Results[i] = g.arena.Value(Value{ID: g.nextID, Type: t, Def: n, Index: i})
		g.nextID++
	}
	g.Nodes = append(g.Nodes, n)
}

// Find returns the node of the given name, or nil.
func (g *Graph) Find(name string) *Node {
	for _, n := range g.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Params returns the parameter values (weights and state) in graph order.
func (g *Graph) Params() []*Value { return g.leaves(OpParam) }

// Inputs returns the input values in graph order.
func (g *Graph) Inputs() []*Value { return g.leaves(OpInput) }

func (g *Graph) leaves(op Op) []*Value {
	var out []*Value
	for _, n := range g.Nodes {
		if n.Op == op {
			out = append(out, n.Results[0])
		}
	}
	return out
}

// Output returns the named output, or nil.
func (g *Graph) Output(name string) *Value {
	for _, o := range g.Outputs {
		if o.Name == name {
			return o.Value
		}
	}
	return nil
}

// SignatureOf returns the signature of a compute or communication node. It is
// shared: read only.
func SignatureOf(n *Node) *Signature {
	// A rewrite keeps types, but may change the number of operands of an add_n.
	if n.sig != nil && len(n.sig.Args) == len(n.Args) {
		return n.sig
	}
	types := make([]Type, len(n.Args))
	for i, a := range n.Args {
		types[i] = a.Type
	}
	s, err := Resolve(n.Op, n.Attr, types)
	if err != nil {
		panic("BUG: node was built without its signature: " + err.Error())
	}
	return s
}

// Sign caches the signature of a node that was built by hand. Otherwise [SignatureOf] resolves it again on
// every call.
func (n *Node) Sign() { n.sig = SignatureOf(n) }

// Infer caches the signature of a node that was built by hand for the graph, as [Node.Sign] does, and makes its
// results from its operands. It returns the errors of [Resolve].
func (g *Graph) Infer(n *Node) error {
	found, err := g.sigs.resolve(n.Op, n.Attr, n.Args)
	if err != nil {
		return err
	}
	n.sig, n.Results = found.sig, g.arena.list(len(found.results))
	for i, t := range found.results {
		n.Results[i] = g.arena.Value(Value{Type: t, Def: n, Index: i})
	}
	return nil
}

// Retype gives the results of a node the types, and the node the signature, that follow from its operands and attributes,
// which have changed. It returns the errors of [Resolve].
func (g *Graph) Retype(n *Node) error {
	found, err := g.sigs.resolve(n.Op, n.Attr, n.Args)
	if err != nil {
		return err
	}
	n.sig = found.sig
	for i, t := range found.results {
		n.Results[i].Type = t
	}
	return nil
}

// IDs returns a bound that the IDs of all values are below, for tables indexed by ID.
func (g *Graph) IDs() int { return g.nextID }

// Clone copies a graph. The returned function maps values of g to those of the copy.
func (g *Graph) Clone() (*Graph, func(*Value) *Value) {
	c := &Graph{Name: g.Name, Mesh: Mesh{slices.Clone(g.Mesh.Axes)}, nextID: g.nextID, sigs: g.sigs}
	args, results := 0, 0
	for _, n := range g.Nodes {
		args, results = args+len(n.Args), results+len(n.Results)
	}
	nodes, values, lists := make([]Node, len(g.Nodes)), make([]Value, results), make([]*Value, args+results)
	list := func(n int) []*Value {
		piece := lists[:n:n]
		lists = lists[n:]
		return piece
	}
	copied := make([]*Value, g.nextID) // by ID
	at := func(v *Value) *Value { return copied[v.ID] }
	c.Nodes = make([]*Node, len(g.Nodes))
	for i, n := range g.Nodes {
		m := &nodes[i]
		*m = *n
		m.Args, m.Results = list(len(n.Args)), list(len(n.Results))
		for k, a := range n.Args {
			m.Args[k] = at(a)
		}
		for k, r := range n.Results {
			v := &values[0]
			values = values[1:]
			*v = *r
			v.Def = m
			m.Results[k], copied[r.ID] = v, v
		}
		c.Nodes[i] = m
	}
	for _, o := range g.Outputs {
		c.Outputs = append(c.Outputs, Output{o.Name, at(o.Value)})
	}
	for _, u := range g.Updates {
		c.Updates = append(c.Updates, StateUpdate{at(u.Param), at(u.New)})
	}
	return c, at
}

// Renumber gives values consecutive IDs in graph order, after a rewrite.
func (g *Graph) Renumber() {
	g.nextID = 0
	for _, n := range g.Nodes {
		for _, r := range n.Results {
			r.ID = g.nextID
			g.nextID++
		}
	}
}

// Prune drops all nodes that no output, update, send or value in also depends on. Leaves stay.
func (g *Graph) Prune(also ...*Value) {
	live := make([]bool, g.nextID) // by ID
	for _, v := range also {
		live[v.ID] = true
	}
	for _, o := range g.Outputs {
		live[o.Value.ID] = true
	}
	for _, u := range g.Updates {
		live[u.New.ID], live[u.Param.ID] = true, true
	}
	kept := make([]*Node, 0, len(g.Nodes))
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		n := g.Nodes[i]
		if n.Op.Class() != Leaf && n.Op != OpSend && !slices.ContainsFunc(n.Results, func(v *Value) bool { return live[v.ID] }) {
			continue
		}
		for _, a := range n.Args {
			live[a.ID] = true
		}
		kept = append(kept, n)
	}
	slices.Reverse(kept)
	g.Nodes = kept
	g.names = nil
	g.Renumber()
}
