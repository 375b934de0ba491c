package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/launch/launchtest"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// plain does not change the backend of a rank.
func plain(_ int, b runtime.Backend) runtime.Backend { return b }

// trainProcesses trains with a process for each rank, here in one process, on a backend that change
// may wrap. memory has a file for each. It returns the log of rank 0.
func trainProcesses(t *testing.T, cfg *config.Config, plan *partition.Plan, opts RunOptions, memory []*os.File, on func(rank int, b runtime.Backend) runtime.Backend) (string, error) {
	t.Helper()
	if opts.host == nil {
		opts.host = hostWith(1 << 40)
	}
	var log bytes.Buffer
	errs := trainEach(t, plan, on, func(rank int) (*config.Config, RunOptions) {
		mine := opts
		mine.Memory = memory[rank]
		if rank == 0 {
			mine.Log = &log
		}
		return cfg, mine
	})
	return log.String(), errors.Join(errs...)
}

// trainEach is trainProcesses with separate configurations and options. It returns the error of
// each process.
func trainEach(t *testing.T, plan *partition.Plan, on func(rank int, b runtime.Backend) runtime.Backend, given func(rank int) (*config.Config, RunOptions)) []error {
	t.Helper()
	addr, err := launchtest.FreeAddr()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	errs := make([]error, plan.RuntimeNGPUs)
	var all sync.WaitGroup
	for rank := range errs {
		all.Go(func() {
			errs[rank] = func() (err error) {
				peers, err := launch.Join(ctx, launch.Place{Rank: rank, World: len(errs), Addr: addr})
				if err != nil {
					return err
				}
				defer func() {
					if err != nil {
						peers.Fail(err)
					}
					peers.Close()
				}()
				backend, err := cpu.New(cpu.Options{Threads: 1})
				if err != nil {
					return err
				}
				cfg, opts := given(rank)
				job, err := NewJob(cfg, plan, JobOptions{Backend: on(rank, backend), Runtime: runtime.Options{Peers: peers, Timeout: time.Minute}})
				if err != nil {
					return err
				}
				_, err = job.Run(ctx, opts)
				return errors.Join(err, job.Close())
			}()
		})
	}
	all.Wait()
	return errs
}

// TestGoesOnFromMemory: processes that are started in the place of others continue at the step that
// all of those have left in memory, even if the disk has an older checkpoint or none, and end with
// the bits of an undisturbed run. If one of them has left nothing, something else or half of it,
// they continue from disk.
func TestGoesOnFromMemory(t *testing.T) {
	if goruntime.GOOS != "linux" {
		t.Skip("memory outlives a process on Linux alone")
	}
	cfg, plan := tinyConfig(t, textData(t), "train.checkpoint_interval=3"), planOf(2, 2, 1)
	files := func() (all []*os.File) {
		for rank := range plan.RuntimeNGPUs {
			f, err := os.Create(filepath.Join(t.TempDir(), fmt.Sprint(rank)))
			require.NoError(t, err)
			t.Cleanup(func() { f.Close() })
			all = append(all, f)
		}
		return all
	}
	whole := t.TempDir()
	_, err := trainProcesses(t, cfg, plan, RunOptions{Out: whole}, make([]*os.File, 4), plain)
	require.NoError(t, err)
	want, _ := readMetrics(t, whole)

	for name, c := range map[string]struct {
		after  func(out string, memory []*os.File) error // called after 9 updates, of which the disk then has 7
		resume bool
		want   string
	}{
		"older on disk":      {func(string, []*os.File) error { return nil }, true, `resuming at iteration 9 from memory`},
		"nothing on disk":    {func(out string, _ []*os.File) error { return os.RemoveAll(filepath.Join(out, "ckpt")) }, false, `resuming at iteration 9 from memory`},
		"one without memory": {func(_ string, m []*os.File) error { return m[2].Truncate(0) }, true, `resuming at iteration 7 from `},
		"one half copied":    {func(_ string, m []*os.File) error { _, err := m[3].WriteAt([]byte("AUTOPAR0"), 0); return err }, true, `what rank 3 has in memory is not whole: its process ended while it was copied`},
		"newer on disk":      {func(string, []*os.File) error { return nil }, true, `resuming at iteration 10 from `},
		"nothing and no disk": {func(out string, m []*os.File) error {
			return errors.Join(os.RemoveAll(filepath.Join(out, "ckpt")), m[1].Truncate(0))
		}, false, `step 0: `},
	} {
		t.Run(name, func(t *testing.T) {
			out, memory := t.TempDir(), files()
			if name == "newer on disk" {
				_, err := trainProcesses(t, cfg, plan, RunOptions{Out: out, Steps: 9}, memory, plain)
				require.NoError(t, err)
				_, err = trainProcesses(t, cfg, plan, RunOptions{Out: out, Steps: 10, Resume: true}, make([]*os.File, 4), plain)
				require.NoError(t, err)
			} else {
				_, err := trainProcesses(t, cfg, plan, RunOptions{Out: out, Steps: 7}, make([]*os.File, 4), plain)
				require.NoError(t, err)
				other := t.TempDir()
				require.NoError(t, os.CopyFS(other, os.DirFS(out)))
				_, err = trainProcesses(t, cfg, plan, RunOptions{Out: other, Steps: 9, Resume: true}, memory, plain)
				require.NoError(t, err)
			}
			require.NoError(t, c.after(out, memory))
			log, err := trainProcesses(t, cfg, plan, RunOptions{Out: out, Resume: c.resume}, memory, plain)
			require.NoError(t, err)
			require.Contains(t, log, c.want)
			require.Equal(t, contents(t, whole), contents(t, out))
			got, _ := readMetrics(t, out)
			for it := 10; it < 13; it++ {
				require.Equal(t, want[it].Loss, got[it].Loss)
				require.Equal(t, want[it].GradNorm, got[it].GradNorm)
			}
		})
	}
}

// TestMemoryIsWritten: the state that a job continues from is soon on disk, before it saves next.
func TestMemoryIsWritten(t *testing.T) {
	if goruntime.GOOS != "linux" {
		t.Skip("memory outlives a process on Linux alone")
	}
	cfg, out := tinyConfig(t, textData(t)), t.TempDir()
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	require.NoError(t, err)
	defer f.Close()
	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 4, Memory: f})
	want := contents(t, out)
	require.NoError(t, os.RemoveAll(filepath.Join(out, "ckpt")))
	r, log := train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 4, Memory: f})
	require.Contains(t, log, "resuming at iteration 4 from memory")
	require.Contains(t, log, "saving checkpoint to "+r.Checkpoint)
	require.Equal(t, want, contents(t, out))
}

// TestDiskFails: a checkpoint that cannot be written ends the run with the reason, in the
// background too.
func TestDiskFails(t *testing.T) {
	cfg := tinyConfig(t, textData(t), "train.checkpoint_interval=2")
	for _, blocking := range []bool{true, false} {
		out := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(out, "ckpt", "latest.next"), 0o755)) // which is to become a file
		_, err := newJob(t, cfg, planOf(2, 1, 1)).Run(t.Context(), RunOptions{Out: out, Blocking: blocking})
		require.ErrorContains(t, err, "is a directory")
	}
}
