package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
)

// TestOffload: a run keeps everything on the device, continues from its checkpoint with the
// optimizer state in host memory, and then with the parameters there too, and all of it in files.
// It must have the bits of a run without offload: losses, evaluations, weights, moments. The files
// are this job's alone, and nothing is left of them.
func TestOffload(t *testing.T) {
	cfg := tinyConfig(t, textData(t))
	plan := func(what partition.Offload) *partition.Plan {
		p := planOf(2, 1, 2)
		p.ZeRO, p.Offload = 3, what
		return p
	}
	whole, parts, files := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "host")
	want, _ := train(t, cfg, plan(partition.OffloadNone), RunOptions{Out: whole})
	train(t, cfg, plan(partition.OffloadNone), RunOptions{Out: parts, Steps: 4})
	train(t, cfg, plan(partition.OffloadOptimizer), RunOptions{Out: parts, Steps: 9, Resume: true})

	j, err := NewJob(cfg, plan(partition.OffloadParams), JobOptions{HostDir: files})
	require.NoError(t, err)
	require.Equal(t, j.Train.Stages[0].Host, j.Eval.Stages[0].Host, "evaluation reads the parameters where training has them")
	for r := range j.Plan.RuntimeNGPUs {
		stage, _ := j.Plan.StageDevice(r)
		if maps, err := os.ReadFile("/proc/self/maps"); err == nil {
			const page = 4096
			var from, to int64
			at := regexp.MustCompile(fmt.Sprintf(`(?m)^\w+-\w+ .*%s/rank-%d\.`, regexp.QuoteMeta(files), r)).Find(maps)
			_, err := fmt.Sscanf(string(at), "%x-%x ", &from, &to)
			require.NoError(t, err)
			require.Equal(t, (j.Train.Stages[stage].Host+page-1)/page*page, to-from, "rank %d", r)
		}
	}
	began := false
	other := func(Progress) { // another job with the same directory
		if began {
			return
		}
		began = true
		j, err := NewJob(cfg, plan(partition.OffloadParams), JobOptions{HostDir: files})
		require.NoError(t, err)
		require.NoError(t, errors.Join(j.Init(), j.Close()))
	}
	got, err := j.Run(t.Context(), RunOptions{Out: parts, Resume: true, Progress: other})
	require.NoError(t, err)
	require.NoError(t, j.Close())
	left, err := os.ReadDir(files)
	require.NoError(t, err)
	require.Empty(t, left)

	require.Equal(t, want.Loss, got.Loss)
	_, evals := readMetrics(t, whole)
	_, gotEvals := readMetrics(t, parts)
	require.Equal(t, evals, gotEvals)
	require.Equal(t, contents(t, whole), contents(t, parts))
}
