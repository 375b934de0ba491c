package ir

// Run is a range of consecutive rows of a folded sequence that hold consecutive positions: rows Row to Row+Len
// hold positions Pos to Pos+Len.
type Run struct{ Row, Pos, Len int }

// FoldRuns returns, in row order, the runs of rows off to off+n of a sequence of size positions that is folded
// for a number of parts (ranks).
//
// Under the causal mask a position attends to all positions before it, so contiguous shards of a sequence have
// unequal work. The fold pairs early positions with late ones (the zigzag of Llama 3, Grattafiori et al. 2024,
// section 3.3.2). The sequence is cut into 2·parts chunks, and the rows of part i hold chunk i, then chunk
// 2·parts-1-i. Rows are cut over parts as [Axis.Cut] does, and the first ⌈L/2⌉ of the L rows of a part come
// from the front, so any size can be folded. With parts 0 or 1 rows are in the order of positions.
func FoldRuns(size, parts, off, n int) []Run {
	var runs []Run
	add := func(r Run) {
		lo, hi := max(r.Row, off), min(r.Row+r.Len, off+n)
		if lo >= hi {
			return
		}
		r = Run{lo, r.Pos + lo - r.Row, hi - lo}
		if k := len(runs) - 1; k >= 0 && runs[k].Pos+runs[k].Len == r.Pos {
			runs[k].Len += r.Len
			return
		}
		runs = append(runs, r)
	}
	axis := Axis{Size: max(parts, 1)}
	front, back := 0, size
	for i := range axis.Size {
		part := axis.Cut(size, i)
		early, late := (part.Len+1)/2, part.Len/2
		back -= late
		add(Run{part.Off, front, early})
		add(Run{part.Off + early, back, late})
		front += early
	}
	return runs
}

// FoldedPositions returns the position of every row of a folded sequence.
func FoldedPositions(size, parts int) []int {
	positions := make([]int, 0, size)
	for _, r := range FoldRuns(size, parts, 0, size) {
		for i := range r.Len {
			positions = append(positions, r.Pos+i)
		}
	}
	return positions
}
