package kernel

// Block sizes of a matrix product, after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008):
// a panel of the right-hand matrix, blockK by isa.cols, stays in the first-level cache while the rows of the left-hand
// matrix, at most blockM by blockK, come from the second-level cache; at most blockK by blockN of the right-hand matrix are
// packed at a time. blockK fixes the order in which an element's sum is added up.
const (
	blockM = 144
	blockN = 2048
	blockK = 384

	// dotRows is the largest number of rows for which x times a transposed matrix is computed as dot products: packing
	// the matrix would cost more than the product.
	dotRows = 3
)

// MatMulNT sets c[m,n] = a[m,k] times the transpose of b[n,k], or adds it to c with acc. It is a linear layer's forward
// pass with b the weight.
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

// MatMulTN sets c[m,n] = the transpose of a[k,m] times b[k,n], or adds it to c with acc. It gives a linear layer's weight
// gradient from the output's gradient a and the input b.
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

// from returns the rows from i on, none of them past the last.
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
	if p.isa.tileProducts != nil {
		p.tileMatMul(m, n, k, a, b, c, acc)
		return
	}
	for j := 0; j < n; j += blockN {
		nc := min(blockN, n-j)
		for q := 0; q < k; {
			kc := nextBlockK(k-q, blockK, 4)
			t := &p.task.product
			*t = productTask{serial: t.serial, a: a.at(0, q), b: b.at(q, j), c: c[j:], ldc: n, m: m, n: nc, k: kc, acc: acc || q > 0}
			t.mc, t.nc = p.blocks(m, nc)
			t.down = (m + t.mc - 1) / t.mc
			across := (nc + t.nc - 1) / t.nc
			p.run(t, t.down*across, 1)
			t.serial += uint64(across)
			q += kc
		}
	}
}

// nextBlockK returns how many of the remaining k terms the next block sums: about equal blocks of at most most, which is a
// multiple of step, as they are.
func nextBlockK(k, most, step int) int {
	blocks := (k + most - 1) / most
	return min(k, ((k+blocks-1)/blocks+step-1)/step*step)
}

// blocks returns the rows and columns of the part of an m by n product that one worker takes at a time. They do not
// influence the result.
func (p *Pool) blocks(m, n int) (mc, nc int) {
	rows, width := p.isa.rows, p.isa.cols
	mc, nc = blockM/rows*rows, n
	threads := len(p.workers)
	if threads == 1 {
		return mc, nc
	}
	if want := 4 * threads; m < want*mc {
		mc = max(2*rows, (m/want+rows-1)/rows*rows)
	}
	if down := (m + mc - 1) / mc; down < 2*threads {
		across := (2*threads + down - 1) / down
		nc = max(2*width, (n/across+width-1)/width*width)
	}
	return mc, nc
}

// pack fills one panel.
func (w *worker) pack(dst []float32, src matrix, k, n, width int) {
	if src.cs == 1 {
		w.isa.packRows(dst, src.data, src.rs, k, n, width)
	} else {
		w.isa.packCols(dst, src.data, src.cs, k, n, width)
	}
}

// productTask computes c[m,n] from a[m,k] and b[k,n]; a unit is a block of mc rows and nc columns, down of them one below
// the other. Each worker packs b for itself: it takes less time than to fetch what another core has packed.
type productTask struct {
	serial       uint64 // number of the job's first column block, counted over all jobs from 1
	a, b         matrix
	c            []float32
	ldc, m, n, k int
	mc, nc, down int
	acc          bool
}

func (t *productTask) do(w *worker, lo, hi int) {
	rows, width := w.isa.rows, w.isa.cols
	for u := lo; u < hi; u++ {
		block := u / t.down
		i0, j0 := u%t.down*t.mc, block*t.nc
		m, n := min(t.mc, t.m-i0), min(t.nc, t.n-j0)
		if serial := t.serial + uint64(block); w.packedSerial != serial {
			w.packed = grow(w.packed, (n+width-1)/width*width*t.k)
			w.packRight(w.packed, t.b.at(0, j0), t.k, n)
			w.packedSerial = serial
		}
		a := t.a.at(i0, 0)
		tile := rows * a.rs // from one tile of a to the next
		if a.rs == 1 {
			// Packed, a tile's columns lie side by side: strided, each would touch a cache line and often a page of its own.
			tile = rows * t.k
			a = w.packLeft(a, m, t.k)
		}
		w.products(m, n, t.k, a, tile, w.packed, width*t.k, t.c[i0*t.ldc+j0:], t.ldc, t.acc)
	}
}

// packRight packs x, k by n, as the right-hand matrix of a product: in panels of isa.cols columns, padded with zeros.
func (w *worker) packRight(dst []float32, x matrix, k, n int) {
	width := w.isa.cols
	for j := 0; j < n; j += width {
		w.pack(dst[j*k:(j+width)*k], x.at(0, j), k, min(width, n-j), width)
	}
}

// packLeft copies the m by k matrix a, whose columns are contiguous, into tiles of isa.rows rows, column by column.
func (w *worker) packLeft(a matrix, m, k int) matrix {
	rows := w.isa.rows
	tiles := (m + rows - 1) / rows
	buf := w.scratch(tiles*rows*k + packSlack)
	for i := range tiles {
		w.isa.packRows(buf[i*rows*k:], a.data[i*rows:], a.cs, k, min(rows, m-i*rows), rows)
	}
	return matrix{buf, 1, rows}
}

// packSlack is how many elements beyond its panel packRows may overwrite.
const packSlack = 16

// products computes c[m,n] (+)= a[m,k] b[k,n]. tileA is the distance in a.data between tiles of isa.rows rows; b is packed
// in panels panelB apart.
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
