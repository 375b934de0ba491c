package cpu

import (
	"errors"
	"fmt"
	"os"
	"unsafe"
)

// hostFile is a file mapped into memory. The zero hostFile is none.
type hostFile struct {
	file   *os.File
	memory []byte
}

// mapped returns the host arena with room for n words, in a file of HostDir, with
// what the device's arena held before.
func (d *Device) mapped(n int) ([]float32, error) {
	if d.file.file == nil {
		if err := os.MkdirAll(d.backend.opts.HostDir, 0o777); err != nil {
			return nil, fmt.Errorf("cpu: host arena: %w", err)
		}
		// Its own, as another job may have the same directory, and without a name, so that nothing stays of a process that is
		// killed.
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

// grow makes the file bytes long and maps it anew. What is new is written, not
// left as a hole: on a full disk a write fails, where a mapped hole would end the
// process.
func (h *hostFile) grow(bytes int) error {
	if err := h.unmap(); err != nil {
		return err
	}
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
	h.memory, err = mapFile(h.file, bytes)
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

// close unmaps the file and gives it back.
func (h *hostFile) close() error {
	if h.file == nil {
		return nil
	}
	err := errors.Join(h.unmap(), h.file.Close())
	h.file = nil
	return err
}
