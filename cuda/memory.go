package cuda

import (
	"errors"
	"fmt"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/runtime"
)

// MemoryError says that an arena, or the scratch memory beside it, does not fit in the memory of a GPU, or in no piece of what is free.
type MemoryError struct {
	GPU                int
	Name               string // of the GPU
	Needs, Free, Total int64  // bytes
}

func (e *MemoryError) Error() string {
	if e.Needs <= e.Free {
		return fmt.Sprintf("cuda: %s are needed in one piece, and GPU %d (%s) has none of that size, with %s free of %s",
			runtime.GiB(e.Needs), e.GPU, e.Name, runtime.GiB(e.Free), runtime.GiB(e.Total))
	}
	return fmt.Sprintf("cuda: %s are needed, %s more than is free on GPU %d (%s), which has %s free of %s",
		runtime.GiB(e.Needs), runtime.GiB(e.Needs-e.Free), e.GPU, e.Name, runtime.GiB(e.Free), runtime.GiB(e.Total))
}

// Alloc makes an arena at least bytes long and keeps its contents. All ranks call it when they load
// a program. The arenas of some move then, so none of them keeps its graphs: NCCL wants what is
// part of a graph on one rank to be so on all (Using NCCL with CUDA Graphs).
func (d *Device) Alloc(space runtime.Space, bytes int64) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if bytes < 0 {
		return fmt.Errorf("cuda: arena of %d bytes", bytes)
	}
	if err := errors.Join(d.flush(), d.unprepare()); err != nil {
		return err
	}
	if space == runtime.OnHost {
		return d.growHost(bytes)
	}
	if bytes > d.arenaBytes {
		if err := d.grow(bytes); err != nil {
			return err
		}
	}
	return d.load()
}

// load compiles, tunes and allocates for all kernels that have been checked, while all ranks are
// idle. In a step that could deadlock: a rank that stops to allocate or to time products may wait
// for a rank that waits for it. load also ends with the device idle, because the first message of a
// step may arrive where products were tried.
func (d *Device) load() error {
	if err := d.gpu.engine.Load(); err != nil {
		return err
	}
	var scratch int64
	for _, g := range d.checked {
		if k := g[0]; !copies(k) && d.productIn(g) < 0 {
			scratch = max(scratch, d.gpu.engine.Scratch(g))
		}
	}
	if err := d.reserve(scratch); err != nil {
		return err
	}
	for _, l := range d.streams {
		if l.packs {
			if err := l.getPacking(); err != nil {
				return err
			}
		}
	}
	for _, group := range d.checked {
		if d.productIn(group) < 0 {
			continue
		}
		if len(group) > 1 { // the results of this run lie where steps overwrite them
			run, err := d.prepareEpilogue(group)
			if err != nil {
				return err
			}
			if err := run(d.compute.stream); err != nil {
				return err
			}
			continue
		}
		k := group[0]
		if g, empty := gemmOf(k); !empty { // CUDA loads its code when it first runs
			if err := d.gpu.blas.MatMul(g, d.at(k.Args[1]), d.at(k.Args[0]), d.at(k.Results[0]), d.workspace, d.compute.stream); err != nil {
				return err
			}
		}
	}
	d.checked = nil
	return d.drain()
}

// grow moves the arena to a larger allocation: by a copy on the device if there is room for both,
// else by way of the host.
func (d *Device) grow(bytes int64) error {
	free, total, err := d.drv.MemInfo()
	if err != nil {
		return err
	}
	if bytes > free+d.arenaBytes {
		return &MemoryError{d.gpu.ordinal, d.gpu.name, bytes, free + d.arenaBytes, total}
	}
	var kept []byte
	old, oldBytes := d.arena, d.arenaBytes
	if old != 0 && bytes > free {
		kept = make([]byte, oldBytes)
		if err := d.download(kept, old); err != nil {
			return err
		}
		if err := d.drv.Free(old); err != nil {
			return err
		}
		old, d.arena, d.arenaBytes = 0, 0, 0
	}
	place, err := d.alloc(bytes)
	if err != nil {
		return err
	}
	d.arena, d.arenaBytes = place, bytes
	if kept != nil {
		return d.uploadTo(place, kept)
	}
	if old == 0 {
		return nil
	}
	if err := d.drv.Copy(place, old, oldBytes, d.compute.stream); err != nil {
		return err
	}
	if err := d.drain(); err != nil {
		return err
	}
	return d.drv.Free(old)
}

// alloc allocates memory of the GPU. The error is a [MemoryError] if there is too little: what is free may be
// fragmented, and others may have taken some meanwhile.
func (d *Device) alloc(bytes int64) (driver.Ptr, error) {
	place, err := d.drv.Alloc(bytes)
	var refused *driver.Error
	if !errors.As(err, &refused) || !refused.OutOfMemory() {
		return place, err
	}
	free, total, err := d.drv.MemInfo()
	if err != nil {
		return 0, err
	}
	return 0, &MemoryError{d.gpu.ordinal, d.gpu.name, bytes, free, total}
}

func (d *Device) growHost(bytes int64) error {
	if bytes <= int64(len(d.host)) {
		return nil
	}
	memory, err := d.drv.AllocHost(bytes)
	if err != nil {
		return fmt.Errorf("%d bytes of pinned host memory: %w", bytes, err)
	}
	old := d.host
	d.host = memory
	if old == nil {
		return nil
	}
	if err := d.drain(); err != nil {
		return err
	}
	copy(memory, old)
	return d.drv.FreeHost(old)
}

// within checks that bytes lie in an arena.
func (d *Device) within(space runtime.Space, offset int64, n int) error {
	have := d.arenaBytes
	if space == runtime.OnHost {
		have = int64(len(d.host))
	}
	if offset < 0 || offset+int64(n) > have {
		return fmt.Errorf("cuda: bytes [%d, %d) of an arena of %d", offset, offset+int64(n), have)
	}
	return nil
}

// Upload copies src into an arena, after the work given to the compute stream before.
func (d *Device) Upload(space runtime.Space, offset int64, src []byte) error {
	if err := d.within(space, offset, len(src)); err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if space == runtime.OnHost {
		if err := d.flush(); err != nil {
			return err
		}
		if err := d.drain(); err != nil {
			return err
		}
		copy(d.host[offset:], src)
		return nil
	}
	return d.do(call{kind: callUpload, n: offset, bytes: len(src)}, src)
}

// uploadTo copies src to device memory through pinned memory.
func (d *Device) uploadTo(dst driver.Ptr, src []byte) error {
	d.label(d.compute, "upload", "")
	for len(src) > 0 {
		piece, err := d.upload.take(d, len(src))
		if err != nil {
			return err
		}
		n := copy(piece, src)
		if err := d.drv.CopyToDevice(dst, piece[:n], d.compute.stream); err != nil {
			return err
		}
		dst, src = dst+driver.Ptr(n), src[n:]
	}
	return d.settle()
}

// Download copies bytes of an arena to dst. It waits for the compute stream.
func (d *Device) Download(dst []byte, space runtime.Space, offset int64) error {
	if err := d.within(space, offset, len(dst)); err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.flush(); err != nil {
		return err
	}
	d.label(d.compute, "download", "")
	if space == runtime.OnHost {
		if err := d.drain(); err != nil {
			return err
		}
		copy(dst, d.host[offset:])
		return nil
	}
	return d.download(dst, d.arena+driver.Ptr(offset))
}

func (d *Device) download(dst []byte, src driver.Ptr) error {
	for len(dst) > 0 {
		n := min(len(dst), len(d.landing))
		if err := d.drv.CopyToHost(d.landing[:n], src, d.compute.stream); err != nil {
			return err
		}
		if err := d.drain(); err != nil {
			return err
		}
		copy(dst, d.landing[:n])
		dst, src = dst[n:], src+driver.Ptr(n)
	}
	return nil
}
