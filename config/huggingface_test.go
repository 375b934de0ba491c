package config

import (
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
		{`{"model_type": "llama"}`, "config.json:1: model_type: is llama, only gpt2 is supported"},
		{"{\n\"n_layer\": \"six\"}", `config.json:2: n_layer: cannot be "six"`},
		{`{"n_layer": null}`, "n_layer: cannot be null"},
		{`{"n_layer": 1.5}`, "n_layer: cannot be 1.5"},
		{"{\"n_layer\": 1,\n\"n_layer\": 2}", "config.json:2: n_layer: duplicate key, first given on line 1"},
		{`{"resid_pdrop": 0.2}`, "resid_pdrop 0.2, embd_pdrop 0.1 and attn_pdrop 0.1 differ"},
		{`{"attn_pdrop": 0.2}`, "resid_pdrop 0.1, embd_pdrop 0.1 and attn_pdrop 0.2 differ"},
		{`{"n_ctx": 5, "n_positions": 6}`, "n_ctx: 5 differs from n_positions 6"},
		{`{"activation_function": "relu"}`, `activation_function: is "relu", wants gelu_new, gelu_pytorch_tanh or gelu`},
		{`{"layer_norm_epsilon": 1e-6}`, "layer_norm_epsilon: is 1e-06, only 1e-05 is supported"},
		{`{"scale_attn_weights": false}`, "scale_attn_weights: is false, only true is supported"},
		{`{"scale_attn_by_inverse_layer_idx": true}`, "scale_attn_by_inverse_layer_idx: is true"},
		{`{"schema": 1, "plan": {"n_layer": 3}}`, "config.json:1: has none of the keys of a GPT-2's config.json; wants these, or sections model, data, batch, optimizer, train, parallel"},
		{`{}`, "has none of the keys"},
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

	c, err := Parse("config.json", []byte("{\n\"n_head\": 5,\n\"n_embd\": 48}"), nil)
	require.NoError(t, err)
	require.EqualError(t, c.Validate(), "config.json:3: model.n_embd: 48 does not divide by n_head 5")
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
