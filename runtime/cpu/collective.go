package cpu

import (
	"fmt"
	"sync/atomic"
	"unsafe"

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

// Collective makes a collective, or gives it to the communication stream.
func (d *Device) Collective(c *runtime.Collective) error {
	if c.Stream == runtime.Communication {
		d.comm.give(work{collective: c})
		return nil
	}
	return d.collective(c)
}

// collective makes this rank's share of a collective, and of those made together
// with it. Members meet, read each other's arenas, and meet again before anyone may
// overwrite what was read.
func (d *Device) collective(c *runtime.Collective) error {
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
	if err := d.exchange(c); err != nil {
		return err
	}
	for _, more := range c.More {
		if err := d.exchange(more); err != nil {
			return err
		}
	}
	if c.Node.Op == ir.OpAllReduce {
		if err := d.barrier(g); err != nil {
			return err
		}
		d.collect(c)
		for _, more := range c.More {
			d.collect(more)
		}
	}
	return d.barrier(g)
}

// exchange reads what the member needs from the operands of the others: all of it
// but for an all_reduce, of which it makes one share whole.
func (d *Device) exchange(c *runtime.Collective) error {
	switch c.Members[c.Position].In.DType {
	case ir.Q64:
		return exchangeAs[int64](d, c)
	case ir.BF16, ir.F16:
		return exchangeAs[uint16](d, c)
	}
	return exchangeAs[float32](d, c)
}

// collect takes the shares of an all_reduce that the other members have made.
func (d *Device) collect(c *runtime.Collective) {
	switch c.Members[c.Position].In.DType {
	case ir.Q64:
		collectAs[int64](d, c)
	case ir.BF16, ir.F16:
		collectAs[uint16](d, c)
	default:
		collectAs[float32](d, c)
	}
}

// element is the type of the numbers in a tensor that communicates. Integers go as
// words, and floating-point numbers of two bytes by their bits.
type element interface{ float32 | int64 | uint16 }

// elems returns the elements of a tensor.
func elems[E element](d *Device, t runtime.Tensor) []E {
	x := d.words(t)
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(x))), t.Slab.Elems())
}

// copyElems sets dst to src.
func copyElems[E element](d *Device, dst, src []E) {
	if _, ok := any(dst).([]uint16); ok {
		copy(dst, src)
		return
	}
	kernel.Copy(d.pool, asWords(dst), asWords(src))
}

// asWords is the memory of elements of whole words.
func asWords[E element](x []E) []float32 {
	var e E
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(e)/4))
}

func exchangeAs[E element](d *Device, c *runtime.Collective) error {
	switch c.Node.Op {
	case ir.OpAllReduce:
		return shareAs[E](d, c)
	case ir.OpReduceScatter:
		return reduceScatter[E](d, c)
	case ir.OpAllGather, ir.OpAllToAll:
		gather[E](d, c)
		return nil
	}
	panic(fmt.Sprintf("BUG: cpu: %s is not a collective", c.Node.Op))
}

// shareAs makes the member's share of an all_reduce whole in its own arena. A
// share in place of an operand disturbs nobody: others read other shares of it.
func shareAs[E element](d *Device, c *runtime.Collective) error {
	out := elems[E](d, c.Members[c.Position].Out)
	mine := codegen.ReduceShare(len(out), len(c.Members), c.Position)
	return reduce(d, c, out[mine.Off:mine.Off+mine.Len], mine.Off)
}

func collectAs[E element](d *Device, c *runtime.Collective) {
	me := c.Members[c.Position]
	out := elems[E](d, me.Out)
	n := len(c.Members)
	for i, m := range c.Members {
		if i == c.Position {
			continue
		}
		share := codegen.ReduceShare(len(out), n, i)
		theirs := elems[E](d.backend.devices[m.Rank], m.Out)
		copyElems(d, out[share.Off:share.Off+share.Len], theirs[share.Off:share.Off+share.Len])
		d.moved += me.Out.DType.Size() * int64(share.Len)
	}
}

// reduceScatter reduces the member's part of the value, run by run.
func reduceScatter[E element](d *Device, c *runtime.Collective) (err error) {
	me := c.Members[c.Position]
	out := elems[E](d, me.Out)
	runtime.EachRun(me.In.Slab, me.Out.Slab, func(from, to, n int) {
		if err == nil {
			err = reduce(d, c, out[to:to+n], from)
		}
	})
	return err
}

// gather fills the member's result from what the members hold of it.
func gather[E element](d *Device, c *runtime.Collective) {
	me := c.Members[c.Position]
	out := elems[E](d, me.Out)
	for i, m := range c.Members {
		in := elems[E](d.backend.devices[m.Rank], m.In)
		runtime.EachRun(m.In.Slab, me.Out.Slab, func(from, to, n int) {
			copy(out[to:to+n], in[from:from+n])
			if i != c.Position {
				d.moved += me.Out.DType.Size() * int64(n)
			}
		})
	}
}

// blockElems is how many elements are reduced at a time, to stay in cache.
const blockElems = 1 << 15

// reduce sets dst to the reduction, over the members in order, of as many
// elements from the given index of their operands. dst may be that part of the
// member's own operand. It fails where fixed point overflows.
func reduce[E element](d *Device, c *runtime.Collective, dst []E, from int) error {
	if d.block == nil {
		d.block = make([]int64, blockElems)
	}
	block := unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(d.block))), blockElems)
	size := c.Members[c.Position].In.DType.Size()
	d.moved += size * int64(len(dst)*(len(c.Members)-1))
	if half, ok := any(dst).([]uint16); ok {
		d.reduceHalf(c, half, from)
		return nil
	}
	for len(dst) > 0 {
		n := min(len(dst), blockElems)
		acc := block[:n]
		for i, m := range c.Members {
			in := elems[E](d.backend.devices[m.Rank], m.In)[from : from+n]
			if i == 0 {
				kernel.Copy(d.pool, asWords(acc), asWords(in))
			} else if !combine(d, c.Attr.Reduce, acc, in) {
				return errFixedSum
			}
		}
		kernel.Copy(d.pool, asWords(dst[:n]), asWords(acc))
		dst, from = dst[n:], from+n
	}
	return nil
}

// combine sets acc to its sum or maximum with in and reports whether that fits.
func combine[E element](d *Device, by ir.Reduction, acc, in []E) bool {
	switch acc := any(acc).(type) {
	case []int64:
		return kernel.AddFixed(d.pool, acc, any(in).([]int64))
	case []float32:
		if by == ir.Max {
			kernel.MaxInto(d.pool, acc, any(in).([]float32))
		} else {
			kernel.AddInto(d.pool, acc, any(in).([]float32))
		}
	}
	return true
}
