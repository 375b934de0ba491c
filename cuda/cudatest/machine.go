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
	return system
}
