//go:build !linux && !darwin

package cpu

import (
	"fmt"
	"os"
	goruntime "runtime"
)

func mapFile(*os.File, int) ([]byte, error) {
	return nil, fmt.Errorf("files cannot be mapped into memory on %s in this version", goruntime.GOOS)
}

func unmapFile([]byte) error { return nil }
