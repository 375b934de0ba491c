package config

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/models/gpt"
)

// everyKey sets keys of every type away from their defaults.
const everyKey = `
model: {n_layer: 6, n_head: 6, n_embd: 384, block_size: 256, vocab_size: 65, dropout: 0.2, bias: False}
data:
  dataset: "shakespeare_char"   # quotes are fine around text
  sampling: without_replacement
batch: {global: 64, micro: 7}
optimizer:
  learning_rate: 1e-3
  min_lr: 1.0E-4
  weight_decay: 0
  schedule: step
train: {max_iters: 5000, dtype: fp32, out_dir: '65'}
parallel:
  plan_ngpus: auto
  runtime_ngpus: 4
  memory_limit: 1.5GiB
  pin:
    - {match: 'h\.\d+\.mlp\.c_fc\.weight', placement: [tp, _]}
    - match: wte
      placement:
        - _
        - dp
`

func TestParse(t *testing.T) {
	got, err := Parse("gpt.yaml", []byte(everyKey), nil)
	require.NoError(t, err)
	require.NoError(t, got.Validate())

	want := Default()
	want.Model.NLayer, want.Model.NHead, want.Model.NEmbd, want.Model.BlockSize, want.Model.VocabSize = 6, 6, 384, 256, 65
	want.Model.Dropout, want.Model.Bias = 0.2, false
	want.Data = Data{Dataset: "shakespeare_char", Dir: "data/shakespeare_char", Sampling: "without_replacement"}
	want.Batch = Batch{Global: 64, Micro: 7}
	want.Optimizer.LearningRate, want.Optimizer.MinLR, want.Optimizer.WeightDecay, want.Optimizer.Schedule = 1e-3, 1e-4, 0, Step
	want.Train.MaxIters, want.Train.DType, want.Train.OutDir = 5000, "float32", "65"
	want.Parallel = Parallel{PlanNGPUs: Auto, RuntimeNGPUs: 4, MemoryLimit: 3 << 29, Pins: []Pin{
		{Match: `h\.\d+\.mlp\.c_fc\.weight`, Placement: []string{"tp", "_"}},
		{Match: "wte", Placement: []string{"_", "dp"}},
	}}
	require.Empty(t, cmp.Diff(want, got, cmpopts.IgnoreUnexported(Config{})))
}

func TestParseRefusals(t *testing.T) {
	for _, tc := range []struct{ name, yaml, want string }{
		{"unknown key", "model:\n  n_layr: 3", "gpt.yaml:2:3: model.n_layr: unknown key; did you mean model.n_layer?"},
		{"key of another section", "model: {learning_rate: 1}", "gpt.yaml:1:9: model.learning_rate: unknown key; did you mean optimizer.learning_rate?"},
		{"a word of nanoGPT", "train: {batch_size: 12}", "gpt.yaml:1:9: train.batch_size: unknown key; did you mean batch.global?"},
		{"words of transformers", "model: {n_inner: 0}", "gpt.yaml:1:9: model.n_inner: unknown key; did you mean model.ffn_hidden?"},
		{"a word of nanoGPT, without section", "batch_size: 12", "gpt.yaml:1:1: batch_size: unknown section; did you mean batch.global?"},
		{"initials of two keys", "model: {lr: 1}", "did you mean optimizer.learning_rate?"},
		{"equally near in two sections", "parallel: {din: []}", "did you mean parallel.pin?"},
		{"equally near, other section", "data: {pir: []}", "did you mean data.dir?"},
		{"initials", "optimizer: {lr: 1}", "did you mean optimizer.learning_rate?"},
		{"the beginning of a key", "model: {vocab: 65}", "did you mean model.vocab_size?"},
		{"a part of a key", "parallel: {ngpus: 2}", "did you mean parallel.plan_ngpus?"},
		{"capitals", "OPTIMIZER: {LEARNING_RATE: 1}", "did you mean optimizer?"},
		{"capitals of a key", "optimizer: {WARMUP_ITERS: 1}", "did you mean optimizer.warmup_iters?"},
		{"far from all", "data: {path: x}", "did you mean data.dir?"},
		{"unknown section", "# c\nmodle: {n_layer: 3}", "gpt.yaml:2:1: modle: unknown section; did you mean model?"},
		{"key without section", "n_layer: 3", "gpt.yaml:1:1: n_layer: unknown section; did you mean model.n_layer?"},
		{"text for int", "model: {n_layer: six}", `gpt.yaml:1:9: model.n_layer: wants integer, got the text "six"`},
		{"quoted int", "model: {n_layer: '6'}", "model.n_layer: wants integer, got the quoted text '6'"},
		{"float for int", "train:\n  max_iters: 5.0", "gpt.yaml:2:3: train.max_iters: wants integer, got the float 5.0"},
		{"exponent for int", "train: {max_iters: 1e3}", "train.max_iters: wants integer, got the float 1e3"},
		{"int too large", "train: {seed: 99999999999999999999}", "train.seed: is 99999999999999999999, must be at most 9223372036854775807"},
		{"count too large", "parallel: {plan_ngpus: 99999999999999999999}", "parallel.plan_ngpus: is 99999999999999999999, must be at most 9223372036854775807"},
		{"negative int too large", "train: {seed: -99999999999999999999}", "train.seed: is -99999999999999999999, must be at least -9223372036854775808"},
		{"underscored int", "train: {max_iters: 1_000}", `train.max_iters: wants integer, got the text "1_000"`},
		{"quoted bool", "model: {bias: 'False'}", "model.bias: wants true or false, got the quoted text 'False'"},
		{"int for bool", "model: {bias: 0}", "model.bias: wants true or false, got the integer 0"},
		{"yes for bool", "model: {bias: yes}", `model.bias: wants true or false, got the text "yes"`},
		{"quoted float", "optimizer: {eps: '1e-8'}", "optimizer.eps: wants float, got the quoted text '1e-8'"},
		{"infinity", "optimizer: {eps: .inf}", `optimizer.eps: wants float, got the text ".inf"`},
		{"overflowing float", "optimizer: {eps: 1e999}", `optimizer.eps: wants float, got the text "1e999"`},
		{"bool for text", "train: {out_dir: true}", "train.out_dir: wants text, got the boolean true; quote it"},
		{"int for text", "train: {out_dir: 65}", "train.out_dir: wants text, got the integer 65; quote it"},
		{"null", "model: {n_layer: null}", "model.n_layer: wants integer, got null"},
		{"nothing", "model:\n  n_layer:\n", "gpt.yaml:2:3: model.n_layer: wants integer, got null"},
		{"null text", "train: {out_dir: ~}", "train.out_dir: wants text, got null"},
		{"null section", "model:\n", "gpt.yaml:1:8: model: wants keys and values, got null"},
		{"list for section", "model: [1]", "model: wants keys and values, got a list"},
		{"list for int", "model: {n_layer: [1]}", "model.n_layer: wants integer, got a list"},
		{"mapping for int", "model: {n_layer: {a: 1}}", "model.n_layer: wants integer, got a mapping"},
		{"duplicate key", "model:\n  n_layer: 3\n  n_layer: 3", "gpt.yaml:3:3: model.n_layer: duplicate key, first given on line 2"},
		{"duplicate section", "batch: {global: 3}\nbatch: {micro: 1}", "gpt.yaml:2:1: batch: duplicate key, first given on line 1"},
		{"unknown word", "model: {activation: glu}", `model.activation: is "glu", must be one of gelu, gelu_tanh, swiglu; did you mean gelu?`},
		{"unknown preset", "model: {preset: gpt2-xxl}", "did you mean gpt2-xl?"},
		{"unknown dtype", "train: {dtype: int8}", `train.dtype: is "int8"`},
		{"zero micro", "batch: {micro: 0}", "batch.micro: wants positive integer or auto, got the integer 0"},
		{"micro word", "batch: {micro: Auto}", `batch.micro: wants positive integer or auto, got the text "Auto"`},
		{"size without number", "parallel: {memory_limit: GiB}", `parallel.memory_limit: wants a size such as 16GiB, 512MiB or bytes, got "GiB"`},
		{"negative size", "parallel: {memory_limit: -1}", "parallel.memory_limit: wants a size"},
		{"huge size", "parallel: {memory_limit: 99999999TiB}", "99999999TiB is more than 9223372036854775807 bytes"},
		{"pin is no list", "parallel: {pin: {match: a}}", "parallel.pin: wants list of {match, placement}, got a mapping"},
		{"pin item", "parallel:\n  pin:\n    - 3", "gpt.yaml:3:7: parallel.pin[0]: wants keys and values, got the integer 3"},
		{"pin key", "parallel: {pin: [{mach: a}]}", "parallel.pin[0].mach: unknown key; did you mean parallel.pin[0].match?"},
		{"pin placement", "parallel: {pin: [{match: a, placement: tp}]}", `parallel.pin[0].placement: wants a list such as [_, tp], got the text "tp"`},
		{"pin word", "parallel: {pin: [{match: a, placement: [~]}]}", "parallel.pin[0].placement: wants an axis name or _, got null"},
		{"merge", "model: {<<: {n_layer: 3}}", "model: wants plain keys, got a YAML anchor"},
		{"alias", "model: {n_layer: &x 3, n_head: *x}", "model.n_layer: wants integer, got a YAML anchor"},
		{"tag", "model: {n_layer: !!int 3}", "model.n_layer: wants integer, got a YAML tag"},
		{"second document", "model: {n_layer: 3}\n---\nmodel: {n_layer: 4}", "gpt.yaml:3:6: has a second document; wants one"},
		{"empty", "# nothing\n", "gpt.yaml: is empty; wants sections model, data, batch, optimizer, train, parallel"},
		{"long scalar", strings.Repeat("hello ", 999), `gpt.yaml:1:1: wants keys and values, got the text "` + strings.Repeat("hello ", 10) + `hell..."`},
		{"long integer", "model: {bias: " + strings.Repeat("9", 99) + "}", "model.bias: wants true or false, got the integer " + strings.Repeat("9", 64) + "..."},
		{"scalar", "hello", `gpt.yaml:1:1: wants keys and values, got the text "hello"`},
		{"not yaml", "model:\n  n_layer: [1\n", "gpt.yaml:2:12: is not YAML"},
		{"not text", "model: \xff", "gpt.yaml: is not UTF-8 text"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("gpt.yaml", []byte(tc.yaml), nil)
			var bad *Error
			require.ErrorAs(t, err, &bad)
			require.Equal(t, "gpt.yaml", bad.File)
			require.Contains(t, err.Error(), tc.want)
		})
	}
}

func TestOverrides(t *testing.T) {
	c, err := Parse("gpt.yaml", []byte("model: {n_layer: 3}\ndata: {dataset: openwebtext}\n"), []string{
		"train.max_iters=10", "optimizer.learning_rate=1", "model.bias=False", "data.dataset=my=corpus", "batch.micro=auto",
		"parallel.memory_limit=16GiB", "train.dtype=bf16", "train.out_dir=65", "parallel.pin=[{match: wte, placement: [tp, _]}]",
	})
	require.NoError(t, err)
	require.Equal(t, 3, c.Model.NLayer)
	require.Equal(t, 10, c.Train.MaxIters)
	require.Equal(t, 1.0, c.Optimizer.LearningRate, "an int is accepted for a float")
	require.False(t, c.Model.Bias)
	require.Equal(t, "my=corpus", c.Data.Dataset)
	require.Equal(t, "data/my=corpus", c.Data.Dir, "the directory follows the data set")
	require.Equal(t, Bytes(16<<30), c.Parallel.MemoryLimit)
	require.Equal(t, "bfloat16", c.Train.DType)
	require.Equal(t, "65", c.Train.OutDir, "the shell has no quotes to give")
	require.Equal(t, []Pin{{"wte", []string{"tp", "_"}}}, c.Parallel.Pins)
	require.NoError(t, c.Validate())

	for _, tc := range []struct{ override, want string }{
		{"train.max_iters", "--set: train.max_iters: has no value; wants train.max_iters=VALUE (integer)"},
		{"train.max_iters=", `--set: train.max_iters: wants integer, got ""`},
		{"train.max_iter=3", "--set: train.max_iter: unknown key; did you mean train.max_iters?"},
		{"=3", `--set: wants section.key=value, got "=3"`},
		{"max_iters=3", "--set: max_iters: unknown key, wants section.key=value; did you mean train.max_iters?"},
		{"train=3", "--set: train: is a section"},
		{"", `--set: wants section.key=value, got ""`},
		{"train.max_iters=1e3", "wants integer, got the float 1e3"},
		{"model.bias='False'", "--set: model.bias: wants true or false, got the quoted text 'False'"},
		{"model.bias=[", `wants true or false, got "["`},
		{`parallel.pin=[{match: "h\.x"}]`, "which is not YAML: found unknown escape character '.'"},
		{"model.norm=batch", `model.norm: is "batch", must be one of layernorm, rmsnorm`},
		{"data.dir=\xff", "data.dir: is not UTF-8"},
	} {
		err := Override(Default(), setFlag, tc.override)
		var bad *Error
		require.ErrorAs(t, err, &bad, tc.override)
		require.Equal(t, setFlag, bad.File)
		require.Contains(t, err.Error(), tc.want)
	}
}

func TestPresetReplacesTheModelWhereverItStands(t *testing.T) {
	c, err := Parse("gpt.yaml", []byte("model: {n_layer: 3, preset: gpt2-xl}"), nil)
	require.NoError(t, err)
	want, err := gpt.Preset("gpt2-xl")
	require.NoError(t, err)
	want.NLayer = 3
	require.Equal(t, want, c.Model)

	c, err = Parse("gpt.yaml", c.Marshal(), []string{"model.preset=quick", "model.n_head=3"})
	require.NoError(t, err)
	require.Equal(t, 4, c.Model.NLayer)
	require.EqualError(t, c.Validate(), "--set: model.n_embd: 128 does not divide by n_head 3", "the preset gave n_embd")
}

func TestLoadNamesTheFile(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "absent.yaml"), nil)
	require.ErrorContains(t, err, "absent.yaml: cannot be read: no such file or directory")
	require.ErrorIs(t, err, os.ErrNotExist)

	_, err = Load(t.TempDir(), nil)
	require.ErrorContains(t, err, "cannot be read")

	bin := filepath.Join(t.TempDir(), "train.bin")
	require.NoError(t, os.WriteFile(bin, make([]byte, maxSize+7), 0o600))
	_, err = Load(bin, nil)
	require.EqualError(t, err, bin+": cannot be read: it has more than 65536 bytes, too many for what it is given as")
}

// TestLongFileWrittenOut: the longest file is read again where all of it is written out, as in a plan.
func TestLongFileWrittenOut(t *testing.T) {
	const pin = "{match: a,placement: [_]},"
	text := "parallel: {pin: [" + strings.Repeat(pin, maxSize/len(pin)-2) + "]}\n"
	c, err := Parse("gpt.yaml", []byte(text), nil)
	require.NoError(t, err)
	require.Greater(t, len(c.Marshal()), maxSize)
	again, err := Parse("again.yaml", c.Marshal(), nil)
	require.NoError(t, err)
	require.True(t, again.Equal(c))
}

func TestReadsWindowsFiles(t *testing.T) {
	c, err := Parse("gpt.yaml", []byte("\ufeffmodel:\r\n  n_layer: 3\r\ntrain:\r\n  out_dir: a b\r\n"), nil)
	require.NoError(t, err)
	require.Equal(t, 3, c.Model.NLayer)
	require.Equal(t, "a b", c.Train.OutDir)
}

func TestMarshalRoundTrips(t *testing.T) {
	for _, text := range []string{everyKey, "train: {out_dir: \"a: #b\\t\\u00e9\\\"\\x01\\U0001F600 '\"}", "train: {out_dir: 'null'}",
		"train: {out_dir: '1e3'}", "data: {dir: 'True'}", "optimizer: {eps: 1e-300, min_lr: -0}", "parallel: {memory_limit: 1000001}"} {
		c, err := Parse("gpt.yaml", []byte(text), nil)
		require.NoError(t, err)
		again, err := Parse("gpt.yaml", c.Marshal(), nil)
		require.NoError(t, err, string(c.Marshal()))
		require.Empty(t, cmp.Diff(c, again, cmpopts.IgnoreUnexported(Config{})))
		require.True(t, c.Equal(again))
		again.Train.Seed++
		require.False(t, c.Equal(again))
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0": 0, "1000": 1000, "512MiB": 512 << 20, "16GiB": 16 << 30, "16 GiB": 16 << 30, "1.5KiB": 1536, "80GB": 80e9, "2TiB": 2 << 40,
		"7B": 7, "0.3KiB": 307, "1.5GB": 15e8, "2.0": 2,
	} {
		got, err := ParseBytes(text)
		require.NoError(t, err)
		require.Equal(t, want, got, text)
		again, err := ParseBytes(got.String())
		require.NoError(t, err)
		require.Equal(t, got, again, text)
	}
	for _, text := range []string{"", ".", "1.2.3GiB", "-1", "1e9", "GiB", "16gib", "0x10", "1/2", "1.5", "1.5B", "0.0001KiB", strings.Repeat("9", 40)} {
		_, err := ParseBytes(text)
		require.Error(t, err, text)
	}
}

func TestEveryKeyIsDocumentedAndReadable(t *testing.T) {
	for _, k := range allKeys() {
		require.NotEmpty(t, k.name, "field %v has no yaml tag", k.index)
		require.NotEmpty(t, reflect.TypeFor[Config]().FieldByIndex(k.index).Tag.Get("help"), "%s has no help", k)
		if k.words != nil && k.name != "preset" {
			require.Contains(t, k.words, *k.target(Default()).(*string), "%s: default is not legal", k)
		}
	}
	require.NoError(t, func() error { c := Default(); c.Data.Dir = "d"; return c.Validate() }())
}

var update = flag.Bool("update", false, "rewrite docs/config.md")

// TestKeysAreListed: docs/config.md lists every key with what it may hold, its default and its meaning.
func TestKeysAreListed(t *testing.T) {
	const file = "../docs/config.md"
	var want strings.Builder
	fmt.Fprintf(&want, `# The keys of gpt.yaml

A file has sections of keys, as those in [examples](../examples) have. A key that is left out has the default, which is that of
nanoGPT's train.py where it has the key, except for bias (GPTConfig's) and dtype. A wrong key or value is an error that names
file, line and key. %s overrides one key. Instead of such a file, the %s of a HuggingFace GPT-2 or
Llama will do.

This list is written from the program (%s).
`, "`--set section.key=value`", "`config.json`", "`go test ./config -run KeysAreListed -update`")
	section := ""
	for _, k := range allKeys() {
		if k.section != section {
			section = k.section
			fmt.Fprintf(&want, "\n## %s\n\n| key | value | default | meaning |\n|---|---|---|---|\n", section)
		}
		value := formatValue(k.target(Default()))
		if value == `""` {
			value = ""
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s |\n", k.name, k.kind(), value, reflect.TypeFor[Config]().FieldByIndex(k.index).Tag.Get("help"))
	}
	fmt.Fprintf(&want, "\nPresets: %s.\n", strings.Join(gpt.PresetNames(), ", "))
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want.String()), 0o644))
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want.String(), string(got), "go test ./config -run KeysAreListed -update")
}

func TestExamples(t *testing.T) {
	shapes := map[string]int64{ // parameters
		"quick": 804_096, "shakespeare_char": 10_745_088, "tiny": 104_832, "gpt2": 124_439_808, "gpt2-xl": 1_557_611_200,
		"llama-tiny": 107_456,
	}
	files, err := filepath.Glob("../examples/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, len(shapes))
	for _, file := range files {
		c, err := Load(file, nil)
		require.NoError(t, err)
		require.NoError(t, c.Validate())
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		require.Equal(t, shapes[name], c.Model.NumParams(), name)
		if preset, err := gpt.Preset(name); err == nil {
			c.Model.Preset = name
			require.Equal(t, preset, c.Model, "the example and the preset are the same model")
		}
	}

	quick, err := Load("../examples/quick.yaml", nil)
	require.NoError(t, err)
	require.Equal(t, 12, quick.Batch.Global)
	require.Equal(t, 2000, quick.Train.MaxIters)
	require.Equal(t, 2000, quick.Optimizer.LRDecayIters)
	require.Equal(t, 20, quick.Train.EvalIters)
	require.Equal(t, 0.99, quick.Optimizer.Beta2)
}
