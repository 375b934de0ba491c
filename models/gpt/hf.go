package gpt

import (
	"fmt"
	"slices"
	"strings"
)

// Layout is how other software stores the weights of a model.
type Layout string

// The layouts.
const (
	NanoGPT Layout = "nanogpt" // nanoGPT's GPT: matrices are out x in, as in torch.nn.Linear
	GPT2    Layout = "gpt2"    // GPT2LMHeadModel of transformers: the four projections of a block are in x out, as in its Conv1D
	Llama   Layout = "llama"   // LlamaForCausalLM of transformers: out x in; queries, keys and values are apart, and so are gate and up
)

// Fits returns an error that names what in this model a layout cannot store, or nil if it can store everything.
func (c Config) Fits(l Layout) error {
	type difference struct {
		key   string
		value any
		is    bool
	}
	differences := []difference{
		{"activation", c.Activation, c.Activation == SwiGLU},
		{"norm", c.Norm, c.Norm != LayerNorm},
		{"position", c.Position, c.Position != Learned},
		{"n_kv_head", c.NKVHead, c.KVHeads() != c.NHead},
		{"tie_embeddings", c.TieEmbeddings, !c.TieEmbeddings},
	}
	not := "GPT-2: nanoGPT's and HuggingFace's weights files cannot say it; use the run's own checkpoint"
	switch {
	case l == NanoGPT && c.Fits(Llama) == nil:
		not = "GPT-2: nanoGPT's weights files cannot say it; HuggingFace's layout for Llamas can"
	case l == Llama:
		not = "Llama: HuggingFace's weights files cannot say it; use the run's own checkpoint"
		differences = []difference{
			{"activation", c.Activation, c.Activation != SwiGLU},
			{"norm", c.Norm, c.Norm != RMSNorm},
			{"position", c.Position, c.Position != RoPE},
			{"bias", c.Bias, c.Bias},
		}
	}
	for _, other := range differences {
		if other.is {
			return &ConfigError{other.key, fmt.Sprintf("%v is not %s", other.value, not)}
		}
	}
	return nil
}

// InTransformers returns the layout of the model of transformers that computes what this one does. If there is none, the error
// says what is in the way of the one that is more like it.
func (c Config) InTransformers() (Layout, error) {
	asInLlama := 0
	for _, is := range []bool{c.Activation == SwiGLU, c.Norm == RMSNorm, c.Position == RoPE} {
		if is {
			asInLlama++
		}
	}
	l := GPT2
	if asInLlama > 1 {
		l = Llama
	}
	return l, c.Fits(l)
}

// Stored is a tensor in a layout that has a parameter of this model, or a part of one.
type Stored struct {
	Name     string
	Shape    []int // of the tensor
	Of       []int // the shape of the parameter, in which heads are a dimension of their own
	From, To int   // the part: indices of the parameter's first dimension
	// Order lists the dimensions of the parameter as the tensor has them. Some that follow each other are one dimension there.
	Order []int
}

// Stored returns the tensors in which a layout has a parameter of this model; none if this model has no such parameter. Names in
// nanoGPT's layout are formed for any model, whether or not it fits.
func (c Config) Stored(param string, l Layout) []Stored {
	if param == "lm_head.weight" && c.TieEmbeddings {
		return nil
	}
	shape, in := c.shape(param)
	if shape == nil {
		return nil
	}
	if l == Llama {
		return c.inLlama(param, shape)
	}
	name := "transformer." + param
	if param == "lm_head.weight" {
		name = param
	}
	s := whole(name, shape)
	out := len(shape) - in
	if in > 0 {
		s.Shape = []int{elements(shape[:out]), elements(shape[out:])}
		if l == GPT2 && strings.HasPrefix(param, "h.") {
			slices.Reverse(s.Shape)
			s.Order = append(slices.Clone(s.Order[out:]), s.Order[:out]...)
		}
	} else {
		s.Shape = []int{elements(shape)}
	}
	return []Stored{s}
}

// whole is a tensor that has a parameter as it is.
func whole(name string, shape []int) Stored {
	s := Stored{Name: name, Shape: shape, Of: shape, To: shape[0]}
	for i := range shape {
		s.Order = append(s.Order, i)
	}
	return s
}

// inLlama is Stored for LlamaForCausalLM.
func (c Config) inLlama(param string, shape []int) []Stored {
	module, field := cutLast(param, ".")
	if field != "weight" {
		return nil
	}
	prefix, module := blockOf(module)
	if prefix != "" {
		prefix = "model.layers." + strings.TrimPrefix(prefix, "h.")
	}
	C, groups := c.NEmbd, c.QueryGroup()
	one := func(name string) []Stored { return []Stored{whole(prefix+name+".weight", shape)} }
	part := func(name string, from, to int, order ...int) Stored {
		s := whole(prefix+name+".weight", shape)
		s.From, s.To, s.Shape = from, to, []int{(to - from) * elements(shape[1:]) / C, C}
		if order != nil {
			s.Order = order
		}
		return s
	}
	switch module {
	case "wte":
		return one("model.embed_tokens")
	case "ln_f":
		return one("model.norm")
	case "lm_head":
		return one("lm_head")
	case "h.ln_1":
		return one("input_layernorm")
	case "h.ln_2":
		return one("post_attention_layernorm")
	case "h.mlp.c_proj":
		return one("mlp.down_proj")
	case "h.mlp.c_fc":
		return []Stored{part("mlp.gate_proj", 0, 1), part("mlp.up_proj", 1, 2)}
	case "h.attn.c_attn": // query g of group h is head h G + g there
		return []Stored{part("self_attn.q_proj", 0, groups, 1, 0, 2, 3), part("self_attn.k_proj", groups, groups+1), part("self_attn.v_proj", groups+1, groups+2)}
	case "h.attn.c_proj":
		s := whole(prefix+"self_attn.o_proj.weight", shape)
		if s.Shape = []int{C, C}; groups > 1 {
			s.Order = []int{0, 2, 1, 3}
		}
		return []Stored{s}
	}
	return nil
}

// shape returns the shape of a parameter, and how many of its last dimensions are the input of a matrix; nil if this model has no
// such parameter.
func (c Config) shape(param string) (shape []int, in int) {
	C, F := c.NEmbd, []int{c.FFN()}
	if c.upProjections() > 1 {
		F = []int{int(c.upProjections()), c.FFN()}
	}
	module, field := cutLast(param, ".")
	_, module = blockOf(module)
	var out, from []int // of a matrix with a row for each output
	switch module {
	case "wte":
		out, from = []int{c.VocabSize}, []int{C}
	case "lm_head":
		if field == "bias" {
			return nil, 0
		}
		out, from = []int{c.VocabSize}, []int{C}
	case "wpe":
		out, from = []int{c.BlockSize}, []int{C}
	case "h.ln_1", "h.ln_2", "ln_f":
		out = []int{C}
	case "h.attn.c_attn":
		out, from = []int{c.QueryGroup() + 2, c.KVHeads(), c.HeadDim()}, []int{C}
	case "h.attn.c_proj":
		out, from = []int{C}, c.heads()
	case "h.mlp.c_fc":
		out, from = F, []int{C}
	case "h.mlp.c_proj":
		out, from = []int{C}, []int{c.FFN()}
	}
	switch {
	case out == nil || field != "weight" && field != "bias":
		return nil, 0
	case field == "bias":
		return out, 0
	}
	return slices.Concat(out, from), len(from)
}

// blockOf cuts the name of a module into that of its block, with a dot at the end, and one without the number of the block.
func blockOf(module string) (block, name string) {
	rest, ok := strings.CutPrefix(module, "h.")
	if !ok {
		return "", module
	}
	number, inBlock, _ := strings.Cut(rest, ".")
	return "h." + number + ".", "h." + inBlock
}

func elements(shape []int) int {
	n := 1
	for _, size := range shape {
		n *= size
	}
	return n
}

func cutLast(s, sep string) (before, after string) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, ""
	}
	return s[:i], s[i+len(sep):]
}
