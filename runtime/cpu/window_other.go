//go:build !linux

package cpu

import (
	"fmt"
	goruntime "runtime"
	"unsafe"
)

// window is memory that processes share, which is implemented only on Linux. Elsewhere package
// launch treats every process as a machine of its own, and windows are places for copies.
type window struct{ memory []byte }

func arenaWindow(int) int64 { return 1 << 36 }

func newWindow(string, int64) (window, error) {
	return window{}, fmt.Errorf("shared memory is not for %s in this version", goruntime.GOOS)
}

func overlap(int, int) bool { return true }

func openWindow(int, int, int64) (window, error) { return newWindow("", 0) }

// privateWindow is memory of this process alone.
func privateWindow(bytes int64) (window, error) {
	words := make([]float32, bytes/4)
	return window{unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), bytes)}, nil
}

func (w *window) fd() int { return -1 }

func (w *window) resize(int64) error { return nil }

func (w *window) words(n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(w.memory))), n)
}

func (w *window) close() error {
	w.memory = nil
	return nil
}
