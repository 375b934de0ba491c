package gpt

// This file counts parameters, FLOPs and bytes in closed form, for reports and as a check on what the compiler derives from
// the graph itself. Every function wants a Config whose shape is valid; a multiply-add counts as two FLOPs.

// ParamGroup is one of AdamW's two parameter groups.
type ParamGroup struct {
	Tensors  int
	Elements int64
}

// ParamGroups splits the parameters as nanoGPT's configure_optimizers does: matrices and tables are decayed, biases and
// norms are not. A tied table counts once.
func (c Config) ParamGroups() (decay, noDecay ParamGroup) {
	L, C, F := int64(c.NLayer), int64(c.NEmbd), int64(c.FFN())
	qkv := C + 2*c.kvWidth()
	up := c.upProjections()

	decay.Tensors = 1 + c.NLayer*(3+int(up))
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
		noDecay.Tensors += c.NLayer * (3 + int(up))
		noDecay.Elements += L * (qkv + C + up*F + C)
		if c.Norm == LayerNorm {
			noDecay.Tensors += 2*c.NLayer + 1
			noDecay.Elements += (2*L + 1) * C
		}
	}
	return decay, noDecay
}

// NumParams is the number of trained parameters.
func (c Config) NumParams() int64 {
	decay, noDecay := c.ParamGroups()
	return decay.Elements + noDecay.Elements
}

// NumParamsNoPosition is what nanoGPT's get_num_params prints: all parameters but the position table.
func (c Config) NumParamsNoPosition() int64 { return c.NumParams() - c.positionParams() }

// FLOPsPerToken is nanoGPT's estimate for one token of training, forward and backward: 6N + 12 L NH (C/NH) T, with N as
// NumParamsNoPosition [Chowdhery et al. 2022, PaLM, appendix B].
func (c Config) FLOPsPerToken() int64 {
	return 6*c.NumParamsNoPosition() + 12*int64(c.NLayer)*int64(c.NEmbd)*int64(c.BlockSize)
}

// ForwardFLOPs is the matrix-multiply work of one forward pass over one sequence of BlockSize tokens, as counted in
// nanoGPT's transformer_sizing notebook (attention without the causal saving). Training takes three times as much.
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
	return ForwardFLOPs{
		Attention: L * (2*T*C*(2*C+2*c.kvWidth()) + 4*T*T*C),
		MLP:       L * 2 * T * C * int64(c.FFN()) * (c.upProjections() + 1),
		Head:      2 * T * C * int64(c.VocabSize),
	}
}

// TrainingBytes is the memory of training on one device, without recomputation or sharding.
type TrainingBytes struct {
	Weights     int64
	Gradients   int64 // as they are summed over micro-batches
	Optimizer   int64 // AdamW's two moments, and the master copy of the weights if there is one
	Activations int64 // by formula, see ActivationBytes; a compiled program knows its own exact number
}

// Total is the sum of the parts.
func (b TrainingBytes) Total() int64 { return b.Weights + b.Gradients + b.Optimizer + b.Activations }

// TrainingBytes sizes a step that holds the given number of sequences at once, in c.Float and with float32 master weights
// if that has two bytes and master is set.
func (c Config) TrainingBytes(sequences int, master bool) TrainingBytes {
	n, size := c.NumParams(), c.Float.Size()
	b := TrainingBytes{
		Weights: size * n, Gradients: size * n, Optimizer: 2 * size * n,
		Activations: c.ActivationBytes(sequences, int(size)),
	}
	if c.Float.Half() && master {
		b.Gradients, b.Optimizer = 4*n, 12*n
	}
	return b
}

// ActivationBytes estimates what the forward pass keeps for the backward pass, for elements of the given size, with
// unfused attention: per layer sbh(34 + 5as/h) bytes at two bytes per element with dropout [Korthikanti et al. 2023,
// table 2], plus embedding mask, final norm, head input, float32 logits and two int32 ids per token.
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
	probabilities := e * scores
	if c.Dropout > 0 {
		probabilities += (1 + e) * scores // mask, and the probabilities after it
	}
	layer := norms + attention + mlp + probabilities
	ends := mask*C + 2*e*C + 4*int64(c.VocabSize) + 8
	return tokens * (int64(c.NLayer)*layer + ends)
}

// kvWidth is the width of all key (or value) heads together.
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
