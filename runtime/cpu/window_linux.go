package cpu

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// window is address space mapped over a file without a name. It may be longer than the file: when
// the file grows, every process that maps it sees the new part. The zero window maps nothing.
type window struct {
	file   *os.File
	memory []byte
}

// arenaWindow returns how many bytes of address space to map for each rank's arena: more than it
// can grow to, as far as address space allows.
func arenaWindow(ranks int) int64 {
	const most = 1 << 46 // half of the address space of a process
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return most / int64(ranks)
	}
	page := int64(os.Getpagesize())
	return min(int64(info.Totalram)*int64(info.Unit), most/int64(ranks)) / page * page
}

// overlap reports whether two processes may run on a common processor, or true if the system does
// not tell.
func overlap(pid, other int) bool {
	var a, b unix.CPUSet
	if unix.SchedGetaffinity(pid, &a) != nil || unix.SchedGetaffinity(other, &b) != nil {
		return true
	}
	for i := range a {
		if a[i]&b[i] != 0 {
			return true
		}
	}
	return false
}

// newWindow makes an empty file and maps address space over it.
func newWindow(name string, bytes int64) (window, error) {
	fd, err := unix.MemfdCreate("autopar-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return window{}, fmt.Errorf("shared memory: %w", err)
	}
	return mapWindow(os.NewFile(uintptr(fd), name), bytes)
}

// openWindow maps a file that another process of the same user has open.
func openWindow(pid, fd int, bytes int64) (window, error) {
	file, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), os.O_RDWR, 0)
	if err != nil {
		return window{}, fmt.Errorf("shared memory: %w", err)
	}
	return mapWindow(file, bytes)
}

func mapWindow(file *os.File, bytes int64) (window, error) {
	memory, err := unix.Mmap(int(file.Fd()), 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return window{}, errors.Join(fmt.Errorf("mapping %d bytes of shared memory: %w", bytes, err), file.Close())
	}
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // only a hint
	return window{file, memory}, nil
}

// privateWindow is memory of this process alone.
func privateWindow(bytes int64) (window, error) {
	memory, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	return window{memory: memory}, err
}

func (w *window) fd() int {
	if w.file == nil {
		return -1
	}
	return int(w.file.Fd())
}

// resize makes the file bytes long.
func (w *window) resize(bytes int64) error {
	if bytes > int64(len(w.memory)) {
		return fmt.Errorf("shared memory of %d bytes, there is address space for %d", bytes, len(w.memory))
	}
	page := int64(os.Getpagesize())
	return w.file.Truncate((bytes + page - 1) / page * page)
}

// words returns the first n words.
func (w *window) words(n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(w.memory))), n)
}

func (w *window) close() error {
	var err error
	if w.memory != nil {
		err = unix.Munmap(w.memory)
	}
	if w.file != nil {
		err = errors.Join(err, w.file.Close())
	}
	*w = window{}
	return err
}
