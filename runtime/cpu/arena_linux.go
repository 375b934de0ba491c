//go:build linux && !race

package cpu

import "golang.org/x/sys/unix"

// arena is memory outside the Go heap: the collector neither scans it nor lets the heap grow with
// it. It uses huge pages if the system has them, so that kernels spend no time on page table walks.
type arena struct{ memory []byte }

// grow makes the arena at least bytes long, which is more than it is, and keeps its contents.
func (a *arena) grow(bytes int) (err error) {
	bytes = (bytes + unix.Getpagesize() - 1) &^ (unix.Getpagesize() - 1)
	if a.memory == nil {
		a.memory, err = unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	} else {
		var memory []byte
		if memory, err = unix.Mremap(a.memory, bytes, unix.MREMAP_MAYMOVE); err == nil {
			a.memory = memory
		}
	}
	if err == nil {
		_ = unix.Madvise(a.memory, unix.MADV_HUGEPAGE) // only a hint
	}
	return err
}

func (a *arena) free() error {
	memory := a.memory
	if a.memory = nil; memory == nil {
		return nil
	}
	return unix.Munmap(memory)
}
