package checkpoint

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapMemory maps bytes bytes of a file, or if file is nil of memory of this process.
func mapMemory(file *os.File, bytes int64) ([]byte, error) {
	fd, flags := -1, unix.MAP_PRIVATE|unix.MAP_ANON
	if file != nil {
		if err := file.Truncate(bytes); err != nil {
			return nil, err
		}
		fd, flags = int(file.Fd()), unix.MAP_SHARED
	}
	memory, err := unix.Mmap(fd, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // only hints
	_ = unix.Madvise(memory, unix.MADV_POPULATE_WRITE)
	return memory, nil
}

func unmapMemory(memory []byte) error { return unix.Munmap(memory) }
