package train

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// referenceReader reads whole weights from PyTorch's file of a Llama, which is not a GPT-2 file.
type referenceReader struct {
	file *safetensors.File
	cfg  gpt.Config
}

func (r referenceReader) Read(param string, _ ir.DType, _ ir.Slab, dst []byte) error {
	name := r.cfg.Stored(param, gpt.NanoGPT)[0].Name
	x, err := r.file.Tensor(name)
	if err != nil {
		return err
	}
	values, err := x.Float32s()
	for i, v := range values {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
	}
	return err
}

// TestLlamaDecodes: with rotary positions, cached keys and windows beyond the context, the tokens
// are PyTorch's greedy ones.
func TestLlamaDecodes(t *testing.T) {
	f, cfg := openOracle(t, "llama")
	d, err := newDecoder(cfg, referenceReader{f, cfg}, cfg.BlockSize+5)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	prompt, want := ints(t, f, "greedy_prompt"), ints(t, f, "greedy")
	opts := SampleOptions{}
	got, err := d.generate(t.Context(), prompt, len(want), opts.chooser(0))
	require.NoError(t, err)
	for i, id := range want {
		require.Equal(t, int(id), got[len(prompt)+i], "token %d", i)
	}

	// Token by token gives the same as the whole context at once.
	T, V := cfg.BlockSize, cfg.VocabSize
	ids := ints(t, f, "ids")[:T]
	_, err = d.window(t.Context(), ids)
	require.NoError(t, err)
	full := d.all
	for p := range T {
		next, err := d.next(t.Context(), ids[:p+1])
		require.NoError(t, err)
		require.InDeltaSlice(t, full[p*V:(p+1)*V], next, 1e-5, "position %d", p)
	}
}

// TestLlamaOfTransformers: a Llama that transformers saved chooses the tokens that it chooses there.
func TestLlamaOfTransformers(t *testing.T) {
	const dir = "../testdata/oracle/transformers/"
	cfg, _, weights, err := openModel(dir + "model.safetensors")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, weights.Close()) })
	d, err := newDecoder(cfg, weights, cfg.BlockSize)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	f, err := safetensors.Open(dir + "greedy.safetensors")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	prompt, want := ints(t, f, "prompt"), ints(t, f, "greedy")
	opts := SampleOptions{}
	got, err := d.generate(t.Context(), prompt, len(want), opts.chooser(0))
	require.NoError(t, err)
	for i, id := range want {
		require.Equal(t, int(id), got[len(prompt)+i], "token %d", i)
	}
}

// TestTrainsAsTransformers: from weights that transformers saved, a Llama is trained to the same weights as by PyTorch, in the
// same steps: whole and by adapters as peft's, under several plans. See testdata/oracle/README.md.
func TestTrainsAsTransformers(t *testing.T) {
	const dir = "../testdata/oracle/training/"
	text, err := os.ReadFile(dir + "training.json")
	require.NoError(t, err)
	type training struct {
		Val    float32   `json:"val_loss"`
		Losses []float32 `json:"losses"`
		Norms  []float32 `json:"grad_norms"`
	}
	var oracle struct {
		Config   string   `json:"config"`
		Adapters []string `json:"adapters"`
		Train    []uint16 `json:"train"`
		Val      []uint16 `json:"val"`
		Whole    training `json:"whole"`
		Adapted  training `json:"adapted"`
	}
	require.NoError(t, json.Unmarshal(text, &oracle))
	bins := binsOf(t, oracle.Train, oracle.Val)
	split := []partition.Placement{
		{Match: `h\.[0-9]+\.attn\.c_attn\.weight`, Spec: "[_,tp,_,_]"},
		{Match: `h\.[0-9]+\.attn\.c_proj\.(weight|lora\.a)`, Spec: "[_,_,tp,_]"},
		{Match: `h\.[0-9]+\.mlp\.c_fc\.weight`, Spec: "[_,tp,_]"},
		{Match: `h\.[0-9]+\.mlp\.c_proj\.(weight|lora\.a)`, Spec: "[_,tp]"},
		{Match: `lm_head\.weight`, Spec: "[tp,_]"},
	}
	for _, d := range [][4]int{{1, 1, 1, 0}, {3, 1, 1, 3}, {1, 2, 1, 0}, {1, 1, 2, 0}, {2, 2, 2, 1}} { // dp, tp, pp, ZeRO
		for kind, want := range map[string]training{"whole": oracle.Whole, "adapted": oracle.Adapted} {
			t.Run(fmt.Sprint(kind, " under ", d), func(t *testing.T) {
				overrides := []string{"data.dir=" + bins}
				if kind == "adapted" {
					overrides = append(overrides, oracle.Adapters...)
				}
				cfg, err := config.Parse("training.yaml", []byte(oracle.Config), overrides)
				require.NoError(t, err)
				plan := planOf(d[0], d[1], d[2])
				plan.ZeRO, plan.SequenceParallel, plan.Placements = d[3], d[1] > 1, split
				out := t.TempDir()
				r, _ := train(t, cfg, plan, RunOptions{Out: out, InitFrom: dir + "model.safetensors"})
				require.InDelta(t, want.Val, r.Last.Val, 2e-6)
				steps, _ := readMetrics(t, out)
				require.Len(t, steps, len(want.Losses))
				for it, loss := range want.Losses {
					require.InDelta(t, loss, steps[it].Loss, 3e-6, "loss of iteration %d", it)
					require.InEpsilon(t, want.Norms[it], steps[it].GradNorm, 3e-5, "gradient norm of iteration %d", it)
				}

				file := filepath.Join(out, "model.safetensors")
				require.NoError(t, checkpoint.ExportWeights(file, open(t, out), cfg.Model, gpt.Llama))
				got, weights := floatsOf(t, file), floatsOf(t, dir+kind+".safetensors")
				require.Len(t, got, len(weights))
				for name, values := range weights {
					require.InDeltaSlice(t, values, got[name], 1e-5, name)
				}
			})
		}
	}
}

// floatsOf reads a safetensors file.
func floatsOf(t *testing.T, path string) map[string][]float32 {
	t.Helper()
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	defer f.Close()
	all := map[string][]float32{}
	for _, name := range f.Names() {
		x, err := f.Tensor(name)
		require.NoError(t, err)
		all[name], err = x.Float32s()
		require.NoError(t, err)
	}
	return all
}
