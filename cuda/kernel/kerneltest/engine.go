package kerneltest

import (
	"bytes"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/cudatest"
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Engine is an engine of the CUDA backend on a fake driver. A worker on the CPU runs the kernels of
// package kernel on copies of what they read.
type Engine struct {
	fake *fake.Driver

	mu     sync.Mutex
	worker *Worker
	runs   map[string]int // how often each function was launched
}

var _ cuda.Engine = (*Engine)(nil)

// NewEngine starts a worker, which ends with the test.
func NewEngine(t *testing.T, d *fake.Driver) *Engine {
	return &Engine{fake: d, worker: Start(t, Build(t)), runs: map[string]int{}}
}

// Runs returns how often each device function was launched.
func (e *Engine) Runs() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs
}

// Close does nothing: the next backend on the same fake uses the worker.
func (e *Engine) Close() error { return nil }

// Check returns an error if there are no kernels for a group.
func (e *Engine) Check(g kernel.Group) error {
	_, err := kernel.Launches(g, kernel.Anywhere, 0)
	return err
}

// CheckExchanges does nothing, and nor does Load: all kernels are compiled.
func (e *Engine) CheckExchanges(moves, sums bool) error { return nil }

func (e *Engine) Load() error { return nil }

func (e *Engine) Scratch(g kernel.Group) int64 { return kernel.Scratch(g) }

// Prepare runs the launches of a group as one piece of work of the fake driver.
func (e *Engine) Prepare(g kernel.Group, at kernel.Place, scratch driver.Ptr) (func(s driver.Stream) error, error) {
	w := work{name: fmt.Sprint("kernel ", g[0].Node.Name), scratch: fake.Range{At: scratch, Bytes: kernel.Scratch(g)}}
	lies := func(t runtime.Tensor) fake.Range { return fake.Range{At: driver.Ptr(at(t)), Bytes: t.Bytes()} }
	for _, k := range g {
		for _, t := range k.Args {
			w.reads = append(w.reads, lies(t))
		}
		for i, t := range k.Results {
			if w.writes = append(w.writes, lies(t)); k.Accum[i] {
				w.reads = append(w.reads, lies(t))
			}
		}
	}
	launches, err := kernel.Launches(g, func(t runtime.Tensor) uint64 { return e.place(&w, at(t)) }, e.worker.Base+far)
	if err != nil {
		return nil, err
	}
	w.launches = launches
	return func(s driver.Stream) error { return e.run(s, &w) }, nil
}

// Reduce launches the kernel for loopback collectives.
func (e *Engine) Reduce(s driver.Stream, by ir.Reduction, d ir.DType, out driver.Ptr, in []driver.Ptr, elems int64) error {
	reduce, bytes := kernel.Reduce, elems*d.Size()
	if by == ir.Max {
		reduce = kernel.ReduceMax
	}
	w := work{name: "reduce", writes: []fake.Range{{At: out, Bytes: bytes}}}
	for _, p := range in {
		w.reads = append(w.reads, fake.Range{At: p, Bytes: bytes})
	}
	from := make([]uint64, len(in))
	for i, p := range in {
		from[i] = e.place(&w, uint64(p))
	}
	w.launches = []kernel.Launch{reduce(d, e.place(&w, uint64(out)), from, elems)}
	return e.run(s, &w)
}

// Exceeds and Void guard fixed-point sums by NCCL.
func (e *Engine) Exceeds(s driver.Stream, flag, x driver.Ptr, elems, limit int64) error {
	w := work{name: "exceeds", reads: []fake.Range{{At: x, Bytes: 8 * elems}, {At: flag, Bytes: 8}}, writes: []fake.Range{{At: flag, Bytes: 8}}}
	w.launches = []kernel.Launch{kernel.Exceeds(e.place(&w, uint64(flag)), e.place(&w, uint64(x)), elems, limit)}
	return e.run(s, &w)
}

func (e *Engine) Void(s driver.Stream, flag, x driver.Ptr, elems int64) error {
	sums := fake.Range{At: x, Bytes: 8 * elems}
	w := work{name: "void", reads: []fake.Range{{At: flag, Bytes: 8}, sums}, writes: []fake.Range{sums}}
	w.launches = []kernel.Launch{kernel.Void(e.place(&w, uint64(flag)), e.place(&w, uint64(x)), elems)}
	return e.run(s, &w)
}

// Move packs and unpacks what NCCL moves.
func (e *Engine) Move(s driver.Stream, d ir.DType, to, from driver.Ptr, dims ...kernel.Dim) error {
	w := work{name: "move"}
	w.reads, w.writes = cudatest.Runs(d.Size(), to, from, dims)
	l, err := kernel.Move(d.Size(), e.place(&w, uint64(to)), e.place(&w, uint64(from)), dims...)
	if err != nil {
		return err
	}
	w.launches = []kernel.Launch{l}
	return e.run(s, &w)
}

// work is launches that run as one piece of work.
type work struct {
	name          string
	launches      []kernel.Launch
	reads, writes []fake.Range
	scratch       fake.Range
}

// far is where scratch memory lies in the worker's arena: behind the copies of the ranges, which
// lie as in the fake's memory.
const far = 2 << 30

// offset maps an address to the worker's arena. It keeps distances only within one allocation.
func (w *work) offset(at uint64) int64 {
	low := uint64(math.MaxUint64)
	for _, r := range append(w.reads[:len(w.reads):len(w.reads)], w.writes...) {
		low = min(low, uint64(r.At))
	}
	return int64(at - low/4096*4096)
}

func (e *Engine) place(w *work, at uint64) uint64 { return e.worker.Base + uint64(w.offset(at)) }

func (e *Engine) run(s driver.Stream, w *work) error {
	writes := w.writes
	if w.scratch.Bytes > 0 {
		writes = append(writes[:len(writes):len(writes)], w.scratch)
	}
	return e.fake.Run(s, w.name, w.reads, writes, func() error { return e.work(w) })
}

// work runs launches on copies of what they read. Memory that they do not write stays poisoned, and
// so does what follows scratch memory.
func (e *Engine) work(w *work) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := func(r fake.Range) Bytes { return Bytes{w.offset(uint64(r.At)), e.fake.Memory(r)} }
	for _, r := range w.writes {
		e.worker.Poison(w.offset(uint64(r.At)), r.Bytes)
	}
	for _, r := range w.reads {
		e.worker.Write(at(r))
	}
	guard := Bytes{far + w.scratch.Bytes, make([]byte, 64)}
	e.worker.Poison(far, w.scratch.Bytes+int64(len(guard.Data)))
	if err := e.worker.Launch(w.launches...); err != nil {
		return err
	}
	for _, l := range w.launches {
		e.runs[l.Name]++
	}
	made := []Bytes{guard}
	for _, r := range w.writes {
		made = append(made, at(r))
	}
	if err := e.worker.Read(made...); err != nil {
		return err
	}
	if bytes.Count(guard.Data, []byte{0xff}) != len(guard.Data) {
		return fmt.Errorf("%s wrote past its %d bytes of scratch memory", w.name, w.scratch.Bytes)
	}
	return nil
}
