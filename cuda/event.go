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

// lanes are all that there are.
func (d *Device) lanes() (all []*lane) {
	for _, l := range d.streams {
		if l != nil {
			all = append(all, l)
		}
	}
	return slices.AppendSeq(all, maps.Values(d.inlets))
}

// Wait holds a stream back, or the caller.
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

// waitFor holds a stream back until an event of a rank has happened.
func (d *Device) waitFor(s runtime.Stream, of *lane, e runtime.Event) error {
	l := d.lane(s)
	return l.run(task{do: func() error { return d.hold(l, of, e) }})
}

// waitOwn holds a stream back until an event of a stream of the same rank has happened.
func (d *Device) waitOwn(s, of runtime.Stream, n int64) error {
	return d.waitFor(s, d.lane(of), runtime.Event{Rank: d.rank, Stream: of, N: n})
}

// hold holds a lane back until an event of a lane has happened. The driver knows only
// events that are recorded, so it waits for that.
func (d *Device) hold(l, of *lane, e runtime.Event) error {
	if err := d.recorded(of, e); err != nil {
		return err
	}
	if l == of {
		return nil
	}
	return of.hold(e.N, l.stream)
}

// recorded waits until an event is recorded. What the rank's own goroutine waits for ends
// in time: it needs no limit of its own.
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

// blame names the collective that an event of a lane beside the compute lane stands for.
func (l *lane) blame(e runtime.Event, err error) error {
	if e.Stream == runtime.Compute || e.Rank != l.device.rank {
		return err
	}
	if g, ok := l.waiting(); ok {
		return &runtime.StreamError{Stream: e.Stream, Node: g.node(), Err: err}
	}
	return err
}
