package partition

import (
	"fmt"
	"math"
	"slices"

	"github.com/autopar/autopar/ir"
)

// propagator walks a staged graph in order, chooses for every node and mesh axis
// the rule of its signature that costs the fewest bytes of communication, and
// rebuilds the graph with the collectives that make operands fit.
type propagator struct {
	mesh   ir.Mesh
	src    *ir.Graph
	dst    *ir.Graph
	placer *placer
	want   map[*ir.Value]ir.ShardSpec // placement of the parameter a gradient is for
	made   map[*ir.Value]*ir.Value
	moved  map[movedKey]*ir.Value
}

// movedKey memoizes a resharded value. A value resharded in the forward pass is
// there for the backward pass too, not the other way round.
type movedKey struct {
	value *ir.Value
	spec  ir.ShardSpec
}

// propagate gives every value of g a spec. The graph is consumed.
func propagate(g *ir.Graph, p *Plan, mesh ir.Mesh) (*ir.Graph, error) {
	placer, err := newPlacer(p, mesh)
	if err != nil {
		return nil, err
	}
	pr := &propagator{
		mesh: mesh, src: g, dst: &ir.Graph{Name: g.Name, Mesh: mesh}, placer: placer,
		want: map[*ir.Value]ir.ShardSpec{}, made: map[*ir.Value]*ir.Value{}, moved: map[movedKey]*ir.Value{},
	}
	if err := pr.leaves(); err != nil {
		return nil, err
	}
	pr.gradients()
	for _, n := range g.Nodes {
		if err := pr.node(n); err != nil {
			return nil, fmt.Errorf("partition: %s: %w", n.Name, err)
		}
	}
	for _, o := range g.Outputs {
		v, err := pr.output(pr.made[o.Value])
		if err != nil {
			return nil, fmt.Errorf("partition: output %s: %w", o.Name, err)
		}
		pr.dst.Outputs = append(pr.dst.Outputs, ir.Output{Name: o.Name, Value: v})
	}
	for _, u := range g.Updates {
		param := pr.made[u.Param]
		v, err := pr.reshard(pr.made[u.New], param.Spec, ir.Update)
		if err != nil {
			return nil, fmt.Errorf("partition: update of %s: %w", param.Name(), err)
		}
		pr.dst.Updates = append(pr.dst.Updates, ir.StateUpdate{Param: param, New: v})
	}
	pr.dst.Renumber()
	return pr.dst, nil
}

// output makes a value whole on every rank. One that follows the batch can be
// read after the step only if there is a single micro-batch.
func (pr *propagator) output(v *ir.Value) (*ir.Value, error) {
	var whole ir.ShardSpec
	phase := ir.Update
	if mb := pr.mesh.Axis(AxisMB); v.Spec[mb].Kind == ir.Shard {
		if m := pr.mesh.Axes[mb].Size; m > 1 {
			return nil, planErrorf("micro_batch", "%s is made anew by each of %d micro-batches, so it cannot be an output", v.Name(), m)
		}
		whole[mb], phase = v.Spec[mb], v.Def.Phase
	}
	return pr.reshard(v, whole, phase)
}

// leaves places parameters, their optimizer state, caches, and inputs.
func (pr *propagator) leaves() error {
	state := map[*ir.Value]*ir.Value{} // optimizer state -> its parameter
	cache := map[*ir.Value]bool{}      // keys and values of the batch's sequences
	for _, n := range pr.src.Nodes {
		switch n.Op {
		case ir.OpAdamW:
			state[n.Args[1]], state[n.Args[2]] = n.Args[0], n.Args[0]
		case ir.OpAttentionDecode:
			cache[n.Args[1]] = true
			if m := pr.mesh.Size(AxisMB); m > 1 {
				return planErrorf("micro_batch", "%s keeps a cache of the whole batch, which %d micro-batches cannot share", n.Name, m)
			}
		}
	}
	for _, n := range pr.src.Nodes {
		if n.Op.Class() != ir.Leaf {
			continue
		}
		v := n.Results[0]
		name := n.Name
		if p, ok := state[v]; ok {
			name = p.Def.Name
		}
		switch {
		case n.Op == ir.OpParam:
			spec, _, err := pr.placer.find(pr.mesh, BaseName(name), v.Type.Shape)
			if err != nil {
				return err
			}
			v.Spec = spec
			if cache[v] {
				pr.alongBatch(v)
			}
		case n.Op == ir.OpInput && len(v.Type.Shape) >= 2:
			// The batch comes first in every input of two or more dimensions.
			pr.alongBatch(v)
		}
	}
	return nil
}

// alongBatch cuts dimension 0 as the batch is cut.
func (pr *propagator) alongBatch(v *ir.Value) {
	for a, axis := range pr.mesh.Axes {
		if axis.Time || axis.Name == AxisDP && axis.Size > 1 {
			v.Spec[a] = ir.ShardOn(0)
		}
	}
}

// gradients notes, for every value that ends as the gradient of a parameter,
// where the optimizer wants it.
func (pr *propagator) gradients() {
	for i := len(pr.src.Nodes) - 1; i >= 0; i-- {
		n := pr.src.Nodes[i]
		switch n.Op {
		case ir.OpAdamW:
			pr.want[n.Args[3]] = n.Args[0].Spec
		case ir.OpAddN, ir.OpSend, ir.OpRecv:
			if spec, ok := pr.want[n.Results[0]]; ok {
				for _, a := range n.Args {
					pr.want[a] = spec
				}
			}
		}
	}
}

// node chooses the placement of one node and appends it.
func (pr *propagator) node(n *ir.Node) error {
	if n.Op.Class() == ir.Leaf {
		pr.append(n)
		return nil
	}
	args := make([]*ir.Value, len(n.Args))
	for i, a := range n.Args {
		args[i] = pr.made[a]
	}
	if n.Phase == ir.Update {
		for i, a := range args {
			args[i] = pr.accumulate(a)
		}
	}
	var argSpecs, resSpecs []ir.ShardSpec
	switch n.Op {
	case ir.OpSend, ir.OpRecv:
		argSpecs, resSpecs = pr.wire(n, args[0])
	default:
		var err error
		if argSpecs, resSpecs, err = pr.choose(n, args); err != nil {
			return err
		}
	}
	for i, a := range args {
		v, err := pr.reshard(a, argSpecs[i], n.Phase)
		if err != nil {
			return fmt.Errorf("operand %d (%s): %w", i, a.Name(), err)
		}
		n.Args[i] = v
	}
	for i, r := range n.Results {
		r.Spec = resSpecs[i]
		if err := checkSplit(pr.mesh, r.Spec, r.Type.Shape); err != nil {
			return err
		}
	}
	pr.append(n)
	return nil
}

func (pr *propagator) append(n *ir.Node) {
	pr.dst.Nodes = append(pr.dst.Nodes, n)
	for _, r := range n.Results {
		pr.made[r] = r
	}
}

// wire places the two ends of a transfer: as the value lies, but whole in the
// forward and backward passes, where the receiver would have to reduce it.
func (pr *propagator) wire(n *ir.Node, v *ir.Value) (args, results []ir.ShardSpec) {
	spec := v.Spec
	if n.Phase != ir.Update {
		for a := range spec {
			if spec[a].Kind == ir.Partial && !pr.isTime(a) {
				spec[a] = ir.Placement{}
			}
		}
	}
	return []ir.ShardSpec{spec}, []ir.ShardSpec{spec}
}

func (pr *propagator) isTime(axis int) bool {
	return axis < len(pr.mesh.Axes) && pr.mesh.Axes[axis].Time
}

// choose picks a rule for every axis. Axes are independent: the placements of
// one do not change which rules of another are legal.
func (pr *propagator) choose(n *ir.Node, args []*ir.Value) (argSpecs, resSpecs []ir.ShardSpec, err error) {
	sig := ir.SignatureOf(n)
	argSpecs = make([]ir.ShardSpec, len(n.Args))
	resSpecs = make([]ir.ShardSpec, len(n.Results))
	pin, pinned, err := pr.placer.find(pr.mesh, BaseName(n.Name), n.Results[0].Type.Shape)
	if err != nil {
		return nil, nil, err
	}
	for axis, a := range pr.mesh.Axes {
		best := math.Inf(1)
		for rule := ir.PassPartial; rule < len(sig.Dims); rule++ {
			if a.Size == 1 && !a.Time && rule != ir.ReplicateAll {
				continue // nothing to place on an axis of one
			}
			ra, rr, ok := sig.Rule(rule)
			if !ok || rule >= 0 && !a.Time && sig.Dims[rule].Size < a.Size {
				continue
			}
			if pinned && a.Name == AxisTP && rr[0] != pin[axis] {
				continue
			}
			cost := pr.cost(n, args, axis, rule, ra, rr)
			if cost < best {
				best = cost
				for i := range ra {
					argSpecs[i][axis] = ra[i]
				}
				for i := range rr {
					resSpecs[i][axis] = rr[i]
				}
			}
		}
		if math.IsInf(best, 1) {
			if pinned {
				return nil, nil, planErrorf("placements", "%s cannot lie as %s over axis %s", n.Name, pin.Format(pr.mesh, len(n.Results[0].Type.Shape)), a.Name)
			}
			specs := make([]string, len(args))
			for i, v := range args {
				specs[i] = v.Spec.Format(pr.mesh, len(v.Type.Shape))
			}
			return nil, nil, fmt.Errorf("no rule of %s fits operands placed %v over axis %s", n.Op, specs, a.Name)
		}
	}
	return argSpecs, resSpecs, nil
}

// Costs are bytes moved per rank, in units where ties are broken by small
// fractions of a byte.
const (
	// lastResort keeps from moving what the plan has decided: a parameter stays
	// where it lies, and activations become sharded by meeting sharded
	// parameters (or by a placement of their own), not to save a byte here.
	lastResort = 1e18
	tiePartial = 1e-2 // a whole operand becomes a term of a sum
	tieChange  = 1e-3 // an operand has to be moved
	tieWhole   = 1e-4 // the work is repeated on every rank
)

// cost is what a rule costs on one axis: moving the operands, reducing Partial
// results some day, and bringing gradients to where their parameter lies. A
// gradient moved there already costs nothing. The batch stays cut: micro-batches
// cannot see each other, and data-parallel ranks do not repeat each other's work.
func (pr *propagator) cost(n *ir.Node, args []*ir.Value, axis, rule int, ra, rr []ir.Placement) float64 {
	size := pr.mesh.Axes[axis].Size
	follows := pr.isTime(axis) || pr.mesh.Axes[axis].Name == AxisDP && n.Phase != ir.Update
	cost := 0.0
	if rule == ir.ReplicateAll {
		cost += tieWhole
	}
	for i, v := range args {
		from := v.Spec[axis]
		if from == ra[i] {
			continue
		}
		if pr.isTime(axis) || follows && from.Kind == ir.Shard {
			return math.Inf(1)
		}
		if want, ok := pr.want[v]; ok && want[axis] == ra[i] && n.Op == ir.OpSumSquares {
			continue // the optimizer needs it there anyway
		}
		c := moveBytes(from, ra[i], float64(v.Type.Bytes()), size)
		if ra[i].Kind == ir.Partial {
			c += tiePartial
		}
		if v.Def.Op == ir.OpParam || ra[i].Kind == ir.Shard {
			c += lastResort
		}
		cost += c + tieChange
	}
	if pr.isTime(axis) {
		return cost
	}
	for i, r := range n.Results {
		to := ir.Placement{}
		if want, ok := pr.want[r]; ok {
			to = want[axis]
		} else if rr[i].Kind == ir.Shard {
			continue
		}
		cost += moveBytes(rr[i], to, float64(r.Type.Bytes()), size)
	}
	return cost
}

// moveBytes is what each of n ranks receives when a value of the given size goes
// from one placement to another (PLANNING.md 2.5, bandwidth terms).
func moveBytes(from, to ir.Placement, bytes float64, n int) float64 {
	if n == 1 || from == to || from.Kind == ir.Replicate {
		return 0
	}
	share := float64(n-1) / float64(n)
	switch {
	case from.Kind == ir.Partial && to.Kind == ir.Replicate:
		return 2 * share * bytes
	case from.Kind == ir.Shard && to.Kind == ir.Shard:
		return share * bytes / float64(n)
	case to.Kind == ir.Partial:
		return math.Inf(1)
	}
	return share * bytes
}

// accumulate sums a value over micro-batches at the end of the pass that makes
// it, so that the update phase can use it.
func (pr *propagator) accumulate(v *ir.Value) *ir.Value {
	axis := pr.mesh.Axis(AxisMB)
	if v.Spec[axis].Kind != ir.Partial || v.Def.Phase == ir.Update {
		return v
	}
	to := v.Spec
	to[axis] = ir.Placement{}
	key := movedKey{v, to}
	if m, ok := pr.moved[key]; ok {
		return m
	}
	n := pr.comm(ir.OpAccumulate, v, to, v.Def.Phase, ir.CommAttr{Axis: AxisMB})
	// It must run with its micro-batch, not with the consumer's place in the list.
	at := slices.Index(pr.dst.Nodes, v.Def) + 1
	pr.dst.Nodes = slices.Insert(pr.dst.Nodes[:len(pr.dst.Nodes)-1], at, n)
	m := n.Results[0]
	pr.moved[key] = m
	if want, ok := pr.want[v]; ok {
		pr.want[m] = want
	}
	return m
}
