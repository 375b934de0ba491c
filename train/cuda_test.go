package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/cudatest"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/runtime"
)

// onFake returns a job on fake GPUs.
func onFake(t *testing.T, d *fake.Driver, opts cuda.Options) (*Job, error) {
	system, err := cudatest.NewSystem(d)
	require.NoError(t, err)
	return NewJob(tinyConfig(t, textData(t), "train.always_save_checkpoint=true"), planOf(2, 1, 1), JobOptions{Backend: cuda.New(system, opts)})
}

// TestLostDevice loses the GPUs in the middle of a run: it ends with the rank, step and
// instruction, and what was saved is whole, for a run on the CPU to go on from.
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
			job.Close() // complains of the device

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

// TestTooLittleMemory checks that an arena that does not fit is refused before the run,
// with the numbers.
func TestTooLittleMemory(t *testing.T) {
	d := fake.New(fake.Options{Devices: 2, Memory: 100_000})
	_, err := onFake(t, d, cuda.Options{})
	var short *cuda.MemoryError
	require.ErrorAs(t, err, &short)
	require.Greater(t, short.Needs, short.Free)
	require.EqualValues(t, 100_000, short.Total)
	require.ErrorContains(t, err, "more than is free on GPU 0 (fake device 0)")
	require.Empty(t, d.Leaks())
}
