//go:build !gorgonia

package cuda

import "github.com/autopar/autopar/cuda/driver"

func openDriver() (driver.Driver, error) { return driver.Open() }
