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

// TestConformance runs the suite of backends on the fake driver, with all ranks on one
// GPU and each on its own, and checks that nothing is left open.
func TestConformance(t *testing.T) {
	for name, opts := range map[string]cuda.Options{
		"loopback": {Loopback: true},
		"NCCL":     {},
	} {
		t.Run(name, func(t *testing.T) {
			seed := uint64(0)
			run := backendtest.Run
			if !opts.Loopback {
				run = backendtest.RunFloat
			}
			run(t, func(t *testing.T) runtime.Backend {
				seed++
				d := fake.New(fake.Options{Devices: 8, Seed: seed})
				t.Cleanup(func() { require.Empty(t, d.Leaks()) })
				system, err := cudatest.NewSystem(d)
				require.NoError(t, err)
				return cuda.New(system, opts)
			})
		})
	}
}
