package partition

import (
	"math"

	"github.com/autopar/autopar/ir"
)

// Costs are bytes that each rank receives. Ties are broken by small fractions of a byte.
const (
	// lastResort is the penalty for undoing what the plan has decided. A parameter stays where it is placed,
	// and activations become sharded only because they meet sharded parameters (or have a placement of their
	// own), not to save bytes here.
	lastResort = 1e15
	tiePartial = 1e-2 // a replicated operand becomes a term of a sum
	tieChange  = 1e-3 // an operand has to be resharded
	tieWhole   = 1e-4 // the work is repeated on every rank
)

// trial is a rule of a node's signature on one axis, given the rules chosen for the earlier axes.
type trial struct {
	n             *ir.Node
	sig           *ir.Signature
	before        []int // rules of the earlier axes
	rule          int
	args, results []ir.Placement // placements of operands and results on the axis
}

func (t *trial) axis() int { return len(t.before) }

// cost returns the cost of a rule: moving the operands, reducing Partial results at some later point, and
// bringing gradients to the placement of their parameter. It returns infinity as soon as the cost is known to
// be no less than best.
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

// costOfOperand returns the cost of bringing an operand to the placement that a rule requires. It is infinite
// if that is not allowed. Moving a gradient to the placement of its parameter is free, because the optimizer
// needs it there anyway.
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
			cost += lastResort // a second resharding of the gradient, only for the norm
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
		return cost // it is stored sharded and gathered for use
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
		// Blocks need the operand sliced along the stream. The embedding should make slices even if each rank
		// could look up every token, so slicing costs nothing extra here.
		cost += tieChange
	}
	return cost
}

// costOfResult returns the cost of reducing a result at some later point, or of bringing a gradient to the
// placement of its parameter.
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
		cost += lastResort // a gradient is made directly in the shards that the rows hold
	}
	return cost
}

// staysCut reports whether an operand is sharded like the batch and must stay so. Data cannot move between
// micro-batches, and data-parallel ranks must not repeat each other's work. Neither must context-parallel
// ranks: a sequence is gathered only for operands that the op needs whole, the keys and values of attention.
func (pr *propagator) staysCut(t *trial, i int) bool {
	a, v := &pr.mesh.Axes[t.axis()], t.n.Args[i]
	from := v.Spec[t.axis()]
	switch {
	case from.Kind != ir.Shard || t.n.Phase == ir.Update:
		return false
	case a.Name == AxisCP && v.Def.Op != ir.OpParam: // apart from those, on this axis only sequences are sharded
		return !t.sig.Dims[t.sig.Args[i][from.Dim]].Frozen
	}
	return FollowsBatch(*a) && pr.ofBatch(v)
}

// castInPlace reports whether a cast must keep the placement of its operand. There are two exceptions: the cast
// of a gradient that is reduced first, and a gradient whose dimension, say the heads of attention, is too short
// to be sharded over this axis as well as the earlier ones.
func (pr *propagator) castInPlace(t *trial, i int, home bool) bool {
	if t.n.Op != ir.OpCast {
		return false
	}
	from := t.n.Args[i].Spec[t.axis()]
	reduced := pr.reducesFirst(t.n, t.axis()) && t.args[i].Kind == ir.Shard
	roomless := home && from.Kind == ir.Shard && pr.crowded(t.sig, t.before, t.sig.Args[i][from.Dim])
	return !reduced && !roomless
}

// sumsNorm reports whether a node adds up terms of the gradient norm and this term would be reduced by itself.
// The norm is a scalar, or two numbers in fixed point; the update sums nothing else but gradients. Terms of
// blocks and of earlier stages are summed first and reduced once, together, however few blocks there are, so
// that all inner stages run the same instructions.
func (pr *propagator) sumsNorm(n *ir.Node, term *ir.Value, from ir.Placement) bool {
	return n.Op == ir.OpAddN && n.Phase == ir.Update && !pr.of(n.Results[0]).isGrad &&
		from.Kind == ir.Partial && (term.Def.Block() != "" || term.Def.Op == ir.OpRecv)
}

// repeatsAttention reports whether operand i of the gradient of attention is sharded by queries that share
// key-value heads, as attention does with more ranks than such heads. It must not be gathered, or every rank
// would compute all of them.
func repeatsAttention(n *ir.Node, i int, from ir.Placement) bool {
	return n.Op == ir.OpAttentionGrad && i == 2 && from.Kind == ir.Shard
}

// reducesFirst reports whether the operand of a cast should be reduced before the cast. That holds for a
// gradient from ZeRO stage 2 on, which is reduced in every micro-batch anyway; after the cast it would take
// more bytes.
func (pr *propagator) reducesFirst(n *ir.Node, axis int) bool {
	of := pr.of(n.Results[0])
	shares := sharesReplicas(pr.mesh.Axes[axis]) || of.spread && pr.mesh.Axes[axis].Name == AxisTP
	return of.isGrad && pr.plan.ZeRO >= 2 && n.Phase == ir.Backward && shares
}

// ofBatch reports whether a value is sharded as the batch is. Parameters are not, nor is what is computed only
// from parameters, such as rows of a position table that ZeRO shards.
func (pr *propagator) ofBatch(v *ir.Value) bool {
	return v.Def.Op != ir.OpParam && v.Spec[pr.mb].Kind == ir.Shard
}

// sharesStream reports whether each rank of an axis has a part of the residual stream.
func (pr *propagator) sharesStream(axis int) bool {
	return pr.plan.streamDim() >= 0 && tensorParallel(pr.mesh.Axes[axis])
}

// alongStream reports whether a rule gives each tensor-parallel rank a slice of the result [batch, sequence,
// ...] along the dimension in which the plan shards the residual stream: the sequence (Korthikanti et al. 2022,
// section 4.2.2) or the batch.
func (pr *propagator) alongStream(t *trial) bool {
	return pr.sharesStream(t.axis()) && t.n.Phase != ir.Update &&
		len(t.n.Results[0].Type.Shape) >= 3 && t.results[0] == ir.ShardOn(pr.plan.streamDim())
}

// alongWhole reports whether an op whose weights are replicated may shard an operand over tensor-parallel
// ranks, in a plan that shards the residual stream. There are two cases. Attention exchanges a slice of tokens
// with all heads, as the projections before it compute it, for a slice of heads with all tokens (Jacobs et al.
// 2023, "DeepSpeed Ulysses", section 3.1). And the loss slices the targets of its tokens, which every rank has.
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

// alongRows reports whether a rule multiplies by the shard of a weight that a row of tensor-parallel ranks
// holds, or computes its gradient; the other operand is then sharded to match.
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

// sumsStream reports whether a rule computes the gradient of a weight that is replicated on all tensor-parallel
// ranks as a sum over their slices of the residual stream. The plan wants that wherever the operands come from,
// recomputed or not.
func (pr *propagator) sumsStream(t *trial) bool {
	if !pr.sharesStream(t.axis()) || t.n.Op != ir.OpMatMul && t.n.Op != ir.OpEmbeddingGrad {
		return false
	}
	of := pr.of(t.n.Results[0])
	if t.n.Op == ir.OpEmbeddingGrad && !of.tied {
		return false // a table that is only looked up mostly has more rows than there are tokens
	}
	along := ir.ShardOn(pr.plan.streamDim())
	whole := of.spread || of.want[t.axis()].Kind == ir.Replicate
	return of.isGrad && whole && t.args[0] == along && t.args[1] == along
}

// moveBytes returns the bytes that each rank of an axis of size n receives when a value of a given size changes
// its placement (Thakur et al. 2005, bandwidth terms). It counts as if n were 2, whatever n is. Plans that
// differ only in degrees must get the same program, because the planner prices all of them from one program
// with two ranks per axis.
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
