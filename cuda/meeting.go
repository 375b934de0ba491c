package cuda

import (
	"time"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Transfers between GPUs, by NCCL. A message is a send and a receive of NCCL. Each of the two
// blocks its stream, and occupies multiprocessors, until the other has come. NCCL runs the
// operations of one communicator in order, whatever their streams. The danger is a deadlock between
// messages that wait for each other.
//
// So every rank has a communicator of two for each rank that it sends to, and sends on its compute
// stream, or what the program posts on its transfer stream. It has another one, with a lane of its
// own (an inlet), for each rank that it receives from. The inlet waits until the compute stream has
// come to where the program expects the message ([codegen.Expects]); then it receives. The compute
// stream waits for the inlet where the program receives the message.
//
// The order of [codegen.Expects] has no deadlock even on a GPU that runs the work of all its streams
// one after another.

// Meets implements [runtime.Meeter]. Ranks that share a GPU wait for each other's events instead.
func (d *Device) Meets() bool { return !d.backend.opts.Loopback }

// Expect receives a message when the compute stream has come to this point.
func (d *Device) Expect(t *runtime.Transfer) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.do(call{kind: callExpect, transfer: t}, nil)
}

// pair is the number of the group of two ranks of which one sends to the other. Those of collectives are not negative.
func (b *Backend) pair(from, to int) int { return -1 - from*b.world.Ranks - to }

// preparePair notes that the rank needs a communicator with the other end of a message.
func (d *Device) preparePair(t *runtime.Transfer) error {
	ranks, position := []int{d.rank, t.Peer}, 0
	if t.Node.Op == ir.OpRecv {
		ranks, position = []int{t.Peer, d.rank}, 1
	}
	return d.needs(d.backend.pair(ranks[0], ranks[1]), ranks, position, true)
}

// send puts a message on the stream of the transfer.
func (d *Device) send(t *runtime.Transfer) error {
	elems := t.Local.Slab.Elems()
	if elems == 0 {
		return nil
	}
	comm, err := d.comm(d.backend.pair(d.rank, t.Peer))
	if err != nil {
		return err
	}
	l := d.lane(t.Stream)
	l.note(given{transfer: t})
	d.label(l, t.Node.Op.String(), t.Node.Name)
	start := time.Now()
	if err := comm.Send(d.at(t.Local), elems, t.Local.DType, 1, l.stream); err != nil {
		return err
	}
	if t.Ran != nil { // the times of giving it to the GPU
		t.Ran(start, time.Now())
	}
	return d.settle()
}

// expect puts the receive of a message on the inlet of its sender.
func (d *Device) expect(t *runtime.Transfer) error {
	elems := t.Local.Slab.Elems()
	if elems == 0 {
		return nil
	}
	comm, err := d.comm(d.backend.pair(t.Peer, d.rank))
	if err != nil {
		return err
	}
	in := d.inlets[t.Peer]
	free, err := in.spare.record(d.drv, d.compute.stream)
	if err != nil {
		return err
	}
	in.spare = append(in.spare, free) // recording it again does not affect the wait below
	if err := d.drv.WaitEvent(in.stream, free); err != nil {
		return err
	}
	d.label(in, t.Node.Op.String(), t.Node.Name)
	if err := comm.Recv(d.at(t.Local), elems, t.Local.DType, 0, in.stream); err != nil {
		return err
	}
	there, err := in.spare.record(d.drv, in.stream)
	if err != nil {
		return err
	}
	d.expected[t.Wire] = append(d.expected[t.Wire], there)
	return nil
}

// recv makes the compute stream wait for a message. If it was not expected, it is from here on.
func (d *Device) recv(t *runtime.Transfer) error {
	if t.Local.Slab.Elems() == 0 {
		return nil
	}
	if len(d.expected[t.Wire]) == 0 {
		if err := d.expect(t); err != nil {
			return err
		}
	}
	there := d.expected[t.Wire][0]
	d.expected[t.Wire] = append(d.expected[t.Wire][:0], d.expected[t.Wire][1:]...)
	in := d.inlets[t.Peer]
	in.spare = append(in.spare, there)
	d.compute.note(given{transfer: t})
	if err := d.drv.WaitEvent(d.compute.stream, there); err != nil {
		return err
	}
	return d.settle()
}
