package cpu

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// group is a set of ranks that make collectives together.
type group struct {
	arrivals *counter // counts ranks of this machine that entered, over all collectives
	done     *counter // counts shares that were made for this machine: each collective has one per member
	members  []member // by position
	here     []int    // positions of the members on this machine
	apart    bool     // the members are in several processes
	shared   bool     // each member makes a share of large collectives
	leaders  []int    // ranks: the first member on each other machine
}

// member is what one rank tells the others of a group.
type member struct {
	entered *counter                // how many collectives it has entered
	node    atomic.Pointer[ir.Node] // the one it entered last, in a world of one process
	_       [lineBytes - 16]byte    // keeps the fields of members, which they write concurrently, on different cache lines
}

func (b *Backend) newGroup(c *runtime.Collective) *group {
	k := len(c.Members)
	at := c.Group * (2 + b.world.Ranks)
	g := &group{arrivals: b.counter(groupID, at), done: b.counter(groupID, at+1), members: make([]member, k), apart: b.others != nil}
	g.shared = g.apart || c.Stream == runtime.Compute && b.world.Ranks <= b.cores.Count()
	for i, m := range c.Members {
		g.members[i].entered = b.counter(groupID, at+2+i)
		if !b.devices[m.Rank].away {
			g.here = append(g.here, i)
		} else if first := b.others.leader(c, m.Rank); !slices.Contains(g.leaders, first) {
			g.leaders = append(g.leaders, first)
		}
	}
	return g
}

// groupView is one rank's view of a group.
type groupView struct {
	*group
	entered int64               // how many collectives this rank has entered
	current *runtime.Collective // the one in progress
	late    func() []int        // [groupView.missing]
	_       [lineBytes - 32]byte
}

func (d *Device) group(c *runtime.Collective) *groupView {
	for len(d.groups) <= c.Group {
		d.groups = append(d.groups, nil)
	}
	if d.groups[c.Group] == nil {
		b := d.backend
		view := &groupView{group: at(&b.mu, &b.groups, c.Group, func() *group { return b.newGroup(c) })}
		view.late = view.missing
		d.groups[c.Group] = view
	}
	g := d.groups[c.Group]
	g.current = c
	return g
}

// missing lists the ranks that have not entered the collective in progress. If all have, it lists
// the other members: one of them is making it.
func (g *groupView) missing() []int {
	var late, others []int
	for i, m := range g.current.Members {
		if i != g.current.Position {
			others = append(others, m.Rank)
		}
		if g.members[i].entered.n.Load() < g.entered {
			late = append(late, m.Rank)
		}
	}
	if len(late) == 0 {
		return others
	}
	return late
}

// Collective makes a collective on its stream.
func (d *Device) Collective(c *runtime.Collective) error {
	if c.Stream != runtime.Compute {
		d.stream(c.Stream).give(work{collective: c})
		return nil
	}
	defer d.pool.Offer()
	return d.collective(c)
}

// collective takes part in a bucket of collectives. The last member to enter makes it for all, from
// arena to arena. Nobody else accesses operands and results meanwhile, so members need to meet only
// once. Those that wait lend their cores to it, as to any operation.
//
// Ranks of other processes cannot lend cores, and if each rank has a core of its own none is idle.
// So each member makes a share of a large collective after all have entered. Either way every
// element is computed by the same operations in the same order.
func (d *Device) collective(c *runtime.Collective) error {
	g := d.group(c)
	if len(g.members) != len(c.Members) {
		return fmt.Errorf("cpu: group %d has %d members, the collective %d", c.Group, len(g.members), len(c.Members))
	}
	g.entered++
	if len(g.here) < len(g.members) {
		return d.collectiveAcross(g, c)
	}
	k := int64(len(g.members))
	g.members[c.Position].node.Store(c.Node)
	g.members[c.Position].entered.n.Store(g.entered)
	arrived, all := g.arrivals.add(1), g.entered*k
	if g.shared && large(c) {
		if err := d.wait(g.arrivals, all, g.late); err != nil {
			return err
		}
		if err := g.alike(); err != nil {
			return err
		}
		if err := d.exchangeAll(c, c.Position, len(g.members)); err != nil {
			return err
		}
		g.done.add(1)
		return d.wait(g.done, all, g.late)
	}
	if arrived < all {
		return d.wait(g.done, all, g.late)
	}
	if err := g.alike(); err != nil {
		return err
	}
	if err := d.exchangeAll(c, 0, 1); err != nil {
		return err
	}
	g.done.add(k)
	return nil
}

// alike returns an error unless all members, which have entered, make the same collective.
func (g *groupView) alike() error {
	for i := range g.members {
		if n := g.members[i].node.Load(); !g.apart && n != g.current.Node {
			return fmt.Errorf("cpu: rank %d has entered %s %s instead", g.current.Members[i].Rank, n.Op, n.Name)
		}
	}
	return nil
}

// exchangeAll makes one of shares shares of a bucket.
func (d *Device) exchangeAll(c *runtime.Collective, share, shares int) error {
	if err := d.enter(); err != nil {
		return err
	}
	if err := d.exchange(c, share, shares); err != nil {
		return err
	}
	for _, more := range c.More {
		if err := d.exchange(more, share, shares); err != nil {
			return err
		}
	}
	return nil
}

// large reports whether a collective takes longer than one more meeting of its members. One core
// moves 32 KiB for each of two members in a microsecond.
func large(c *runtime.Collective) bool {
	n := c.Members[0].Out.Slab.Elems()
	for _, more := range c.More {
		n += more.Members[0].Out.Slab.Elems()
	}
	return n*int64(len(c.Members)) >= unitElems
}

// collectiveAcross is a collective of members on several machines. The first member on each machine
// is its leader. When the other members of its machine have entered, it sends all their operands to
// the other leaders, receives theirs, and makes the results of its machine's members.
func (d *Device) collectiveAcross(g *groupView, c *runtime.Collective) error {
	o := d.backend.others
	g.members[c.Position].entered.n.Store(g.entered)
	g.arrivals.add(1)
	all := g.entered * int64(len(g.here))
	if c.Position != g.here[0] {
		return d.wait(g.done, all, g.late)
	}
	if err := d.wait(g.arrivals, all, g.late); err != nil {
		return err
	}
	for _, leader := range g.leaders {
		for _, position := range g.here {
			if err := o.give(leader, c, position); err != nil {
				return err
			}
		}
	}
	for position, m := range c.Members {
		if !d.backend.devices[m.Rank].away {
			continue
		}
		if err := d.wait(g.members[position].entered, g.entered, g.late); err != nil {
			return err
		}
		if err := o.take(c, position); err != nil {
			return err
		}
	}
	if err := d.exchangeAll(c, 0, 1); err != nil {
		return err
	}
	g.done.add(int64(len(g.here)))
	return nil
}
