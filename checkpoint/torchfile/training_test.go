package torchfile

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/checkpoint/torchfile/torchfiletest"
)

// run is a checkpoint of a model that is its two tables alone, and one vector.
func run(step any) torchfiletest.Dict {
	all := func(x float32) map[string]safetensors.Tensor {
		return map[string]safetensors.Tensor{
			"wte.weight": safetensors.FromFloat32s("", []int{2, 1}, []float32{x, 2}), "wpe.weight": safetensors.FromFloat32s("", []int{1, 1}, []float32{x}),
			"ln_f.weight": safetensors.FromFloat32s("", []int{1}, []float32{x}),
		}
	}
	return torchfiletest.Run{
		Weights: all(1), ExpAvg: all(-3), ExpAvgSq: all(4), Iter: 7, Step: step, BestVal: safetensors.FromFloat32s("", nil, []float32{1.5}),
	}.File()
}

func written(t *testing.T, file torchfiletest.Dict) *File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ckpt.pt")
	torchfiletest.Write(t, path, file)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	f, err := open(text)
	require.NoError(t, err)
	return f
}

// TestTraining: the state of an optimizer is read, with the forms of a step that versions of PyTorch have written.
func TestTraining(t *testing.T) {
	f64 := safetensors.Tensor{DType: safetensors.F64, Data: binary.LittleEndian.AppendUint64(nil, math.Float64bits(6))}
	i64 := safetensors.Tensor{DType: safetensors.I64, Shape: []int{1}, Data: []byte{6, 0, 0, 0, 0, 0, 0, 0}}
	for _, step := range []any{6, 6.0, safetensors.FromFloat32s("", nil, []float32{6}), f64, i64} {
		got, err := written(t, run(step)).Training()
		require.NoError(t, err)
		best := 1.5
		require.Equal(t, &best, got.BestVal)
		require.Equal(t, int64(7), got.Iter)
		require.Equal(t, []float64{6, 6, 6}, got.Steps)
		require.Equal(t, [2]Group{
			{2, map[string]float64{"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}},
			{1, map[string]float64{"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0}},
		}, got.Groups)
		x, err := got.Moments.Tensor("optimizer.state[1].exp_avg")
		require.NoError(t, err)
		require.Equal(t, safetensors.FromFloat32s("optimizer.state[1].exp_avg", []int{1, 1}, []float32{-3}), x)
	}

	of, err := openOracle(t, "ckpt.pt").Training() // by PyTorch, whose gradients are twice the weights
	require.NoError(t, err)
	require.Equal(t, int64(3), of.Iter)
	require.Equal(t, 10, of.Groups[0].Params)
	require.Len(t, of.Steps, 28)
	require.Equal(t, 3.0, of.Steps[27])
	for _, name := range []string{"pytorch_model.bin", "views.pt"} {
		none, err := openOracle(t, name).Training()
		require.NoError(t, err)
		require.Nil(t, none, "weights alone")
	}
	none, err := written(t, run(6).Set(nil, "optimizer")).Training()
	require.NoError(t, err)
	require.Nil(t, none)
	begun, err := written(t, run(6).Set(torchfiletest.Dict{}, "optimizer", "state").Set(nil, "best_val_loss")).Training()
	require.NoError(t, err)
	require.Empty(t, begun.Steps)
	require.Nil(t, begun.BestVal)
}

func TestTrainingRefusals(t *testing.T) {
	two := safetensors.FromFloat32s("", []int{2}, []float32{1, 2})
	groups := func(n ...int) torchfiletest.List {
		all := torchfiletest.List{}
		for _, n := range n {
			all = append(all, torchfiletest.Dict{}.Set(torchfiletest.List{n}, "params"))
		}
		return all
	}
	for want, file := range map[string]torchfiletest.Dict{
		"iter_num is None, want an integer":                                      run(6).Set(nil, "iter_num"),
		"iter_num is 7.5, want an integer":                                       run(6).Set(7.5, "iter_num"),
		`best_val_loss: is "x", which is not among`:                              run(6).Set("x", "best_val_loss"),
		"best_val_loss: has shape [2], want one number":                          run(6).Set(two, "best_val_loss"),
		"optimizer is 3, want a dict with a list param_groups and a dict state":  run(6).Set(3, "optimizer"),
		"optimizer is a dict, want a dict with a list param_groups":              run(6).Set(nil, "optimizer", "state"),
		"optimizer.param_groups has 1 groups, want nanoGPT's 2":                  run(6).Set(groups(0), "optimizer", "param_groups"),
		"optimizer.param_groups[1].params[0] is 2, want 1":                       run(6).Set(groups(0, 2), "optimizer", "param_groups"),
		"optimizer.param_groups[0] is a tuple, want a dict with a list params":   run(6).Set(torchfiletest.List{torchfiletest.Tuple{}, 1}, "optimizer", "param_groups"),
		"optimizer.state has 3 entries, but param_groups 2 parameters":           run(6).Set(groups(0, 1), "optimizer", "param_groups"),
		"optimizer.state has 2 entries, but param_groups 3 parameters":           run(6).Set(nil, "optimizer", "state", 1),
		"optimizer.state[1] is None, want a dict":                                run(6).Set(nil, "optimizer", "state", 1).Set(6, "optimizer", "state", 9),
		"optimizer.state[2].step is missing":                                     run(6).Set(nil, "optimizer", "state", 2, "step"),
		"optimizer.state[2].exp_avg_sq is missing":                               run(6).Set(nil, "optimizer", "state", 2, "exp_avg_sq"),
		"optimizer.state[2] has 4 entries, want AdamW's step, exp_avg and":       run(6).Set(two, "optimizer", "state", 2, "max_exp_avg_sq"),
		"optimizer.state[0].exp_avg: is 5, which is not among what weights file": run(6).Set(5, "optimizer", "state", 0, "exp_avg"),
	} {
		_, err := written(t, file).Training()
		require.ErrorContains(t, err, "torchfile: w.pt: "+want)
	}
}
