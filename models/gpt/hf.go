package gpt

import (
	"fmt"
	"strings"
)

// GPT2 returns an error that names what in this model a weights file of nanoGPT's or HuggingFace's GPT-2 cannot
// store, or nil if it can store everything.
func (c Config) GPT2() error {
	for _, other := range []struct {
		key   string
		value any
		is    bool
	}{
		{"activation", c.Activation, c.Activation == SwiGLU},
		{"norm", c.Norm, c.Norm != LayerNorm},
		{"position", c.Position, c.Position != Learned},
		{"n_kv_head", c.NKVHead, c.KVHeads() != c.NHead},
		{"tie_embeddings", c.TieEmbeddings, !c.TieEmbeddings},
	} {
		if other.is {
			return &ConfigError{other.key, fmt.Sprintf("%v is not GPT-2: nanoGPT's and HuggingFace's weights files cannot say it; use the run's own checkpoint", other.value)}
		}
	}
	return nil
}

// HFName returns how nanoGPT and HuggingFace's GPT2LMHeadModel store a parameter of this model: the name of the
// tensor and its shape in nanoGPT's files. It has the same elements in the same order as the parameter, but
// heads are not a dimension of their own. transpose says that HuggingFace stores the matrix transposed, in x
// out, as its Conv1D does for the four projections of a block. The name is "" if this model has no such
// parameter.
//
// A tied head has no entry: lm_head.weight is transformer.wte.weight. For models for which [Config.GPT2]
// returns an error names are formed in the same way, but no other software reads them.
func (c Config) HFName(param string) (name string, transpose bool, shape []int) {
	C, F := c.NEmbd, c.FFN()
	module, field, _ := cutLast(param, ".")
	if rest, ok := strings.CutPrefix(module, "h."); ok {
		_, inBlock, _ := strings.Cut(rest, ".")
		module = "h." + inBlock
	}
	isMatrix := field == "weight"
	switch module {
	case "wte":
		shape = []int{c.VocabSize, C}
	case "lm_head":
		if c.TieEmbeddings || field == "bias" {
			return "", false, nil
		}
		return param, false, []int{c.VocabSize, C}
	case "wpe":
		shape = []int{c.BlockSize, C}
	case "h.ln_1", "h.ln_2", "ln_f":
		isMatrix, shape = false, []int{C}
	case "h.attn.c_attn":
		transpose, shape = true, []int{C + 2*int(c.kvWidth()), C}
	case "h.attn.c_proj":
		transpose, shape = true, []int{C, C}
	case "h.mlp.c_fc":
		transpose, shape = true, []int{int(c.upProjections()) * F, C}
	case "h.mlp.c_proj":
		transpose, shape = true, []int{C, F}
	}
	if shape == nil || field != "weight" && field != "bias" {
		return "", false, nil
	}
	if !isMatrix {
		transpose, shape = false, shape[:1]
	}
	return "transformer." + param, transpose, shape
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
