package partition

import (
	"fmt"
	"math"
	"slices"

	"github.com/autopar/autopar/ir"
)

// choose picks a rule for every axis. Axes are independent: the placements of
// one do not change which rules of another are legal. What it returns is good until it is called again.
func (pr *propagator) choose(n *ir.Node, args []*ir.Value) (argSpecs, resSpecs []ir.ShardSpec, err error) {
	sig := ir.SignatureOf(n)
	specs := slices.Grow(pr.specs[:0], len(n.Args)+len(n.Results))[:len(n.Args)+len(n.Results)]
	clear(specs)
	pr.specs = specs
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
			if !ok || pr.crowded(sig, rules[:axis], rule) {
				continue
			}
			if pinned && tensorParallel(a) && rr[0] != pin[axis] {
				continue
			}
			if a.Time && n.Phase != ir.Update && !lie(args, axis, ra) {
				continue // micro-batches cannot see each other
			}
			cost := pr.cost(n, sig, args, rules[:axis], rule, ra, rr)
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

// crowded reports whether a rule would cut a dimension that is too short for it: the rules of the
// axes before have cut it too.
func (pr *propagator) crowded(sig *ir.Signature, before []int, rule int) bool {
	a := &pr.mesh.Axes[len(before)]
	return rule >= 0 && !a.Time && sig.Dims[rule].Size < a.Size*pr.parts(before, rule)
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

// lie reports whether values lie on an axis as placements have it.
func lie(values []*ir.Value, axis int, as []ir.Placement) bool {
	for i, v := range values {
		if v.Spec[axis] != as[i] {
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

// cost is what a rule costs on one axis, after the rules of those before: moving the operands, reducing Partial
// results some day, and bringing gradients to where their parameter lies. A
// gradient moved there already costs nothing. The batch stays cut: micro-batches
// cannot see each other, and data-parallel ranks do not repeat each other's work;
// nor do context-parallel ranks, so a sequence is gathered only for operands that
// their op needs whole: the keys and values of attention.
func (pr *propagator) cost(n *ir.Node, sig *ir.Signature, args []*ir.Value, before []int, rule int, ra, rr []ir.Placement) float64 {
	axis := len(before)
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
		if n.Op == ir.OpCast && !(pr.reducesFirst(n, axis) && ra[i].Kind == ir.Shard) &&
			!(home && from.Kind == ir.Shard && pr.crowded(sig, before, sig.Args[i][from.Dim])) {
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
// after it too, in more bytes. Any other cast is made where its operand lies, unless that
// reduction leaves no room there: heads that attention has cut may be too few for both.
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
// from one placement to another (Thakur et al. 2005, terms of bandwidth), in the measure
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
