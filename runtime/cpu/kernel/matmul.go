package kernel

// Block sizes of a matrix product, after Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication" (2008). At most blockK by blockN of the right-hand matrix are packed at a time.
// Of those, isa.right bytes stay in the second-level cache while isa.left rows of blockK elements
// of the left-hand matrix pass by. blockK fixes the order in which an element's sum is taken.
//
// Products have no epilogues except accumulation. Biases, GELU and its gradient, and additions that
// are done to each block while it is in the cache were measured on 2026-11-21 (two cores of a
// Sapphire Rapids, 6 layers, C 384, T 256). A training step took 12 % longer on AMX, as tiles that
// wait half a microsecond lose as much again afterwards, and 3 % on AVX-512 and AVX2. A single pass
// over the result that does all that follows took as long as one pass for each.
const (
	blockN = 2048
	blockK = 384

	// packDepth is how many rows of a matrix are packed at a time: see packRows.
	packDepth = 16

	// dotRows is the largest number of rows for which x times a transposed matrix is computed by
	// dot products: packing the matrix would cost more than the product.
	dotRows = 3
)

// MatMulNT sets c[m,n] = a[m,k] times the transpose of b[n,k], or adds that to c with acc. It is
// the forward pass of a linear layer with weight b.
func MatMulNT(p *Pool, m, n, k int, a, b, c []float32, acc bool) {
	checkLen("MatMulNT", "a", a, m*k)
	checkLen("MatMulNT", "b", b, n*k)
	checkLen("MatMulNT", "c", c, m*n)
	p = p.orInline()
	if m <= dotRows {
		p.task.dots = dotsTask{a: a, b: b, c: c, m: m, n: n, k: k, acc: acc}
		p.run(&p.task.dots, n, max(1, grainLight/max(1, m*k)))
		return
	}
	p.matMul(m, n, k, matrix{a, k, 1}, matrix{b, 1, k}, c, acc)
}

// MatMulNN sets c[m,n] = a[m,k] times b[k,n], or adds it to c with acc.
func MatMulNN(p *Pool, m, n, k int, a, b, c []float32, acc bool) {
	checkLen("MatMulNN", "a", a, m*k)
	checkLen("MatMulNN", "b", b, k*n)
	checkLen("MatMulNN", "c", c, m*n)
	p.orInline().matMul(m, n, k, matrix{a, k, 1}, matrix{b, n, 1}, c, acc)
}

// MatMulTN sets c[m,n] = the transpose of a[k,m] times b[k,n], or adds that to c with acc. It is
// the gradient of a linear layer's weight, from the gradient a of its output and its input b.
func MatMulTN(p *Pool, m, n, k int, a, b, c []float32, acc bool) {
	checkLen("MatMulTN", "a", a, k*m)
	checkLen("MatMulTN", "b", b, k*n)
	checkLen("MatMulTN", "c", c, m*n)
	p.orInline().matMul(m, n, k, matrix{a, 1, m}, matrix{b, n, 1}, c, acc)
}

// matrix is a view of a dense matrix or its transpose: element (i, j) is data[i*rs+j*cs], and rs or cs is 1.
type matrix struct {
	data   []float32
	rs, cs int
}

func (x matrix) at(i, j int) matrix { return matrix{x.data[i*x.rs+j*x.cs:], x.rs, x.cs} }

// from returns the rows from i on, which may be none.
func (x matrix) from(i int) matrix { return matrix{x.data[min(i*x.rs, len(x.data)):], x.rs, x.cs} }

func (p *Pool) matMul(m, n, k int, a, b matrix, c []float32, acc bool) {
	if m == 0 || n == 0 {
		return
	}
	if k == 0 {
		if !acc {
			clear(c)
		}
		return
	}
	first, second := k, []float32(nil) // number of terms of the first half, and the sum of the second
	if inHalves(m, n, k, a, b) {
		first = ((k+1)/2 + tileDepth - 1) / tileDepth * tileDepth // the larger half
		p.partial = grow(p.partial, m*n)
		second = p.partial
	}
	for j := 0; j < n; j += blockN {
		t := productTask{ldc: n, m: m, n: min(blockN, n-j)}
		for q := 0; q < first; {
			kc := nextBlockK(first - q)
			t.halves[0] = terms{a.at(0, q), b.at(q, j), c[j:], kc, acc || q > 0}
			t.halves[1].k = 0
			if left := k - first - q; left > 0 {
				t.halves[1] = terms{a.at(0, first+q), b.at(first+q, j), second[j:], min(kc, left), q > 0}
			}
			q += kc
			p.product(&t)
		}
	}
	if second != nil {
		p.binary(p.isa.add, c, c, second, grainLight)
	}
}

// inHalves reports whether the terms of a product are summed in two halves, which different workers
// may compute, and the two sums are added. In the gradient of a weight the terms are tokens, and a
// worker has the rows of those tokens in its cache that it has computed before. If the result were
// divided by rows, every worker would fetch half of both operands from another one's cache,
// k*(2n+m)/4 numbers each; with halves, m*n numbers are added instead. The decision depends on
// sizes alone.
func inHalves(m, n, k int, a, b matrix) bool {
	const most = 4 << 20 // numbers of a second sum
	return a.rs == 1 && b.cs == 1 && k >= 2*blockK && k*(2*n+m) >= 4*m*n && m*n <= most
}

// product divides a task into blocks and runs it.
func (p *Pool) product(t *productTask) {
	parts := 1
	if t.halves[1].k > 0 {
		parts = 2
	}
	serial := p.task.product.serial
	if p.isa.tileProducts != nil {
		t.mc, t.nc = p.tileBlocks(t.m, t.n, t.halves[0].k, parts)
	} else {
		t.mc, t.nc = p.blocks(t.m, t.n, t.halves[0].k, parts)
	}
	t.down, t.across = (t.m+t.mc-1)/t.mc, (t.n+t.nc-1)/t.nc
	p.task.product = *t
	p.task.product.serial = serial
	if p.isa.tileProducts != nil {
		p.task.tiles.productTask = &p.task.product
		p.run(&p.task.tiles, parts*t.down*t.across, 1)
	} else {
		p.run(&p.task.product, parts*t.down*t.across, 1)
	}
	p.task.product.serial += uint64(parts * t.across)
}

// nextBlockK returns how many of the remaining k terms the next block sums. Blocks are about equal,
// at most blockK, and whole steps of tiles.
func nextBlockK(k int) int {
	blocks := (k + blockK - 1) / blockK
	return min(k, ((k+blocks-1)/blocks+tileDepth-1)/tileDepth*tileDepth)
}

// blocks returns how many rows and columns of an m by n product of k terms one worker takes at a
// time; parts such products run together. The result does not depend on them.
func (p *Pool) blocks(m, n, k, parts int) (mc, nc int) {
	width, left, threads := p.isa.cols, p.isa.left, p.Threads()
	panels := (n + width - 1) / width
	fit := max(1, p.isa.right/(4*k*width))
	across := (panels + fit - 1) / fit
	if threads == 1 {
		return m, (panels + across - 1) / across * width
	}
	// As many blocks of columns as there are threads, if they are wide enough: then no two threads
	// pack the same columns.
	if panels >= 2*threads && parts == 1 {
		across = (across + threads - 1) / threads * threads
	}
	down := max(1, 4*threads/across)
	mc = max(2*p.isa.rows, ((m+down-1)/down+left-1)/left*left)
	return mc, (panels + across - 1) / across * width
}

// productTask computes c[m,n] from a[m,k] and b[k,n], for one or two halves of the terms. A unit is
// a block of mc rows and nc columns of one half; there are down blocks below each other and across
// side by side. Each worker packs b for itself, which takes less time than fetching what another
// core has packed.
type productTask struct {
	serial       uint64 // number of the job's first column block; those of all jobs are numbered from 1
	halves       [2]terms
	ldc, m, n    int
	mc, nc       int
	down, across int
}

// terms are the operands for some of the terms of a product: c (+)= a[m,k] b[k,n].
type terms struct {
	a, b matrix
	c    []float32
	k    int
	acc  bool
}

// unit returns the block of a unit: m rows from i on and n columns from j on of one half, and the
// number of its column block.
func (t *productTask) unit(u int) (h *terms, i, m, j, n int, serial uint64) {
	block := u / t.down
	i, j = u%t.down*t.mc, block%t.across*t.nc
	return &t.halves[block/t.across], i, min(t.mc, t.m-i), j, min(t.nc, t.n-j), t.serial + uint64(block)
}

func (t *productTask) do(w *worker, lo, hi int) {
	width := w.isa.cols
	for u := lo; u < hi; u++ {
		h, i0, m, j, n, serial := t.unit(u)
		if w.packedSerial != serial {
			w.packed = grow(w.packed, (n+width-1)/width*width*h.k)
			w.packRight(w.packed, h.b.at(0, j), h.k, n)
			w.packedSerial = serial
		}
		for i := i0; i < i0+m; i += w.isa.left {
			t.rows(w, h, i, min(w.isa.left, i0+m-i), j, n)
		}
	}
}

// rows computes m rows from i on, at most isa.left, of n columns from j on.
func (t *productTask) rows(w *worker, h *terms, i, m, j, n int) {
	a, rows := h.a.at(i, 0), w.isa.rows
	tile := rows * a.rs // distance between tiles of a
	if a.rs == 1 {
		// Pack a, so that a tile's columns lie side by side. Otherwise each would touch its own
		// cache line, and often its own page.
		tile = rows * h.k
		a = w.packLeft(a, m, h.k)
	}
	w.products(m, n, h.k, a, tile, w.packed, w.isa.cols*h.k, h.c[i*t.ldc+j:], t.ldc, h.acc)
}

// packRight packs x, k by n, as the right-hand matrix of a product: in panels of isa.cols columns,
// padded with zeros.
func (w *worker) packRight(dst []float32, x matrix, k, n int) {
	width := w.isa.cols
	if x.cs != 1 {
		for j := 0; j < n; j += width {
			w.isa.packCols(dst[j*k:(j+width)*k], x.data[j*x.cs:], x.cs, k, min(width, n-j), width)
		}
		return
	}
	w.packRows(dst, x, k, n, width)
}

// packRows packs the k by n matrix x, whose rows are contiguous, in panels of width columns, padded
// with zeros. It reads a few whole rows at a time, so that memory is read mostly in order.
func (w *worker) packRows(dst []float32, x matrix, k, n, width int) {
	for q := 0; q < k; q += packDepth {
		depth := min(packDepth, k-q)
		for j := 0; j < n; j += width {
			w.isa.packRows(dst[j*k+q*width:], x.data[q*x.rs+j:], x.rs, depth, min(width, n-j), width)
		}
	}
}

// packLeft copies the m by k matrix a, whose columns are contiguous, into tiles of isa.rows rows, column by column.
func (w *worker) packLeft(a matrix, m, k int) matrix {
	rows := w.isa.rows
	tiles := (m + rows - 1) / rows
	buf := w.scratch(tiles * rows * k)
	w.packRows(buf, a.transposed(), k, m, rows)
	return matrix{buf, 1, rows}
}

// products computes c[m,n] (+)= a[m,k] b[k,n]. tileA is the distance in a.data between tiles of
// isa.rows rows, panelB that between panels of b.
func (w *worker) products(m, n, k int, a matrix, tileA int, b []float32, panelB int, c []float32, ldc int, acc bool) {
	rows, width := w.isa.rows, w.isa.cols
	for j := 0; j < n; j += width {
		panel := b[j/width*panelB:]
		for i := 0; i < m; i += rows {
			w.isa.product(min(rows, m-i), min(width, n-j), k, a.data[i/rows*tileA:], a.rs, a.cs, panel, c[i*ldc+j:], ldc, acc)
		}
	}
}

// dotsTask computes c[m,n] = a[m,k] b[n,k]^T by dot products; a unit is a row of b.
type dotsTask struct {
	a, b, c []float32
	m, n, k int
	acc     bool
}

func (t *dotsTask) do(w *worker, lo, hi int) {
	for j := lo; j < hi; j++ {
		row := t.b[j*t.k : (j+1)*t.k]
		for i := range t.m {
			s := w.isa.dot(t.a[i*t.k:(i+1)*t.k], row)
			if t.acc {
				s += t.c[i*t.n+j]
			}
			t.c[i*t.n+j] = s
		}
	}
}
