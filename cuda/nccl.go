package cuda

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Collectives between GPUs, by NCCL, in the communicators of join.go.

// byNCCL makes a collective and the others of its bucket. NCCL adds two-byte numbers in their own
// type, rounding after each addition.
func (l *lane) byNCCL(c *runtime.Collective) error {
	l.note(given{collective: c})
	return l.groupByNCCL(c)
}

// groupByNCCL makes the NCCL calls of a bucket.
//
// NCCL adds integers without checking for overflow. So before a sum of fixed-point numbers each
// rank checks that none of its n operands exceeds 1/n of the largest value, and the ranks add up
// their findings in one more all-reduce. If any operand of any rank was too large, all ranks set
// their results to the value that stands for overflow.
func (l *lane) groupByNCCL(c *runtime.Collective) error {
	comm, err := l.device.comm(c.Group)
	if err != nil {
		return err
	}
	engine := l.device.gpu.engine
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
	err = l.exchangeAll(exchanges, func() error {
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

// prepareCollective has kernels for a collective compiled and packing memory allocated while all ranks are idle (see load), and
// notes that the rank needs a communicator. In a step all of this may wait for this GPU and for all that have access to its
// memory, which NCCL gives to the other GPUs of the process. They may be at work on a collective that waits for this rank.
func (d *Device) prepareCollective(c *runtime.Collective) error {
	l := d.lane(c.Stream)
	packs, sums, messages := l.packs, l.sums, false
	for _, c := range append([]*runtime.Collective{c}, c.More...) {
		cut, packed := cutsOf(c)
		l.packs = l.packs || packed
		l.sums = l.sums || sumsFixed(c)
		messages = messages || byMessages(c, cut, packed)
	}
	if err := d.needs(c.Group, ranksOf(c), c.Position, messages); err != nil {
		return err
	}
	return d.gpu.engine.CheckExchanges(l.packs && !packs, l.sums && !sums)
}

// byMessages reports whether the members of a collective send each other messages, given how it is packed. All members or none
// do.
func byMessages(c *runtime.Collective, cut cuts, packed bool) bool {
	switch {
	case c.Node.Op == ir.OpAllToAll:
		return true
	case c.Node.Op != ir.OpAllGather:
		return false
	case packed:
		return slices.ContainsFunc(cut.receive, func(s strip) bool { return s.elems() != cut.receive[0].elems() })
	}
	calls, _ := inOrder(c, func(m runtime.Member) ir.Slab { return m.In.Slab }, c.Members[c.Position].Out.Slab)
	return calls == 0
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
	for _, m := range d.memberships {
		if m.comm == nil {
			continue
		}
		if err := m.comm.Failure(); err != nil {
			return err
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
