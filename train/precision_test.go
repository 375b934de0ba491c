package train

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
)

// TestResumeInHalfPrecision: a run that stops and continues has the same bits, in every precision.
// Master weights, moments in their own type and the loss scaler are saved. Another plan can
// continue from the same checkpoint.
func TestResumeInHalfPrecision(t *testing.T) {
	dir := textData(t)
	for name, c := range map[string]struct {
		overrides []string
		types     map[string]string
	}{
		"bf16": {[]string{"train.dtype=bf16"}, map[string]string{"wte.weight": "bf16", "wte.weight.master": "f32", "wte.weight.exp_avg": "f32"}},
		"all bf16": {[]string{"train.dtype=bf16", "train.master_weights=false"},
			map[string]string{"wte.weight": "bf16", "wte.weight.exp_avg": "bf16", "ln_f.bias.exp_avg_sq": "bf16"}},
		"f16": {[]string{"train.dtype=fp16"}, map[string]string{"wte.weight": "f16", "wte.weight.master": "f32", "loss_scale": "f32", "loss_scale.skipped": "f32"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := tinyConfig(t, dir, c.overrides...)
			plan := planOf(2, 1, 2)
			plan.ZeRO = 1
			whole, parts := t.TempDir(), t.TempDir()
			_, log := train(t, cfg, plan, RunOptions{Out: whole})
			train(t, cfg, plan, RunOptions{Out: parts, Steps: 5})
			train(t, cfg, plan, RunOptions{Out: parts, Resume: true})
			steps, _ := readMetrics(t, whole)
			again, _ := readMetrics(t, parts)
			require.Equal(t, deterministic(steps), deterministic(again))
			require.Equal(t, contents(t, whole), contents(t, parts))
			require.Less(t, steps[12].Loss, steps[0].Loss-0.2, "it learns")

			ck, err := checkpoint.Open(whole)
			require.NoError(t, err)
			defer ck.Close()
			got := map[string]string{}
			for _, x := range ck.Tensors {
				if c.types[x.Name] != "" {
					got[x.Name] = x.DType
				}
			}
			require.Equal(t, c.types, got)
			if name == "f16" {
				require.Regexp(t, `(?m)^iter 3: .*, grad_norm \S+, loss_scale \d+, skipped \d+$`, log)
				require.Positive(t, steps[12].LossScale)
			} else {
				require.NotContains(t, log, "loss_scale")
				require.Zero(t, steps[12].LossScale)
			}

			train(t, cfg, planOf(1, 2, 1), RunOptions{Out: parts, Steps: 15, Resume: true})
		})
	}
}

// TestOtherPrecision: a run does not continue in another precision, but a new run can start from
// its weights: in float32 from the master weights, which sampling and export use too.
func TestOtherPrecision(t *testing.T) {
	dir := textData(t)
	cfg := tinyConfig(t, dir, "train.dtype=bf16")
	out := t.TempDir()
	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 6})

	for set, want := range map[string]string{
		"train.dtype=fp32":           `tensor "wte.weight": is bf16, but the run wants f32: go on with the train.dtype it was saved in, or start a new run from its weights`,
		"train.dtype=fp16":           `tensor "wte.weight": is bf16, but the run wants f16`,
		"train.master_weights=false": `is f32, but the run wants bf16`,
	} {
		other := tinyConfig(t, dir, "train.dtype=bf16", set)
		_, err := newJob(t, other, planOf(1, 1, 1)).Run(t.Context(), RunOptions{Out: out, Resume: true, Log: io.Discard})
		require.ErrorContains(t, err, want)
		_, err = newJob(t, other, planOf(1, 1, 1)).Run(t.Context(), RunOptions{InitFrom: out, Steps: 2, Log: io.Discard})
		require.NoError(t, err, "%s from weights", set)
	}

	ck, err := checkpoint.Open(out)
	require.NoError(t, err)
	defer ck.Close()
	master, err := ck.Float32s("wte.weight.master")
	require.NoError(t, err)
	weights, err := ck.Float32s("wte.weight")
	require.NoError(t, err)
	require.Equal(t, master, weights, "full precision where it is there")
	raw := make([]byte, 2*len(weights))
	require.NoError(t, ck.Read("wte.weight", ir.BF16, ir.Whole([]int{65, 20}), raw))
	for i := range weights {
		require.Equal(t, float32(ir.BF16.Round(float64(master[i]))), ir.BF16.Read(raw[2*i:]))
	}
	file := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, checkpoint.ExportWeights(file, ck, cfg.Model, gpt.NanoGPT))
	for _, from := range []string{out, file} {
		var text bytes.Buffer
		require.NoError(t, Sample(t.Context(), SampleOptions{From: from, Start: "ab", NumSamples: 1, MaxNewTokens: 12, Temperature: 1, DataDir: dir}, &text))
		require.Greater(t, text.Len(), 12)
	}

	f16 := tinyConfig(t, dir, "train.dtype=fp16")
	from, err := checkpoint.OpenWeights(file, cfg.Model)
	require.NoError(t, err)
	defer from.Close()
	snap, err := Initial(f16, from)
	require.NoError(t, err)
	fresh := t.TempDir()
	_, err = checkpoint.Save(fresh, snap, checkpoint.Retention{})
	require.NoError(t, err)
	begun := contents(t, fresh)
	require.Equal(t, master, begun["wte.weight.master"])
	require.Equal(t, []float32{65536}, begun["loss_scale"])
	train(t, f16, planOf(1, 1, 1), RunOptions{Out: fresh, Steps: 2, Resume: true})
}
