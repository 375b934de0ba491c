//go:build linux || darwin

package cpu

import (
	"os"
	"syscall"
)

func mapFile(f *os.File, bytes int) ([]byte, error) {
	return syscall.Mmap(int(f.Fd()), 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
}

func unmapFile(memory []byte) error { return syscall.Munmap(memory) }
