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

// Device is one rank. Calls hand work to the GPU and return; those that wait say so.
type Device struct {
	backend *Backend
	drv     driver.Driver
	gpu     *gpu
	rank    int

	compute    *lane
	streams    [runtime.Host]*lane // the compute lane among them
	arena      driver.Ptr          // of device memory
	arenaBytes int64
	host       []byte // pinned

	workspace, scratch driver.Ptr
	scratchBytes       int64
	upload             staging
	landing            []byte // pinned, for downloads
	landed             driver.Event
	ends               ends

	received map[int]int64          // messages taken, by Transfer.Wire
	inlets   map[int]*lane          // where those of GPUs of their own arrive, by sender
	expected map[int][]driver.Event // after messages that are expected and not taken, by Transfer.Wire

	// prepared are the kernels of loaded programs, made ready when they are launched
	// first; nil until then. Programs do not change. groups are those that are done as one,
	// by their first kernel; the others of a group have an empty one.
	prepared map[*runtime.Kernel]launch
	groups   map[*runtime.Kernel]kernel.Group
	checked  []kernel.Group // since the arena was asked for
	steps    *replay        // nil where steps are never graphs
	labels   driver.Labeler // nil unless the driver wants to know
}

var (
	_ runtime.Device  = (*Device)(nil)
	_ runtime.Checker = (*Device)(nil)
	_ runtime.Late    = (*Device)(nil)
	_ runtime.Fuser   = (*Device)(nil)
	_ runtime.Meeter  = (*Device)(nil)
)

// launch puts a prepared kernel on a stream.
type launch func(s driver.Stream) error

const (
	// landingBytes is the pinned memory through which downloads go, a piece at a time.
	landingBytes = 1 << 20
	// spin is how long a wait for the GPU looks without sleeping.
	spin = 200 * time.Microsecond
	nap  = 50 * time.Microsecond
)

func newDevice(b *Backend, g *gpu, rank int) *Device {
	d := &Device{backend: b, drv: b.system.Driver, gpu: g, rank: rank, prepared: map[*runtime.Kernel]launch{}, groups: map[*runtime.Kernel]kernel.Group{},
		received: map[int]int64{}, inlets: map[int]*lane{}, expected: map[int][]driver.Event{}}
	d.labels, _ = d.drv.(driver.Labeler)
	if !b.opts.Loopback && !b.opts.Synchronous && !b.opts.Eager && !b.crowded() {
		d.steps = &replay{Device: d}
	}
	return d
}

// open takes what the rank needs on its GPU, which is current.
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

// do does a call, unless it is one of a step that is replayed.
func (d *Device) do(c call, data []byte) error {
	if d.steps != nil {
		return d.steps.do(c, data)
	}
	return (&replay{Device: d}).perform(c, data)
}

// flush has everything done that was told before something that no graph has.
func (d *Device) flush() error {
	if d.steps == nil {
		return nil
	}
	return d.steps.flush()
}

// meetsOnHost reports whether ranks of collectives wait for each other on the host.
func (b *Backend) meetsOnHost() bool { return b.opts.Loopback && b.world.Ranks > 1 }

// enter makes the rank's GPU current on the calling thread. It is followed by leave.
func (d *Device) enter() error {
	goruntime.LockOSThread()
	return d.drv.SetCurrent(d.gpu.context)
}

func (d *Device) leave() { goruntime.UnlockOSThread() }

// drain waits until the compute stream has done what it was given.
func (d *Device) drain() error {
	if err := d.drv.RecordEvent(d.landed, d.compute.stream); err != nil {
		return err
	}
	return d.poll(func() (bool, error) { return d.drv.EventDone(d.landed) })
}

// settle is drain for devices that do one thing after another.
func (d *Device) settle() error {
	if !d.backend.opts.Synchronous {
		return nil
	}
	return d.drain()
}

// poll waits for the GPU. Work that was given ends by itself unless it is a collective of
// several GPUs, which the world's timeout bounds.
func (d *Device) poll(done func() (bool, error)) error {
	start := time.Now()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-d.backend.stopped:
			return runtime.ErrAborted
		default:
		}
		waited := time.Since(start)
		if err := d.hangs(waited); err != nil {
			return err
		}
		if waited < spin {
			goruntime.Gosched()
		} else {
			time.Sleep(nap)
		}
	}
}

// Check implements [runtime.Checker]. Kernels that pass are prepared when they are
// launched first.
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

// Fuse implements [runtime.Fuser]. Where every call is timed, each kernel has its own.
func (d *Device) Fuse(run []*runtime.Kernel, uses map[*ir.Value]int) error {
	if d.backend.opts.Synchronous {
		return nil
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	for _, g := range kernel.Fuse(run, uses) {
		if len(g) == 1 || d.backend.opts.Reproducible && slices.ContainsFunc(g, isProduct) { // a library joins products
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

// group returns what is done where a kernel is launched: nothing if others have done it.
func (d *Device) group(k *runtime.Kernel) kernel.Group {
	if g, ok := d.groups[k]; ok {
		return g
	}
	return kernel.Group{k}
}

// unprepare forgets what depends on addresses.
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

// prepare makes a kernel ready to be launched any number of times.
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

// reserve makes the scratch memory of kernels at least bytes long.
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
	place, err := d.drv.Alloc(bytes)
	if err != nil {
		return fmt.Errorf("cuda: scratch memory of %d bytes: %w", bytes, err)
	}
	d.scratch, d.scratchBytes = place, bytes
	return nil
}

// place is where a tensor lies.
func (d *Device) place(t runtime.Tensor) uint64 {
	if t.Space == runtime.OnHost {
		panic("BUG: cuda: a kernel reads host memory")
	}
	return uint64(d.arena) + uint64(t.Offset)
}

var _ kernel.Place = (*Device)(nil).place

func (d *Device) at(t runtime.Tensor) driver.Ptr { return driver.Ptr(d.place(t)) }

// copies reports the ops that only move a value between the spaces.
func copies(k *runtime.Kernel) bool {
	return k.Node.Op == ir.OpFetch || k.Node.Op == ir.OpStash
}

// prepareCopy copies between the arenas.
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

// label tells the driver what a lane is given next.
func (d *Device) label(l *lane, op, name string) {
	if d.labels != nil {
		d.labels.Label(l.stream, fmt.Sprintf("rank %d %s %s", d.rank, op, name))
	}
}

// Close ends the rank. The last to be closed frees the GPUs: until then streams of
// others may use its arena.
func (d *Device) Close() error { return d.backend.closed() }

// rest waits, but not past the end, until the rank's streams have done what they were given, and drops its graphs.
func (d *Device) rest(end time.Time) error {
	if err := d.drv.SetCurrent(d.gpu.context); err != nil {
		return err
	}
	for _, l := range d.lanes() {
		if !l.rests(end) {
			d.backend.left.Store(true)
			return fmt.Errorf("cuda: a stream of rank %d is at work still after %v; GPU %d (%s) stays open", d.rank, d.backend.bound, d.gpu.ordinal, d.gpu.name)
		}
	}
	if d.steps == nil {
		return nil
	}
	return d.steps.forgetAll()
}

// release frees what the rank holds, which rests.
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
