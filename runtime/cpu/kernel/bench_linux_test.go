package kernel

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arena returns room for n float32 in huge pages where the system has them, as the arena of a run is.
func arena(b *testing.B, n int) []float32 {
	const page = 2 << 20
	memory, err := unix.Mmap(-1, 0, (4*n+page-1)&^(page-1)+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		b.Fatal(err)
	}
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE)
	b.Cleanup(func() { _ = unix.Munmap(memory) })
	return unsafe.Slice((*float32)(unsafe.Pointer(&memory[0])), n)
}
