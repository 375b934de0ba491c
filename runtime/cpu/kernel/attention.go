package kernel

import (
	"fmt"
	"math"

	"github.com/autopar/autopar/ir"
)

// Tile of the attention scores that one worker holds at a time: queries by keys.
const (
	tileQueries = 48
	tileKeys    = 256
)

// AttentionShape is the size of a causal self-attention: B sequences of T positions, H heads of keys and values of D
// elements, and to each the heads of G queries (grouped-query attention: Ainslie et al., "GQA", 2023). G of 0 is 1, as many
// heads of queries as of keys and values. Packed tensors hold for each position the H heads of the first query of every
// group, of the second, and so on, of the keys and of the values: [B,T,G+2,H,D]. Of G packed queries Attention and
// AttentionGrad may do some: Count of them, from First on; Count of 0 is all.
type AttentionShape struct{ B, T, H, D, G, First, Count int }

// packed is the number of queries that share a head of keys and values.
func (s AttentionShape) packed() int { return max(s.G, 1) }

// group is how many of them are to be done.
func (s AttentionShape) group() int {
	if s.Count > 0 {
		return s.Count
	}
	return s.packed()
}

// parts is the number of parts of packed queries, keys and values.
func (s AttentionShape) parts() int { return s.packed() + 2 }

// DropoutArgs describes the dropout of attention probabilities. The mask of position i of query g of head h, and key j, is
// that of element (((b*G + g)*GlobalHeads + h)*T + i)*T + j, with b and h counted in the global batch and heads: BatchOffset
// and HeadOffset are those of this part's first. The zero value means no dropout.
type DropoutArgs struct {
	P                                    float64
	Key                                  MaskKey
	BatchOffset, HeadOffset, GlobalHeads int
}

func (s AttentionShape) check(function string, drop DropoutArgs) {
	if s.B < 0 || s.T < 0 || s.H < 0 || s.D <= 0 || s.G < 0 || min(s.First, s.Count) < 0 || s.First+s.group() > s.packed() {
		panic(fmt.Sprintf("BUG: kernel.%s: shape %+v", function, s))
	}
	if drop.P != 0 && (drop.BatchOffset < 0 || drop.HeadOffset < 0 || drop.HeadOffset+s.H > drop.GlobalHeads) {
		panic(fmt.Sprintf("BUG: kernel.%s: heads [%d, %d) of %d from sequence %d", function, drop.HeadOffset, drop.HeadOffset+s.H,
			drop.GlobalHeads, drop.BatchOffset))
	}
}

// checkOperands panics on a wrong length of packed queries, keys and values at so many rows of each sequence, of the log-sums
// of their attention, or of what is shaped like its result.
func (s AttentionShape) checkOperands(function string, rows int, qkv, lse []float32, results ...[]float32) {
	n := s.B * rows * s.H
	checkLen(function, "qkv", qkv, s.parts()*n*s.D)
	checkLen(function, "lse", lse, s.group()*n)
	for _, o := range results {
		checkLen(function, "result", o, s.group()*n*s.D)
	}
}

// Attention computes causal multi-head attention, o = dropout(softmax(q k^T / sqrt(D))) v, for q, k and v packed as
// qkv[B,T,G+2,H,D]. It sets o[B,T,G,H,D] and lse[B,G,H,T], the logarithm of each row's sum of exponentials, which
// AttentionGrad needs. It works through tiles of scores with running maxima and sums, skipping those above the diagonal (Dao et al.,
// "FlashAttention", 2022), and never holds more than one tile per thread.
func Attention(p *Pool, o, lse, qkv []float32, shape AttentionShape, drop DropoutArgs) {
	shape.check("Attention", drop)
	shape.checkOperands("Attention", shape.T, qkv, lse, o)
	group, parts := shape.group(), shape.parts()
	p = p.orInline()
	t := &p.task.attention
	*t = attentionTask{
		heads: heads{AttentionShape: shape, drop: drop, mask: newMask(drop.P, drop.Key)}, o: packed{o, shape.T, group, 0}, lse: lse,
		q: packed{qkv, shape.T, parts, shape.First}, k: packed{qkv, shape.T, parts, parts - 2}, v: packed{qkv, shape.T, parts, parts - 1},
	}
	t.inOrder()
	p.run(t, shape.B*shape.H, 1)
}

// heads is what forward and backward pass share; a unit of work is one head of keys and values of one sequence, with all
// its queries. T positions are attended to.
type heads struct {
	AttentionShape
	drop    DropoutArgs
	mask    mask
	queries []ir.Run // the rows of the queries that are here, by position
	rows    int      // of queries
	keys    []ir.Run // all rows of keys and values, by position; nil if rows are positions

	whole [1]ir.Run // queries of Attention
}

// inOrder says that row i of queries, keys and values is position i.
func (s *heads) inOrder() {
	s.whole[0] = ir.Run{Len: s.T}
	s.queries, s.rows, s.keys = s.whole[:], s.T, nil
}

// packed is one part of a tensor [B,rows,parts,H,D].
type packed struct {
	data              []float32
	rows, parts, part int
}

// query returns the part of query g, of a tensor in which x is the part of the first.
func (x packed) query(g int) packed {
	x.part += g
	return x
}

// queryHead numbers the heads [B,G,H] of queries.
func (s *heads) queryHead(u, g int) int { return (u/s.H*s.group()+g)*s.H + u%s.H }

// head returns the view of row 0 on of head u of a packed tensor.
func (s *heads) head(x packed, u int) matrix {
	b, h := u/s.H, u%s.H
	return matrix{x.data[((b*x.rows*x.parts+x.part)*s.H+h)*s.D:], x.parts * s.H * s.D, 1}
}

// ordered returns the rows of keys or values by position, copied to buf [T,D] where they lie otherwise.
func (s *heads) ordered(buf []float32, x matrix) matrix {
	if s.keys == nil {
		return x
	}
	for _, run := range s.keys {
		for i := range run.Len {
			copy(buf[(run.Pos+i)*s.D:][:s.D], x.data[(run.Row+i)*x.rs:])
		}
	}
	return matrix{buf, s.D, 1}
}

// room is the size of a buffer for ordered.
func (s *heads) room() int {
	if s.keys == nil {
		return 0
	}
	return s.T * s.D
}

// factors returns the dropout multipliers of n keys from j on, for position i of query g of head u.
func (s *heads) factors(w *worker, buf []float32, u, g, i, j, n int) []float32 {
	b, h := u/s.H+s.drop.BatchOffset, u%s.H+s.drop.HeadOffset
	row := (uint64(b)*uint64(s.packed())+uint64(s.First+g))*uint64(s.drop.GlobalHeads) + uint64(h)
	start := (row*uint64(s.T)+uint64(i))*uint64(s.T) + uint64(j)
	return s.mask.factors(w.isa, buf, start, n)
}

// packedSize is the room for a T by D matrix or its transpose in panels.
func (s *heads) packedSize(width int) int {
	up := func(n int) int { return (n + width - 1) / width * width }
	return max(up(s.T)*s.D, s.T*up(s.D))
}

// transposed returns the view of x with rows and columns exchanged.
func (x matrix) transposed() matrix { return matrix{x.data, x.cs, x.rs} }

// carve cuts the first n elements off *buf.
func carve(buf *[]float32, n int) []float32 {
	s := (*buf)[:n:n]
	*buf = (*buf)[n:]
	return s
}

type attentionTask struct {
	heads
	o       packed
	lse     []float32
	q, k, v packed
}

func (t *attentionTask) do(w *worker, lo, hi int) {
	packed := t.packedSize(w.isa.cols)
	ld := min(tileKeys, t.T)
	buf := w.scratch(2*packed + tileQueries*ld + 2*tileQueries + maskRoom(ld) + t.room())
	keys, values := carve(&buf, packed), carve(&buf, packed)
	scores := carve(&buf, tileQueries*ld)
	top, total, rows := carve(&buf, tileQueries), carve(&buf, tileQueries), carve(&buf, t.room())

	for u := lo; u < hi; u++ {
		w.packRight(keys, t.ordered(rows, t.head(t.k, u)).transposed(), t.D, t.T)
		w.packRight(values, t.ordered(rows, t.head(t.v, u)), t.T, t.D)
		for g := range t.group() {
			for _, run := range t.queries {
				for i := 0; i < run.Len; i += tileQueries {
					t.tile(w, u, g, run.Row+i, run.Pos+i, min(tileQueries, run.Len-i), keys, values, scores, ld, top, total, buf)
				}
			}
		}
	}
}

// tile computes the output of n positions of query g of head u, from the one in row at, position i, on.
func (t *attentionTask) tile(w *worker, u, g, at, i, n int, keys, values, scores []float32, ld int, top, total, buf []float32) {
	width := w.isa.cols
	scale := float32(1 / math.Sqrt(float64(t.D)))
	q, o := t.head(t.q.query(g), u).at(at, 0), t.head(t.o.query(g), u).at(at, 0)
	lse := t.lse[t.queryHead(u, g)*t.rows+at:]
	for j := 0; j < i+n; j += ld {
		m := min(ld, i+n-j) // keys of this tile
		w.productsBelow(i-j, n, m, t.D, q, keys[j*t.D:], scores, ld)
		for r := range n {
			row := scores[r*ld : r*ld+m]
			seen := max(0, min(m, i+r-j+1)) // keys up to the query itself
			clear(row[seen:])
			if seen == 0 {
				continue
			}
			row = row[:seen]
			peak := scale * w.isa.maxOf(row)
			if j > 0 && !(peak > top[r]) {
				peak = top[r]
			}
			sum := w.isa.expSum(row, row, scale, peak)
			if j > 0 && peak != top[r] {
				// A larger maximum: what was summed so far counts for less.
				shrink := float32(math.Exp(float64(top[r] - peak)))
				total[r] *= shrink
				out := o.data[r*o.rs : r*o.rs+t.D]
				w.isa.scale(out, out, shrink)
			}
			if j > 0 {
				sum += total[r]
			}
			top[r], total[r] = peak, sum
			if t.drop.P != 0 {
				w.isa.mul(row, row, t.factors(w, buf, u, g, i+r, j, seen))
			}
		}
		w.productsOfLower(i-j, n, t.D, m, scores, ld, values[j*width:], width*t.T, o.data, o.rs, j > 0)
	}
	for r := range n {
		out := o.data[r*o.rs : r*o.rs+t.D]
		w.isa.scale(out, out, 1/total[r])
		lse[r] = float32(float64(top[r]) + math.Log(float64(total[r])))
	}
}

// AttentionGrad sets dqkv[B,T,G+2,H,D] to the gradient of qkv from that of Attention's result, do[B,T,G,H,D]: what the
// queries that are done contribute to it. qkv, o and lse
// are Attention's; shape and drop must be the same. Probabilities are recomputed tile by tile from lse.
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

// attentionGradScratch is the memory of one worker: the operands that are right-hand matrices, packed, and two tiles.
type attentionGradScratch struct {
	keysT, valuesT []float32 // transposed, all keys
	keys           []float32 // all keys
	queries, dout  []float32 // those of the tile
	probs, grads   []float32 // tiles of probabilities and of score gradients, ld apart
	delta, mask    []float32
	ld             int
	rows           []float32 // keys or values by position
	dk, dv         matrix    // by position
}

func (t *attentionGradTask) do(w *worker, lo, hi int) {
	width := w.isa.cols
	packed := t.packedSize(width)
	row := tileQueries * (t.D + width)
	s := attentionGradScratch{ld: min(tileKeys, t.T)}
	buf := w.scratch(3*packed + 2*row + 2*tileQueries*s.ld + tileQueries + maskRoom(s.ld) + 3*t.room())
	s.keysT, s.valuesT, s.keys = carve(&buf, packed), carve(&buf, packed), carve(&buf, packed)
	s.queries, s.dout = carve(&buf, row), carve(&buf, row)
	s.probs, s.grads = carve(&buf, tileQueries*s.ld), carve(&buf, tileQueries*s.ld)
	s.delta, s.rows = carve(&buf, tileQueries), carve(&buf, t.room())
	dk, dv := carve(&buf, t.room()), carve(&buf, t.room())
	s.mask = buf

	for u := lo; u < hi; u++ {
		k := t.ordered(s.rows, t.head(t.k, u))
		w.packRight(s.keysT, k.transposed(), t.D, t.T)
		w.packRight(s.keys, k, t.T, t.D)
		w.packRight(s.valuesT, t.ordered(s.rows, t.head(t.v, u)).transposed(), t.D, t.T)
		s.dk, s.dv = t.head(t.dk, u), t.head(t.dv, u)
		t.clearOthers(u)
		if t.keys != nil {
			clear(dk)
			clear(dv)
			s.dk, s.dv = matrix{dk, t.D, 1}, matrix{dv, t.D, 1}
		}
		for g := range t.group() {
			for _, run := range t.queries {
				for i := 0; i < run.Len; i += tileQueries {
					t.tile(w, u, g, run.Row+i, run.Pos+i, min(tileQueries, run.Len-i), &s)
				}
			}
		}
		if t.keys != nil {
			t.putBack(t.head(t.dk, u), dk)
			t.putBack(t.head(t.dv, u), dv)
		}
	}
}

// clearOthers sets the gradient of the queries of head u that are not to be done.
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

// tile adds the contribution of n positions of query g of head u, from the one in row at, position i, on, to the gradients
// of the keys and values up to them, and sets the queries' own.
func (t *attentionGradTask) tile(w *worker, u, g, at, i, n int, s *attentionGradScratch) {
	width, ld := w.isa.cols, s.ld
	scale := float32(1 / math.Sqrt(float64(t.D)))
	q, dq := t.head(t.q.query(g), u).at(at, 0), t.head(t.dq.query(g), u).at(at, 0)
	o, dout := t.head(t.o.query(g), u).at(at, 0), t.head(t.dout.query(g), u).at(at, 0)
	lse := t.lse[t.queryHead(u, g)*t.rows+at:]
	fresh := i
	if t.keys != nil || g > 0 {
		fresh = t.T // all were cleared, or set by the first query
	}
	w.packRight(s.queries, q, n, t.D)
	w.packRight(s.dout, dout, n, t.D)
	for r := range n {
		s.delta[r] = w.isa.dot(dout.data[r*dout.rs:r*dout.rs+t.D], o.data[r*o.rs:r*o.rs+t.D])
	}

	for j := 0; j < i+n; j += ld {
		m := min(ld, i+n-j)
		w.productsBelow(i-j, n, m, t.D, q, s.keysT[j*t.D:], s.probs, ld)
		w.productsBelow(i-j, n, m, t.D, dout, s.valuesT[j*t.D:], s.grads, ld)
		for r := range n {
			p, dp := s.probs[r*ld:r*ld+m], s.grads[r*ld:r*ld+m]
			seen := max(0, min(m, i+r-j+1))
			clear(p[seen:])
			clear(dp[seen:])
			if seen == 0 {
				continue
			}
			p, dp = p[:seen], dp[:seen]
			w.isa.expSum(p, p, scale, lse[r])
			if t.drop.P == 0 {
				w.isa.softmaxGrad(dp, p, dp, s.delta[r], scale)
				continue
			}
			f := t.factors(w, s.mask, u, g, i+r, j, seen)
			w.isa.mul(dp, dp, f)
			w.isa.softmaxGrad(dp, p, dp, s.delta[r], scale)
			w.isa.mul(p, p, f)
		}
		// A key's first contribution comes from the tile of the first query that holds its own position, which is where
		// the tiles so far end.
		w.productsOfLower(i-j, n, t.D, m, s.grads, ld, s.keys[j*width:], width*t.T, dq.data, dq.rs, j > 0)
		w.addTransposed(s.grads, ld, i, n, j, m, fresh, t.D, s.queries, s.dk)
		w.addTransposed(s.probs, ld, i, n, j, m, fresh, t.D, s.dout, s.dv)
	}
}

// The elements (r, s) of a tile that the causal mask leaves are those with s <= r + offset. What the three products below
// skip, tile by tile of the matrix product, is beyond it: results that nobody reads, or terms that are zero.

// productsBelow sets c[n,m] = a[n,k] b[k,m] as far as the mask leaves it. Panels of b are as packed.
func (w *worker) productsBelow(offset, n, m, k int, a matrix, b, c []float32, ldc int) {
	rows, width := w.isa.rows, w.isa.cols
	for j := 0; j < m; j += width {
		first := max(0, j-offset) / rows * rows
		if first < n {
			w.products(n-first, min(width, m-j), k, a.at(first, 0), rows*a.rs, b[j*k:], 0, c[first*ldc+j:], ldc, false)
		}
	}
}

// productsOfLower sets c[n,d] = tile[n,m] b[m,d], or adds it with acc.
func (w *worker) productsOfLower(offset, n, d, m int, tile []float32, ld int, b []float32, panelB int, c []float32, ldc int, acc bool) {
	rows, width := w.isa.rows, w.isa.cols
	for j := 0; j < d; j += width {
		for i := 0; i < n; i += rows {
			h := min(rows, n-i)
			k := max(0, min(m, i+h+offset)) // zero terms give zero
			w.isa.product(h, min(width, d-j), k, tile[i*ld:], ld, 1, b[j/width*panelB:], c[i*ldc+j:], ldc, acc)
		}
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
