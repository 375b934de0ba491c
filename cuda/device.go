package cuda

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"time"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Device is one rank. Calls give work to the GPU and return; the ones that wait say so.
type Device struct {
	backend *Backend
	drv     driver.Driver
	gpu     *gpu
	rank    int

	compute    *lane
	streams    [runtime.Host]*lane // one per stream, including compute
	arena      driver.Ptr          // of device memory
	arenaBytes int64
	host       []byte // pinned

	workspace, scratch driver.Ptr
	scratchBytes       int64
	upload             staging
	landing            []byte // pinned memory that downloads pass through
	landed             driver.Event
	ends               ends

	received map[int]int64 // how many messages were received, by Transfer.Wire (loopback)
	inlets   map[int]*lane // lanes that receive messages, by sender (NCCL): see meeting.go
	// memberships are the rank's parts in communicators, by group. coming are the groups that the next calls of Join are for, and
	// whether their members send each other messages.
	memberships map[int]*membership
	coming      map[int]bool
	expected    map[int][]driver.Event // events after messages that were expected and not received yet, by Transfer.Wire

	// prepared has the kernels of loaded programs, which do not change. Each is made ready when it
	// is first launched; until then its entry is nil. groups has the fused kernels, by the first
	// kernel of each group; the other kernels of a group have an empty group.
	prepared map[*runtime.Kernel]launch
	groups   map[*runtime.Kernel]kernel.Group
	checked  []kernel.Group // kernels and groups that were loaded since the last Alloc
	steps    *replay        // nil if steps are never CUDA graphs
	labels   driver.Labeler // nil if the driver does not take labels
}

var (
	_ runtime.Device   = (*Device)(nil)
	_ runtime.Checker  = (*Device)(nil)
	_ runtime.Late     = (*Device)(nil)
	_ runtime.Fuser    = (*Device)(nil)
	_ runtime.Meeter   = (*Device)(nil)
	_ runtime.Preparer = (*Device)(nil)
)

// launch puts a prepared kernel, or a fused group, on a stream.
type launch func(s driver.Stream) error

const (
	// landingBytes is the size of the pinned memory that downloads pass through, piece by piece.
	landingBytes = 1 << 20
	// A wait for the GPU polls without sleeping for spin, then every nap. An idle Go process sleeps a
	// millisecond at least, so a synchronous backend, whose calls are timed, does not sleep.
	spin = 200 * time.Microsecond
	nap  = time.Millisecond
)

func newDevice(b *Backend, g *gpu, rank int) *Device {
	d := &Device{backend: b, drv: b.system.Driver, gpu: g, rank: rank, prepared: map[*runtime.Kernel]launch{}, groups: map[*runtime.Kernel]kernel.Group{},
		received: map[int]int64{}, inlets: map[int]*lane{}, memberships: map[int]*membership{}, expected: map[int][]driver.Event{}}
	d.labels, _ = d.drv.(driver.Labeler)
	if !b.opts.Loopback && !b.opts.Synchronous && !b.opts.Eager && !b.crowded() {
		d.steps = &replay{Device: d}
	}
	return d
}

// open allocates what the rank needs on its GPU, whose context is current.
func (d *Device) open() (err error) {
	for s := range d.streams {
		if d.streams[s], err = newLane(d, s != int(runtime.Compute) && d.backend.meetsOnHost()); err != nil {
			return err
		}
	}
	d.compute = d.streams[runtime.Compute]
	for _, l := range d.lanes() {
		if !d.Meets() {
			break
		}
		if l.flag, err = d.drv.Alloc(flagBytes); err != nil {
			return err
		}
	}
	if d.workspace, err = d.drv.Alloc(d.gpu.blas.Workspace()); err != nil {
		return err
	}
	if d.landing, err = d.drv.AllocHost(landingBytes); err != nil {
		return err
	}
	if d.landed, err = d.drv.CreateEvent(false); err != nil {
		return err
	}
	if err := d.ends.open(d.drv); err != nil {
		return err
	}
	return d.upload.open(d)
}

// do makes a call, or only notes it if the step may be replayed as a graph.
func (d *Device) do(c call, data []byte) error {
	if d.steps != nil {
		return d.steps.do(c, data)
	}
	return (&replay{Device: d}).perform(c, data)
}

// flush makes the calls that were only noted, before a call that no graph can contain.
func (d *Device) flush() error {
	if d.steps == nil {
		return nil
	}
	return d.steps.flush()
}

// meetsOnHost reports whether the ranks of a collective wait for each other on the host (loopback).
func (b *Backend) meetsOnHost() bool { return b.opts.Loopback && b.world.Ranks > 1 }

// enter makes the rank's GPU current on the calling thread. A call of leave follows.
func (d *Device) enter() error {
	goruntime.LockOSThread()
	return d.drv.SetCurrent(d.gpu.context)
}

func (d *Device) leave() { goruntime.UnlockOSThread() }

// drain waits until the compute stream is idle.
func (d *Device) drain() error {
	if err := d.drv.RecordEvent(d.landed, d.compute.stream); err != nil {
		return err
	}
	return d.poll(func() (bool, error) { return d.drv.EventDone(d.landed) })
}

// settle drains if the backend is synchronous.
func (d *Device) settle() error {
	if !d.backend.opts.Synchronous {
		return nil
	}
	return d.drain()
}

// poll waits until done says that work of the GPU has ended. Work that waits for other ranks may
// never end, so the timeout of the world bounds the wait (see hangs).
func (d *Device) poll(done func() (bool, error)) error {
	start := time.Now()
	for {
		ok, err := done()
		select {
		case <-d.backend.stopped: // NCCL may have dropped what is done
			return runtime.ErrAborted
		default:
		}
		if ok || err != nil {
			return err
		}
		waited := time.Since(start)
		if err := d.hangs(waited); err != nil {
			return err
		}
		if waited < spin || d.backend.opts.Synchronous {
			goruntime.Gosched()
		} else {
			time.Sleep(nap)
		}
	}
}

// Check implements [runtime.Checker]. A kernel that passes is prepared at its first launch.
func (d *Device) Check(k *runtime.Kernel) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	for i, acc := range k.Accum {
		if acc && !k.Node.Op.Accumulates(i) && k.Node.Op != ir.OpAccumulate {
			return fmt.Errorf("cuda: %s cannot add into result %d", k.Node.Op, i)
		}
	}
	if !copies(k) && !d.isGEMM(k) {
		if err := d.gpu.engine.Check(kernel.Group{k}); err != nil {
			return err
		}
	}
	d.prepared[k] = nil
	d.checked = append(d.checked, kernel.Group{k})
	return nil
}

// Fuse implements [runtime.Fuser]. A synchronous device fuses nothing, as every kernel is timed.
func (d *Device) Fuse(run []*runtime.Kernel, uses map[*ir.Value]int) error {
	if d.backend.opts.Synchronous {
		return nil
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	for _, g := range kernel.Fuse(run, uses) {
		if len(g) == 1 || d.backend.opts.Reproducible && slices.ContainsFunc(g, isProduct) { // cuBLASLt runs fused products
			continue
		}
		if d.productIn(g) < 0 {
			if err := d.gpu.engine.Check(g); err != nil {
				return err
			}
		}
		for _, k := range g {
			d.groups[k] = nil
		}
		d.groups[g[0]] = g
		d.checked = append(d.checked, g)
	}
	return nil
}

// group returns the kernels that a launch of k runs: k, its group, or none if k is a later one of a
// group.
func (d *Device) group(k *runtime.Kernel) kernel.Group {
	if g, ok := d.groups[k]; ok {
		return g
	}
	return kernel.Group{k}
}

// unprepare drops prepared kernels and graphs, because addresses in them may change.
func (d *Device) unprepare() error {
	for k := range d.prepared {
		d.prepared[k] = nil
	}
	if d.steps == nil {
		return nil
	}
	return d.steps.forgetAll()
}

// Launch runs a kernel.
func (d *Device) Launch(k *runtime.Kernel) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.do(call{kind: callLaunch, kernel: k}, nil)
}

func (d *Device) launch(k *runtime.Kernel) error {
	run, loaded := d.prepared[k]
	if run == nil {
		var err error
		if run, err = d.prepare(k); err != nil {
			return err
		}
		if loaded {
			d.prepared[k] = run
		}
	}
	d.label(d.compute, k.Node.Op.String(), k.Node.Name)
	if err := run(d.compute.stream); err != nil {
		return err
	}
	return d.settle()
}

// prepare returns the launch of a kernel and what is fused with it. It can be run any number of
// times.
func (d *Device) prepare(k *runtime.Kernel) (launch, error) {
	switch g := d.group(k); {
	case len(g) == 0:
		return func(driver.Stream) error { return nil }, nil
	case len(g) > 1 && d.productIn(g) >= 0:
		return d.prepareEpilogue(g)
	default:
		return d.prepareGroup(g)
	}
}

func (d *Device) prepareGroup(g kernel.Group) (launch, error) {
	switch k := g[0]; {
	case copies(k):
		return d.prepareCopy(k), nil
	case d.isGEMM(k):
		return d.prepareGEMM(k), nil
	}
	if err := d.reserve(d.gpu.engine.Scratch(g)); err != nil {
		return nil, err
	}
	return d.gpu.engine.Prepare(g, d.place, d.scratch)
}

// reserve grows the scratch memory of kernels to at least the given bytes.
func (d *Device) reserve(bytes int64) error {
	if bytes <= d.scratchBytes {
		return nil
	}
	if err := d.unprepare(); err != nil {
		return err
	}
	if d.scratch != 0 {
		if err := d.drain(); err != nil {
			return err
		}
		if err := d.drv.Free(d.scratch); err != nil {
			return err
		}
		d.scratch, d.scratchBytes = 0, 0
	}
	place, err := d.alloc(bytes)
	if err != nil {
		return fmt.Errorf("scratch memory beside the arena: %w", err)
	}
	d.scratch, d.scratchBytes = place, bytes
	return nil
}

// place returns the device address of a tensor.
func (d *Device) place(t runtime.Tensor) uint64 {
	if t.Space == runtime.OnHost {
		panic("BUG: cuda: a kernel reads host memory")
	}
	return uint64(d.arena) + uint64(t.Offset)
}

var _ kernel.Place = (*Device)(nil).place

func (d *Device) at(t runtime.Tensor) driver.Ptr { return driver.Ptr(d.place(t)) }

// copies reports whether a kernel only copies between the two spaces.
func copies(k *runtime.Kernel) bool {
	return k.Node.Op == ir.OpFetch || k.Node.Op == ir.OpStash
}

func (d *Device) prepareCopy(k *runtime.Kernel) launch {
	from, to, bytes := k.Args[0], k.Results[0], k.Args[0].Bytes()
	return func(s driver.Stream) error {
		if bytes == 0 {
			return nil
		}
		if k.Node.Op == ir.OpFetch {
			return d.drv.CopyToDevice(d.at(to), d.host[from.Offset:from.Offset+bytes], s)
		}
		return d.drv.CopyToHost(d.host[to.Offset:to.Offset+bytes], d.at(from), s)
	}
}

// label tells the driver what the next work on a lane is, for its reports.
func (d *Device) label(l *lane, op, name string) {
	if d.labels != nil {
		d.labels.Label(l.stream, fmt.Sprintf("rank %d %s %s", d.rank, op, name))
	}
}

// Close closes the rank. The last rank to be closed frees the GPUs: until then streams of other
// ranks may use its arena.
func (d *Device) Close() error { return d.backend.closed() }

// awaitIdle waits until the rank's streams are idle, at most until end, and frees its graphs.
func (d *Device) awaitIdle(end time.Time) error {
	if err := d.drv.SetCurrent(d.gpu.context); err != nil {
		return err
	}
	for _, l := range d.lanes() {
		if !l.awaitIdle(end) {
			d.backend.abandoned.Store(true)
			return fmt.Errorf("cuda: a stream of rank %d is at work still after %v; GPU %d (%s) stays open", d.rank, d.backend.bound, d.gpu.ordinal, d.gpu.name)
		}
	}
	if d.steps == nil {
		return nil
	}
	return d.steps.forgetAll()
}

// release frees the memory and events of the rank, whose streams are idle.
func (d *Device) release() error {
	errs := []error{d.drv.SetCurrent(d.gpu.context)}
	for _, events := range d.expected {
		for _, e := range events {
			errs = append(errs, d.drv.DestroyEvent(e))
		}
	}
	for _, l := range d.lanes() {
		errs = append(errs, l.release()...)
	}
	for _, p := range []driver.Ptr{d.arena, d.scratch, d.workspace} {
		if p != 0 {
			errs = append(errs, d.drv.Free(p))
		}
	}
	for _, m := range [][]byte{d.host, d.landing} {
		if m != nil {
			errs = append(errs, d.drv.FreeHost(m))
		}
	}
	if d.landed != 0 {
		errs = append(errs, d.drv.DestroyEvent(d.landed))
	}
	errs = append(errs, d.ends.release(d.drv)...)
	return errors.Join(append(errs, d.upload.release(d.drv)...)...)
}
