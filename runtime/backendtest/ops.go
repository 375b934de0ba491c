package backendtest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
	"github.com/autopar/autopar/runtime"
)

// sample is one use of an op at odd sizes.
type sample struct {
	op   ir.Op
	attr ir.Attr
	args []ir.Type
	// positive lists operands (by bit) that must be greater than zero.
	positive uint32
	zero     uint32 // lists operands (by bit) that are zero
	// low and high bound integer operands: low <= x < high.
	low, high int32
	// loose allows for operands of products being rounded: errors of so many parts of the largest
	// element of a result.
	loose float64
}

func f32(shape ...int) ir.Type { return ir.Type{DType: ir.F32, Shape: shape} }
func i32(shape ...int) ir.Type { return ir.Type{DType: ir.I32, Shape: shape} }

// samples covers every compute op.
func samples() []sample {
	const (
		B, T, NH, D = 3, 33, 5, 7
		G           = 3 // grouped queries
		C, V        = 35, 65
	)
	scalar, number := f32(), i32()
	q64 := func(shape ...int) ir.Type { return ir.Type{DType: ir.Q64, Shape: shape} }
	qkv, kv, heads, lse := f32(B, T, 3, NH, D), f32(B, T, 2, NH, D), f32(B, T, NH, D), f32(B, NH, T)
	groupQKV, group, groupLSE := f32(B, T, G+2, NH, D), f32(B, T, G, NH, D), f32(B, G, NH, T)
	rows, logits, targets := f32(B, T), f32(B, T, V), i32(B, T)
	var s []sample
	add := func(op ir.Op, attr ir.Attr, args ...ir.Type) *sample {
		s = append(s, sample{op: op, attr: attr, args: args, high: 1 << 20})
		return &s[len(s)-1]
	}
	add(ir.OpAdd, nil, f32(B, T, C), f32(B, T, C))
	add(ir.OpAdd, nil, f32(B, T, 3, NH, D), f32(3, NH, D))
	add(ir.OpAdd, nil, scalar, scalar)
	add(ir.OpAddN, nil, f32(B, C))
	add(ir.OpAddN, nil, f32(B, C), f32(B, C))
	add(ir.OpAddN, nil, f32(B, C), f32(B, C), f32(B, C), f32(B, C))
	add(ir.OpAddN, nil, q64(B, C), q64(B, C), q64(B, C))
	add(ir.OpFromFixed, ir.FixedAttr{Frac: ir.GradientFrac}, q64(V, C))
	add(ir.OpFixedSquares, nil, f32(B, T, C))
	add(ir.OpFixedRoot, nil, q64(2)).positive = 1
	add(ir.OpScale, nil, f32(B, T, C), scalar)
	add(ir.OpSumTo, ir.SumToAttr{Keep: 1}, f32(B, T, C))
	add(ir.OpSumTo, ir.SumToAttr{Keep: 2}, f32(B, T, C))
	add(ir.OpSumTo, ir.SumToAttr{Keep: 0}, f32(B, C))
	add(ir.OpSumTo, ir.SumToAttr{Keep: 1, Frac: ir.GradientFrac}, f32(B, T, C))
	add(ir.OpSumTo, ir.SumToAttr{Keep: 2, Frac: ir.GradientFrac}, f32(B, T, C))
	add(ir.OpSumTo, ir.SumToAttr{Keep: 0, Frac: ir.LossFrac}, f32(B, T))
	add(ir.OpExpand, nil, f32(C), f32(B, T, C))
	add(ir.OpExpand, nil, scalar, f32(B, T))
	add(ir.OpSum, nil, f32(B, T, C))
	add(ir.OpSumSquares, nil, f32(B, T, C))
	add(ir.OpSqrt, nil, scalar).positive = 1
	add(ir.OpClipScale, ir.ClipAttr{MaxNorm: 1}, scalar).positive = 1
	add(ir.OpClipScale, ir.ClipAttr{MaxNorm: 100}, scalar).positive = 1
	for _, to := range []ir.DType{ir.F32, ir.BF16, ir.F16} {
		add(ir.OpCast, ir.CastAttr{To: to}, f32(B, T, C))
	}

	add(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNT, K: 1}, f32(B, T, C), f32(V, C))
	add(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNT, K: 1}, f32(B, T, C), f32(3, NH, D, C))
	add(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNT, K: 2}, heads, f32(C, NH, D))
	add(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNN, K: 1}, f32(B, T, V), f32(V, C))
	add(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNN, K: 3}, qkv, f32(3, NH, D, C))
	add(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulTN, K: 2}, f32(B, T, C), heads)
	add(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulTN, K: 1}, f32(T, 3), f32(T, C))
	add(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulTN, K: 2, Frac: ir.GradientFrac}, f32(B, T, C), heads)

	add(ir.OpEmbedding, nil, f32(V, C), targets).high = V
	add(ir.OpEmbeddingGrad, ir.EmbeddingGradAttr{Rows: V}, targets, f32(B, T, C)).high = V
	add(ir.OpEmbeddingGrad, ir.EmbeddingGradAttr{Rows: V, Frac: ir.GradientFrac}, targets, f32(B, T, C)).high = V
	for _, bias := range []bool{false, true} {
		attr := ir.LayerNormAttr{Eps: 1e-5, Bias: bias}
		args := []ir.Type{f32(B, T, C), f32(C), f32(C)}
		if !bias {
			args = args[:2]
		}
		add(ir.OpLayerNorm, attr, args...)
		for _, attr.Frac = range []int{0, ir.GradientFrac} {
			add(ir.OpLayerNormGrad, attr, f32(B, T, C), f32(B, T, C), f32(C), rows, rows).positive = 1 << 4
		}
	}
	add(ir.OpRMSNorm, ir.RMSNormAttr{Eps: 1e-5}, f32(B, T, C), f32(C))
	for _, frac := range []int{0, ir.GradientFrac} {
		add(ir.OpRMSNormGrad, ir.RMSNormAttr{Eps: 1e-5, Frac: frac}, f32(B, T, C), f32(B, T, C), f32(C), rows).positive = 1 << 3
	}
	add(ir.OpSwiGLU, nil, f32(B, T, 2, C))
	add(ir.OpSwiGLUGrad, nil, f32(B, T, 2, C), f32(B, T, C))
	for _, inverse := range []bool{false, true} {
		attr := ir.RoPEAttr{Theta: 10000, Inverse: inverse}
		add(ir.OpRoPE, attr, f32(B, T, 3, NH, 2*D), i32(T)).high = 5000
		add(ir.OpRoPE, attr, f32(B, 1, 3, NH, 2*D), i32(1)).high = 5000
		add(ir.OpRoPE, attr, f32(B, T, G+2, NH, 2*D), i32(T)).high = 5000
	}
	for _, tanh := range []bool{false, true} {
		add(ir.OpGELU, ir.GELUAttr{Tanh: tanh}, f32(B, T, C))
		add(ir.OpGELUGrad, ir.GELUAttr{Tanh: tanh}, f32(B, T, C), f32(B, T, C))
	}
	for _, p := range []float64{0, 0.3} {
		attr := ir.DropoutAttr{P: p, Key: "h.3.attn/dropout"}
		add(ir.OpDropout, attr, f32(B, T, C), number, number)
		add(ir.OpAttention, attr, qkv, number, number)
		add(ir.OpAttentionGrad, attr, heads, qkv, heads, lse, number, number).positive = 1 << 3
		add(ir.OpAttention, attr, groupQKV, number, number)
		add(ir.OpAttentionGrad, attr, group, groupQKV, group, groupLSE, number, number).positive = 1 << 3
		for _, parts := range []int{0, 2, 3, 5} {
			attr.Fold, attr.Dim = parts, 1
			add(ir.OpDropout, attr, f32(B, T, C), number, number)
			attr.Dim = 0
			add(ir.OpAttentionKV, attr, qkv, kv, number, number)
			add(ir.OpAttentionKVGrad, attr, heads, qkv, kv, heads, lse, number, number).positive = 1 << 4
			add(ir.OpAttentionKV, attr, groupQKV, kv, number, number)
			add(ir.OpAttentionKVGrad, attr, group, groupQKV, kv, group, groupLSE, number, number).positive = 1 << 4
		}
	}
	for part := range 3 {
		rows := ir.RowsAttr{Part: part, Parts: 3}
		add(ir.OpRows, rows, f32(B, 3*T, C))
		add(ir.OpRows, rows, i32(B, 3*T))
	}
	add(ir.OpJoinRows, nil, f32(B, T, C), f32(B, T, C), f32(B, T, C))
	add(ir.OpKeysValues, nil, qkv)
	add(ir.OpJoinQKV, nil, heads, kv)
	add(ir.OpKeysValues, nil, groupQKV)
	add(ir.OpJoinQKV, nil, group, kv)
	for _, roles := range []int{3, G + 2} {
		decode := add(ir.OpAttentionDecode, nil, f32(B, 1, roles, NH, D), kv, number)
		decode.low, decode.high = 17, 18
	}

	add(ir.OpRowMax, nil, logits)
	add(ir.OpRowSumExp, nil, logits, rows)
	pick := add(ir.OpRowPick, nil, logits, targets)
	pick.low, pick.high = -1, V
	loss := add(ir.OpNLL, nil, rows, rows, rows, targets)
	loss.low, loss.high, loss.positive = -1, V, 1<<1
	grad := add(ir.OpCrossEntropyGrad, nil, logits, rows, rows, targets, rows)
	grad.low, grad.high, grad.positive = -1, V, 1<<2

	adamw := add(ir.OpAdamW, ir.AdamWAttr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1},
		f32(V, C), f32(V, C), f32(V, C), f32(V, C), scalar, scalar, number)
	adamw.positive, adamw.high = 1<<2, 100
	scaled := add(ir.OpAdamW, ir.AdamWAttr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8},
		f32(V, C), f32(V, C), f32(V, C), f32(V, C), scalar, scalar, number, scalar)
	scaled.positive, scaled.low, scaled.high = 1<<2|1<<4, 50, 100
	skipped := add(ir.OpAdamW, ir.AdamWAttr{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8},
		f32(C), f32(C), f32(C), f32(C), scalar, scalar, number, scalar)
	skipped.positive, skipped.low, skipped.high, skipped.zero = 1<<2, 50, 100, 1<<4
	add(ir.OpLossScale, ir.LossScaleAttr{Growth: 2, Backoff: 0.5, Interval: 2000}, scalar, scalar, scalar, scalar).positive = 1
	return append(s, longSamples()...)
}

// longSamples have rows of whole vectors, and more or longer rows than some hundred threads take at once.
func longSamples() []sample {
	const B, T, C, V, many = 2, 5, 264, 1103, 197
	x, w, rows, logits, targets := f32(B, T, C), f32(C), f32(B, T), f32(B, T, V), i32(B, T)
	return []sample{
		{op: ir.OpAdd, args: []ir.Type{x, w}},
		{op: ir.OpSum, args: []ir.Type{f32(B, many, 35)}},
		{op: ir.OpSumSquares, args: []ir.Type{f32(B, many, 35)}},
		{op: ir.OpFixedSquares, args: []ir.Type{f32(B, many, 35)}},
		{op: ir.OpSumTo, attr: ir.SumToAttr{Keep: 1}, args: []ir.Type{f32(B, many, 5)}},
		{op: ir.OpSumTo, attr: ir.SumToAttr{Keep: 1}, args: []ir.Type{x}},
		{op: ir.OpLayerNorm, attr: ir.LayerNormAttr{Eps: 1e-5, Bias: true}, args: []ir.Type{x, w, w}},
		{op: ir.OpLayerNormGrad, attr: ir.LayerNormAttr{Eps: 1e-5, Bias: true}, args: []ir.Type{x, x, w, rows, rows}, positive: 1 << 4},
		{op: ir.OpRMSNorm, attr: ir.RMSNormAttr{Eps: 1e-5}, args: []ir.Type{x, w}},
		{op: ir.OpRMSNormGrad, attr: ir.RMSNormAttr{Eps: 1e-5}, args: []ir.Type{x, x, w, rows}, positive: 1 << 3},
		{op: ir.OpEmbedding, args: []ir.Type{f32(9, C), targets}, high: 9},
		{op: ir.OpEmbeddingGrad, attr: ir.EmbeddingGradAttr{Rows: 19}, args: []ir.Type{i32(B, T), x}, high: 19},
		{op: ir.OpEmbeddingGrad, attr: ir.EmbeddingGradAttr{Rows: 97}, args: []ir.Type{i32(B, many), f32(B, many, 3)}, high: 97},
		{op: ir.OpSwiGLU, args: []ir.Type{f32(B, T, 2, C)}},
		{op: ir.OpSwiGLUGrad, args: []ir.Type{f32(B, T, 2, C), x}},
		{op: ir.OpRowMax, args: []ir.Type{logits}},
		{op: ir.OpRowSumExp, args: []ir.Type{logits, rows}},
		{op: ir.OpCrossEntropyGrad, args: []ir.Type{logits, rows, rows, targets, rows}, low: -1, high: V, positive: 1 << 2},
	}
}

// testOps runs every op on the whole value and on the parts of every legal
// split, and compares what the parts make together with package interp.
func testOps(t *testing.T, open Open, leaveOut func(ir.Op, ir.Attr) bool) {
	missing := map[ir.Op]bool{}
	for _, op := range ir.Ops() {
		missing[op] = op.Class() == ir.Compute
	}
	for i, s := range samples() {
		missing[s.op] = false
		if leaveOut(s.op, s.attr) {
			continue
		}
		t.Run(fmt.Sprintf("%s/%d", s.op, i), func(t *testing.T) {
			ds, _ := devices(t, open, 1, time.Minute)
			newOpTest(t, ds[0], s, uint64(i)).run(t)
		})
	}
	for i, s := range samples() {
		if leaveOut(s.op, s.attr) {
			continue
		}
		for _, d := range []ir.DType{ir.BF16, ir.F16} {
			if s, n := s.in(d); n > 0 {
				t.Run(fmt.Sprintf("%s/%d/%s", s.op, i, d), func(t *testing.T) {
					ds, _ := devices(t, open, 1, time.Minute)
					newOpTest(t, ds[0], s, uint64(i)).run(t)
				})
			}
		}
	}
	for op, is := range missing {
		require.False(t, is, "no sample of %s", op)
	}
}

// wideHeads are samples of attention to more keys than a tile holds, with heads as tensor cores
// take them, in types of two bytes.
func wideHeads() (all []sample) {
	const (
		B, T, NH, G = 1, 133, 2, 2
		low, high   = 0, 1000
	)
	for _, d := range []ir.DType{ir.BF16, ir.F16} {
		for _, width := range []int{64, 128} {
			if d == ir.F16 && width == 128 {
				continue // as with the other type
			}
			typ := func(shape ...int) ir.Type { return ir.Type{DType: d, Shape: append(shape, NH, width)} }
			qkv, group, kv, lse := typ(B, T, G+2), typ(B, T, G), typ(B, T, 2), f32(B, G, NH, T)
			add := func(op ir.Op, attr ir.DropoutAttr, positive uint32, args ...ir.Type) {
				args = append(args, i32(), i32())
				all = append(all, sample{op: op, attr: attr, args: args, low: low, high: high, positive: positive, loose: 4 * epsilon(d)})
			}
			attr := ir.DropoutAttr{Key: "h.3.attn/dropout"}
			add(ir.OpAttention, attr, 0, typ(B, T, 3))
			attr.P = 0.3
			add(ir.OpAttention, attr, 0, qkv)
			add(ir.OpAttentionGrad, attr, 1<<3, group, qkv, group, lse)
			attr.Fold = 3
			add(ir.OpAttentionKV, attr, 0, qkv, kv)
			add(ir.OpAttentionKVGrad, attr, 1<<4, group, qkv, kv, group, lse)
		}
	}
	return all
}

// RunWideHeads checks attention with heads of 64 and 128 elements in types of two bytes, in whose launches
// probabilities and their gradients may be rounded to the type: results may differ by four times its epsilon of
// the largest element.
func RunWideHeads(t *testing.T, open Open) {
	for i, s := range wideHeads() {
		t.Run(fmt.Sprintf("%s/%d/%s", s.op, i, s.args[0]), func(t *testing.T) {
			ds, _ := devices(t, open, 1, time.Minute)
			newOpTest(t, ds[0], s, uint64(i)).run(t)
		})
	}
}

// testManyIDs sums an embedding's gradient over more ids than some hundred threads look at in one
// go, most of them of few rows.
func testManyIDs(t *testing.T, open Open) {
	ds, _ := devices(t, open, 1, time.Minute)
	c := newChain(t, ds[0], 4, false)
	ids, dy := c.input(ir.I32, 0, 131, 3, 3001), c.input(ir.BF16, -1, 1, 3, 3001, 8)
	for i, id := range c.values[ids].I {
		if i%3 > 0 {
			c.values[ids].I[i] = id % 5
		}
	}
	c.check(c.do(ir.OpEmbeddingGrad, ir.EmbeddingGradAttr{Rows: 131}, nil, ids, dy)...)
}

// testAccumulate adds micro-batches up.
func testAccumulate(t *testing.T, open Open) {
	ds, _ := devices(t, open, 1, time.Minute)
	slab := ir.Whole([]int{3, 35})
	var a arena
	x, acc := a.tensor(ir.F32, slab), a.tensor(ir.F32, slab)
	require.NoError(t, ds[0].Alloc(runtime.OnDevice, a.end))
	terms := random(rand.New(rand.NewPCG(1, 1)), slab.Elems())
	upload(t, ds[0], x, terms)
	upload(t, ds[0], acc, random(rand.New(rand.NewPCG(2, 2)), slab.Elems()))
	k := &runtime.Kernel{
		Node: &ir.Node{Op: ir.OpAccumulate, Attr: ir.CommAttr{Axis: "mb"}, Name: "x@accumulate_mb"},
		Args: []runtime.Tensor{x}, Results: []runtime.Tensor{acc},
	}
	for microBatch := range 2 {
		k.Accum = []bool{microBatch > 0}
		require.NoError(t, ds[0].Launch(k))
		for i, got := range download(t, ds[0], acc) {
			require.Equal(t, terms[i]*float32(microBatch+1), got, "element %d after micro-batch %d", i, microBatch)
		}
	}
}

// opTest is a sample with its data.
type opTest struct {
	device runtime.Device
	sample
	node *ir.Node
	args []interp.Tensor
	want []interp.Tensor
}

func newOpTest(t *testing.T, d runtime.Device, s sample, seed uint64) *opTest {
	o := &opTest{device: d, sample: s}
	rng := rand.New(rand.NewPCG(seed, 1))
	g := ir.NewGraph("op")
	var values []*ir.Value
	for i, typ := range s.args {
		v, err := g.Leaf(ir.OpInput, fmt.Sprintf("x%d", i), typ, nil)
		require.NoError(t, err)
		values = append(values, v)
		x := interp.Zeros(typ)
		for j := range x.I {
			x.I[j] = s.low + rng.Int32N(s.high-s.low)
		}
		for j, r := range random(rng, int64(len(x.F))) {
			if s.positive&(1<<i) != 0 {
				r = float32(math.Abs(float64(r))) + 0.5
			}
			if s.zero&(1<<i) != 0 {
				r = 0
			}
			x.F[j] = typ.DType.Round(float64(r))
			if typ.DType == ir.Q64 {
				x.F[j] = math.Ldexp(math.RoundToEven(math.Ldexp(x.F[j], 40)), -frac(s.op, s.attr, j))
			}
		}
		o.args = append(o.args, x)
	}
	var err error
	o.node, err = g.Add(s.op, s.attr, "sample", ir.Forward, values...)
	require.NoError(t, err)
	o.want, err = interp.Eval(o.node, o.args)
	require.NoError(t, err)
	for i := range o.want {
		for _, n := range o.want[i].I { // small enough for either
			o.want[i].F = append(o.want[i].F, float64(n))
		}
	}
	return o
}

func (o *opTest) run(t *testing.T) {
	sig := ir.SignatureOf(o.node)
	for rule := ir.ReplicateAll; rule < len(sig.Dims); rule++ {
		for parts := 1; parts <= 3; parts++ {
			if (rule < 0) != (parts == 1) || rule >= 0 && sig.Dims[rule].Size < parts {
				continue
			}
			args, results, ok := sig.Rule(rule)
			if !ok {
				continue
			}
			for _, mode := range []mode{apart, inPlace, accumulating} {
				if !o.has(mode) {
					continue
				}
				o.split(t, split{parts, args, results, mode}, fmt.Sprintf("rule %d over %d, %s", rule, parts, mode))
			}
		}
	}
}

// mode says where results go.
type mode string

const (
	apart        mode = "apart"
	inPlace      mode = "in place"
	accumulating mode = "accumulating"
)

func (o *opTest) has(m mode) bool {
	switch m {
	case inPlace:
		return o.shares(0) >= 0 || o.shares(1) >= 0
	case accumulating:
		for i := range o.node.Results {
			if o.op.Accumulates(i) {
				return true
			}
		}
		return false
	}
	return true
}

// shares returns the operand whose place result i may have, or -1.
func (o *opTest) shares(i int) int {
	switch {
	case o.op.Renews(i) >= 0:
		return o.op.Renews(i)
	case o.op.InPlace() && i == 0 && o.node.Args[0].Type.DType.Size() >= o.node.Results[0].Type.DType.Size():
		return 0
	}
	return -1
}

// split is one way to cut the sample.
type split struct {
	parts         int
	args, results []ir.Placement
	mode
}

const (
	poison     = 12345 // in results before a launch
	halfPoison = 8     // and in those of two bytes an element
)

// split runs the parts one after another and checks what they make together.
func (o *opTest) split(t *testing.T, s split, what string) {
	mesh := ir.Mesh{Axes: []ir.Axis{{Name: "x", Size: s.parts}}}
	sums := make([][]float64, len(o.want))
	most := make([]float64, len(o.want)) // magnitude of what was rounded
	for i, w := range o.want {
		sums[i] = make([]float64, len(w.F))
		if s.results[i] == ir.PartialOf(ir.Max) {
			for j := range sums[i] {
				sums[i][j] = math.Inf(-1)
			}
		}
	}
	for p := range s.parts {
		k, arena := o.kernel(mesh, s, p)
		require.NoError(t, o.device.Alloc(runtime.OnDevice, arena))
		memory := o.fill(t, k, arena)
		require.NoError(t, o.device.Launch(k), what)
		for i, r := range k.Results {
			got := o.download(t, r, k.Accum[i])
			eachElement(r.Slab, func(local, global int) {
				x := got[local]
				most[i] = max(most[i], math.Abs(x))
				switch s.results[i].Kind {
				case ir.Partial:
					if s.results[i].Reduce == ir.Max {
						sums[i][global] = max(sums[i][global], x)
					} else {
						sums[i][global] += x
					}
				default:
					sums[i][global] = x
				}
			})
		}
		o.untouched(t, k, memory, what)
	}
	for i, w := range o.want {
		largest := 0.0
		for _, want := range w.F {
			largest = max(largest, math.Abs(want))
		}
		for j, want := range w.F {
			tolerance := 3e-5*(1+math.Abs(want)) + o.loose*largest
			if s.mode == accumulating && o.op.Accumulates(i) {
				tolerance += 2e-3 * float64(s.parts) // of poison in float32
			}
			if eps := epsilon(o.node.Results[i].Type.DType); eps > 0 {
				// The sum in float32 may lie on the other side of a tie; partial
				// sums and sums of micro-batches are rounded each.
				tolerance += 2 * eps * math.Abs(want)
				if s.results[i].Kind == ir.Partial || s.mode == accumulating {
					tolerance += eps * (most[i] + halfPoison) * float64(s.parts)
				}
			}
			if diff := math.Abs(sums[i][j] - want); !(diff <= tolerance) {
				t.Fatalf("%s: result %d, element %d of %v: got %v, want %v", what, i, j, w.Shape, sums[i][j], want)
			}
		}
	}
}

// kernel places the operands and results of one part.
func (o *opTest) kernel(mesh ir.Mesh, s split, p int) (*runtime.Kernel, int64) {
	k := &runtime.Kernel{Node: o.node, Accum: make([]bool, len(o.want))}
	var a arena
	slab := func(shape []int, place ir.Placement) ir.Slab {
		return mesh.Local(shape, ir.ShardSpec{place}, ir.Coord{p})
	}
	for i, v := range o.node.Args {
		k.Args = append(k.Args, a.tensor(v.Type.DType, slab(v.Type.Shape, s.args[i])))
	}
	for i, v := range o.node.Results {
		r := a.tensor(v.Type.DType, slab(v.Type.Shape, s.results[i]))
		if from := o.shares(i); s.mode == inPlace && from >= 0 {
			r.Offset = k.Args[from].Offset
		}
		k.Results = append(k.Results, r)
		k.Accum[i] = s.mode == accumulating && o.op.Accumulates(i)
	}
	return k, a.end
}

// fill uploads operands and poisons the rest of the arena. It returns the arena.
func (o *opTest) fill(t *testing.T, k *runtime.Kernel, bytes int64) []float32 {
	memory := make([]float32, bytes/4)
	for i := range memory {
		memory[i] = poison
	}
	for i, r := range k.Results {
		if r.DType.Half() && k.Accum[i] {
			x := make([]float32, r.Slab.Elems())
			for j := range x {
				x[j] = halfPoison
			}
			copy(bytesOf(memory)[r.Offset:], encode(r.DType, x))
		}
	}
	for i, a := range k.Args {
		dst := memory[a.Offset/4:]
		if a.DType == ir.Q64 {
			for j, x := range part(o.args[i].F, a.Slab) {
				binary.NativeEndian.PutUint64(bytesOf(dst)[8*j:], uint64(int64(math.Ldexp(x, frac(o.op, o.attr, j)))))
			}
			continue
		}
		var floats []float32
		for _, x := range part(o.args[i].F, whole(a.Slab, o.args[i].F)) {
			floats = append(floats, float32(x))
		}
		copy(bytesOf(dst), encode(a.DType, floats))
		for j, x := range part(o.args[i].I, whole(a.Slab, o.args[i].I)) {
			dst[j] = math.Float32frombits(uint32(x))
		}
	}
	require.NoError(t, o.device.Upload(runtime.OnDevice, 0, bytesOf(memory)))
	return memory
}

// before is what the results of a kernel that adds hold at first.
func before(d ir.DType) float64 {
	if d.Half() {
		return halfPoison
	}
	return poison
}

// whole returns s, or an empty part if there are no elements to cut.
func whole[E any](s ir.Slab, x []E) ir.Slab {
	if x == nil {
		return ir.Slab{Global: []int{0}, Offset: []int{0}, Local: []int{0}}
	}
	return s
}

// untouched checks that a launch wrote to its results only.
func (o *opTest) untouched(t *testing.T, k *runtime.Kernel, before []float32, what string) {
	after := make([]float32, len(before))
	require.NoError(t, o.device.Download(bytesOf(after), runtime.OnDevice, 0))
	for _, r := range k.Results {
		end := r.Offset + r.Bytes()
		copy(bytesOf(after)[r.Offset:end], bytesOf(before)[r.Offset:end])
	}
	for i := range before {
		if math.Float32bits(before[i]) != math.Float32bits(after[i]) {
			t.Fatalf("%s: the launch changed word %d of the arena, outside of its results", what, i)
		}
	}
}
