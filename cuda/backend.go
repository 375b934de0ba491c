// Package cuda is the backend that runs ranks on NVIDIA GPUs.
//
// Every rank owns an arena of device memory, an arena of pinned host memory, and a CUDA stream for
// each [runtime.Stream]. Ranks run in one of two ways:
//
//   - Each on a GPU of its own, all in this process or one per process. Collectives and transfers
//     go
//     by NCCL.
//   - All together on one GPU (loopback), so that any plan can be run with one. Collectives and
//     transfers are copies and sums of each other's arenas.
//
// Nothing here needs CUDA to build or to start: package driver finds the libraries when a [System]
// is opened.
//
// # Files
//
// backend.go opens GPUs and closes everything; device.go is the [runtime.Device] of a rank. Its
// parts: memory.go and staging.go (arenas, uploads, downloads), kernels.go and engine.go (kernels),
// matmul.go (products by cuBLASLt), lane.go and event.go (streams and events), collective.go
// (loopback) and nccl.go, transfer.go (loopback) and meeting.go (NCCL), pack.go (parts that NCCL could
// not move in one call), join.go (NCCL's communicators), end.go (the end of a step), replay.go (steps
// as CUDA graphs). peers.go is for runs of several processes, machine.go opens the libraries of this
// machine, timing.go is for measuring.
package cuda

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/runtime"
)

// System is the set of libraries that a backend runs on.
type System struct {
	Driver driver.Driver
	// Engine makes what runs kernels on a GPU, whose context is current.
	Engine func(gpu int) (Engine, error)
	// BLAS makes what runs matrix products on a GPU, whose context is current.
	BLAS func(gpu int) (driver.BLAS, error)
	// Collectives loads NCCL for a process that drives so many GPUs. It is called when NCCL is first needed.
	Collectives func(gpus int) (driver.Collectives, error)
	// Together says that NCCL may run CUDA graphs of several GPUs of one process. That of [Machine]
	// may not: NCCL's documentation warns of deadlocks and recommends one process per GPU (Using
	// NCCL with CUDA Graphs). So a process that drives several GPUs gives them each step call by
	// call. Steps are graphs if autopar launch or torchrun starts a process for each GPU.
	Together bool
	// Versions are those of the libraries, as text for users.
	Versions []string
}

// Options of the backend. The zero value is ready for use.
type Options struct {
	// GPUs are the numbers of the GPUs of the ranks; empty is 0, 1, 2 and so on.
	GPUs []int
	// Loopback puts all ranks on the first of the GPUs.
	Loopback bool
	// Synchronous makes every call return after its effect. The time of a call is then the time of
	// its work, and an error is that of the instruction it names.
	Synchronous bool
	// Reproducible computes matrix products with package kernel, whose results have the same bits
	// under every plan, and not with a library. It is for train.reproducible.
	Reproducible bool
	// Eager keeps steps from being replayed as graphs.
	Eager bool
	// Note, if set, is called once with the reason if steps cannot be replayed as graphs.
	Note func(text string)
}

// Backend is the CUDA backend of one world.
type Backend struct {
	opts      Options
	system    *System
	world     runtime.World
	gpus      map[int]*gpu
	devices   []*Device // by rank, nil for those of other processes
	others    *others   // nil when all ranks are in this process
	stopped   chan struct{}
	abort     sync.Once
	noted     sync.Once
	abandoned atomic.Bool   // NCCL or a stream was abandoned in the middle of work; it still uses the contexts
	bound     time.Duration // on the wait for streams and communicators to end

	mu          sync.Mutex
	open        int // how many devices are not closed
	groups      map[int]*group
	wires       map[int]*wire
	nccl        driver.Collectives
	memberships []*membership
}

// closing is how long streams and communicators may take to end. They take far less.
const closing = 30 * time.Second

var _ runtime.Backend = (*Backend)(nil)

// New returns a backend. It serves one world: Open is called once.
func New(system *System, opts Options) *Backend {
	return &Backend{
		opts: opts, system: system, gpus: map[int]*gpu{}, stopped: make(chan struct{}), bound: closing,
		groups: map[int]*group{}, wires: map[int]*wire{},
	}
}

// gpu is a GPU that ranks of this process use.
type gpu struct {
	ordinal int
	name    string
	context driver.Context
	engine  Engine
	blas    driver.BLAS
}

// DeviceError says that the GPUs of this machine cannot run what is asked for.
type DeviceError struct{ Msg string }

func (e *DeviceError) Error() string { return "cuda: " + e.Msg }

// minCapability is the oldest compute capability, as 10*major + minor, with all that the kernels
// use: bfloat16 and asynchronous copies to shared memory (Ampere).
const minCapability = 80

// GPUsFor returns the GPU of each rank, or a [DeviceError] if there are not enough.
func (o Options) GPUsFor(d driver.Driver, ranks int) ([]int, error) {
	visible, err := d.DeviceCount()
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	gpus := o.GPUs
	if len(gpus) == 0 {
		for i := range visible {
			gpus = append(gpus, i)
		}
	}
	for _, g := range gpus {
		if g < 0 || g >= visible {
			return nil, &DeviceError{fmt.Sprintf("GPU %d is asked for, %d are visible, counted from 0 (see CUDA_VISIBLE_DEVICES)", g, visible)}
		}
	}
	switch {
	case len(gpus) == 0:
		return nil, &DeviceError{"no GPU is visible (see CUDA_VISIBLE_DEVICES)"}
	case o.Loopback:
		all := make([]int, ranks)
		for i := range all {
			all[i] = gpus[0]
		}
		return all, nil
	case len(gpus) < ranks:
		return nil, &DeviceError{fmt.Sprintf("the plan has %d ranks, %d GPUs are visible; --loopback runs all ranks on one GPU, slowly", ranks, len(gpus))}
	}
	return gpus[:ranks], nil
}

// Open returns the devices of the ranks of this process.
func (b *Backend) Open(world runtime.World) (devices []runtime.Device, err error) {
	if world.Ranks < 1 || world.Timeout <= 0 {
		return nil, fmt.Errorf("cuda: world of %d ranks with timeout %v", world.Ranks, world.Timeout)
	}
	if b.devices != nil {
		return nil, fmt.Errorf("cuda: the backend is open already, with %d ranks", b.world.Ranks)
	}
	b.world = world
	if world.Peers != nil && b.opts.Loopback {
		return nil, &DeviceError{fmt.Sprintf("ranks that share a GPU are of one process, but rank %d has one of its own", world.Peers.Rank())}
	}
	first, end := world.Here()
	gpus, err := b.opts.GPUsFor(b.system.Driver, end-first)
	if err != nil {
		return nil, err
	}
	if b.others, err = meet(world); err != nil {
		return nil, err
	}
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	defer func() {
		if err != nil {
			err = errors.Join(err, b.release())
		}
	}()
	b.devices = make([]*Device, world.Ranks)
	for i, ordinal := range gpus {
		rank := first + i
		g, err := b.gpu(ordinal)
		if err != nil {
			return nil, err
		}
		d := newDevice(b, g, rank)
		b.devices[rank] = d
		if err := d.open(); err != nil {
			return nil, fmt.Errorf("cuda: rank %d on GPU %d (%s): %w", rank, g.ordinal, g.name, err)
		}
		devices = append(devices, d)
	}
	b.open = len(devices)
	return devices, nil
}

// gpu returns a GPU and makes its context current. The first time, it opens the GPU.
func (b *Backend) gpu(ordinal int) (*gpu, error) {
	drv := b.system.Driver
	if g := b.gpus[ordinal]; g != nil {
		return g, drv.SetCurrent(g.context)
	}
	name, err := drv.DeviceName(ordinal)
	if err != nil {
		return nil, fmt.Errorf("cuda: GPU %d: %w", ordinal, err)
	}
	if err := Usable(drv, ordinal); err != nil {
		return nil, err
	}
	context, err := drv.RetainPrimary(ordinal)
	if err != nil {
		return nil, fmt.Errorf("cuda: GPU %d (%s): %w", ordinal, name, err)
	}
	g := &gpu{ordinal: ordinal, name: name, context: context}
	b.gpus[ordinal] = g
	if err := drv.SetCurrent(context); err != nil {
		return nil, fmt.Errorf("cuda: GPU %d (%s): %w", ordinal, name, err)
	}
	if g.engine, err = b.system.Engine(ordinal); err != nil {
		return nil, fmt.Errorf("cuda: GPU %d (%s): %w", ordinal, name, err)
	}
	if g.blas, err = b.system.BLAS(ordinal); err != nil {
		return nil, fmt.Errorf("cuda: GPU %d (%s): %w", ordinal, name, err)
	}
	return g, nil
}

// capabilityOf returns the compute capability of a GPU, 10*major + minor.
func capabilityOf(d driver.Driver, gpu int) (int, error) {
	major, err := d.Attribute(gpu, driver.CapabilityMajor)
	if err != nil {
		return 0, err
	}
	minor, err := d.Attribute(gpu, driver.CapabilityMinor)
	return 10*major + minor, err
}

// Usable returns a [DeviceError] if a GPU is too old.
func Usable(d driver.Driver, gpu int) error {
	capability, err := capabilityOf(d, gpu)
	if err != nil {
		return fmt.Errorf("cuda: GPU %d: %w", gpu, err)
	}
	if capability >= minCapability {
		return nil
	}
	name, err := d.DeviceName(gpu)
	if err != nil {
		return fmt.Errorf("cuda: GPU %d: %w", gpu, err)
	}
	return &DeviceError{fmt.Sprintf("GPU %d (%s) has compute capability %d.%d, want at least %d.%d",
		gpu, name, capability/10, capability%10, minCapability/10, minCapability%10)}
}

// crowded reports whether this process drives several GPUs and NCCL may not run graphs of them.
func (b *Backend) crowded() bool {
	first, end := b.world.Here()
	return !b.opts.Loopback && end-first > 1 && !b.system.Together
}

// explain tells the user, once, why steps are given to the GPU call by call.
func (b *Backend) explain(why string) {
	if b.opts.Note != nil {
		b.noted.Do(func() { b.opts.Note("steps are not replayed as CUDA graphs: " + why) })
	}
}

// Abort ends every wait, and the collectives in progress. It does not wait for them to end.
func (b *Backend) Abort() {
	b.abort.Do(func() {
		close(b.stopped)
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, m := range b.memberships {
			m.abort()
		}
	})
}

// closed counts a device that is closed. The last one frees everything: until then streams of other
// ranks may use any arena.
func (b *Backend) closed() error {
	b.mu.Lock()
	b.open--
	last := b.open == 0
	b.mu.Unlock()
	if !last {
		return nil
	}
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	return b.release()
}

// release frees all that the backend holds, in this order: goroutines of lanes, connections, work
// on streams and graphs, communicators, memory, contexts. If work does not end, it leaves the rest
// open.
func (b *Backend) release() error {
	if b.abandoned.Load() { // the run has failed, and what still runs uses all of this
		return nil
	}
	b.devices = slices.DeleteFunc(b.devices, func(d *Device) bool { return d == nil })
	for _, d := range b.devices {
		for _, l := range d.lanes() {
			l.stop()
		}
	}
	errs := []error{b.others.close()}
	errs = append(errs, b.awaitIdle()...) // before leave: see membership
	errs = append(errs, b.leave()...)
	if b.abandoned.Load() {
		return errors.Join(errs...)
	}
	for _, d := range b.devices {
		errs = append(errs, d.release())
	}
	for _, w := range b.wires {
		errs = append(errs, w.release(b.system.Driver))
	}
	for _, g := range b.gpus {
		errs = append(errs, g.release(b.system.Driver))
	}
	b.devices, b.wires, b.gpus = nil, nil, nil
	return errors.Join(errs...)
}

// awaitIdle waits until all streams are idle, and frees all graphs.
func (b *Backend) awaitIdle() (errs []error) {
	end := time.Now().Add(b.bound)
	for _, d := range b.devices {
		errs = append(errs, d.awaitIdle(end))
	}
	return errs
}

func (g *gpu) release(drv driver.Driver) error {
	errs := []error{drv.SetCurrent(g.context)}
	if g.blas != nil {
		errs = append(errs, g.blas.Close())
	}
	if g.engine != nil {
		errs = append(errs, g.engine.Close())
	}
	return errors.Join(append(errs, drv.ReleasePrimary(g.ordinal))...)
}
