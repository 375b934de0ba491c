package codegen

import (
	"fmt"
	"maps"
	"slices"

	"github.com/autopar/autopar/ir"
)

func sorted(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }

// meetings makes sure that ranks which communicate mean the same value. For each collective, all members must
// enter with the same value at the same point of their order. For each transfer, a rank's peer must send what
// the peer of the first rank of its class sends. Within a class this holds by construction.
func (e *equivalence) meetings() error {
	agreed := map[[3]any]bool{}
	for r := range e.prog.Schedules {
		s, mine := &e.prog.Schedules[r], e.classOf[r]
		for axis, a := range e.prog.Mesh.Axes {
			if a.Time {
				continue
			}
			for _, d := range e.prog.Mesh.Group(s.Coord, axis) {
				member := e.prog.Plan.WorldRank(s.Stage, d)
				theirs := e.classOf[member]
				key := [3]any{mine, theirs, a.Name}
				if mine == theirs || agreed[key] {
					continue
				}
				agreed[key] = true
				if err := e.agree(mine, theirs, a.Name); err != nil {
					return err
				}
			}
		}
		for stage := range e.prog.Stages {
			peer := e.classOf[e.prog.Plan.WorldRank(stage, s.Device)]
			usual := e.classOf[e.prog.Plan.WorldRank(stage, mine.Device)]
			key := [3]any{peer, usual, s.Stage}
			if peer == usual || stage == s.Stage || agreed[key] {
				continue
			}
			agreed[key] = true
			if err := e.sameSends(peer, usual, s.Stage, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// agree compares the collectives that two classes enter over an axis.
func (e *equivalence) agree(a, b *class, axis string) error {
	over := func(c *class) []event {
		var list []event
		for _, ev := range c.events {
			if attr, ok := ev.attr.(ir.CommAttr); ok && attr.Axis == axis {
				list = append(list, ev)
			}
		}
		return list
	}
	return e.compare(a, b, over(a), over(b), fmt.Sprintf("of its group over %s", axis))
}

// sameSends compares what two classes send to a stage.
func (e *equivalence) sameSends(a, b *class, stage, receiver int) error {
	to := func(c *class) []event {
		var list []event
		for _, ev := range c.events {
			if ev.op == ir.OpSend && ev.to == stage {
				list = append(list, ev)
			}
		}
		return list
	}
	return e.compare(a, b, to(a), to(b), fmt.Sprintf("with rank %d as receiver", receiver))
}

// compare returns an error for the first difference between the communication of two classes.
func (e *equivalence) compare(a, b *class, as, bs []event, what string) error {
	for i := range max(len(as), len(bs)) {
		if i >= len(as) || i >= len(bs) {
			if i >= len(as) {
				a, b, as = b, a, bs
			}
			return &CheckError{Rank: a.Rank, Stage: a.Stage, Instr: as[i].instr, Value: as[i].expr.name,
				Msg: fmt.Sprintf("%s: rank %d, %s, never enters this %s", as[i].task, b.Rank, what, as[i].op)}
		}
		x, y := as[i], bs[i]
		if x.op == y.op && x.attr == y.attr && x.expr == y.expr && x.spec == y.spec && microBatchOf(x.task) == microBatchOf(y.task) {
			continue
		}
		if x.expr.known && !y.expr.known {
			a, b, x, y = b, a, y, x
		}
		return &CheckError{Rank: a.Rank, Stage: a.Stage, Instr: x.instr, Value: x.expr.name,
			Msg: fmt.Sprintf("%s: meets %s of %s (%s) on rank %d %s", x.task, y.op, y.expr.name, y.task, b.Rank, what)}
	}
	return nil
}

// checkWorld makes sure that the ranks of every stage are exactly the devices of its mesh, and that groups and
// peers are symmetric.
func checkWorld(p *Program) error {
	held := map[[2]int]int{}
	for r := range p.Schedules {
		s := &p.Schedules[r]
		fail := func(format string, args ...any) error {
			return &CheckError{Rank: r, Stage: s.Stage, Msg: fmt.Sprintf(format, args...)}
		}
		if s.Stage < 0 || s.Stage >= len(p.Stages) {
			return fail("there are %d stages", len(p.Stages))
		}
		if s.Rank != r || s.Device < 0 || s.Device >= p.Mesh.Devices() || p.Mesh.Coord(s.Device) != s.Coord {
			return fail("is rank %d, device %d of %d at %v", s.Rank, s.Device, p.Mesh.Devices(), s.Coord)
		}
		if other, taken := held[[2]int{s.Stage, s.Device}]; taken {
			return fail("is device %d, as rank %d is", s.Device, other)
		}
		held[[2]int{s.Stage, s.Device}] = r
		if w := p.Plan.WorldRank(s.Stage, s.Device); w != r {
			return fail("is device %d, which others take for rank %d", s.Device, w)
		}
		for axis, a := range p.Mesh.Axes {
			if a.Time {
				continue
			}
			group := p.Mesh.Group(s.Coord, axis)
			if at := slices.Index(group, s.Device); at != s.Coord[axis] || len(group) != a.Size {
				return fail("is at place %d of its group %v over %s, want %d", at, group, a.Name, s.Coord[axis])
			}
		}
	}
	if want := len(p.Stages) * p.Mesh.Devices(); len(p.Schedules) != want {
		return &CheckError{Rank: len(p.Schedules), Msg: fmt.Sprintf("does not exist: %d stages of %d devices have %d ranks", len(p.Stages), p.Mesh.Devices(), want)}
	}
	return nil
}

// checkTiling makes sure that the parts of every value, over ranks and micro-batches, tile it, and that every
// rank runs all its micro-batches.
func checkTiling(p *Program) error {
	type cut struct {
		axis, size int
	}
	tiles := map[cut]bool{}
	// tile checks one dimension that the axes of a spec cut, the coarsest first.
	var tile func(axes []int, size int) error
	tile = func(axes []int, size int) error {
		if len(axes) == 0 || tiles[cut{axes[0], size}] && len(axes) == 1 {
			return nil
		}
		axis := p.Mesh.Axes[axes[0]]
		next := 0
		for i := range axis.Size {
			span := axis.Cut(size, i)
			if span.Off != next || span.Len < 0 {
				return fmt.Errorf("part %d over %s begins at element %d, where the parts before end at %d", i, axis.Name, span.Off, next)
			}
			next += span.Len
			if err := tile(axes[1:], span.Len); err != nil {
				return err
			}
		}
		if next != size {
			return fmt.Errorf("%d parts over %s hold %d of %d elements", axis.Size, axis.Name, next, size)
		}
		tiles[cut{axes[0], size}] = true
		return nil
	}
	done := map[*ir.Value]bool{}
	for _, st := range p.Stages {
		first := slices.IndexFunc(p.Schedules, func(s Schedule) bool { return s.Stage == st.Index })
		check := func(n *ir.Node, v *ir.Value) error {
			if done[v] {
				return nil
			}
			done[v] = true
			for d, size := range v.Type.Shape {
				if err := tile(v.Spec.ShardAxes(d), size); err != nil {
					return &CheckError{Rank: first, Stage: st.Index, Instr: n.Name, Value: v.Name(), Msg: fmt.Sprintf("dimension %d: %v", d, err)}
				}
			}
			return nil
		}
		for _, body := range st.Bodies {
			for _, in := range body.Instrs {
				for _, v := range slices.Concat(in.Node.Args, in.Node.Results) {
					if err := check(in.Node, v); err != nil {
						return err
					}
				}
			}
		}
	}
	return checkMicroBatches(p)
}

// checkMicroBatches makes sure that every rank runs all micro-batches that have a part of its inputs.
func checkMicroBatches(p *Program) error {
	for r := range p.Schedules {
		s := &p.Schedules[r]
		ran := map[int]bool{}
		for _, t := range s.Tasks {
			if t.Phase == ir.Forward {
				ran[t.MicroBatch] = true
			}
		}
		for _, in := range p.Stages[s.Stage].Bodies[ir.Forward].Instrs {
			if in.Node.Op != ir.OpInput && in.Node.Op != ir.OpRecv {
				continue // everything else is made from those
			}
			for _, v := range in.Node.Results {
				for at, a := range p.Mesh.Axes {
					if !a.Time || v.Spec[at].Kind != ir.Shard {
						continue
					}
					for mb := range a.Size {
						c := s.Coord
						c[at] = mb
						if n := p.Slab(v, c).Local[v.Spec[at].Dim]; n > 0 && !ran[mb] {
							return &CheckError{Rank: r, Stage: s.Stage, Instr: in.Node.Name, Value: v.Name(),
								Msg: fmt.Sprintf("the rank never runs micro-batch %d, which has %d of the %d", mb, n, v.Type.Shape[v.Spec[at].Dim])}
						}
					}
				}
			}
		}
	}
	return nil
}
