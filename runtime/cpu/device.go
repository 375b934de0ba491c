package cpu

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// Device is one rank. Its compute stream is the caller's goroutine: every call returns after its
// effect. Each of its other streams has its own goroutine.
type Device struct {
	backend *Backend
	rank    int
	pool    *kernel.Pool
	timer   *time.Timer
	arenas  [2][]float32    // by space
	memory  [2]arena        // the memory that they lie in
	events  *counter        // how many events were recorded on the compute stream
	beside  [beside]*stream // the other streams: see stream.go

	groups   []*groupView        // by Collective.Group
	wires    []*counter          // by Transfer.Wire
	received []int64             // by Transfer.Wire: how many messages were received
	block    []int64             // scratch of a reduction, of blockElems numbers
	ins      [][]float32         // operands of a reduction
	outs     [][]float32         // and results
	current  *runtime.Collective // the collective that this rank is making in units: see inUnits
	split    int                 // how many units each member's result is divided into
	first    int                 // the first of made members whose results this rank makes
	made     int
	unit     func(int)
	terms    [][]float32 // scratch: see fixedSum

	wide    runtime.Kernel // a launch on two-byte values in its float32 form: see half.go
	scratch []float32      // float32 copies of its operands and results

	file hostFile // holds the host arena, if HostDir is set
	away bool     // the rank is on another machine, and its arena here is a place for copies

	moved atomic.Int64 // bytes received from other ranks, for tests
}

// align is the alignment of arenas in bytes: a cache line, and the width of the widest vectors.
const align = 64

// Alloc makes an arena at least bytes long and keeps its contents.
func (d *Device) Alloc(space runtime.Space, bytes int64) error {
	if bytes < 0 || bytes > math.MaxInt64/2 {
		return fmt.Errorf("cpu: arena of %d bytes", bytes)
	}
	n := int((bytes + 3) / 4)
	if n <= len(d.arenas[space]) {
		return nil
	}
	if space == runtime.OnHost && d.backend.opts.HostDir != "" {
		words, err := d.mapped(n)
		if err != nil {
			return err
		}
		d.setArena(space, words)
		return nil
	}
	if err := d.backend.take(d.rank, 4*int64(n-len(d.arenas[space]))); err != nil {
		return err
	}
	if o := d.backend.others; o.together() && space == runtime.OnDevice {
		words, err := o.arena(n)
		if err != nil {
			return fmt.Errorf("cpu: arena of %d bytes: %w", 4*n, err)
		}
		d.setArena(space, words)
		return nil
	}
	if err := d.memory[space].grow(4 * n); err != nil {
		return fmt.Errorf("cpu: arena of %d bytes: %w", 4*n, err)
	}
	d.setArena(space, unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(d.memory[space].memory))), n))
	return nil
}

// take counts memory for an arena, if there is as much beside those of all ranks of this process.
func (b *Backend) take(rank int, bytes int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken == 0 { // nothing has been written
		host, known := runtime.ReadHostMemory(os.DirFS("/"))
		if b.free = host.Free; !known {
			b.free = math.MaxInt64
		}
	}
	if bytes > b.free-b.taken {
		return &runtime.MemoryError{Rank: rank, Needs: bytes, Others: b.taken, Free: b.free}
	}
	b.taken += bytes
	return nil
}

// Unwritten implements [runtime.Hosted]. An arena in a file of HostDir does not count, because its
// pages can be written back.
func (d *Device) Unwritten() int64 {
	words := len(d.arenas[runtime.OnDevice])
	if d.file.file == nil {
		words += len(d.arenas[runtime.OnHost])
	}
	return 4 * int64(words)
}

func (d *Device) setArena(space runtime.Space, words []float32) {
	if o := d.backend.others; o != nil { // its listeners write into the arena
		o.mu.Lock()
		defer o.mu.Unlock()
	}
	d.arenas[space] = words
	for _, s := range d.beside {
		s.lane.arenas[space] = words
	}
}

// Upload copies src to a byte offset of an arena.
func (d *Device) Upload(space runtime.Space, offset int64, src []byte) error {
	dst, err := d.bytes(space, offset, len(src))
	copy(dst, src)
	return err
}

// Download copies bytes of an arena to dst.
func (d *Device) Download(dst []byte, space runtime.Space, offset int64) error {
	src, err := d.bytes(space, offset, len(dst))
	copy(dst, src)
	return err
}

// bytes returns n bytes of an arena.
func (d *Device) bytes(space runtime.Space, offset int64, n int) ([]byte, error) {
	arena := d.arenas[space]
	if have := 4 * int64(len(arena)); offset < 0 || offset+int64(n) > have {
		return nil, fmt.Errorf("cpu: bytes [%d, %d) of an arena of %d", offset, offset+int64(n), have)
	}
	if n == 0 {
		return nil, nil
	}
	whole := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(arena))), 4*len(arena))
	return whole[offset : offset+int64(n)], nil
}

// words returns the memory of a tensor of any type, rounded up to whole 4-byte words.
func (d *Device) words(t runtime.Tensor) []float32 {
	memory, at, n := d.arenas[t.Space], t.Offset/4, (t.Bytes()+3)/4
	if t.Offset >= scratchBase {
		memory, at = d.scratch, (t.Offset-scratchBase)/4
	}
	return memory[at : at+n : at+n]
}

// floats returns the elements of a tensor of 4-byte elements.
func (d *Device) floats(t runtime.Tensor) []float32 {
	if t.DType.Size() != 4 {
		panic(fmt.Sprintf("BUG: cpu: tensor of %s read as f32", t.DType))
	}
	return d.words(t)
}

// ints returns the elements of a tensor of integers.
func (d *Device) ints(t runtime.Tensor) []int32 {
	if t.DType != ir.I32 {
		panic(fmt.Sprintf("BUG: cpu: tensor of %s read as i32", t.DType))
	}
	x := d.floats(t)
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

// Send copies the tensor to the peer's arena, or lets the stream of the transfer do so.
func (d *Device) Send(t *runtime.Transfer) error {
	if t.Stream != runtime.Compute {
		d.stream(t.Stream).give(work{send: t})
		return nil
	}
	return d.send(t)
}

func (d *Device) send(t *runtime.Transfer) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.pool.Offer()
	src := d.words(t.Local)
	if d.backend.devices[t.Peer].away {
		return d.backend.others.put(t, src)
	}
	peer := d.backend.devices[t.Peer].arenas[runtime.OnDevice]
	kernel.Copy(d.pool, peer[t.Remote/4:][:len(src)], src)
	wire, _ := d.wire(t)
	wire.add(1)
	return nil
}

// Recv waits until the peer has written the message to this arena.
func (d *Device) Recv(t *runtime.Transfer) error {
	defer d.pool.Offer()
	wire, received := d.wire(t)
	if err := d.wait(wire, *received+1, func() []int { return []int{t.Peer} }); err != nil {
		return err
	}
	*received++
	d.moved.Add(t.Local.Bytes())
	return nil
}

// wire returns the counter of messages sent over a wire, and how many of them this rank has
// received.
func (d *Device) wire(t *runtime.Transfer) (sent *counter, received *int64) {
	for len(d.wires) <= t.Wire {
		d.wires, d.received = append(d.wires, nil), append(d.received, 0)
	}
	if d.wires[t.Wire] == nil {
		b := d.backend
		d.wires[t.Wire] = at(&b.mu, &b.wires, t.Wire, func() *counter { return b.counter(wireID, t.Wire) })
	}
	return d.wires[t.Wire], &d.received[t.Wire]
}

// Close stops what the device runs. The last device to close frees all arenas, because ranks read
// those of others. After a failure a stream may still do so, and the arenas stay.
func (d *Device) Close() error {
	for _, s := range d.beside {
		s.close()
	}
	d.pool.Close()
	err := d.file.close()
	b := d.backend
	if b.open.Add(-1) > 0 {
		return err
	}
	b.cores.Close()
	free := func() (err error) {
		for _, other := range b.devices {
			for space := range other.memory {
				err = errors.Join(err, other.memory[space].free())
			}
		}
		return err
	}
	switch failed := d.aborted(); {
	case b.others != nil:
		b.others.close(failed, free)
	case !failed:
		err = errors.Join(err, free())
	}
	return err
}
