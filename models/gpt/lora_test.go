package gpt

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
)

// withAdapters is a small model of odd sizes with adapters at the layers that targets matches.
func withAdapters(targets string) Config {
	c := DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize, c.Dropout = 2, 3, 21, 9, 65, 0.1
	c.LoRARank, c.LoRAAlpha, c.LoRADropout, c.LoRATargets = 5, 8, 0.1, targets
	return c
}

// Only the matrices of adapters are trained, at the layers that match; the closed-form counts are those of the
// graph.
func TestAdaptersAlone(t *testing.T) {
	grouped := withAdapters(".")
	grouped.NHead, grouped.NKVHead, grouped.NEmbd, grouped.Activation, grouped.Norm, grouped.Position = 4, 2, 24, SwiGLU, RMSNorm, RoPE
	grouped.TieEmbeddings = false
	for _, c := range []Config{withAdapters(""), withAdapters("."), withAdapters("c_proj"), withAdapters("^mlp"), grouped} {
		g, err := TrainStep(c, Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, 2, 9)
		require.NoError(t, err)
		var all, trained int64
		moments := map[string]bool{}
		for _, v := range g.Params() {
			attr := v.Def.Attr.(ir.ParamAttr)
			n := ir.Elems(v.Type.Shape)
			switch {
			case attr.State:
				moments[v.Name()] = true
			case attr.Frozen:
				all += n
				require.False(t, IsAdapter(v.Name()), v.Name())
			default:
				all, trained = all+n, trained+n
				require.True(t, IsAdapter(v.Name()), v.Name())
				weight := v.Name()[:strings.Index(v.Name(), ".lora.")] + ".weight"
				a, has := c.AdapterOf(weight)
				require.True(t, has, weight)
				shape := g.Find(weight).Results[0].Type.Shape
				in := len(shape) - a.In
				require.Equal(t, append([]int{c.LoRARank}, shape[in:]...), g.Find(a.A).Results[0].Type.Shape, weight)
				require.Equal(t, append(shape[:in:in], c.LoRARank), g.Find(a.B).Results[0].Type.Shape, weight)
			}
		}
		require.Equal(t, all, c.NumParams(), c.LoRATargets)
		require.Equal(t, trained, c.NumTrained(), c.LoRATargets)
		decay, rest := c.ParamGroups()
		require.Equal(t, ParamGroup{len(moments) / 2, trained}, decay)
		require.Zero(t, rest)
		require.Len(t, g.Updates, 3*decay.Tensors, "a weight and two moments each")
		require.Equal(t, 2*2*len(c.Adapted()), decay.Tensors)

		base := c.Base()
		require.Equal(t, base.NumParams(), all-trained)
		more := c.ForwardFLOPs().Total() - base.ForwardFLOPs().Total()
		require.Equal(t, 2*int64(c.BlockSize)*trained, more)
		frozen := base.FLOPsPerToken() - 12*int64(c.NLayer*c.NEmbd*c.BlockSize) // 6 for each
		require.Equal(t, 4*frozen/6+6*trained, c.FLOPsPerToken()-12*int64(c.NLayer*c.NEmbd*c.BlockSize))
		bytes := c.TrainingBytes(1, true)
		require.Equal(t, []int64{4 * all, 4 * trained, 8 * trained}, []int64{bytes.Weights, bytes.Gradients, bytes.Optimizer})
		require.Greater(t, bytes.Activations, base.TrainingBytes(1, true).Activations)
	}
}

// Training starts with the function of the model without adapters; alpha over rank scales the adapters.
func TestAdapterFactor(t *testing.T) {
	c := withAdapters(".")
	a, ok := c.AdapterOf("h.1.attn.c_proj.weight")
	require.True(t, ok)
	require.Equal(t, Adapter{A: "h.1.attn.c_proj.lora.a", B: "h.1.attn.c_proj.lora.b", In: 2, Factor: 1.6}, a)
	c.LoRAAlpha = 0
	a, _ = c.AdapterOf("h.0.mlp.c_fc.weight")
	require.Equal(t, Adapter{A: "h.0.mlp.c_fc.lora.a", B: "h.0.mlp.c_fc.lora.b", In: 1, Factor: 1}, a)
	for _, none := range []string{"h.0.mlp.c_fc.bias", "wte.weight", "lm_head.weight", "h.0.ln_1.weight", "h.0.mlp.c_fc.lora.a"} {
		_, ok = c.AdapterOf(none)
		require.False(t, ok, none)
	}
	_, ok = withAdapters("").AdapterOf("h.0.mlp.c_fc.weight")
	require.False(t, ok)
}

func TestAdaptersRefused(t *testing.T) {
	for want, edit := range map[string]func(*Config){
		`lora_targets: "c_atn" matches none of attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj`: func(c *Config) { c.LoRATargets = "c_atn" },
		`lora_targets: "(" is no regular expression`:                                           func(c *Config) { c.LoRATargets = "(" },
		"lora_rank: is -1, must be in [0, n_embd], n_embd being 21":                            func(c *Config) { c.LoRARank = -1 },
		"lora_rank: is 22, must be in [0, n_embd], n_embd being 21":                            func(c *Config) { c.LoRARank = 22 },
		"lora_alpha: is -1, must be positive, or 0 for lora_rank":                              func(c *Config) { c.LoRAAlpha = -1 },
		"lora_alpha: is NaN":                                     func(c *Config) { c.LoRAAlpha = math.NaN() },
		"lora_dropout: is 1, must be in [0, 1)":                  func(c *Config) { c.LoRADropout = 1 },
		"lora_alpha: is of adapters, and lora_rank 0 has none":   func(c *Config) { c.LoRARank = 0 },
		"lora_dropout: is of adapters, and lora_rank 0 has none": func(c *Config) { c.LoRARank, c.LoRAAlpha = 0, 0 },
		"lora_targets: is of adapters, and lora_rank 0 has none": func(c *Config) { c.LoRARank, c.LoRAAlpha, c.LoRADropout = 0, 0, 0 },
	} {
		c := withAdapters("mlp")
		edit(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
}

// The same weights compute the same if rank, factor and layers are the same.
func TestAdaptersOfAnotherModel(t *testing.T) {
	c := withAdapters("")
	same := c
	same.LoRADropout, same.LoRATargets = 0, "c_attn"
	require.NoError(t, c.Same(same))
	for key, edit := range map[string]func(*Config){
		"lora_rank":    func(c *Config) { c.LoRARank = 4 },
		"lora_alpha":   func(c *Config) { c.LoRAAlpha = 0 },
		"lora_targets": func(c *Config) { c.LoRATargets = "mlp" },
	} {
		other := c
		edit(&other)
		require.ErrorContains(t, c.Same(other), fmt.Sprintf("gpt: %s:", key))
	}
	require.ErrorContains(t, c.Same(c.Base()), "lora_rank: is 5, not 0")
}
