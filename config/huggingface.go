package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/autopar/autopar/config/strictyaml"
	"github.com/autopar/autopar/models/gpt"
)

// isHuggingFace tells a model's config.json from our own sections, which may be written as JSON too.
func isHuggingFace(name string, data []byte) bool {
	var top map[string]json.RawMessage
	if json.Unmarshal(data, &top) != nil {
		return filepath.Ext(name) == ".json"
	}
	for _, section := range sectionNames() {
		if _, ours := top[section]; ours {
			return false
		}
	}
	_, typed := top["model_type"]
	_, sized := top["n_embd"]
	return typed || sized || filepath.Ext(name) == ".json"
}

// What models/gpt has no key for.
const (
	normEpsilon = 1e-5
	initStd     = 0.02
)

// activations pairs HuggingFace's names of activations with ours. Of several for the same, the first is GPT-2's own.
func activations() [][2]string {
	return [][2]string{{"gelu_new", gpt.GELUTanh}, {"gelu_pytorch_tanh", gpt.GELUTanh}, {"gelu", gpt.GELU}}
}

// HuggingFace returns the config.json with which transformers' GPT2LMHeadModel computes what this model does, once adapters are
// part of its float32 weights. The model must be a GPT-2: see [gpt.Config.GPT2]. Texts begin and end with GPT-2's token if the
// vocabulary is GPT-2's, as it is or padded by nanoGPT; in any other that token is unknown, and null, because left out it would be
// GPT-2's.
func HuggingFace(m gpt.Config) []byte {
	var inner, endOfText *int
	if m.FFNHidden > 0 {
		inner = &m.FFNHidden
	}
	if m.VocabSize == 50257 || m.VocabSize == 50304 {
		endOfText = new(50256)
	}
	i := slices.IndexFunc(activations(), func(a [2]string) bool { return a[1] == m.Activation })
	text, err := json.MarshalIndent(map[string]any{
		"architectures": []string{"GPT2LMHeadModel"}, "model_type": "gpt2", "torch_dtype": "float32",
		"n_layer": m.NLayer, "n_head": m.NHead, "n_embd": m.NEmbd, "n_inner": inner, "n_positions": m.BlockSize, "vocab_size": m.VocabSize,
		"activation_function": activations()[i][0], "layer_norm_epsilon": normEpsilon, "initializer_range": initStd,
		"resid_pdrop": m.Dropout, "embd_pdrop": m.Dropout, "attn_pdrop": m.Dropout, "tie_word_embeddings": m.TieEmbeddings,
		"bos_token_id": endOfText, "eos_token_id": endOfText,
	}, "", "  ")
	if err != nil {
		panic("BUG: config: " + err.Error())
	}
	return append(text, '\n')
}

// decodeHuggingFace lays transformers' GPT2Config over c.Model. A missing key has that class's default. Keys that would
// change the function computed in a way that this model does not have are refused; keys about generation are not ours.
func (c *Config) decodeHuggingFace(file string, data []byte) error {
	members, err := jsonMembers(file, data)
	if err != nil {
		return err
	}

	model := gpt.DefaultConfig()
	model.BlockSize, model.VocabSize = 1024, 50257
	var (
		modelType, activation = "gpt2", "gelu_new"
		resid, embd, attn     = 0.1, 0.1, 0.1
		context, inner        *int // null is allowed
		epsilon, initRange    = normEpsilon, initStd
		scale                 = true
		scaleByLayer, cross   bool
		known                 int
	)
	for _, field := range []struct {
		theirs, ours string // ours is empty for what only has to be checked
		into         any
	}{
		{"model_type", "", &modelType},
		{"n_layer", "n_layer", &model.NLayer},
		{"n_head", "n_head", &model.NHead},
		{"n_embd", "n_embd", &model.NEmbd},
		{"n_positions", "block_size", &model.BlockSize},
		{"n_ctx", "", &context},
		{"vocab_size", "vocab_size", &model.VocabSize},
		{"n_inner", "ffn_hidden", &inner},
		{"activation_function", "activation", &activation},
		{"embd_pdrop", "", &embd},
		{"attn_pdrop", "", &attn},
		{"resid_pdrop", "dropout", &resid},
		{"tie_word_embeddings", "tie_embeddings", &model.TieEmbeddings},
		{"layer_norm_epsilon", "", &epsilon},
		{"initializer_range", "", &initRange},
		{"scale_attn_weights", "", &scale},
		{"scale_attn_by_inverse_layer_idx", "", &scaleByLayer},
		{"add_cross_attention", "", &cross},
	} {
		m, given := members[field.theirs]
		if !given {
			continue
		}
		known++
		_, nullable := field.into.(**int)
		if err := json.Unmarshal(m.value, field.into); err != nil || string(m.value) == "null" && !nullable {
			return m.at.Refuse(field.theirs, "cannot be %s", m.value)
		}
		if field.ours != "" {
			c.remember("model."+field.ours, m.at)
		}
	}

	if known == 0 { // some other JSON, a plan.json perhaps
		return &Error{File: file, Line: 1, Msg: "has none of the keys of a GPT-2's config.json; wants these, or sections " + strings.Join(sectionNames(), ", ")}
	}
	for _, fixed := range []struct {
		key       string
		got, want any
	}{
		{"model_type", modelType, "gpt2"},
		{"layer_norm_epsilon", epsilon, normEpsilon},
		{"initializer_range", initRange, initStd},
		{"scale_attn_weights", scale, true},
		{"scale_attn_by_inverse_layer_idx", scaleByLayer, false},
		{"add_cross_attention", cross, false},
	} {
		if fixed.got != fixed.want {
			return members[fixed.key].at.Refuse(fixed.key, "is %v, only %v is supported", fixed.got, fixed.want)
		}
	}
	if resid != embd || resid != attn {
		return strictyaml.Origin{File: file, Line: members["resid_pdrop"].at.Line}.Refuse("resid_pdrop",
			"resid_pdrop %v, embd_pdrop %v and attn_pdrop %v differ; only one dropout is supported", resid, embd, attn)
	}
	model.Dropout = resid

	if context != nil {
		if _, both := members["n_positions"]; both && *context != model.BlockSize {
			return members["n_ctx"].at.Refuse("n_ctx", "%d differs from n_positions %d", *context, model.BlockSize)
		}
		model.BlockSize = *context
		c.remember("model.n_ctx", members["n_ctx"].at)
	}
	if inner != nil {
		model.FFNHidden = *inner
	}
	model.Activation = ""
	var names []string
	for _, a := range activations() {
		names = append(names, a[0])
		if a[0] == activation {
			model.Activation = a[1]
		}
	}
	if last := len(names) - 1; model.Activation == "" {
		return members["activation_function"].at.Refuse("activation_function", "is %q, wants %s or %s", activation, strings.Join(names[:last], ", "), names[last])
	}
	c.Model = model
	return nil
}

// member is one top-level key's value.
type member struct {
	value json.RawMessage
	at    strictyaml.Origin
}

// jsonMembers splits a JSON object, refusing duplicates and anything that is not one object.
func jsonMembers(file string, data []byte) (map[string]member, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	here := func() strictyaml.Origin {
		return strictyaml.Origin{File: file, Line: 1 + bytes.Count(data[:d.InputOffset()], []byte("\n"))}
	}
	fail := func(err error) error {
		return &Error{File: file, Line: here().Line, Msg: "is not a JSON object", Err: err}
	}
	var whole map[string]json.RawMessage // the decoder below checks members one by one, not what follows the object
	if err := json.Unmarshal(data, &whole); err != nil {
		return nil, fail(err)
	}
	if whole == nil {
		return nil, fail(errors.New("it is null"))
	}
	if _, err := d.Token(); err != nil {
		return nil, fail(err)
	}
	members := map[string]member{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, fail(err)
		}
		name, at := fmt.Sprint(token), here()
		if first, dup := members[name]; dup {
			return nil, at.Refuse(name, "duplicate key, first given on line %d", first.at.Line)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, fail(err)
		}
		members[name] = member{value, at}
	}
	return members, nil
}
