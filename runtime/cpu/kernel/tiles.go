package kernel

import "math"

// Products in the tile registers of AMX, which multiply matrices of bf16 and add in float32,
// sixteen times as fast as the vector units multiply float32. A float32 is exactly the sum of three
// bf16: its high, middle and low eight significant bits. Of the nine products of two such sums the
// three smallest, at most 2^-23 of the total, are left out:
//
//	a b = ah bh + ah bm + am bh + ah bl + am bm + al bh
//
// The result is as exact as with multiply-adds in float32, since a product of two bf16 is exact in
// float32 and there are fewer additions: the mean error is about half that of a chain of
// multiply-adds. See Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence
// Datatype For Higher-Precision Computations" (2019). Two things differ. Numbers below 2^-126 count
// as zero, and so do parts of numbers, so that a number below 2^-103 loses its lowest bits. And an
// infinity may give NaN where it would have given infinity.
const (
	tileSide  = 16      // rows of a tile, and 32-bit words per row
	tileLines = 32      // rows and columns of a block of sums: two by two tiles
	tileDepth = 32      // terms per step
	tileFloat = 6 * 256 // room in float32 for the six tiles of a step: two tiles by three parts

	tileSlice = 128        // terms for which 32 rows stay in the first-level cache while columns pass by
	tileRight = 1536 << 10 // bytes of packed columns that stay in the second-level cache
)

func tileSteps(k int) int { return (k + tileDepth - 1) / tileDepth }

// tileTask is a productTask of at most blockK terms on tiles. A worker's packed columns are slices
// of tileSlice terms, one after another, and within a slice panels of 32 columns.
type tileTask struct{ *productTask }

// tileBlocks is blocks for a tileTask. A block of columns must fit in a core's cache, which gives
// the least number of blocks side by side. Of that and larger numbers it takes the one for which
// the busiest core packs least. A core packs the right-hand columns of the blocks that it takes
// part in, and for each of them its share of the left-hand rows. Left-hand numbers count twice: if
// cores divide the columns, each of them reads rows that are in another one's cache, and so will
// the kernel that reads the result.
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

// packTiles packs n columns of the right-hand matrix from j on, reading memory in order.
func (h *terms) packTiles(w *worker, j, n int) {
	panels, depth := (n+tileLines-1)/tileLines, tileDepth // terms at a time
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
		steps := panels*tileSteps(slice) + panel*tileSteps(min(tileSlice, h.k-slice)) + (q-slice)/tileDepth // steps before these
		at := panel * tileLines
		w.packTiles(w.packed[steps*tileFloat:], h.b.at(q, j+at).transposed(), min(tileLines, n-at), min(depth, h.k-q), false)
	}
}

// rows computes m rows from i on, at most 32, of n columns from j on. Incomplete blocks, and
// results that are added to c, are summed in a buffer first: starting from the old value would
// round every partial sum to its magnitude.
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

// stride is the distance to the rows that the worker will likely get next: see Pool.state.
func (w *worker) stride() int {
	if w.last {
		return -tileLines
	}
	return tileLines
}

// ahead returns what to prefetch of the left-hand rows from i on (of m) and terms from q on during
// steps steps: segments of lines cache lines, ld apart, and the number of cache lines per step.
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

// packTiles packs up to 32 rows of k terms of x, as rows of a left-hand matrix or columns of a
// right-hand one.
func (w *worker) packTiles(dst []float32, x matrix, lines, k int, left bool) {
	for h := range 2 {
		at := min(h*tileSide, lines)
		w.packSide(dst[h*tileSide*tileSide:], x.from(at), min(tileSide, lines-at), k, left)
	}
}

// packSide packs up to 16 rows, which is one of the two tiles of each part and step. A left-hand
// tile has a row per row of x, a right-hand tile a row per pair of terms. Words are pairs of terms
// 16 apart.
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
