package cuda

import (
	"cmp"
	goruntime "runtime"
	"slices"
	"sync"
	"time"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Streams and events. Events of the runtime are numbers per stream; those of the driver are objects
// that exist once they are recorded. A lane maps one to the other. It also counts on the host what
// has been recorded, so that a rank can wait for an event of another rank to be recorded before its
// own stream waits for it.

// lane is one stream of a rank: a stream of the driver with the events that were recorded on it.
// The goroutine that calls the device usually gives it work directly. The exception is loopback,
// where ranks meet on the host: there every lane but the compute lane has its own goroutine, which
// can wait for the other ranks while the caller goes on.
type lane struct {
	device *Device
	stream driver.Stream

	mu       sync.Mutex
	happened int64  // all events up to this number are known to have happened
	marks    []mark // later events, as far as they are recorded
	spare    spares
	recorded tally // how many events have been recorded

	groups  map[int]*view // by Collective.Group (loopback); used by the goroutine that gives the lane work
	flag    driver.Ptr    // flagBytes, with NCCL: whether a fixed-point sum may overflow
	packing driver.Ptr    // packingBytes, with NCCL, if something is packed
	packs   bool          // something of a loaded program is
	sums    bool          // in fixed point, with NCCL
	given   []given       // work that waits for other ranks and may not be done yet

	// Only if the lane has its own goroutine:
	beside  bool // it has
	queueMu sync.Mutex
	more    *sync.Cond
	queue   []task
	started bool
	closed  bool
	exited  chan struct{}
	err     error // the first failure; after it only records are made
}

// mark is an event of the driver that stands for all events of the lane up to a number.
type mark struct {
	event driver.Event
	upTo  int64
}

// task is work for the lane's goroutine. Records are made even after a failure, so that those who
// wait for the event wake up and learn of it.
type task struct {
	do     func() error
	record bool
}

// tally is a counter that goroutines can wait for. The zero value is ready for use.
type tally struct {
	mu      sync.Mutex
	n       int64
	changed chan struct{}
}

func (t *tally) add() { t.addN(1) }

func (t *tally) addN(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += n
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// reached reports whether the count is at least n; if not, it returns a channel that is closed at
// the next change.
func (t *tally) reached(n int64) (bool, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n >= n {
		return true, nil
	}
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return false, t.changed
}

// await returns when a tally has reached n, or the run is aborted. If late is set, the world's
// timeout bounds the wait, and late lists the ranks to blame; if it is nil the wait has no bound of
// its own.
func (b *Backend) await(t *tally, n int64, late func() []int) error {
	ok, changed := t.reached(n)
	if ok {
		return nil
	}
	var deadline <-chan time.Time
	if late != nil {
		timer := time.NewTimer(b.world.Timeout)
		defer timer.Stop()
		deadline = timer.C
	}
	for !ok {
		select {
		case <-changed:
		case <-b.stopped:
			return runtime.ErrAborted
		case <-deadline:
			return &runtime.WaitError{Ranks: late(), After: b.world.Timeout}
		}
		ok, changed = t.reached(n)
	}
	return nil
}

const flagBytes = 8

func newLane(d *Device, beside bool) (*lane, error) {
	stream, err := d.drv.CreateStream()
	if err != nil {
		return nil, err
	}
	l := &lane{device: d, stream: stream, beside: beside, groups: map[int]*view{}}
	l.more = sync.NewCond(&l.queueMu)
	return l, nil
}

// run does a task now, or hands it to the lane's goroutine if it has one.
func (l *lane) run(t task) error {
	if !l.beside {
		return t.do()
	}
	l.queueMu.Lock()
	defer l.queueMu.Unlock()
	if !l.started {
		l.started, l.exited = true, make(chan struct{})
		go l.serve()
	}
	l.queue = append(l.queue, t)
	l.more.Signal()
	return nil
}

// communicate runs a collective or transfer on the lane of its stream. Its error names the node unless the stream is Compute,
// whose caller does. ran, if not nil, learns when it was given to the GPU: the rank does not wait to learn more.
func (d *Device) communicate(stream runtime.Stream, node *ir.Node, ran func(start, end time.Time), do func(*lane) error) error {
	l := d.lane(stream)
	err := l.run(task{do: func() error {
		start := time.Now()
		if err := do(l); err != nil {
			if stream != runtime.Compute {
				err = &runtime.StreamError{Stream: stream, Node: node, Err: err}
			}
			return err
		}
		if ran != nil {
			ran(start, time.Now())
		}
		return nil
	}})
	if err != nil {
		return err
	}
	return d.settle()
}

// take returns the next task and whether the lane has failed before; ok is false once the lane is
// closed.
func (l *lane) take() (t task, failed, ok bool) {
	l.queueMu.Lock()
	defer l.queueMu.Unlock()
	for len(l.queue) == 0 {
		if l.closed {
			return task{}, false, false
		}
		l.more.Wait()
	}
	t = l.queue[0]
	l.queue = l.queue[1:]
	return t, l.err != nil, true
}

// serve is the lane's goroutine. It keeps its thread, on which the GPU is current.
func (l *lane) serve() {
	goruntime.LockOSThread() // the thread ends with the goroutine
	defer close(l.exited)
	if err := l.device.drv.SetCurrent(l.device.gpu.context); err != nil {
		l.fail(err)
	}
	for {
		t, failed, ok := l.take()
		if !ok {
			return
		}
		if failed && !t.record {
			continue
		}
		if err := guard(t.do); err != nil {
			l.fail(err)
			if t.record {
				l.recorded.add() // whoever waits for it then looks for the failure
			}
		}
	}
}

// guard turns a panic into an error with the stack.
func guard(do func() error) (err error) {
	defer func() {
		if x := recover(); x != nil {
			err = runtime.Panicked(x)
		}
	}()
	return do()
}

func (l *lane) fail(err error) {
	l.queueMu.Lock()
	defer l.queueMu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// failure returns the first failure of the lane's goroutine.
func (l *lane) failure() error {
	l.queueMu.Lock()
	defer l.queueMu.Unlock()
	return l.err
}

// stop ends the lane's goroutine and waits for it.
func (l *lane) stop() {
	l.queueMu.Lock()
	l.closed = true
	l.queue = nil
	started := l.started
	l.more.Signal()
	l.queueMu.Unlock()
	if started {
		<-l.exited
	}
}

// awaitIdle waits until the stream is idle, and reports whether it was by the given time. Failures are
// ignored: they have been reported, and all that matters is that nothing runs any more.
func (l *lane) awaitIdle(end time.Time) bool {
	d := l.device
	if d.landed == 0 || d.drv.RecordEvent(d.landed, l.stream) != nil { // nothing was given, or the GPU has failed and nothing runs
		return true
	}
	for {
		done, err := d.drv.EventDone(d.landed)
		if done || err != nil {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(nap)
	}
}

// spares are events that nobody waits for any more. They are recorded again instead of making new
// ones.
type spares []driver.Event

// record records a spare event, or a new one, on a stream.
func (e *spares) record(drv driver.Driver, s driver.Stream) (event driver.Event, err error) {
	if last := len(*e) - 1; last >= 0 {
		event, *e = (*e)[last], (*e)[:last]
	} else if event, err = drv.CreateEvent(false); err != nil {
		return 0, err
	}
	return event, drv.RecordEvent(event, s)
}

// record makes the next event of the lane.
func (l *lane) record() error { return l.recordOn(l.stream, 1) }

// recordOn makes the next n events of the lane at once. They happen when stream s, which may be
// another lane's, has come so far.
func (l *lane) recordOn(s driver.Stream, n int64) error {
	if n == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e, err := l.spare.record(l.device.drv, s)
	if err != nil {
		return err
	}
	l.marks = append(l.marks, mark{e, l.last() + n})
	l.recorded.addN(n)
	return nil
}

// find returns the index of the first mark that covers event n. It is -1 if n has happened, or was
// not recorded because the lane has failed.
func (l *lane) find(n int64) int {
	if n <= l.happened {
		return -1
	}
	i, _ := slices.BinarySearchFunc(l.marks, n, func(m mark, n int64) int { return cmp.Compare(m.upTo, n) })
	if i == len(l.marks) {
		return -1
	}
	return i
}

// hold makes stream s wait for event n, which has been recorded.
func (l *lane) hold(n int64, s driver.Stream) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.find(n)
	if i < 0 {
		return nil
	}
	return l.device.drv.WaitEvent(s, l.marks[i].event)
}

// done reports whether event n, which has been recorded, has happened.
func (l *lane) done(n int64) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.find(n)
	if i < 0 {
		return true, nil
	}
	ok, err := l.device.drv.EventDone(l.marks[i].event)
	if !ok || err != nil {
		return false, err
	}
	l.happen(i)
	return true, nil
}

// passed is told that all events up to n have happened.
func (l *lane) passed(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	after := slices.IndexFunc(l.marks, func(m mark) bool { return m.upTo > n })
	if after < 0 {
		after = len(l.marks)
	}
	if after > 0 {
		l.happen(after - 1)
	}
}

// happen takes note that the marks up to index i have happened, and frees their events for reuse.
func (l *lane) happen(i int) {
	l.happened = l.marks[i].upTo
	for _, m := range l.marks[:i+1] {
		l.spare = append(l.spare, m.event)
	}
	l.marks = append(l.marks[:0], l.marks[i+1:]...)
}

// count returns how many events have been recorded.
func (l *lane) count() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last()
}

func (l *lane) last() int64 {
	if n := len(l.marks); n > 0 {
		return l.marks[n-1].upTo
	}
	return l.happened
}

// release frees the lane's events and stream.
func (l *lane) release() (errs []error) {
	drv := l.device.drv
	for _, e := range l.spare {
		errs = append(errs, drv.DestroyEvent(e))
	}
	for _, m := range l.marks {
		errs = append(errs, drv.DestroyEvent(m.event))
	}
	for _, v := range l.groups {
		for _, e := range v.events {
			if e != 0 {
				errs = append(errs, drv.DestroyEvent(e))
			}
		}
	}
	if l.flag != 0 {
		errs = append(errs, drv.Free(l.flag))
	}
	if l.packing != 0 {
		errs = append(errs, drv.Free(l.packing))
	}
	return append(errs, drv.DestroyStream(l.stream))
}
