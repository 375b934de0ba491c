package gpt

import (
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/autopar/autopar/trace"
)

// Low-rank adaptation [Hu et al. 2022]: in addition to the weight W of a linear layer two matrices are trained,
// A [rank, in] and B [out, rank], and the layer computes x Wᵀ + alpha/rank (x Aᵀ) Bᵀ. Everything else is
// frozen: it has no gradient and no optimizer state. B starts with zeros, so that training starts with the
// function of the base model.

// linears are the linear layers of a block, and defaultTargets matches those that have adapters unless others are named.
var linears = []string{"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}

const defaultTargets = `^attn\.c_attn$`

// Base returns the model without adapters.
func (c Config) Base() Config {
	c.LoRARank, c.LoRAAlpha, c.LoRADropout, c.LoRATargets = 0, 0, 0, ""
	return c
}

// Adapted lists the linear layers of a block that have adapters, by their names within the block.
func (c Config) Adapted() (names []string) {
	if c.LoRARank == 0 {
		return nil
	}
	targets := c.LoRATargets
	if targets == "" {
		targets = defaultTargets
	}
	match, err := regexp.Compile(targets)
	if err != nil {
		return nil // Validate refuses it
	}
	for _, name := range linears {
		if match.MatchString(name) {
			names = append(names, name)
		}
	}
	return names
}

// Adapter describes the adapter of a weight [out..., in...]: A [rank, in...] and B [out..., rank].
type Adapter struct {
	A, B   string  // names of the parameters
	In     int     // number of dimensions in in...
	Factor float64 // alpha/rank
}

// AdapterOf returns the adapter of a parameter; ok is false if it has none.
func (c Config) AdapterOf(param string) (a Adapter, ok bool) {
	module, isWeight := strings.CutSuffix(param, ".weight")
	if !isWeight || !hasAdapter(c.Adapted(), module) {
		return Adapter{}, false
	}
	a = Adapter{A: module + ".lora.a", B: module + ".lora.b", In: 1, Factor: c.loraFactor()}
	if strings.HasSuffix(module, "attn.c_proj") {
		a.In = len(c.heads())
	}
	return a, true
}

// IsAdapter reports whether a parameter is a matrix of an adapter.
func IsAdapter(param string) bool {
	return strings.HasSuffix(param, ".lora.a") || strings.HasSuffix(param, ".lora.b")
}

func hasAdapter(adapted []string, module string) bool {
	return slices.ContainsFunc(adapted, func(name string) bool { return strings.HasSuffix(module, "."+name) })
}

func (c Config) loraFactor() float64 {
	if c.LoRAAlpha == 0 {
		return 1
	}
	return c.LoRAAlpha / float64(c.LoRARank)
}

func (c Config) validateLoRA() error {
	for _, k := range []struct {
		key string
		set bool
	}{{"lora_alpha", c.LoRAAlpha != 0}, {"lora_dropout", c.LoRADropout != 0}, {"lora_targets", c.LoRATargets != ""}} {
		if k.set && c.LoRARank == 0 {
			return refuse(k.key, "is of adapters, and lora_rank 0 has none")
		}
	}
	if c.LoRARank < 0 || c.LoRARank > c.NEmbd {
		return refuse("lora_rank", "is %d, must be in [0, n_embd], n_embd being %d", c.LoRARank, c.NEmbd)
	}
	if !(c.LoRAAlpha >= 0) || math.IsInf(c.LoRAAlpha, 1) {
		return refuse("lora_alpha", "is %v, must be positive, or 0 for lora_rank", c.LoRAAlpha)
	}
	if !(c.LoRADropout >= 0 && c.LoRADropout < 1) {
		return refuse("lora_dropout", "is %v, must be in [0, 1)", c.LoRADropout)
	}
	if _, err := regexp.Compile(c.LoRATargets); err != nil {
		return refuse("lora_targets", "%q is no regular expression: %v", c.LoRATargets, err)
	}
	if c.LoRARank > 0 && len(c.Adapted()) == 0 {
		return refuse("lora_targets", "%q matches none of %s", c.LoRATargets, strings.Join(linears, ", "))
	}
	return nil
}

// adapter returns the sum of y, the result of a linear layer for x, and the result of its adapter for x.
func (m *model) adapter(t *trace.Tracer, x, y trace.Tensor, out, in []int) trace.Tensor {
	wide := 1
	for _, d := range in {
		wide *= d
	}
	// The standard deviation of loralib's A, which is uniform within 1/sqrt(in).
	std := 1 / math.Sqrt(3*float64(wide))
	a := t.Param("a", append([]int{m.LoRARank}, in...), trace.ParamAttr{Init: trace.InitNormal, Std: std, Decay: true})
	b := t.Param("b", append(out[:len(out):len(out)], m.LoRARank), trace.ParamAttr{Init: trace.InitZeros, Decay: true})
	low := t.Linear(t.Dropout(x, m.LoRADropout, m.random), a, trace.Tensor{}, len(in))
	return t.Add(y, t.Linear(t.Scale(low, m.loraScale), b, trace.Tensor{}, 1))
}
