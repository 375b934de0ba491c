package partition

import (
	"fmt"
	"math"

	"github.com/autopar/autopar/ir"
)

// propagator walks a staged graph in order, chooses for every node and mesh axis
// the rule of its signature that costs the fewest bytes of communication, and
// rebuilds the graph with the collectives that make operands fit.
type propagator struct {
	plan   *Plan
	mesh   ir.Mesh
	src    *ir.Graph
	dst    *ir.Graph
	placer *placer
	arena  ir.Arena
	facts  []fact // by ID, those of new values after those of the source graph
	steps  []Step
	specs  []ir.ShardSpec // see choose
	names  map[string]int // of communication nodes
	mb     int            // the axis of micro-batches
}

// fact is what is known of a value.
type fact struct {
	isGrad  bool
	tied    bool         // a gradient that is added to others of the same parameter
	spread  bool         // a parameter, its state or gradient that ZeRO shards over tensor-parallel ranks
	want    ir.ShardSpec // placement of the parameter a gradient is for
	escapes bool         // read by the update phase, or an output
	sum     *ir.Value    // over micro-batches, if it escapes
	moved   *moved       // where it has been resharded
}

// of returns what is known of a value.
func (pr *propagator) of(v *ir.Value) *fact { return &pr.facts[v.ID] }

// moved is a value resharded for a use; uses of the same key share it. A value
// reduced in the forward pass is there for the backward pass too. One gathered is
// not: it is gathered again where a block needs it, and freed after.
type moved struct {
	key  movedKey
	to   *ir.Value
	next *moved
}

type movedKey struct {
	spec  ir.ShardSpec
	stage int
	phase ir.Phase // of a gathered value
	block string   // of a gathered parameter
}

// propagate gives every value of g a spec. The graph is consumed.
func propagate(g *ir.Graph, p *Plan, mesh ir.Mesh) (*ir.Graph, error) {
	placer, err := newPlacer(p, mesh)
	if err != nil {
		return nil, err
	}
	pr := &propagator{
		plan: p, mesh: mesh, src: g, dst: &ir.Graph{Name: g.Name, Mesh: mesh, Nodes: make([]*ir.Node, 0, len(g.Nodes)*3/2)}, placer: placer,
		facts: make([]fact, g.IDs(), g.IDs()*3/2), names: make(map[string]int, len(g.Nodes)/4), mb: mesh.Axis(AxisMB),
	}
	pr.arena.Expect(len(g.Nodes) / 4)
	if err := pr.leaves(); err != nil {
		return nil, err
	}
	pr.gradients()
	pr.escaping()
	for _, n := range g.Nodes {
		if err := pr.node(n); err != nil {
			return nil, fmt.Errorf("partition: %s: %w", n.Name, err)
		}
	}
	for _, o := range g.Outputs {
		v, err := pr.output(o.Value)
		if err != nil {
			return nil, fmt.Errorf("partition: output %s: %w", o.Name, err)
		}
		pr.dst.Outputs = append(pr.dst.Outputs, ir.Output{Name: o.Name, Value: v})
	}
	for _, u := range g.Updates {
		v, err := pr.reshard(u.New, u.Param.Spec, u.Param.Def.Stage, ir.Update, nil)
		if err != nil {
			return nil, fmt.Errorf("partition: update of %s: %w", u.Param.Name(), err)
		}
		pr.dst.Updates = append(pr.dst.Updates, ir.StateUpdate{Param: u.Param, New: v})
	}
	pr.dst.Renumber()
	return pr.dst, nil
}

// output makes a value whole on every rank. One that follows the batch can be
// read after the step only if there is a single micro-batch.
func (pr *propagator) output(v *ir.Value) (*ir.Value, error) {
	if sum := pr.of(v).sum; sum != nil {
		v = sum
	}
	var whole ir.ShardSpec
	phase := ir.Update
	if mb := pr.mb; v.Spec[mb].Kind == ir.Shard {
		if m := pr.mesh.Axes[mb].Size; m > 1 {
			return nil, planErrorf("micro_batch", "%s is made anew by each of %d micro-batches, so it cannot be an output", v.Name(), m)
		}
		whole[mb], phase = v.Spec[mb], v.Def.Phase
	}
	return pr.reshard(v, whole, v.Def.Stage, phase, nil)
}

// leaves places parameters, their optimizer state, caches, and inputs.
func (pr *propagator) leaves() error {
	state := make([]*ir.Value, pr.src.IDs()) // optimizer state -> its parameter
	cache := map[*ir.Value]bool{}            // keys and values of the batch's sequences
	weights, _ := weightsOf(pr.src)
	for _, n := range pr.src.Nodes {
		switch n.Op {
		case ir.OpAdamW:
			for _, a := range n.Args[:3] {
				if w := weights[n.ID()]; a != w {
					state[a.ID] = w
				}
			}
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
		name, stage := n.Name, 3 // from which ZeRO stage on it is sharded
		if p := state[v.ID]; p != nil {
			name, stage = p.Def.Name, 1
		}
		switch {
		case n.Op == ir.OpParam:
			spec, placed, err := pr.placer.find(pr.mesh, BaseName(name), v.Type.Shape)
			if err != nil {
				return err
			}
			if spec.HasPartial() {
				return planErrorf("placements", "%s is a parameter, which has no terms to sum as %s has", BaseName(name), spec.Format(pr.mesh, len(v.Type.Shape)))
			}
			v.Spec = spec
			if cache[v] {
				pr.alongBatch(v)
			} else if pr.plan.ZeRO >= stage {
				v.Spec = pr.overReplicas(spec, v.Type.Shape)
				if placed {
					pr.overTensorParallel(v)
				}
			}
		case n.Op == ir.OpInput && followsBatch(v):
			pr.alongBatch(v)
		}
	}
	return nil
}

// overReplicas shards a value that data-parallel ranks would all hold over those
// of a ZeRO group.
func (pr *propagator) overReplicas(spec ir.ShardSpec, shape []int) ir.ShardSpec {
	dp := pr.mesh.Axis(AxisDP)
	if d := ReplicaDim(pr.mesh.Axes[dp].Size, spec, shape); d >= 0 {
		spec[dp] = ir.ShardOn(d)
	}
	return spec
}

// overTensorParallel shards a value that a placement keeps whole over tensor-parallel ranks too,
// where each has a term of its gradient: in the largest dimension that is left. That one does
// not depend on how many they are, so that the planner's programs of two stand for more.
func (pr *propagator) overTensorParallel(v *ir.Value) {
	tp := pr.mesh.Axis(AxisTP)
	if !pr.sharesStream(tp) || pr.plan.Rows() > 1 || v.Spec[tp].Kind != ir.Replicate {
		return
	}
	largest := -1
	for d, size := range v.Type.Shape {
		if !v.Spec.Shards(d) && size >= pr.mesh.Axes[tp].Size && (largest < 0 || size > v.Type.Shape[largest]) {
			largest = d
		}
	}
	if largest >= 0 && pr.mesh.Axes[tp].Size > 1 {
		v.Spec[tp] = ir.ShardOn(largest)
		pr.of(v).spread = true
	}
}

// ReplicaDim returns the dimension in which ZeRO shards a value over n ranks: the
// one that they share most evenly (the first of those) and that is not sharded yet,
// as slices of slices would have to be gathered to move. It is -1 for what has no
// such dimension, a bias split over tp, and stays whole.
func ReplicaDim(n int, spec ir.ShardSpec, shape []int) int {
	best, least := -1, math.Inf(1)
	for d, size := range shape {
		part := float64(ir.Axis{Size: n}.Cut(size, 0).Len) / float64(size)
		if n > 1 && size >= n && part < least && !spec.Shards(d) {
			best, least = d, part
		}
	}
	return best
}

// alongBatch cuts dimension 0 as the batch is cut.
func (pr *propagator) alongBatch(v *ir.Value) {
	for a, axis := range pr.mesh.Axes {
		if axis.Time || FollowsBatch(axis) && axis.Size > 1 {
			v.Spec[a] = ir.ShardOn(0)
		}
	}
}

// escaping notes what the forward and backward passes make for the update phase
// and the outputs.
func (pr *propagator) escaping() {
	for _, n := range pr.src.Nodes {
		if n.Phase == ir.Update {
			for _, a := range n.Args {
				pr.of(a).escapes = true
			}
		}
	}
	for _, o := range pr.src.Outputs {
		pr.of(o.Value).escapes = true
	}
}

// gradients notes, for every value that ends as the gradient of a parameter,
// where the optimizer wants it: as its state lies.
func (pr *propagator) gradients() {
	for i := len(pr.src.Nodes) - 1; i >= 0; i-- {
		n := pr.src.Nodes[i]
		switch n.Op {
		case ir.OpAdamW:
			grad := pr.of(n.Args[3])
			grad.isGrad, grad.want, grad.spread = true, n.Args[1].Spec, pr.of(n.Args[1]).spread
		case ir.OpAddN, ir.OpCast, ir.OpFromFixed, ir.OpSend, ir.OpRecv:
			if r := pr.of(n.Results[0]); r.isGrad {
				for _, a := range n.Args {
					term := pr.of(a)
					term.isGrad, term.want, term.tied, term.spread = true, r.want, r.tied || n.Op == ir.OpAddN, r.spread
				}
			}
		}
	}
}

// node chooses the placement of one node and appends it.
func (pr *propagator) node(n *ir.Node) error {
	if n.Op.Class() == ir.Leaf {
		pr.dst.Nodes = append(pr.dst.Nodes, n)
		return nil
	}
	args := n.Args
	if n.Phase == ir.Update {
		for i, a := range args {
			if sum := pr.of(a).sum; sum != nil {
				args[i] = sum
			}
		}
	}
	if n.Phase != ir.Update && n.Block() != "" {
		for i, a := range args {
			if OutsideBlocks(a.Def) && len(a.Type.Shape) == 3 { // the residual stream
				entered, err := pr.enter(a)
				if err != nil {
					return fmt.Errorf("operand %d (%s): %w", i, a.Name(), err)
				}
				args[i] = entered
			}
		}
	}
	var argSpecs, resSpecs []ir.ShardSpec
	switch n.Op {
	case ir.OpSend, ir.OpRecv:
		argSpecs, resSpecs = pr.wire(n, args[0])
	case ir.OpFold, ir.OpUnfold:
		argSpecs, resSpecs = pr.refold(n, args[0])
	default:
		var err error
		if argSpecs, resSpecs, err = pr.choose(n); err != nil {
			return err
		}
	}
	for i, a := range args {
		v, err := pr.reshard(a, argSpecs[i], n.Stage, n.Phase, n)
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
	pr.dst.Nodes = append(pr.dst.Nodes, n)
	if n.Phase == ir.Update {
		return nil
	}
	for _, r := range n.Results {
		if pr.of(r).escapes {
			if err := pr.accumulate(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// wire places the two ends of a transfer: as the value lies, but whole in the
// forward and backward passes, where the receiver would have to reduce it. A term of a gradient
// goes as tensor-parallel ranks have the parameter, however its stage has made it: it is summed and
// cut once, before, in no more bytes, and the receiver is the same with the loss in any number of slices.
func (pr *propagator) wire(n *ir.Node, v *ir.Value) (args, results []ir.ShardSpec) {
	spec, known := v.Spec, pr.of(v)
	for a := range pr.mesh.Axes {
		switch {
		case n.Phase != ir.Update && spec[a].Kind == ir.Partial && !pr.isTime(a):
			spec[a] = ir.Placement{}
		case n.Phase == ir.Update && known.isGrad && tensorParallel(pr.mesh.Axes[a]):
			spec[a] = known.want[a]
		}
	}
	if checkSplit(pr.mesh, spec, v.Type.Shape) != nil {
		spec = v.Spec // ranks of other axes have left too little to cut
	}
	return []ir.ShardSpec{spec}, []ir.ShardSpec{spec}
}

func (pr *propagator) isTime(axis int) bool {
	return axis < len(pr.mesh.Axes) && pr.mesh.Axes[axis].Time
}

// accumulate sums a value over micro-batches at the end of the pass that makes
// it, so that the update phase can use it. From ZeRO stage 2 on a gradient is
// reduced to the rank's shard first, with every micro-batch, so that the whole
// gradient never accumulates.
func (pr *propagator) accumulate(r *ir.Value) error {
	mb := pr.mb
	if r.Spec[mb].Kind != ir.Partial {
		return nil
	}
	v := r
	isGrad, want := pr.of(r).isGrad, pr.of(r).want
	if isGrad && pr.plan.ZeRO >= 2 {
		to := r.Spec
		for axis, a := range pr.mesh.Axes {
			shares := a.Name == AxisDP || a.Name == AxisTP && pr.of(r).spread
			if shares && want[axis].Kind == ir.Shard && to[axis].Kind == ir.Partial {
				to[axis] = want[axis]
			}
		}
		if checkSplit(pr.mesh, to, r.Type.Shape) != nil {
			// The op has cut the same dimension too, over ranks that are to hold the gradient
			// otherwise: too small to be cut by both.
			dp := pr.mesh.Axis(AxisDP)
			for a := range pr.mesh.Axes {
				if a != dp && a != mb && meets(to[a], to[dp]) {
					to[a] = want[a]
				}
			}
		}
		var err error
		if v, err = pr.reshard(r, to, r.Def.Stage, r.Def.Phase, nil); err != nil {
			return err
		}
	}
	to := v.Spec
	to[mb] = ir.Placement{}
	sum := pr.comm(ir.OpAccumulate, v, to, r.Def.Stage, r.Def.Phase, ir.CommAttr{Axis: AxisMB}).Results[0]
	pr.of(sum).isGrad, pr.of(sum).want, pr.of(sum).spread = isGrad, want, pr.of(r).spread
	pr.of(r).sum = sum
	return nil
}
