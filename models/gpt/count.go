package gpt

import "strings"

// This file counts parameters, FLOPs and bytes in closed form, for reports and as a check of what the compiler
// derives from the graph. All functions require a Config whose shape is valid. A multiply-add counts as two
// FLOPs.

// ParamGroup is one of AdamW's two parameter groups.
type ParamGroup struct {
	Tensors  int
	Elements int64
}

// ParamGroups splits the trained parameters as nanoGPT's configure_optimizers does: matrices and tables have
// weight decay, biases and norms do not. A tied table counts once. With adapters only their matrices are
// trained.
func (c Config) ParamGroups() (decay, noDecay ParamGroup) {
	if c.LoRARank > 0 {
		return c.adapters(c.Adapted()), ParamGroup{}
	}
	return c.baseGroups()
}

// adapters counts the matrices of the adapters of the named linear layers, in all blocks.
func (c Config) adapters(names []string) ParamGroup {
	C, F := int64(c.NEmbd), int64(c.FFN())
	sides := map[string]int64{ // in + out
		"attn.c_attn": 2*C + 2*c.kvWidth(), "attn.c_proj": 2 * C,
		"mlp.c_fc": C + c.upProjections()*F, "mlp.c_proj": F + C,
	}
	var g ParamGroup
	for _, name := range names {
		g.Tensors += 2 * c.NLayer
		g.Elements += int64(c.NLayer) * int64(c.LoRARank) * sides[name]
	}
	return g
}

// baseGroups returns the groups of the model without adapters.
func (c Config) baseGroups() (decay, noDecay ParamGroup) {
	L, C, F := int64(c.NLayer), int64(c.NEmbd), int64(c.FFN())
	qkv := C + 2*c.kvWidth()
	up := c.upProjections()

	decay.Tensors = 1 + 4*c.NLayer // gate and up projections are one tensor
	decay.Elements = int64(c.VocabSize)*C + L*(C*qkv+C*C+(up+1)*C*F)
	if c.Position == Learned {
		decay.Tensors++
		decay.Elements += c.positionParams()
	}
	if !c.TieEmbeddings {
		decay.Tensors++
		decay.Elements += int64(c.VocabSize) * C
	}

	noDecay.Tensors = 2*c.NLayer + 1
	noDecay.Elements = (2*L + 1) * C
	if c.Bias {
		noDecay.Tensors += 4 * c.NLayer
		noDecay.Elements += L * (qkv + C + up*F + C)
		if c.Norm == LayerNorm {
			noDecay.Tensors += 2*c.NLayer + 1
			noDecay.Elements += (2*L + 1) * C
		}
	}
	return decay, noDecay
}

// NumParams is the number of parameters, including frozen ones.
func (c Config) NumParams() int64 {
	decay, noDecay := c.baseGroups()
	return decay.Elements + noDecay.Elements + c.adapters(c.Adapted()).Elements
}

// NumTrained is the number of parameters that are trained.
func (c Config) NumTrained() int64 {
	decay, noDecay := c.ParamGroups()
	return decay.Elements + noDecay.Elements
}

// NumParamsNoPosition is what nanoGPT's get_num_params prints: all parameters but the position table.
func (c Config) NumParamsNoPosition() int64 { return c.NumParams() - c.positionParams() }

// FLOPsPerToken is nanoGPT's estimate for training on one token, forward and backward: 6N + 12 L NH (C/NH) T,
// with N as NumParamsNoPosition [Chowdhery et al. 2022, PaLM, appendix B]. A token table that is not also the
// head is only looked up, like the position table, and does not count. Frozen parameters count 4 instead of 6
// times, because they have no gradient.
func (c Config) FLOPsPerToken() int64 {
	n := c.NumParamsNoPosition()
	if !c.TieEmbeddings {
		n -= int64(c.VocabSize) * int64(c.NEmbd)
	}
	trained := n
	if c.LoRARank > 0 {
		trained = c.NumTrained()
	}
	return 4*n + 2*trained + 12*int64(c.NLayer)*int64(c.NEmbd)*int64(c.BlockSize)
}

// ForwardFLOPs is the work of the matrix products in one forward pass over one sequence of BlockSize tokens,
// counted as in nanoGPT's transformer_sizing notebook (attention without the savings of the causal mask).
// Training takes three times as much, and twice for frozen weights.
type ForwardFLOPs struct {
	Attention int64 // projections, scores and weighted sum of all layers
	MLP       int64 // all layers
	Head      int64 // logits
}

// Total is the sum of the parts.
func (f ForwardFLOPs) Total() int64 { return f.Attention + f.MLP + f.Head }

// ForwardFLOPs counts one forward pass.
func (c Config) ForwardFLOPs() ForwardFLOPs {
	L, C, T := int64(c.NLayer), int64(c.NEmbd), int64(c.BlockSize)
	var attn, mlp []string // layers that have adapters
	for _, name := range c.Adapted() {
		if strings.HasPrefix(name, "attn.") {
			attn = append(attn, name)
		} else {
			mlp = append(mlp, name)
		}
	}
	return ForwardFLOPs{
		Attention: L*(2*T*C*(2*C+2*c.kvWidth())+4*T*T*C) + 2*T*c.adapters(attn).Elements,
		MLP:       L*2*T*C*int64(c.FFN())*(c.upProjections()+1) + 2*T*c.adapters(mlp).Elements,
		Head:      2 * T * C * int64(c.VocabSize),
	}
}

// TrainingBytes is the memory of training on one device, without recomputation or sharding.
type TrainingBytes struct {
	Weights     int64
	Gradients   int64 // in the type in which they are summed over micro-batches
	Optimizer   int64 // the two moments of AdamW, and the master copy of the weights if there is one
	Activations int64 // by formula: see ActivationBytes; a compiled program has its own exact number
}

// Total is the sum of the parts.
func (b TrainingBytes) Total() int64 { return b.Weights + b.Gradients + b.Optimizer + b.Activations }

// TrainingBytes returns the memory of a step that holds a number of sequences at once. Weights have type
// c.Float, with float32 master copies if that is a 16-bit type and master is set.
func (c Config) TrainingBytes(sequences int, master bool) TrainingBytes {
	n, size := c.NumTrained(), c.Float.Size()
	b := TrainingBytes{
		Weights: size * c.NumParams(), Gradients: size * n, Optimizer: 2 * size * n,
		Activations: c.ActivationBytes(sequences, int(size)),
	}
	if c.Float.Half() && master {
		b.Gradients, b.Optimizer = 4*n, 12*n
	}
	return b
}

// ActivationBytes estimates the bytes that the forward pass keeps for the backward pass, for elements of
// elementSize bytes and unfused attention. Per layer that is sbh(34 + 5as/h) bytes for two bytes per element
// with dropout [Korthikanti et al. 2023, table 2]; in addition there are the embedding mask, the final norm,
// the head's input, float32 logits and two int32 ids per token. With adapters the result of A is kept for B,
// and so is the input of A if there is dropout on it. That frozen layers do not need their inputs is not
// deducted.
func (c Config) ActivationBytes(sequences, elementSize int) int64 {
	T, C, F, e := int64(c.BlockSize), int64(c.NEmbd), int64(c.FFN()), int64(elementSize)
	tokens := int64(sequences) * T
	scores := int64(c.NHead) * T // attention probabilities of one token
	mask := int64(0)             // bytes of a dropout mask per element
	if c.Dropout > 0 {
		mask = 1
	}

	norms := 2 * e * C
	attention := e*(3*C+2*c.kvWidth()) + mask*C // qkv input, q, k, v, projection input
	mlp := e*(C+(c.upProjections()+1)*F) + mask*C
	for _, name := range c.Adapted() {
		attention += e * int64(c.LoRARank)
		if c.LoRADropout > 0 { // the input of A after dropout
			in := C
			if name == "mlp.c_proj" {
				in = F
			}
			attention += e * in
		}
	}
	probabilities := e * scores
	if c.Dropout > 0 {
		probabilities += (1 + e) * scores // the mask, and the probabilities after dropout
	}
	layer := norms + attention + mlp + probabilities
	ends := mask*C + 2*e*C + 4*int64(c.VocabSize) + 8
	return tokens * (int64(c.NLayer)*layer + ends)
}

// kvWidth is the total width of all key (or value) heads.
func (c Config) kvWidth() int64 { return int64(c.KVHeads()) * int64(c.HeadDim()) }

// upProjections is the number of C->F matrices in an MLP: a gated one has two.
func (c Config) upProjections() int64 {
	if c.Activation == SwiGLU {
		return 2
	}
	return 1
}

// positionParams is the size of the position table.
func (c Config) positionParams() int64 {
	if c.Position != Learned {
		return 0
	}
	return int64(c.BlockSize) * int64(c.NEmbd)
}
