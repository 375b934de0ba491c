package gpt

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir/philox"
)

func TestPresetsAreTrainable(t *testing.T) {
	require.Contains(t, PresetNames(), "gpt3-175b")
	for _, name := range PresetNames() {
		c, err := Preset(name)
		require.NoError(t, err)
		require.Equal(t, name, c.Preset)
		require.NoError(t, c.Validate(), name)
	}
	_, err := Preset("gpt5")
	require.ErrorContains(t, err, `no preset "gpt5"`)
	require.ErrorContains(t, err, "gpt2-xl")
}

func TestDefaultsAreNanoGPTs(t *testing.T) {
	c := DefaultConfig()
	require.NoError(t, c.Validate())
	require.Equal(t, 12, c.KVHeads())
	require.Equal(t, 3072, c.FFN())
	require.Equal(t, 64, c.HeadDim())
	require.True(t, c.Bias)
	require.True(t, c.TieEmbeddings)
}

// TestSame: every key but dropout makes another model, and a default written out does not.
func TestSame(t *testing.T) {
	base := DefaultConfig()
	for key, change := range map[string]func(*Config){
		"n_layer": func(c *Config) { c.NLayer++ }, "n_head": func(c *Config) { c.NHead = 6 }, "n_kv_head": func(c *Config) { c.NKVHead = 6 },
		"n_embd": func(c *Config) { c.NEmbd *= 2 }, "ffn_hidden": func(c *Config) { c.FFNHidden = 7 }, "block_size": func(c *Config) { c.BlockSize = 7 },
		"vocab_size": func(c *Config) { c.VocabSize = 7 }, "bias": func(c *Config) { c.Bias = false }, "activation": func(c *Config) { c.Activation = GELUTanh },
		"norm": func(c *Config) { c.Norm = RMSNorm }, "position": func(c *Config) { c.Position = RoPE }, "tie_embeddings": func(c *Config) { c.TieEmbeddings = false },
		"rope_theta": func(c *Config) { c.RopeTheta = 7 }, "norm_eps": func(c *Config) { c.NormEps = 1e-6 }, "rope_factor": func(c *Config) { c.RopeFactor = 7 },
		"rope_low_freq_factor": func(c *Config) { c.RopeLowFreq = 2 }, "rope_high_freq_factor": func(c *Config) { c.RopeHighFreq = 7 },
		"rope_original_block_size": func(c *Config) { c.RopeOriginalSize = 7 },
	} {
		was := base
		if strings.HasPrefix(key, "rope_") {
			was.Position = RoPE
		}
		if strings.HasPrefix(key, "rope_") && key != "rope_factor" {
			was.RopeFactor = 8
		}
		is := was
		change(&is)
		var differs *ConfigError
		require.ErrorAs(t, is.Same(was), &differs, key)
		require.Equal(t, key, differs.Key)
	}
	same := base
	same.Preset, same.Dropout, same.NKVHead, same.FFNHidden, same.RopeTheta, same.RopeFactor, same.NormEps = "mine", 0.5, 12, 3072, 7, 8, 1e-5
	require.NoError(t, same.Same(base))
	same.Position = RoPE
	longer := same
	longer.BlockSize *= 2
	longer.RopeLowFreq, longer.RopeHighFreq, longer.RopeOriginalSize = 1, 4, 8192
	require.NoError(t, longer.Same(same), "rotary positions have no table that ends")
}

func TestValidateNamesKeyAndNumbers(t *testing.T) {
	cases := []struct {
		name   string
		change func(*Config)
		key    string
		msg    string
	}{
		{"no layers", func(c *Config) { c.NLayer = 0 }, "n_layer", "is 0, must be at least 1"},
		{"no heads", func(c *Config) { c.NHead = 0 }, "n_head", "is 0"},
		{"negative width", func(c *Config) { c.NEmbd = -3 }, "n_embd", "is -3"},
		{"no context", func(c *Config) { c.BlockSize = 0 }, "block_size", "is 0"},
		{"no symbols", func(c *Config) { c.VocabSize = 0 }, "vocab_size", "is 0"},
		{"heads do not divide", func(c *Config) { c.NEmbd, c.NHead = 130, 4 }, "n_embd", "130 does not divide by n_head 4"},
		{"kv heads do not divide", func(c *Config) { c.NKVHead = 5 }, "n_kv_head", "5 does not divide n_head 12; 4 would do"},
		{"negative kv heads", func(c *Config) { c.NKVHead = -1 }, "n_kv_head", "is -1"},
		{"negative ffn", func(c *Config) { c.FFNHidden = -1 }, "ffn_hidden", "is -1"},
		{"more symbols than there are", func(c *Config) { c.VocabSize = 1<<24 + 1 }, "vocab_size", "16777217"},
		{"dropout 1", func(c *Config) { c.Dropout = 1 }, "dropout", "is 1"},
		{"dropout NaN", func(c *Config) { c.Dropout = math.NaN() }, "dropout", "NaN"},
		{"unknown word", func(c *Config) { c.Activation = "relu" }, "activation", `"relu"`},
		{"too deep", func(c *Config) { c.NLayer = 10_001 }, "n_layer", "must be at most 10000"},
		{"beyond int64", func(c *Config) { c.NEmbd = 12 << 30 }, "n_embd", "beyond what can be counted"},
		{"ffn overflows", func(c *Config) { c.NEmbd = 12 << 58 }, "n_embd", "beyond what can be counted"},
		{"rope of odd heads", func(c *Config) { c.NEmbd, c.Position = 12*7, RoPE }, "n_embd", "84 over n_head 12 makes heads 7 wide; position rope rotates pairs and needs an even width"},
		{"negative theta", func(c *Config) { c.RopeTheta = -1 }, "rope_theta", "is -1, must be positive, or 0 for 10000"},
		{"epsilon 1", func(c *Config) { c.NormEps = 1 }, "norm_eps", "is 1, must be a normal float32 of more than 0 and less than 1, or 0 for 1e-5"},
		{"epsilon that float32 has not", func(c *Config) { c.NormEps = 1e-50 }, "norm_eps", "is 1e-50"},
		{"shorter waves", func(c *Config) { c.RopeFactor = -8 }, "rope_factor", "is -8, must be positive, or 0 for no longer waves"},
		{"no positions", func(c *Config) { c.RopeOriginalSize = -1 }, "rope_original_block_size", "is -1, must be positive, or 0 for 8192"},
		{"low above high", func(c *Config) { c.RopeFactor, c.RopeLowFreq = 8, 4 }, "rope_high_freq_factor", "is 4, must be more than rope_low_freq_factor 4"},
		{"more kv heads than heads", func(c *Config) { c.NKVHead = 24 }, "n_kv_head", "24 does not divide n_head 12; 12 would do"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c := DefaultConfig()
			tc.change(&c)
			var bad *ConfigError
			require.ErrorAs(t, c.Validate(), &bad)
			require.Equal(t, tc.key, bad.Key)
			require.Contains(t, bad.Msg, tc.msg)
		})
	}
	c := DefaultConfig()
	c.VocabSize, c.NKVHead = maxVocabSize, c.NHead
	require.NoError(t, c.Validate(), "the limits themselves are legal")
}

// TestDropoutLayers: up to the largest number of blocks all dropout nodes have different hashes; with one more
// block they do not.
func TestDropoutLayers(t *testing.T) {
	hashes := map[uint32]string{philox.OpKey("dropout"): "dropout"}
	for block := range maxDropoutLayers + 1 {
		for _, site := range []string{"attn/attention", "attn/dropout", "mlp/dropout"} {
			name := fmt.Sprintf("h.%d.%s", block, site)
			other, taken := hashes[philox.OpKey(name)]
			require.Equal(t, name == "h.5943.mlp/dropout", taken, "%s and %s", name, other)
			hashes[philox.OpKey(name)] = name
		}
	}
	c := DefaultConfig()
	c.NLayer, c.Dropout = maxDropoutLayers+1, 0
	require.NoError(t, c.Validate())
	c.Dropout = 0.1
	require.ErrorContains(t, c.Validate(), "n_layer: is 5944, must be at most 5943 with dropout")
	c.NLayer--
	require.NoError(t, c.Validate())
}
