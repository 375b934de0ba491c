package gpt

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/autopar/autopar/trace"
)

// Config is the architecture of one GPT. The zero value is not a model: start from DefaultConfig or Preset.
// Package config reads keys, legal values and documentation from the tags yaml, enum, print and help.
type Config struct {
	Preset        string  `yaml:"preset" help:"a named model; it replaces every other model key, keys beside it override it"`
	NLayer        int     `yaml:"n_layer" help:"transformer blocks (L)"`
	NHead         int     `yaml:"n_head" help:"attention heads (NH)"`
	NEmbd         int     `yaml:"n_embd" help:"width of the residual stream (C), divides by n_head"`
	BlockSize     int     `yaml:"block_size" help:"context length in tokens (T)"`
	VocabSize     int     `yaml:"vocab_size" help:"symbols (V); data files hold uint16, or uint32 if there are more than 65536"`
	Dropout       float64 `yaml:"dropout" help:"probability of dropping, at all four sites"`
	Bias          bool    `yaml:"bias" help:"biases in every linear and LayerNorm (RMSNorm has none)"`
	NKVHead       int     `yaml:"n_kv_head" help:"key and value heads, a divisor of n_head whose heads share them in groups; 0 is n_head, 1 is multi-query"`
	FFNHidden     int     `yaml:"ffn_hidden" help:"width inside the MLP; 0 is 4 n_embd"`
	Activation    string  `yaml:"activation" enum:"gelu,gelu_tanh,swiglu" help:"MLP nonlinearity; gelu is exact (erf), gelu_tanh is what OpenAI's weights use"`
	Norm          string  `yaml:"norm" enum:"layernorm,rmsnorm" help:"normalization"`
	Position      string  `yaml:"position" enum:"learned,rope" help:"position encoding"`
	RopeTheta     float64 `yaml:"rope_theta" help:"base of rope's angles; 0 is 10000"`
	TieEmbeddings bool    `yaml:"tie_embeddings" help:"the head reuses the token table"`
	NormEps       float64 `yaml:"norm_eps" print:"nonzero" help:"epsilon of the norms; 0 is 1e-5"`

	// Longer waves of rotary positions: see [trace.RoPEAttr].
	RopeFactor       float64 `yaml:"rope_factor" print:"nonzero" help:"rope's long waves are so many times as long, as in Llama 3.1; 0 is as they are"`
	RopeLowFreq      float64 `yaml:"rope_low_freq_factor" print:"nonzero" help:"long waves turn at most so often in rope_original_block_size positions; 0 is 1"`
	RopeHighFreq     float64 `yaml:"rope_high_freq_factor" print:"nonzero" help:"waves that turn at least so often stay as they are; 0 is 4"`
	RopeOriginalSize int     `yaml:"rope_original_block_size" print:"nonzero" help:"positions in which turns are counted; 0 is 8192"`

	// Low-rank adapters beside frozen weights: see lora.go.
	LoRARank    int     `yaml:"lora_rank" print:"nonzero" help:"rank of the adapters that are trained beside frozen weights (LoRA); 0 trains all weights"`
	LoRAAlpha   float64 `yaml:"lora_alpha" print:"nonzero" help:"adapters are scaled by lora_alpha over lora_rank; 0 is lora_rank"`
	LoRADropout float64 `yaml:"lora_dropout" print:"nonzero" help:"probability of dropping what adapters read"`
	LoRATargets string  `yaml:"lora_targets" print:"nonzero" help:"regular expression of the linear layers with adapters, among attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj; empty is attn.c_attn"`

	// Float is the type of weights and activations. It is not a key of the model: each run chooses it.
	Float trace.DType
}

// The legal values of Config's text fields.
const (
	GELU     = "gelu"
	GELUTanh = "gelu_tanh"
	SwiGLU   = "swiglu"

	LayerNorm = "layernorm"
	RMSNorm   = "rmsnorm"

	Learned = "learned"
	RoPE    = "rope"
)

// maxVocabSize is larger than any real vocabulary; a larger number is a mistake.
const maxVocabSize = 1 << 24

// maxLayers is ten times the depth of the deepest published Transformer (DeepNet, Wang et al. 2022: 1,000
// layers). A graph has some hundred nodes per layer, so a number that is wrong by three digits would exhaust
// memory before any error is reported.
const maxLayers = 10_000

// maxDropoutLayers is the largest number of blocks whose dropout masks all differ: package trace refuses the
// hash of a name in the next block.
const maxDropoutLayers = 5_943

// ConfigError is a key of the model whose value cannot be used. Key is the yaml name without its section.
type ConfigError struct {
	Key string
	Msg string
}

func (e *ConfigError) Error() string { return fmt.Sprintf("gpt: %s: %s", e.Key, e.Msg) }

func refuse(key, format string, args ...any) error {
	return &ConfigError{key, fmt.Sprintf(format, args...)}
}

// DefaultConfig is nanoGPT's GPTConfig: GPT-2 124M with the vocabulary padded from 50257 to a multiple of 64.
func DefaultConfig() Config {
	return Config{
		NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 1024, VocabSize: 50304,
		Bias: true, Activation: GELU, Norm: LayerNorm, Position: Learned, TieEmbeddings: true,
	}
}

// Preset returns the named model, with Config.Preset set to the name. The error lists the names.
func Preset(name string) (Config, error) {
	all := presets()
	i := slices.IndexFunc(all, func(c Config) bool { return c.Preset == name })
	if i < 0 {
		return Config{}, &ConfigError{"preset", fmt.Sprintf("no preset %q; there are %s", name, strings.Join(PresetNames(), ", "))}
	}
	return all[i], nil
}

// PresetNames lists the presets from the smallest family to the largest.
func PresetNames() []string {
	var names []string
	for _, c := range presets() {
		names = append(names, c.Preset)
	}
	return names
}

// presets are published shapes.
//
//   - quick and shakespeare_char: nanoGPT's README CPU run and config/train_shakespeare_char.py (without biases).
//   - gpt2 family: Radford et al. 2019 table 2, with the vocabulary and biases of the released weights, as nanoGPT's
//     from_pretrained has them. The activation stays nanoGPT's exact GELU; the released weights want gelu_tanh.
//   - gpt3 family: Brown et al. 2020 table 2.1, context 2048. Two rows of that table contradict their own
//     n_embd = n_head x d_head and are read by d_head: 1.3b has 16 heads of 128 (printed 24), 13b is 5120 wide (printed
//     5140). Every layer is dense here; theirs alternate dense and banded attention.
//   - llama-2 family: Touvron et al. 2023 and the released configurations; 70b groups heads. The initialization is
//     nanoGPT's.
//   - llama-3 family: Grattafiori et al. 2024 table 3 (8b and 70b are those of Llama 3, at 8,192 tokens). The angles of
//     Llama 3.1's long contexts are rescaled; here they are plain.
func presets() []Config {
	char := func(name string, layers, heads, width, block int, dropout float64) Config {
		c := DefaultConfig()
		c.Preset, c.NLayer, c.NHead, c.NEmbd, c.BlockSize = name, layers, heads, width, block
		c.VocabSize, c.Dropout, c.Bias = 65, dropout, false
		return c
	}
	openai := func(name string, layers, heads, width, block int) Config {
		c := DefaultConfig()
		c.Preset, c.NLayer, c.NHead, c.NEmbd, c.BlockSize = name, layers, heads, width, block
		c.VocabSize = 50257
		return c
	}
	llama := func(name string, layers, heads, kvHeads, width, ffn int) Config {
		return Config{
			Preset: name, NLayer: layers, NHead: heads, NKVHead: kvHeads, NEmbd: width, FFNHidden: ffn,
			Activation: SwiGLU, Norm: RMSNorm, Position: RoPE,
		}
	}
	llama2 := func(name string, layers, heads, kvHeads, width, ffn int) Config {
		c := llama(name, layers, heads, kvHeads, width, ffn)
		c.BlockSize, c.VocabSize = 4096, 32000
		return c
	}
	llama3 := func(name string, layers, heads, width, ffn int) Config {
		c := llama(name, layers, heads, 8, width, ffn)
		c.BlockSize, c.VocabSize, c.RopeTheta = 8192, 128256, 500000
		return c
	}
	return []Config{
		char("quick", 4, 4, 128, 64, 0),
		char("shakespeare_char", 6, 6, 384, 256, 0.2),
		openai("gpt2", 12, 12, 768, 1024),
		openai("gpt2-medium", 24, 16, 1024, 1024),
		openai("gpt2-large", 36, 20, 1280, 1024),
		openai("gpt2-xl", 48, 25, 1600, 1024),
		openai("gpt3-125m", 12, 12, 768, 2048),
		openai("gpt3-350m", 24, 16, 1024, 2048),
		openai("gpt3-760m", 24, 16, 1536, 2048),
		openai("gpt3-1.3b", 24, 16, 2048, 2048),
		openai("gpt3-2.7b", 32, 32, 2560, 2048),
		openai("gpt3-6.7b", 32, 32, 4096, 2048),
		openai("gpt3-13b", 40, 40, 5120, 2048),
		openai("gpt3-175b", 96, 96, 12288, 2048),
		llama2("llama-2-7b", 32, 32, 0, 4096, 11008),
		llama2("llama-2-13b", 40, 40, 0, 5120, 13824),
		llama2("llama-2-70b", 80, 64, 8, 8192, 28672),
		llama3("llama-3-8b", 32, 32, 4096, 14336),
		llama3("llama-3-70b", 80, 64, 8192, 28672),
		llama3("llama-3.1-405b", 126, 128, 16384, 53248),
	}
}

// KVHeads is the number of key and value heads, after the default.
func (c Config) KVHeads() int {
	if c.NKVHead == 0 {
		return c.NHead
	}
	return c.NKVHead
}

// QueryGroup is the number of query heads that share a head of keys and values (G).
func (c Config) QueryGroup() int { return c.NHead / c.KVHeads() }

// heads returns the dimensions of the result of attention for one token: the heads. They are also the last
// dimensions of the weight that reads it.
func (c Config) heads() []int {
	if c.QueryGroup() == 1 {
		return []int{c.NHead, c.HeadDim()}
	}
	return []int{c.QueryGroup(), c.KVHeads(), c.HeadDim()}
}

// HeadsText returns the number of heads, and that of key and value heads if there are fewer.
func (c Config) HeadsText() string {
	switch {
	case c.NHead == 1:
		return "1 head"
	case c.QueryGroup() == 1:
		return fmt.Sprintf("%d heads", c.NHead)
	}
	return fmt.Sprintf("%d heads (%d of keys and values)", c.NHead, c.KVHeads())
}

// FFN is the width inside the MLP, with the default applied.
func (c Config) FFN() int {
	if c.FFNHidden == 0 {
		return 4 * c.NEmbd
	}
	return c.FFNHidden
}

// Eps is the epsilon of the norms, with the default applied.
func (c Config) Eps() float64 { return cmp.Or(c.NormEps, 1e-5) }

// Theta is the base of rope's angles, with the default applied [Su et al. 2021].
func (c Config) Theta() float64 { return cmp.Or(c.RopeTheta, 10000) }

// Rotation is how rope turns queries and keys, with the defaults of transformers applied.
func (c Config) Rotation() trace.RoPEAttr {
	r := trace.RoPEAttr{Theta: c.Theta(), Factor: c.RopeFactor}
	if r.Factor > 0 {
		r.Low, r.High, r.Original = cmp.Or(c.RopeLowFreq, 1), cmp.Or(c.RopeHighFreq, 4), cmp.Or(c.RopeOriginalSize, 8192)
	}
	return r
}

// HeadDim is the width of one attention head, C/NH.
func (c Config) HeadDim() int { return c.NEmbd / c.NHead }

// Same returns, as a *ConfigError, the first key for which c computes something else than other from the same
// weights. Four keys do not count: the preset is only a name, dropout (also that of adapters) is not part of
// the trained model, Float is not a key, and rotary positions have no limit.
func (c Config) Same(other Config) error {
	rotary, turns, turned := c.Position == RoPE, c.Rotation(), other.Rotation()
	for _, k := range []struct {
		key      string
		is, want any
	}{
		{"n_layer", c.NLayer, other.NLayer}, {"n_head", c.NHead, other.NHead}, {"n_kv_head", c.KVHeads(), other.KVHeads()},
		{"n_embd", c.NEmbd, other.NEmbd}, {"ffn_hidden", c.FFN(), other.FFN()}, {"block_size", c.BlockSize, other.BlockSize},
		{"vocab_size", c.VocabSize, other.VocabSize}, {"bias", c.Bias, other.Bias}, {"activation", c.Activation, other.Activation},
		{"norm", c.Norm, other.Norm}, {"position", c.Position, other.Position}, {"norm_eps", c.Eps(), other.Eps()},
		{"rope_theta", turns.Theta, turned.Theta}, {"rope_factor", turns.Factor, turned.Factor}, {"rope_low_freq_factor", turns.Low, turned.Low},
		{"rope_high_freq_factor", turns.High, turned.High}, {"rope_original_block_size", turns.Original, turned.Original},
		{"tie_embeddings", c.TieEmbeddings, other.TieEmbeddings}, {"lora_rank", c.LoRARank, other.LoRARank},
		{"lora_alpha", c.loraFactor() * float64(c.LoRARank), other.loraFactor() * float64(other.LoRARank)},
		{"lora_targets", strings.Join(c.Adapted(), " "), strings.Join(other.Adapted(), " ")},
	} {
		if k.is != k.want && (rotary || !strings.HasPrefix(k.key, "rope_")) && (!rotary || k.key != "block_size") {
			return &ConfigError{k.key, fmt.Sprintf("is %v, not %v", k.is, k.want)}
		}
	}
	return nil
}

func (c Config) validateLongWaves() error {
	for _, x := range []struct {
		key      string
		value    float64
		standard string
	}{
		{"rope_factor", c.RopeFactor, "no longer waves"}, {"rope_low_freq_factor", c.RopeLowFreq, "1"},
		{"rope_high_freq_factor", c.RopeHighFreq, "4"}, {"rope_original_block_size", float64(c.RopeOriginalSize), "8192"},
	} {
		if !(x.value >= 0) || math.IsInf(x.value, 1) {
			return refuse(x.key, "is %v, must be positive, or 0 for %s", x.value, x.standard)
		}
	}
	if r := c.Rotation(); r.Factor > 0 && r.Low >= r.High {
		return refuse("rope_high_freq_factor", "is %v, must be more than rope_low_freq_factor %v", r.High, r.Low)
	}
	return nil
}

// Validate returns, as a *ConfigError, the first value with which there is no model.
func (c Config) Validate() error {
	for _, size := range []struct {
		key   string
		value int
		least int
	}{
		{"n_layer", c.NLayer, 1}, {"n_head", c.NHead, 1}, {"n_embd", c.NEmbd, 1}, {"block_size", c.BlockSize, 1},
		{"vocab_size", c.VocabSize, 1}, {"n_kv_head", c.NKVHead, 0}, {"ffn_hidden", c.FFNHidden, 0},
	} {
		if size.value < size.least {
			return refuse(size.key, "is %d, must be at least %d", size.value, size.least)
		}
	}
	if c.NLayer > maxLayers {
		return refuse("n_layer", "is %d, must be at most %d", c.NLayer, maxLayers)
	}
	if c.Dropout > 0 && c.NLayer > maxDropoutLayers {
		return refuse("n_layer", "is %d, must be at most %d with dropout: two blocks would drop the same elements", c.NLayer, maxDropoutLayers)
	}
	if c.NEmbd%c.NHead != 0 {
		return refuse("n_embd", "%d does not divide by n_head %d", c.NEmbd, c.NHead)
	}
	if c.NHead%c.KVHeads() != 0 {
		below := min(c.NKVHead, c.NHead)
		for c.NHead%below != 0 {
			below--
		}
		return refuse("n_kv_head", "%d does not divide n_head %d; %d would do", c.NKVHead, c.NHead, below)
	}
	if c.Position == RoPE && c.HeadDim()%2 != 0 {
		return refuse("n_embd", "%d over n_head %d makes heads %d wide; position rope rotates pairs and needs an even width", c.NEmbd, c.NHead, c.HeadDim())
	}
	if !(c.RopeTheta >= 0) || math.IsInf(c.RopeTheta, 1) {
		return refuse("rope_theta", "is %v, must be positive, or 0 for 10000", c.RopeTheta)
	}
	if !(c.NormEps == 0 || c.NormEps >= 0x1p-126 && c.NormEps < 1) {
		return refuse("norm_eps", "is %v, must be a normal float32 of more than 0 and less than 1, or 0 for 1e-5", c.NormEps)
	}
	if err := c.validateLongWaves(); err != nil {
		return err
	}
	if c.VocabSize > maxVocabSize {
		return refuse("vocab_size", "is %d, must be at most %d", c.VocabSize, maxVocabSize)
	}
	if !(c.Dropout >= 0 && c.Dropout < 1) {
		return refuse("dropout", "is %v, must be in [0, 1)", c.Dropout)
	}
	for _, word := range []struct {
		key, value string
		legal      []string
	}{
		{"activation", c.Activation, []string{GELU, GELUTanh, SwiGLU}},
		{"norm", c.Norm, []string{LayerNorm, RMSNorm}},
		{"position", c.Position, []string{Learned, RoPE}},
	} {
		if !slices.Contains(word.legal, word.value) {
			return refuse(word.key, "is %q, must be one of %s", word.value, strings.Join(word.legal, ", "))
		}
	}
	if err := c.validateLoRA(); err != nil {
		return err
	}
	// An upper bound on the training FLOPs of one sequence, in floating point: above it the counts in count.go
	// would overflow int64.
	L, C, T, F := float64(c.NLayer), float64(c.NEmbd), float64(c.BlockSize), float64(c.FFN())
	flops := 6 * T * (L*(4*C*C+3*C*F+2*T*C) + 2*C*float64(c.VocabSize))
	if c.LoRARank > 0 { // with the largest rank, n_embd, an adapter is at most twice as large as its weight
		flops *= 3
	}
	if c.FFN() < 0 || flops > math.MaxInt64/2 {
		return refuse("n_embd", "%d wide, %d layers, %d tokens is %.1e FLOPs per sequence, beyond what can be counted",
			c.NEmbd, c.NLayer, c.BlockSize, flops)
	}
	return nil
}
