package irtest

import (
	"fmt"
	"math/rand/v2"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
)

// Sample is a graph with a feed for each of its parameters and inputs.
type Sample struct {
	Graph *ir.Graph
	Feeds map[string]interp.Tensor
}

// RandomGraph returns a verified graph of the given number of motifs, each one
// op or an op and its gradient on random operands of odd sizes. Every compute
// op appears among them. Values that nothing uses are outputs, and some
// parameters are updated. Dropout is on when dropout is.
func RandomGraph(rng *rand.Rand, motifs int, dropout bool) Sample {
	b := &graphBuilder{rng: rng, g: ir.NewGraph("random"), feeds: map[string]interp.Tensor{}}
	b.dropout = dropout
	b.seed = b.scalarInput("seed", int32(rng.IntN(1000)))
	b.step = b.scalarInput("step", int32(rng.IntN(10)))
	for range motifs {
		allMotifs[rng.IntN(len(allMotifs))](b)
	}
	b.finish()
	if err := b.g.Verify(); err != nil {
		panic("BUG: random graph is not legal: " + err.Error())
	}
	return Sample{b.g, b.feeds}
}

type graphBuilder struct {
	rng        *rand.Rand
	g          *ir.Graph
	feeds      map[string]interp.Tensor
	dropout    bool
	seed, step *ir.Value
	pool       []*ir.Value // f32 values to build on
}

// finish makes outputs of the values that nothing uses.
func (b *graphBuilder) finish() {
	used := map[*ir.Value]bool{}
	for _, n := range b.g.Nodes {
		for _, a := range n.Args {
			used[a] = true
		}
	}
	for _, u := range b.g.Updates {
		used[u.New] = true
	}
	for _, n := range b.g.Nodes {
		for _, r := range n.Results {
			if n.Op.Class() != ir.Leaf && !used[r] {
				b.g.Outputs = append(b.g.Outputs, ir.Output{Name: fmt.Sprintf("out%d", r.ID), Value: r})
			}
		}
	}
}

// phases of ops that do not belong to the forward pass.
func naturalPhase(op ir.Op) ir.Phase {
	switch op {
	case ir.OpEmbeddingGrad, ir.OpLayerNormGrad, ir.OpRMSNormGrad, ir.OpGELUGrad, ir.OpSwiGLUGrad, ir.OpAttentionGrad, ir.OpAttentionKVGrad,
		ir.OpJoinQKV, ir.OpCrossEntropyGrad:
		return ir.Backward
	case ir.OpSumSquares, ir.OpSqrt, ir.OpClipScale, ir.OpFromFixed, ir.OpFixedSquares, ir.OpFixedRoot, ir.OpAdamW, ir.OpLossScale:
		return ir.Update
	}
	return ir.Forward
}

// op adds a node, in the first phase that its operands allow, and returns its
// results.
func (b *graphBuilder) op(op ir.Op, attr ir.Attr, args ...*ir.Value) []*ir.Value {
	phase := naturalPhase(op)
	for _, a := range args {
		phase = max(phase, a.Def.Phase)
	}
	n, err := b.g.Add(op, attr, op.String(), phase, args...)
	if err != nil {
		panic("BUG: random node is not legal: " + err.Error())
	}
	for _, r := range n.Results {
		if r.Type.DType == ir.F32 {
			b.pool = append(b.pool, r)
		}
	}
	return n.Results
}

func (b *graphBuilder) leaf(op ir.Op, name string, t ir.Type, attr ir.Attr, feed interp.Tensor) *ir.Value {
	v, err := b.g.Leaf(op, name, t, attr)
	if err != nil {
		panic("BUG: random leaf is not legal: " + err.Error())
	}
	b.feeds[v.Name()] = feed
	return v
}

// fresh returns a new f32 parameter or input of small normal elements.
func (b *graphBuilder) fresh(shape ...int) *ir.Value {
	t := ir.Type{DType: ir.F32, Shape: shape}
	feed := b.normal(t)
	if b.rng.IntN(2) == 0 {
		return b.leaf(ir.OpInput, "x", t, nil, feed)
	}
	return b.leaf(ir.OpParam, "w", t, ir.ParamAttr{Init: ir.InitNormal, Std: 0.5, Decay: b.rng.IntN(2) == 0}, feed)
}

func (b *graphBuilder) normal(t ir.Type) interp.Tensor {
	x := interp.Zeros(t)
	for i := range x.F {
		x.F[i] = b.rng.NormFloat64() / 2
	}
	return x
}

func (b *graphBuilder) scalarInput(name string, x int32) *ir.Value {
	return b.leaf(ir.OpInput, name, ir.Type{DType: ir.I32}, nil, interp.IntScalar(x))
}

// ids returns a new i32 input of elements in [low, high).
func (b *graphBuilder) ids(low, high int, shape ...int) *ir.Value {
	t := ir.Type{DType: ir.I32, Shape: shape}
	feed := interp.Zeros(t)
	for i := range feed.I {
		feed.I[i] = int32(low + b.rng.IntN(high-low))
	}
	return b.leaf(ir.OpInput, "ids", t, nil, feed)
}

// size returns a small size, odd more often than not.
func (b *graphBuilder) size() int { return []int{1, 2, 3, 3, 5, 7}[b.rng.IntN(6)] }

func (b *graphBuilder) sizes(low, high int) []int {
	shape := make([]int, low+b.rng.IntN(high-low+1))
	for i := range shape {
		shape[i] = b.size()
	}
	return shape
}

// value returns an earlier value of at least the given rank, or a fresh one.
func (b *graphBuilder) value(rank int) *ir.Value {
	for range 4 {
		if len(b.pool) == 0 {
			break
		}
		if v := b.pool[b.rng.IntN(len(b.pool))]; len(v.Type.Shape) >= rank {
			return v
		}
	}
	return b.fresh(b.sizes(rank, max(rank, 3))...)
}

// like returns an earlier or fresh value of the same type.
func (b *graphBuilder) like(v *ir.Value) *ir.Value {
	for _, u := range b.pool {
		if u.Type.Equal(v.Type) && b.rng.IntN(2) == 0 {
			return u
		}
	}
	return b.fresh(v.Type.Shape...)
}

func (b *graphBuilder) dropoutAttr(key string) ir.DropoutAttr {
	attr := ir.DropoutAttr{Key: key}
	if b.dropout {
		attr.P = 0.2
	}
	return attr
}
