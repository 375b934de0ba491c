package cuda_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/cudatest"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/backendtest"
)

// onFake opens backends on fake drivers, and checks that nothing is left open.
func onFake(opts cuda.Options) backendtest.Open {
	seed := uint64(0)
	return func(t *testing.T) runtime.Backend {
		seed++
		d := fake.New(fake.Options{Devices: 8, Seed: seed})
		t.Cleanup(func() { require.Empty(t, d.Leaks()) })
		system, err := cudatest.NewSystem(d)
		require.NoError(t, err)
		return cuda.New(system, opts)
	}
}

// The suite of backends, in parts: with all ranks on one GPU, and each on its own.
func TestAlone(t *testing.T)      { backendtest.RunAlone(t, onFake(cuda.Options{})) }
func TestFixedPoint(t *testing.T) { backendtest.RunFixedPoint(t, onFake(cuda.Options{Loopback: true})) }
func TestLoopback(t *testing.T)   { backendtest.RunTogether(t, onFake(cuda.Options{Loopback: true})) }
func TestNCCL(t *testing.T)       { backendtest.RunTogether(t, onFake(cuda.Options{})) }

// TestOpenRefuses checks what is said of GPUs that will not do, and that nothing stays
// open.
func TestOpenRefuses(t *testing.T) {
	for _, tt := range []struct {
		fakes fake.Options
		opts  cuda.Options
		want  string
	}{
		{fake.Options{Devices: 2}, cuda.Options{}, "the plan has 3 ranks, 2 GPUs are visible"},
		{fake.Options{Devices: 2}, cuda.Options{GPUs: []int{0, 2, 1}}, "GPU 2 is asked for, 2 are visible"},
		{fake.Options{Major: 7, Minor: 5}, cuda.Options{Loopback: true}, "GPU 0 (fake device 0) has compute capability 7.5, want at least 8.0"},
		{fake.Options{Memory: 600}, cuda.Options{Loopback: true}, "rank 2 on GPU 0 (fake device 0): cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY"},
	} {
		d := fake.New(tt.fakes)
		system, err := cudatest.NewSystem(d)
		require.NoError(t, err)
		_, err = cuda.New(system, tt.opts).Open(runtime.World{Ranks: 3, Timeout: time.Minute})
		require.ErrorContains(t, err, tt.want)
		require.Empty(t, d.Leaks())
	}
}
