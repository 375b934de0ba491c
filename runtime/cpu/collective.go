package cpu

import (
	"fmt"
	"sync/atomic"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// group is a set of ranks that make collectives together.
type group struct {
	arrivals atomic.Int64
	done     counter  // collectives made
	members  []member // by position
}

// member is what one rank tells the others of a group.
type member struct {
	entered atomic.Int64            // collectives
	node    atomic.Pointer[ir.Node] // of the one entered last
}

// groupView is one rank's view of a group.
type groupView struct {
	*group
	entered int64               // collectives, by this rank
	current *runtime.Collective // in progress
	late    func() []int        // whom this rank waits for
}

func (d *Device) group(c *runtime.Collective) *groupView {
	for len(d.groups) <= c.Group {
		d.groups = append(d.groups, nil)
	}
	if d.groups[c.Group] == nil {
		b := d.backend
		g := at(&b.mu, &b.groups, c.Group, func() *group { return &group{members: make([]member, len(c.Members))} })
		view := &groupView{group: g}
		view.late = view.missing
		d.groups[c.Group] = view
	}
	g := d.groups[c.Group]
	g.current = c
	return g
}

// missing lists the ranks that have not entered the collective this rank is in, or if
// all have, the others: one of them makes it.
func (g *groupView) missing() []int {
	var late, others []int
	for i, m := range g.current.Members {
		if i != g.current.Position {
			others = append(others, m.Rank)
		}
		if g.members[i].entered.Load() < g.entered {
			late = append(late, m.Rank)
		}
	}
	if len(late) == 0 {
		return others
	}
	return late
}

// Collective makes a collective, or gives it to the communication stream.
func (d *Device) Collective(c *runtime.Collective) error {
	if c.Stream == runtime.Communication {
		d.comm.give(work{collective: c})
		return nil
	}
	defer d.pool.Offer()
	return d.collective(c)
}

// collective takes part in a collective and those made together with it. The last
// member to enter makes them for all, from arena to arena: nobody else touches the
// operands and results meanwhile, so that members meet only once. Those that wait
// for it help, as in any operation.
func (d *Device) collective(c *runtime.Collective) error {
	g := d.group(c)
	if len(g.members) != len(c.Members) {
		return fmt.Errorf("cpu: group %d has %d members, the collective %d", c.Group, len(g.members), len(c.Members))
	}
	g.entered++
	g.members[c.Position].node.Store(c.Node)
	g.members[c.Position].entered.Store(g.entered)
	if g.arrivals.Add(1) < g.entered*int64(len(g.members)) {
		return d.wait(&g.done, g.entered, g.late)
	}
	for i := range g.members {
		if n := g.members[i].node.Load(); n != c.Node {
			return fmt.Errorf("cpu: rank %d has entered %s %s instead", c.Members[i].Rank, n.Op, n.Name)
		}
	}
	if err := d.enter(); err != nil {
		return err
	}
	if err := d.exchange(c); err != nil {
		return err
	}
	for _, more := range c.More {
		if err := d.exchange(more); err != nil {
			return err
		}
	}
	g.done.add()
	return nil
}
