// Package gpt is nanoGPT's model, written in the user's own API: the forward pass (model.go), adapters beside
// its linear layers (lora.go), and the graphs made from them: a training step, evaluation, logits and decoding
// (step.go). These use package trace alone. config.go has the configuration and presets, count.go counts
// parameters, FLOPs and bytes, and hf.go has the names of parameters in checkpoints of other software.
package gpt

import (
	"math"

	"github.com/autopar/autopar/trace"
)

const initStd = 0.02 // of every matrix and table [Radford et al. 2019]

// model is one traced use of a Config. It is written like nanoGPT's model.py, with Llama's choices [Touvron et
// al. 2023] in addition to GPT-2's. In shapes B, T, C, V and NH have nanoGPT's meaning, D = C/NH, and F is the
// width of the MLP. The NH heads are G queries for each of KV heads of keys and values.
type model struct {
	Config
	random trace.Stream // of dropout

	adapted   []string     // names of the linear layers of a block that have adapters
	loraScale trace.Tensor // alpha/rank, factor of what adapters add
	stream    trace.Tensor // input of the first block

	// attention maps packed queries, keys and values [B,T,G+2,KV,D] to [B,T,G,KV,D], or to [B,T,NH,D] if G is
	// 1. It attends either over the whole sequence, or from one token to a cache of the tokens before it.
	attention func(t *trace.Tracer, qkv trace.Tensor) trace.Tensor
}

// logits maps ids [B,T] at positions [T] to [B,T,V].
func (m *model) logits(t *trace.Tracer, ids, positions trace.Tensor) trace.Tensor {
	wte, wpe, embed, head := t.Scope("wte"), t.Scope("wpe"), t.Scope("embed"), t.Scope("lm_head")
	if m.LoRARank > 0 {
		m.loraScale = t.Const("lora_scale", trace.F32, m.loraFactor())
	}
	table := m.matrix(wte, initStd, m.VocabSize, m.NEmbd)
	x := wte.Embedding(table, ids)
	if m.Position == Learned {
		x = embed.Add(x, wpe.Embedding(m.matrix(wpe, initStd, m.BlockSize, m.NEmbd), positions))
	}
	x = embed.Dropout(x, m.Dropout, m.random)
	m.stream = x
	for i := range m.NLayer {
		x = m.block(t.Scope("h", i), x, positions)
	}
	x = m.norm(t.Scope("ln_f"), x)
	if !m.TieEmbeddings {
		table = m.matrix(head, initStd, m.VocabSize, m.NEmbd)
	}
	return head.Linear(x, table, trace.Tensor{}, 1)
}

func (m *model) block(t *trace.Tracer, x, positions trace.Tensor) trace.Tensor {
	x = t.Add(x, m.attn(t.Scope("attn"), m.norm(t.Scope("ln_1"), x), positions))
	return t.Add(x, m.mlp(t.Scope("mlp"), m.norm(t.Scope("ln_2"), x)))
}

// attn keeps the heads of keys and values as a dimension of their own, so that they can be split, each with the
// queries that share it. Its weights have the memory layout of nanoGPT's [3C,C] and [C,C]. With grouped
// queries, the g-th queries of all groups are adjacent: query g of group h is head h G + g of HuggingFace's
// Llama.
func (m *model) attn(t *trace.Tracer, x, positions trace.Tensor) trace.Tensor {
	packed := []int{m.QueryGroup() + 2, m.KVHeads(), m.HeadDim()}
	qkv := m.linear(t, "c_attn", x, initStd, packed, []int{m.NEmbd})
	if m.Position == RoPE {
		qkv = t.RoPE(qkv, positions, m.Rotation())
	}
	y := m.linear(t, "c_proj", m.attention(t, qkv), m.residualStd(), []int{m.NEmbd}, m.heads())
	return t.Dropout(y, m.Dropout, m.random)
}

// mlp packs the gate and up projections of SwiGLU in one weight [2,F,C], as attn packs its three. So one
// product reads x, and one sum over ranks returns its gradient; two weights would take two of each.
func (m *model) mlp(t *trace.Tracer, x trace.Tensor) trace.Tensor {
	C, F := []int{m.NEmbd}, []int{m.FFN()}
	if m.Activation == SwiGLU {
		x = t.SwiGLU(m.linear(t, "c_fc", x, initStd, []int{2, m.FFN()}, C))
	} else {
		x = t.GELU(m.linear(t, "c_fc", x, initStd, F, C), m.Activation == GELUTanh)
	}
	x = m.linear(t, "c_proj", x, m.residualStd(), C, F)
	return t.Dropout(x, m.Dropout, m.random)
}

// residualStd is the initial standard deviation of the projections into the residual stream. 2L of them add to
// it.
func (m *model) residualStd() float64 { return initStd / math.Sqrt(2*float64(m.NLayer)) }

// linear maps the last len(in) dimensions of x to out with a weight [out..., in...] and, if the layer has one,
// its adapter.
func (m *model) linear(t *trace.Tracer, name string, x trace.Tensor, std float64, out, in []int) trace.Tensor {
	t = t.Scope(name)
	w := m.matrix(t, std, append(out[:len(out):len(out)], in...)...)
	y := t.Linear(x, w, m.bias(t, out), len(in))
	if hasAdapter(m.adapted, t.Path()) {
		y = m.adapter(t.Scope("lora"), x, y, out, in)
	}
	return y
}

func (m *model) norm(t *trace.Tracer, x trace.Tensor) trace.Tensor {
	w := m.param(t, "weight", []int{m.NEmbd}, trace.ParamAttr{Init: trace.InitOnes})
	if m.Norm == RMSNorm {
		return t.RMSNorm(x, w, m.Eps())
	}
	return t.LayerNorm(x, w, m.bias(t, []int{m.NEmbd}), m.Eps())
}

// matrix declares a weight with weight decay; norms and biases have none.
func (m *model) matrix(t *trace.Tracer, std float64, shape ...int) trace.Tensor {
	return m.param(t, "weight", shape, trace.ParamAttr{Init: trace.InitNormal, Std: std, Decay: true})
}

// bias declares a bias. It returns a missing tensor in a model without biases.
func (m *model) bias(t *trace.Tracer, shape []int) trace.Tensor {
	if !m.Bias {
		return trace.Tensor{}
	}
	return m.param(t, "bias", shape, trace.ParamAttr{Init: trace.InitZeros})
}

// param declares a weight of the base model. It is frozen if there are adapters.
func (m *model) param(t *trace.Tracer, name string, shape []int, attr trace.ParamAttr) trace.Tensor {
	attr.Frozen = m.LoRARank > 0
	return t.Param(name, shape, attr)
}
