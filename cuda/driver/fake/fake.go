// Package fake is a CUDA driver without CUDA, for tests. Device memory is memory of the process.
//
// Work given to a stream runs later, in a random order among the orders that streams and events
// allow. So a missing wait shows as a wrong result. Besides, every access to memory is checked for
// a happens-before relation to earlier accesses of the same bytes. So a missing wait also shows as
// a [RaceError] that names both instructions, in whatever order they ran.
//
// Device functions cannot run here: [Driver.Run] puts a Go function on a stream in their place.
// Products and collectives are implemented: see [Driver.BLAS] and [Driver.Collectives].
package fake

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"unsafe"

	"github.com/autopar/autopar/cuda/driver"
)

// Options of a fake driver. The zero value is one device of 16 GiB.
type Options struct {
	Devices int
	Memory  int64  // bytes of each device
	Seed    uint64 // of the random order of work
	// InTurn makes a device do its work in the order in which it was given, whatever the streams.
	InTurn bool
	// Major and Minor are the compute capability, and CUDA the driver's version; 0 is 9.0
	// and 13000.
	Major, Minor, CUDA int
	// LoseAfter, if not 0, is after how many pieces of work the device is lost. Every later call
	// fails.
	LoseAfter int
	// Clock, if set, returns how many milliseconds a piece of work takes that reads and writes so
	// many bytes. If nil, each takes one. See [Driver.Elapsed].
	Clock func(what string, bytes int64) float64
}

// Driver is the fake driver. Its methods may be called from any goroutine.
type Driver struct {
	opts Options

	mu       sync.Mutex
	rng      *rand.Rand
	current  map[int]driver.Context // by thread
	retained []int                  // uses of primary contexts, by device
	used     []int64                // bytes, by device
	allocs   []*alloc               // by address
	next     uint64                 // address

	handles  uintptr
	streams  map[driver.Stream]*stream
	order    []*stream // all streams, including those of graphs
	events   map[driver.Event]*event
	graphs   map[driver.Graph]*graph
	execs    map[driver.Exec]*graph
	host     clock // what the host has waited for: that happens before all that it gives from now on
	worlds   map[driver.ID]*commWorld
	changed  *sync.Cond       // a rank has joined a world, or a graph was destroyed
	stuck    int              // communicators whose end hangs because graphs had captured them
	joined   [][]driver.ID    // communicators, by device
	pending  map[int]*pending // NCCL groups of calls, by thread
	given    int64            // how many entries streams were given
	ran      int              // how many pieces of work have run
	launched int              // how many graphs were launched
	now      float64          // milliseconds that work has taken
}

var (
	_ driver.Driver  = (*Driver)(nil)
	_ driver.Labeler = (*Driver)(nil)
)

// New returns a fake.
func New(opts Options) *Driver {
	if opts.Devices == 0 {
		opts.Devices = 1
	}
	if opts.Memory == 0 {
		opts.Memory = 16 << 30
	}
	if opts.Major == 0 {
		opts.Major = 9
	}
	if opts.CUDA == 0 {
		opts.CUDA = 13000
	}
	d := &Driver{
		opts: opts, rng: rand.New(rand.NewPCG(opts.Seed, 0)), current: map[int]driver.Context{},
		retained: make([]int, opts.Devices), used: make([]int64, opts.Devices), next: 1 << 52,
		streams: map[driver.Stream]*stream{}, events: map[driver.Event]*event{},
		graphs: map[driver.Graph]*graph{}, execs: map[driver.Exec]*graph{},
		worlds: map[driver.ID]*commWorld{}, joined: make([][]driver.ID, opts.Devices), pending: map[int]*pending{},
	}
	d.changed = sync.NewCond(&d.mu)
	return d
}

// failed returns an error as the real driver words it.
func failed(call string, code int, name string) error {
	return &driver.Error{Call: call, Code: code, Name: name}
}

func invalid(call, format string, args ...any) error {
	return failed(call, 1, "CUDA_ERROR_INVALID_VALUE: "+fmt.Sprintf(format, args...))
}

// alive returns an error once the device is lost.
func (d *Driver) alive(call string) error {
	if d.opts.LoseAfter > 0 && d.ran >= d.opts.LoseAfter {
		return failed(call, 999, "CUDA_ERROR_UNKNOWN: the device is lost")
	}
	return nil
}

// device returns the device whose context is current on the calling thread.
func (d *Driver) device(call string) (int, error) {
	if err := d.alive(call); err != nil {
		return 0, err
	}
	c := d.current[thread()]
	if c == 0 || d.retained[c-1] == 0 {
		return 0, failed(call, 201, "CUDA_ERROR_INVALID_CONTEXT")
	}
	return int(c - 1), nil
}

// Version returns the version of the options.
func (d *Driver) Version() (int, error) { return d.opts.CUDA, nil }

// DeviceCount returns the number of devices.
func (d *Driver) DeviceCount() (int, error) { return d.opts.Devices, nil }

// DeviceName returns a made-up name.
func (d *Driver) DeviceName(device int) (string, error) {
	return fmt.Sprintf("fake device %d", device), nil
}

// DeviceMemory returns the memory of the options.
func (d *Driver) DeviceMemory(int) (int64, error) { return d.opts.Memory, nil }

// Attribute knows the compute capability and the limit of shared memory.
func (d *Driver) Attribute(_ int, a driver.Attribute) (int, error) {
	switch a {
	case driver.CapabilityMajor:
		return d.opts.Major, nil
	case driver.CapabilityMinor:
		return d.opts.Minor, nil
	case driver.SharedPerBlockMax:
		return 227 << 10, nil
	case driver.Multiprocessors:
		return 132, nil
	}
	return 0, invalid("cuDeviceGetAttribute", "attribute %d", a)
}

// RetainPrimary makes a use of a context.
func (d *Driver) RetainPrimary(device int) (driver.Context, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if device < 0 || device >= d.opts.Devices {
		return 0, failed("cuDevicePrimaryCtxRetain", 101, "CUDA_ERROR_INVALID_DEVICE")
	}
	d.retained[device]++
	return driver.Context(device + 1), nil
}

// ReleasePrimary ends a use.
func (d *Driver) ReleasePrimary(device int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.retained[device] == 0 {
		return failed("cuDevicePrimaryCtxRelease", 201, "CUDA_ERROR_INVALID_CONTEXT")
	}
	d.retained[device]--
	return nil
}

// SetCurrent makes a context current on the calling thread.
func (d *Driver) SetCurrent(c driver.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current[thread()] = c
	return nil
}

// MemInfo returns what is left of the current device's memory.
func (d *Driver) MemInfo() (free, total int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	device, err := d.device("cuMemGetInfo")
	if err != nil {
		return 0, 0, err
	}
	return d.opts.Memory - d.used[device], d.opts.Memory, nil
}

// alloc is one allocation.
type alloc struct {
	base    uint64
	memory  []byte
	device  int        // or -1
	history [][]access // accesses by page
}

// page is how many bytes share a history of accesses. Small pages keep histories short.
const page = 1024

func newAlloc(bytes int64, device int) *alloc {
	return &alloc{memory: aligned(bytes), device: device, history: make([][]access, (bytes+page-1)/page)}
}

// Alloc returns memory that is filled with NaNs.
func (d *Driver) Alloc(bytes int64) (driver.Ptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	device, err := d.device("cuMemAlloc_v2")
	if err != nil {
		return 0, err
	}
	if bytes <= 0 {
		return 0, invalid("cuMemAlloc_v2", "%d bytes", bytes)
	}
	if d.used[device]+bytes > d.opts.Memory {
		return 0, failed("cuMemAlloc_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY")
	}
	d.used[device] += bytes
	a := newAlloc(bytes, device)
	a.base = d.next
	for i := range a.memory {
		a.memory[i] = 0xff
	}
	d.next += (uint64(bytes) + 4095) / 4096 * 4096 * 2 // a gap follows
	d.insert(a)
	return driver.Ptr(a.base), nil
}

// aligned returns memory that starts at a multiple of 64 bytes.
func aligned(bytes int64) []byte {
	b := make([]byte, bytes+64)
	skip := -int64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & 63
	return b[skip : skip+bytes : skip+bytes]
}

func (d *Driver) insert(a *alloc) {
	at, _ := slices.BinarySearchFunc(d.allocs, a.base, func(x *alloc, base uint64) int { return int(int64(x.base) - int64(base)) })
	d.allocs = slices.Insert(d.allocs, at, a)
}

// find returns the allocation that has an address, or nil.
func (d *Driver) find(p uint64) *alloc {
	at, found := slices.BinarySearchFunc(d.allocs, p, func(x *alloc, p uint64) int { return int(int64(x.base) - int64(p)) })
	if !found {
		at--
	}
	if at < 0 || p >= d.allocs[at].base+uint64(len(d.allocs[at].memory)) {
		return nil
	}
	return d.allocs[at]
}

// Free waits for the device and frees memory.
func (d *Driver) Free(p driver.Ptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.find(uint64(p))
	if a == nil || a.base != uint64(p) || a.device < 0 {
		return invalid("cuMemFree_v2", "0x%x is not the start of an allocation", p)
	}
	return d.release(a)
}

func (d *Driver) release(a *alloc) error {
	if err := d.until("cuMemFree_v2", func() bool { return d.idle() }); err != nil {
		return err
	}
	d.allocs = slices.DeleteFunc(d.allocs, func(x *alloc) bool { return x == a })
	if a.device >= 0 {
		d.used[a.device] -= int64(len(a.memory))
	}
	return nil
}

// AllocHost returns memory of the process.
func (d *Driver) AllocHost(bytes int64) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.alive("cuMemHostAlloc"); err != nil {
		return nil, err
	}
	if bytes <= 0 {
		return nil, invalid("cuMemHostAlloc", "%d bytes", bytes)
	}
	a := newAlloc(bytes, -1)
	a.base = address(a.memory)
	d.insert(a)
	return a.memory, nil
}

// FreeHost waits for the device and frees memory of AllocHost.
func (d *Driver) FreeHost(memory []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.find(address(memory))
	if a == nil || a.base != address(memory) || a.device >= 0 {
		return invalid("cuMemFreeHost", "not the start of an allocation")
	}
	return d.release(a)
}

func address(memory []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
}

// Leaks lists what was not freed: allocations, contexts, streams and events, and communicators
// whose end would hang in NCCL.
func (d *Driver) Leaks() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var held []string
	for _, a := range d.allocs {
		held = append(held, fmt.Sprintf("%d bytes at 0x%x", len(a.memory), a.base))
	}
	for device, n := range d.retained {
		if n > 0 {
			held = append(held, fmt.Sprintf("%d uses of device %d", n, device))
		}
	}
	for what, n := range map[string]int{"streams": len(d.streams), "events": len(d.events), "graphs": len(d.graphs), "graphs to launch": len(d.execs), "communicators in graphs": d.stuck} {
		if n > 0 {
			held = append(held, fmt.Sprintf("%d %s", n, what))
		}
	}
	return held
}

// Waiting returns how much work streams have not done yet.
func (d *Driver) Waiting() (work int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.order {
		work += len(s.queue)
	}
	return work
}

// Ran returns how many pieces of work have run, and how many graphs were launched.
func (d *Driver) Ran() (work, graphs int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ran, d.launched
}
