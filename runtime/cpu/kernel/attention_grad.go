package kernel

import "math"

// AttentionGrad sets dqkv[B,T,G+2,H,D] to the gradient of qkv, given the gradient do[B,T,G,H,D] of
// Attention's result. It is the contribution of the queries that are computed. qkv, o and lse are
// Attention's; shape and drop must be the same. Probabilities are recomputed tile by tile from lse.
func AttentionGrad(p *Pool, dqkv, do, qkv, o, lse []float32, shape AttentionShape, drop DropoutArgs) {
	shape.check("AttentionGrad", drop)
	shape.checkOperands("AttentionGrad", shape.T, qkv, lse, o, do)
	checkLen("AttentionGrad", "dqkv", dqkv, len(qkv))
	group, parts := shape.group(), shape.parts()
	p = p.orInline()
	t := &p.task.attnGrad
	*t = attentionGradTask{
		heads: heads{AttentionShape: shape, drop: drop, mask: newMask(drop.P, drop.Key)}, lse: lse,
		dout: packed{do, shape.T, group, 0}, o: packed{o, shape.T, group, 0},
		q: packed{qkv, shape.T, parts, shape.First}, k: packed{qkv, shape.T, parts, parts - 2}, v: packed{qkv, shape.T, parts, parts - 1},
		dq: packed{dqkv, shape.T, parts, shape.First}, dk: packed{dqkv, shape.T, parts, parts - 2}, dv: packed{dqkv, shape.T, parts, parts - 1},
	}
	t.inOrder()
	p.run(t, shape.B*shape.H, 1)
}

type attentionGradTask struct {
	heads
	dout, o    packed
	lse        []float32
	q, k, v    packed
	dq, dk, dv packed
}

// attentionGradScratch is a worker's memory: packed right-hand matrices, and two tiles.
type attentionGradScratch struct {
	keysT, valuesT []float32 // transposed, all keys
	keys           []float32 // all keys
	queries, dout  []float32 // those of the tile
	probs, grads   []float32 // tiles of probabilities and of score gradients, ld apart
	ld             int
	delta, lse     []float32 // of the tile's rows
	factors        []float32
	dk, dv         matrix // by position
}

func (t *attentionGradTask) do(w *worker, lo, hi int) {
	if t.onTiles(w) {
		t.doBlocks(w, lo, hi)
		return
	}
	width := w.isa.cols
	packed := t.packedSize(width)
	row := tileQueries * (t.D + width)
	most := min(tileKeys, t.T)
	s := attentionGradScratch{ld: scoreStride(most)}
	buf := w.scratch(3*packed + 2*row + 2*tileQueries*s.ld + 2*tileQueries + factorRoom(most) + 3*t.room())
	s.keysT, s.valuesT, s.keys = carve(&buf, packed), carve(&buf, packed), carve(&buf, packed)
	s.queries, s.dout = carve(&buf, row), carve(&buf, row)
	s.probs, s.grads = carve(&buf, tileQueries*s.ld), carve(&buf, tileQueries*s.ld)
	s.delta, s.lse, s.factors = carve(&buf, tileQueries), carve(&buf, tileQueries), carve(&buf, factorRoom(most))
	rows, dk, dv := carve(&buf, t.room()), carve(&buf, t.room()), buf

	for u := lo; u < hi; u++ {
		k := t.ordered(rows, t.head(t.k, u))
		w.packRight(s.keysT, k.transposed(), t.D, t.T)
		w.packRight(s.keys, k, t.T, t.D)
		w.packRight(s.valuesT, t.ordered(rows, t.head(t.v, u)).transposed(), t.D, t.T)
		s.dk, s.dv = t.head(t.dk, u), t.head(t.dv, u)
		t.clearOthers(u)
		if t.keys != nil {
			clear(dk)
			clear(dv)
			s.dk, s.dv = matrix{dk, t.D, 1}, matrix{dv, t.D, 1}
		}
		t.eachTile(u, tileQueries, func(q queryTile) { t.tile(w, q, &s) })
		if t.keys != nil {
			t.putBack(t.head(t.dk, u), dk)
			t.putBack(t.head(t.dv, u), dv)
		}
	}
}

// clearOthers clears the gradient of the queries of head u that are not computed.
func (t *attentionGradTask) clearOthers(u int) {
	for g := range t.packed() {
		if t.group() == t.packed() || g >= t.First && g < t.First+t.group() {
			continue
		}
		dq := t.head(t.dq.query(g-t.First), u)
		for i := range t.rows {
			clear(dq.data[i*dq.rs:][:t.D])
		}
	}
}

// tile sets the gradients of a tile's queries, and adds their contribution to the gradients of the
// keys and values that they see.
func (t *attentionGradTask) tile(w *worker, x queryTile, s *attentionGradScratch) {
	width, ld, i, n := w.isa.cols, s.ld, x.i, x.n
	q, dq := t.head(t.q.query(x.g), x.u).at(x.at, 0), t.head(t.dq.query(x.g), x.u).at(x.at, 0)
	dout := t.head(t.dout.query(x.g), x.u).at(x.at, 0)
	fresh := i
	if t.keys != nil || x.g > 0 {
		fresh = t.T // all were cleared, or set by the first query
	}
	w.packRight(s.queries, q, n, t.D)
	w.packRight(s.dout, dout, n, t.D)
	t.rowSums(w, x, s.delta, s.lse)
	for j := 0; j < i+n; j += tileKeys {
		m := min(tileKeys, i+n-j)
		w.productsBelow(i-j, n, m, t.D, q, s.keysT[j*t.D:], s.probs, ld)
		w.productsBelow(i-j, n, m, t.D, dout, s.valuesT[j*t.D:], s.grads, ld)
		t.scoreGrads(w, x, j, m, s.probs, s.grads, ld, s.delta, s.lse, s.factors)
		// A key's first contribution comes from the tile of the first query that holds its own position, which is where
		// the tiles so far end.
		w.productsOfLower(i-j, n, t.D, m, s.grads, ld, s.keys[j*width:], width*t.T, dq.data, dq.rs, j > 0)
		w.addTransposed(s.grads, ld, i, n, j, m, fresh, t.D, s.queries, s.dk)
		w.addTransposed(s.probs, ld, i, n, j, m, fresh, t.D, s.dout, s.dv)
	}
}

// rowSums sets the dot product of each of a tile's results and its gradient, and the logarithms of the sums of exponentials.
func (t *attentionGradTask) rowSums(w *worker, x queryTile, delta, lse []float32) {
	o, dout := t.head(t.o.query(x.g), x.u).at(x.at, 0), t.head(t.dout.query(x.g), x.u).at(x.at, 0)
	for r := range x.n {
		delta[r] = w.isa.dot(dout.data[r*dout.rs:][:t.D], o.data[r*o.rs:][:t.D])
		lse[r] = t.lse[t.logSum(x, r)]
	}
}

// scoreGrads replaces the scores of a tile's queries and m keys from j on by probabilities with dropout, and the gradients of
// these by those of the scores.
func (t *attentionGradTask) scoreGrads(w *worker, x queryTile, j, m int, probs, grads []float32, ld int, delta, lse, factors []float32) {
	scale := float32(1 / math.Sqrt(float64(t.D)))
	for r := 0; r < x.n; r += scoreQuad {
		f, ldf := t.factors(w, factors, x, r, j, m)
		seen := x.i + r - j + 1
		w.isa.gradRows(probs[r*ld:], grads[r*ld:], ld, seen, m, scale, lse[r:], delta[r:], f, ldf)
	}
}

// addTransposed adds the transpose of tile[n,m], of queries from i on, times packed x[n,d] to rows j to j+m of dst, setting
// the rows from fresh on instead.
func (w *worker) addTransposed(tile []float32, ld, i, n, j, m, fresh, d int, x []float32, dst matrix) {
	rows, width := w.isa.rows, w.isa.cols
	for at := 0; at < m; {
		h := min(rows, m-at)
		if old := fresh - j; at < old {
			h = min(h, old-at)
		}
		first := min(n, max(0, j+at-i)) // the first query that sees any of these keys
		for c := 0; c < d; c += width {
			w.isa.product(h, min(width, d-c), n-first, tile[min(first*ld+at, len(tile)):], 1, ld, x[c*n+first*width:],
				dst.data[(j+at)*dst.rs+c:], dst.rs, j+at < fresh)
		}
		at += h
	}
}
