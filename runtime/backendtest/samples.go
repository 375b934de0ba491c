package backendtest

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// sample is one use of an op at odd sizes.
type sample struct {
	op   ir.Op
	attr ir.Attr
	args []ir.Type
	// positive lists operands (by bit) that must be greater than zero.
	positive uint32
	zero     uint32 // operands (by bit) that are zero
	large    bool   // operands are four times as large, so that the scores of attention grow by much from key to key
	// low and high bound integer operands: low <= x < high.
	low, high int32
	// loose allows for rounded operands of products: an error of this share of the largest element
	// of a result.
	loose float64
	// more says that other samples have any two of its choices, so that it is left to -ops-all.
	more bool
}

func f32(shape ...int) ir.Type { return ir.Type{DType: ir.F32, Shape: shape} }

func i32(shape ...int) ir.Type { return ir.Type{DType: ir.I32, Shape: shape} }

// sizes are those of a model: sequences, tokens per sequence, heads of keys and values, elements
// per head, grouped queries, columns, and words of the vocabulary.
type sizes struct{ B, T, NH, D, G, C, V int }

// samples covers every compute op.
func samples() []sample {
	return slices.Concat(samplesOf(sizes{B: 3, T: 33, NH: 5, D: 7, G: 3, C: 35, V: 65}), longSamples(), partSamples(), foldedPartSamples())
}

// samplesOf covers every compute op at given sizes; T is at least 6 and G at least 2.
func samplesOf(z sizes) []sample {
	B, T, NH, D, G, C, V := z.B, z.T, z.NH, z.D, z.G, z.C, z.V
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

	add(ir.OpEmbedding, nil, f32(V, C), targets).high = int32(V)
	add(ir.OpEmbeddingGrad, ir.EmbeddingGradAttr{Rows: V}, targets, f32(B, T, C)).high = int32(V)
	add(ir.OpEmbeddingGrad, ir.EmbeddingGradAttr{Rows: V, Frac: ir.GradientFrac}, targets, f32(B, T, C)).high = int32(V)
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
	plain := ir.RoPEAttr{Theta: 10000}
	inverse, longer := plain, ir.RoPEAttr{Theta: 10000, Factor: 8, Low: 1, High: 40, Original: 80} // some waves in each of the three ranges
	inverse.Inverse = true
	for _, attr := range []ir.RoPEAttr{plain, inverse, longer} {
		add(ir.OpRoPE, attr, f32(B, T, 3, NH, 2*D), i32(T)).high = 5000
		add(ir.OpRoPE, attr, f32(B, 1, 3, NH, 2*D), i32(1)).high = 5000
		add(ir.OpRoPE, attr, f32(B, T, G+2, NH, 2*D), i32(T)).high = 5000
	}
	for _, tanh := range []bool{false, true} {
		add(ir.OpGELU, ir.GELUAttr{Tanh: tanh}, f32(B, T, C))
		add(ir.OpGELUGrad, ir.GELUAttr{Tanh: tanh}, f32(B, T, C), f32(B, T, C))
	}
	for i, p := range []float64{0, 0.3} {
		attr := ir.DropoutAttr{P: p, Key: "h.3.attn/dropout"}
		add(ir.OpDropout, attr, f32(B, T, C), number, number)
		add(ir.OpAttention, attr, qkv, number, number)
		add(ir.OpAttentionGrad, attr, heads, qkv, heads, lse, number, number).positive = 1 << 3
		add(ir.OpAttention, attr, groupQKV, number, number)
		add(ir.OpAttentionGrad, attr, group, groupQKV, group, groupLSE, number, number).positive = 1 << 3
		for k, parts := range []int{0, 2, 3, 5} {
			attr.Fold, attr.Dim = parts, 1
			add(ir.OpDropout, attr, f32(B, T, C), number, number)
			attr.Dim = 0
			add(ir.OpAttentionKV, attr, qkv, kv, number, number).more = (i+k)%2 > 0
			grad := add(ir.OpAttentionKVGrad, attr, heads, qkv, kv, heads, lse, number, number)
			grad.positive, grad.more = 1<<4, (i+k)%2 > 0
			add(ir.OpAttentionKV, attr, groupQKV, kv, number, number).more = (i+k)%2 == 0
			grad = add(ir.OpAttentionKVGrad, attr, group, groupQKV, kv, group, groupLSE, number, number)
			grad.positive, grad.more = 1<<4, (i+k)%2 == 0
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
		decode.low, decode.high = int32(T/2), int32(T/2)+1
	}

	add(ir.OpRowMax, nil, logits)
	add(ir.OpRowSumExp, nil, logits, rows)
	pick := add(ir.OpRowPick, nil, logits, targets)
	pick.low, pick.high = -1, int32(V)
	loss := add(ir.OpNLL, nil, rows, rows, rows, targets)
	loss.low, loss.high, loss.positive = -1, int32(V), 1<<1
	grad := add(ir.OpCrossEntropyGrad, nil, logits, rows, rows, targets, rows)
	grad.low, grad.high, grad.positive = -1, int32(V), 1<<2

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
	grown := add(ir.OpLossScale, ir.LossScaleAttr{Growth: 0x1p127, Backoff: 0.5, Interval: 1}, scalar, scalar, scalar, scalar)
	grown.positive, grown.zero = 1, 1<<1
	return s
}

// longSamples have rows of whole vectors, and more or longer rows than some hundred threads take at
// once.
func longSamples() []sample {
	const B, T, C, V, words, many = 2, 5, 264, 1103, 9001, 197
	x, w, rows, logits, targets := f32(B, T, C), f32(C), f32(B, T), f32(B, T, V), i32(B, T)
	all := []sample{
		{op: ir.OpAdd, args: []ir.Type{x, w}},
		{op: ir.OpSum, args: []ir.Type{f32(B, many, 35)}},
		{op: ir.OpSumSquares, args: []ir.Type{f32(B, many, 35)}},
		{op: ir.OpFixedSquares, args: []ir.Type{f32(B, many, 35)}},
		{op: ir.OpSumTo, attr: ir.SumToAttr{Keep: 1}, args: []ir.Type{f32(B, many, 5)}},
		{op: ir.OpSumTo, attr: ir.SumToAttr{Keep: 1}, args: []ir.Type{x}},
		{op: ir.OpEmbedding, args: []ir.Type{f32(9, C), targets}, high: 9},
		{op: ir.OpEmbeddingGrad, attr: ir.EmbeddingGradAttr{Rows: 19}, args: []ir.Type{i32(B, T), x}, high: 19},
		{op: ir.OpEmbeddingGrad, attr: ir.EmbeddingGradAttr{Rows: 97}, args: []ir.Type{i32(B, many), f32(B, many, 3)}, high: 97},
		{op: ir.OpSwiGLU, args: []ir.Type{f32(B, T, 2, C)}},
		{op: ir.OpSwiGLUGrad, args: []ir.Type{f32(B, T, 2, C), x}},
		{op: ir.OpRowMax, args: []ir.Type{logits}},
		{op: ir.OpRowSumExp, args: []ir.Type{logits, rows}},
		{op: ir.OpCrossEntropyGrad, args: []ir.Type{logits, rows, rows, targets, rows}, low: -1, high: V, positive: 1 << 2},
		{op: ir.OpCrossEntropyGrad, args: []ir.Type{f32(1, B, words), f32(1, B), f32(1, B), i32(1, B), f32(1, B)}, low: words - 900, high: words, positive: 1 << 2},
		{op: ir.OpLayerNormGrad, attr: ir.LayerNormAttr{Eps: 1e-5, Bias: true, Frac: ir.GradientFrac}, args: []ir.Type{x, x, w, rows, rows}, positive: 1 << 4},
	}
	// Rows of one to four vectors for each of 32 threads, in two-byte types or f32, and of more.
	for _, z := range [][2]int{{5, 264}, {3, 488}, {9, 768}, {3, 776}, {3, 1032}, {2051, 8}} {
		x, w, rows := f32(B, z[0], z[1]), f32(z[1]), f32(B, z[0])
		all = append(all,
			sample{op: ir.OpLayerNorm, attr: ir.LayerNormAttr{Eps: 1e-5, Bias: true}, args: []ir.Type{x, w, w}},
			sample{op: ir.OpLayerNormGrad, attr: ir.LayerNormAttr{Eps: 1e-5, Bias: true}, args: []ir.Type{x, x, w, rows, rows}, positive: 1 << 4},
			sample{op: ir.OpRMSNorm, attr: ir.RMSNormAttr{Eps: 1e-5}, args: []ir.Type{x, w}},
			sample{op: ir.OpRMSNormGrad, attr: ir.RMSNormAttr{Eps: 1e-5}, args: []ir.Type{x, x, w, rows}, positive: 1 << 3},
		)
	}
	return all
}

// partSamples have rows of the batch that are parts of sequences: attention to whole sequences, whose parts end within the
// tiles of kernels, and rotation by positions of each row.
func partSamples() (all []sample) {
	for _, z := range []struct{ B, parts, T, NH, D, G int }{ // T is the positions of a part
		{B: 3, parts: 3, T: 23, NH: 2, D: 7, G: 1}, {B: 2, parts: 2, T: 37, NH: 3, D: 9, G: 3}, {B: 1, parts: 2, T: 64, NH: 2, D: 16, G: 2},
		{B: 5, parts: 4, T: 1, NH: 1, D: 5, G: 2},
	} {
		rows := z.B * z.parts
		qkv, o, lse := f32(rows, z.T, z.G+2, z.NH, z.D), f32(rows, z.T, z.G, z.NH, z.D), f32(rows, z.G, z.NH, z.T)
		if z.G == 1 {
			o, lse = f32(rows, z.T, z.NH, z.D), f32(rows, z.NH, z.T)
		}
		for _, p := range []float64{0, 0.3} {
			attr := ir.DropoutAttr{P: p, Key: "h.3.attn/dropout", Parts: z.parts}
			all = append(all,
				sample{op: ir.OpAttention, attr: attr, args: []ir.Type{qkv, i32(), i32()}, high: 1 << 20},
				sample{op: ir.OpAttentionGrad, attr: attr, args: []ir.Type{o, qkv, o, lse, i32(), i32()}, high: 1 << 20, positive: 1 << 3},
			)
		}
	}
	for _, attr := range []ir.RoPEAttr{{Theta: 10000, Rows: true}, {Theta: 10000, Inverse: true, Rows: true, Factor: 8, Low: 1, High: 40, Original: 80}} {
		for _, z := range [][3]int{{3, 11, 3}, {2, 1, 3}, {5, 7, 4}} { // rows, positions, roles
			all = append(all, sample{op: ir.OpRoPE, attr: attr, args: []ir.Type{f32(z[0], z[1], z[2], 2, 14), i32(z[0], z[1])}, high: 5000})
		}
	}
	return all
}

// foldedPartSamples attend to sequences of several rows of the batch, each of which is folded.
func foldedPartSamples() (all []sample) {
	for _, z := range []struct{ B, parts, T, NH, D, G, fold int }{ // T is the positions of a part
		{B: 2, parts: 3, T: 23, NH: 2, D: 7, G: 1, fold: 3}, {B: 1, parts: 2, T: 38, NH: 3, D: 9, G: 3, fold: 2}, {B: 3, parts: 2, T: 6, NH: 1, D: 5, G: 2, fold: 3},
	} {
		rows := z.B * z.parts
		qkv, kv, o, lse := f32(rows, z.T, z.G+2, z.NH, z.D), f32(rows, z.T, 2, z.NH, z.D), f32(rows, z.T, z.G, z.NH, z.D), f32(rows, z.G, z.NH, z.T)
		if z.G == 1 {
			o, lse = f32(rows, z.T, z.NH, z.D), f32(rows, z.NH, z.T)
		}
		for _, p := range []float64{0, 0.3} {
			attr := ir.DropoutAttr{P: p, Key: "h.3.attn/dropout", Parts: z.parts, Fold: z.fold}
			all = append(all,
				sample{op: ir.OpAttentionKV, attr: attr, args: []ir.Type{qkv, kv, i32(), i32()}, high: 1 << 20},
				sample{op: ir.OpAttentionKVGrad, attr: attr, args: []ir.Type{o, qkv, kv, o, lse, i32(), i32()}, high: 1 << 20, positive: 1 << 4},
			)
		}
	}
	return all
}

// wideHeads are samples of attention to more keys than a tile holds, with the head sizes of tensor
// cores, in two-byte types.
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
			add(ir.OpAttention, attr, 0, typ(B, T, 3))
			all[len(all)-1].large = true
			attr.P = 0.3
			add(ir.OpAttention, attr, 0, qkv)
			add(ir.OpAttentionGrad, attr, 1<<3, group, qkv, group, lse)
			attr.Fold = 3
			add(ir.OpAttentionKV, attr, 0, qkv, kv)
			add(ir.OpAttentionKVGrad, attr, 1<<4, group, qkv, kv, group, lse)
		}
	}
	// Sequences in parts, of which the tiles of queries have two or three.
	for _, width := range []int{64, 128} {
		const sequences, parts, T = 2, 3, 45
		typ := func(roles int) ir.Type {
			return ir.Type{DType: ir.BF16, Shape: []int{sequences * parts, T, roles, NH, width}}
		}
		attr := ir.DropoutAttr{P: 0.3, Key: "h.3.attn/dropout", Parts: parts}
		loose := 4 * epsilon(ir.BF16)
		all = append(all,
			sample{op: ir.OpAttention, attr: attr, args: []ir.Type{typ(G + 2), i32(), i32()}, low: low, high: high, loose: loose},
			sample{op: ir.OpAttentionGrad, attr: attr, args: []ir.Type{typ(G), typ(G + 2), typ(G), f32(sequences*parts, G, NH, T), i32(), i32()},
				low: low, high: high, positive: 1 << 3, loose: loose},
		)
	}
	typ := func(roles int) ir.Type { return ir.Type{DType: ir.BF16, Shape: []int{2, 70, roles, NH, 64}} } // one sequence in two folded parts
	attr := ir.DropoutAttr{P: 0.3, Key: "h.3.attn/dropout", Parts: 2, Fold: 3}
	loose := 4 * epsilon(ir.BF16)
	return append(all,
		sample{op: ir.OpAttentionKV, attr: attr, args: []ir.Type{typ(G + 2), typ(2), i32(), i32()}, low: low, high: high, loose: loose},
		sample{op: ir.OpAttentionKVGrad, attr: attr, args: []ir.Type{typ(G), typ(G + 2), typ(2), typ(G), f32(2, G, NH, 70), i32(), i32()},
			low: low, high: high, positive: 1 << 4, loose: loose})
}
