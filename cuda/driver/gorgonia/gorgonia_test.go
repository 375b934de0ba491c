//go:build gorgonia

package gorgonia_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/driver/drivertest"
	"github.com/autopar/autopar/cuda/driver/gorgonia"
)

// TestGPUDriver runs the suite of drivers. Without a GPU the process ends before it.
func TestGPUDriver(t *testing.T) {
	d, err := gorgonia.Open()
	require.NoError(t, err)
	drivertest.Run(t, d)
}
