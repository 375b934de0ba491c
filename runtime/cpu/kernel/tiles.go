package kernel

import "math"

// Products in the tile registers of AMX, which multiply matrices of bf16 and add up in float32, sixteen times as fast as the
// vector units multiply float32. A float32 is exactly the sum of three bf16, of its high, middle and low eight significant
// bits; of the nine products of two such sums the three smallest, at most 2^-23 of the whole together, are left out:
//
//	a b = ah bh + ah bm + am bh + ah bl + am bm + al bh
//
// The result is as exact as that of multiply-adds in float32, since a product of two bf16 is exact in float32 and the
// additions are fewer: its mean error is about half of a chain's. See Henry, Tang and Heinecke, "Leveraging the bfloat16
// Artificial Intelligence Datatype For Higher-Precision Computations" (2019). Two things differ. What is below 2^-126 counts
// as zero, a part of a number too: of numbers below 2^-103 the lowest bits are lost. And an infinity may give NaN where it
// would have given infinity.
const (
	tileSide  = 16      // rows of a tile, and 32-bit words of a row
	tileLines = 32      // rows and columns of a block: two by two tiles of sums
	tileDepth = 32      // terms of a step
	tileFloat = 6 * 256 // room for the six tiles of a step, of two tiles by three parts, in float32

	tileSlice = 128        // terms for which 32 rows stay in the first-level cache beside the columns that pass by
	tileRight = 1536 << 10 // bytes of packed columns that stay in the second-level cache
)

func tileSteps(k int) int { return (k + tileDepth - 1) / tileDepth }

// tileTask is a productTask of at most blockK terms on tiles. A worker's packed columns are slices of tileSlice terms one
// after the other, each by panels of 32 columns.
type tileTask struct{ *productTask }

// tileBlocks is blocks for a tileTask. What fits one core's cache at a time makes a least number of blocks side by side. Of that
// and more it takes the number for which the core that packs most packs least: of the right-hand matrix the blocks that it takes
// part in, and its share of the left-hand one for each. A number of the left counts twice, since where cores divide the columns,
// each reads rows that another has near, and so will the kernel that reads the result.
func (p *Pool) tileBlocks(m, n, k, parts int) (mc, nc int) {
	panels, threads := (n+tileLines-1)/tileLines, p.Threads()
	fit := tileRight / (4 * tileSteps(k) * tileFloat)
	first := (panels + fit - 1) / fit
	across, least := first, math.MaxInt
	for a := first; a < min(first+threads, panels+1); a++ {
		wide := (panels + a - 1) / a * tileLines
		if packed := 2*parts*a*m/threads + (parts*a+threads-1)/threads*wide; packed < least {
			across, least = a, packed
		}
	}
	if mc = tileLines; threads == 1 {
		mc = m
	}
	return mc, (panels + across - 1) / across * tileLines
}

func (t tileTask) do(w *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		h, i0, m, j, n, serial := t.unit(u)
		if w.packedSerial != serial {
			h.packTiles(w, j, n)
			w.packedSerial = serial
		}
		for i := i0; i < i0+m; i += tileLines {
			t.rows(w, h, i, min(tileLines, i0+m-i), j, n)
		}
	}
}

// packTiles packs n columns of the right-hand matrix from j on, in the order in which they lie in memory.
func (h *terms) packTiles(w *worker, j, n int) {
	panels, depth := (n+tileLines-1)/tileLines, tileDepth // of terms at a time
	if h.b.rs == 1 {
		depth = tileSlice
	}
	runs := (h.k + depth - 1) / depth
	w.packed = grow(w.packed, panels*tileSteps(h.k)*tileFloat)
	for u := range panels * runs {
		panel, q := u%panels, u/panels*depth
		if h.b.rs == 1 {
			panel, q = u/runs, u%runs*depth
		}
		slice := q / tileSlice * tileSlice
		steps := panels*tileSteps(slice) + panel*tileSteps(min(tileSlice, h.k-slice)) + (q-slice)/tileDepth // before these
		at := panel * tileLines
		w.packTiles(w.packed[steps*tileFloat:], h.b.at(q, j+at).transposed(), min(tileLines, n-at), min(depth, h.k-q), false)
	}
}

// rows computes m rows, from i on, at most 32, of n columns from j on. What is not a number of whole blocks, or is to be added,
// is summed apart first: to begin with what is there would round every partial sum to its size.
func (t tileTask) rows(w *worker, h *terms, i, m, j, n int) {
	const room = tileSlice / tileDepth * tileFloat
	panels := (n + tileLines - 1) / tileLines
	buf := w.scratch(room + tileLines*panels*tileLines)
	left, sums, ld := buf[:room], buf[room:], panels*tileLines
	apart := h.acc || m < tileLines || n < ld
	if !apart {
		sums, ld = h.c[i*t.ldc+j:], t.ldc
	}
	right := w.packed
	for q := 0; q < h.k; q += tileSlice {
		depth := min(tileSlice, h.k-q)
		steps := tileSteps(depth)
		w.packTiles(left, h.a.at(i, q), m, depth, true)
		next, lines, ldNext, rate := h.ahead(t.m, i+w.stride(), q, depth, panels*steps)
		w.isa.tileProducts(panels, steps, left, right, 0, sums, ld, q > 0, next, lines, ldNext, rate)
		right = right[panels*steps*tileFloat:]
	}
	for r := 0; apart && r < m; r++ {
		to, from := h.c[(i+r)*t.ldc+j:][:n], sums[r*ld:][:n]
		if h.acc {
			w.isa.add(to, to, from)
		} else {
			copy(to, from)
		}
	}
}

// stride is how far the rows that the worker will get next are likely to be from these: see Pool.state.
func (w *worker) stride() int {
	if w.last {
		return -tileLines
	}
	return tileLines
}

// ahead says what to fetch of the terms from q on of the left-hand rows from i on, of m in all, during so many steps, and how
// many cache lines a step: segments of so many lines, ld apart.
func (h *terms) ahead(m, i, q, depth, steps int) (next []float32, lines, ld, rate int) {
	const line = 16 // float32
	if i < 0 || i >= m || depth < line {
		return nil, 0, 0, 0
	}
	next, lines, ld = h.a.at(i, q).data, depth/line, h.a.rs
	segments := min(tileLines, m-i)
	if h.a.rs == 1 {
		segments, lines, ld = depth, tileLines/line, h.a.cs
	}
	return next, lines, ld, (segments*lines + steps - 1) / steps
}

// packTiles packs up to 32 rows of k terms of x, as rows of a left-hand matrix or columns of a right-hand one.
func (w *worker) packTiles(dst []float32, x matrix, lines, k int, left bool) {
	for h := range 2 {
		at := min(h*tileSide, lines)
		w.packSide(dst[h*tileSide*tileSide:], x.from(at), min(tileSide, lines-at), k, left)
	}
}

// packSide packs up to 16 rows, one of the two tiles of each part and step. A left-hand tile has a row for each row of x and
// a right-hand one for each term; words of it are pairs of terms 16 apart.
func (w *worker) packSide(dst []float32, x matrix, lines, k int, left bool) {
	steps := tileSteps(k)
	depth := steps * tileDepth
	buf := w.lines[:tileSide*depth]
	ld, rows, cols := depth, lines, k // of buf
	if !left {
		ld, rows, cols = tileSide, k, lines
	}
	stride, along := x.rs, x.cs == 1
	if !left {
		stride, along = x.cs, x.rs == 1
	}
	whole := lines == tileSide && k == depth
	switch {
	case along && whole:
		buf, ld = x.data, stride
	case along:
		clear(buf)
		for i := range rows {
			copy(buf[i*ld:][:cols], x.data[i*stride:])
		}
	case rows > 0 && cols > 0:
		if !whole {
			clear(buf)
		}
		w.isa.packCols(buf, x.data, max(x.rs, x.cs), rows, cols, ld)
	default:
		clear(buf)
	}
	if left {
		w.isa.splitTiles(dst, buf, ld, tileSide, tileDepth, steps)
	} else {
		w.isa.splitTiles(dst, buf, ld, tileSide*ld, tileDepth*ld, steps)
	}
}
