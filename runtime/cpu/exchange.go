package cpu

import (
	"unsafe"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// The data movement of collectives within a machine, once all members have entered. One rank makes
// all of it, or each member makes a share. Either way every element is computed by the same
// operations in the same order.

// exchange computes what the members of this machine end with. shares is 1, or the number of
// members; in that case it computes the given share. Memory is read once and written once.
func (d *Device) exchange(c *runtime.Collective, share, shares int) error {
	switch t, op := c.Members[0].In.DType, c.Node.Op; {
	case op == ir.OpAllReduce:
		return d.reduceToAll(c, share, shares)
	case op == ir.OpReduceScatter && (t == ir.Q64 || t.Half()):
		for i, m := range c.Members {
			if d.backend.devices[m.Rank].away || shares > 1 && i != share {
				continue
			}
			if err := d.reducePart(c, i); err != nil {
				return err
			}
		}
	default:
		d.inUnits(c, share, shares)
	}
	return nil
}

// element is the type by which elements of a tensor are moved: 4-byte words, fixed point, or the
// bits of two-byte numbers.
type element interface{ float32 | int64 | uint16 }

// elems returns the elements of a tensor of a rank.
func elems[E element](b *Backend, rank int, t *runtime.Tensor) []E {
	x := b.devices[rank].words(*t)
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(x))), t.Slab.Elems())
}

// took counts elements that a member receives from others.
func (d *Device) took(m *runtime.Member, elems int) {
	d.backend.devices[m.Rank].moved.Add(int64(elems) * m.In.DType.Size())
}

// reduceToAll computes a share of the elements of an all_reduce for all members. It takes members
// by pointer: copying their descriptions would cost a small collective more than its numbers.
func (d *Device) reduceToAll(c *runtime.Collective, share, shares int) error {
	b, k := d.backend, len(c.Members)
	n := int(c.Members[0].Out.Slab.Elems())
	for i := range c.Members { // counted as if each member computed a share for all others
		if own := codegen.ReduceShare(n, k, i).Len; shares == 1 || i == share {
			d.took(&c.Members[i], n-own+(k-1)*own)
		}
	}
	lo, hi := n*share/shares/lineElems*lineElems, n*(share+1)/shares/lineElems*lineElems
	if share+1 == shares {
		hi = n
	}
	if lo == hi {
		return nil
	}
	t := c.Members[0].In.DType
	if t != ir.Q64 && !t.Half() {
		d.ins, d.outs = d.ins[:0], d.outs[:0]
		for i := range c.Members {
			m := &c.Members[i]
			d.ins = append(d.ins, elems[float32](b, m.Rank, &m.In)[lo:hi])
			if !b.devices[m.Rank].away {
				d.outs = append(d.outs, elems[float32](b, m.Rank, &m.Out)[lo:hi])
			}
		}
		kernel.Combine(d.pool, c.Attr.Reduce == ir.Max, d.outs, d.ins)
		return nil
	}
	var made []float32                                         // by the first member on this machine
	from, to := int64(lo)*t.Size()/4, (int64(hi)*t.Size()+3)/4 // in words; a share begins at a cache line
	for i := range c.Members {
		m := &c.Members[i]
		if b.devices[m.Rank].away {
			continue
		}
		out := b.devices[m.Rank].words(m.Out)[from:to]
		switch {
		case made != nil:
			kernel.Copy(d.pool, out, made)
			continue
		case t == ir.Q64:
			if err := d.reduceFixed(c, elems[int64](b, m.Rank, &m.Out)[lo:hi], lo); err != nil {
				return err
			}
		default:
			d.reduceHalf(c, elems[uint16](b, m.Rank, &m.Out)[lo:hi], lo)
		}
		made = out
	}
	return nil
}

// lineElems is a number of elements that fills whole cache lines whatever the type.
const lineElems = 32

// reducePart computes a member's result of a reduce_scatter of fixed-point or two-byte numbers.
func (d *Device) reducePart(c *runtime.Collective, position int) (err error) {
	me := &c.Members[position]
	ir.EachRun(me.In.Slab, me.Out.Slab, func(from, to, n int) {
		d.took(me, n*(len(c.Members)-1))
		if me.In.DType != ir.Q64 {
			d.reduceHalf(c, elems[uint16](d.backend, me.Rank, &me.Out)[to:to+n], from)
		} else if err == nil {
			err = d.reduceFixed(c, elems[int64](d.backend, me.Rank, &me.Out)[to:to+n], from)
		}
	})
	return err
}

// unitElems is how many elements of a collective are worth a unit of work.
const unitElems = 16384

// inUnits makes a collective in units of about unitElems elements, which the cores of the pool
// share: the result of each member is divided into d.split units. If the collective has several
// shares, each is the result of one member.
func (d *Device) inUnits(c *runtime.Collective, share, shares int) {
	k := len(c.Members)
	n, made := int(c.Members[0].Out.Slab.Elems()), k/shares // members
	d.current, d.split, d.first, d.made = c, 1, share*made, made
	if n*made > unitElems {
		d.split = max(n/unitElems, (4*d.pool.Threads()+made-1)/made)
	}
	for units := made * d.split; len(d.ins) < units*k; {
		d.ins = append(d.ins, nil)
	}
	if d.unit == nil {
		d.unit = d.doUnit
	}
	if d.split > 1 {
		d.pool.Each(made*d.split, d.unit)
		return
	}
	for i := range made {
		d.unit(i)
	}
}

// doUnit makes a unit. Consecutive units read the same elements for different members, as far as
// these end with them, so that a core finds them in its cache.
func (d *Device) doUnit(unit int) {
	c, position, part := d.current, d.first+unit%d.made, unit/d.made
	switch {
	case d.backend.devices[c.Members[position].Rank].away:
	case c.Node.Op == ir.OpReduceScatter:
		d.reduceUnit(c, position, part, d.ins[unit*len(c.Members):][:len(c.Members)])
	case c.Members[0].In.DType.Half():
		gatherUnit[uint16](d, c, position, part)
	case c.Members[0].In.DType == ir.Q64:
		gatherUnit[int64](d, c, position, part)
	default:
		gatherUnit[float32](d, c, position, part)
	}
}

// gatherUnit copies a part of a member's result from the operands of the members.
func gatherUnit[E element](d *Device, c *runtime.Collective, position, part int) {
	me, k, taken := &c.Members[position], len(c.Members), 0
	out := elems[E](d.backend, me.Rank, &me.Out)
	lo, hi := d.part(part, len(out))
	for i := range k {
		at := i
		if d.made == 1 {
			at = (position + i) % k // members that each make a share start at different operands
		}
		m := &c.Members[at]
		in := elems[E](d.backend, m.Rank, &m.In)
		passed := ir.EachRunOf(m.In.Slab, me.Out.Slab, lo, hi, func(from, to, n int) {
			if &out[to] == &in[from] {
				return // it is in place
			}
			for end := to + n; to < end; to, from = to+blockElems, from+blockElems { // long copies bypass the caches
				copy(out[to:min(to+blockElems, end)], in[from:])
			}
			if m != me {
				taken += n
			}
		})
		lo, hi = lo-passed, hi-passed
	}
	d.took(me, taken)
}

// reduceUnit computes a part of a member's result of a reduce_scatter of float32. ins has room for
// the operands.
func (d *Device) reduceUnit(c *runtime.Collective, position, part int, ins [][]float32) {
	me, taken := &c.Members[position], 0
	out := elems[float32](d.backend, me.Rank, &me.Out)
	lo, hi := d.part(part, len(out))
	ir.EachRunOf(me.In.Slab, me.Out.Slab, lo, hi, func(from, to, n int) {
		for i := range c.Members {
			m := &c.Members[i]
			ins[i] = elems[float32](d.backend, m.Rank, &m.In)[from : from+n]
		}
		kernel.CombineAlone(d.pool, c.Attr.Reduce == ir.Max, out[to:to+n], ins)
		taken += n * (len(ins) - 1)
	})
	d.took(me, taken)
}

// part returns the range of elements of unit i, of all elements of a member's result.
func (d *Device) part(i, all int) (lo, hi int) { return all * i / d.split, all * (i + 1) / d.split }

// blockElems is how many elements are reduced at a time where they must be converted, so that they
// stay in cache.
const blockElems = 1 << 15
