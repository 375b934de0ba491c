package cuda_test

import (
	"testing"

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
