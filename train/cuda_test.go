package train

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/cudatest"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/launch/launchtest"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// onFake returns a job on fake GPUs.
func onFake(t *testing.T, d *fake.Driver, opts cuda.Options) (*Job, error) {
	system, err := cudatest.NewSystem(d)
	require.NoError(t, err)
	return NewJob(tinyConfig(t, textData(t), "train.always_save_checkpoint=true"), planOf(2, 1, 1), JobOptions{Backend: cuda.New(system, opts)})
}

// TestLostDevice loses the GPUs in the middle of a run. The run must end with the rank, step and
// instruction, and what was saved must be complete, for a run on the CPU to continue from.
func TestLostDevice(t *testing.T) {
	for name, opts := range map[string]cuda.Options{"loopback": {Loopback: true}, "graphs": {}} {
		t.Run(name, func(t *testing.T) {
			whole := fake.New(fake.Options{Devices: 2})
			job, err := onFake(t, whole, opts)
			require.NoError(t, err)
			want, err := job.Run(t.Context(), RunOptions{Out: t.TempDir()})
			require.NoError(t, err)
			require.NoError(t, job.Close())
			all, _ := whole.Ran()

			out := t.TempDir()
			job, err = onFake(t, fake.New(fake.Options{Devices: 2, LoseAfter: all * 3 / 4}), opts)
			require.NoError(t, err)
			_, err = job.Run(t.Context(), RunOptions{Out: out})
			var step *runtime.StepError
			require.ErrorAs(t, err, &step)
			require.ErrorContains(t, err, "the device is lost")
			require.Regexp(t, `rank [01], step \d+, `, err.Error())
			job.Close() // the device fails to close

			saved, err := checkpoint.Open(out)
			require.NoError(t, err)
			require.Positive(t, saved.Step)
			require.NoError(t, saved.Close())
			cfg := tinyConfig(t, textData(t), "train.always_save_checkpoint=true")
			got, _ := train(t, cfg, planOf(2, 1, 1), RunOptions{Out: out, Resume: true})
			require.Equal(t, want.Steps, got.Steps)
			require.InDelta(t, want.Loss, got.Loss, 1e-5)
		})
	}
}

// watched is a backend that records in which order steps are begun and read.
type watched struct {
	*cuda.Backend
	order []string // of rank 0
}

type watchedDevice struct {
	*cuda.Device
	order *[]string
}

func (b *watched) Open(world runtime.World) ([]runtime.Device, error) {
	devices, err := b.Backend.Open(world)
	if err == nil {
		devices[0] = &watchedDevice{devices[0].(*cuda.Device), &b.order}
	}
	return devices, err
}

func (d *watchedDevice) End(words []int64) error {
	*d.order = append(*d.order, "told")
	return d.Device.End(words)
}

func (d *watchedDevice) Last(dst []byte) error {
	*d.order = append(*d.order, "read")
	return d.Device.Last(dst)
}

// TestLossesAreReadLate: on GPUs an update begins before the loss of the previous one is read,
// except at evaluations, checkpoints and the end. Log and checkpoints must be those of a run on the
// CPU.
func TestLossesAreReadLate(t *testing.T) {
	settings := []string{"train.eval_interval=5", "train.checkpoint_interval=3", "train.max_iters=11", "train.always_save_checkpoint=true"}
	lines := func(out string) (all []string) {
		data, err := os.ReadFile(filepath.Join(out, MetricsFile))
		require.NoError(t, err)
		for line := range strings.Lines(string(data)) {
			all = append(all, line)
		}
		return all
	}
	wantOut := t.TempDir()
	cfg := tinyConfig(t, textData(t), settings...)
	want, wantLog := train(t, cfg, planOf(2, 1, 1), RunOptions{Out: wantOut, Blocking: true}) // blocking, so that the log does not depend on the disk

	for name, opts := range map[string]cuda.Options{"loopback": {Loopback: true}, "graphs": {}} {
		t.Run(name, func(t *testing.T) {
			gotOut := t.TempDir()
			d := fake.New(fake.Options{Devices: 2})
			system, err := cudatest.NewSystem(d)
			require.NoError(t, err)
			var notes []string
			opts.Note = func(text string) { notes = append(notes, text) }
			b := &watched{Backend: cuda.New(system, opts)}
			job, err := NewJob(cfg, planOf(2, 1, 1), JobOptions{Backend: b})
			require.NoError(t, err)
			var log strings.Builder
			got, err := job.Run(t.Context(), RunOptions{Out: gotOut, Log: &log, Blocking: true})
			require.NoError(t, err)
			require.NoError(t, job.Close())
			require.Equal(t, want.Steps, got.Steps)
			require.InDelta(t, want.Loss, got.Loss, 1e-5)
			require.InDelta(t, want.BestVal, got.BestVal, 1e-5)
			require.Equal(t, wordsOf(wantLog), wordsOf(strings.ReplaceAll(log.String(), gotOut, wantOut)))

			compare := lines(wantOut)
			for i, line := range lines(gotOut) {
				var a, b struct {
					Iter      int
					Loss      float64
					TrainLoss float64 `json:"train_loss"`
				}
				require.NoError(t, json.Unmarshal([]byte(compare[i]), &a))
				require.NoError(t, json.Unmarshal([]byte(line), &b))
				require.Equal(t, a.Iter, b.Iter)
				require.InDelta(t, a.Loss, b.Loss, 1e-5)
				require.InDelta(t, a.TrainLoss, b.TrainLoss, 1e-5)
			}
			late := 0
			for i := range len(b.order) - 2 {
				if b.order[i] == "told" && b.order[i+1] == "told" && b.order[i+2] == "read" {
					late++
				}
			}
			require.GreaterOrEqual(t, late, 4, "%v", b.order)
			require.NotContains(t, strings.Join(b.order, " "), "told told told")
			if opts.Loopback {
				require.Equal(t, []string{"steps are not replayed as CUDA graphs: ranks that share a GPU wait for each other on the host"}, notes)
			} else {
				require.Empty(t, notes)
			}
		})
	}
}

// wordsOf drops the figures of a log, which depend on the time.
func wordsOf(log string) string {
	return regexp.MustCompile(`-?[0-9][0-9.e+-]*`).ReplaceAllString(log, "N")
}

// TestProcessesOnGPUs trains with a process for each rank and GPU, which exchange NCCL's IDs by
// TCP, and join all groups in one order. Losses and checkpoints must be those of the same plan in one process.
func TestProcessesOnGPUs(t *testing.T) {
	cfg := tinyConfig(t, textData(t), "train.eval_interval=4", "train.max_iters=7")
	processes := func(plan *partition.Plan, out string) (d *fake.Driver, results []Result, errs []error) {
		addr, err := launchtest.FreeAddr()
		require.NoError(t, err)
		d = fake.New(fake.Options{Devices: plan.RuntimeNGPUs, Seed: 3})
		results, errs = make([]Result, plan.RuntimeNGPUs), make([]error, plan.RuntimeNGPUs)
		var all sync.WaitGroup
		for rank := range plan.RuntimeNGPUs {
			all.Go(func() {
				errs[rank] = func() error {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
					defer cancel()
					peers, err := launch.Join(ctx, launch.Place{Rank: rank, World: plan.RuntimeNGPUs, Addr: addr})
					if err != nil {
						return err
					}
					defer peers.Close()
					system, err := cudatest.NewSystem(d)
					if err != nil {
						return err
					}
					system.Together = false // as on a machine; each process has one GPU
					job, err := NewJob(cfg, plan, JobOptions{
						Backend: cuda.New(system, cuda.Options{GPUs: []int{rank}}), Runtime: runtime.Options{Timeout: time.Minute, Peers: peers},
					})
					if err != nil {
						return err
					}
					defer job.Close()
					results[rank], err = job.Run(ctx, RunOptions{Out: out})
					return err
				}()
			})
		}
		all.Wait()
		return d, results, errs
	}
	gpipe, bubble := planOf(2, 1, 2), planOf(1, 2, 2)
	gpipe.Schedule, bubble.Schedule = partition.GPipe, partition.ZeroBubble
	for name, plan := range map[string]*partition.Plan{"dp x tp": planOf(2, 2, 1), "tp": planOf(1, 2, 1), "pp": planOf(1, 1, 2), "dp x pp": gpipe, "tp x pp": bubble} {
		t.Run(name, func(t *testing.T) {
			out := t.TempDir()
			want, _ := train(t, cfg, plan, RunOptions{})
			d, got, errs := processes(plan, out)
			for rank := range errs {
				require.NoError(t, errs[rank])
				require.Equal(t, want.Steps, got[rank].Steps)
				require.InDelta(t, want.Loss, got[rank].Loss, 1e-5)
				require.InDelta(t, want.Last.Val, got[rank].Last.Val, 1e-5)
				require.Equal(t, got[0].Loss, got[rank].Loss)
			}
			_, graphs := d.Ran()
			require.Positive(t, graphs)
			require.NoError(t, d.JoinedInOrder())
			saved, err := checkpoint.Open(out)
			require.NoError(t, err)
			require.Equal(t, want.Steps, saved.Step)
			require.NoError(t, saved.Close())
		})
	}
}

// TestTooLittleMemory checks that an arena that does not fit is refused before the run, with the
// numbers.
func TestTooLittleMemory(t *testing.T) {
	d := fake.New(fake.Options{Devices: 2, Memory: 100_000})
	_, err := onFake(t, d, cuda.Options{})
	var short *cuda.MemoryError
	require.ErrorAs(t, err, &short)
	require.Greater(t, short.Needs, short.Free)
	require.EqualValues(t, 100_000, short.Total)
	require.Regexp(t, `^runtime: rank 0: cuda: \S+ GiB are needed, \S+ GiB more than is free on GPU 0 \(fake device 0\)`, err.Error())
	require.Empty(t, d.Leaks())
}
