//go:build !linux || race

package cpu

import "unsafe"

// arena is memory of the Go heap, so that the race detector sees accesses to it.
type arena struct{ memory []byte }

// grow makes the arena at least bytes long, which is more than it is, and keeps its contents.
func (a *arena) grow(bytes int) error {
	words := make([]float32, (bytes+3)/4+align/4)
	skip := 0
	if off := int(uintptr(unsafe.Pointer(unsafe.SliceData(words))) % align); off != 0 {
		skip = (align - off) / 4
	}
	memory := unsafe.Slice((*byte)(unsafe.Pointer(&words[skip])), (bytes+3)/4*4)
	copy(memory, a.memory)
	a.memory = memory
	return nil
}

func (a *arena) free() error {
	a.memory = nil
	return nil
}
