package config

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/models/gpt"
)

// gpt2JSON is the shape of the config.json that comes with GPT-2's weights, at odd sizes.
const gpt2JSON = `{
  "activation_function": "gelu_new",
  "architectures": ["GPT2LMHeadModel"],
  "attn_pdrop": 0.1,
  "bos_token_id": 50256,
  "embd_pdrop": 0.1,
  "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05,
  "model_type": "gpt2",
  "n_ctx": 33,
  "n_embd": 48,
  "n_head": 3,
  "n_inner": null,
  "n_layer": 5,
  "n_positions": 33,
  "resid_pdrop": 0.1,
  "task_specific_params": {"text-generation": {"n_layer": 99}},
  "vocab_size": 65
}`

func TestHuggingFaceConfig(t *testing.T) {
	for _, name := range []string{"config.json", "told-by-content"} {
		c, err := Parse(name, []byte(gpt2JSON), []string{"train.max_iters=3", "model.dropout=0"})
		require.NoError(t, err)
		require.NoError(t, c.Validate())
		want := gpt.DefaultConfig()
		want.NLayer, want.NHead, want.NEmbd, want.BlockSize, want.VocabSize = 5, 3, 48, 33, 65
		want.Activation = gpt.GELUTanh
		require.Equal(t, want, c.Model)
		require.Equal(t, 3, c.Train.MaxIters)
		require.Equal(t, Default().Optimizer, c.Optimizer)
	}

	c, err := Parse("config.json", []byte(`{"activation_function": "gelu", "n_inner": 100}`), nil)
	require.NoError(t, err)
	require.Equal(t, gpt.GELU, c.Model.Activation)
	require.Equal(t, 100, c.Model.FFN())
	require.Equal(t, 0.1, c.Model.Dropout)
	require.Equal(t, 50257, c.Model.VocabSize)

	c, err = Parse("ours.json", []byte(`{"model": {"n_layer": 3}}`), nil)
	require.NoError(t, err, "our own sections may be JSON too")
	require.Equal(t, 3, c.Model.NLayer)
}

func TestHuggingFaceRefusals(t *testing.T) {
	for _, tc := range []struct{ json, want string }{
		{`{"model_type": "bert"}`, "config.json:1: model_type: is bert, only gpt2 and llama are supported"},
		{`{"model_type": "llama", "rms_norm_eps": 0}`, "config.json:1: rms_norm_eps: is 0, must be positive"},
		{`{"model_type": "llama", "hidden_act": "gelu"}`, "hidden_act: is gelu, only silu is supported"},
		{`{"model_type": "llama", "attention_bias": true}`, "attention_bias: is true, only false is supported"},
		{`{"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2}}`, "rope_scaling: is of type linear, only default and llama3 are supported"},
		{`{"model_type": "llama", "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}`, "rope_parameters: is of type llama3, which needs positive factor, low_freq_factor, high_freq_factor and original_max_position_embeddings"},
		{`{"model_type": "llama", "head_dim": 64}`, "head_dim: is 64, only hidden_size 4096 over num_attention_heads 32 is supported"},
		{"{\"model_type\": \"llama\",\n\"hidden_size\": null}", "config.json:2: hidden_size: cannot be null"},
		{"{\n\"n_layer\": \"six\"}", `config.json:2: n_layer: cannot be "six"`},
		{`{"n_layer": null}`, "n_layer: cannot be null"},
		{`{"n_layer": 1.5}`, "n_layer: cannot be 1.5"},
		{"{\"n_layer\": 1,\n\"n_inner\": 0}", "config.json:2: n_inner: is 0, must be at least 1"},
		{`{"n_embd": -4}`, "config.json:1: n_embd: is -4, must be at least 1"},
		{`{"model_type": "llama", "intermediate_size": 0}`, "intermediate_size: is 0, must be at least 1"},
		{`{"model_type": "llama", "num_key_value_heads": 0}`, "num_key_value_heads: is 0, must be at least 1"},
		{"{\"n_layer\": 1,\n\"n_layer\": 2}", "config.json:2: n_layer: duplicate key, first given on line 1"},
		{`{"resid_pdrop": 0.2}`, "resid_pdrop 0.2, embd_pdrop 0.1 and attn_pdrop 0.1 differ"},
		{`{"attn_pdrop": 0.2}`, "resid_pdrop 0.1, embd_pdrop 0.1 and attn_pdrop 0.2 differ"},
		{"{\"model_type\": \"llama\",\n\"attention_dropout\": 0.1}", "config.json:2: attention_dropout: is 0.1, dropout of attention alone is not supported: set model.dropout"},
		{`{"n_ctx": 5, "n_positions": 6}`, "n_ctx: 5 differs from n_positions 6"},
		{`{"activation_function": "relu"}`, `activation_function: is "relu", wants gelu_new, gelu_pytorch_tanh or gelu`},
		{`{"layer_norm_epsilon": 0}`, "layer_norm_epsilon: is 0, must be positive"},
		{`{"scale_attn_weights": false}`, "scale_attn_weights: is false, only true is supported"},
		{`{"scale_attn_by_inverse_layer_idx": true}`, "scale_attn_by_inverse_layer_idx: is true"},
		{`{"schema": 1, "plan": {"n_layer": 3}}`, "config.json:1: is no configuration but a plan, which autopar run takes"},
		{`{}`, "config.json:1: has none of the keys of a GPT-2's config.json; wants these, or sections model, data, batch, optimizer, train, parallel"},
		{`[1]`, "is not a JSON object"},
		{`null`, "is not a JSON object"},
		{`{"n_layer": 1} x`, "is not a JSON object"},
		{``, "is not a JSON object"},
	} {
		_, err := Parse("config.json", []byte(tc.json), nil)
		var bad *Error
		require.ErrorAs(t, err, &bad, tc.json)
		require.Equal(t, "config.json", bad.File)
		require.Contains(t, bad.Error(), tc.want)
	}

	// What changes nothing in weights that are loaded is not refused.
	for _, text := range []string{
		`{"resid_pdrop": 0.2, "initializer_range": 0.01}`, `{"model_type": "llama", "attention_dropout": 0.1, "initializer_range": 0.04}`,
	} {
		c, err := Parse("config.json", []byte(text), []string{"model.dropout=0.3"})
		require.NoError(t, err)
		require.Equal(t, 0.3, c.Model.Dropout)
	}

	c, err := Parse("config.json", []byte("{\n\"n_head\": 5,\n\"n_embd\": 48}"), nil)
	require.NoError(t, err)
	require.EqualError(t, c.Validate(), "config.json:3: model.n_embd: 48 does not divide by n_head 5")
}

// TestHuggingFaceLlama: what is written of a Llama is read as the same model, as is what transformers 5 writes. What is a float in
// transformers is written as one, but may be read without a point.
func TestHuggingFaceLlama(t *testing.T) {
	for _, preset := range []string{"llama-2-7b", "llama-2-70b", "llama-3-8b"} {
		want, err := gpt.Preset(preset)
		require.NoError(t, err)
		if preset == "llama-3-8b" {
			want.NormEps, want.RopeFactor, want.RopeHighFreq = 1e-6, 32, 8
		}
		text := string(HuggingFace(want))
		if preset == "llama-3-8b" {
			require.Regexp(t, `"factor": 32\.0,\s+"low_freq_factor": 1\.0,\s+"high_freq_factor": 8\.0,\s+"original_max_position_embeddings": 8192\n`, text)
			require.Contains(t, text, `"rope_theta": 500000.0,`)
		}
		for _, text := range []string{text, regexp.MustCompile(`\.0\b`).ReplaceAllString(text, "")} {
			c, err := Parse("config.json", []byte(text), nil)
			require.NoError(t, err)
			require.NoError(t, c.Validate())
			require.NoError(t, want.Same(c.Model))
		}
	}
	c, err := Parse("config.json", []byte(`{"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
		"num_key_value_heads": 3, "head_dim": 64, "max_position_embeddings": 2048, "vocab_size": 49152, "rms_norm_eps": 1e-05, "tie_word_embeddings": true,
		"rope_scaling": null, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}`), nil)
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	require.Equal(t, gpt.Config{
		NLayer: 30, NHead: 9, NKVHead: 3, NEmbd: 576, FFNHidden: 1536, BlockSize: 2048, VocabSize: 49152,
		Activation: gpt.SwiGLU, Norm: gpt.RMSNorm, Position: gpt.RoPE, RopeTheta: 100000, TieEmbeddings: true,
	}, c.Model)

	// Llama 3.2 1B, as meta-llama publishes it.
	c, err = Parse("config.json", []byte(`{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
		"num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072, "vocab_size": 128256, "rms_norm_eps": 1e-05, "tie_word_embeddings": true,
		"rope_theta": 500000.0, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}}`), nil)
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	require.Equal(t, gpt.Config{
		NLayer: 16, NHead: 32, NKVHead: 8, NEmbd: 2048, FFNHidden: 8192, BlockSize: 131072, VocabSize: 128256,
		Activation: gpt.SwiGLU, Norm: gpt.RMSNorm, Position: gpt.RoPE, RopeTheta: 500000, TieEmbeddings: true,
		RopeFactor: 32, RopeLowFreq: 1, RopeHighFreq: 4, RopeOriginalSize: 8192,
	}, c.Model)
	c, err = Parse("config.json", []byte(`{"model_type": "llama"}`), nil)
	require.NoError(t, err)
	require.Equal(t, 1e-6, c.Model.NormEps, "the default of transformers is not ours")
}

// TestWriteHuggingFace: what is written is read as the same model. Tokens are stated where they are known.
func TestWriteHuggingFace(t *testing.T) {
	tiny := gpt.DefaultConfig()
	tiny.NLayer, tiny.NHead, tiny.NEmbd, tiny.BlockSize, tiny.VocabSize, tiny.Dropout = 5, 3, 48, 33, 65, 0.25
	wide := tiny
	wide.FFNHidden, wide.Activation, wide.VocabSize, wide.LoRARank = 100, gpt.GELUTanh, 50257, 4
	for text, model := range map[string]gpt.Config{
		`{
  "activation_function": "gelu",
  "architectures": [
    "GPT2LMHeadModel"
  ],
  "attn_pdrop": 0.25,
  "bos_token_id": null,
  "embd_pdrop": 0.25,
  "eos_token_id": null,
  "initializer_range": 0.02,
  "layer_norm_epsilon": 0.00001,
  "model_type": "gpt2",
  "n_embd": 48,
  "n_head": 3,
  "n_inner": null,
  "n_layer": 5,
  "n_positions": 33,
  "resid_pdrop": 0.25,
  "tie_word_embeddings": true,
  "torch_dtype": "float32",
  "vocab_size": 65
}
`: tiny,
		`{
  "activation_function": "gelu_new",
  "architectures": [
    "GPT2LMHeadModel"
  ],
  "attn_pdrop": 0.25,
  "bos_token_id": 50256,
  "embd_pdrop": 0.25,
  "eos_token_id": 50256,
  "initializer_range": 0.02,
  "layer_norm_epsilon": 0.00001,
  "model_type": "gpt2",
  "n_embd": 48,
  "n_head": 3,
  "n_inner": 100,
  "n_layer": 5,
  "n_positions": 33,
  "resid_pdrop": 0.25,
  "tie_word_embeddings": true,
  "torch_dtype": "float32",
  "vocab_size": 50257
}
`: wide,
	} {
		require.Equal(t, text, string(HuggingFace(model)))
		c, err := Parse("config.json", []byte(text), nil)
		require.NoError(t, err)
		model.LoRARank = 0 // merged
		require.Equal(t, model, c.Model)
	}
}
