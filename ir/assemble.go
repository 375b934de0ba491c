package ir

import "fmt"

// nodeDecl is a node as a file declares it, before its operands are looked up and its types inferred. The text
// form and the JSON form both decode to it.
type nodeDecl struct {
	op      Op
	attr    Attr
	name    string
	named   bool // whether name is given; otherwise it is the op's
	phase   Phase
	stage   int
	pos     string
	args    []int // value IDs
	results []resultDecl
}

type resultDecl struct {
	id   int
	typ  *Type  // nil: inferred
	spec string // empty: replicated
}

// assembler builds a graph from declarations with [Graph.Leaf] and [Graph.Add], as tracing does, and checks the
// declared results.
type assembler struct {
	g      *Graph
	values map[int]*Value
	check  verifier
}

func newAssembler(name string, mesh Mesh) (assembler, error) {
	if err := mesh.validate(); err != nil {
		return assembler{}, err
	}
	g := NewGraph(name)
	g.Mesh = mesh
	return assembler{g: g, values: map[int]*Value{}, check: newVerifier(g)}, nil
}

func (a *assembler) value(id int) (*Value, error) {
	v := a.values[id]
	if v == nil {
		return nil, fmt.Errorf("%%%d is not defined before its use", id)
	}
	return v, nil
}

func (a *assembler) node(d nodeDecl) error {
	if !d.named {
		d.name = d.op.String()
	} else if a.g.names[d.name] {
		return fmt.Errorf("name %q is taken by an earlier node", d.name)
	}
	if err := checkAttr(d.op, d.attr); err != nil {
		return err
	}
	next := a.g.nextID
	n, err := a.build(d)
	if err != nil {
		return err
	}
	a.g.nextID = next // IDs come from the declarations: see result
	n.Phase, n.Stage, n.Pos = d.phase, d.stage, d.pos
	if len(n.Results) != len(d.results) {
		return fmt.Errorf("%s has %d results, not %d", d.op, len(n.Results), len(d.results))
	}
	for i, r := range n.Results {
		if err := a.result(r, d.results[i]); err != nil {
			return fmt.Errorf("result %%%d: %w", d.results[i].id, err)
		}
	}
	if err := a.check.label(n); err != nil {
		return err
	}
	return a.check.results(n)
}

// build appends the node, with inferred types.
func (a *assembler) build(d nodeDecl) (*Node, error) {
	var args []*Value
	for _, id := range d.args {
		v, err := a.value(id)
		if err != nil {
			return nil, err
		}
		args = append(args, v)
	}
	if d.op.Class() != Leaf {
		return a.g.Add(d.op, d.attr, d.name, d.phase, args...)
	}
	if len(args) != 0 || len(d.results) != 1 || d.results[0].typ == nil {
		return nil, fmt.Errorf("%s takes no operands and has one result, of a type that is given", d.op)
	}
	v, err := a.g.Leaf(d.op, d.name, *d.results[0].typ, d.attr)
	if err != nil {
		return nil, err
	}
	return v.Def, nil
}

func (a *assembler) result(r *Value, d resultDecl) error {
	if d.typ != nil && !d.typ.Equal(r.Type) {
		return fmt.Errorf("type is given as %s, inference says %s", d.typ, r.Type)
	}
	if d.spec != "" {
		if len(a.g.Mesh.Axes) == 0 {
			return fmt.Errorf("spec %s in a graph without a mesh", d.spec)
		}
		spec, rank, err := ParseSpec(a.g.Mesh, d.spec)
		if err != nil {
			return err
		}
		if rank != len(r.Type.Shape) {
			return fmt.Errorf("spec %s has %d dimensions, type %s has %d", d.spec, rank, r.Type, len(r.Type.Shape))
		}
		r.Spec = spec
		if err := a.g.Mesh.checkSpec(r); err != nil {
			return err
		}
	}
	r.ID = d.id
	a.values[d.id] = r
	a.g.nextID = max(a.g.nextID, d.id+1)
	return nil
}
