package kernel

// Attention on the tile registers of AMX: see tiles.go. It differs from attention on vectors in its
// products, of blocks of 32 by 32 scores. Most of what is packed are scores. So that these need no
// transposition, the gradients of keys and values are summed transposed, [D,T], with scores as
// right-hand matrices:
//
//	dK^T = Q^T dS,  dV^T = dO^T P
//
// Splitting scores into parts takes time, and tiles wait while vector units work (see blockK).
// Measured on 2026-11-21 (a Sapphire Rapids), attention is as fast as on AVX-512 at T 256 and D 64,
// and faster from half as much again on: at T 1024 by a tenth forward and a third backward. If the
// head size is not a multiple of a block, too much is wasted.
const (
	blockQueries = 2 * tileLines // queries of a tile of scores
	blockKeys    = 256           // and keys
	blocksFrom   = 3 << 13       // least number of positions times elements of a head
)

// onTiles reports whether attention is computed on tiles.
func (s *heads) onTiles(w *worker) bool {
	return w.isa.tileProducts != nil && s.D%tileLines == 0 && s.D > tileLines && s.T*s.D >= blocksFrom
}

// blocked are sizes of attention on tiles, in blocks of 32: positions, elements of a head, keys of
// a tile of scores.
type blocked struct{ positions, elements, keys int }

func (s *heads) blocked() blocked {
	b := blocked{tileSteps(s.T), tileSteps(s.D), blockKeys / tileLines}
	b.keys = min(b.keys, b.positions)
	return b
}

// seen is how many blocks of the keys [j, j+m) the 32 queries from position i on see.
func (b blocked) seen(i, j, m int) int { return tileSteps(max(0, min(m, i+tileLines-j))) }

// packBlocks packs rows with terms terms, or columns of a right-hand matrix: for each 32 of them
// all steps.
func (w *worker) packBlocks(dst []float32, x matrix, rows, terms int, left bool) {
	steps := tileSteps(terms)
	for r := 0; r < rows; r += tileLines {
		for q := 0; q < terms; q += tileSlice {
			w.packTiles(dst[(r/tileLines*steps+q/tileDepth)*tileFloat:], x.at(r, q), min(tileLines, rows-r), min(tileSlice, terms-q), left)
		}
	}
}

// tileProduct is isa.tileProducts without prefetching.
func (w *worker) tileProduct(panels, steps int, a, b []float32, gap int, c []float32, ldc int, acc bool) {
	if panels > 0 && steps > 0 {
		w.isa.tileProducts(panels, steps, a, b, gap, c, ldc, acc, nil, 0, 0, 0)
	}
}

// attentionBlocks is a worker's memory for attention on tiles.
type attentionBlocks struct {
	blocked
	ld             int       // distance between rows of scores
	keysT, values  []float32 // packed right-hand matrices, with keys and elements of values as columns
	queries, probs []float32 // packed left-hand matrices: the queries of a tile, and 32 rows of probabilities
	scores, out    []float32 // tiles of scores and results
	rows           attentionRows
}

func (t *attentionTask) doBlocks(w *worker, lo, hi int) {
	b := t.blocked()
	width, size := b.keys*tileLines, b.elements*tileLines
	ld, operand := scoreStride(width), b.positions*b.elements*tileFloat
	buf := w.scratch(2*operand + (blockQueries/tileLines*b.elements+b.keys)*tileFloat + blockQueries*(ld+size) +
		rowRoom(blockQueries, width) + t.room())
	s := attentionBlocks{blocked: b, ld: ld}
	s.keysT, s.values = carve(&buf, operand), carve(&buf, operand)
	s.queries, s.probs = carve(&buf, blockQueries/tileLines*b.elements*tileFloat), carve(&buf, b.keys*tileFloat)
	s.scores, s.out = carve(&buf, blockQueries*ld), carve(&buf, blockQueries*size)
	s.rows = carveRows(&buf, blockQueries, width)

	for u := lo; u < hi; u++ {
		w.packBlocks(s.keysT, t.ordered(buf, t.head(t.k, u)), t.T, t.D, false)
		w.packBlocks(s.values, t.ordered(buf, t.head(t.v, u)).transposed(), t.D, t.T, false)
		t.eachTile(u, blockQueries, func(q queryTile) { t.block(w, q, &s) })
	}
}

// block is tile for tile registers.
func (t *attentionTask) block(w *worker, x queryTile, s *attentionBlocks) {
	size := s.elements * tileLines
	out := matrix{s.out, size, 1}
	w.packBlocks(s.queries, t.head(t.q.query(x.g), x.u).at(x.at, 0), x.n, t.D, true)
	for j := 0; j < x.i+x.n; j += blockKeys {
		m := min(blockKeys, x.i+x.n-j)
		for r := 0; r < x.n; r += tileLines {
			w.tileProduct(s.seen(x.i+r, j, m), s.elements, s.queries[r/tileLines*s.elements*tileFloat:],
				s.keysT[j/tileLines*s.elements*tileFloat:], 0, s.scores[r*s.ld:], s.ld, false)
		}
		t.softmax(w, x, j, tileSteps(m)*tileLines, s.scores, s.ld, &s.rows, out)
		for r := 0; r < x.n; r += tileLines {
			seen := s.seen(x.i+r, j, m)
			w.packBlocks(s.probs, matrix{s.scores[r*s.ld:], s.ld, 1}, tileLines, seen*tileLines, true)
			w.tileProduct(s.elements, seen, s.probs, s.values[j/tileLines*tileFloat:], (s.positions-seen)*tileFloat,
				s.out[r*size:], size, j > 0)
		}
	}
	t.finish(w, x, &s.rows, out)
}

// attentionGradBlocks is a worker's memory for the gradient on tiles.
type attentionGradBlocks struct {
	blocked
	ld, ldT              int       // distances between rows of scores, and of dkT and dvT
	keysT, valuesT, keys []float32 // packed right-hand matrices, with keys, keys, and elements of keys as columns
	queries, dout        []float32 // packed left-hand matrices, of a tile
	queriesT, doutT      []float32 // the same, transposed
	probs, grads         []float32 // tiles of probabilities and of score gradients
	left, right          []float32 // 32 rows of those packed as left-hand matrix, and a tile as right-hand matrix
	dkT, dvT             []float32 // sums, with a row for each element of a head
	dq                   []float32 // of a tile
	delta, lse           []float32 // of the rows of a tile
	factors              []float32
	back                 []float32 // scratch to transpose dkT and dvT
}

func (t *attentionGradTask) doBlocks(w *worker, lo, hi int) {
	b := t.blocked()
	width, size, height := b.keys*tileLines, b.elements*tileLines, blockQueries/tileLines
	ld, operand, query := scoreStride(width), b.positions*b.elements*tileFloat, height*b.elements*tileFloat
	ldT := scoreStride(b.positions * tileLines)
	buf := w.scratch(3*operand + 4*query + (1+height)*b.keys*tileFloat + 2*blockQueries*ld + 2*size*ldT + blockQueries*(size+2) +
		factorRoom(width) + tileLines*t.D + t.room())
	s := attentionGradBlocks{blocked: b, ld: ld, ldT: ldT}
	s.keysT, s.valuesT, s.keys = carve(&buf, operand), carve(&buf, operand), carve(&buf, operand)
	s.queries, s.dout = carve(&buf, query), carve(&buf, query)
	s.queriesT, s.doutT = carve(&buf, query), carve(&buf, query)
	s.left, s.right = carve(&buf, b.keys*tileFloat), carve(&buf, height*b.keys*tileFloat)
	s.probs, s.grads = carve(&buf, blockQueries*ld), carve(&buf, blockQueries*ld)
	s.dkT, s.dvT = carve(&buf, size*ldT), carve(&buf, size*ldT)
	s.dq, s.delta, s.lse = carve(&buf, blockQueries*size), carve(&buf, blockQueries), carve(&buf, blockQueries)
	s.factors, s.back = carve(&buf, factorRoom(width)), carve(&buf, tileLines*t.D)

	for u := lo; u < hi; u++ {
		k := t.ordered(buf, t.head(t.k, u))
		w.packBlocks(s.keysT, k, t.T, t.D, false)
		w.packBlocks(s.keys, k.transposed(), t.D, t.T, false)
		w.packBlocks(s.valuesT, t.ordered(buf, t.head(t.v, u)), t.T, t.D, false)
		clear(s.dkT)
		clear(s.dvT)
		t.clearOthers(u)
		t.eachTile(u, blockQueries, func(q queryTile) { t.block(w, q, &s) })
		t.putTransposed(w, t.head(t.dk, u), s.dkT, &s)
		t.putTransposed(w, t.head(t.dv, u), s.dvT, &s)
	}
}

// block is tile for tile registers.
func (t *attentionGradTask) block(w *worker, x queryTile, s *attentionGradBlocks) {
	i, n, size, height := x.i, x.n, s.elements*tileLines, tileSteps(x.n)
	q, dout := t.head(t.q.query(x.g), x.u).at(x.at, 0), t.head(t.dout.query(x.g), x.u).at(x.at, 0)
	w.packBlocks(s.queries, q, n, t.D, true)
	w.packBlocks(s.dout, dout, n, t.D, true)
	w.packBlocks(s.queriesT, q.transposed(), t.D, n, true)
	w.packBlocks(s.doutT, dout.transposed(), t.D, n, true)
	t.rowSums(w, x, s.delta, s.lse)
	for j := 0; j < i+n; j += blockKeys {
		m := min(blockKeys, i+n-j)
		columns := tileSteps(m) * tileLines
		for h := range height {
			first, seen := h*s.elements*tileFloat, s.seen(i+h*tileLines, j, m)
			scores, right := h*tileLines*s.ld, j/tileLines*s.elements*tileFloat
			w.tileProduct(seen, s.elements, s.queries[first:], s.keysT[right:], 0, s.probs[scores:], s.ld, false)
			w.tileProduct(seen, s.elements, s.dout[first:], s.valuesT[right:], 0, s.grads[scores:], s.ld, false)
		}
		t.scoreGrads(w, x, j, columns, s.probs, s.grads, s.ld, s.delta, s.lse, s.factors)
		for r := n; r < height*tileLines; r++ { // rows without queries contribute nothing
			clear(s.probs[r*s.ld:][:columns])
			clear(s.grads[r*s.ld:][:columns])
		}
		for h := range height {
			seen := s.seen(i+h*tileLines, j, m)
			w.packBlocks(s.left, matrix{s.grads[h*tileLines*s.ld:], s.ld, 1}, tileLines, seen*tileLines, true)
			w.tileProduct(s.elements, seen, s.left, s.keys[j/tileLines*tileFloat:], (s.positions-seen)*tileFloat,
				s.dq[h*tileLines*size:], size, j > 0)
		}
		s.addTransposed(w, s.dkT[j:], s.queriesT, s.grads, i, j, m, height)
		s.addTransposed(w, s.dvT[j:], s.doutT, s.probs, i, j, m, height)
	}
	dq := t.head(t.dq.query(x.g), x.u).at(x.at, 0)
	for r := range n {
		copy(dq.data[r*dq.rs:][:t.D], s.dq[r*size:])
	}
}

// addTransposed adds the product of x^T, packed, and a tile of scores to the columns of m keys from
// j on of sums. Each block of 32 queries, from position i on, may see more keys than the block
// before.
func (s *attentionGradBlocks) addTransposed(w *worker, sums, x, scores []float32, i, j, m, height int) {
	for c := range tileSteps(m) {
		w.packBlocks(s.right[c*height*tileFloat:], matrix{scores[c*tileLines:], 1, s.ld}, tileLines, height*tileLines, false)
	}
	for e := range s.elements {
		from := 0
		for h := range height {
			seen := s.seen(i+h*tileLines, j, m)
			if seen > from { // keys seen by these queries and all later ones
				w.tileProduct(seen-from, height-h, x[(e*height+h)*tileFloat:], s.right[(from*height+h)*tileFloat:], h*tileFloat,
					sums[e*tileLines*s.ldT+from*tileLines:], s.ldT, true)
				from = seen
			}
		}
	}
}

// putTransposed sets the rows of keys or values to the columns of transposed sums.
func (t *attentionGradTask) putTransposed(w *worker, to matrix, sums []float32, s *attentionGradBlocks) {
	runs := t.keys
	if runs == nil {
		runs = t.whole[:]
	}
	for _, run := range runs {
		for i := 0; i < run.Len; i += tileLines {
			n := min(tileLines, run.Len-i)
			w.isa.packCols(s.back, sums[run.Pos+i:], s.ldT, n, t.D, t.D)
			for r := range n {
				copy(to.data[(run.Row+i+r)*to.rs:][:t.D], s.back[r*t.D:])
			}
		}
	}
}
