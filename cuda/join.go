package cuda

import (
	"errors"
	"fmt"
	"maps"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// NCCL's communicators. Every group of ranks that makes collectives on a stream has one, and so has every pair of ranks of which
// one sends to the other. Making one allocates memory of the GPU, and so does the first message between two ranks. That may wait
// for work of this GPU and of others of the process, which may be a collective that waits for this rank. So the executor has all of
// them made when it loads a program, while no rank computes; none is made in a step.
//
// One of the members creates an ID, all get it (on the host in one process, over TCP between processes: peers.go), and all join.
// NCCL calls that may wait for other ranks without bound run on goroutines of their own, so that a rank can give up.

// membership is a rank's part in a communicator. NCCL neither closes nor aborts a communicator
// while there is a graph that captured it: the call waits. So each one ends on a thread of its own
// while graphs are freed.
type membership struct {
	*view
	device    *Device
	comm      driver.Comm // nil until the rank has joined
	connected bool        // messages have gone between its members
	ended     chan error  // receives the outcome; nil until the end has begun
}

// String names the group.
func (m *membership) String() string {
	if m.number < 0 {
		return fmt.Sprintf("pair for messages from rank %d to rank %d", m.ranks[0], m.ranks[1])
	}
	var ranks []string
	for _, r := range m.ranks {
		ranks = append(ranks, strconv.Itoa(r))
	}
	return fmt.Sprintf("group %d (ranks %s)", m.number, strings.Join(ranks, ", "))
}

// Prepare implements [runtime.Preparer].
func (d *Device) Prepare(collectives []*runtime.Collective, transfers []*runtime.Transfer) error {
	if !d.Meets() {
		return nil
	}
	d.coming = map[int]bool{} // those of a program that could not be loaded are not needed
	for _, c := range collectives {
		if err := d.prepareCollective(c); err != nil {
			return fmt.Errorf("%s: %w", c.Node.Name, err)
		}
	}
	for _, t := range transfers {
		if t.Local.Slab.Elems() == 0 {
			continue
		}
		if err := d.preparePair(t); err != nil {
			return fmt.Errorf("%s: %w", t.Node.Name, err)
		}
	}
	return nil
}

// needs notes that the rank needs a communicator, and whether messages go between its members.
func (d *Device) needs(number int, ranks []int, position int, messages bool) error {
	m := d.memberships[number]
	if m == nil || len(m.ranks) != len(ranks) {
		g, err := d.backend.group(number, len(ranks))
		if err != nil {
			return err
		}
		m = &membership{view: &view{group: g, number: number, ranks: ranks, position: position}, device: d}
		d.memberships[number] = m
	}
	if m.comm == nil || messages && !m.connected {
		d.coming[number] = d.coming[number] || messages
	}
	return nil
}

// Join implements [runtime.Preparer]. All ranks join groups in the order of their numbers, so that they cannot wait for each other
// in a circle: of the groups that are not complete the first one gets all of its members, who are in all groups before it.
func (d *Device) Join() (more bool, err error) {
	if len(d.coming) == 0 {
		return false, nil
	}
	if err := d.enter(); err != nil {
		return false, err
	}
	defer d.leave()
	number := slices.Min(slices.Collect(maps.Keys(d.coming)))
	m := d.memberships[number]
	if number < 0 && m.position == 1 && d.inlets[m.ranks[0]] == nil {
		if d.inlets[m.ranks[0]], err = newLane(d, false); err != nil {
			return false, err
		}
	}
	if err := m.join(d.coming[number]); err != nil {
		return false, err
	}
	delete(d.coming, number)
	return len(d.coming) > 0, nil
}

// comm returns the rank's part in the communicator of a group.
func (d *Device) comm(number int) (driver.Comm, error) {
	select {
	case <-d.backend.stopped: // it ends
		return nil, runtime.ErrAborted
	default:
	}
	m := d.memberships[number]
	switch {
	case m != nil && m.comm != nil:
		return m.comm, nil
	case m != nil:
		return nil, fmt.Errorf("cuda: rank %d has not joined NCCL's %s before this step", d.rank, m)
	case number < 0:
		n := d.backend.world.Ranks
		m = &membership{view: &view{number: number, ranks: []int{(-1 - number) / n, (-1 - number) % n}}}
		return nil, fmt.Errorf("cuda: rank %d was told of no message in NCCL's %s before this step", d.rank, m)
	}
	return nil, fmt.Errorf("cuda: rank %d was told of no collective in NCCL's group %d before this step", d.rank, number)
}

// join makes the rank a member, unless it is one, and connects the members for messages if there are some. NCCL returns
// when all members have come, however long that takes. So the call is abandoned if it takes longer than the world's timeout or
// the run fails elsewhere.
func (m *membership) join(messages bool) error {
	d, b := m.device, m.device.backend
	lib, err := b.collectives()
	if err != nil {
		return err
	}
	var id driver.ID
	at := ""
	if m.comm == nil {
		if id, err = m.name(lib); err != nil {
			return fmt.Errorf("cuda: rank %d joining NCCL's %s: %w", d.rank, m, err)
		}
		at = " at " + id.Address()
	}
	type result struct {
		comm driver.Comm // nil if it was not joined
		err  error
	}
	ready := make(chan result, 1)
	go func(comm driver.Comm) {
		goruntime.LockOSThread() // the thread ends with the goroutine
		err := d.drv.SetCurrent(d.gpu.context)
		if err == nil && comm == nil {
			if comm, err = lib.Join(len(m.ranks), id, m.position); err != nil {
				comm = nil
			}
		}
		if err == nil && messages {
			err = m.connect(lib, comm)
		}
		ready <- result{comm, err}
	}(m.comm)
	late := time.NewTimer(b.world.Timeout)
	defer late.Stop()
	var r result
	select {
	case r = <-ready:
	case <-b.stopped:
		b.abandoned.Store(true)
		return runtime.ErrAborted
	case <-late.C:
		b.abandoned.Store(true)
		return fmt.Errorf("cuda: rank %d has not joined NCCL's %s%s within %v; NCCL_DEBUG=INFO says what it waits for, NCCL_SOCKET_IFNAME chooses the network",
			d.rank, m, at, b.world.Timeout)
	}
	if m.comm == nil && r.comm != nil {
		m.comm = r.comm
		b.keep(m)
	}
	if r.err != nil {
		return fmt.Errorf("cuda: rank %d joining NCCL's %s%s: %w", d.rank, m, at, r.err)
	}
	m.connected = m.connected || messages
	return nil
}

// keep has a communicator end with the run.
func (b *Backend) keep(m *membership) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.memberships = append(b.memberships, m)
	select {
	case <-b.stopped:
		m.abort()
	default:
	}
}

// connect sends a word to every other member and receives one of it, or sends or receives one in a pair. NCCL connects two ranks
// for messages when the first one goes between them, whatever NCCL_RUNTIME_CONNECT says.
func (m *membership) connect(lib driver.Collectives, comm driver.Comm) error {
	d, l := m.device, m.device.compute
	if err := lib.GroupStart(); err != nil {
		return err
	}
	var errs []error
	for peer := range m.ranks {
		if peer == m.position {
			continue
		}
		if m.number >= 0 || m.position == 0 {
			errs = append(errs, comm.Send(l.flag, 1, ir.Q64, peer, l.stream))
		}
		if m.number >= 0 || m.position == 1 {
			errs = append(errs, comm.Recv(l.flag, 1, ir.Q64, peer, l.stream))
		}
	}
	if err := errors.Join(append(errs, lib.GroupEnd())...); err != nil {
		return err
	}
	if err := d.drv.RecordEvent(d.landed, l.stream); err != nil {
		return err
	}
	for {
		done, err := d.drv.EventDone(d.landed)
		if done || err != nil {
			return err
		}
		select {
		case <-d.backend.stopped:
			return runtime.ErrAborted
		case <-time.After(nap):
		}
	}
}

// name agrees with the other members on the ID of the communicator. If they are in one process they meet on the host, so that an
// error can name a member that does not come.
func (m *membership) name(lib driver.Collectives) (id driver.ID, err error) {
	b := m.device.backend
	if b.others != nil {
		return b.nameAcross(lib, m.view)
	}
	b.mu.Lock()
	if !m.named {
		m.id, err = lib.NewID()
		m.named = err == nil
	}
	id = m.id
	b.mu.Unlock()
	if err != nil {
		return id, err
	}
	return id, b.arrive(m.view)
}

// collectives returns NCCL, and loads it the first time.
func (b *Backend) collectives() (driver.Collectives, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.nccl == nil {
		first, end := b.world.Here()
		lib, err := b.system.Collectives(end - first)
		if err != nil {
			return nil, err
		}
		b.nccl = lib
	}
	return b.nccl, nil
}

// abort ends the membership whatever is in progress. A failure is dropped: nobody is left to hear
// of it.
func (m *membership) abort() {
	m.end(func() error {
		_ = m.comm.Abort()
		return nil
	})
}

// end starts ending the communicator by a call, once.
func (m *membership) end(by func() error) {
	if m.ended != nil {
		return
	}
	ended := make(chan error, 1)
	m.ended = ended
	go func() {
		goruntime.LockOSThread()                                              // the thread ends with the goroutine
		if err := m.device.drv.SetCurrent(m.device.gpu.context); err != nil { // else NCCL would make a context on the first GPU
			ended <- err
			return
		}
		ended <- by()
	}()
}

// leave closes all communicators and waits until they have ended. If a stream or a graph was
// abandoned they would not end, and it does nothing.
func (b *Backend) leave() (errs []error) {
	if b.abandoned.Load() {
		return nil
	}
	b.mu.Lock()
	all := b.memberships
	b.memberships = nil
	b.mu.Unlock()
	for _, m := range all {
		m.end(m.comm.Close)
	}
	late := time.NewTimer(b.bound)
	defer late.Stop()
	for _, m := range all {
		select {
		case err := <-m.ended:
			errs = append(errs, err)
		case <-late.C:
			b.abandoned.Store(true)
			return append(errs, fmt.Errorf("cuda: NCCL has not ended rank %d's part in %s within %v; GPU %d (%s) stays open",
				m.device.rank, m, b.bound, m.device.gpu.ordinal, m.device.gpu.name))
		}
	}
	return errs
}
