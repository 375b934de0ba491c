package train

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestResumeKnowsItsData: a run does not continue with data that was replaced in place. With data
// in another directory it does, and says so, and has no best validation loss yet. The same data
// elsewhere is the same, under any plan. A checkpoint that does not say what data it had can be
// resumed.
func TestResumeKnowsItsData(t *testing.T) {
	dir, out := textData(t), t.TempDir()
	done, _ := train(t, tinyConfig(t, dir), planOf(1, 1, 1), RunOptions{Out: out, Steps: 6})
	resume := func(data string, steps, ranks int) (Result, string) {
		return train(t, tinyConfig(t, data), planOf(ranks, 1, 1), RunOptions{Out: out, Steps: steps, Resume: true})
	}
	moved := t.TempDir()
	require.NoError(t, os.CopyFS(moved, os.DirFS(dir)))
	r, log := resume(moved, 7, 2)
	require.NotContains(t, log, "changed since")
	require.Equal(t, done.BestVal, r.BestVal)
	_, log = resume(dir, 8, 1)
	require.NotContains(t, log, "changed since")

	replace := func(dir, name string) {
		bin, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		bin[len(bin)-2] = (bin[len(bin)-2] + 1) % 27
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), bin, 0o644))
	}
	replace(dir, "val.bin")
	job, err := NewJob(tinyConfig(t, dir), planOf(1, 1, 1), JobOptions{})
	require.NoError(t, err)
	defer job.Close()
	_, err = job.Run(t.Context(), RunOptions{Out: out, Steps: 9, Resume: true})
	require.ErrorAs(t, err, new(*InputError))
	require.ErrorContains(t, err, filepath.Join(dir, "val.bin")+" has other data than the run of "+out)

	require.NoError(t, os.Rename(filepath.Join(dir, "val.bin"), filepath.Join(moved, "val.bin")))
	r, log = resume(moved, 9, 1)
	require.Contains(t, log, "changed since: val.bin was ")
	require.NotContains(t, log, "changed since: train.bin")
	require.Greater(t, r.BestVal, done.BestVal, "of no evaluation of this data yet")

	replace(moved, "train.bin")
	manifest := filepath.Join(r.Checkpoint, "manifest.json")
	text, err := os.ReadFile(manifest)
	require.NoError(t, err)
	var m map[string]any
	require.NoError(t, json.Unmarshal(text, &m))
	require.Contains(t, m, "data")
	delete(m, "data")
	text, err = json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(manifest, text, 0o644))
	r, _ = resume(moved, 10, 1)
	require.Equal(t, 10, r.Steps)
}

// TestResumeKeepsItsBest: the best validation loss, and the checkpoint that it is of, outlive a change of the batches of an
// evaluation, and the log says so.
func TestResumeKeepsItsBest(t *testing.T) {
	data := textData(t)
	for change, says := range map[string]bool{"train.eval_iters=5": true, "train.seed=5": true, "batch.global=5": true, "model.block_size=12": true, "optimizer.weight_decay=0.2": false} {
		t.Run(change, func(t *testing.T) {
			out := t.TempDir()
			done, _ := train(t, tinyConfig(t, data, "model.n_head=2", "model.position=rope"), planOf(1, 1, 1), RunOptions{Out: out, Steps: 7})
			worse := tinyConfig(t, data, "model.n_head=2", "model.position=rope", "optimizer.decay_lr=false", "optimizer.learning_rate=0.5", change)
			r, log := train(t, worse, planOf(1, 1, 1), RunOptions{Out: out, Steps: 12, Resume: true})
			require.Greater(t, r.Last.Val, done.BestVal)
			require.Equal(t, done.BestVal, r.BestVal)
			require.DirExists(t, filepath.Join(out, "ckpt", "step-00000005"))
			text := fmt.Sprintf("the best validation loss stays %.4f, of step 5, on other batches of the same data\n", done.BestVal)
			require.Equal(t, says, strings.Contains(log, text), log)
		})
	}
}
