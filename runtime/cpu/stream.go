package cpu

import (
	"math"
	"sync"
	"time"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Streams and events. The compute stream of a rank is the goroutine that calls its device. Every
// other stream is a queue with a goroutine. An event is a count: event n of a stream has happened
// when the stream's counter is at least n.

// streams is how many streams a rank has, beside how many of them have a goroutine.
const (
	streams = int(runtime.Host)
	beside  = streams - 1
)

// stream is a stream of a rank other than its compute stream. Its goroutine starts with the first
// work, does work in order, and sleeps while there is none.
type stream struct {
	of   runtime.Stream
	lane *Device // a device over the rank's arenas, with a pool and scratch of its own

	mu      sync.Mutex
	given   *sync.Cond
	queue   []work // from index head on
	head    int
	started bool
	closed  bool
	err     error // the first failure; after it the stream only records events

	events *counter // how many it has recorded
}

// work is one thing that a stream does: a collective, a send, or a wait for a counter. If none is
// set it is the record of an event.
type work struct {
	collective *runtime.Collective
	send       *runtime.Transfer
	until      *counter
	n          int64
	rank       int // rank of the counter
}

// stream returns a stream of the rank other than its compute stream.
func (d *Device) stream(s runtime.Stream) *stream { return d.beside[s-1] }

// open prepares the stream of a rank.
func (s *stream) open(d *Device) {
	s.lane = &Device{backend: d.backend, rank: d.rank, pool: d.backend.cores.NewPool(d.rank), timer: stopped()}
	s.given = sync.NewCond(&s.mu)
}

// give appends work to the queue.
func (s *stream) give(w work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.started = true
		s.lane.backend.others.start(s.serve)
	}
	if s.head == len(s.queue) {
		s.queue, s.head = s.queue[:0], 0
	}
	s.queue = append(s.queue, w)
	s.given.Signal()
}

// take waits for the next work and returns it, or false when the stream is closed.
func (s *stream) take() (work, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.head == len(s.queue) {
		if s.closed {
			return work{}, false
		}
		s.lane.pool.Leave()
		s.given.Wait()
	}
	s.head++
	return s.queue[s.head-1], !s.closed
}

func (s *stream) serve() {
	defer s.lane.pool.Leave()
	for {
		w, more := s.take()
		if !more {
			return
		}
		if w.collective == nil && w.send == nil && w.until == nil {
			s.events.add(1)
			continue
		}
		if s.failure() != nil {
			continue
		}
		if err := s.do(w); err != nil {
			s.mu.Lock()
			s.err = err
			s.mu.Unlock()
		}
	}
}

// do does one piece of work. It turns a panic into an error with the stack.
func (s *stream) do(w work) (err error) {
	defer func() {
		if x := recover(); x != nil {
			err = runtime.Panicked(x)
		}
		if err != nil && w.node() != nil {
			err = &runtime.StreamError{Stream: s.of, Node: w.node(), Err: err}
		}
	}()
	if w.until != nil {
		rank := w.rank
		s.lane.backend.others.await(rank, w.until, w.n)
		return s.lane.wait(w.until, w.n, func() []int { return []int{rank} })
	}
	start, ran := time.Now(), (func(start, end time.Time))(nil)
	if w.send != nil {
		ran, err = w.send.Ran, s.lane.send(w.send)
	} else {
		ran, err = w.collective.Ran, s.lane.collective(w.collective)
	}
	if err == nil && ran != nil {
		ran(start, time.Now())
	}
	return err
}

// node returns the instruction, or nil if the work is none.
func (w *work) node() *ir.Node {
	switch {
	case w.collective != nil:
		return w.collective.Node
	case w.send != nil:
		return w.send.Node
	}
	return nil
}

// failure returns the first failure of the stream.
func (s *stream) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// close ends the goroutine after the work in progress.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.given.Signal()
}

// Record makes the next event of a stream. On the compute stream it has happened when Record
// returns.
func (d *Device) Record(s runtime.Stream) error {
	if s != runtime.Compute {
		d.stream(s).give(work{})
	} else {
		d.events.add(1)
	}
	return nil
}

// Wait waits for an event. With stream Compute it blocks the caller; other streams wait in their
// goroutines.
func (d *Device) Wait(s runtime.Stream, e runtime.Event) error {
	of := d.backend.devices[e.Rank]
	c := of.events
	if e.Stream != runtime.Compute {
		c = of.stream(e.Stream).events
	}
	defer d.pool.Offer()
	switch {
	case s != runtime.Compute && s != runtime.Host:
		if c.n.Load() < e.N {
			d.stream(s).give(work{until: c, n: e.N, rank: e.Rank})
		}
		return nil
	case of == d && e.Stream != runtime.Compute:
		// Every wait of the stream itself is bounded, so this wait needs no bound of its own.
		if err := d.waitFor(c, e.N, math.MaxInt64, nil); err != nil {
			return err
		}
		return d.stream(e.Stream).failure()
	}
	d.backend.others.await(e.Rank, c, e.N)
	err := d.wait(c, e.N, func() []int { return []int{e.Rank} })
	if s == runtime.Host { // the rank has nothing to do for now
		d.pool.Leave()
	}
	return err
}
