package irtest

import (
	"fmt"
	"math/rand/v2"

	"github.com/autopar/autopar/ir"
)

// RandomSpecs returns a legal spec for every value of a graph without a mesh. Leaves have any split of their
// dimensions, results what a random rule of their op makes of them, which may be Partial. Operands would need
// resharding in between.
func RandomSpecs(rng *rand.Rand, g *ir.Graph, mesh ir.Mesh) map[*ir.Value]ir.ShardSpec {
	specs := map[*ir.Value]ir.ShardSpec{}
	for _, n := range g.Nodes {
		if n.Op.Class() == ir.Leaf {
			specs[n.Results[0]] = randomLeafSpec(rng, n.Results[0], mesh)
			continue
		}
		_, results := randomSplit(rng, n, mesh)
		for i, r := range n.Results {
			specs[r] = results[i]
		}
	}
	return specs
}

// RandomPartition returns a copy of a graph that is placed on a mesh without time axes by random rules, with
// the communication that the rules need in between. The copy passes Verify, and computes the same values.
func RandomPartition(rng *rand.Rand, g *ir.Graph, mesh ir.Mesh) *ir.Graph {
	p := &partitioner{g: ir.NewGraph(g.Name), at: map[*ir.Value]*ir.Value{}}
	p.g.Mesh = mesh
	for _, n := range g.Nodes {
		p.node(rng, n)
	}
	for _, o := range g.Outputs {
		v := p.at[o.Value]
		whole := v.Spec
		for a := range mesh.Axes {
			if whole[a].Kind == ir.Partial {
				whole[a] = ir.Placement{}
			}
		}
		p.g.Outputs = append(p.g.Outputs, ir.Output{Name: o.Name, Value: p.reshard(v, whole, v.Def.Phase)})
	}
	for _, u := range g.Updates {
		param, v := p.at[u.Param], p.at[u.New]
		p.g.Updates = append(p.g.Updates, ir.StateUpdate{Param: param, New: p.reshard(v, param.Spec, v.Def.Phase)})
	}
	if err := p.g.Verify(); err != nil {
		panic("BUG: random partition is not legal: " + err.Error())
	}
	return p.g
}

type partitioner struct {
	g  *ir.Graph
	at map[*ir.Value]*ir.Value // old to new
}

func (p *partitioner) node(rng *rand.Rand, n *ir.Node) {
	if n.Op.Class() == ir.Leaf {
		old := n.Results[0]
		v, err := p.g.Leaf(n.Op, n.Name, old.Type, n.Attr)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		v.Spec = randomLeafSpec(rng, old, p.g.Mesh)
		p.at[old] = v
		return
	}
	want, results := randomSplit(rng, n, p.g.Mesh)
	args := make([]*ir.Value, len(n.Args))
	for i, a := range n.Args {
		args[i] = p.reshard(p.at[a], want[i], n.Phase)
	}
	m := p.add(n.Op, n.Attr, n.Name, n.Phase, args...)
	for i, r := range n.Results {
		m.Results[i].Spec = results[i]
		p.at[r] = m.Results[i]
	}
}

func (p *partitioner) add(op ir.Op, attr ir.Attr, name string, phase ir.Phase, args ...*ir.Value) *ir.Node {
	n, err := p.g.Add(op, attr, name, phase, args...)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return n
}

func randomLeafSpec(rng *rand.Rand, v *ir.Value, mesh ir.Mesh) ir.ShardSpec {
	var s ir.ShardSpec
	for a := range mesh.Axes {
		if d := rng.IntN(len(v.Type.Shape)+1) - 1; d >= 0 {
			s[a] = ir.ShardOn(d)
		}
	}
	return s
}

// randomSplit draws a rule for every axis, and returns the specs that the rules require of operands and give to
// results.
func randomSplit(rng *rand.Rand, n *ir.Node, mesh ir.Mesh) (args, results []ir.ShardSpec) {
	sig := ir.SignatureOf(n)
	args = make([]ir.ShardSpec, len(n.Args))
	results = make([]ir.ShardSpec, len(n.Results))
	for a := range mesh.Axes {
		for {
			onArgs, onResults, ok := sig.Rule(ir.PassPartial + rng.IntN(len(sig.Dims)+2))
			if !ok {
				continue // ReplicateAll always fits
			}
			for i := range args {
				args[i][a] = onArgs[i]
			}
			for i := range results {
				results[i][a] = onResults[i]
			}
			break
		}
	}
	return args, results
}

// reshard brings a value to the wanted spec. Axes that change are gathered or reduced, inner axes first, then
// sliced, outer axes first. A single change takes the direct collective.
func (p *partitioner) reshard(v *ir.Value, want ir.ShardSpec, phase ir.Phase) *ir.Value {
	changed := changedAxes(p.g.Mesh, v.Spec, want)
	if len(changed) == 1 {
		a := changed[0]
		from, to := v.Spec[a], want[a]
		switch {
		case from.Kind == ir.Partial && to.Kind == ir.Shard:
			return p.comm(ir.OpReduceScatter, v, a, to, ir.CommAttr{Dim: int(to.Dim), Reduce: from.Reduce}, phase)
		case from.Kind == ir.Shard && to.Kind == ir.Shard:
			return p.comm(ir.OpAllToAll, v, a, to, ir.CommAttr{Dim: int(from.Dim), To: int(to.Dim)}, phase)
		}
	}
	for i := len(changed) - 1; i >= 0; i-- {
		a := changed[i]
		switch from := v.Spec[a]; from.Kind {
		case ir.Shard:
			v = p.comm(ir.OpAllGather, v, a, ir.Placement{}, ir.CommAttr{Dim: int(from.Dim)}, phase)
		case ir.Partial:
			v = p.comm(ir.OpAllReduce, v, a, ir.Placement{}, ir.CommAttr{Reduce: from.Reduce}, phase)
		}
	}
	for _, a := range changed {
		switch to := want[a]; to.Kind {
		case ir.Shard:
			v = p.comm(ir.OpSlice, v, a, to, ir.CommAttr{Dim: int(to.Dim)}, phase)
		case ir.Partial:
			v = p.comm(ir.OpToPartial, v, a, to, ir.CommAttr{Reduce: to.Reduce}, phase)
		}
	}
	return v
}

// changedAxes returns, outer first, the axes that differ, and those that shard the same dimension inside of one
// that changes.
func changedAxes(mesh ir.Mesh, from, to ir.ShardSpec) []int {
	var changed []int
	touched := map[int8]bool{}
	for a := range mesh.Axes {
		nested := from[a].Kind == ir.Shard && touched[from[a].Dim]
		if from[a] == to[a] && !nested {
			continue
		}
		changed = append(changed, a)
		for _, p := range []ir.Placement{from[a], to[a]} {
			if p.Kind == ir.Shard {
				touched[p.Dim] = true
			}
		}
	}
	return changed
}

func (p *partitioner) comm(op ir.Op, v *ir.Value, axis int, to ir.Placement, attr ir.CommAttr, phase ir.Phase) *ir.Value {
	attr.Axis = p.g.Mesh.Axes[axis].Name
	r := p.add(op, attr, fmt.Sprintf("%s/%s", v.Name(), op), phase, v).Results[0]
	r.Spec = v.Spec
	r.Spec[axis] = to
	return r
}
