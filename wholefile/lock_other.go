//go:build !linux

package wholefile

import (
	"errors"
	"os"
)

// lock fails. So what a killed process has left stays here, as it cannot be told from a file that
// is being written.
func lock(*os.File) error { return errors.ErrUnsupported }
