package train

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// TestProcessesTrainAlike: processes that were given different plans or flags train nothing, and
// all say what differs. Otherwise each replica would train in its own way.
func TestProcessesTrainAlike(t *testing.T) {
	dir, out := textData(t), t.TempDir()
	plan := planOf(3, 1, 1)
	train(t, tinyConfig(t, dir), plan, RunOptions{Out: out, Steps: 2})
	short := t.TempDir()
	require.NoError(t, os.CopyFS(short, os.DirFS(dir)))
	require.NoError(t, os.Truncate(filepath.Join(short, "val.bin"), 400))
	other := t.TempDir() // as long, with other tokens
	require.NoError(t, os.CopyFS(other, os.DirFS(dir)))
	bin, err := os.ReadFile(filepath.Join(dir, "train.bin"))
	require.NoError(t, err)
	for i := 0; i < len(bin); i += 2 {
		bin[i] = (bin[i] + 1) % 27
	}
	require.NoError(t, os.WriteFile(filepath.Join(other, "train.bin"), bin, 0o644))
	for name, c := range map[string]struct {
		set  string
		opts RunOptions
		want string
	}{
		"rate":    {"optimizer.learning_rate=0.5", RunOptions{}, "rank 2: has learning_rate: 0.5, rank 0 has learning_rate: "},
		"seed":    {"train.seed=4", RunOptions{}, "rank 2: has seed: 4, rank 0 has seed: "},
		"steps":   {"", RunOptions{Steps: 3}, "rank 2: has steps: 3, rank 0 has steps: 4: all processes need the same plan, flags and data"},
		"weights": {"", RunOptions{Steps: 4, InitFrom: out}, "rank 2: has scratch: false, rank 0 has scratch: true"},
		"data":    {"data.dir=" + short, RunOptions{Steps: 4}, "rank 2: has val.bin: 200 tokens, CRC-32 "},
		"tokens":  {"data.dir=" + other, RunOptions{Steps: 4}, "rank 2: has train.bin: "},
		"a graph": {"optimizer.weight_decay=0.25", RunOptions{Steps: 4}, "runtime: rank 2 has another program train than rank 0"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := trainEach(t, plan, plain, func(rank int) (*config.Config, RunOptions) {
				if rank != 2 {
					return tinyConfig(t, dir), RunOptions{Steps: 4}
				}
				sets := []string{}
				if c.set != "" {
					sets = append(sets, c.set)
				}
				return tinyConfig(t, dir, sets...), c.opts
			})
			for _, err := range errs {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}

// otherArithmetic is a backend of a machine with other instructions.
type otherArithmetic struct{ runtime.Backend }

func (otherArithmetic) Arithmetic() string { return "abacus on wood" }

// TestProcessesRoundAlike: if a machine has other instructions than rank 0's, nothing is trained,
// and all say what to do.
func TestProcessesRoundAlike(t *testing.T) {
	on := func(rank int, b runtime.Backend) runtime.Backend {
		if rank == 1 {
			return otherArithmetic{b}
		}
		return b
	}
	cfg := tinyConfig(t, textData(t))
	for _, err := range trainEach(t, planOf(2, 1, 1), on, func(int) (*config.Config, RunOptions) { return cfg, RunOptions{Steps: 2} }) {
		var input *InputError
		require.ErrorAs(t, err, &input)
		require.ErrorContains(t, err, "rank 1: computes with kernels for abacus on wood, rank 0 for "+kernel.Arithmetic()+", which round differently")
	}
}

// TestProcessesBeginAlike: processes that would begin or continue with different weights do not,
// even if these come from files of the same names and sizes.
func TestProcessesBeginAlike(t *testing.T) {
	dir, plan := textData(t), planOf(2, 1, 1)
	cfg := tinyConfig(t, dir)
	var runs, files [2]string
	for i := range runs {
		runs[i], files[i] = t.TempDir(), filepath.Join(t.TempDir(), "model.safetensors")
		train(t, tinyConfig(t, dir, fmt.Sprint("train.seed=", i)), plan, RunOptions{Out: runs[i], Steps: 2})
		c, err := checkpoint.Open(runs[i])
		require.NoError(t, err)
		require.NoError(t, checkpoint.ExportWeights(files[i], c, cfg.Model, gpt.NanoGPT))
		require.NoError(t, c.Close())
	}
	for what, opts := range map[string]func(rank int) RunOptions{
		"init-from": func(rank int) RunOptions { return RunOptions{Steps: 4, InitFrom: runs[rank]} },
		"file":      func(rank int) RunOptions { return RunOptions{Steps: 4, InitFrom: files[rank]} },
		"resume":    func(rank int) RunOptions { return RunOptions{Steps: 4, Out: runs[rank], Resume: true} },
	} {
		t.Run(what, func(t *testing.T) {
			for _, err := range trainEach(t, plan, plain, func(rank int) (*config.Config, RunOptions) { return cfg, opts(rank) }) {
				require.ErrorContains(t, err, "rank 1: reads other weights than rank 0")
			}
		})
	}
}

// TestProcessesResumeAlike: processes that find different checkpoints in what should be one
// directory do not continue.
func TestProcessesResumeAlike(t *testing.T) {
	cfg, plan := tinyConfig(t, textData(t)), planOf(2, 1, 1)
	older, newer := t.TempDir(), t.TempDir()
	train(t, cfg, plan, RunOptions{Out: older, Steps: 2})
	train(t, cfg, plan, RunOptions{Out: newer, Steps: 3})
	for _, err := range trainEach(t, plan, plain, func(rank int) (*config.Config, RunOptions) {
		return cfg, RunOptions{Out: []string{newer, older}[rank], Steps: 4, Resume: true}
	}) {
		require.ErrorContains(t, err, "the newest checkpoint that rank 1 finds is of step 2, that of rank 0 of step 3 (-1 is none): all processes need one output directory")
	}
}

// TestProcessesSaveTogether: processes that would save in different directories train nothing. The first checkpoint would lack what
// ranks elsewhere have.
func TestProcessesSaveTogether(t *testing.T) {
	cfg, plan, outs := tinyConfig(t, textData(t)), planOf(2, 1, 1), [2]string{t.TempDir(), t.TempDir()}
	for _, err := range trainEach(t, plan, plain, func(rank int) (*config.Config, RunOptions) {
		return cfg, RunOptions{Out: outs[rank], Steps: 2}
	}) {
		var input *InputError
		require.ErrorAs(t, err, &input)
		require.ErrorContains(t, err, fmt.Sprintf("rank 1: does not find in %q what rank 0 has just written where it saves: all processes need one output directory", outs[1]))
	}
	left, err := filepath.Glob(filepath.Join(outs[0], ".seen*"))
	require.NoError(t, err)
	require.Empty(t, left)
}
