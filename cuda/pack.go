package cuda

import (
	"errors"
	"slices"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// A part of a value that is cut along its first dimension is one run of elements. Cut along another one it is a run
// for each index of the dimensions before: for each row of a weight whose columns ZeRO shards, for each token where
// attention's heads are cut. NCCL would need a call for each of them. So a kernel packs the runs one after another in
// packing memory, and another one unpacks what has come.

// packingBytes is the packing memory of a lane, which is in no plan. Larger values move in several pieces. Sizes of weights
// are often multiples of large powers of two, so what pieces need besides has room of its own.
var packingBytes int64 = 32<<20 + pad

// fewRuns is for how many runs calls of their own take no longer than packing, by estimate: runs of a value, or of a piece of it
// if they are so long that packing memory has room for no more.
const fewRuns = 8

// exchange is a collective by NCCL, or a piece of one: what is packed before NCCL's calls and unpacked after them. All
// ranks make the same exchanges in the same groups.
type exchange struct {
	room                 int64 // bytes of packing memory, the same on all ranks
	before, calls, after func(at driver.Ptr) error
}

// exchangeAll makes exchanges, as many at a time as packing memory has room for, and one more call beside the last.
func (l *lane) exchangeAll(all []exchange, more func() error) error {
	for len(all) > 0 {
		var group []exchange
		var places []driver.Ptr
		for used := int64(0); len(all) > 0 && (used == 0 || used+all[0].room <= packingBytes); all = all[1:] {
			group, places = append(group, all[0]), append(places, l.packing+driver.Ptr(used))
			used += (all[0].room + 255) / 256 * 256
		}
		each := func(do func(exchange) func(driver.Ptr) error) error {
			for i, x := range group {
				if f := do(x); f != nil {
					if err := f(places[i]); err != nil {
						return err
					}
				}
			}
			return nil
		}
		if err := each(func(x exchange) func(driver.Ptr) error { return x.before }); err != nil {
			return err
		}
		lib := l.device.backend.nccl
		if err := lib.GroupStart(); err != nil {
			return err
		}
		err := each(func(x exchange) func(driver.Ptr) error { return x.calls })
		if err == nil && len(all) == 0 {
			err = more()
		}
		if err = errors.Join(err, lib.GroupEnd()); err != nil { // the group must end even after an error, or the thread's next calls would belong to it
			return err
		}
		if err := each(func(x exchange) func(driver.Ptr) error { return x.after }); err != nil {
			return err
		}
	}
	return nil
}

// strip is where a part of a value lies in it: count runs of elements, a pitch apart, the first of them at an element. Rows are
// its indexes of the first dimension that is cut, by which [strip.piece] divides it.
type strip struct{ at, run, pitch, count, rows int }

// extent is which elements of a strip a piece has: those in slices lo to hi, of so many in all, of the dimensions before
// those that are cut, or of one slice those in one of several parts of the first dimension that is cut.
type extent struct{ lo, hi, slices, part, parts int }

func (s strip) elems() int { return s.run * s.count }

// piece returns the part of a strip that a piece has.
func (s strip) piece(x extent) strip {
	n, lo := s.count/x.slices, x.lo
	if x.parts <= 1 {
		return strip{at: s.at + lo*n*s.pitch, run: s.run, pitch: s.pitch, count: (x.hi - lo) * n}
	}
	from, to := s.rows*x.part/x.parts, s.rows*(x.part+1)/x.parts
	switch {
	case s.rows == 0:
		return strip{}
	case n == 1: // the rows of a slice are one run
		row := s.run / s.rows
		return strip{at: s.at + lo*s.pitch + from*row, run: (to - from) * row, pitch: s.pitch, count: 1}
	}
	n /= s.rows
	return strip{at: s.at + (lo*s.rows+from)*n*s.pitch, run: s.run, pitch: s.pitch, count: (to - from) * n}
}

// stripOf returns the strip that dimension d of a part cuts out of a value. ok is false if they differ in another one.
func stripOf(value, part ir.Slab, d int) (s strip, ok bool) {
	for i, n := range value.Local {
		if i != d && (part.Offset[i] > value.Offset[i] || part.Offset[i]+part.Local[i] < value.Offset[i]+n) {
			return strip{}, false
		}
	}
	outer, inner := int(ir.Elems(value.Local[:d])), int(ir.Elems(value.Local[d+1:]))
	lo, hi := max(value.Offset[d], part.Offset[d]), min(value.Offset[d]+value.Local[d], part.Offset[d]+part.Local[d])
	return strip{at: (lo - value.Offset[d]) * inner, run: max(0, hi-lo) * inner, pitch: value.Local[d] * inner, count: outer}, true
}

// pack copies strips of a value to packing memory, one after another. unpack copies them back.
func (l *lane) pack(d ir.DType, packing, value driver.Ptr, strips []strip) error {
	return l.copies(strips, func(at int, s strip, dims ...kernel.Dim) error {
		return l.device.gpu.engine.Move(l.stream, d, packing+driver.Ptr(int64(at)*d.Size()), value+driver.Ptr(int64(s.at)*d.Size()), dims...)
	})
}

func (l *lane) unpack(d ir.DType, value, packing driver.Ptr, strips []strip) error {
	return l.copies(strips, func(at int, s strip, dims ...kernel.Dim) error {
		for i, x := range dims {
			dims[i].From, dims[i].To = x.To, x.From
		}
		return l.device.gpu.engine.Move(l.stream, d, value+driver.Ptr(int64(s.at)*d.Size()), packing+driver.Ptr(int64(at)*d.Size()), dims...)
	})
}

// copies calls do for strips: for each first one of those that are alike and equally far apart, with its place among
// what is packed, and the dimensions in which it and they lie in the value (From) and there (To).
func (l *lane) copies(strips []strip, do func(at int, s strip, dims ...kernel.Dim) error) error {
	at := 0
	for len(strips) > 0 {
		s, n, apart := strips[0], 1, 0
		if len(strips) > 1 {
			apart = strips[1].at - s.at
		}
		for n < len(strips) && strips[n] == (strip{s.at + n*apart, s.run, s.pitch, s.count, s.rows}) {
			n++
		}
		run, size := int64(s.run), int64(s.elems())
		if size > 0 {
			if err := do(at, s, kernel.Dim{N: int64(n), From: int64(apart), To: size}, kernel.Dim{N: int64(s.count), From: int64(s.pitch), To: run}, kernel.Dim{N: run, From: 1, To: 1}); err != nil {
				return err
			}
		}
		at, strips = at+n*s.elems(), strips[n:]
	}
	return nil
}

// cuts is how a collective is packed.
type cuts struct {
	send, receive []strip // of the rank's operand for each member, of its result from each member
	slices        int     // of the dimensions before those that are cut
	parts         int     // of a slice, if it takes more than packing memory
	bytes         int64   // of a slice, or of such a part, in packing memory
	step          int     // slices that are packed at a time
}

// cutsOf returns how to pack a collective, the same kind of cuts on all ranks. ok is false if few runs would be
// packed at a time.
func cutsOf(c *runtime.Collective) (cut cuts, ok bool) {
	if c.Node.Op == ir.OpAllReduce {
		return cuts{}, false
	}
	d, to := c.Attr.Dim, c.Attr.Dim
	if c.Node.Op == ir.OpAllToAll {
		to = c.Attr.To
	}
	first, runs := min(d, to), 0
	slices := int(ir.Elems(c.Members[0].In.Slab.Local[:first]))
	size := c.Members[0].In.DType.Size()
	var all []cuts // of all members whose values differ in size
	for j, of := range c.Members {
		if j != c.Position && c.Node.Op != ir.OpAllToAll {
			continue // all have the whole value alike
		}
		x := cuts{slices: slices, parts: 1}
		for _, m := range c.Members {
			var s, r strip
			sends, receives := c.Node.Op == ir.OpAllGather, c.Node.Op == ir.OpReduceScatter // nothing that is cut
			if !sends {
				s, sends = stripOf(of.In.Slab, m.Out.Slab, to)
			}
			if !receives {
				r, receives = stripOf(of.Out.Slab, m.In.Slab, d)
			}
			if !sends || !receives {
				return cuts{}, false
			}
			s.rows = min(of.In.Slab.Local[first], m.Out.Slab.Local[first]) // one of them has all rows
			r.rows = min(m.In.Slab.Local[first], of.Out.Slab.Local[first])
			x.send, x.receive, runs = append(x.send, s), append(x.receive, r), max(runs, s.count, r.count)
		}
		if j == c.Position {
			cut = x
		}
		all = append(all, x)
	}
	if slices == 0 {
		return cuts{}, false
	}
	for {
		cut.bytes = 0
		for _, x := range all {
			cut.bytes = max(cut.bytes, x.most(cut.parts)*size)
		}
		if cut.bytes+pad <= packingBytes {
			if cut.step = 1; cut.parts == 1 {
				cut.step = min(slices, int((packingBytes-pad)/max(1, cut.bytes)))
			}
			return cut, runs/slices*cut.step/cut.parts > fewRuns
		}
		if c.Node.Op != ir.OpAllToAll || cut.parts >= c.Members[0].In.Slab.Global[first] {
			return cuts{}, false
		}
		cut.parts++
	}
}

// most returns how many elements of a slice, if it is divided into so many parts, are sent and received at a time.
func (c *cuts) most(parts int) (elems int64) {
	for _, x := range slices.Concat(c.send, c.receive) {
		if x.rows > 0 {
			elems += int64(x.elems() / c.slices / x.rows * ((x.rows + parts - 1) / parts))
		}
	}
	return elems
}

// pad is room for aligning what is received.
const pad = 16

// packed lists the exchanges of a collective whose parts are packed. There are none if it is not worth it.
func (l *lane) packed(comm driver.Comm, c *runtime.Collective) (all []exchange) {
	cut, ok := cutsOf(c)
	if !ok {
		return nil
	}
	for lo := 0; lo < cut.slices; lo += cut.step {
		hi := min(lo+cut.step, cut.slices)
		for part := range cut.parts {
			x := l.packedPiece(comm, c, cut, extent{lo, hi, cut.slices, part, cut.parts})
			x.room = int64(hi-lo)*cut.bytes + pad
			all = append(all, x)
		}
	}
	return all
}

// packedPiece makes the exchange of a piece.
func (l *lane) packedPiece(comm driver.Comm, c *runtime.Collective, cut cuts, which extent) exchange {
	me := c.Members[c.Position]
	d := me.In.DType
	piece := func(all []strip) (some []strip, elems []int, sum int) {
		for _, s := range all {
			s = s.piece(which)
			some, elems, sum = append(some, s), append(elems, s.elems()), sum+s.elems()
		}
		return some, elems, sum
	}
	at := func(p driver.Ptr, elem int) driver.Ptr { return p + driver.Ptr(int64(elem)*d.Size()) }
	send, sends, sum := piece(cut.send)
	receive, receives, _ := piece(cut.receive)
	pack := func(p driver.Ptr) error { return l.pack(d, p, l.operand(me, 0), send) }
	unpack := func(p driver.Ptr) error { return l.unpack(d, l.result(me, 0), p, receive) }
	even := func(elems []int) bool { return slices.Min(elems) == slices.Max(elems) }
	switch c.Node.Op {
	case ir.OpReduceScatter:
		result := l.result(me, which.lo*cut.send[c.Position].run)
		return exchange{before: pack, calls: func(p driver.Ptr) error {
			if even(sends) {
				return comm.ReduceScatter(p, result, int64(sends[0]), d, c.Attr.Reduce, l.stream)
			}
			for root, n := range sends {
				if n > 0 {
					var recv driver.Ptr
					if root == c.Position {
						recv = result
					}
					if err := comm.Reduce(p, recv, int64(n), d, c.Attr.Reduce, root, l.stream); err != nil {
						return err
					}
				}
				p = at(p, n)
			}
			return nil
		}}
	case ir.OpAllGather:
		operand := l.operand(me, which.lo*cut.receive[c.Position].run)
		return exchange{after: unpack, calls: func(p driver.Ptr) error {
			if even(receives) {
				return comm.AllGather(operand, p, int64(receives[0]), d, l.stream)
			}
			for i, n := range receives {
				if err := l.swap(comm, c, i, operand, receives[c.Position], p, n); err != nil {
					return err
				}
				p = at(p, n)
			}
			return nil
		}}
	}
	arrived := (int64(sum)*d.Size() + pad - 1) / pad * pad
	return exchange{before: pack, after: func(p driver.Ptr) error { return unpack(p + driver.Ptr(arrived)) }, calls: func(p driver.Ptr) error {
		to := p + driver.Ptr(arrived)
		for i, n := range receives {
			if err := l.swap(comm, c, i, p, sends[i], to, n); err != nil {
				return err
			}
			p, to = at(p, sends[i]), at(to, n)
		}
		return nil
	}}
}

// swap sends elements to a member and receives others from it, unless there are none. The member may be the rank itself.
func (l *lane) swap(comm driver.Comm, c *runtime.Collective, member int, from driver.Ptr, sends int, to driver.Ptr, receives int) error {
	d := c.Members[c.Position].In.DType
	if member == c.Position && receives > 0 {
		return l.bring(to, from, int64(receives)*d.Size())
	}
	if sends > 0 {
		if err := comm.Send(from, int64(sends), d, member, l.stream); err != nil {
			return err
		}
	}
	if receives > 0 {
		return comm.Recv(to, int64(receives), d, member, l.stream)
	}
	return nil
}
