//go:build !linux

package checkpoint

import (
	"fmt"
	"os"
	goruntime "runtime"
)

func mapMemory(file *os.File, bytes int64) ([]byte, error) {
	if file != nil {
		return nil, fmt.Errorf("memory that outlives a process cannot be mapped on %s in this version", goruntime.GOOS)
	}
	return make([]byte, bytes), nil
}

func unmapMemory([]byte) error { return nil }
