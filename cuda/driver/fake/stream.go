package fake

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/cuda/driver"
)

// Streams and events. A stream is a queue of entries; whenever the host calls the driver, the fake
// may run the first entry of a random stream that is ready. Vector clocks (order.go) follow streams
// and events.

// stream is a queue of work.
type stream struct {
	id      int
	device  int
	clock   clock
	queue   []*entry
	label   string
	failure error // of work that ran; the next wait returns it
	graph   bool  // it runs the work of a graph

	capture *graph // the capture that it takes part in
	index   int    // its index in the capture
}

// entry is one piece of work of a stream, or the record of an event, or a wait for one.
type entry struct {
	kind    kind
	n       int64 // how many entries all streams were given before it
	what    string
	bytes   int64 // read and written
	run     func() error
	ready   func() bool // nil is always ready
	event   *event
	version int64
	adopts  *stream // a stream of a graph, whose failure becomes this stream's
}

type kind uint8

const (
	work kind = iota
	record
	wait
)

// event counts how often it was recorded, and how many of those records have happened.
type event struct {
	recorded, happened int64
	clock              clock
	by                 *stream
	when               float64 // milliseconds on the fake clock, of its last record
	timed              bool

	capture  *graph // the capture in which it was last recorded, while that goes on
	captured clock
	captive  bool // it was last recorded in a capture, which may have ended
}

func (d *Driver) handle() uintptr {
	d.handles++
	return d.handles
}

func (d *Driver) newStream(device int) *stream {
	s := &stream{id: len(d.order), device: device}
	d.order = append(d.order, s)
	return s
}

// CreateStream makes a stream.
func (d *Driver) CreateStream() (driver.Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	device, err := d.device("cuStreamCreate")
	if err != nil {
		return 0, err
	}
	h := driver.Stream(d.handle())
	d.streams[h] = d.newStream(device)
	return h, nil
}

// DestroyStream destroys a stream after its work.
func (d *Driver) DestroyStream(s driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.stream("cuStreamDestroy", s); err != nil {
		return err
	}
	delete(d.streams, s)
	return nil
}

func (d *Driver) stream(call string, s driver.Stream) (*stream, error) {
	st, ok := d.streams[s]
	if !ok {
		return nil, failed(call, 400, fmt.Sprintf("CUDA_ERROR_INVALID_HANDLE: no stream %d", s))
	}
	return st, nil
}

func (d *Driver) event(call string, e driver.Event) (*event, error) {
	ev, ok := d.events[e]
	if !ok {
		return nil, failed(call, 400, fmt.Sprintf("CUDA_ERROR_INVALID_HANDLE: no event %d", e))
	}
	return ev, nil
}

// CreateEvent makes an event.
func (d *Driver) CreateEvent(timed bool) (driver.Event, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.device("cuEventCreate"); err != nil {
		return 0, err
	}
	h := driver.Event(d.handle())
	d.events[h] = &event{timed: timed}
	return h, nil
}

// DestroyEvent drops an event.
func (d *Driver) DestroyEvent(e driver.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.event("cuEventDestroy", e); err != nil {
		return err
	}
	delete(d.events, e)
	return nil
}

// RecordEvent makes an event happen when the stream has done what it was given.
func (d *Driver) RecordEvent(e driver.Event, s driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.device("cuEventRecord"); err != nil {
		return err
	}
	ev, err := d.event("cuEventRecord", e)
	if err != nil {
		return err
	}
	st, err := d.stream("cuEventRecord", s)
	if err != nil {
		return err
	}
	if g := st.capture; g != nil {
		ev.capture, ev.captured, ev.captive = g, g.clocks[st.index].copy(), true
		g.nodes = append(g.nodes, node{stream: st.index, kind: record, event: ev})
		return nil
	}
	ev.capture, ev.captive = nil, false
	d.record(st, ev)
	return nil
}

func (d *Driver) record(st *stream, ev *event) {
	st.clock.join(d.host)
	ev.recorded++
	ev.clock, ev.by = st.clock.copy(), st
	d.push(st, &entry{kind: record, event: ev, version: ev.recorded})
}

// WaitEvent makes later work of a stream wait for an event.
func (d *Driver) WaitEvent(s driver.Stream, e driver.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.device("cuStreamWaitEvent"); err != nil {
		return err
	}
	ev, err := d.event("cuStreamWaitEvent", e)
	if err != nil {
		return err
	}
	st, err := d.stream("cuStreamWaitEvent", s)
	if err != nil {
		return err
	}
	if g := st.capture; g != nil || ev.capture != nil {
		return d.waitCaptured(st, ev)
	}
	if ev.captive {
		return failed("cuStreamWaitEvent", 907, "CUDA_ERROR_CAPTURED_EVENT")
	}
	d.wait(st, ev)
	return nil
}

func (d *Driver) wait(st *stream, ev *event) {
	if ev.recorded > 0 {
		st.clock.join(ev.clock)
		d.push(st, &entry{kind: wait, event: ev, version: ev.recorded})
	}
}

// EventDone reports whether an event has happened, after letting some work run.
func (d *Driver) EventDone(e driver.Event) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.device("cuEventQuery"); err != nil {
		return false, err
	}
	ev, err := d.event("cuEventQuery", e)
	if err != nil {
		return false, err
	}
	if ev.captive {
		return false, failed("cuEventQuery", 907, "CUDA_ERROR_CAPTURED_EVENT")
	}
	for range 64 {
		if ev.happened >= ev.recorded || !d.runOne() {
			break
		}
	}
	if err := d.alive("cuEventQuery"); err != nil {
		return false, err
	}
	if ev.happened < ev.recorded {
		return false, nil
	}
	d.host.join(ev.clock)
	if ev.by != nil && ev.by.failure != nil {
		err, ev.by.failure = ev.by.failure, nil
	}
	return true, err
}

// Elapsed returns how long the work between two events took by the fake clock, which runs all
// streams one after another.
func (d *Driver) Elapsed(from, to driver.Event) (float32, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, err := d.event("cuEventElapsedTime", from)
	if err != nil {
		return 0, err
	}
	b, err := d.event("cuEventElapsedTime", to)
	if err != nil {
		return 0, err
	}
	if !a.timed || !b.timed {
		return 0, failed("cuEventElapsedTime", 400, "CUDA_ERROR_INVALID_HANDLE: an event without time")
	}
	return float32(b.when - a.when), nil
}

// SyncStream runs work until the stream is idle.
func (d *Driver) SyncStream(s driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.device("cuStreamSynchronize"); err != nil {
		return err
	}
	st, err := d.stream("cuStreamSynchronize", s)
	if err != nil {
		return err
	}
	if st.capture != nil {
		st.capture.spoilt = true
		return failed("cuStreamSynchronize", 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")
	}
	if err := d.until("cuStreamSynchronize", func() bool { return len(st.queue) == 0 }); err != nil {
		return err
	}
	d.host.join(st.clock)
	err, st.failure = st.failure, nil
	return err
}

// Label tells what the next work of a stream is for.
func (d *Driver) Label(s driver.Stream, what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if st := d.streams[s]; st != nil {
		st.label = what
	}
}

// Run puts a Go function on a stream in place of a device function. It may access only these
// ranges, through [Driver.Memory].
func (d *Driver) Run(s driver.Stream, what string, reads, writes []Range, do func() error) error {
	return d.give(s, what, reads, writes, do)
}

// Memory returns the memory at an address. Only functions of [Driver.Run] may use it.
func (d *Driver) Memory(r Range) []byte {
	if r.Bytes == 0 {
		return nil
	}
	a := d.find(uint64(r.At))
	at := uint64(r.At) - a.base
	return a.memory[at : at+uint64(r.Bytes)]
}

// give adds work to a stream, or to the graph that it records.
func (d *Driver) give(s driver.Stream, what string, reads, writes []Range, do func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.add(s, node{what: what, reads: reads, writes: writes, do: do})
}

// add adds a node to a stream, or to the graph that it records.
func (d *Driver) add(s driver.Stream, n node) error {
	what := n.what
	if _, err := d.device(what); err != nil {
		return err
	}
	st, err := d.stream(what, s)
	if err != nil {
		return err
	}
	if st.label != "" {
		n.what = st.label + " (" + what + ")"
	}
	if g := st.capture; g != nil {
		g.clocks[st.index].tick(st.index)
		n.stream, n.reads, n.writes = st.index, slices.Clone(n.reads), slices.Clone(n.writes)
		g.nodes = append(g.nodes, n)
		return nil
	}
	return d.issue(st, n)
}

// issue adds a node to the queue of a stream.
func (d *Driver) issue(st *stream, n node) error {
	st.clock.join(d.host)
	st.clock.tick(st.id)
	for i, list := range [][]Range{n.reads, n.writes} {
		for _, r := range list {
			if err := d.touch(st, n.what, r, i == 1); err != nil {
				return err
			}
		}
	}
	e := &entry{what: n.what, run: n.do}
	for _, r := range append(slices.Clone(n.reads), n.writes...) {
		e.bytes += r.Bytes
	}
	d.push(st, e)
	if n.meet != nil {
		n.meet(st, e)
	}
	for d.rng.IntN(4) == 0 && d.runOne() { // sometimes the device keeps up with the host
	}
	return nil
}

func (d *Driver) push(s *stream, e *entry) {
	e.n = d.given
	d.given++
	s.queue = append(s.queue, e)
}

// turn reports whether the first entry of a stream has its turn: always, unless the device works in
// turn.
func (d *Driver) turn(s *stream) bool {
	if len(s.queue) == 0 {
		return false
	}
	for _, other := range d.order {
		if d.opts.InTurn && other.device == s.device && len(other.queue) > 0 && other.queue[0].n < s.queue[0].n {
			return false
		}
	}
	return true
}

// runnable reports whether the first entry of a stream can run.
func (d *Driver) runnable(s *stream) bool {
	if !d.turn(s) {
		return false
	}
	switch e := s.queue[0]; e.kind {
	case wait:
		return e.event.happened >= e.version
	case work:
		return e.ready == nil || e.ready()
	}
	return true
}

// runOne runs the first entry of a random stream, if any can run.
func (d *Driver) runOne() bool {
	n := 0
	var chosen *stream
	for _, s := range d.order {
		if d.runnable(s) {
			if n++; d.rng.IntN(n) == 0 {
				chosen = s
			}
		}
	}
	if chosen == nil || d.alive("") != nil {
		return false
	}
	e := chosen.queue[0]
	chosen.queue = chosen.queue[1:]
	switch e.kind {
	case record:
		e.event.happened, e.event.when = max(e.event.happened, e.version), d.now
	case wait:
		if p := e.adopts; p != nil && chosen.failure == nil {
			chosen.failure, p.failure = p.failure, nil
		}
	case work:
		d.ran++
		d.spend(e.what, e.bytes)
		if err := e.run(); err != nil && chosen.failure == nil {
			chosen.failure = fmt.Errorf("%s: %w", e.what, err)
		}
	}
	return true
}

// spend advances the clock by a piece of work.
func (d *Driver) spend(what string, bytes int64) {
	if d.opts.Clock == nil {
		d.now++
	} else {
		d.now += d.opts.Clock(what, bytes)
	}
}

// until runs work until a condition holds.
func (d *Driver) until(call string, so func() bool) error {
	for !so() {
		if !d.runOne() {
			if err := d.alive(call); err != nil {
				return err
			}
			return fmt.Errorf("fake: %s would wait for ever: no stream can go on", call)
		}
	}
	return nil
}

func (d *Driver) idle() bool {
	return !slices.ContainsFunc(d.order, func(s *stream) bool { return len(s.queue) > 0 })
}
