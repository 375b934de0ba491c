package cpu

import (
	"errors"
	"fmt"
	"os"
	"unsafe"
)

// hostFile is a file mapped into memory. The zero hostFile has no file.
type hostFile struct {
	file   *os.File
	memory []byte
}

// mapped returns the host arena with room for n words, in a file of HostDir, with its contents
// kept.
func (d *Device) mapped(n int) ([]float32, error) {
	if d.file.file == nil {
		if err := os.MkdirAll(d.backend.opts.HostDir, 0o777); err != nil {
			return nil, fmt.Errorf("cpu: host arena: %w", err)
		}
		// The file is unique, as another job may use the same directory, and has no name, so that
		// nothing is left of a process that is killed.
		f, err := os.CreateTemp(d.backend.opts.HostDir, fmt.Sprintf("rank-%d.*.host", d.rank))
		if err != nil {
			return nil, fmt.Errorf("cpu: host arena: %w", err)
		}
		d.file.file = f
		if err := os.Remove(f.Name()); err != nil {
			return nil, fmt.Errorf("cpu: host arena: %w", err)
		}
	}
	if err := d.file.grow(4 * n); err != nil {
		return nil, fmt.Errorf("cpu: host arena of %d bytes in %s: %w", 4*n, d.file.file.Name(), err)
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(d.file.memory))), n), nil
}

// grow makes the file bytes long and maps it again. It writes the new part instead of leaving a
// hole: on a full disk a write fails, whereas a store to a mapped hole would kill the process. If it
// fails, the memory is still mapped.
func (h *hostFile) grow(bytes int) error {
	info, err := h.file.Stat()
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for at := info.Size(); at < int64(bytes); {
		k, err := h.file.WriteAt(zeros[:min(int64(len(zeros)), int64(bytes)-at)], at)
		if err != nil {
			return err
		}
		at += int64(k)
	}
	memory, err := mapFile(h.file, bytes)
	if err != nil {
		return err
	}
	err = h.unmap()
	h.memory = memory
	return err
}

func (h *hostFile) unmap() error {
	if h.memory == nil {
		return nil
	}
	memory := h.memory
	h.memory = nil
	return unmapFile(memory)
}

// close unmaps and closes the file.
func (h *hostFile) close() error {
	if h.file == nil {
		return nil
	}
	err := errors.Join(h.unmap(), h.file.Close())
	h.file = nil
	return err
}
