package cuda

import (
	"sync"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/runtime"
)

// wire is a sending instruction between two ranks: the events after messages that the
// receiver has not taken yet.
type wire struct {
	sent tally

	mu     sync.Mutex
	events []driver.Event
	spare  spares
}

func (b *Backend) wire(n int) *wire {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wires[n] == nil {
		b.wires[n] = &wire{}
	}
	return b.wires[n]
}

// errApart says what several processes do not do yet.
var errApart = &DeviceError{"stages of a pipeline on GPUs have to be of one process: start it once, or plan without a pipeline"}

// meet has all done that was told before a message, whose two ends meet on the host.
func (d *Device) meet() error {
	if d.steps == nil {
		return nil
	}
	return d.steps.never("the stages of a pipeline wait for each other's messages on the host")
}

// Send copies the tensor to the peer's arena, and says so by an event. Between GPUs the
// driver copies directly where it can.
func (d *Device) Send(t *runtime.Transfer) error {
	if d.backend.others != nil {
		return errApart
	}
	if err := d.meet(); err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	d.label(d.compute, t.Node.Op.String(), t.Node.Name)
	if bytes := t.Local.Bytes(); bytes > 0 {
		dst := d.backend.devices[t.Peer].arena + driver.Ptr(t.Remote)
		if err := d.drv.Copy(dst, d.at(t.Local), bytes, d.compute.stream); err != nil {
			return err
		}
	}
	if err := d.backend.wire(t.Wire).say(d); err != nil {
		return err
	}
	return d.settle()
}

// say records that a message is there.
func (w *wire) say(d *Device) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	e, err := w.spare.record(d.drv, d.compute.stream)
	if err != nil {
		return err
	}
	w.events = append(w.events, e)
	w.sent.add()
	return nil
}

// Recv holds later work back until the peer's message is there.
func (d *Device) Recv(t *runtime.Transfer) error {
	if d.backend.others != nil {
		return errApart
	}
	if err := d.meet(); err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	w := d.backend.wire(t.Wire)
	if err := d.backend.await(&w.sent, d.received[t.Wire]+1, func() []int { return []int{t.Peer} }); err != nil {
		return err
	}
	d.received[t.Wire]++
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.events[0]
	w.events = append(w.events[:0], w.events[1:]...)
	w.spare = append(w.spare, e) // recording it anew does not change what is waited for here
	return d.drv.WaitEvent(d.compute.stream, e)
}

func (w *wire) release(drv driver.Driver) error {
	var first error
	for _, e := range append(w.spare, w.events...) {
		if err := drv.DestroyEvent(e); err != nil && first == nil {
			first = err
		}
	}
	return first
}
