package train

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// adapters are overrides that freeze a model and add adapters to some layers.
func adapters(targets string, more ...string) []string {
	return append([]string{"model.lora_rank=3", "model.lora_alpha=12", "model.lora_targets=" + targets, "train.checkpoint_interval=1"}, more...)
}

// evaluated returns the loss of a job with some weights.
func evaluated(t *testing.T, j *Job, from checkpoint.Reader) Losses {
	t.Helper()
	require.NoError(t, j.Init())
	require.NoError(t, j.Load(from, false))
	l, err := j.Evaluate(t.Context(), nil)
	require.NoError(t, err)
	return l
}

func open(t *testing.T, dir string) *checkpoint.Checkpoint {
	t.Helper()
	c, err := checkpoint.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// Training adapters does not change the weights of the model they are added to, to the bit, under
// any plan. A run that stopped continues as if it had not, under another plan too. With its
// adapters merged, the model without adapters computes the same function, also by way of a file in
// HuggingFace's layout.
func TestAdapters(t *testing.T) {
	data, dir := textData(t), t.TempDir()
	base, tuned, again := filepath.Join(dir, "base"), filepath.Join(dir, "tuned"), filepath.Join(dir, "again")
	plain := tinyConfig(t, data, "train.max_iters=9", "train.checkpoint_interval=1")
	train(t, plain, planOf(1, 1, 1), RunOptions{Out: base, Steps: 9})
	before := contents(t, base)

	cfg := tinyConfig(t, data, adapters(".")...)
	whole, log := train(t, cfg, planOf(2, 2, 1), RunOptions{Out: tuned, Steps: 10, InitFrom: base})
	require.Contains(t, log, "all frozen but adapters of rank 3 beside attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj\n")
	require.Contains(t, log, "num decayed parameter tensors: 16, with 1,920 parameters\nnum non-decayed parameter tensors: 0, with 0 parameters\n")
	after := contents(t, tuned)
	moved := 0
	for name, values := range after {
		switch {
		case strings.HasSuffix(name, ".exp_avg") || strings.HasSuffix(name, ".exp_avg_sq"):
			require.Contains(t, name, ".lora.")
		case gpt.IsAdapter(name):
			require.NotContains(t, before, name)
			for _, x := range values {
				if strings.HasSuffix(name, ".b") && x != 0 {
					moved++
				}
			}
		default:
			require.Equal(t, before[name], values, name)
		}
	}
	require.Greater(t, moved, 900, "of B, which begins with zeros")

	other := planOf(1, 1, 2)
	other.Schedule, other.MicroBatch = partition.ZeroBubble, 3
	train(t, cfg, other, RunOptions{Out: again, Steps: 4, InitFrom: base})
	one, _ := train(t, cfg, planOf(1, 1, 1), RunOptions{Out: again, Steps: 10, Resume: true})
	require.InDelta(t, whole.Loss, one.Loss, 1e-5)
	steps, _ := readMetrics(t, tuned)
	resumed, _ := readMetrics(t, again)
	first, _ := train(t, plain, planOf(1, 1, 1), RunOptions{Out: filepath.Join(dir, "more"), Steps: 1, InitFrom: base})
	require.InDelta(t, first.Loss, steps[0].Loss, 1e-6, "they begin with what the model computes")
	for it := range 10 {
		require.InDelta(t, steps[it].Loss, resumed[it].Loss, 1e-5, "iteration %d", it)
	}

	// The adapters' changes.
	with := open(t, tuned)
	was, is := evaluated(t, newJob(t, plain, planOf(1, 1, 1)), open(t, base)), evaluated(t, newJob(t, cfg, planOf(1, 1, 1)), with)
	require.Less(t, is.Val, was.Val-0.01)
	snap, err := WithoutAdapters(with)
	require.NoError(t, err)
	require.Zero(t, snap.Step)
	merged := filepath.Join(dir, "merged")
	_, err = checkpoint.Save(merged, snap, checkpoint.Retention{Last: 1})
	require.NoError(t, err)
	folded := evaluated(t, newJob(t, plain, planOf(2, 2, 1)), open(t, merged))
	require.InDelta(t, is.Val, folded.Val, 1e-6)
	require.InDelta(t, is.Train, folded.Train, 1e-6)
	file := filepath.Join(dir, "model.safetensors")
	require.NoError(t, checkpoint.ExportWeights(file, with, cfg.Model, gpt.GPT2))
	weights, err := checkpoint.OpenWeights(file, plain.Model)
	require.NoError(t, err)
	t.Cleanup(func() { weights.Close() })
	require.Equal(t, folded, evaluated(t, newJob(t, plain, planOf(2, 2, 1)), weights))

	// Text is generated with adapters, token by token or all at once.
	next := func(model gpt.Config, from checkpoint.Reader) []float32 {
		d, err := newDecoder(model, from, model.BlockSize)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		logits, err := d.next(t.Context(), []int32{3, 1, 4, 1, 5})
		require.NoError(t, err)
		return slices.Clone(logits)
	}
	tokens := next(cfg.Model, with)
	require.InDeltaSlice(t, next(plain.Model, open(t, merged)), tokens, 1e-5)
	require.Greater(t, math.Abs(float64(slices.Max(next(plain.Model, open(t, base)))-slices.Max(tokens))), 1e-3)

	// A file has no adapters either, and a checkpoint of another model is refused.
	train(t, cfg, planOf(1, 1, 1), RunOptions{Steps: 1, InitFrom: file})
	_, err = newJob(t, plain, planOf(1, 1, 1)).Run(t.Context(), RunOptions{InitFrom: tuned})
	require.ErrorContains(t, err, "holds another model: its model.lora_rank is 3, not 0; autopar checkpoint merge --adapters makes its adapters part of its weights")
	_, err = newJob(t, tinyConfig(t, data, adapters("mlp")...), planOf(1, 1, 1)).Run(t.Context(), RunOptions{InitFrom: tuned})
	require.ErrorContains(t, err, "its model.lora_targets is attn.c_attn attn.c_proj mlp.c_fc mlp.c_proj, not mlp.c_fc mlp.c_proj")
	_, err = newJob(t, cfg, planOf(1, 1, 1)).Run(t.Context(), RunOptions{Out: base, Resume: true})
	require.ErrorContains(t, err, "its model.lora_rank is 0, not 3")
	_, err = WithoutAdapters(open(t, base))
	require.ErrorContains(t, err, "has none: its model.lora_rank is 0")
}

// With grouped queries the result of attention has one more dimension, over which adapters of its
// projection sum too.
func TestAdaptersOfGroupedQueries(t *testing.T) {
	data, dir := textData(t), t.TempDir()
	grouped := []string{"model.n_head=4", "model.n_kv_head=2", "model.n_embd=24"}
	cfg, plain := tinyConfig(t, data, adapters("c_proj", grouped...)...), tinyConfig(t, data, grouped...)
	plan := planOf(1, 1, 2)
	plan.Placements = nil
	train(t, cfg, plan, RunOptions{Out: dir, Steps: 3})
	with := open(t, dir)
	is := evaluated(t, newJob(t, cfg, plan), with)
	require.NotEqual(t, is, evaluated(t, newJob(t, plain, plan), with), "something was learned")
	folded := evaluated(t, newJob(t, plain, plan), checkpoint.Folded(with, cfg.Model))
	require.InDelta(t, is.Val, folded.Val, 1e-6)
	require.InDelta(t, is.Train, folded.Train, 1e-6)
}

// With two-byte types a frozen weight has no master copy. Adapters have, and are merged from it.
func TestAdaptersOfTwoBytes(t *testing.T) {
	data, dir := textData(t), t.TempDir()
	cfg := tinyConfig(t, data, adapters("c_proj", "train.dtype=bfloat16")...)
	_, log := train(t, cfg, planOf(1, 2, 1), RunOptions{Out: dir, Steps: 3})
	require.Contains(t, log, "the frozen weights are random: --init-from names trained ones\n")
	with := open(t, dir)
	for _, x := range with.Tensors {
		require.Equal(t, strings.Contains(x.Name, ".lora."), strings.Contains(x.Name, ".exp_avg") || strings.HasSuffix(x.Name, ".master") || gpt.IsAdapter(x.Name), x.Name)
	}
	snap, err := WithoutAdapters(with)
	require.NoError(t, err)
	for _, x := range snap.Shards {
		require.False(t, gpt.IsAdapter(x.Name))
	}

	imported, err := Initial(cfg, checkpoint.Folded(with, cfg.Model))
	require.NoError(t, err)
	_, err = checkpoint.Save(filepath.Join(dir, "imported"), imported, checkpoint.Retention{Last: 1})
	require.NoError(t, err, "adapters begin anew")
	for name, values := range contents(t, filepath.Join(dir, "imported")) {
		if strings.HasSuffix(name, "lora.b") || strings.HasSuffix(name, "lora.b.master") {
			require.Equal(t, make([]float32, len(values)), values, name)
		}
	}
}
