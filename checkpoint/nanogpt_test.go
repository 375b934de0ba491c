package checkpoint

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/checkpoint/torchfile/torchfiletest"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
)

// moments are those of [numbered], or others that differ from all of these.
type moments struct{ plus float32 }

func (m moments) Read(name string, dtype ir.DType, slab ir.Slab, dst []byte) error {
	if err := (numbered{}).Read(name, dtype, slab, dst); err != nil {
		return err
	}
	for i := 0; i < len(dst); i += 4 {
		dtype.Write(dst[i:], dtype.Read(dst[i:])+m.plus)
	}
	return nil
}

// inNanoGPT returns all parameters of a model in nanoGPT's layout, by their names.
func inNanoGPT(t *testing.T, cfg gpt.Config, from Reader) map[string]safetensors.Tensor {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, ExportWeights(path, from, cfg, gpt.NanoGPT))
	all, _ := tensors(t, path)
	named := map[string]safetensors.Tensor{}
	for name, x := range all {
		named[name[len("transformer."):]] = x
	}
	return named
}

// halfDone is a run of tinyModel that has made six updates.
func halfDone(t *testing.T, bias bool) (gpt.Config, torchfiletest.Run) {
	cfg := tinyModel()
	cfg.Bias, cfg.Activation = bias, gpt.GELU
	return cfg, torchfiletest.Run{
		Weights: inNanoGPT(t, cfg, numbered{}), ExpAvg: inNanoGPT(t, cfg, moments{-5}), ExpAvgSq: inNanoGPT(t, cfg, moments{3}),
		Layers: 2, Heads: 3, Iter: 6, Step: safetensors.FromFloat32s("", nil, []float32{6}), BestVal: 1.5,
	}
}

// openRun writes a file and opens it as weights.
func openRun(t *testing.T, cfg gpt.Config, file torchfiletest.Dict) (*Weights, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ckpt.pt")
	torchfiletest.Write(t, path, file)
	w, err := OpenWeights(path, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { w.Close() })
	return w, path
}

// TestTraining: every moment is that of its parameter, in the parameter's shape, also a part of it; with biases and without, for all
// that may differ between files.
func TestTraining(t *testing.T) {
	mask := safetensors.FromFloat32s("", []int{1, 1, 5, 5}, make([]float32, 25))
	for _, bias := range []bool{false, true} {
		cfg, run := halfDone(t, bias)
		for name, change := range map[string]func() torchfiletest.Dict{
			"plain":        func() torchfiletest.Dict { return run.File() },
			"steps of int": func() torchfiletest.Dict { run := run; run.Step, run.BestVal = 6, nil; return run.File() },
			"compiled, with masks": func() torchfiletest.Dict {
				run := run
				run.Prefix = "_orig_mod."
				return run.File().Set(mask, "model", "_orig_mod.transformer.h.0.attn.bias").Set(mask, "model", "_orig_mod.transformer.h.1.attn.bias")
			},
			"bfloat16": func() torchfiletest.Dict {
				x := run.ExpAvgSq["wpe.weight"]
				x.DType, x.Data = safetensors.BF16, append([]byte{}, x.Data...)
				for i := range 5 * 12 {
					copy(x.Data[2*i:], x.Data[4*i+2:4*i+4])
				}
				x.Data = x.Data[:2*5*12]
				return run.File().Set(x, "optimizer", "state", 1, "exp_avg_sq")
			},
		} {
			t.Run(fmt.Sprintf("%s, bias %v", name, bias), func(t *testing.T) {
				w, _ := openRun(t, cfg, change())
				got, err := w.Training()
				require.NoError(t, err)
				require.Equal(t, 6, got.Step)
				require.Zero(t, got.Skipped)
				if name != "steps of int" {
					require.Equal(t, float32(1.5), *got.BestVal)
				}
				require.Equal(t, map[string]float64{"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}, got.Settings)
				for _, p := range parameters(cfg) {
					whole := ir.Whole(cfg.Stored(p, gpt.NanoGPT)[0].Of)
					for entry, of := range map[string]Reader{".exp_avg": moments{-5}, ".exp_avg_sq": moments{3}} {
						require.True(t, got.Has(p+entry))
						want, err := readFloats(of, p, whole)
						require.NoError(t, err)
						is, err := readFloats(got, p+entry, whole)
						require.NoError(t, err)
						if name == "bfloat16" && p == "wpe.weight" {
							require.InDeltaSlice(t, want, is, 0.1)
							continue
						}
						require.Equal(t, want, is, p+entry)
					}
				}
				slab := ir.Slab{Global: []int{3, 3, 4, 12}, Offset: []int{0, 1, 0, 5}, Local: []int{3, 1, 4, 6}}
				want, err := readFloats(moments{-5}, "h.1.attn.c_attn.weight", slab)
				require.NoError(t, err)
				is, err := readFloats(got, "h.1.attn.c_attn.weight.exp_avg", slab)
				require.NoError(t, err)
				require.Equal(t, want, is)
				for _, name := range []string{"wte.weight", "exp_avg", "h.1.exp_avg", "ln_g.exp_avg_sq", "wte.weight.master"} {
					require.False(t, got.Has(name), name)
					require.ErrorContains(t, got.Read(name, ir.F32, slab, nil), `"`+name+`": is no moment`)
				}
			})
		}

		// Of a longer position table only the beginning is read, and of its moments.
		shorter := cfg
		shorter.BlockSize = 4
		w, _ := openRun(t, shorter, run.File())
		got, err := w.Training()
		require.NoError(t, err)
		want, err := readFloats(moments{3}, "wpe.weight", ir.Slab{Global: []int{5, 12}, Offset: []int{0, 0}, Local: []int{4, 12}})
		require.NoError(t, err)
		is, err := readFloats(got, "wpe.weight.exp_avg_sq", ir.Whole([]int{4, 12}))
		require.NoError(t, err)
		require.Equal(t, want, is)
	}
}

// TestNothingToGoOnWith: files of weights alone, and from before the first update; a model that trains adapters.
func TestNothingToGoOnWith(t *testing.T) {
	cfg, run := halfDone(t, true)
	run.Iter = 0
	adapted := cfg
	adapted.LoRARank, adapted.LoRAAlpha, adapted.LoRATargets = 2, 2, "c_proj"
	for what, w := range map[string]func() (*Weights, error){
		"safetensors":  func() (*Weights, error) { return OpenWeights(export(t, gpt.NanoGPT), tinyModel()) },
		"a state dict": func() (*Weights, error) { return OpenWeights(torchOracle+"views.pt", torchModel()) },
		"in x out":     func() (*Weights, error) { return OpenWeights(torchOracle+"pytorch_model.bin", torchModel()) },
		"no optimizer": func() (*Weights, error) { w, _ := openRun(t, cfg, run.File().Set(nil, "optimizer")); return w, nil },
		"before update": func() (*Weights, error) {
			w, _ := openRun(t, cfg, run.File().Set(torchfiletest.Dict{}, "optimizer", "state"))
			return w, nil
		},
		"adapters": func() (*Weights, error) { w, _ := openRun(t, adapted, run.File()); return w, nil },
	} {
		w, err := w()
		require.NoError(t, err, what)
		got, err := w.Training()
		require.NoError(t, err, what)
		require.Nil(t, got, what)
		require.NoError(t, w.Close())
	}
}

// TestBadTraining: what does not fit is refused by its name, with the numbers, and the weights are read all the same.
func TestBadTraining(t *testing.T) {
	cfg, run := halfDone(t, true)
	vector := func(values ...float32) safetensors.Tensor {
		return safetensors.FromFloat32s("", []int{len(values)}, values)
	}
	ones := func(x float32) safetensors.Tensor { return vector(1, 1, 1, 1, 1, 1, 1, x, 1, 1, 1, 1) }
	step := func(x float64) torchfiletest.Dict { return run.File().Set(x, "optimizer", "state", 0, "step") }
	group := func(key string, value any) torchfiletest.Dict {
		file := run.File()
		for _, item := range file {
			if item.Key == "optimizer" {
				groups := item.Value.(torchfiletest.Dict)[1].Value.(torchfiletest.List)
				groups[0] = groups[0].(torchfiletest.Dict).Set(value, key)
			}
		}
		return file
	}
	// Matrices are 0 to 9, then come the vectors: 12 is c_attn.bias of block 0, between two norms.
	for want, file := range map[string]torchfiletest.Dict{
		"iter_num is -1, must be between 0 and 2147483647":                                         run.File().Set(-1, "iter_num"),
		"iter_num is 4294967296, must be between 0":                                                run.File().Set(1<<32, "iter_num"),
		"iter_num is 6, but optimizer.state is empty":                                              run.File().Set(torchfiletest.Dict{}, "optimizer", "state"),
		"best_val_loss is NaN, want a finite number":                                               run.File().Set(math.NaN(), "best_val_loss"),
		"best_val_loss is 1e+300, want a finite number":                                            run.File().Set(1e300, "best_val_loss"),
		"optimizer.param_groups[0] has beta1 1, out of range":                                      group("betas", torchfiletest.Tuple{1.0, 0.9}),
		"optimizer.param_groups[0] has beta2 -0.5, out of range":                                   group("betas", torchfiletest.Tuple{0.5, -0.5}),
		"optimizer.param_groups[0] has eps 0, out of range":                                        group("eps", 0),
		"optimizer.param_groups[0] has weight_decay NaN, out of":                                   group("weight_decay", math.NaN()),
		`"optimizer.state[0].step": is 7, but iter_num 6: nanoGPT`:                                 step(7),
		`"optimizer.state[0].step": is -1, but iter_num 6`:                                         step(-1),
		`"optimizer.state[0].step": is 5.5, but iter_num 6`:                                        step(5.5),
		`"optimizer.state[0].step": is NaN, but iter_num 6`:                                        step(math.NaN()),
		`"optimizer.state[1].step": of transformer.wpe.weight is 6, that of the first parameter 5`: step(5),
		`"optimizer.state[12].exp_avg": has shape [12], its parameter transformer.h.0.attn.c_attn.bias [36]`: run.File().Set(
			vector(make([]float32, 12)...), "optimizer", "state", 12, "exp_avg"),
		`"optimizer.state[2].exp_avg_sq": has shape [12 36], its parameter transformer.h.0.attn.c_attn.weight [36 12]`: run.File().Set(
			safetensors.FromFloat32s("", []int{12, 36}, make([]float32, 432)), "optimizer", "state", 2, "exp_avg_sq"),
		`"optimizer.state[10].exp_avg": of transformer.h.0.ln_1.weight: holds NaN, which is no finite f32`:        run.File().Set(ones(float32(math.NaN())), "optimizer", "state", 10, "exp_avg"),
		`"optimizer.state[11].exp_avg_sq": of transformer.h.0.ln_1.bias: holds +Inf, which is no finite f32`:      run.File().Set(ones(float32(math.Inf(1))), "optimizer", "state", 11, "exp_avg_sq"),
		`"optimizer.state[10].exp_avg_sq": of transformer.h.0.ln_1.weight: holds -0.5, but is a mean of squares`:  run.File().Set(ones(-0.5), "optimizer", "state", 10, "exp_avg_sq"),
		`"optimizer.state[10].exp_avg": of transformer.h.0.ln_1.weight: safetensors: tensor "optimizer.state[10]`: run.File().Set(safetensors.Tensor{DType: safetensors.F64, Shape: []int{12}, Data: make([]byte, 96)}, "optimizer", "state", 10, "exp_avg"),
	} {
		w, path := openRun(t, cfg, file)
		got, err := w.Training()
		if err == nil { // what a tensor holds is seen where it is read
			for _, p := range parameters(cfg) {
				for _, entry := range []string{".exp_avg", ".exp_avg_sq"} {
					if _, bad := readFloats(got, p+entry, ir.Whole(cfg.Stored(p, gpt.NanoGPT)[0].Of)); err == nil {
						err = bad
					}
				}
			}
		}
		require.ErrorAs(t, err, new(*Error))
		require.ErrorContains(t, err, "checkpoint: "+path)
		require.ErrorContains(t, err, want)
		requireNumberedFile(t, w, cfg)
	}

	// The groups of nanoGPT before May 2023: the tables do not decay.
	old := run
	old.Layers = 1
	w, _ := openRun(t, cfg, run.File().Set(old.File()[1].Value, "optimizer"))
	_, err := w.Training()
	require.ErrorContains(t, err, "optimizer.param_groups[0] has 6 parameters, nanoGPT's of this model 10")
}

func requireNumberedFile(t *testing.T, w *Weights, cfg gpt.Config) {
	t.Helper()
	want, err := readFloats(numbered{}, "ln_f.weight", ir.Whole([]int{12}))
	require.NoError(t, err)
	got, err := readFloats(w, "ln_f.weight", ir.Whole([]int{12}))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestSkippedUpdates: AdamW does not count what a loss scaler has skipped. Only where that makes no difference any more can a run
// without a scaler go on.
func TestSkippedUpdates(t *testing.T) {
	cfg, run := halfDone(t, false)
	run.Step = 4
	w, path := openRun(t, cfg, run.File())
	got, err := w.Training()
	require.NoError(t, err)
	require.Equal(t, 6, got.Step)
	require.Equal(t, 2, got.Skipped)
	require.EqualError(t, got.Corrects(0, 0.9), `checkpoint: `+path+`: tensor "optimizer.state[0].step": is 4, but iter_num 6: `+
		"only a run with train.dtype float16 has a loss scaler, which skips updates")
	require.NoError(t, got.Corrects(0, 0.01))
	run.Step, run.Iter = 5000, 5001
	w, _ = openRun(t, cfg, run.File())
	got, err = w.Training()
	require.NoError(t, err)
	require.NoError(t, got.Corrects(0.9, 0.99))
	require.Error(t, got.Corrects(0.9, 0.9999))
}
