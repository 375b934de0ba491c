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

// TestConformance runs the suite of backends on the fake driver, and checks that nothing
// is left open.
func TestConformance(t *testing.T) {
	seed := uint64(0)
	backendtest.Run(t, func(t *testing.T) runtime.Backend {
		seed++
		d := fake.New(fake.Options{Seed: seed})
		t.Cleanup(func() { require.Empty(t, d.Leaks()) })
		system, err := cudatest.NewSystem(d)
		require.NoError(t, err)
		return cuda.New(system, cuda.Options{Loopback: true})
	})
}
