package codegen

import (
	"cmp"
	"math/bits"
	"slices"
	"sort"
)

// pack assigns offsets to buffers with lifetimes and returns the bytes they need. It first splits them, in
// order of time, where no lifetime crosses, as between most chunks: buffers in different groups never constrain
// each other.
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

// packTogether packs one such group: the largest buffer first, each at the lowest offset where no buffer placed
// before it is live at the same time.
func packTogether(buffers []Buffer, order []int) int64 {
	// In all intervals of placed a buffer has some two entries. Where an interval has many, an occupancy is faster.
	const many = 1024
	few := newPlaced(buffers, order)
	place := few.place
	if len(order) > many*len(few.intervals) {
		place = newOccupancy(buffers, order).place
	} else {
		few.reserve(buffers, order)
	}
	type turn struct {
		size       int64
		filled, id int
	}
	turns := make([]turn, len(order))
	for i, id := range order {
		turns[i] = turn{buffers[id].Size, buffers[id].filled(), id}
	}
	slices.SortFunc(turns, func(a, b turn) int {
		if a.size != b.size {
			return cmp.Compare(b.size, a.size)
		}
		return cmp.Or(cmp.Compare(a.filled, b.filled), cmp.Compare(a.id, b.id))
	})
	var total int64
	for _, t := range turns {
		buf := &buffers[t.id]
		buf.Offset = place(alignUp(buf.Size), buf)
		total = max(total, buf.Offset+alignUp(buf.Size))
	}
	return total
}

// packedAtMost returns an upper bound of pack without computing offsets. It is the smaller of two bounds.
// First, every buffer rests on offset 0 or on another buffer, so a chain of buffers leads down to 0, and the
// total is at most the sum of all sizes. Second, a buffer is placed above buffers that are live at the same
// time and at least as large, and the free gap below each of these is smaller than the buffer itself; so its
// offset is at most twice the sum of their sizes.
func packedAtMost(buffers []Buffer, ids []int) int64 {
	last := 0
	for _, id := range ids {
		last = max(last, buffers[id].To)
	}
	begun, ended := make([]int64, last+2), make([]int64, last+2) // bytes that begin, or have ended, before a time
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

// packedAtLeast returns a lower bound of pack: the most bytes that are live at one time.
func packedAtLeast(buffers []Buffer, ids []int) int64 {
	last := 0
	for _, id := range ids {
		last = max(last, buffers[id].To)
	}
	change := make([]int64, last+2) // bytes that begin, less those that have ended, by time
	for _, id := range ids {
		b := &buffers[id]
		size := alignUp(b.Size)
		change[b.From] += size
		change[b.To+1] -= size
	}
	var live, most int64
	for _, bytes := range change {
		live += bytes
		most = max(most, live)
	}
	return most
}

// placed lists the buffers that have been placed, by offset, for every interval of time that they overlap. The intervals are as
// long as an average lifetime.
type placed struct {
	first, width int
	intervals    [][]space
	near         [][]space // see place
}

// space is where a buffer lies, and its lifetime.
type space struct {
	span
	from, to int32
}

func newPlaced(buffers []Buffer, ids []int) *placed {
	p := &placed{first: buffers[ids[0]].From}
	last, all := p.first, len(ids)
	for _, id := range ids {
		b := &buffers[id]
		p.first, last = min(p.first, b.From), max(last, b.To)
		all += b.To - b.From
	}
	p.width = (all + len(ids) - 1) / len(ids)
	p.intervals = make([][]space, (last-p.first)/p.width+1)
	return p
}

// during returns the intervals that the lifetime of b overlaps.
func (p *placed) during(b *Buffer) [][]space {
	return p.intervals[(b.From-p.first)/p.width : (b.To-p.first)/p.width+1]
}

// reserve makes room for all of the buffers.
func (p *placed) reserve(buffers []Buffer, ids []int) {
	begin := make([]int, len(p.intervals)+1) // by interval, how many buffers begin there, less those that ended in the one before
	entries := 0
	for _, id := range ids {
		b := &buffers[id]
		from, n := (b.From-p.first)/p.width, len(p.during(b))
		begin[from]++
		begin[from+n]--
		entries += n
	}
	room := make([]space, entries)
	n := 0
	for i := range p.intervals {
		n += begin[i]
		p.intervals[i], room = room[:0:n], room[n:]
	}
}

// place finds the lowest offset with size free bytes throughout the lifetime of b, marks them as taken and
// returns it.
func (p *placed) place(size int64, b *Buffer) (at int64) {
	over, from, to := p.during(b), int32(b.From), int32(b.To)
	p.near = append(p.near[:0], over...)
	for moved := true; moved; {
		moved = false
		for i, all := range p.near {
			k := 0
			for ; k < len(all) && all[k].at < at+size; k++ {
				if x := &all[k]; x.end > at && x.from <= to && from <= x.to {
					at, moved = x.end, true
				}
			}
			p.near[i] = all[k:]
		}
	}
	for i, all := range over {
		k := sort.Search(len(all), func(k int) bool { return all[k].at >= at })
		over[i] = slices.Insert(all, k, space{span{at, at + size}, from, to})
	}
	return at
}

// occupancy records which offsets are taken at which time. It is a segment tree over time: each node stands for
// an interval, its children for the halves of it. So the space that is free during a lifetime follows from few
// nodes, however many buffers there are. What blocks keep for their backward pass merges into one span per
// node.
type occupancy struct {
	times []int   // sorted: where lifetimes begin, and the times after they end
	nodes []taken // the children of node i are 2i and 2i+1; the last half are the leaves, one for each of times
	near  []spans // see place
	room  []span  // for the first spans of nodes
}

// taken is what is taken during the interval of a node.
type taken struct {
	always spans // by lifetimes that cover this interval, but not all of the parent's
	ever   spans // by any lifetime that overlaps the interval
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

// place does what [placed.place] does.
func (o *occupancy) place(size int64, b *Buffer) int64 {
	from, _ := slices.BinarySearch(o.times, b.From)
	to, _ := slices.BinarySearch(o.times, b.To+1)
	o.near = o.near[:0]
	whole := func(i int) { o.near = append(o.near, o.nodes[i].ever) }
	above := func(i int) {
		if all := o.nodes[i].always; len(all) > 0 {
			o.near = append(o.near, all)
		}
	}
	o.each(from, to, whole, above)
	at := lowest(o.near, size)
	o.each(from, to, func(i int) {
		o.take(&o.nodes[i].ever, at, at+size)
		o.take(&o.nodes[i].always, at, at+size)
	}, func(i int) { o.take(&o.nodes[i].ever, at, at+size) })
	return at
}

// take adds a range to what is taken of a node. Most nodes never have more than a few spans, whose room is made for many
// nodes at once.
func (o *occupancy) take(s *spans, at, end int64) {
	if cap(*s) == 0 {
		const few = 4
		if len(o.room) < few {
			o.room = make([]span, 256*few)
		}
		*s, o.room = o.room[:0:few], o.room[few:]
	}
	s.take(at, end)
}

// each calls whole for the nodes that make up the interval [from, to), and above for all ancestors of those.
func (o *occupancy) each(from, to int, whole, above func(i int)) {
	// The nodes are between the paths from the root to the leaf before the interval and to the leaf after it, and their
	// ancestors on the paths to its first leaf and to its last one.
	leaves := len(o.nodes) / 2
	for l, r := from+leaves, to+leaves; l < r; l, r = l/2, r/2 {
		if l%2 == 1 {
			whole(l)
			l++
		}
		if r%2 == 1 {
			r--
			whole(r)
		}
	}
	for l, r, span := (from+leaves)/2, (to-1+leaves)/2, 2; l > 0; l, r, span = l/2, r/2, 2*span {
		inside := func(i int) bool { // whole, or below such a node
			first := i*span - leaves
			return from <= first && first+span <= to
		}
		if !inside(l) {
			above(l)
		}
		if r != l && !inside(r) {
			above(r)
		}
	}
}

// span is a range of bytes: from offset at to before end.
type span struct{ at, end int64 }

// spans are sorted by offset; no two of them touch.
type spans []span

// lowest returns the lowest offset from which size bytes are free in all of the given spans. It consumes the
// spans that it has passed.
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

// take adds a range, some of which may be taken already.
func (s *spans) take(at, end int64) {
	all := *s
	i := len(all) // the first that ends at the range, or behind where it begins
	if i > 0 && all[0].end >= at {
		i = 0
	} else {
		i = sort.Search(i, func(i int) bool { return all[i].end >= at })
	}
	j := i
	for ; j < len(all) && all[j].at <= end; j++ {
		at, end = min(at, all[j].at), max(end, all[j].end)
	}
	if j == i {
		*s = slices.Insert(all, i, span{at, end})
		return
	}
	all[i] = span{at, end}
	if j > i+1 {
		*s = slices.Delete(all, i+1, j)
	}
}
