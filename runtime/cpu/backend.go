// Package cpu is the backend that runs ranks on processors. A process has all ranks of a world,
// each in a goroutine, or one of them.
//
// Every rank owns an arena of memory and another for offloaded state. Collectives and transfers
// read and write the arenas of other ranks directly, so nothing is copied in between: processes of
// one machine map each other's arenas. Between machines, data goes over TCP.
//
// Ranks share the processors. Each rank holds one core while it has work, and cores that no rank
// holds help the others ([kernel.Cores]). The arithmetic is in package kernel.
//
// # Files
//
// backend.go opens devices, device.go is the [runtime.Device] of a rank. launch.go, model.go,
// context.go, half.go and fixed.go call kernels for ops. collective.go lets members of a group
// meet, exchange.go moves their data. stream.go has streams and events; wait.go how ranks wait for
// each other. others.go, window_*.go and link.go are for worlds of several processes; arena_*.go
// and hostfile.go are memory.
package cpu

import (
	"fmt"
	goruntime "runtime"
	"sync"
	"sync/atomic"

	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// Options of the backend. The zero value is ready for use.
type Options struct {
	// Threads is how many threads the ranks of this process compute with in all. 0 is one per
	// processor, or this process's share of them.
	Threads int
	// HostDir, if not empty, is a directory in which each rank keeps its host arena, in a file that
	// is mapped into memory while the device is open.
	HostDir string
}

func (o Options) validate() error {
	if o.Threads < 0 {
		return fmt.Errorf("cpu: %d threads, want at least 0", o.Threads)
	}
	return nil
}

// Backend is the CPU backend of one world.
type Backend struct {
	opts    Options
	world   runtime.World
	devices []*Device // by rank, including those of other processes
	others  *others   // nil when all ranks are in this process
	cores   *kernel.Cores
	open    atomic.Int32 // how many devices of this process are open
	stopped chan struct{}
	abort   sync.Once

	mu     sync.Mutex
	groups []*group   // by Collective.Group
	wires  []*counter // by Transfer.Wire
	taken  int64      // bytes of the arenas of this process
	free   int64      // bytes that the machine had before
}

var _ runtime.Backend = (*Backend)(nil)

// New returns a backend. It serves one world: Open is called once.
func New(opts Options) (*Backend, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	return &Backend{opts: opts, stopped: make(chan struct{})}, nil
}

// Open returns the devices of the ranks of this process.
func (b *Backend) Open(world runtime.World) ([]runtime.Device, error) {
	if world.Ranks < 1 || world.Timeout <= 0 {
		return nil, fmt.Errorf("cpu: world of %d ranks with timeout %v", world.Ranks, world.Timeout)
	}
	if b.devices != nil {
		return nil, fmt.Errorf("cpu: the backend is open already, with %d ranks", b.world.Ranks)
	}
	b.world = world
	var err error
	if b.others, err = meet(b); err != nil {
		return nil, err
	}
	threads := b.opts.Threads
	if threads == 0 {
		threads = b.others.share(goruntime.GOMAXPROCS(0))
	}
	b.cores = kernel.NewCores(threads)
	first, end := world.Here()
	b.open.Store(int32(end - first))
	var devices []runtime.Device
	for i := range world.Ranks {
		d := &Device{backend: b, rank: i, events: b.counter(eventID, streams*i)}
		for s := range beside {
			d.beside[s] = &stream{of: runtime.Stream(s) + 1, events: b.counter(eventID, streams*i+1+s)}
		}
		if i < first || i >= end {
			if err := b.others.lookInto(d); err != nil {
				return nil, err
			}
		} else {
			d.pool, d.timer = b.cores.NewPool(i), stopped()
			for s := range beside {
				d.beside[s].open(d)
			}
			devices = append(devices, d)
		}
		b.devices = append(b.devices, d)
	}
	b.others.listen()
	return devices, nil
}

// Arithmetic names the kernels of this process: see [runtime.Arithmetic].
func (b *Backend) Arithmetic() string { return kernel.Arithmetic() }

// Abort wakes every rank that waits.
func (b *Backend) Abort() { b.abort.Do(func() { close(b.stopped) }) }

// at returns element i of a list that all ranks share. It makes the element if it does not exist.
func at[T any](mu *sync.Mutex, list *[]*T, i int, make func() *T) *T {
	mu.Lock()
	defer mu.Unlock()
	for len(*list) <= i {
		*list = append(*list, nil)
	}
	if (*list)[i] == nil {
		(*list)[i] = make()
	}
	return (*list)[i]
}
