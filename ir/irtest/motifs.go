package irtest

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// allMotifs are the building blocks of [RandomGraph].
var allMotifs = []func(*graphBuilder){
	addMotif, addNMotif, scaleMotif, sumToMotif, expandMotif, sumMotif,
	matMulMotif, embeddingMotif, layerNormMotif, rmsNormMotif, geluMotif,
	swiGLUMotif, dropoutMotif, ropeMotif, attentionMotif, contextMotif, rowsMotif, decodeMotif,
	crossEntropyMotif, adamWMotif, castMotif, lossScaleMotif, fixedMotif,
}

func addMotif(b *graphBuilder) {
	x := b.value(0)
	shape := x.Type.Shape
	b.op(ir.OpAdd, nil, x, b.fresh(shape[b.rng.IntN(len(shape)+1):]...))
}

func addNMotif(b *graphBuilder) {
	args := []*ir.Value{b.value(0)}
	for range b.rng.IntN(3) {
		args = append(args, b.like(args[0]))
	}
	b.op(ir.OpAddN, nil, args...)
}

func scaleMotif(b *graphBuilder) { b.op(ir.OpScale, nil, b.value(0), b.constant(0.75)) }

func (b *graphBuilder) constant(x float64) *ir.Value {
	v, err := b.g.Leaf(ir.OpConst, "c", ir.Type{}, ir.ConstAttr{Value: x})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return v
}

func sumToMotif(b *graphBuilder) {
	x := b.value(0)
	b.op(ir.OpSumTo, ir.SumToAttr{Keep: b.rng.IntN(len(x.Type.Shape) + 1)}, x)
}

func expandMotif(b *graphBuilder) {
	like := b.value(0)
	shape := like.Type.Shape
	b.op(ir.OpExpand, nil, b.fresh(shape[b.rng.IntN(len(shape)+1):]...), like)
}

func sumMotif(b *graphBuilder) { b.op(ir.OpSum, nil, b.value(0)) }

func matMulMotif(b *graphBuilder) {
	a := b.value(1)
	shape := a.Type.Shape
	attr := ir.MatMulAttr{Form: ir.MatMulForm(b.rng.IntN(3)), K: 1 + b.rng.IntN(min(2, len(shape)))}
	outer := b.sizes(0, 2)
	switch attr.Form {
	case ir.MatMulNT:
		outer = append(outer, shape[len(shape)-attr.K:]...)
	case ir.MatMulNN:
		outer = slices.Concat(shape[len(shape)-attr.K:], outer)
	case ir.MatMulTN:
		outer = slices.Concat(shape[:attr.K], outer)
	}
	if len(shape)+len(outer)-2*attr.K > 5 {
		return // keep ranks small
	}
	b.op(ir.OpMatMul, attr, a, b.fresh(outer...))
}

func embeddingMotif(b *graphBuilder) {
	table := b.fresh(b.size(), b.size())
	rows := table.Type.Shape[0]
	ids := b.ids(0, rows, b.sizes(1, 2)...)
	y := b.op(ir.OpEmbedding, nil, table, ids)[0]
	b.op(ir.OpEmbeddingGrad, ir.EmbeddingGradAttr{Rows: rows}, ids, b.like(y))
}

func layerNormMotif(b *graphBuilder) {
	x := b.value(1)
	shape := x.Type.Shape
	w := b.fresh(shape[len(shape)-1])
	args := []*ir.Value{x, w}
	attr := ir.LayerNormAttr{Eps: 1e-5, Bias: b.rng.IntN(2) == 0}
	if attr.Bias {
		args = append(args, b.fresh(shape[len(shape)-1]))
	}
	out := b.op(ir.OpLayerNorm, attr, args...)
	b.op(ir.OpLayerNormGrad, attr, b.like(out[0]), x, w, out[1], out[2])
}

func rmsNormMotif(b *graphBuilder) {
	x := b.value(1)
	w := b.fresh(x.Type.Shape[len(x.Type.Shape)-1])
	attr := ir.RMSNormAttr{Eps: 1e-5}
	out := b.op(ir.OpRMSNorm, attr, x, w)
	b.op(ir.OpRMSNormGrad, attr, b.like(out[0]), x, w, out[1])
}

func swiGLUMotif(b *graphBuilder) {
	x := b.fresh(append(b.sizes(1, 2), 2, b.size())...)
	y := b.op(ir.OpSwiGLU, nil, x)[0]
	b.op(ir.OpSwiGLUGrad, nil, x, b.like(y))
}

// roles returns a size for a dimension of queries, one key and one value, with one or more queries.
func (b *graphBuilder) roles() int { return 3 + b.rng.IntN(3) }

func ropeMotif(b *graphBuilder) {
	batch, length := b.size(), b.size()
	qkv := b.fresh(batch, length, b.roles(), b.size(), 2*b.size())
	attr := ir.RoPEAttr{Theta: 100, Inverse: b.rng.IntN(2) == 0, Rows: b.rng.IntN(2) == 0}
	positions := b.ids(0, 100, length)
	if attr.Rows {
		positions = b.ids(0, 100, batch, length)
	}
	if b.rng.IntN(2) == 0 {
		attr.Factor, attr.Low, attr.High, attr.Original = 2, 1, 4, 20
	}
	b.op(ir.OpRoPE, attr, qkv, positions)
}

func geluMotif(b *graphBuilder) {
	x := b.value(0)
	attr := ir.GELUAttr{Tanh: b.rng.IntN(2) == 0}
	y := b.op(ir.OpGELU, attr, x)[0]
	b.op(ir.OpGELUGrad, attr, b.like(y), x)
}

func dropoutMotif(b *graphBuilder) {
	b.op(ir.OpDropout, b.dropoutAttr("drop"), b.value(0), b.seed, b.step)
}

func attentionMotif(b *graphBuilder) {
	qkv := b.fresh(b.size(), b.size(), b.roles(), b.size(), b.size())
	attr := b.dropoutAttr("attn")
	out := b.op(ir.OpAttention, attr, qkv, b.seed, b.step)
	b.op(ir.OpAttentionGrad, attr, b.like(out[0]), qkv, out[0], out[1], b.seed, b.step)
}

// contextMotif is attention under context parallelism.
func contextMotif(b *graphBuilder) {
	qkv := b.fresh(b.size(), b.size(), b.roles(), b.size(), b.size())
	attr := b.dropoutAttr("context")
	attr.Fold = b.rng.IntN(4)
	kv := b.op(ir.OpKeysValues, nil, qkv)[0]
	out := b.op(ir.OpAttentionKV, attr, qkv, kv, b.seed, b.step)
	grads := b.op(ir.OpAttentionKVGrad, attr, b.like(out[0]), qkv, kv, out[0], out[1], b.seed, b.step)
	b.op(ir.OpJoinQKV, nil, grads[0], grads[1])
}

// rowsMotif is the loss in slices.
func rowsMotif(b *graphBuilder) {
	parts := 1 + b.rng.IntN(3)
	x := b.fresh(b.size(), parts*b.size(), b.size())
	var all []*ir.Value
	for part := range parts {
		all = append(all, b.op(ir.OpRows, ir.RowsAttr{Part: part, Parts: parts}, x)[0])
	}
	b.op(ir.OpJoinRows, nil, all...)
}

func decodeMotif(b *graphBuilder) {
	batch, length, heads, width := b.size(), b.size(), b.size(), b.size()
	pos := b.scalarInput("pos", int32(b.rng.IntN(length)))
	b.op(ir.OpAttentionDecode, nil, b.fresh(batch, 1, b.roles(), heads, width), b.fresh(batch, length, 2, heads, width), pos)
}

func crossEntropyMotif(b *graphBuilder) {
	x := b.value(1)
	shape := x.Type.Shape
	rows := shape[:len(shape)-1]
	targets := b.ids(-1, shape[len(shape)-1], rows...)
	top := b.op(ir.OpRowMax, nil, x)[0]
	sum := b.op(ir.OpRowSumExp, nil, x, top)[0]
	pick := b.op(ir.OpRowPick, nil, x, targets)[0]
	nll := b.op(ir.OpNLL, nil, top, sum, pick, targets)[0]
	b.op(ir.OpCrossEntropyGrad, nil, x, top, sum, targets, b.like(nll))
}

// castMotif casts without changing any number: callers compare results whose sums have another order, which
// does not work with rounding to fewer bits.
func castMotif(b *graphBuilder) { b.op(ir.OpCast, ir.CastAttr{To: ir.F32}, b.value(0)) }

func lossScaleMotif(b *graphBuilder) {
	attr := ir.LossScaleAttr{Growth: 2, Backoff: 0.5, Interval: 4}
	good := float64(b.rng.IntN(attr.Interval))
	b.op(ir.OpLossScale, attr, b.constant(64), b.constant(good), b.constant(1), b.fresh())
}

// adamWMotif is a step of the optimizer with clipping by the norm of a gradient.
func adamWMotif(b *graphBuilder) {
	g := b.value(0)
	norm := b.op(ir.OpSqrt, nil, b.op(ir.OpSumSquares, nil, g)[0])[0]
	clip := b.op(ir.OpClipScale, ir.ClipAttr{MaxNorm: 1}, norm)[0]
	params := make([]*ir.Value, 3)
	for i, name := range []string{"weight", "m", "v"} {
		feed := b.normal(g.Type)
		for j, x := range feed.F {
			feed.F[j] = x * x // second moments are not negative
		}
		params[i] = b.leaf(ir.OpParam, name, g.Type, ir.ParamAttr{State: i > 0}, feed)
	}
	attr := ir.AdamWAttr{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1}
	out := b.op(ir.OpAdamW, attr, params[0], params[1], params[2], g, clip, b.constant(1e-3), b.step)
	for i, p := range params {
		b.g.Updates = append(b.g.Updates, ir.StateUpdate{Param: p, New: out[i]})
	}
}
