package ir

import (
	"encoding/json"
	"fmt"
)

// The JSON form has named fields for the parts of the text form. Types, specs and attributes are strings, as in
// the text form.
type graphJSON struct {
	Name    string       `json:"name"`
	Mesh    []axisJSON   `json:"mesh,omitempty"`
	Nodes   []nodeJSON   `json:"nodes"`
	Outputs []outputJSON `json:"outputs,omitempty"`
	Updates []updateJSON `json:"updates,omitempty"`
}

type axisJSON struct {
	Name   string `json:"name"`
	Size   int    `json:"size"`
	Chunk  int    `json:"chunk,omitempty"`
	Shares []int  `json:"shares,omitempty"`
	Time   bool   `json:"time,omitempty"`
}

type nodeJSON struct {
	Op      string       `json:"op"`
	Name    string       `json:"name"`
	Attr    string       `json:"attr,omitempty"`
	Args    []int        `json:"args,omitempty"`
	Results []resultJSON `json:"results"`
	Phase   string       `json:"phase"`
	Stage   int          `json:"stage,omitempty"`
	Pos     string       `json:"pos,omitempty"`
}

type resultJSON struct {
	ID   int    `json:"id"`
	Type string `json:"type"`
	Spec string `json:"spec,omitempty"`
}

type outputJSON struct {
	Name  string `json:"name"`
	Value int    `json:"value"`
}

type updateJSON struct {
	Param int `json:"param"`
	New   int `json:"new"`
}

// MarshalJSON encodes a graph. It returns the error of [Graph.Verify] for an invalid one.
func (g *Graph) MarshalJSON() ([]byte, error) {
	if err := g.Verify(); err != nil {
		return nil, err
	}
	out := graphJSON{Name: g.Name, Nodes: []nodeJSON{}}
	for _, a := range g.Mesh.Axes {
		out.Mesh = append(out.Mesh, axisJSON(a))
	}
	for _, n := range g.Nodes {
		out.Nodes = append(out.Nodes, g.nodeJSON(n))
	}
	for _, o := range g.Outputs {
		out.Outputs = append(out.Outputs, outputJSON{o.Name, o.Value.ID})
	}
	for _, u := range g.Updates {
		out.Updates = append(out.Updates, updateJSON{u.Param.ID, u.New.ID})
	}
	return json.Marshal(out)
}

func (g *Graph) nodeJSON(n *Node) nodeJSON {
	out := nodeJSON{Op: n.Op.String(), Name: n.Name, Attr: formatAttr(n.Attr), Phase: n.Phase.String(), Stage: n.Stage, Pos: n.Pos}
	for _, a := range n.Args {
		out.Args = append(out.Args, a.ID)
	}
	for _, r := range n.Results {
		res := resultJSON{ID: r.ID, Type: r.Type.String()}
		if len(g.Mesh.Axes) > 0 {
			res.Spec = g.specText(r)
		}
		out.Results = append(out.Results, res)
	}
	return out
}

// UnmarshalJSON decodes a graph, checks it as [Parse] does, and verifies it.
func (g *Graph) UnmarshalJSON(data []byte) error {
	var in graphJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	var mesh Mesh
	for _, a := range in.Mesh {
		mesh.Axes = append(mesh.Axes, Axis(a))
	}
	asm, err := newAssembler(in.Name, mesh)
	if err != nil {
		return fmt.Errorf("ir: %w", err)
	}
	for i, n := range in.Nodes {
		d, err := n.decl()
		if err == nil {
			err = asm.node(d)
		}
		if err != nil {
			return fmt.Errorf("ir: node %d (%q): %w", i, n.Name, err)
		}
	}
	if err := asm.ends(in); err != nil {
		return fmt.Errorf("ir: %w", err)
	}
	if err := asm.g.Verify(); err != nil {
		return err
	}
	*g = *asm.g
	return nil
}

func (a *assembler) ends(in graphJSON) error {
	for _, o := range in.Outputs {
		v, err := a.value(o.Value)
		if err != nil {
			return fmt.Errorf("output %q: %w", o.Name, err)
		}
		a.g.Outputs = append(a.g.Outputs, Output{o.Name, v})
	}
	for i, u := range in.Updates {
		param, err := a.value(u.Param)
		if err != nil {
			return fmt.Errorf("update %d: %w", i, err)
		}
		v, err := a.value(u.New)
		if err != nil {
			return fmt.Errorf("update %d: %w", i, err)
		}
		a.g.Updates = append(a.g.Updates, StateUpdate{param, v})
	}
	return nil
}

func (n nodeJSON) decl() (nodeDecl, error) {
	d := nodeDecl{name: n.Name, named: true, stage: n.Stage, pos: n.Pos, args: n.Args}
	var err error
	if d.op, err = ParseOp(n.Op); err != nil {
		return d, err
	}
	if d.phase, err = parsePhase(n.Phase); err != nil {
		return d, err
	}
	s := &scanner{text: n.Attr}
	if d.attr, err = s.attr(d.op); err == nil {
		err = s.end()
	}
	if err != nil {
		return d, fmt.Errorf("attr %q: %w", n.Attr, err)
	}
	for _, r := range n.Results {
		t, err := parseType(r.Type)
		if err != nil {
			return d, err
		}
		d.results = append(d.results, resultDecl{id: r.ID, typ: &t, spec: r.Spec})
	}
	return d, nil
}
