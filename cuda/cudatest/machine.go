package cudatest

import (
	"os"
	"testing"

	"github.com/autopar/autopar/cuda"
)

// Machine opens this machine's GPUs, or skips the test; with AUTOPAR_TEST_CUDA set it
// fails instead (make test-cuda).
func Machine(t *testing.T) *cuda.System {
	t.Helper()
	system, err := cuda.Machine(cuda.MachineOptions{CacheDir: os.Getenv("AUTOPAR_TEST_CACHE")})
	if err != nil && os.Getenv("AUTOPAR_TEST_CUDA") != "" {
		t.Fatal("AUTOPAR_TEST_CUDA is set: ", err)
	}
	if err != nil {
		t.Skip(err)
	}
	// A backend releases its use of the GPU's context when it closes. Where it is the only one, the context is destroyed, and each
	// of the hundreds of backends of a suite would make it anew.
	if _, err := system.Driver.RetainPrimary(0); err == nil {
		t.Cleanup(func() { _ = system.Driver.ReleasePrimary(0) })
	}
	return system
}
