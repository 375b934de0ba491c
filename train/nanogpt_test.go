package train

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/checkpoint/torchfile/torchfiletest"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
)

// imported makes a checkpoint of a ckpt.pt, in a directory for a run.
func imported(t *testing.T, cfg *config.Config, path string) string {
	t.Helper()
	w, err := checkpoint.OpenWeights(path, cfg.Model)
	require.NoError(t, err)
	defer w.Close()
	run, err := w.Training()
	require.NoError(t, err)
	snap, err := Continued(cfg, w, run)
	require.NoError(t, err)
	out := t.TempDir()
	_, err = checkpoint.Save(out, snap, checkpoint.Retention{Last: 1})
	require.NoError(t, err)
	return out
}

// TestGoesOnAsNanoGPT: from what nanoGPT has saved in the middle of a run, the updates are those that PyTorch makes: with biases and
// without, under several plans. See testdata/oracle/README.md.
func TestGoesOnAsNanoGPT(t *testing.T) {
	const dir = "../testdata/oracle/nanogpt/"
	text, err := os.ReadFile(dir + "training.json")
	require.NoError(t, err)
	type training struct {
		Losses []float32 `json:"losses"`
		Norms  []float32 `json:"grad_norms"`
	}
	var oracle struct {
		Config string   `json:"config"`
		Stop   int      `json:"stop"`
		Train  []uint16 `json:"train"`
		Val    []uint16 `json:"val"`
		Bias   training `json:"bias"`
		NoBias training `json:"nobias"`
	}
	require.NoError(t, json.Unmarshal(text, &oracle))
	bins := binsOf(t, oracle.Train, oracle.Val)
	for name, want := range map[string]training{"bias": oracle.Bias, "nobias": oracle.NoBias} {
		for _, d := range [][4]int{{1, 1, 1, 0}, {3, 1, 1, 3}, {1, 2, 1, 0}, {2, 2, 2, 1}} { // dp, tp, pp, ZeRO
			t.Run(fmt.Sprint(name, " under ", d), func(t *testing.T) {
				cfg, err := config.Parse("nanogpt.yaml", []byte(oracle.Config), []string{"data.dir=" + bins, fmt.Sprint("model.bias=", name == "bias")})
				require.NoError(t, err)
				plan := planOf(d[0], d[1], d[2])
				plan.ZeRO = d[3]
				out := imported(t, cfg, dir+name+".pt")
				r, log := train(t, cfg, plan, RunOptions{Out: out, Resume: true})
				require.Contains(t, log, fmt.Sprintf("resuming at iteration %d from", oracle.Stop))
				require.Equal(t, float32(2.125), r.BestVal)
				steps, _ := readMetrics(t, out)
				require.Len(t, steps, len(want.Losses))
				for i, loss := range want.Losses {
					it := oracle.Stop + i
					require.InDelta(t, loss, steps[it].Loss, 3e-6, "loss of iteration %d", it)
					require.InEpsilon(t, want.Norms[i], steps[it].GradNorm, 3e-5, "gradient norm of iteration %d", it)
				}
			})
		}
	}
}

// stateOf reads the state of a run by the names of the weights.
type stateOf struct {
	*checkpoint.Checkpoint
	suffix string
}

func (s stateOf) Read(name string, dtype ir.DType, slab ir.Slab, dst []byte) error {
	return s.Checkpoint.Read(name+s.suffix, dtype, slab, dst)
}

// asNanoGPT writes a run's newest checkpoint as nanoGPT would: weights in float32, and without what it does not save.
func asNanoGPT(t *testing.T, dir string, model gpt.Config) string {
	t.Helper()
	c := open(t, dir)
	all := func(suffix string) map[string]safetensors.Tensor {
		path := filepath.Join(t.TempDir(), "model.safetensors")
		require.NoError(t, checkpoint.ExportWeights(path, stateOf{c, suffix}, model, gpt.NanoGPT))
		f, err := safetensors.Open(path)
		require.NoError(t, err)
		defer f.Close()
		tensors := map[string]safetensors.Tensor{}
		for _, name := range f.Names() {
			tensors[strings.TrimPrefix(name, "transformer.")], err = f.Tensor(name)
			require.NoError(t, err)
		}
		return tensors
	}
	path := filepath.Join(t.TempDir(), "ckpt.pt")
	torchfiletest.Write(t, path, torchfiletest.Run{
		Weights: all(""), ExpAvg: all(".exp_avg"), ExpAvgSq: all(".exp_avg_sq"), Layers: model.NLayer, Heads: model.NHead, Iter: c.Step,
		BestVal: safetensors.FromFloat32s("", nil, []float32{*c.BestVal}), Step: safetensors.FromFloat32s("", nil, []float32{float32(c.Step)}),
	}.File())
	return path
}

// TestGoesOnFromNanoGPT: a run that goes on from what nanoGPT would have saved of it has the bits of one that did not stop.
func TestGoesOnFromNanoGPT(t *testing.T) {
	for _, dtype := range []string{"float32", "bfloat16"} {
		for _, bias := range []bool{true, false} {
			cfg := tinyConfig(t, textData(t), "train.dtype="+dtype, fmt.Sprint("model.bias=", bias))
			whole, first := t.TempDir(), t.TempDir()
			want, _ := train(t, cfg, planOf(2, 2, 1), RunOptions{Out: whole})
			train(t, cfg, planOf(2, 2, 1), RunOptions{Out: first, Steps: 5})
			second := imported(t, cfg, asNanoGPT(t, first, cfg.Model))
			require.Equal(t, contents(t, first), contents(t, second), "all state of AdamW, and the weights")
			r, _ := train(t, cfg, planOf(2, 2, 1), RunOptions{Out: second, Resume: true})
			require.Equal(t, want.BestVal, r.BestVal)
			steps, evals := readMetrics(t, whole)
			gotSteps, gotEvals := readMetrics(t, second)
			for it := range 5 {
				delete(steps, it)
				delete(evals, it)
			}
			require.Len(t, gotSteps, 8)
			require.Equal(t, deterministic(steps), deterministic(gotSteps))
			require.Equal(t, evals, gotEvals)
			require.Equal(t, contents(t, whole), contents(t, second))
		}
	}
}

// TestSkippedUpdatesOfNanoGPT: a run with a loss scaler takes over how many updates nanoGPT's has skipped. One without cannot, and
// is refused.
func TestSkippedUpdatesOfNanoGPT(t *testing.T) {
	dir := textData(t)
	cfg := tinyConfig(t, dir, "train.dtype=float16")
	out := t.TempDir()
	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 6})
	path := asNanoGPT(t, out, cfg.Model)
	f32 := tinyConfig(t, dir)
	w, err := checkpoint.OpenWeights(path, f32.Model)
	require.NoError(t, err)
	defer w.Close()
	run, err := w.Training()
	require.NoError(t, err)
	run.Skipped = 2
	_, err = Continued(f32, w, run)
	require.ErrorContains(t, err, path+`: tensor "optimizer.state[0].step": is 4, but iter_num 6: only a run with train.dtype float16`)
	snap, err := Continued(cfg, w, run)
	require.NoError(t, err)
	second := t.TempDir()
	_, err = checkpoint.Save(second, snap, checkpoint.Retention{Last: 1})
	require.NoError(t, err)
	require.Equal(t, []float32{2}, contents(t, second)["loss_scale.skipped"])
	_, log := train(t, cfg, planOf(1, 1, 1), RunOptions{Out: second, Resume: true, Steps: 7})
	require.Contains(t, log, "resuming at iteration 6")
	require.False(t, math.IsNaN(float64(contents(t, second)["wte.weight"][0])))
}
