package irtest

import (
	"github.com/google/go-cmp/cmp"

	"github.com/autopar/autopar/ir"
)

// Diff compares two graphs in all that a caller can see: IDs, names, attributes,
// types, specs, phases, stages, positions, outputs and updates. It returns ""
// when they are equal.
func Diff(a, b *ir.Graph) string { return cmp.Diff(flatten(a), flatten(b)) }

type flatGraph struct {
	Name    string
	Mesh    []ir.Axis
	Nodes   []flatNode
	Outputs map[string]int
	Updates [][2]int
}

type flatNode struct {
	Op      ir.Op
	Attr    ir.Attr
	Args    []int
	Results []flatValue
	Name    string
	Phase   ir.Phase
	Stage   int
	Pos     string
}

type flatValue struct {
	ID    int
	Type  string
	Index int
	Spec  ir.ShardSpec
}

// flatten replaces pointers by IDs.
func flatten(g *ir.Graph) flatGraph {
	f := flatGraph{Name: g.Name, Outputs: map[string]int{}}
	f.Mesh = append(f.Mesh, g.Mesh.Axes...)
	for _, n := range g.Nodes {
		m := flatNode{Op: n.Op, Attr: n.Attr, Name: n.Name, Phase: n.Phase, Stage: n.Stage, Pos: n.Pos}
		for _, a := range n.Args {
			m.Args = append(m.Args, a.ID)
		}
		for _, r := range n.Results {
			m.Results = append(m.Results, flatValue{r.ID, r.Type.String(), r.Index, r.Spec})
		}
		f.Nodes = append(f.Nodes, m)
	}
	for _, o := range g.Outputs {
		f.Outputs[o.Name] = o.Value.ID
	}
	for _, u := range g.Updates {
		f.Updates = append(f.Updates, [2]int{u.Param.ID, u.New.ID})
	}
	return f
}
