// Package cudatest runs the CUDA backend without CUDA, for tests: on the fake driver, with the
// kernels of runtime/cpu in place of device functions.
package cudatest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// NewSystem returns a system of the fake driver and CPU kernels.
func NewSystem(d *fake.Driver) (*cuda.System, error) {
	e, err := newEmulator(d)
	if err != nil {
		return nil, err
	}
	return &cuda.System{
		Driver:      d,
		Engine:      func(int) (cuda.Engine, error) { return e, nil },
		BLAS:        func(int) (driver.BLAS, error) { return d.BLAS(), nil },
		Collectives: func(int) (driver.Collectives, error) { return d.Collectives(), nil },
		Together:    true,
		Versions:    []string{"fake driver"},
	}, nil
}

// emulator is an engine whose kernels are those of runtime/cpu, run on copies of their operands.
type emulator struct {
	fake   *fake.Driver
	mu     sync.Mutex
	device runtime.Device
}

func newEmulator(d *fake.Driver) (*emulator, error) {
	b, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		return nil, err
	}
	devices, err := b.Open(runtime.World{Ranks: 1, Timeout: time.Minute})
	if err != nil {
		return nil, err
	}
	return &emulator{fake: d, device: devices[0]}, nil
}

// Close does nothing: the next backend on the same fake uses the emulator.
func (e *emulator) Close() error { return nil }

func (e *emulator) Check(g kernel.Group) error {
	for _, k := range g {
		if err := e.device.(runtime.Checker).Check(k); err != nil {
			return err
		}
	}
	return nil
}

// CheckExchanges does nothing, and nor does Load: kernels need no preparation.
func (e *emulator) CheckExchanges(moves, sums bool) error { return nil }

func (e *emulator) Load() error { return nil }

// Scratch asks for a little memory, so that scratch memory is allocated and grows.
func (e *emulator) Scratch(g kernel.Group) int64 { return g[0].Args[0].Bytes()/16 + 16 }

// place is where a tensor lies on the device and in the CPU's arena.
type place struct {
	device fake.Range
	cpu    int64
}

// Prepare runs the kernels of a group one after another, at the place of the first.
func (e *emulator) Prepare(g kernel.Group, at kernel.Place, scratch driver.Ptr) (func(s driver.Stream) error, error) {
	var all []func(s driver.Stream) error
	for _, k := range g {
		run, err := e.prepare(k, at, fake.Range{At: scratch, Bytes: e.Scratch(g)})
		if err != nil {
			return nil, err
		}
		all = append(all, run)
	}
	return func(s driver.Stream) error {
		for _, run := range all {
			if err := run(s); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

func (e *emulator) prepare(k *runtime.Kernel, at kernel.Place, scratch fake.Range) (func(s driver.Stream) error, error) {
	moved := *k
	places := map[int64]place{} // by offset on the device
	end := int64(0)
	lay := func(t runtime.Tensor) runtime.Tensor {
		p, ok := places[t.Offset]
		if !ok {
			p = place{fake.Range{At: driver.Ptr(at(t)), Bytes: t.Bytes()}, end}
			end += (t.Bytes() + 63) / 64 * 64
		} else if t.Bytes() > p.device.Bytes {
			return runtime.Tensor{Offset: -1}
		}
		places[t.Offset] = p
		t.Offset = p.cpu
		return t
	}
	var reads, writes []fake.Range
	moved.Args, moved.Results = nil, nil
	for _, t := range k.Args {
		reads = append(reads, fake.Range{At: driver.Ptr(at(t)), Bytes: t.Bytes()})
		moved.Args = append(moved.Args, lay(t))
	}
	for i, t := range k.Results {
		r := fake.Range{At: driver.Ptr(at(t)), Bytes: t.Bytes()}
		if writes = append(writes, r); k.Accum[i] {
			reads = append(reads, r)
		}
		moved.Results = append(moved.Results, lay(t))
		if moved.Results[i].Offset < 0 {
			return nil, fmt.Errorf("cudatest: result %d of %s is larger than the operand in its place", i, k.Node.Name)
		}
	}
	writes = append(writes, scratch)
	do := func() error { return e.launch(&moved, places, end, writes) }
	return func(s driver.Stream) error { return e.fake.Run(s, "kernel", reads, writes, do) }, nil
}

// launch runs a kernel on copies of its tensors and copies the results back.
func (e *emulator) launch(k *runtime.Kernel, places map[int64]place, bytes int64, writes []fake.Range) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.device.Alloc(runtime.OnDevice, bytes); err != nil {
		return err
	}
	for _, p := range places {
		if err := e.device.Upload(runtime.OnDevice, p.cpu, e.fake.Memory(p.device)); err != nil {
			return err
		}
	}
	if err := e.device.Launch(k); err != nil {
		return err
	}
	scratch := e.fake.Memory(writes[len(writes)-1])
	for i := range scratch {
		scratch[i] ^= 0x55
	}
	for i, r := range k.Results {
		if err := e.device.Download(e.fake.Memory(writes[i]), runtime.OnDevice, r.Offset); err != nil {
			return err
		}
	}
	return nil
}

// Reduce adds up element by element.
func (e *emulator) Reduce(s driver.Stream, by ir.Reduction, d ir.DType, out driver.Ptr, in []driver.Ptr, elems int64) error {
	bytes := elems * d.Size()
	var reads []fake.Range
	for _, p := range in {
		reads = append(reads, fake.Range{At: p, Bytes: bytes})
	}
	to := fake.Range{At: out, Bytes: bytes}
	return e.fake.Run(s, "reduce", reads, []fake.Range{to}, func() error {
		y := e.fake.Memory(to)
		x := make([][]byte, len(in))
		for j, r := range reads {
			x[j] = e.fake.Memory(r)
		}
		for i := range elems {
			if err := reduceAt(by, d, y, x, i); err != nil {
				return err
			}
		}
		return nil
	})
}

// Exceeds looks at numbers one by one.
func (e *emulator) Exceeds(s driver.Stream, flag, x driver.Ptr, elems, limit int64) error {
	from, to := fake.Range{At: x, Bytes: 8 * elems}, fake.Range{At: flag, Bytes: 8}
	return e.fake.Run(s, "exceeds", []fake.Range{from, to}, []fake.Range{to}, func() error {
		m := e.fake.Memory(from)
		for i := range elems {
			if v := int64(binary.NativeEndian.Uint64(m[8*i:])); v > limit || v < -limit {
				binary.NativeEndian.PutUint64(e.fake.Memory(to), 1)
			}
		}
		return nil
	})
}

// Void returns an error where a kernel would store the value that stands for overflow.
func (e *emulator) Void(s driver.Stream, flag, x driver.Ptr, elems int64) error {
	from, to := fake.Range{At: flag, Bytes: 8}, fake.Range{At: x, Bytes: 8 * elems}
	return e.fake.Run(s, "void", []fake.Range{from, to}, []fake.Range{to}, func() error {
		if binary.NativeEndian.Uint64(e.fake.Memory(from)) != 0 {
			return errTooLarge
		}
		return nil
	})
}

// Move copies run by run.
func (e *emulator) Move(s driver.Stream, d ir.DType, to, from driver.Ptr, dims ...kernel.Dim) error {
	reads, writes := Runs(d.Size(), to, from, dims)
	return e.fake.Run(s, "move", reads, writes, func() error {
		for i, r := range reads {
			copy(e.fake.Memory(writes[i]), e.fake.Memory(r))
		}
		return nil
	})
}

// Runs lists the runs of contiguous elements that a copy reads and writes.
func Runs(size int64, to, from driver.Ptr, dims []kernel.Dim) (reads, writes []fake.Range) {
	if len(dims) == 1 {
		bytes := dims[0].N * size
		return []fake.Range{{At: from, Bytes: bytes}}, []fake.Range{{At: to, Bytes: bytes}}
	}
	for i := range dims[0].N {
		r, w := Runs(size, to+driver.Ptr(i*dims[0].To*size), from+driver.Ptr(i*dims[0].From*size), dims[1:])
		reads, writes = append(reads, r...), append(writes, w...)
	}
	return reads, writes
}

// errTooLarge is the error for a sum that overflows fixed point.
var errTooLarge = errors.New("a sum exceeds what fixed point (train.reproducible) holds")

// reduceAt sets element i of y to the reduction of element i of the inputs.
func reduceAt(by ir.Reduction, d ir.DType, y []byte, x [][]byte, i int64) error {
	if d == ir.Q64 {
		var sum int64
		for _, m := range x {
			v := int64(binary.NativeEndian.Uint64(m[8*i:]))
			if next := sum + v; (next > sum) != (v > 0) && v != 0 {
				return errTooLarge
			}
			sum += v
		}
		binary.NativeEndian.PutUint64(y[8*i:], uint64(sum))
		return nil
	}
	size := d.Size()
	acc := d.Read(x[0][size*i:])
	for _, m := range x[1:] {
		if v := d.Read(m[size*i:]); by == ir.Max {
			acc = max(acc, v)
		} else {
			acc += v
		}
	}
	d.Write(y[size*i:], acc)
	return nil
}
