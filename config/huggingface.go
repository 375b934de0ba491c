package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
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

// initStd is what models/gpt has no key for.
const initStd = 0.02

// activations pairs HuggingFace's names of activations with ours. Of several for the same, the first is GPT-2's own.
func activations() [][2]string {
	return [][2]string{{"gelu_new", gpt.GELUTanh}, {"gelu_pytorch_tanh", gpt.GELUTanh}, {"gelu", gpt.GELU}}
}

// HuggingFace returns the config.json with which transformers computes what this model does, once adapters are part of its float32
// weights: that of a GPT2LMHeadModel or a LlamaForCausalLM, as [gpt.Config.InTransformers] says. Texts begin and end with GPT-2's
// token if the vocabulary is GPT-2's, as it is or padded by nanoGPT; in any other that token is unknown, and null, because left out
// it would be the class's default.
func HuggingFace(m gpt.Config) []byte {
	var endOfText *int
	if m.VocabSize == 50257 || m.VocabSize == 50304 {
		endOfText = new(50256)
	}
	members := map[string]any{"torch_dtype": "float32", "vocab_size": m.VocabSize, "initializer_range": initStd,
		"tie_word_embeddings": m.TieEmbeddings, "bos_token_id": endOfText, "eos_token_id": endOfText}
	if l, _ := m.InTransformers(); l == gpt.Llama {
		maps.Copy(members, map[string]any{
			"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama",
			"num_hidden_layers": m.NLayer, "num_attention_heads": m.NHead, "num_key_value_heads": m.KVHeads(), "hidden_size": m.NEmbd,
			"intermediate_size": m.FFN(), "max_position_embeddings": m.BlockSize, "rope_theta": float(m.Theta()),
			"hidden_act": "silu", "rms_norm_eps": float(m.Eps()), "attention_bias": false, "mlp_bias": false,
		})
		if r := m.Rotation(); r.Factor > 0 {
			members["rope_scaling"] = rope{Type: "llama3", Factor: float(r.Factor), Low: float(r.Low), High: float(r.High), Original: r.Original}
		}
	} else {
		var inner *int
		if m.FFNHidden > 0 {
			inner = &m.FFNHidden
		}
		i := slices.IndexFunc(activations(), func(a [2]string) bool { return a[1] == m.Activation })
		maps.Copy(members, map[string]any{
			"architectures": []string{"GPT2LMHeadModel"}, "model_type": "gpt2",
			"n_layer": m.NLayer, "n_head": m.NHead, "n_embd": m.NEmbd, "n_inner": inner, "n_positions": m.BlockSize,
			"activation_function": activations()[i][0], "layer_norm_epsilon": float(m.Eps()),
			"resid_pdrop": float(m.Dropout), "embd_pdrop": float(m.Dropout), "attn_pdrop": float(m.Dropout),
		})
	}
	text, err := json.MarshalIndent(members, "", "  ")
	if err != nil {
		panic("BUG: config: " + err.Error())
	}
	return append(text, '\n')
}

// decodeHuggingFace lays transformers' GPT2Config or LlamaConfig over c.Model. A missing key has that class's default. Keys that
// would change the function computed in a way that this model does not have are refused; keys about generation are not ours,
// nor is initializer_range: weights that are loaded do not depend on it, others begin as nanoGPT's. Dropout that this model does not
// have is refused by Parse, unless model.dropout is set: it is no part of a trained model.
func (c *Config) decodeHuggingFace(file string, data []byte) error {
	members, err := jsonMembers(file, data)
	if err != nil {
		return err
	}
	if string(members["model_type"].value) == `"llama"` {
		return c.decodeLlama(file, members)
	}

	model := gpt.DefaultConfig()
	model.BlockSize, model.VocabSize, model.NormEps = 1024, 50257, 1e-5
	var (
		modelType, activation = "gpt2", "gelu_new"
		resid, embd, attn     = 0.1, 0.1, 0.1
		context, inner        *int // null is allowed
		scale                 = true
		scaleByLayer, cross   bool
	)
	fields := []field{
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
		{"layer_norm_epsilon", "norm_eps", &model.NormEps},
		{"scale_attn_weights", "", &scale},
		{"scale_attn_by_inverse_layer_idx", "", &scaleByLayer},
		{"add_cross_attention", "", &cross},
	}
	known, err := c.read(fields, members)
	if err != nil {
		return err
	}
	if known == 0 { // some other JSON
		return &Error{File: file, Line: 1, Msg: "has none of the keys of a GPT-2's config.json; wants these, or sections " + strings.Join(sectionNames(), ", ")}
	}
	if modelType != "gpt2" {
		return members["model_type"].at.Refuse("model_type", "is %v, only gpt2 and llama are supported", modelType)
	}
	if err := refuseOther(file, members, []fixed{
		{"scale_attn_weights", scale, true},
		{"scale_attn_by_inverse_layer_idx", scaleByLayer, false},
		{"add_cross_attention", cross, false},
	}); err != nil {
		return err
	}
	if resid != embd || resid != attn {
		c.dropout = strictyaml.Origin{File: file, Line: members["resid_pdrop"].at.Line}.Refuse("resid_pdrop",
			"resid_pdrop %v, embd_pdrop %v and attn_pdrop %v differ; only one dropout is supported: set model.dropout", resid, embd, attn)
	}
	model.Dropout = resid
	if err := epsilonOf(&model, "layer_norm_epsilon", members); err != nil {
		return err
	}

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

// decodeLlama is decodeHuggingFace of a LlamaConfig.
func (c *Config) decodeLlama(file string, members map[string]member) error {
	model := gpt.Config{
		NLayer: 32, NHead: 32, NEmbd: 4096, FFNHidden: 11008, BlockSize: 2048, VocabSize: 32000,
		Activation: gpt.SwiGLU, Norm: gpt.RMSNorm, Position: gpt.RoPE, RopeTheta: 10000, NormEps: 1e-6,
	}
	var (
		activation            = "silu"
		kvHeads, headDim      *int
		attnDropout           float64
		attnBias, mlpBias     bool
		scaling, ropeSettings *rope
	)
	if _, err := c.read([]field{
		{"num_hidden_layers", "n_layer", &model.NLayer},
		{"num_attention_heads", "n_head", &model.NHead},
		{"num_key_value_heads", "n_kv_head", &kvHeads},
		{"hidden_size", "n_embd", &model.NEmbd},
		{"intermediate_size", "ffn_hidden", &model.FFNHidden},
		{"max_position_embeddings", "block_size", &model.BlockSize},
		{"vocab_size", "vocab_size", &model.VocabSize},
		{"rope_theta", "rope_theta", &model.RopeTheta},
		{"tie_word_embeddings", "tie_embeddings", &model.TieEmbeddings},
		{"hidden_act", "", &activation},
		{"head_dim", "", &headDim},
		{"rms_norm_eps", "norm_eps", &model.NormEps},
		{"attention_dropout", "", &attnDropout},
		{"attention_bias", "", &attnBias},
		{"mlp_bias", "", &mlpBias},
		{"rope_scaling", "", &scaling},
		{"rope_parameters", "", &ropeSettings},
	}, members); err != nil {
		return err
	}
	for _, r := range []struct {
		key string
		*rope
	}{{"rope_scaling", scaling}, {"rope_parameters", ropeSettings}} {
		if r.rope == nil {
			continue
		}
		switch kind := cmp.Or(r.Type, r.Old, "default"); {
		case kind == "llama3" && min(r.Factor, r.Low, r.High, float(r.Original)) > 0:
			model.RopeFactor, model.RopeLowFreq, model.RopeHighFreq, model.RopeOriginalSize = float64(r.Factor), float64(r.Low), float64(r.High), r.Original
			for _, key := range []string{"rope_factor", "rope_low_freq_factor", "rope_high_freq_factor", "rope_original_block_size"} {
				c.remember("model."+key, members[r.key].at)
			}
		case kind == "llama3":
			return members[r.key].at.Refuse(r.key, "is of type llama3, which needs positive factor, low_freq_factor, high_freq_factor and original_max_position_embeddings")
		case kind != "default":
			return members[r.key].at.Refuse(r.key, "is of type %s, only default and llama3 are supported", kind)
		}
		if r.Theta != 0 {
			model.RopeTheta = float64(r.Theta)
		}
	}
	if err := refuseOther(file, members, []fixed{
		{"hidden_act", activation, "silu"},
		{"attention_bias", attnBias, false},
		{"mlp_bias", mlpBias, false},
	}); err != nil {
		return err
	}
	if attnDropout != 0 {
		c.dropout = members["attention_dropout"].at.Refuse("attention_dropout", "is %v, dropout of attention alone is not supported: set model.dropout", attnDropout)
	}
	if err := epsilonOf(&model, "rms_norm_eps", members); err != nil {
		return err
	}
	if headDim != nil && *headDim*model.NHead != model.NEmbd {
		return members["head_dim"].at.Refuse("head_dim", "is %d, only hidden_size %d over num_attention_heads %d is supported", *headDim, model.NEmbd, model.NHead)
	}
	if kvHeads != nil && *kvHeads != model.NHead {
		model.NKVHead = *kvHeads
	}
	c.Model = model
	return nil
}

// rope is how transformers writes what positions rotate by: in rope_scaling, or since version 5 in rope_parameters.
type rope struct {
	Type     string `json:"rope_type"`
	Old      string `json:"type,omitempty"`
	Theta    float  `json:"rope_theta,omitempty"`
	Factor   float  `json:"factor"`
	Low      float  `json:"low_freq_factor"`
	High     float  `json:"high_freq_factor"`
	Original int    `json:"original_max_position_embeddings"`
}

// float is written as Python writes one: 4.0, not 4, which transformers takes for an int.
type float float64

// MarshalJSON prints a float.
func (f float) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(float64(f))
	if err == nil && !bytes.ContainsAny(text, ".e") {
		text = append(text, ".0"...)
	}
	return text, err
}

// epsilonOf leaves the epsilon of a model at 0 if it is this model's default.
func epsilonOf(model *gpt.Config, key string, members map[string]member) error {
	switch model.NormEps {
	case 0:
		return members[key].at.Refuse(key, "is 0, must be positive")
	case gpt.DefaultConfig().Eps():
		model.NormEps = 0
	}
	return nil
}

// field is a key of transformers, and ours for what it says, which is empty for what only has to be checked.
type field struct {
	theirs, ours string
	into         any
}

// read reads the fields that are given and returns how many those are.
func (c *Config) read(fields []field, members map[string]member) (known int, err error) {
	for _, f := range fields {
		m, given := members[f.theirs]
		if !given {
			continue
		}
		known++
		nullable := reflect.TypeOf(f.into).Elem().Kind() == reflect.Pointer
		if err := json.Unmarshal(m.value, f.into); err != nil || string(m.value) == "null" && !nullable {
			return 0, m.at.Refuse(f.theirs, "cannot be %s", m.value)
		}
		if n := reflect.Indirect(reflect.ValueOf(f.into).Elem()); n.IsValid() && n.CanInt() && n.Int() < 1 { // all of which are sizes
			return 0, m.at.Refuse(f.theirs, "is %d, must be at least 1", n.Int())
		}
		if f.ours != "" {
			c.remember("model."+f.ours, m.at)
		}
	}
	return known, nil
}

// fixed is a key with its value and the only one that is supported.
type fixed struct {
	key       string
	got, want any
}

// refuseOther refuses values that are not supported. A key that is missing has its class's default.
func refuseOther(file string, members map[string]member, all []fixed) error {
	for _, f := range all {
		if f.got == f.want {
			continue
		}
		if m, given := members[f.key]; given {
			return m.at.Refuse(f.key, "is %v, only %v is supported", f.got, f.want)
		}
		return strictyaml.Origin{File: file, Line: 1}.Refuse(f.key, "is missing, which means %v; only %v is supported", f.got, f.want)
	}
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
