package cuda

import (
	"time"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Between GPUs a message is a send and a receive of NCCL, each of which holds its stream until the
// other has come, and takes multiprocessors meanwhile. NCCL does the work of one communicator in
// order, whatever the streams. So every rank has for each other that it sends to a communicator of
// the two, and sends on its compute stream or, what the program posts, on that of transfers; it has one more, with a
// stream of its own, for each that it receives from. There a receive waits for the compute stream to come to where the program
// expects the message ([codegen.Expects]), and the compute stream waits for it where the message is
// taken. The first message makes the communicator, and NCCL connects the two, while both hosts wait.
// Even a GPU that did the work of all its streams one after another would get through.

// Meets implements [runtime.Meeter]: ranks that share a GPU wait for each other's events instead.
func (d *Device) Meets() bool { return !d.backend.opts.Loopback }

// Expect receives a message when the compute stream has come so far.
func (d *Device) Expect(t *runtime.Transfer) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.do(call{kind: callExpect, transfer: t}, nil)
}

// pair returns a lane's communicator with the ranks that send and receive a message.
func (l *lane) pair(t *runtime.Transfer, from, to int) (driver.Comm, error) {
	number := -1 - from*l.device.backend.world.Ranks - to // those of collectives count from 0
	if comm := l.comms[number]; comm != nil {
		return comm, nil
	}
	position, node := 0, t.Node
	if to == l.device.rank {
		position = 1
		if node.Op == ir.OpRecv && len(node.Args) > 0 {
			node = node.Args[0].Def // the sender's
		}
	}
	v, err := l.viewOf(number, []int{from, to}, position)
	if err != nil {
		return nil, err
	}
	return l.join(v, node)
}

func (d *Device) send(t *runtime.Transfer) error {
	elems := t.Local.Slab.Elems()
	if elems == 0 {
		return nil
	}
	comm, err := d.compute.pair(t, d.rank, t.Peer)
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
	if t.Ran != nil { // when it was given to the GPU
		t.Ran(start, time.Now())
	}
	return d.settle()
}

func (d *Device) expect(t *runtime.Transfer) error {
	elems := t.Local.Slab.Elems()
	if elems == 0 {
		return nil
	}
	in := d.inlets[t.Peer]
	if in == nil {
		var err error
		if in, err = newLane(d, false); err != nil {
			return err
		}
		d.inlets[t.Peer] = in
	}
	comm, err := in.pair(t, t.Peer, d.rank)
	if err != nil {
		return err
	}
	free, err := in.spare.record(d.drv, d.compute.stream)
	if err != nil {
		return err
	}
	in.spare = append(in.spare, free) // recording it anew does not change what is waited for here
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

// recv holds the compute stream back until a message is there, which may not be expected yet.
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
