package cpu

import (
	"fmt"
	"sync/atomic"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// group is a set of ranks that make collectives together.
type group struct {
	arrivals counter
	members  []member // by position
}

// member is what one rank tells the others of a group.
type member struct {
	barriers atomic.Int64            // entered
	node     atomic.Pointer[ir.Node] // of the collective entered last
}

// groupView is one rank's view of a group.
type groupView struct {
	*group
	barriers int64               // entered by this rank
	current  *runtime.Collective // in progress
	late     func() []int        // members that have not entered the barrier
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

// missing lists the ranks that have not entered the barrier this rank is in.
func (g *groupView) missing() []int {
	var ranks []int
	for i := range g.members {
		if g.members[i].barriers.Load() < g.barriers {
			ranks = append(ranks, g.current.Members[i].Rank)
		}
	}
	return ranks
}

// barrier returns when all members have entered it.
func (d *Device) barrier(g *groupView) error {
	g.barriers++
	g.members[g.current.Position].barriers.Store(g.barriers)
	g.arrivals.add()
	return d.wait(&g.arrivals, g.barriers*int64(len(g.members)), g.late)
}

// Collective makes this rank's share of a collective. Members meet, read each
// other's arenas, and meet again before anyone may overwrite what was read.
func (d *Device) Collective(c *runtime.Collective) error {
	g := d.group(c)
	if len(g.members) != len(c.Members) {
		return fmt.Errorf("cpu: group %d has %d members, the collective %d", c.Group, len(g.members), len(c.Members))
	}
	g.members[c.Position].node.Store(c.Node)
	if err := d.barrier(g); err != nil {
		return err
	}
	for i := range g.members {
		if n := g.members[i].node.Load(); n != c.Node {
			return fmt.Errorf("cpu: rank %d has entered %s %s instead", c.Members[i].Rank, n.Op, n.Name)
		}
	}
	switch c.Node.Op {
	case ir.OpAllReduce:
		if err := d.allReduce(g, c); err != nil {
			return err
		}
	case ir.OpReduceScatter:
		d.reduceScatter(c)
	case ir.OpAllGather, ir.OpAllToAll:
		d.gather(c)
	default:
		panic(fmt.Sprintf("BUG: cpu: %s is not a collective", c.Node.Op))
	}
	return d.barrier(g)
}

// allReduce makes one share of the value whole in the member's own arena, and
// then collects the shares of the others. A share in place of an operand
// disturbs nobody: others read other shares of it.
func (d *Device) allReduce(g *groupView, c *runtime.Collective) error {
	out := c.Members[c.Position].Out
	elems, n := int(out.Slab.Elems()), len(c.Members)
	mine := codegen.ReduceShare(elems, n, c.Position)
	d.reduce(c, out, mine.Off, mine.Len, mine.Off)
	if err := d.barrier(g); err != nil {
		return err
	}
	for i, m := range c.Members {
		if i == c.Position {
			continue
		}
		share := codegen.ReduceShare(elems, n, i)
		peer, end := d.backend.devices[m.Rank], share.Off+share.Len
		if out.DType.Half() {
			copy(d.halves(out)[share.Off:end], peer.halves(m.Out)[share.Off:end])
		} else {
			kernel.Copy(d.pool, d.floats(out)[share.Off:end], peer.floats(m.Out)[share.Off:end])
		}
		d.moved += out.DType.Size() * int64(share.Len)
	}
	return nil
}

// reduceScatter reduces the member's part of the value, run by run.
func (d *Device) reduceScatter(c *runtime.Collective) {
	me := c.Members[c.Position]
	eachRun(me.In.Slab, me.Out.Slab, func(from, to, n int) {
		d.reduce(c, me.Out, to, n, from)
	})
}

// gather fills the member's result from what the members hold of it.
func (d *Device) gather(c *runtime.Collective) {
	me := c.Members[c.Position]
	out, size := d.raw(me.Out), int(me.Out.DType.Size())
	for i, m := range c.Members {
		in := d.backend.devices[m.Rank].raw(m.In)
		eachRun(m.In.Slab, me.Out.Slab, func(from, to, n int) {
			copy(out[to*size:(to+n)*size], in[from*size:(from+n)*size])
			if i != c.Position {
				d.moved += int64(n * size)
			}
		})
	}
}

// blockElems is how many elements are reduced at a time, to stay in cache.
const blockElems = 1 << 15

// reduce sets n elements of out, from index to on, to the reduction, over the
// members in order, of as many elements from the given index of their operands.
// They may be that part of the member's own operand. What has two bytes an element
// is reduced in float32 and rounded once.
func (d *Device) reduce(c *runtime.Collective, out runtime.Tensor, to, n, from int) {
	d.moved += out.DType.Size() * int64(n*(len(c.Members)-1))
	for ; n > 0; n, to, from = n-blockElems, to+blockElems, from+blockElems {
		size := min(n, blockElems)
		acc := d.blockOf(&d.block)[:size]
		for i, m := range c.Members {
			in := d.read(d.backend.devices[m.Rank], m.In, from, size)
			switch {
			case i == 0:
				kernel.Copy(d.pool, acc, in)
			case c.Attr.Reduce == ir.Max:
				kernel.MaxInto(d.pool, acc, in)
			default:
				kernel.AddInto(d.pool, acc, in)
			}
		}
		if out.DType.Half() {
			kernel.Narrow(d.pool, formatOf(out.DType), d.halves(out)[to:to+size], acc)
		} else {
			kernel.Copy(d.pool, d.floats(out)[to:to+size], acc)
		}
	}
}

// read returns at most blockElems elements of a tensor of a device as float32,
// until the next call.
func (d *Device) read(from *Device, t runtime.Tensor, at, n int) []float32 {
	if !t.DType.Half() {
		return from.floats(t)[at : at+n]
	}
	term := d.blockOf(&d.term)[:n]
	kernel.Widen(d.pool, formatOf(t.DType), term, from.halves(t)[at:at+n])
	return term
}

// blockOf returns a buffer of blockElems elements, which is made at first use.
func (d *Device) blockOf(buf *[]float32) []float32 {
	if *buf == nil {
		*buf = make([]float32, blockElems)
	}
	return *buf
}

// maxRank bounds the dimensions of a value.
const maxRank = 8

// eachRun calls do for every run of elements that lie together in both parts of
// a value, with their local indexes and number.
func eachRun(a, b ir.Slab, do func(inA, inB, n int)) {
	rank := len(a.Global)
	if rank == 0 {
		do(0, 0, 1)
		return
	}
	if rank > maxRank {
		panic(fmt.Sprintf("BUG: cpu: value of %d dimensions, want at most %d", rank, maxRank))
	}
	var size, strideA, strideB, index [maxRank]int
	atA, atB, sa, sb := 0, 0, 1, 1
	for i := rank - 1; i >= 0; i-- {
		lo := max(a.Offset[i], b.Offset[i])
		size[i] = min(a.Offset[i]+a.Local[i], b.Offset[i]+b.Local[i]) - lo
		if size[i] <= 0 {
			return
		}
		strideA[i], strideB[i] = sa, sb
		atA += (lo - a.Offset[i]) * sa
		atB += (lo - b.Offset[i]) * sb
		sa *= a.Local[i]
		sb *= b.Local[i]
	}
	// Dimensions that both parts hold whole join the run of the one before.
	inner, run := rank-1, size[rank-1]
	for ; inner > 0 && size[inner] == a.Local[inner] && size[inner] == b.Local[inner]; inner-- {
		run *= size[inner-1]
	}
	for {
		do(atA, atB, run)
		d := inner - 1
		for ; d >= 0; d-- {
			atA, atB = atA+strideA[d], atB+strideB[d]
			if index[d]++; index[d] < size[d] {
				break
			}
			atA, atB = atA-size[d]*strideA[d], atB-size[d]*strideB[d]
			index[d] = 0
		}
		if d < 0 {
			return
		}
	}
}
