package cuda

import (
	"fmt"
	"math"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Collectives between GPUs, by NCCL. Every group of ranks has a communicator. The members make it
// together when they first need it: one of them creates an ID, all get it (on the host in one
// process, over TCP between processes: peers.go), and all join. NCCL calls that may wait for other
// ranks without bound run on goroutines of their own, so that a rank can give up.

// join returns the lane's communicator for a group. The first time, all members make it, at an
// instruction that is the same for all. If they are in one process they first meet on the host, so
// that an error can name a member that does not come.
func (l *lane) join(v *view, node *ir.Node) (driver.Comm, error) {
	if comm := l.comms[v.number]; comm != nil {
		return comm, nil
	}
	b := l.device.backend
	lib, err := b.collectives()
	if err != nil {
		return nil, err
	}
	var id driver.ID
	if b.others == nil {
		id, err = l.nameHere(lib, v, node)
	} else {
		id, err = b.nameAcross(lib, v)
	}
	if err != nil {
		return nil, err
	}
	comm, err := l.enterComm(lib, v, id)
	if err != nil {
		return nil, err
	}
	l.comms[v.number] = comm
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &membership{device: l.device, group: v.number, comm: comm}
	b.memberships = append(b.memberships, p)
	select {
	case <-b.stopped:
		p.abort()
		return nil, runtime.ErrAborted
	default:
		return comm, nil
	}
}

// membership is a rank's part in a communicator. NCCL neither closes nor aborts a communicator
// while there is a graph that captured it: the call waits. So each one ends on a thread of its own
// while graphs are freed.
type membership struct {
	device *Device
	group  int
	comm   driver.Comm
	ended  chan error // receives the outcome; nil until the end has begun
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
			return append(errs, fmt.Errorf("cuda: NCCL has not ended rank %d's part in group %d within %v; GPU %d (%s) stays open",
				m.device.rank, m.group, b.bound, m.device.gpu.ordinal, m.device.gpu.name))
		}
	}
	return errs
}

// nameHere agrees on the ID of a communicator whose members are all in this process.
func (l *lane) nameHere(lib driver.Collectives, v *view, node *ir.Node) (id driver.ID, err error) {
	b := l.device.backend
	v.members[v.position].node.Store(node)
	b.mu.Lock()
	if !v.named {
		if v.id, err = lib.NewID(); err == nil {
			v.named = true
		}
	}
	b.mu.Unlock()
	if err != nil {
		return id, err
	}
	if err := l.arrive(v); err != nil {
		return id, err
	}
	return v.id, v.alike(node)
}

// enterComm joins a communicator. NCCL returns when all members have joined, however long that
// takes. So the call is abandoned if it takes longer than the world's timeout or the run fails
// elsewhere.
func (l *lane) enterComm(lib driver.Collectives, v *view, id driver.ID) (driver.Comm, error) {
	type joined struct {
		comm driver.Comm
		err  error
	}
	b, gpu := l.device.backend, l.device.gpu
	ready := make(chan joined, 1)
	go func() {
		goruntime.LockOSThread() // the thread ends with the goroutine
		var j joined
		if j.err = l.device.drv.SetCurrent(gpu.context); j.err == nil {
			j.comm, j.err = lib.Join(len(v.ranks), id, v.position)
		}
		ready <- j
	}()
	timer := time.NewTimer(b.world.Timeout)
	defer timer.Stop()
	select {
	case j := <-ready:
		if j.err != nil {
			return nil, fmt.Errorf("cuda: rank %d joining NCCL's group %d of %d ranks at %s: %w", l.device.rank, v.number, len(v.ranks), id.Address(), j.err)
		}
		return j.comm, nil
	case <-b.stopped:
		b.abandoned.Store(true)
		return nil, runtime.ErrAborted
	case <-timer.C:
		b.abandoned.Store(true)
		var ranks []string
		for _, r := range v.ranks {
			ranks = append(ranks, strconv.Itoa(r))
		}
		return nil, fmt.Errorf("cuda: rank %d has not joined NCCL's group %d (ranks %s) at %s within %v; NCCL_DEBUG=INFO says what it waits for, NCCL_SOCKET_IFNAME chooses the network",
			l.device.rank, v.number, strings.Join(ranks, ", "), id.Address(), b.world.Timeout)
	}
}

// collectives returns NCCL, and loads it the first time.
func (b *Backend) collectives() (driver.Collectives, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.nccl == nil {
		lib, err := b.system.Collectives()
		if err != nil {
			return nil, err
		}
		b.nccl = lib
	}
	return b.nccl, nil
}

// byNCCL makes a collective and the others of its bucket. NCCL adds two-byte numbers in their own
// type, rounding after each addition.
func (l *lane) byNCCL(c *runtime.Collective) error {
	v, err := l.view(c)
	if err != nil {
		return err
	}
	if _, err := l.join(v, c.Node); err != nil {
		return err
	}
	l.note(given{collective: c})
	return l.groupByNCCL(c)
}

// groupByNCCL makes the NCCL calls of a bucket, whose communicator exists.
//
// NCCL adds integers without checking for overflow. So before a sum of fixed-point numbers each
// rank checks that none of its n operands exceeds 1/n of the largest value, and the ranks add up
// their findings in one more all-reduce. If any operand of any rank was too large, all ranks set
// their results to the value that stands for overflow.
func (l *lane) groupByNCCL(c *runtime.Collective) error {
	comm, engine := l.comms[c.Group], l.device.gpu.engine
	all := append([]*runtime.Collective{c}, c.More...)
	var fixed []*runtime.Collective
	for _, c := range all {
		if sumsFixed(c) {
			fixed = append(fixed, c)
		}
	}
	if len(fixed) > 0 {
		if err := l.device.drv.Set8(l.flag, 0, flagBytes, l.stream); err != nil {
			return err
		}
	}
	for _, c := range fixed {
		me := c.Members[c.Position]
		if elems := me.In.Slab.Elems(); elems > 0 {
			if err := engine.Exceeds(l.stream, l.flag, l.operand(me, 0), elems, math.MaxInt64/int64(len(c.Members))); err != nil {
				return err
			}
		}
	}
	var exchanges []exchange
	for _, c := range all {
		x := l.packed(comm, c)
		if x == nil {
			x = []exchange{{calls: func(driver.Ptr) error { return l.exchangeByNCCL(comm, c) }}}
		}
		exchanges = append(exchanges, x...)
	}
	if slices.ContainsFunc(exchanges, func(x exchange) bool { return x.room > 0 }) {
		if err := l.getPacking(); err != nil {
			return err
		}
	}
	err := l.exchangeAll(exchanges, func() error {
		if len(fixed) == 0 {
			return nil
		}
		return comm.AllReduce(l.flag, l.flag, 1, ir.Q64, ir.Sum, l.stream)
	})
	if err != nil {
		return err
	}
	for _, c := range fixed {
		me := c.Members[c.Position]
		if elems := me.Out.Slab.Elems(); elems > 0 {
			if err := engine.Void(l.stream, l.flag, l.result(me, 0), elems); err != nil {
				return err
			}
		}
	}
	return nil
}

// sumsFixed reports whether a collective adds up fixed-point numbers.
func sumsFixed(c *runtime.Collective) bool {
	return c.Members[c.Position].In.DType == ir.Q64 && (c.Node.Op == ir.OpAllReduce || c.Node.Op == ir.OpReduceScatter)
}

// Prepare implements [runtime.Preparer]: kernels for collectives are compiled and packing memory is allocated while all
// ranks are idle (see load). In a step either may wait for this GPU and for all that have access to its memory, which NCCL
// gives to the other GPUs of the process. They may be at work on a collective that waits for this rank.
func (d *Device) Prepare(c *runtime.Collective) error {
	if !d.Meets() {
		return nil
	}
	l := d.lane(c.Stream)
	packs, sums := l.packs, l.sums
	for _, c := range append([]*runtime.Collective{c}, c.More...) {
		if !l.packs {
			_, l.packs = cutsOf(c)
		}
		l.sums = l.sums || sumsFixed(c)
	}
	return d.gpu.engine.CheckExchanges(l.packs && !packs, l.sums && !sums)
}

// getPacking allocates the lane's packing memory, unless it has been allocated.
func (l *lane) getPacking() (err error) {
	if l.packing != 0 {
		return nil
	}
	if l.packing, err = l.device.alloc(packingBytes); err != nil {
		return fmt.Errorf("memory to pack what is sent, beside the arena: %w", err)
	}
	return nil
}

// exchangeByNCCL makes the calls of one collective that is not packed. Most values are cut evenly in
// their first dimension, so that NCCL can move them whole, or in the second, so that it moves a
// sequence at a time. Otherwise it moves runs of elements.
func (l *lane) exchangeByNCCL(comm driver.Comm, c *runtime.Collective) error {
	me := c.Members[c.Position]
	d := me.In.DType
	switch c.Node.Op {
	case ir.OpAllReduce:
		return comm.AllReduce(l.operand(me, 0), l.result(me, 0), me.In.Slab.Elems(), d, c.Attr.Reduce, l.stream)
	case ir.OpReduceScatter:
		if calls, run := inOrder(c, func(m runtime.Member) ir.Slab { return m.Out.Slab }, me.In.Slab); calls > 0 {
			return each(calls, func(i int) error {
				return comm.ReduceScatter(l.operand(me, i*run*len(c.Members)), l.result(me, i*run), int64(run), d, c.Attr.Reduce, l.stream)
			})
		}
		for root, m := range c.Members {
			err := eachRun(me.In.Slab, m.Out.Slab, func(from, to, n int) error {
				var recv driver.Ptr
				if root == c.Position {
					recv = l.result(me, to)
				}
				return comm.Reduce(l.operand(me, from), recv, int64(n), d, c.Attr.Reduce, root, l.stream)
			})
			if err != nil {
				return err
			}
		}
		return nil
	case ir.OpAllGather:
		if calls, run := inOrder(c, func(m runtime.Member) ir.Slab { return m.In.Slab }, me.Out.Slab); calls > 0 {
			return each(calls, func(i int) error {
				return comm.AllGather(l.operand(me, i*run), l.result(me, i*run*len(c.Members)), int64(run), d, l.stream)
			})
		}
	case ir.OpAllToAll:
	default:
		panic(fmt.Sprintf("BUG: cuda: %s is not a collective", c.Node.Op))
	}
	return l.scatter(comm, c)
}

// scatter sends to each member the runs of the rank's operand that it needs, and receives the runs
// that the rank needs.
func (l *lane) scatter(comm driver.Comm, c *runtime.Collective) error {
	me := c.Members[c.Position]
	d := me.In.DType
	for i, m := range c.Members {
		var err error
		if i == c.Position {
			err = eachRun(me.In.Slab, me.Out.Slab, func(from, to, n int) error {
				return l.bring(l.result(me, to), l.operand(me, from), int64(n)*d.Size())
			})
		} else {
			err = eachRun(me.In.Slab, m.Out.Slab, func(from, _, n int) error {
				return comm.Send(l.operand(me, from), int64(n), d, i, l.stream)
			})
			if err == nil {
				err = eachRun(m.In.Slab, me.Out.Slab, func(_, to, n int) error {
					return comm.Recv(l.result(me, to), int64(n), d, i, l.stream)
				})
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// each makes calls until one fails.
func each(calls int, do func(i int) error) error {
	for i := range calls {
		if err := do(i); err != nil {
			return err
		}
	}
	return nil
}

// inOrder returns by how many calls NCCL moves a value of which each takes consecutive elements: a run of each
// member's part, all of one length, in the order of the members. There are none if it is cut otherwise.
func inOrder(c *runtime.Collective, part func(runtime.Member) ir.Slab, whole ir.Slab) (calls, run int) {
	n := len(c.Members)
	for i, m := range c.Members {
		p, runs, ok := part(m), 0, true
		ir.EachRun(whole, p, func(from, to, length int) {
			if i == 0 && runs == 0 {
				run = length
			}
			ok = ok && length == run && from == (runs*n+i)*run && to == runs*run
			runs++
		})
		if i == 0 {
			calls = runs
		}
		if !ok || runs != calls || p.Elems() != int64(runs)*int64(run) {
			return 0, 0
		}
	}
	if int64(calls)*int64(run)*int64(n) != whole.Elems() {
		return 0, 0
	}
	return calls, run
}

// given is a collective or transfer that was put on a lane.
type given struct {
	collective *runtime.Collective
	transfer   *runtime.Transfer
	event      int64 // the lane's event after which it is done
}

// node returns its instruction.
func (g given) node() *ir.Node {
	if g.transfer != nil {
		return g.transfer.Node
	}
	return g.collective.Node
}

// others returns the ranks that it waits for.
func (g given) others() (ranks []int) {
	if g.transfer != nil {
		return []int{g.transfer.Peer}
	}
	for i, m := range g.collective.Members {
		if i != g.collective.Position {
			ranks = append(ranks, m.Rank)
		}
	}
	return ranks
}

// note remembers work of the lane until its next event has happened, to name it if it hangs.
func (l *lane) note(g given) {
	l.mu.Lock()
	defer l.mu.Unlock()
	later := slices.IndexFunc(l.given, func(g given) bool { return g.event > l.happened }) // they are in the order of their events
	if later < 0 {
		later = len(l.given)
	}
	l.given = slices.Delete(l.given, 0, later)
	g.event = l.last() + 1
	l.given = append(l.given, g)
}

// waiting returns the first of those that may not be done.
func (l *lane) waiting() (first given, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.given {
		if g.event > l.happened {
			return g, true
		}
	}
	return given{}, false
}

// hangs returns why a wait for the GPU will not succeed: a communicator has failed, or other ranks
// have not come in time to a collective or transfer. It returns nil otherwise.
func (d *Device) hangs(waited time.Duration) error {
	for _, l := range d.lanes() {
		for _, comm := range l.comms {
			if err := comm.Failure(); err != nil {
				return err
			}
		}
	}
	if waited < d.backend.world.Timeout {
		return nil
	}
	if d.ends.sharing() {
		late := &runtime.WaitError{After: waited}
		for rank := range d.backend.world.Ranks {
			if rank != d.rank {
				late.Ranks = append(late.Ranks, rank)
			}
		}
		return late
	}
	for s, l := range d.streams {
		if l.beside {
			continue
		}
		if g, ok := l.waiting(); ok {
			return &runtime.StreamError{Stream: runtime.Stream(s), Node: g.node(), Err: &runtime.WaitError{Ranks: g.others(), After: waited}}
		}
	}
	return nil
}
