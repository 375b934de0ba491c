package cuda

import (
	"sync"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/runtime"
)

// wire is the connection of a send instruction between two ranks on one GPU. Each message that was
// sent and not yet received has an event.
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

// Send sends a tensor to the peer: by NCCL (meeting.go), or if ranks share a GPU by a copy to the
// peer's arena and an event.
func (d *Device) Send(t *runtime.Transfer) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if d.Meets() {
		return d.do(call{kind: callSend, transfer: t, stream: t.Stream}, nil)
	}
	return d.communicate(t.Stream, t.Node, t.Ran, func(l *lane) error { return l.copyTo(t) })
}

// copyTo copies a tensor to the arena of a rank on the same GPU.
func (l *lane) copyTo(t *runtime.Transfer) error {
	d := l.device
	d.label(l, t.Node.Op.String(), t.Node.Name)
	if bytes := t.Local.Bytes(); bytes > 0 {
		dst := d.backend.devices[t.Peer].arena + driver.Ptr(t.Remote)
		if err := d.drv.Copy(dst, d.at(t.Local), bytes, l.stream); err != nil {
			return err
		}
	}
	return d.backend.wire(t.Wire).say(l)
}

// say records that a message will have arrived when lane l comes to this point.
func (w *wire) say(l *lane) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	e, err := w.spare.record(l.device.drv, l.stream)
	if err != nil {
		return err
	}
	w.events = append(w.events, e)
	w.sent.add()
	return nil
}

// Recv holds later work of the compute stream back until the peer's message has arrived.
func (d *Device) Recv(t *runtime.Transfer) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if d.Meets() {
		return d.do(call{kind: callRecv, transfer: t}, nil)
	}
	w := d.backend.wire(t.Wire)
	if err := d.backend.await(&w.sent, d.received[t.Wire]+1, func() []int { return []int{t.Peer} }); err != nil {
		return err
	}
	d.received[t.Wire]++
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.events[0]
	w.events = append(w.events[:0], w.events[1:]...)
	w.spare = append(w.spare, e) // recording it again does not affect the wait below
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
