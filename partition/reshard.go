package partition

import (
	"fmt"

	"github.com/autopar/autopar/ir"
)

// reshard returns v with another spec. It appends the collectives that get there, one mesh axis at a time; any
// spec can reach any other. The consumer is in the given stage and phase; user is its node, or nil.
func (pr *propagator) reshard(v *ir.Value, to ir.ShardSpec, stage int, phase ir.Phase, user *ir.Node) (*ir.Value, error) {
	if v.Spec == to {
		return v, nil
	}
	steps, err := appendPath(pr.steps[:0], pr.mesh, v.Spec, to)
	if err != nil {
		return nil, err
	}
	pr.steps = steps
	if phase == ir.Update { // the update is shared by all stages of a position
		stage, _ = pr.plan.Position(stage)
	}
	key := movedKey{spec: to, stage: stage}
	for _, s := range steps {
		if s.Op == ir.OpAllGather {
			key.phase = phase
			if v.Def.Op == ir.OpParam && user != nil {
				key.block = user.Block()
			}
		}
	}
	for m := pr.of(v).moved; m != nil; m = m.next {
		if m.key == key {
			return m.to, nil
		}
	}
	m := v
	for _, s := range steps {
		m = pr.comm(s.Op, m, s.Spec, stage, phase, s.Attr).Results[0]
	}
	if err := checkSplit(pr.mesh, to, v.Type.Shape); err != nil {
		return nil, err
	}
	pr.of(v).moved = &moved{key, m, pr.of(v).moved}
	return m, nil
}

// enter returns the input v of the first block in the form in which every other block gets its input from the
// one before it: the residual stream as the plan shards or replicates it over tensor-parallel ranks, however
// the embedding table is sharded. The block keeps it for its backward pass.
func (pr *propagator) enter(v *ir.Value) (*ir.Value, error) {
	to := v.Spec
	dim, parts := pr.plan.streamDim(), 1
	for i, a := range pr.mesh.Axes {
		if tensorParallel(a) && a.Size > 1 {
			to[i] = ir.Placement{}
			if dim >= 0 && parts*a.Size <= v.Type.Shape[dim] {
				to[i] = ir.ShardOn(dim)
			}
		}
		if to[i] == ir.ShardOn(dim) && !a.Time {
			parts *= a.Size
		}
	}
	return pr.reshard(v, to, v.Def.Stage, v.Def.Phase, nil)
}

// OutsideBlocks reports whether a node of the forward pass belongs to no block. If blocks read its result, only
// the first one does.
func OutsideBlocks(n *ir.Node) bool {
	return n.Phase == ir.Forward && n.Block() == "" && n.Op.Class() != ir.Leaf && n.Op != ir.OpRecv
}

// comm appends a communication node.
func (pr *propagator) comm(op ir.Op, v *ir.Value, to ir.ShardSpec, stage int, phase ir.Phase, attr ir.CommAttr) *ir.Node {
	name := v.Name() + "@" + op.String() + "_" + attr.Axis
	again := pr.names[name]
	pr.names[name]++
	if again > 0 {
		name = fmt.Sprintf("%s_%d", name, again)
	}
	n := pr.arena.Node(ir.Node{Op: op, Attr: attr, Phase: phase, Stage: stage, Name: name, Pos: v.Def.Pos}, 1, 1)
	n.Args[0] = v
	n.Results[0] = pr.arena.Value(ir.Value{ID: len(pr.facts), Type: v.Type, Def: n, Spec: to})
	pr.facts = append(pr.facts, fact{})
	pr.dst.Nodes = append(pr.dst.Nodes, n)
	return n
}

// Step is one collective of a resharding path.
type Step struct {
	Op   ir.Op
	Attr ir.CommAttr
	Spec ir.ShardSpec // after the step
}

// Path returns the collectives that lead from one spec to another. If several axes shard one dimension, their
// slices nest. So an inner axis stops sharding it before an outer one changes, and starts after. If no axis can
// go first, the inner ones are gathered before the outer one changes, and sliced again afterwards. The error
// says which placement cannot be reached.
func Path(mesh ir.Mesh, from, to ir.ShardSpec) ([]Step, error) {
	return appendPath(nil, mesh, from, to)
}

// appendPath appends the steps of a path.
func appendPath(steps []Step, mesh ir.Mesh, from, to ir.ShardSpec) ([]Step, error) {
	cur := from
	add := func(axis int, op ir.Op, next ir.Placement, attr ir.CommAttr) {
		attr.Axis = mesh.Axes[axis].Name
		cur[axis] = next
		steps = append(steps, Step{op, attr, cur})
	}
	for i, a := range mesh.Axes {
		if a.Time && from[i] != to[i] {
			return nil, fmt.Errorf("placement %s cannot become %s over axis %s: micro-batches do not see each other", from[i], to[i], a.Name)
		}
	}
	for {
		i := nextAxis(mesh, cur, to)
		if i < 0 {
			break
		}
		for _, p := range []ir.Placement{cur[i], to[i]} {
			if p.Kind != ir.Shard {
				continue
			}
			d := int(p.Dim)
			for _, inner := range cur.ShardAxes(d) {
				if inner <= i {
					continue
				}
				if mesh.Axes[inner].Time {
					return nil, fmt.Errorf("dimension %d is cut into micro-batches inside axis %s", d, mesh.Axes[i].Name)
				}
				add(inner, ir.OpAllGather, ir.Placement{}, ir.CommAttr{Dim: d})
			}
		}
		f, t := cur[i], to[i]
		switch {
		case f.Kind == ir.Partial && t.Kind == ir.Replicate:
			add(i, ir.OpAllReduce, t, ir.CommAttr{Reduce: f.Reduce})
		case f.Kind == ir.Partial && t.Kind == ir.Shard:
			add(i, ir.OpReduceScatter, t, ir.CommAttr{Dim: int(t.Dim), Reduce: f.Reduce})
		case f.Kind == ir.Shard && t.Kind == ir.Replicate:
			add(i, ir.OpAllGather, t, ir.CommAttr{Dim: int(f.Dim)})
		case f.Kind == ir.Shard && t.Kind == ir.Shard:
			add(i, ir.OpAllToAll, t, ir.CommAttr{Dim: int(f.Dim), To: int(t.Dim)})
		case f.Kind == ir.Replicate && t.Kind == ir.Shard:
			add(i, ir.OpSlice, t, ir.CommAttr{Dim: int(t.Dim)})
		case f.Kind == ir.Replicate && t.Kind == ir.Partial && t.Reduce == ir.Sum:
			add(i, ir.OpToPartial, t, ir.CommAttr{})
		default:
			return nil, fmt.Errorf("no collective leads from %s to %s over axis %s", f, t, mesh.Axes[i].Name)
		}
	}
	return steps, nil
}

// nextAxis returns the axis to change next: the innermost of those that need not wait for another axis, or if
// all must wait, the innermost that is left. It returns -1 if nothing is left.
func nextAxis(mesh ir.Mesh, cur, to ir.ShardSpec) int {
	last := -1
	for i := len(mesh.Axes) - 1; i >= 0; i-- {
		if cur[i] == to[i] {
			continue
		}
		last = max(last, i)
		waits := false
		for j := range mesh.Axes {
			inner := j > i && (meets(cur[j], cur[i]) || meets(cur[j], to[i]))
			outer := j < i && cur[j] != to[j] && (meets(cur[j], to[i]) || meets(to[j], to[i]))
			// When axes gather different dimensions, outer axes, whose links may be slower, go first, while the
			// value is smaller.
			smaller := j < i && gathers(cur[j], to[j]) && gathers(cur[i], to[i]) && cur[j] != cur[i]
			// A sum that all have is made of the shares, once there are some.
			ofShares := sums(cur[i], to[i]) && cur[j].Kind == ir.Partial && to[j].Kind == ir.Shard
			waits = waits || inner || outer || smaller || ofShares
		}
		if !waits {
			return i
		}
	}
	return last
}

// gathers reports whether a sharded value becomes replicated.
func gathers(from, to ir.Placement) bool { return from.Kind == ir.Shard && to.Kind == ir.Replicate }

// sums reports whether a partial value becomes replicated.
func sums(from, to ir.Placement) bool { return from.Kind == ir.Partial && to.Kind == ir.Replicate }

// meets reports whether two placements shard the same dimension.
func meets(a, b ir.Placement) bool { return a.Kind == ir.Shard && a == b }
