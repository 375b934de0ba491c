package cuda

import (
	"errors"
	"time"

	"github.com/autopar/autopar/runtime"
)

func (l *lane) byNCCL(c *runtime.Collective) error { return errors.New("cuda: TODO") }

func (d *Device) hangs(waited time.Duration) error { return nil }
