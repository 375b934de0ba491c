//go:build gorgonia

package cuda

import (
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/driver/gorgonia"
)

func openDriver() (driver.Driver, error) { return gorgonia.Open() }
