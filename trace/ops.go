package trace

import (
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/philox"
)

// In the shapes below ... stands for any number of dimensions. All tensors of a call have the same
// floating-point type, except ids, targets and positions, which are i32, and scalars, which are f32. Package
// ir/interp defines what each op computes.

// Add returns a + b. b[s...] is repeated over the leading dimensions of a[..., s...].
func (t *Tracer) Add(a, b Tensor) Tensor { return t.record(ir.OpAdd, nil, a, b)[0] }

// Scale returns x times the scalar s, which has no gradient.
func (t *Tracer) Scale(x, s Tensor) Tensor { return t.record(ir.OpScale, nil, x, s)[0] }

// Sum returns the sum of all elements, a scalar.
func (t *Tracer) Sum(x Tensor) Tensor { return t.record(ir.OpSum, nil, x)[0] }

// Linear returns x wᵀ + b for x[..., in...], w[out..., in...] and b[out...],
// contracting the last k dimensions of both. b may be missing.
func (t *Tracer) Linear(x, w, b Tensor, k int) Tensor {
	y := t.record(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNT, K: k}, x, w)[0]
	if b == (Tensor{}) {
		return y
	}
	return t.Add(y, b)
}

// Embedding returns the rows [..., c] of table[v, c] that ids[...] name.
func (t *Tracer) Embedding(table, ids Tensor) Tensor {
	return t.record(ir.OpEmbedding, nil, table, ids)[0]
}

// LayerNorm normalizes the last dimension of x[..., c] to mean 0 and variance 1,
// then applies w[c] and, unless it is missing, b[c].
func (t *Tracer) LayerNorm(x, w, b Tensor, eps float64) Tensor {
	if b == (Tensor{}) {
		return t.record(ir.OpLayerNorm, ir.LayerNormAttr{Eps: eps}, x, w)[0]
	}
	return t.record(ir.OpLayerNorm, ir.LayerNormAttr{Eps: eps, Bias: true}, x, w, b)[0]
}

// RMSNorm divides the last dimension of x[..., c] by its root mean square, then
// applies w[c].
func (t *Tracer) RMSNorm(x, w Tensor, eps float64) Tensor {
	return t.record(ir.OpRMSNorm, ir.RMSNormAttr{Eps: eps}, x, w)[0]
}

// GELU applies the exact GELU, or its tanh approximation, to each element.
func (t *Tracer) GELU(x Tensor, tanh bool) Tensor {
	return t.record(ir.OpGELU, ir.GELUAttr{Tanh: tanh}, x)[0]
}

// SwiGLU returns silu(gate) up for x[..., 2, f], which packs gate and up; the
// result is [..., f].
func (t *Tracer) SwiGLU(x Tensor) Tensor { return t.record(ir.OpSwiGLU, nil, x)[0] }

// RoPE rotates the queries and keys of qkv[b, t, g+2, h, d] by angles that grow
// with positions[t]. Values pass.
func (t *Tracer) RoPE(qkv, positions Tensor, attr RoPEAttr) Tensor {
	return t.record(ir.OpRoPE, attr, qkv, positions)[0]
}

// Dropout zeroes each element with probability p and scales the others by
// 1/(1-p). p = 0 records nothing.
func (t *Tracer) Dropout(x Tensor, p float64, random Stream) Tensor {
	if p == 0 {
		return x
	}
	return t.keyed(ir.OpDropout, p, x, random)
}

// Attention is causal multi-head attention of packed queries, keys and values
// qkv[b, t, g+2, h, d], g queries to each of h heads of keys and values, with dropout
// p on the probabilities; the result is [b, t, g, h, d], or [b, t, h, d] for g of 1.
// random is unused, but must be there, when p = 0.
func (t *Tracer) Attention(qkv Tensor, p float64, random Stream) Tensor {
	return t.keyed(ir.OpAttention, p, qkv, random)
}

// keyed records an op that draws random numbers from a stream named after the node itself. A stream is
// identified by a hash of its name. Two names with the same hash would draw the same masks, so they are
// refused; the first such collision among blocks of GPT is at the 5,944th block.
func (t *Tracer) keyed(op ir.Op, p float64, x Tensor, random Stream) Tensor {
	y := t.record(op, ir.DropoutAttr{P: p}, x, random.Seed, random.Step)[0]
	if y.v == nil {
		return y
	}
	name := y.v.Def.Name
	y.v.Def.Attr = ir.DropoutAttr{P: p, Key: name}
	if p > 0 {
		hash := philox.OpKey(name)
		if other, taken := t.rec.streams[hash]; taken {
			t.Failf("%s would drop the same elements as %s: the hash of both names is %08x", name, other, hash)
		}
		t.rec.streams[hash] = name
	}
	return y
}

// AttentionDecode attends from the single token of qkv[b, 1, g+2, h, d], which is at position pos (an i32
// scalar), to itself and all tokens before it, whose keys and values are in cache[b, t, 2, h, d]. The result is
// that of Attention; the cache's next value includes the token.
func (t *Tracer) AttentionDecode(qkv, cache, pos Tensor) Tensor {
	r := t.record(ir.OpAttentionDecode, nil, qkv, cache, pos)
	t.Update(cache, r[1])
	return r[0]
}

// CrossEntropy returns -log softmax(logits)[target] for each row of
// logits[..., v] and targets[...]; rows whose target is negative give 0.
func (t *Tracer) CrossEntropy(logits, targets Tensor) Tensor {
	rowMax := t.record(ir.OpRowMax, nil, logits)[0]
	rowSum := t.record(ir.OpRowSumExp, nil, logits, rowMax)[0]
	pick := t.record(ir.OpRowPick, nil, logits, targets)[0]
	return t.record(ir.OpNLL, nil, rowMax, rowSum, pick, targets)[0]
}

// GlobalNorm returns the 2-norm of all gradients together, a scalar. grads[i] is the gradient of weights[i];
// the node of its sum of squares is named after that weight.
func (t *Tracer) GlobalNorm(weights, grads []Tensor) Tensor {
	defer t.rec.hold()()
	squares := make([]Tensor, len(grads))
	for i, g := range grads {
		squares[i] = t.recordAs(weights[i].Name(), ir.OpSumSquares, nil, g)[0]
	}
	return t.record(ir.OpSqrt, nil, t.record(ir.OpAddN, nil, squares...)[0])[0]
}

// ClipScale returns the factor min(1, max/(norm+1e-6)) that clips gradients of
// the given norm.
func (t *Tracer) ClipScale(norm Tensor, max float64) Tensor {
	return t.record(ir.OpClipScale, ir.ClipAttr{MaxNorm: max}, norm)[0]
}
