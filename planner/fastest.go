package planner

import "github.com/autopar/autopar/planner/cost"

// fastest tells what a block takes at least at another position than one: the least of a time that each has of its own. A chain of
// events through all positions goes through the blocks of one, and through the others' wherever these are.
type fastest struct {
	at           int              // the first with the least time
	least, other cost.Picoseconds // the least of all, and of all but that one
	known        int              // positions
}

// note adds the time at the next position.
func (f *fastest) note(t cost.Picoseconds) {
	switch {
	case f.known == 0:
		f.least, f.other = t, never
	case t < f.least:
		f.at, f.least, f.other = f.known, t, f.least
	default:
		f.other = min(f.other, t)
	}
	f.known++
}

// besides is the least time at all positions but one; of one position its own.
func (f *fastest) besides(at int) cost.Picoseconds {
	if at == f.at && f.known > 1 {
		return f.other
	}
	return f.least
}
