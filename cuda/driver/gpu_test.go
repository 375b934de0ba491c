package driver_test

import (
	"os"
	"testing"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/driver/drivertest"
)

// TestGPUDriver runs the suite of drivers on this machine's.
func TestGPUDriver(t *testing.T) {
	d, err := driver.Open()
	if err != nil && os.Getenv("AUTOPAR_TEST_CUDA") != "" {
		t.Fatal("AUTOPAR_TEST_CUDA is set: ", err)
	}
	if err != nil {
		t.Skip(err)
	}
	drivertest.Run(t, d)
}
