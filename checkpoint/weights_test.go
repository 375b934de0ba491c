package checkpoint

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
)

// tinyModel has biases, and no two sizes alike.
func tinyModel() gpt.Config {
	cfg := gpt.DefaultConfig()
	cfg.NLayer, cfg.NHead, cfg.NEmbd, cfg.BlockSize, cfg.VocabSize, cfg.Activation = 2, 3, 12, 5, 7, gpt.GELUTanh
	return cfg
}

// numbered is a model whose elements are all different, as numbers that half precision can
// represent.
type numbered struct{}

func (n numbered) Read(name string, _ ir.DType, slab ir.Slab, dst []byte) error {
	ir.EachRun(slab, ir.Whole(slab.Global), func(a, b, count int) {
		for i := range count {
			x := float32(len(name)*7+b+i) / 16
			binary.LittleEndian.PutUint32(dst[4*(a+i):], math.Float32bits(x))
		}
	})
	return nil
}

func export(t *testing.T, layout gpt.Layout) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, ExportWeights(path, numbered{}, tinyModel(), layout))
	return path
}

func tensors(t *testing.T, path string) (map[string]safetensors.Tensor, map[string]string) {
	t.Helper()
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	defer f.Close()
	all := map[string]safetensors.Tensor{}
	for _, n := range f.Names() {
		all[n], err = f.Tensor(n)
		require.NoError(t, err)
	}
	return all, f.Metadata()
}

// rewritten writes a file's tensors again after a change, with no metadata except what is given.
func rewritten(t *testing.T, path string, meta map[string]string, change func(map[string]safetensors.Tensor)) string {
	t.Helper()
	all, _ := tensors(t, path)
	change(all)
	var list []safetensors.Tensor
	for _, x := range all {
		list = append(list, x)
	}
	out := filepath.Join(t.TempDir(), "changed.safetensors")
	require.NoError(t, safetensors.WriteFile(out, meta, list...))
	return out
}

func requireNumbered(t *testing.T, path string, cfg gpt.Config) {
	t.Helper()
	w, err := OpenWeights(path, cfg)
	require.NoError(t, err)
	defer w.Close()
	for _, p := range parameters(cfg) {
		shape := cfg.Stored(p, gpt.NanoGPT)[0].Of
		want, err := readFloats(numbered{}, p, ir.Whole(shape))
		require.NoError(t, err)
		got, err := readFloats(w, p, ir.Whole(shape))
		require.NoError(t, err)
		require.Equal(t, want, got, p)
	}
	// A part: the second head of queries, keys and values, for some columns.
	slab := ir.Slab{Global: []int{3, 3, 4, 12}, Offset: []int{0, 1, 0, 5}, Local: []int{3, 1, 4, 6}}
	want, got := make([]byte, 4*72), make([]byte, 4*72)
	require.NoError(t, numbered{}.Read("h.1.attn.c_attn.weight", ir.F32, slab, want))
	require.NoError(t, w.Read("h.1.attn.c_attn.weight", ir.F32, slab, got))
	require.Equal(t, want, got)
}

func TestWeightsRoundTrip(t *testing.T) {
	cfg := tinyModel()
	for _, layout := range []gpt.Layout{gpt.NanoGPT, gpt.GPT2} {
		t.Run(string(layout), func(t *testing.T) {
			path := export(t, layout)
			requireNumbered(t, path, cfg)
			got, err := WeightsConfig(path)
			require.NoError(t, err)
			require.Equal(t, cfg, got)
		})
	}
	nano, meta := tensors(t, export(t, gpt.NanoGPT))
	hf, _ := tensors(t, export(t, gpt.GPT2))
	require.Equal(t, "pt", meta["format"])
	require.NotContains(t, nano, headName)
	require.Equal(t, []int{36, 12}, nano["transformer.h.0.attn.c_attn.weight"].Shape)
	require.Equal(t, []int{12, 36}, hf["transformer.h.0.attn.c_attn.weight"].Shape)
	require.Equal(t, nano["transformer.wte.weight"], hf["transformer.wte.weight"])
	a, err := nano["transformer.h.0.attn.c_proj.weight"].Float32s()
	require.NoError(t, err)
	b, err := hf["transformer.h.0.attn.c_proj.weight"].Float32s()
	require.NoError(t, err)
	require.Equal(t, a[1*12+2], b[2*12+1], "a square matrix is transposed too")
}

// TestWidthOfMLPs: a file states the width of its MLPs by its tensors alone.
func TestWidthOfMLPs(t *testing.T) {
	cfg := tinyModel()
	cfg.FFNHidden = 20
	for _, layout := range []gpt.Layout{gpt.NanoGPT, gpt.GPT2} {
		path := filepath.Join(t.TempDir(), "model.safetensors")
		require.NoError(t, ExportWeights(path, numbered{}, cfg, layout))
		got, err := WeightsConfig(path)
		require.NoError(t, err)
		require.Equal(t, cfg, got)
		requireNumbered(t, path, got)
	}
}

// TestForeignFiles: what other programs write: names without a prefix, a tied head, masks, half
// precision, a longer position table.
func TestForeignFiles(t *testing.T) {
	path := rewritten(t, export(t, gpt.GPT2), nil, func(all map[string]safetensors.Tensor) {
		for name, x := range maps.Clone(all) {
			delete(all, name)
			x.Name = strings.TrimPrefix(name, "transformer.")
			if x.Name == "wpe.weight" {
				x.Shape = []int{9, 12}
				x.Data = append(x.Data, make([]byte, 4*4*12)...)
			}
			if x.Name == "ln_f.weight" { // the upper halves of float32 are bfloat16, exactly for such short numbers
				half := x.Data[:0:0]
				for i := 2; i < len(x.Data); i += 4 {
					half = append(half, x.Data[i:i+2]...)
				}
				x.DType, x.Data = safetensors.BF16, half
			}
			all[x.Name] = x
		}
		head := all["wte.weight"]
		head.Name = headName
		all[headName] = head
		all["h.0.attn.bias"] = safetensors.FromFloat32s("h.0.attn.bias", []int{1, 1, 5, 5}, make([]float32, 25))
		all["h.1.attn.masked_bias"] = safetensors.FromFloat32s("h.1.attn.masked_bias", nil, make([]float32, 1))
	})
	requireNumbered(t, path, tinyModel())

	_, err := WeightsConfig(path)
	require.ErrorContains(t, err, "says nothing of the number of heads")
	config := `{"model_type": "gpt2", "n_layer": 2, "n_head": 3, "n_embd": 12, "n_positions": 9, "vocab_size": 7, "activation_function": "gelu_new"}`
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), "config.json"), []byte(config), 0o644))
	cfg, err := WeightsConfig(path)
	require.NoError(t, err)
	want := tinyModel()
	want.BlockSize = 9
	require.Equal(t, want, cfg)

	other := tinyModel()
	other.Activation = gpt.GELU // as nanoGPT reads them
	requireNumbered(t, path, other)
	other.NHead = 4
	_, err = OpenWeights(path, other)
	require.ErrorContains(t, err, "is of a model with n_head 3, not 4")
	for _, not := range []string{`"layer_norm_epsilon": 0`, `"scale_attn_by_inverse_layer_idx": true`, `"activation_function": "relu"`, `"model_type": "gptj"`} {
		beside := filepath.Join(filepath.Dir(path), "config.json")
		require.NoError(t, os.WriteFile(beside, []byte(`{"n_layer": 2, "n_head": 3, `+not+`}`), 0o644))
		_, err = OpenWeights(path, tinyModel())
		require.ErrorContains(t, err, beside+":1: "+strings.Split(not, `"`)[1])
	}
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), "config.json"), []byte(`{"n_layer": 2, "n_head": 3, "layer_norm_epsilon": 1e-6}`), 0o644))
	_, err = OpenWeights(path, tinyModel())
	require.ErrorContains(t, err, "is of a model with norm_eps 1e-06, not 1e-05")
	other = tinyModel()
	other.NormEps = 1e-6
	requireNumbered(t, path, other)
	cfg, err = WeightsConfig(path)
	require.NoError(t, err)
	require.Equal(t, 1e-6, cfg.NormEps)
}

// TestWrappedModels: DistributedDataParallel and torch.compile put a word before every name.
func TestWrappedModels(t *testing.T) {
	wrapped := func(by string, but string) string {
		return rewritten(t, export(t, gpt.NanoGPT), map[string]string{"n_head": "3", "activation": gpt.GELUTanh}, func(all map[string]safetensors.Tensor) {
			head := all["transformer.wte.weight"]
			head.Name = headName
			all[headName] = head
			for name, x := range all {
				if name != but {
					x.Name = by + name
				}
				all[name] = x
			}
		})
	}
	for _, by := range []string{"module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."} {
		path := wrapped(by, "")
		cfg, err := WeightsConfig(path)
		require.NoError(t, err, by)
		require.Equal(t, tinyModel(), cfg)
		requireNumbered(t, path, cfg)
		cfg.NLayer = 3
		_, err = OpenWeights(path, cfg)
		require.ErrorContains(t, err, `tensor "`+by+`transformer.h.2.ln_1.weight": is missing`, "by the file's name")
	}
	_, err := OpenWeights(wrapped("module.", "transformer.ln_f.bias"), tinyModel())
	require.ErrorContains(t, err, `"transformer.wte.weight": is missing`, "not all names have the word")
	_, err = WeightsConfig(wrapped("model.", ""))
	require.ErrorContains(t, err, `"wte.weight": is missing, but there is "model.transformer.wte.weight": of what begins every name only module. and _orig_mod. are passed over`)
}

func TestWrongWeights(t *testing.T) {
	const name = "transformer.h.1.mlp.c_fc.weight"
	for what, test := range map[string]struct {
		change func(map[string]safetensors.Tensor)
		want   string
	}{
		"missing": {func(all map[string]safetensors.Tensor) { delete(all, name) }, name + `": is missing; the model wants it with shape [48 12]`},
		"extra": {func(all map[string]safetensors.Tensor) {
			all["transformer.h.2.ln_1.weight"] = safetensors.FromFloat32s("transformer.h.2.ln_1.weight", []int{12}, make([]float32, 12))
		}, `"transformer.h.2.ln_1.weight": is not a tensor of this model`},
		"misshapen": {func(all map[string]safetensors.Tensor) {
			all[name] = safetensors.FromFloat32s(name, []int{12, 48}, make([]float32, 576))
		}, name + `": has shape [12 48], the model wants [48 12]`},
		"integers": {func(all map[string]safetensors.Tensor) {
			all[name] = safetensors.FromInt32s(name, []int{48, 12}, make([]int32, 576))
		}, name + `": is I32, want F32, F16 or BF16`},
		"short positions": {func(all map[string]safetensors.Tensor) {
			all["transformer.wpe.weight"] = safetensors.FromFloat32s("transformer.wpe.weight", []int{4, 12}, make([]float32, 48))
		}, `has shape [4 12], the model wants [5 12]`},
		"untied head": {func(all map[string]safetensors.Tensor) {
			all[headName] = safetensors.FromFloat32s(headName, []int{7, 12}, make([]float32, 84))
		}, `"lm_head.weight": differs from transformer.wte.weight`},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := OpenWeights(rewritten(t, export(t, gpt.NanoGPT), nil, test.change), tinyModel())
			var bad *Error
			require.ErrorAs(t, err, &bad)
			require.ErrorContains(t, err, test.want)
		})
	}
	for want, change := range map[string]func(*gpt.Config){
		"is of a model with n_head 3, not 4":                func(c *gpt.Config) { c.NHead = 4 },
		"is of a model with activation gelu_tanh, not gelu": func(c *gpt.Config) { c.Activation = gpt.GELU },
		"is of a model with norm_eps 1e-05, not 1e-06":      func(c *gpt.Config) { c.NormEps = 1e-6 },
	} {
		cfg := tinyModel()
		change(&cfg)
		_, err := OpenWeights(export(t, gpt.NanoGPT), cfg)
		require.ErrorContains(t, err, want)
	}
	_, err := OpenWeights(filepath.Join(t.TempDir(), "none"), tinyModel())
	var bad *Error
	require.ErrorAs(t, err, &bad)

	for what, change := range map[string]func(map[string]safetensors.Tensor){
		"no table": func(all map[string]safetensors.Tensor) { delete(all, "transformer.wte.weight") },
		"far layer": func(all map[string]safetensors.Tensor) {
			const name = "transformer.h.99999999.ln_1.weight"
			all[name] = safetensors.FromFloat32s(name, nil, []float32{1})
		},
		"three dims": func(all map[string]safetensors.Tensor) {
			all["transformer.wpe.weight"] = safetensors.FromFloat32s("transformer.wpe.weight", []int{1, 1, 1}, []float32{1})
		},
	} {
		_, err := WeightsConfig(rewritten(t, export(t, gpt.NanoGPT), map[string]string{"n_head": "3"}, change))
		require.ErrorAs(t, err, &bad, what)
	}
	for _, heads := range []string{"x", "0", "5"} {
		_, err := WeightsConfig(rewritten(t, export(t, gpt.NanoGPT), map[string]string{"n_head": heads}, func(map[string]safetensors.Tensor) {}))
		require.ErrorAs(t, err, &bad, heads)
	}
}

// TestValuesThatAreNotFinite: they are refused where they are read, also those that are too large for the type that is wanted.
func TestValuesThatAreNotFinite(t *testing.T) {
	const name = "transformer.ln_f.weight"
	whole := ir.Whole([]int{12})
	for x, want := range map[float32]string{
		float32(math.NaN()): "holds NaN, which is no finite f32", float32(math.Inf(-1)): "holds -Inf, which is no finite f32", 1e5: "holds 100000, which is no finite f16",
	} {
		w, err := OpenWeights(rewritten(t, export(t, gpt.NanoGPT), nil, func(all map[string]safetensors.Tensor) {
			values, err := all[name].Float32s()
			require.NoError(t, err)
			values[7] = x
			all[name] = safetensors.FromFloat32s(name, []int{12}, values)
		}), tinyModel())
		require.NoError(t, err)
		f32 := w.Read("ln_f.weight", ir.F32, whole, make([]byte, 48))
		f16 := w.Read("ln_f.weight", ir.F16, whole, make([]byte, 24))
		require.NoError(t, w.Close())
		require.ErrorContains(t, f16, `tensor "`+name+`": holds `)
		require.ErrorAs(t, f16, new(*Error))
		if x == 1e5 {
			require.NoError(t, f32)
			f32 = f16
		}
		require.ErrorContains(t, f32, want)
	}

	// One parameter is several tensors in a Llama's file.
	const keys = "model.layers.1.self_attn.k_proj.weight"
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, ExportWeights(path, numbered{}, tinyLlama(), gpt.Llama))
	w, err := OpenWeights(rewritten(t, path, nil, func(all map[string]safetensors.Tensor) {
		copy(all[keys].Data, "\x00\x00\xc0\x7f")
	}), tinyLlama())
	require.NoError(t, err)
	defer w.Close()
	c := ir.Whole(tinyLlama().Stored("h.1.attn.c_attn.weight", gpt.Llama)[0].Of)
	require.ErrorContains(t, w.Read("h.1.attn.c_attn.weight", ir.F32, c, make([]byte, 4*c.Elems())), keys+`": holds NaN`)
}

// What neither GPT-2 nor Llama can express is refused by name, in both directions.
func TestWhatIsNotExchanged(t *testing.T) {
	path := export(t, gpt.NanoGPT)
	for _, tt := range []struct {
		key    string
		change func(*gpt.Config)
	}{
		{"activation: swiglu", func(c *gpt.Config) { c.Activation = gpt.SwiGLU }},
		{"norm: rmsnorm", func(c *gpt.Config) { c.Norm = gpt.RMSNorm }},
		{"position: rope", func(c *gpt.Config) { c.Position = gpt.RoPE }},
		{"tie_embeddings: false", func(c *gpt.Config) { c.TieEmbeddings = false }},
	} {
		cfg := tinyModel()
		tt.change(&cfg)
		_, err := OpenWeights(path, cfg)
		require.ErrorContains(t, err, tt.key+" is not GPT-2")
		err = ExportWeights(filepath.Join(t.TempDir(), "out"), numbered{}, cfg, gpt.GPT2)
		require.ErrorContains(t, err, tt.key+" is not GPT-2")
	}
	for key, change := range map[string]func(*gpt.Config){
		"activation: gelu":  func(c *gpt.Config) { c.Activation = gpt.GELU },
		"norm: layernorm":   func(c *gpt.Config) { c.Norm = gpt.LayerNorm },
		"position: learned": func(c *gpt.Config) { c.Position = gpt.Learned },
		"bias: true":        func(c *gpt.Config) { c.Bias = true },
	} {
		cfg := tinyLlama()
		change(&cfg)
		_, err := OpenWeights(path, cfg)
		require.ErrorContains(t, err, key+" is not Llama")
		err = ExportWeights(filepath.Join(t.TempDir(), "out"), numbered{}, cfg, gpt.Llama)
		require.ErrorContains(t, err, key+" is not Llama")
	}
}

// tinyLlama has grouped queries, and no two sizes alike.
func tinyLlama() gpt.Config {
	return gpt.Config{
		NLayer: 2, NHead: 6, NKVHead: 3, NEmbd: 24, FFNHidden: 20, BlockSize: 5, VocabSize: 7,
		Activation: gpt.SwiGLU, Norm: gpt.RMSNorm, Position: gpt.RoPE, RopeTheta: 5000,
	}
}

// TestLlamaWeights: a Llama's weights are read as they were written, whatever its heads and its head; the metadata states it, and a
// config.json beside the file where there is none.
func TestLlamaWeights(t *testing.T) {
	for _, change := range []func(*gpt.Config){
		func(*gpt.Config) {},
		func(c *gpt.Config) { c.NKVHead = 6 },
		func(c *gpt.Config) { c.NKVHead, c.TieEmbeddings = 1, true },
		func(c *gpt.Config) { c.NormEps, c.RopeFactor, c.RopeHighFreq, c.RopeOriginalSize = 1e-6, 8, 16, 100 },
	} {
		cfg := tinyLlama()
		change(&cfg)
		path := filepath.Join(t.TempDir(), "model.safetensors")
		require.NoError(t, ExportWeights(path, numbered{}, cfg, gpt.Llama))
		requireRead := func(path string) {
			got, err := WeightsConfig(path)
			require.NoError(t, err)
			require.NoError(t, cfg.Same(got))
			w, err := OpenWeights(path, got)
			require.NoError(t, err)
			defer w.Close()
			for _, p := range parameters(cfg) {
				whole := ir.Whole(cfg.Stored(p, gpt.Llama)[0].Of)
				want, err := readFloats(numbered{}, p, whole)
				require.NoError(t, err)
				got, err := readFloats(w, p, whole)
				require.NoError(t, err)
				require.Equal(t, want, got, p)
			}
		}
		requireRead(path)

		all, _ := tensors(t, path)
		for k := range cfg.NHead { // head k of the queries is in group k / G
			x, err := all["model.layers.1.self_attn.q_proj.weight"].Float32s()
			require.NoError(t, err)
			group := cfg.QueryGroup()
			at := (k%group*cfg.KVHeads() + k/group) * cfg.HeadDim() * cfg.NEmbd
			want, err := readFloats(numbered{}, "h.1.attn.c_attn.weight", ir.Whole([]int{group + 2, cfg.KVHeads(), cfg.HeadDim(), cfg.NEmbd}))
			require.NoError(t, err)
			require.Equal(t, want[at], x[k*cfg.HeadDim()*cfg.NEmbd])
		}

		foreign := rewritten(t, path, nil, func(map[string]safetensors.Tensor) {})
		_, err := WeightsConfig(foreign)
		require.ErrorContains(t, err, "says nothing of the number of heads")
		beside := filepath.Join(filepath.Dir(foreign), "config.json")
		text := strings.Replace(string(config.HuggingFace(cfg)), `"initializer_range": 0.02`, `"initializer_range": 0.04, "attention_dropout": 0.1`, 1)
		require.NoError(t, os.WriteFile(beside, []byte(text), 0o600))
		requireRead(foreign)
		other := cfg
		other.RopeTheta = 1e4
		_, err = OpenWeights(foreign, other)
		require.ErrorContains(t, err, "is of a model with rope_theta 5000, not 10000")
		other = cfg
		other.NormEps = 1e-3
		_, err = OpenWeights(path, other)
		require.ErrorContains(t, err, fmt.Sprintf("is of a model with norm_eps %v, not 0.001", cfg.Eps()))
		other = cfg
		other.RopeFactor, other.RopeLowFreq, other.RopeHighFreq, other.RopeOriginalSize = 8, 3, 16, 100
		_, err = OpenWeights(foreign, other)
		require.ErrorContains(t, err, map[bool]string{true: "is of a model with rope_low_freq_factor 1, not 3", false: "is of a model with rope_factor 0, not 8"}[cfg.RopeFactor > 0])
		other = cfg
		other.NHead, other.NKVHead = 2*cfg.NHead, 2*cfg.KVHeads()
		_, err = OpenWeights(path, other)
		require.ErrorContains(t, err, "is of a model with n_head 6, not 12")
		require.NoError(t, os.WriteFile(beside, []byte(`{"model_type": "llama", "rms_norm_eps": 0}`), 0o600))
		_, err = OpenWeights(foreign, cfg)
		require.ErrorContains(t, err, "config.json:1: rms_norm_eps: is 0, must be positive")
	}
}

// torchOracle is a directory of PyTorch's files, and their model: see testdata/oracle/README.md.
const torchOracle = "../testdata/oracle/torchfile/"

func torchModel() gpt.Config {
	cfg := gpt.DefaultConfig()
	cfg.NLayer, cfg.NHead, cfg.NEmbd, cfg.BlockSize, cfg.VocabSize, cfg.Dropout = 2, 2, 6, 5, 11, 0
	return cfg
}

// TestTorchFiles: the weights are the same in every file, part by part. nanoGPT's states its model.
func TestTorchFiles(t *testing.T) {
	cfg := torchModel()
	want, err := safetensors.Open(torchOracle + "weights.safetensors")
	require.NoError(t, err)
	defer want.Close()
	for _, name := range []string{"pytorch_model.bin", "half.bin", "views.pt", "ckpt.pt"} {
		w, err := OpenWeights(torchOracle+name, cfg)
		require.NoError(t, err)
		for _, p := range parameters(cfg) {
			x, err := want.Tensor("transformer." + p)
			require.NoError(t, err)
			values, err := x.Float32s()
			require.NoError(t, err)
			got, err := readFloats(w, p, ir.Whole(cfg.Stored(p, gpt.NanoGPT)[0].Of))
			require.NoError(t, err)
			require.Equal(t, values, got, "%s of %s", p, name)
		}
		require.NoError(t, w.Close())
	}
	got, err := WeightsConfig(torchOracle + "ckpt.pt")
	require.NoError(t, err)
	cfg.Dropout = 0.25
	require.Equal(t, cfg, got)

	_, err = WeightsConfig(torchOracle + "pytorch_model.bin")
	require.ErrorContains(t, err, "pytorch_model.bin: says nothing of the number of heads: it states no n_head")
	cfg.NHead = 3
	_, err = OpenWeights(torchOracle+"ckpt.pt", cfg)
	require.ErrorContains(t, err, "ckpt.pt: is of a model with n_head 2, not 3")
	cfg = torchModel()
	cfg.NLayer = 3
	_, err = OpenWeights(torchOracle+"half.bin", cfg)
	require.ErrorContains(t, err, `half.bin: tensor "h.2.ln_1.weight": is missing; the model wants it with shape [6]`)

	text, err := os.ReadFile(torchOracle + "views.pt")
	require.NoError(t, err)
	cut := filepath.Join(t.TempDir(), "cut.pt")
	require.NoError(t, os.WriteFile(cut, text[:5000], 0o644))
	_, err = WeightsConfig(cut)
	var bad *Error
	require.ErrorAs(t, err, &bad)
	require.ErrorContains(t, err, cut+": is a zip archive that is cut short or damaged")
}

// TestStatedSizes: the sizes that a file states must be those of its tensors.
func TestStatedSizes(t *testing.T) {
	for key, want := range map[string]string{"n_layer": "2", "n_embd": "12", "block_size": "5", "vocab_size": "7", "bias": "true"} {
		path := rewritten(t, export(t, gpt.NanoGPT), map[string]string{"n_head": "3", key: "4"}, func(map[string]safetensors.Tensor) {})
		_, err := WeightsConfig(path)
		require.ErrorContains(t, err, path+": says "+key+" 4, but its tensors are of "+want)
	}
	path := rewritten(t, export(t, gpt.NanoGPT), map[string]string{"n_head": "3", "dropout": "x"}, func(map[string]safetensors.Tensor) {})
	_, err := WeightsConfig(path)
	require.ErrorContains(t, err, `dropout is "x", want a number`)
}

// TestConfigBeside: what a config.json beside the weights states must be so in the tensors. What it leaves out, or has as null,
// says nothing.
func TestConfigBeside(t *testing.T) {
	path := rewritten(t, export(t, gpt.GPT2), nil, func(map[string]safetensors.Tensor) {})
	beside := filepath.Join(filepath.Dir(path), "config.json")
	read := func(stated string) (gpt.Config, error) {
		require.NoError(t, os.WriteFile(beside, []byte(`{"n_head": 3, `+stated+`}`), 0o644))
		return WeightsConfig(path)
	}
	for _, stated := range []string{
		`"model_type": "gpt2"`, `"n_layer": 2, "n_embd": 12, "n_positions": 5, "n_ctx": 5, "vocab_size": 7`,
		`"n_inner": null, "n_ctx": null`, `"n_inner": 48, "tie_word_embeddings": true`,
	} {
		cfg, err := read(stated)
		require.NoError(t, err, stated)
		require.NoError(t, cfg.Same(tinyModel()), stated)
	}
	for stated, is := range map[string]string{
		`"n_layer": 1`: "2", `"n_layer": 99`: "2", `"n_embd": 24`: "12", `"n_positions": 4`: "5", `"n_ctx": 6`: "5", `"vocab_size": 8`: "7", `"n_inner": 47`: "48",
	} {
		_, err := read(stated)
		key, says, _ := strings.Cut(stated, ": ")
		require.EqualError(t, err, beside+":1: "+strings.Trim(key, `"`)+": is "+says+", but the tensors of "+path+" are of "+is)
	}
	_, err := read(`"tie_word_embeddings": false`)
	require.ErrorContains(t, err, beside+":1: tie_word_embeddings: is false")
}

// TestExtraTensorIsNamed: a tensor that no block has is none of the model, whatever block its name claims. The blocks before it
// are not said to be missing.
func TestExtraTensorIsNamed(t *testing.T) {
	for _, name := range []string{"transformer.h.7.x", "transformer.h.7.ln_1.weight"} {
		path := rewritten(t, export(t, gpt.GPT2), nil, func(all map[string]safetensors.Tensor) {
			all[name] = safetensors.FromFloat32s(name, []int{12}, make([]float32, 12))
		})
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), "config.json"), []byte(`{"n_head": 3, "n_layer": 2}`), 0o644))
		cfg, err := WeightsConfig(path)
		require.NoError(t, err)
		_, err = OpenWeights(path, cfg)
		require.ErrorContains(t, err, `"`+name+`": is not a tensor of this model (2 layers`)
	}
}
