package partition

import (
	"math"

	"github.com/autopar/autopar/ir"
)

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

// trial is a rule of a node's signature on one axis, after those of the axes before.
type trial struct {
	n             *ir.Node
	sig           *ir.Signature
	before        []int // rules of the axes before
	rule          int
	args, results []ir.Placement // of operands and results, on the axis
}

func (t *trial) axis() int { return len(t.before) }

// cost is what a rule costs: moving the operands, reducing Partial
// results some day, and bringing gradients to where their parameter lies. It is
// infinite where that is known not to be less than the best of other rules.
func (pr *propagator) cost(t *trial, best float64) float64 {
	cost := 0.0
	if t.rule == ir.ReplicateAll {
		cost += tieWhole
	}
	for i := range t.n.Args {
		if cost += pr.costOfOperand(t, i); cost >= best {
			return math.Inf(1)
		}
	}
	if !pr.mesh.Axes[t.axis()].Time {
		for i := range t.n.Results {
			cost += pr.costOfResult(t, i)
		}
	}
	return cost
}

// costOfOperand is what it costs to have an operand where a rule wants it; infinite where it may not go. A
// gradient moved to where its parameter lies costs nothing: the optimizer needs it there anyway.
func (pr *propagator) costOfOperand(t *trial, i int) float64 {
	a, v := &pr.mesh.Axes[t.axis()], t.n.Args[i]
	from, to, known := v.Spec[t.axis()], t.args[i], pr.of(v)
	home := known.isGrad && known.want[t.axis()] == to
	cost := 0.0
	if squares := t.n.Op == ir.OpSumSquares || t.n.Op == ir.OpFixedSquares; squares && known.isGrad {
		if home {
			return 0
		}
		if known.want[t.axis()].Kind == ir.Shard {
			cost += lastResort // a second way through the other axes, for the norm alone
		}
	}
	if from == to {
		return cost
	}
	atRest := v.Def.Op == ir.OpParam && known.spread && tensorParallel(*a) && t.n.Phase != ir.Update
	switch {
	case a.Time || pr.staysCut(t, i) || pr.castInPlace(t, i, home):
		return math.Inf(1)
	case pr.sumsStream(t):
		return cost + tieChange
	case atRest && to.Kind == ir.Replicate:
		return cost // it lies so at rest, and is whole in use
	case atRest:
		return math.Inf(1)
	}
	cost += moveBytes(from, to, float64(v.Type.Bytes()), a.Size)
	if to.Kind == ir.Partial {
		cost += tiePartial
	}
	along := to.Kind == ir.Shard && pr.alongStream(t)
	cuts := to.Kind == ir.Shard && !home && !along && !pr.alongWhole(t, i) && !pr.alongRows(t)
	if cuts || v.Def.Op == ir.OpParam || repeatsAttention(t.n, i, from) || pr.sumsNorm(t.n, v, from) {
		cost += lastResort
	}
	if !along || from.Kind != ir.Replicate {
		// A slice of the sequence is what the blocks want: the embedding hands
		// out slices even where each rank could look up every token.
		cost += tieChange
	}
	return cost
}

// costOfResult is what it costs to reduce a result some day, or to bring a gradient to where its parameter lies.
func (pr *propagator) costOfResult(t *trial, i int) float64 {
	a, r, from := &pr.mesh.Axes[t.axis()], t.n.Results[i], t.results[i]
	to := ir.Placement{}
	if known := pr.of(r); known.isGrad {
		to = known.want[t.axis()]
	} else if from.Kind == ir.Shard {
		return 0
	}
	cost := moveBytes(from, to, float64(r.Type.Bytes()), a.Size)
	if a.Name == AxisTPR && to.Kind == ir.Shard && from != to {
		cost += lastResort // a gradient is made in the parts that the rows hold
	}
	return cost
}

// staysCut reports whether an operand is cut as the batch is, which it stays: micro-batches
// cannot see each other, and data-parallel ranks do not repeat each other's work;
// nor do context-parallel ranks, so a sequence is gathered only for operands that
// their op needs whole: the keys and values of attention.
func (pr *propagator) staysCut(t *trial, i int) bool {
	a, v := &pr.mesh.Axes[t.axis()], t.n.Args[i]
	from := v.Spec[t.axis()]
	switch {
	case from.Kind != ir.Shard || t.n.Phase == ir.Update:
		return false
	case a.Name == AxisCP: // nothing but sequences lies so
		return !t.sig.Dims[t.sig.Args[i][from.Dim]].Frozen
	}
	return FollowsBatch(*a) && pr.ofBatch(v)
}

// castInPlace reports whether a cast is made where its operand lies. All are but that of a gradient
// which is reduced before, and one that leaves no room for what comes after:
// heads that attention has cut may be too few for both.
func (pr *propagator) castInPlace(t *trial, i int, home bool) bool {
	if t.n.Op != ir.OpCast {
		return false
	}
	from := t.n.Args[i].Spec[t.axis()]
	reduced := pr.reducesFirst(t.n, t.axis()) && t.args[i].Kind == ir.Shard
	roomless := home && from.Kind == ir.Shard && pr.crowded(t.sig, t.before, t.sig.Args[i][from.Dim])
	return !reduced && !roomless
}

// sumsNorm reports whether a node adds up terms of the norm of the gradients, a scalar or, in fixed
// point, two numbers (nothing else is summed in the update but gradients), of which one is reduced before:
// that of blocks, or of the stages before. They are reduced once, together, with however few blocks,
// so that all stages between the ends do the same.
func (pr *propagator) sumsNorm(n *ir.Node, term *ir.Value, from ir.Placement) bool {
	return n.Op == ir.OpAddN && n.Phase == ir.Update && !pr.of(n.Results[0]).isGrad &&
		from.Kind == ir.Partial && (term.Def.Block() != "" || term.Def.Op == ir.OpRecv)
}

// repeatsAttention reports whether operand i of a gradient of attention lies as the
// ranks divided attention: by queries that share heads, where there are more ranks
// than such heads. It is not gathered, for every rank to do all of them.
func repeatsAttention(n *ir.Node, i int, from ir.Placement) bool {
	return n.Op == ir.OpAttentionGrad && i == 2 && from.Kind == ir.Shard
}

// reducesFirst reports whether a cast has its operand reduced before: that of a
// gradient from ZeRO stage 2 on, which would be reduced with every micro-batch
// after it too, in more bytes.
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
func (pr *propagator) alongStream(t *trial) bool {
	return pr.sharesStream(t.axis()) && t.n.Phase != ir.Update &&
		len(t.n.Results[0].Type.Shape) >= 3 && t.results[0] == ir.ShardOn(pr.plan.streamDim())
}

// alongWhole reports whether an operand is cut along the sequence over the tensor-parallel
// axis, or from there by heads, for an op whose weights are whole, in a plan that wants
// the stream sharded. Attention exchanges its tokens with all heads, as the projections before
// it made them, for heads of all tokens (Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.1);
// the loss takes its tokens' targets, which every rank has.
func (pr *propagator) alongWhole(t *trial, i int) bool {
	if !pr.sharesStream(t.axis()) {
		return false
	}
	from, to, along := t.n.Args[i].Spec[t.axis()], t.args[i], ir.ShardOn(pr.plan.streamDim())
	switch t.n.Op {
	case ir.OpAttention, ir.OpAttentionGrad:
		return from == along && to.Kind == ir.Shard && to.Dim > 1
	case ir.OpRowPick, ir.OpNLL:
		return from.Kind == ir.Replicate && to == along && t.results[0] == to
	}
	return false
}

// alongRows reports whether a rule multiplies with the part of a weight that a row of
// tensor-parallel ranks holds, or makes its gradient: what it meets is cut as that is.
func (pr *propagator) alongRows(t *trial) bool {
	if t.n.Op != ir.OpMatMul || pr.mesh.Axes[t.axis()].Name != AxisTPR {
		return false
	}
	if of := pr.of(t.n.Results[0]); of.isGrad {
		return t.results[0].Kind == ir.Shard && of.want[t.axis()] == t.results[0]
	}
	w, to := t.n.Args[1], t.args[1]
	return w.Def.Op == ir.OpParam && to.Kind == ir.Shard && w.Spec[t.axis()] == to
}

// sumsStream reports whether a rule makes the gradient of a weight that is whole on all
// tensor-parallel ranks a sum over their slices of the stream, in a plan that has such.
// It is what the plan wants, wherever the operands come from: they are recomputed or not.
func (pr *propagator) sumsStream(t *trial) bool {
	if !pr.sharesStream(t.axis()) || t.n.Op != ir.OpMatMul && t.n.Op != ir.OpEmbeddingGrad {
		return false
	}
	of := pr.of(t.n.Results[0])
	if t.n.Op == ir.OpEmbeddingGrad && !of.tied {
		return false // a table that is only looked up is mostly more than its tokens
	}
	along := ir.ShardOn(pr.plan.streamDim())
	whole := of.spread || of.want[t.axis()].Kind == ir.Replicate
	return of.isGrad && whole && t.args[0] == along && t.args[1] == along
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
