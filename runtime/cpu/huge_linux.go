package cpu

import (
	"syscall"
	"unsafe"
)

// hugePage is the size of the larger pages of the common processors.
const hugePage = 2 << 20

// advise asks for huge pages under memory that nothing has been written to: with small ones, products spend their time
// finding pages. Without them all works, so errors do not matter.
func advise(words []float32) {
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(words))) % hugePage / 4)
	if n := (len(words) - skip) &^ (hugePage/4 - 1); n > 0 {
		whole := unsafe.Slice((*byte)(unsafe.Pointer(&words[skip])), 4*n)
		_ = syscall.Madvise(whole, syscall.MADV_HUGEPAGE)
	}
}
