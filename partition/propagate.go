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
	plan   *Plan
	mesh   ir.Mesh
	src    *ir.Graph
	dst    *ir.Graph
	placer *placer
	arena  ir.Arena
	facts  []fact // by ID, those of new values after those of the source graph
	steps  []Step
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
	weights := weightsOf(pr.src)
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
		if len(v.Spec.ShardAxes(d)) == 0 && size >= pr.mesh.Axes[tp].Size && (largest < 0 || size > v.Type.Shape[largest]) {
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
		if n > 1 && size >= n && len(spec.ShardAxes(d)) == 0 && part < least {
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
	var argSpecs, resSpecs []ir.ShardSpec
	switch n.Op {
	case ir.OpSend, ir.OpRecv:
		argSpecs, resSpecs = pr.wire(n, args[0])
	case ir.OpFold, ir.OpUnfold:
		argSpecs, resSpecs = pr.refold(n, args[0])
	default:
		var err error
		if argSpecs, resSpecs, err = pr.choose(n, args); err != nil {
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
	specs := make([]ir.ShardSpec, len(n.Args)+len(n.Results))
	argSpecs, resSpecs = specs[:len(n.Args)], specs[len(n.Args):]
	pin, pinned, err := pr.placer.find(pr.mesh, BaseName(n.Name), n.Results[0].Type.Shape)
	if err != nil {
		return nil, nil, err
	}
	var rules [ir.MaxAxes]int
	for axis, a := range pr.mesh.Axes {
		rules[axis] = ir.ReplicateAll
		if a.Size == 1 && !a.Time && whole(args, axis) {
			continue // as in the zero spec: there is nothing to place
		}
		best := math.Inf(1)
		for rule := ir.PassPartial; rule < len(sig.Dims); rule++ {
			if a.Size == 1 && !a.Time && rule != ir.ReplicateAll {
				continue // nothing to place on an axis of one
			}
			if a.Time && n.Phase == ir.Update && rule != ir.ReplicateAll {
				continue // it runs after the last micro-batch, once
			}
			ra, rr, ok := sig.Rule(rule)
			if !ok || rule >= 0 && !a.Time && sig.Dims[rule].Size < a.Size*pr.parts(rules[:axis], rule) {
				continue
			}
			if pinned && tensorParallel(a) && rr[0] != pin[axis] {
				continue
			}
			cost := pr.cost(n, sig, args, axis, rule, ra, rr)
			if cost < best {
				best, rules[axis] = cost, rule
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

// parts is into how many parts the rules of some axes cut a dimension over devices.
func (pr *propagator) parts(rules []int, dim int) int {
	n := 1
	for axis, rule := range rules {
		if a := &pr.mesh.Axes[axis]; rule == dim && !a.Time {
			n *= a.Size
		}
	}
	return n
}

// whole reports whether an axis places nothing of any value.
func whole(values []*ir.Value, axis int) bool {
	for _, v := range values {
		if v.Spec[axis] != (ir.Placement{}) {
			return false
		}
	}
	return true
}

// Costs are bytes moved per rank, in units where ties are broken by small
// fractions of a byte.
const (
	// lastResort keeps from moving what the plan has decided: a parameter stays
	// where it lies, and activations become sharded by meeting sharded
	// parameters (or by a placement of their own), not to save a byte here.
	lastResort = 1e15
	tiePartial = 1e-2 // a whole operand becomes a term of a sum
	tieChange  = 1e-3 // an operand has to be moved
	tieWhole   = 1e-4 // the work is repeated on every rank
)

// cost is what a rule costs on one axis: moving the operands, reducing Partial
// results some day, and bringing gradients to where their parameter lies. A
// gradient moved there already costs nothing. The batch stays cut: micro-batches
// cannot see each other, and data-parallel ranks do not repeat each other's work;
// nor do context-parallel ranks, so a sequence is gathered only for operands that
// their op needs whole: the keys and values of attention.
func (pr *propagator) cost(n *ir.Node, sig *ir.Signature, args []*ir.Value, axis, rule int, ra, rr []ir.Placement) float64 {
	a := &pr.mesh.Axes[axis]
	size, context := a.Size, a.Name == AxisCP
	follows := a.Time || (context || FollowsBatch(*a)) && n.Phase != ir.Update
	cost := 0.0
	if rule == ir.ReplicateAll {
		cost += tieWhole
	}
	if rule == ir.PassPartial && tensorParallel(*a) && n.Phase == ir.Forward && n.Block() != "" && slices.ContainsFunc(args, func(v *ir.Value) bool {
		return v.Spec[axis].Kind == ir.Partial && v.Def.Block() != n.Block()
	}) {
		return math.Inf(1) // the first block adds to what is looked up as others do to what comes from a block
	}
	for i, v := range args {
		from, known := v.Spec[axis], pr.of(v)
		home := known.isGrad && known.want[axis] == ra[i]
		if squares := n.Op == ir.OpSumSquares || n.Op == ir.OpFixedSquares; squares && known.isGrad {
			if home {
				continue // the optimizer needs it there anyway
			}
			if known.want[axis].Kind == ir.Shard {
				cost += lastResort // a second way through the other axes, for the norm alone
			}
		}
		if from == ra[i] {
			continue
		}
		if n.Op == ir.OpCast && !(pr.reducesFirst(n, axis) && ra[i].Kind == ir.Shard) {
			return math.Inf(1)
		}
		stays := from.Kind == ir.Shard && pr.ofBatch(v)
		if context && from.Kind == ir.Shard { // nothing but sequences lies so
			stays = !sig.Dims[sig.Args[i][from.Dim]].Frozen
		}
		if a.Time || follows && stays {
			return math.Inf(1)
		}
		if pr.sumsStream(n, axis, ra) {
			cost += tieChange
			continue
		}
		if v.Def.Op == ir.OpParam && known.spread && tensorParallel(*a) && n.Phase != ir.Update {
			if ra[i].Kind == ir.Replicate {
				continue // it lies so at rest, and is whole in use
			}
			return math.Inf(1)
		}
		c := moveBytes(from, ra[i], float64(v.Type.Bytes()), size)
		if ra[i].Kind == ir.Partial {
			c += tiePartial
		}
		along := ra[i].Kind == ir.Shard && pr.alongStream(n, axis, rr)
		if v.Def.Op == ir.OpParam || ra[i].Kind == ir.Shard && !home && !along && !pr.alongWhole(n, v, axis, ra[i], rr) && !pr.alongRows(n, args, axis, ra, rr) || repeatsAttention(n, i, from) || pr.sumsNorm(n) && from.Kind == ir.Partial && (v.Def.Block() != "" || v.Def.Op == ir.OpRecv) {
			// The last: the norm of the gradients is reduced once, with however few blocks,
			// where terms of theirs are to be reduced, or those of the stages before: all stages
			// between the ends do the same.
			c += lastResort
		}
		if !along || from.Kind != ir.Replicate {
			// A slice of the sequence is what the blocks want: the embedding hands
			// out slices even where each rank could look up every token.
			c += tieChange
		}
		cost += c
	}
	if a.Time {
		return cost
	}
	for i, r := range n.Results {
		to := ir.Placement{}
		if known := pr.of(r); known.isGrad {
			to = known.want[axis]
		} else if rr[i].Kind == ir.Shard {
			continue
		}
		cost += moveBytes(rr[i], to, float64(r.Type.Bytes()), size)
		if a.Name == AxisTPR && to.Kind == ir.Shard && rr[i] != to {
			cost += lastResort // a gradient is made in the parts that the rows hold
		}
	}
	return cost
}

// sumsNorm reports whether a node adds up terms of the norm of the gradients, a scalar or, in fixed
// point, two numbers: nothing else is summed in the update but gradients.
func (pr *propagator) sumsNorm(n *ir.Node) bool {
	return n.Op == ir.OpAddN && n.Phase == ir.Update && !pr.of(n.Results[0]).isGrad
}

// repeatsAttention reports whether operand i of a gradient of attention lies as the
// ranks divided attention: by queries that share heads, where there are more ranks
// than such heads. It is not gathered, for every rank to do all of them.
func repeatsAttention(n *ir.Node, i int, from ir.Placement) bool {
	return n.Op == ir.OpAttentionGrad && i == 2 && from.Kind == ir.Shard
}

// reducesFirst reports whether a cast has its operand reduced before: that of a
// gradient from ZeRO stage 2 on, which would be reduced with every micro-batch
// after it too, in more bytes. Any other cast is made where its operand lies.
func (pr *propagator) reducesFirst(n *ir.Node, axis int) bool {
	of := pr.of(n.Results[0])
	shares := pr.mesh.Axes[axis].Name == AxisDP || of.spread && pr.mesh.Axes[axis].Name == AxisTP
	return of.isGrad && pr.plan.ZeRO >= 2 && n.Phase == ir.Backward && shares
}

// ofBatch reports whether a value is cut as the batch is. A parameter is not, nor
// what is made of nothing but parameters: rows of a position table that ZeRO shards.
func (pr *propagator) ofBatch(v *ir.Value) bool {
	return v.Def.Op != ir.OpParam && v.Spec[pr.mb].Kind == ir.Shard
}

// sharesStream reports whether ranks of an axis each have a part of the residual stream.
func (pr *propagator) sharesStream(axis int) bool {
	return pr.plan.streamDim() >= 0 && tensorParallel(pr.mesh.Axes[axis])
}

// alongStream reports whether a rule gives each rank of the tensor-parallel axis
// a slice of the sequence (Korthikanti et al. 2022, section 4.2.2), or of the batch, of its
// result [batch, sequence, ...], in a plan that wants that.
func (pr *propagator) alongStream(n *ir.Node, axis int, results []ir.Placement) bool {
	return pr.sharesStream(axis) && n.Phase != ir.Update &&
		len(n.Results[0].Type.Shape) >= 3 && results[0] == ir.ShardOn(pr.plan.streamDim())
}

// alongWhole reports whether an operand is cut along the sequence over the tensor-parallel
// axis, or from there by heads, for an op whose weights are whole, in a plan that wants
// the stream sharded. Attention exchanges its tokens with all heads, as the projections before
// it made them, for heads of all tokens (Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.1);
// the loss takes its tokens' targets, which every rank has.
func (pr *propagator) alongWhole(n *ir.Node, v *ir.Value, axis int, to ir.Placement, results []ir.Placement) bool {
	if !pr.sharesStream(axis) {
		return false
	}
	along := ir.ShardOn(pr.plan.streamDim())
	switch n.Op {
	case ir.OpAttention, ir.OpAttentionGrad:
		return v.Spec[axis] == along && to.Kind == ir.Shard && to.Dim > 1
	case ir.OpRowPick, ir.OpNLL:
		return v.Spec[axis].Kind == ir.Replicate && to == along && results[0] == to
	}
	return false
}

// alongRows reports whether a rule multiplies with the part of a weight that a row of
// tensor-parallel ranks holds, or makes its gradient: what it meets is cut as that is.
func (pr *propagator) alongRows(n *ir.Node, args []*ir.Value, axis int, to, results []ir.Placement) bool {
	if n.Op != ir.OpMatMul || pr.mesh.Axes[axis].Name != AxisTPR {
		return false
	}
	if of := pr.of(n.Results[0]); of.isGrad {
		return results[0].Kind == ir.Shard && of.want[axis] == results[0]
	}
	w := args[1]
	return w.Def.Op == ir.OpParam && to[1].Kind == ir.Shard && w.Spec[axis] == to[1]
}

// sumsStream reports whether a rule makes the gradient of a weight that is whole on all
// tensor-parallel ranks a sum over their slices of the stream, in a plan that has such.
// It is what the plan wants, wherever the operands come from: they are recomputed or not.
func (pr *propagator) sumsStream(n *ir.Node, axis int, args []ir.Placement) bool {
	if !pr.sharesStream(axis) || n.Op != ir.OpMatMul && n.Op != ir.OpEmbeddingGrad {
		return false
	}
	of := pr.of(n.Results[0])
	if n.Op == ir.OpEmbeddingGrad && !of.tied {
		return false // a table that is only looked up is mostly more than its tokens
	}
	along := ir.ShardOn(pr.plan.streamDim())
	whole := of.spread || of.want[axis].Kind == ir.Replicate
	return of.isGrad && whole && args[0] == along && args[1] == along
}

// moveBytes is what each of n ranks receives when a value of the given size goes
// from one placement to another (PLANNING.md 2.5, bandwidth terms), in the measure
// of two ranks however many there are: plans that differ in degrees alone must be
// one program, as the planner prices them all from one of two ranks an axis.
func moveBytes(from, to ir.Placement, bytes float64, n int) float64 {
	switch {
	case n == 1 || from == to || from.Kind == ir.Replicate:
		return 0
	case to.Kind == ir.Partial:
		return math.Inf(1)
	case from.Kind == ir.Partial && to.Kind == ir.Replicate:
		return bytes
	case from.Kind == ir.Shard && to.Kind == ir.Shard:
		return bytes / 4
	}
	return bytes / 2
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
