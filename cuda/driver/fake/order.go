package fake

import (
	"fmt"

	"github.com/autopar/autopar/cuda/driver"
)

// clock is a vector clock: entry i is how many pieces of work of stream i happen before something.
// See Lamport 1978, and Flanagan and Freund 2009 (FastTrack) for its use in finding races.
type clock []int64

func (c clock) at(stream int) int64 {
	if stream < len(c) {
		return c[stream]
	}
	return 0
}

// join makes c include all that happens before o.
func (c *clock) join(o clock) {
	for len(*c) < len(o) {
		*c = append(*c, 0)
	}
	for i, n := range o {
		(*c)[i] = max((*c)[i], n)
	}
}

// tick counts one more piece of work of a stream.
func (c *clock) tick(stream int) {
	for len(*c) <= stream {
		*c = append(*c, 0)
	}
	(*c)[stream]++
}

func (c clock) copy() clock { return append(clock(nil), c...) }

// Range is memory that work reads or writes.
type Range struct {
	At    driver.Ptr
	Bytes int64
}

// access is a piece of work that accessed memory.
type access struct {
	lo, hi uint64
	write  bool
	stream int
	n      int64 // the stream's count
	what   string
	base   uint64 // of the allocation
}

func (a *access) String() string {
	verb := "reads"
	if a.write {
		verb = "writes"
	}
	return fmt.Sprintf("%s, which %s [%d, %d) of 0x%x", a.what, verb, a.lo-a.base, a.hi-a.base, a.base)
}

// RaceError is two pieces of work on the same memory, at least one of which writes, without a
// happens-before relation between them.
type RaceError struct{ First, Second string }

func (e *RaceError) Error() string {
	return fmt.Sprintf("fake: race: no order between %s and %s", e.First, e.Second)
}

// touch records that the stream's latest work reads or writes a range. It returns a [RaceError]
// unless all conflicting accesses before happen before it.
func (d *Driver) touch(s *stream, what string, r Range, write bool) error {
	if r.Bytes == 0 {
		return nil
	}
	lo, hi := uint64(r.At), uint64(r.At)+uint64(r.Bytes)
	a := d.find(lo)
	if a == nil || hi > a.base+uint64(len(a.memory)) {
		return fmt.Errorf("fake: %s: no memory at [0x%x, 0x%x)", what, lo, hi)
	}
	now := access{lo, hi, write, s.id, s.clock.at(s.id), what, a.base}
	for p := (lo - a.base) / page; p <= (hi-1-a.base)/page; p++ {
		if err := d.touchIn(&a.history[p], s, now, a.base+p*page); err != nil {
			return err
		}
	}
	return nil
}

// touchIn is touch for one page, given the page's history. The access covers the page from an
// address on.
func (d *Driver) touchIn(history *[]access, s *stream, now access, from uint64) error {
	lo, hi := max(now.lo, from), min(now.hi, from+page)
	kept, all := 0, *history
	for i := range all {
		old := &all[i]
		if old.n <= d.host.at(old.stream) {
			continue // happens before all work from now on
		}
		if old.lo < hi && lo < old.hi {
			before := old.n <= s.clock.at(old.stream)
			if !before && (now.write || old.write) {
				return &RaceError{old.String(), now.String()}
			}
			if before && lo <= max(old.lo, from) && min(old.hi, from+page) <= hi && (now.write || !old.write) {
				continue // whatever comes after this access also comes after that one
			}
		}
		if kept != i {
			all[kept] = *old
		}
		kept++
	}
	*history = append(all[:kept], now)
	return nil
}
