package train

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/data"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/partition/partitiontest"
)

// binsOf writes tokens to bins, and returns their directory.
func binsOf(t testing.TB, train, val []uint16) string {
	t.Helper()
	dir := t.TempDir()
	for name, ids := range map[string][]uint16{data.TrainFile: train, data.ValFile: val} {
		bin, err := binary.Append(nil, binary.LittleEndian, ids)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), bin, 0o644))
	}
	return dir
}

// textData prepares a made-up text in which the next letter depends on the one before.
func textData(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	const letters = "abcdefghijklmnopqrstuvwxyz \n"
	text := make([]byte, 6000)
	at := 0
	for i := range text {
		at = (3*at + rng.IntN(3)) % len(letters)
		text[i] = letters[at]
	}
	path := filepath.Join(dir, "input.txt")
	require.NoError(t, os.WriteFile(path, text, 0o644))
	corpus, err := data.FileCorpus(path)
	require.NoError(t, err)
	_, err = data.Prepare(t.Context(), corpus, data.CharEncoding, dir)
	require.NoError(t, err)
	return dir
}

// tinyConfig is a model of odd sizes with dropout. Overrides are section.key=value.
func tinyConfig(t testing.TB, dir string, overrides ...string) *config.Config {
	t.Helper()
	text := fmt.Sprintf(`
model:     {n_layer: 2, n_head: 4, n_embd: 20, block_size: 9, vocab_size: 65, dropout: 0.1, bias: true}
data:      {dataset: text, dir: %q}
batch:     {global: 7}
optimizer: {learning_rate: 1e-2, min_lr: 1e-3, warmup_iters: 3, lr_decay_iters: 30, beta2: 0.99}
train:     {max_iters: 12, eval_interval: 5, eval_iters: 3, log_interval: 1, seed: 1337, always_save_checkpoint: false}
`, dir)
	cfg, err := config.Parse("tiny.yaml", []byte(text), overrides)
	require.NoError(t, err)
	return cfg
}

// planOf cuts a tiny model over dp x tp x pp ranks.
func planOf(dp, tp, pp int) *partition.Plan {
	p := &partition.Plan{
		PlanNGPUs: dp * tp * pp, RuntimeNGPUs: dp * tp * pp, DP: dp, TP: tp, MicroBatch: 2, Schedule: partition.OneFOneB,
		Placements: partitiontest.Megatron(),
	}
	for s := range pp {
		p.Stages = append(p.Stages, partition.Stage{First: 2 * s / pp, Last: 2 * (s + 1) / pp})
	}
	return p
}

func newJob(t testing.TB, cfg *config.Config, plan *partition.Plan) *Job {
	t.Helper()
	j, err := NewJob(cfg, plan, JobOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })
	return j
}

// train runs a job from its beginning, or from what is in opts.Out, and also returns its log.
func train(t *testing.T, cfg *config.Config, plan *partition.Plan, opts RunOptions) (Result, string) {
	t.Helper()
	var log bytes.Buffer
	opts.Log = &log
	if opts.host == nil {
		opts.host = hostWith(1 << 40)
	}
	r, err := newJob(t, cfg, plan).Run(t.Context(), opts)
	require.NoError(t, err)
	return r, log.String()
}

// readMetrics returns the steps and evaluations of a run. It fails if an iteration occurs twice.
func readMetrics(t *testing.T, dir string) (map[int]StepMetrics, map[int]EvalMetrics) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, MetricsFile))
	require.NoError(t, err)
	steps, evals := map[int]StepMetrics{}, map[int]EvalMetrics{}
	for line := range strings.Lines(string(text)) {
		dec := json.NewDecoder(strings.NewReader(line))
		dec.DisallowUnknownFields()
		if strings.Contains(line, "val_loss") {
			var e EvalMetrics
			require.NoError(t, dec.Decode(&e), line)
			require.NotContains(t, evals, e.Iter)
			evals[e.Iter] = e
			continue
		}
		var s StepMetrics
		require.NoError(t, dec.Decode(&s), line)
		require.NotContains(t, steps, s.Iter)
		steps[s.Iter] = s
	}
	return steps, evals
}

// contents returns every tensor of the newest checkpoint of a run, whole.
func contents(t *testing.T, dir string) map[string][]float32 {
	t.Helper()
	c, err := checkpoint.Open(dir)
	require.NoError(t, err)
	defer c.Close()
	all := map[string][]float32{}
	for _, x := range c.Tensors {
		all[x.Name], err = c.Float32s(x.Name)
		require.NoError(t, err)
	}
	return all
}

// cancelAfter returns a context, and the observer that cancels it once n updates are made.
func cancelAfter(ctx context.Context, n int) (context.Context, func(Progress)) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, func(p Progress) {
		if !p.Evaluating && p.Done == n {
			cancel()
		}
	}
}
