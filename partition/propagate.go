package partition

import (
	"fmt"
	"math"

	"github.com/autopar/autopar/ir"
)

// propagator gives every value of a staged graph a placement. It walks the graph in order. For every node and
// mesh axis it chooses the rule of the op's dimension signature that costs the fewest bytes of communication
// (choose.go, rulecost.go), then appends the collectives that bring operands to the placement that the rule
// requires (reshard.go), and the node itself.
type propagator struct {
	plan   *Plan
	mesh   ir.Mesh
	src    *ir.Graph
	dst    *ir.Graph
	placer *placer
	arena  ir.Arena
	facts  []fact         // by ID; values that are added come after those of the source graph
	steps  []Step         // scratch space of reshard
	specs  []ir.ShardSpec // scratch space of choose
	names  map[string]int // how often the name of a communication node has been used
	mb     int            // index of the axis of micro-batches
}

// fact is what is known about a value.
type fact struct {
	// isGrad says that the value ends up as the gradient of a parameter, perhaps after sums and casts.
	isGrad  bool
	tied    bool         // such a gradient, of a parameter that is used more than once: a term of the sum
	spread  bool         // a parameter, its state or its gradient that ZeRO also shards over tensor-parallel ranks
	want    ir.ShardSpec // for a gradient: the placement that the optimizer needs, that of its state
	escapes bool         // read by the update phase, or an output of the graph
	sum     *ir.Value    // if it escapes: its sum over micro-batches
	moved   *moved       // its resharded versions
}

// of returns what is known about a value.
func (pr *propagator) of(v *ir.Value) *fact { return &pr.facts[v.ID] }

// moved is a version of a value that has been resharded for a use; uses with the same key share it. A value
// that was reduced in the forward pass is reused in the backward pass. A value that was gathered is not: it is
// freed after use, and gathered again for each block and phase that needs it.
type moved struct {
	key  movedKey
	to   *ir.Value
	next *moved
}

type movedKey struct {
	spec  ir.ShardSpec
	stage int
	phase ir.Phase // only if it is gathered
	block string   // only if it is a gathered parameter
}

// propagate gives every value of g a spec and returns the new graph. It consumes g.
func propagate(g *ir.Graph, p *Plan, mesh ir.Mesh) (*ir.Graph, error) {
	placer, err := newPlacer(p, mesh)
	if err != nil {
		return nil, err
	}
	pr := &propagator{
		plan: p, mesh: mesh, src: g, dst: ir.NewGraph(g.Name), placer: placer,
		facts: make([]fact, g.IDs(), g.IDs()*3/2), names: make(map[string]int, len(g.Nodes)/4), mb: mesh.Axis(AxisMB),
	}
	pr.dst.Mesh, pr.dst.Nodes = mesh, make([]*ir.Node, 0, len(g.Nodes)*3/2)
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

// output replicates an output on every rank. A value that is made anew in each micro-batch can be read after
// the step only if there is just one.
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

// leaves places parameters, optimizer state, caches and inputs. For everything else placements are derived.
func (pr *propagator) leaves() error {
	state := make([]*ir.Value, pr.src.IDs()) // by ID: for optimizer state, its parameter
	cache := map[*ir.Value]bool{}            // caches of keys and values for decoding
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
		name, stage := n.Name, 3 // stage: the ZeRO stage from which on it is sharded
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

// overReplicas shards a value, which data-parallel and context-parallel ranks would otherwise replicate, over the
// ranks of a ZeRO group, as Megatron's distributed optimizer and torchtitan's FSDP do.
func (pr *propagator) overReplicas(spec ir.ShardSpec, shape []int) ir.ShardSpec {
	if d := ReplicaDim(pr.mesh.Size(AxisDP)*pr.mesh.Size(AxisCP), spec, shape); d >= 0 {
		for i, a := range pr.mesh.Axes {
			if sharesReplicas(a) && a.Size > 1 {
				spec[i] = ir.ShardOn(d)
			}
		}
	}
	return spec
}

// sharesReplicas reports whether ZeRO shards over an axis.
func sharesReplicas(a ir.Axis) bool { return a.Name == AxisDP || a.Name == AxisCP }

// overTensorParallel also shards a value over tensor-parallel ranks if a placement replicates it there and each
// of these ranks has a term of its gradient. It uses the largest dimension that is not sharded yet. That choice
// does not depend on the number of ranks, so that the planner can use a program of two ranks to stand for more.
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

// ReplicaDim returns the dimension in which ZeRO shards a value over n ranks: of the dimensions that are not
// sharded yet, the first of those that n divides most evenly. (Slices of slices would have to be gathered
// before they can be moved.) It returns -1 if there is no such dimension, as for a bias sharded over tp; the
// value then stays replicated.
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

// alongBatch shards dimension 0 as the batch is sharded.
func (pr *propagator) alongBatch(v *ir.Value) {
	for a, axis := range pr.mesh.Axes {
		if axis.Time || FollowsBatch(axis) && axis.Size > 1 {
			v.Spec[a] = ir.ShardOn(0)
		}
	}
}

// escaping marks what the forward and backward passes make for the update phase and the outputs.
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

// gradients marks every value that ends up as the gradient of a parameter, and records the placement that the
// optimizer needs: that of its state.
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

// node chooses the placement of one node and appends it, after the communication that it needs.
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

// wire returns the placement of both ends of a transfer: that of the value, with two exceptions. In the forward
// and backward pass partial sums are reduced before they are sent, since otherwise the receiver would have to
// do it. And in the update a gradient is sent in the placement of its parameter over tensor-parallel ranks,
// whatever its stage computes: it is then reduced and sliced once, by the sender, in no more bytes, and the
// receiver does not depend on the number of slices of the loss.
func (pr *propagator) wire(n *ir.Node, v *ir.Value) (args, results []ir.ShardSpec) {
	spec, known := v.Spec, pr.of(v)
	for a, axis := range pr.mesh.Axes {
		switch {
		case n.Phase != ir.Update && spec[a].Kind == ir.Partial && !axis.Time:
			spec[a] = ir.Placement{}
		case n.Phase == ir.Update && known.isGrad && tensorParallel(axis):
			spec[a] = known.want[a]
		}
	}
	if checkSplit(pr.mesh, spec, v.Type.Shape) != nil {
		spec = v.Spec // the other axes have left too little to shard
	}
	return []ir.ShardSpec{spec}, []ir.ShardSpec{spec}
}

// accumulate sums a value over micro-batches, at the end of the pass that makes it, so that the update phase
// can use it. From ZeRO stage 2 on, a gradient is first reduced to the rank's shard, in every micro-batch, so
// that the whole gradient is never accumulated.
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
			shares := sharesReplicas(a) || a.Name == AxisTP && pr.of(r).spread
			if shares && want[axis].Kind == ir.Shard && to[axis].Kind == ir.Partial {
				to[axis] = want[axis]
			}
		}
		if checkSplit(pr.mesh, to, r.Type.Shape) != nil {
			// The op has sharded the same dimension over ranks that are to hold the gradient in another
			// placement, and the dimension is too short to be sharded by both.
			for share, of := range pr.mesh.Axes {
				for a, axis := range pr.mesh.Axes {
					if sharesReplicas(of) && !sharesReplicas(axis) && a != mb && meets(to[a], to[share]) {
						to[a] = want[a]
					}
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
