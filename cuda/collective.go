package cuda

import (
	"fmt"
	"sync/atomic"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Collectives on one GPU (loopback), and what all collectives share. The members of a group meet at
// barriers. A barrier is a wait on the host and then waits of streams, because a stream can wait only
// for an event that has been recorded. Between barriers a member reads the arenas of the others.

// group is a set of ranks that make collectives together. All of its ranks in this process share
// it.
type group struct {
	arrivals tally
	members  []member  // by position
	id       driver.ID // of the NCCL communicator, if named
	named    bool
}

// group returns a group, which has so many ranks.
func (b *Backend) group(number, ranks int) (*group, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.groups[number]
	if g == nil {
		g = &group{members: make([]member, ranks)}
		b.groups[number] = g
	}
	if len(g.members) != ranks {
		return nil, fmt.Errorf("cuda: group %d has %d members, the collective %d", number, len(g.members), ranks)
	}
	return g, nil
}

// member is what one rank tells the others of its group: how many barriers it has entered, at which
// collective it is, and the events of its stream at its last two barriers.
type member struct {
	barriers atomic.Int64
	node     atomic.Pointer[ir.Node]
	events   [2]driver.Event
}

// view is what one rank knows of a group.
type view struct {
	*group
	number   int
	ranks    []int
	position int // of this rank
	barriers int64
	events   [2]driver.Event
}

// view returns the lane's view of the group of a collective.
func (l *lane) view(c *runtime.Collective) (*view, error) {
	if v := l.groups[c.Group]; v != nil && len(v.ranks) == len(c.Members) {
		return v, nil
	}
	g, err := l.device.backend.group(c.Group, len(c.Members))
	if err != nil {
		return nil, err
	}
	v := &view{group: g, number: c.Group, ranks: ranksOf(c), position: c.Position}
	l.groups[c.Group] = v
	return v, nil
}

// ranksOf lists the members of a collective.
func ranksOf(c *runtime.Collective) (ranks []int) {
	for _, m := range c.Members {
		ranks = append(ranks, m.Rank)
	}
	return ranks
}

// alike checks that all members have entered with the same instruction.
func (v *view) alike(node *ir.Node) error {
	for i := range v.members {
		if n := v.members[i].node.Load(); n != node {
			return fmt.Errorf("cuda: rank %d has entered %s %s instead", v.ranks[i], n.Op, n.Name)
		}
	}
	return nil
}

// missing lists the ranks that have not entered the barrier this rank is in.
func (v *view) missing() []int {
	var ranks []int
	for i := range v.members {
		if v.members[i].barriers.Load() < v.barriers {
			ranks = append(ranks, v.ranks[i])
		}
	}
	return ranks
}

// arrive enters the next barrier and waits on the host until all members have entered it.
func (b *Backend) arrive(v *view) error {
	v.barriers++
	v.members[v.position].barriers.Store(v.barriers)
	v.arrivals.add()
	return b.await(&v.arrivals, v.barriers*int64(len(v.members)), v.missing)
}

// barrier holds later work of the lane back until the streams of all members have reached the
// barrier. No member can be two barriers ahead of another, so each needs only two events.
func (l *lane) barrier(v *view) error {
	drv, turn := l.device.drv, (v.barriers+1)&1
	if v.events[turn] == 0 {
		e, err := drv.CreateEvent(false)
		if err != nil {
			return err
		}
		v.events[turn] = e
	}
	if err := drv.RecordEvent(v.events[turn], l.stream); err != nil {
		return err
	}
	v.members[v.position].events[turn] = v.events[turn]
	if err := l.device.backend.arrive(v); err != nil {
		return err
	}
	for i := range v.members {
		if i == v.position {
			continue
		}
		if err := drv.WaitEvent(l.stream, v.members[i].events[turn]); err != nil {
			return err
		}
	}
	return nil
}

// Collective makes a collective on the lane of its stream.
func (d *Device) Collective(c *runtime.Collective) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.do(call{kind: callCollective, collective: c, stream: c.Stream}, nil)
}

func (d *Device) collective(c *runtime.Collective) error {
	return d.communicate(c.Stream, c.Node, c.Ran, func(l *lane) error { return l.collective(c) })
}

// collective makes the rank's part of a collective and the others of its bucket.
func (l *lane) collective(c *runtime.Collective) error {
	d := l.device
	d.label(l, c.Node.Op.String(), c.Node.Name)
	if !d.backend.opts.Loopback {
		return l.byNCCL(c)
	}
	return l.loopback(c)
}

// loopback makes a collective of ranks on one GPU: they meet, read each other's arenas, and meet
// again before anyone may overwrite what was read.
func (l *lane) loopback(c *runtime.Collective) error {
	v, err := l.view(c)
	if err != nil {
		return err
	}
	v.members[v.position].node.Store(c.Node)
	if err := l.barrier(v); err != nil {
		return err
	}
	if err := v.alike(c.Node); err != nil {
		return err
	}
	all := append([]*runtime.Collective{c}, c.More...)
	for _, c := range all {
		if err := l.exchange(c); err != nil {
			return err
		}
	}
	if c.Node.Op == ir.OpAllReduce {
		if err := l.barrier(v); err != nil {
			return err
		}
		for _, c := range all {
			if err := l.collect(c); err != nil {
				return err
			}
		}
	}
	return l.barrier(v)
}

// operand returns the address of element from of a member's operand.
func (l *lane) operand(m runtime.Member, from int) driver.Ptr {
	return l.device.backend.devices[m.Rank].at(m.In) + driver.Ptr(int64(from)*m.In.DType.Size())
}

// result returns the address of element from of a member's result.
func (l *lane) result(m runtime.Member, from int) driver.Ptr {
	return l.device.backend.devices[m.Rank].at(m.Out) + driver.Ptr(int64(from)*m.Out.DType.Size())
}

// exchange reads what the member needs from the operands of all members. Of an all_reduce it
// computes only the member's share (see [codegen.ReduceShare]), in its own arena; collect then
// copies the others. The result may overwrite the operand, because no other member reads that share
// of it.
func (l *lane) exchange(c *runtime.Collective) error {
	me := c.Members[c.Position]
	switch c.Node.Op {
	case ir.OpAllReduce:
		mine := codegen.ReduceShare(int(me.Out.Slab.Elems()), len(c.Members), c.Position)
		return l.reduce(c, mine.Off, mine.Off, mine.Len)
	case ir.OpReduceScatter:
		return eachRun(me.In.Slab, me.Out.Slab, func(from, to, n int) error { return l.reduce(c, to, from, n) })
	case ir.OpAllGather, ir.OpAllToAll:
		for _, m := range c.Members {
			err := eachRun(m.In.Slab, me.Out.Slab, func(from, to, n int) error {
				return l.bring(l.result(me, to), l.operand(m, from), int64(n)*me.Out.DType.Size())
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	panic(fmt.Sprintf("BUG: cuda: %s is not a collective", c.Node.Op))
}

// bring copies bytes, unless they are already there.
func (l *lane) bring(to, from driver.Ptr, bytes int64) error {
	if to == from {
		return nil
	}
	return l.device.drv.Copy(to, from, bytes, l.stream)
}

// reduce sets n elements of the member's result, from index to on, to the reduction over all
// members, in order, of their operands from index from on.
func (l *lane) reduce(c *runtime.Collective, to, from, n int) error {
	if n == 0 {
		return nil
	}
	me := c.Members[c.Position]
	in := make([]driver.Ptr, len(c.Members))
	for i, m := range c.Members {
		in[i] = l.operand(m, from)
	}
	return l.device.gpu.engine.Reduce(l.stream, c.Attr.Reduce, me.In.DType, l.result(me, to), in, int64(n))
}

// collect copies the shares of an all_reduce that the other members have computed.
func (l *lane) collect(c *runtime.Collective) error {
	me := c.Members[c.Position]
	for i, m := range c.Members {
		share := codegen.ReduceShare(int(me.Out.Slab.Elems()), len(c.Members), i)
		if i == c.Position || share.Len == 0 {
			continue
		}
		bytes := int64(share.Len) * me.Out.DType.Size()
		if err := l.device.drv.Copy(l.result(me, share.Off), l.result(m, share.Off), bytes, l.stream); err != nil {
			return err
		}
	}
	return nil
}

// eachRun is [ir.EachRun] for a function that may fail. It stops at the first error.
func eachRun(a, b ir.Slab, do func(inA, inB, n int) error) (err error) {
	ir.EachRun(a, b, func(inA, inB, n int) {
		if err == nil {
			err = do(inA, inB, n)
		}
	})
	return err
}
