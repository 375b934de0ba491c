package checkpoint

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
)

// sharded writes the tensors of a file to two files and an index of them.
func sharded(t *testing.T, path string) (index string, in map[string]string) {
	t.Helper()
	all, _ := tensors(t, path)
	in = map[string]string{}
	parts := map[string][]safetensors.Tensor{}
	for i, name := range slices.Sorted(maps.Keys(all)) {
		in[name] = []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}[i%2]
		parts[in[name]] = append(parts[in[name]], all[name])
	}
	dir := t.TempDir()
	for name, part := range parts {
		require.NoError(t, safetensors.WriteFile(filepath.Join(dir, name), map[string]string{"format": "pt"}, part...))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"n_head": 3, "model_type": "gpt2"}`), 0o644))
	index = filepath.Join(dir, "model.safetensors.index.json")
	writeIndex(t, index, in)
	return index, in
}

func writeIndex(t *testing.T, path string, in map[string]string) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": in})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o644))
}

// TestOneOfSeveral: a file that has a part of the weights is not said to lack the rest.
func TestOneOfSeveral(t *testing.T) {
	index, _ := sharded(t, export(t, gpt.GPT2))
	part := filepath.Join(filepath.Dir(index), "model-00002-of-00002.safetensors")
	requireRefused := func(want string) {
		_, err := WeightsConfig(part)
		var bad *Error
		require.ErrorAs(t, err, &bad)
		require.EqualError(t, err, "checkpoint: "+part+": "+want)
		_, err = OpenWeights(part, tinyModel())
		require.EqualError(t, err, "checkpoint: "+part+": "+want)
	}
	requireRefused("is one of 2 files that have the weights together; give their index, " + index)
	require.NoError(t, os.Remove(index))
	requireRefused("is one of 2 files that have the weights together; give their index, model.safetensors.index.json, which is not beside it")

	alone := filepath.Join(t.TempDir(), "model-00001-of-00001.safetensors")
	require.NoError(t, os.Rename(export(t, gpt.GPT2), alone))
	requireNumbered(t, alone, tinyModel())
}

// TestShards: weights in several files are those of one file.
func TestShards(t *testing.T) {
	for _, layout := range []gpt.Layout{gpt.NanoGPT, gpt.GPT2} {
		index, _ := sharded(t, export(t, layout))
		cfg, err := WeightsConfig(index)
		require.NoError(t, err)
		require.NoError(t, cfg.Same(tinyModel()))
		requireNumbered(t, index, cfg)
		w, err := OpenWeights(index, cfg)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		dir := filepath.Dir(index)
		require.Equal(t, []string{index, filepath.Join(dir, "model-00001-of-00002.safetensors"), filepath.Join(dir, "model-00002-of-00002.safetensors")}, w.Paths())
	}

	// Of torch.save.
	dir := t.TempDir()
	text, err := os.ReadFile(torchOracle + "pytorch_model.bin")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pytorch_model-00001-of-00001.bin"), text, 0o644))
	whole, err := OpenWeights(torchOracle+"pytorch_model.bin", torchModel())
	require.NoError(t, err)
	defer whole.Close()
	in := map[string]string{}
	for _, name := range whole.file.Names() {
		in[name] = "pytorch_model-00001-of-00001.bin"
	}
	writeIndex(t, filepath.Join(dir, "pytorch_model.bin.index.json"), in)
	parts, err := OpenWeights(filepath.Join(dir, "pytorch_model.bin.index.json"), torchModel())
	require.NoError(t, err)
	defer parts.Close()
	for _, p := range parameters(torchModel()) {
		want, err := readFloats(whole, p, ir.Whole(torchModel().Stored(p, gpt.NanoGPT)[0].Of))
		require.NoError(t, err)
		got, err := readFloats(parts, p, ir.Whole(torchModel().Stored(p, gpt.NanoGPT)[0].Of))
		require.NoError(t, err)
		require.Equal(t, want, got, p)
	}
}

// TestShardsAreChecked: an index that its files do not bear out is refused, and reads no other file.
func TestShardsAreChecked(t *testing.T) {
	const table = "transformer.wte.weight"
	for want, change := range map[string]func(in map[string]string){
		`says that tensor "more" is in model-00001-of-00002.safetensors, which does not have it`:                 func(in map[string]string) { in["more"] = "model-00001-of-00002.safetensors" },
		`does not say that tensor "transformer.wte.weight" is in model-00002-of-00002.safetensors, which has it`: func(in map[string]string) { delete(in, table) },
		`names a file that cannot be read: stat `:                                                                func(in map[string]string) { in[table] = "gone.safetensors" },
		`names "../model.safetensors", want the name of a weights file beside it`:                                func(in map[string]string) { in[table] = "../model.safetensors" },
		`names "..", want`: func(in map[string]string) { in[table] = ".." },
		`names "", want`:   func(in map[string]string) { in[table] = "" },
		`names "model.safetensors.index.json", want`: func(in map[string]string) { in[table] = "model.safetensors.index.json" },
		`it has no weight_map`:                       func(in map[string]string) { clear(in) },
	} {
		index, in := sharded(t, export(t, gpt.GPT2))
		change(in)
		writeIndex(t, index, in)
		_, err := OpenWeights(index, tinyModel())
		var bad *Error
		require.ErrorAs(t, err, &bad)
		require.Equal(t, index, bad.File)
		require.ErrorContains(t, err, want)
	}
	index, _ := sharded(t, export(t, gpt.GPT2))
	require.NoError(t, os.WriteFile(index, []byte("{"), 0o644))
	_, err := OpenWeights(index, tinyModel())
	require.ErrorContains(t, err, "is no index of weights files")
	_, err = OpenWeights(filepath.Join(t.TempDir(), "x.index.json"), tinyModel())
	require.ErrorContains(t, err, "no such file")
}
