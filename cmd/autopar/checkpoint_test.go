package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/checkpoint/torchfile/torchfiletest"
	"github.com/autopar/autopar/ir"
)

// TestImportRefusesState: an optimizer's state that does not fit the weights is an error of the input, and leaves no checkpoint.
func TestImportRefusesState(t *testing.T) {
	all := map[string]safetensors.Tensor{}
	for name, shape := range map[string][]int{
		"wte.weight": {3, 2}, "wpe.weight": {4, 2}, "h.0.ln_1.weight": {2}, "h.0.attn.c_attn.weight": {6, 2}, "h.0.attn.c_proj.weight": {2, 2},
		"h.0.ln_2.weight": {2}, "h.0.mlp.c_fc.weight": {8, 2}, "h.0.mlp.c_proj.weight": {2, 8}, "ln_f.weight": {2},
	} {
		all[name] = safetensors.FromFloat32s("", shape, make([]float32, ir.Elems(shape)))
	}
	run := torchfiletest.Run{Weights: all, ExpAvg: all, ExpAvgSq: all, Layers: 1, Heads: 1, Iter: 9, Step: 9, BestVal: 2.5}
	dir := t.TempDir()
	path, out := filepath.Join(dir, "ckpt.pt"), filepath.Join(dir, "out")
	bad := safetensors.FromFloat32s("", []int{2, 6}, make([]float32, 12))
	negative := safetensors.FromFloat32s("", []int{2}, []float32{0, -1})
	for want, file := range map[string]torchfiletest.Dict{
		`optimizer.state[2].exp_avg": has shape [2 6], its parameter transformer.h.0.attn.c_attn.weight [6 2]; autopar run --init-from takes the weights alone`: run.File().Set(bad, "optimizer", "state", 2, "exp_avg"),
		`optimizer.state[8].exp_avg_sq": of transformer.ln_f.weight: holds -1, but is a mean of squares`:                                                        run.File().Set(negative, "optimizer", "state", 8, "exp_avg_sq"),
		"": run.File(),
	} {
		torchfiletest.Write(t, path, file)
		var stdout, stderr bytes.Buffer
		code := execute(t.Context(), []string{"checkpoint", "import", path, "-o", out}, &stdout, &stderr)
		if want == "" {
			require.Zero(t, code, stderr.String())
			require.Contains(t, stderr.String(), "goes on at iteration 9")
			require.NoError(t, os.RemoveAll(out))
			continue
		}
		require.Equal(t, statusInput, code)
		require.Contains(t, stderr.String(), path+`: tensor "`+want)
		_, err := os.Stat(filepath.Join(out, "ckpt", "latest"))
		require.ErrorIs(t, err, os.ErrNotExist)
	}
}
