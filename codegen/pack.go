package codegen

import (
	"cmp"
	"math/bits"
	"slices"
	"sort"
)

// pack assigns offsets to buffers with lifetimes and returns the space they take. Those of which none lives on when
// the next begin, as most of what chunks need beside each other, know nothing of one another.
func pack(buffers []Buffer, ids []int) int64 {
	order := slices.Clone(ids)
	slices.SortFunc(order, func(x, y int) int { return cmp.Compare(buffers[x].From, buffers[y].From) })
	var total int64
	for len(order) > 0 {
		n, end := 1, buffers[order[0]].To
		for ; n < len(order) && buffers[order[n]].From <= end; n++ {
			end = max(end, buffers[order[n]].To)
		}
		total = max(total, packTogether(buffers, order[:n]))
		order = order[n:]
	}
	return total
}

// packTogether is pack for buffers whose lives hang together, in any order: the largest first, each at the lowest
// offset at which nothing that was placed before lives when it does.
func packTogether(buffers []Buffer, order []int) int64 {
	place := new(placed).place
	if len(order) > manyBuffers {
		place = newOccupancy(buffers, order).place
	}
	slices.SortFunc(order, func(x, y int) int {
		a, b := &buffers[x], &buffers[y]
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.filled(), b.filled()), cmp.Compare(x, y))
	})
	var total int64
	for _, id := range order {
		buf := &buffers[id]
		buf.Offset = place(alignUp(buf.Size), buf)
		total = max(total, buf.Offset+alignUp(buf.Size))
	}
	return total
}

// packedAtMost bounds pack from above. What lies on a buffer hangs together down to offset 0, so that no more is taken than all
// have. And below a buffer there are only those that live when it does and are as large, with less than its size free under each.
func packedAtMost(buffers []Buffer, ids []int) int64 {
	last := 0
	for _, id := range ids {
		last = max(last, buffers[id].To)
	}
	begun, ended := make([]int64, last+2), make([]int64, last+2) // bytes, before a time
	var all, most int64
	for _, id := range ids {
		b := &buffers[id]
		size := alignUp(b.Size)
		all += size
		begun[b.From+1] += size
		ended[b.To+1] += size
	}
	for t := range last + 1 {
		begun[t+1] += begun[t]
		ended[t+1] += ended[t]
	}
	for _, id := range ids {
		b := &buffers[id]
		size := alignUp(b.Size)
		most = max(most, size+2*(begun[b.To+1]-ended[b.From]-size))
	}
	return min(all, most)
}

// manyBuffers is how many are placed faster by an [occupancy] than next to each other.
const manyBuffers = 1024

// placed is buffers that have been placed, by offset.
type placed []space

// space is where a buffer lies, and when.
type space struct {
	span
	from, to int
}

// place takes the lowest offset from which on so many bytes are free as long as a buffer lives, and returns it.
func (p *placed) place(size int64, b *Buffer) (at int64) {
	for i := range *p {
		other := &(*p)[i]
		if other.to < b.From || b.To < other.from {
			continue
		}
		if other.at >= at+size {
			break
		}
		at = max(at, other.end)
	}
	i := sort.Search(len(*p), func(i int) bool { return (*p)[i].at >= at })
	*p = slices.Insert(*p, i, space{span{at, at + size}, b.From, b.To})
	return at
}

// occupancy says which offsets are taken when. It is a tree over time, of which a node stands for a stretch and its
// children for the halves of that, so that few nodes know all that is in the way of a buffer, however many there are: what
// blocks keep for their backward pass is one span of each.
type occupancy struct {
	times []int   // where lives begin or have ended
	nodes []taken // those below node i are 2i and 2i+1; the last half stands for the times
	near  []spans // see place
}

// taken is what is taken in the stretch of a node.
type taken struct {
	always spans // by lives that last all of it, but not all of that above it
	ever   spans // by any
}

func newOccupancy(buffers []Buffer, ids []int) *occupancy {
	times := make([]int, 0, 2*len(ids))
	for _, id := range ids {
		times = append(times, buffers[id].From, buffers[id].To+1)
	}
	slices.Sort(times)
	times = slices.Compact(times)
	return &occupancy{times: times, nodes: make([]taken, 2<<bits.Len(uint(len(times)-1)))}
}

// place is that of [placed].
func (o *occupancy) place(size int64, b *Buffer) int64 {
	from, _ := slices.BinarySearch(o.times, b.From)
	to, _ := slices.BinarySearch(o.times, b.To+1)
	leaves := len(o.nodes) / 2
	o.near = o.near[:0]
	o.each(1, 0, leaves, from, to, func(t *taken, whole bool) {
		if whole {
			o.near = append(o.near, t.ever)
		} else {
			o.near = append(o.near, t.always)
		}
	})
	at := lowest(o.near, size)
	o.each(1, 0, leaves, from, to, func(t *taken, whole bool) {
		if t.ever.take(at, at+size); whole {
			t.always.take(at, at+size)
		}
	})
	return at
}

// each goes through the nodes, of the stretch of node i down, which lie in a stretch that begins with one time and ends
// before another, and through those above them, of which it is not the whole.
func (o *occupancy) each(i, first, end, from, to int, do func(t *taken, whole bool)) {
	if to <= first || end <= from {
		return
	}
	whole := from <= first && end <= to
	if do(&o.nodes[i], whole); !whole {
		half := (first + end) / 2
		o.each(2*i, first, half, from, to, do)
		o.each(2*i+1, half, end, from, to, do)
	}
}

// span is bytes from an offset to before another.
type span struct{ at, end int64 }

// spans are some of which none touch, in order.
type spans []span

// lowest is the lowest offset from which on so many bytes are free in all of some, of which it leaves what lies after them.
func lowest(all []spans, size int64) (at int64) {
	for moved := true; moved; {
		moved = false
		for i := range all {
			for ; len(all[i]) > 0 && all[i][0].at < at+size; all[i] = all[i][1:] {
				if end := all[i][0].end; end > at {
					at, moved = end, true
				}
			}
		}
	}
	return at
}

// take adds bytes of which some may be taken.
func (s *spans) take(at, end int64) {
	i, _ := slices.BinarySearchFunc(*s, at, func(x span, at int64) int { return cmp.Compare(x.end, at) })
	j := i
	for ; j < len(*s) && (*s)[j].at <= end; j++ {
		at, end = min(at, (*s)[j].at), max(end, (*s)[j].end)
	}
	*s = slices.Replace(*s, i, j, span{at, end})
}
