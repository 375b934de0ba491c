package cuda

import (
	"fmt"
	"maps"
	"slices"

	"github.com/autopar/autopar/runtime"
)

// Record makes the next event of a stream.
func (d *Device) Record(s runtime.Stream) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.do(call{kind: callRecord, stream: s}, nil)
}

func (d *Device) record(s runtime.Stream) error {
	l := d.lane(s)
	return l.run(task{record: true, do: l.record})
}

func (d *Device) lane(s runtime.Stream) *lane { return d.streams[s] }

func (d *Device) lanes() (all []*lane) {
	for _, l := range d.streams {
		if l != nil {
			all = append(all, l)
		}
	}
	return slices.AppendSeq(all, maps.Values(d.inlets))
}

// Wait makes a stream, or the caller if s is Host, wait for an event.
func (d *Device) Wait(s runtime.Stream, e runtime.Event) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	other := d.backend.devices[e.Rank]
	if other == nil {
		return fmt.Errorf("cuda: rank %d waits for an event of rank %d, which is of another process", d.rank, e.Rank)
	}
	of := other.lane(e.Stream)
	if s != runtime.Host && of.device == d {
		return d.do(call{kind: callWait, stream: s, of: e.Stream, n: e.N}, nil)
	}
	if s != runtime.Host {
		if err := d.flush(); err != nil {
			return err
		}
		return d.waitFor(s, of, e)
	}
	if d.steps != nil {
		if err := d.steps.drop(); err != nil {
			return err
		}
	}
	if err := d.recorded(of, e); err != nil {
		return err
	}
	if err := d.poll(func() (bool, error) { return of.done(e.N) }); err != nil {
		return d.lane(e.Stream).blame(e, err)
	}
	return nil
}

// waitFor makes a stream wait for an event of any rank of this process.
func (d *Device) waitFor(s runtime.Stream, of *lane, e runtime.Event) error {
	l := d.lane(s)
	return l.run(task{do: func() error { return d.hold(l, of, e) }})
}

// waitOwn makes a stream wait for an event of another stream of the same rank.
func (d *Device) waitOwn(s, of runtime.Stream, n int64) error {
	return d.waitFor(s, d.lane(of), runtime.Event{Rank: d.rank, Stream: of, N: n})
}

// hold makes a lane wait for an event of another lane. The driver can wait only for an event that
// has been recorded, so hold first waits on the host until it is.
func (d *Device) hold(l, of *lane, e runtime.Event) error {
	if err := d.recorded(of, e); err != nil {
		return err
	}
	if l == of {
		return nil
	}
	return of.hold(e.N, l.stream)
}

// recorded waits on the host until an event has been recorded. The wait for a lane's own goroutine
// has no bound here, because every wait of that goroutine has one.
func (d *Device) recorded(of *lane, e runtime.Event) error {
	late := func() []int { return []int{e.Rank} }
	if of.device == d && of.beside {
		late = nil
	}
	if err := d.backend.await(&of.recorded, e.N, late); err != nil {
		return err
	}
	if of.device == d && of.beside {
		return of.failure()
	}
	return nil
}

// blame adds to the error of a wait for a stream the collective or transfer that the stream has not
// done.
func (l *lane) blame(e runtime.Event, err error) error {
	if e.Stream == runtime.Compute || e.Rank != l.device.rank {
		return err
	}
	if g, ok := l.waiting(); ok {
		return &runtime.StreamError{Stream: e.Stream, Node: g.node(), Err: err}
	}
	return err
}
