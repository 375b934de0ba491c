package kernel

import (
	"fmt"
	"math"

	"github.com/autopar/autopar/ir"
)

// The tile of attention scores that a worker holds at a time: tileQueries (a multiple of scoreQuad)
// by tileKeys.
const (
	tileQueries = 48
	tileKeys    = 256
)

// scoreStride is the distance between rows of a tile of at most m keys. It is not a power of two,
// because then the rows of a column would compete for the same few cache sets.
func scoreStride(m int) int { return scoreLine(m) + scoreAlign }

// queryTile is the queries of a tile: n positions from i on, in rows from at on, of query g of head
// u.
type queryTile struct{ u, g, at, i, n int }

// AttentionShape is the size of a causal self-attention: B sequences of T positions, H heads of D
// elements for keys and values, and for each of them G query heads (grouped-query attention:
// Ainslie et al., "GQA", 2023). G of 0 is 1, as many query heads as heads of keys and values.
// Packed tensors [B,T,G+2,H,D] hold for each position the H heads of the first query of every
// group, those of the second, and so on, and then those of the keys and of the values. Attention
// and AttentionGrad may compute only Count of the G packed queries, from First on. Count of 0 is
// all. If each sequence is Parts rows of a batch, tensors are as without, except for log-sums,
// [B Parts,G,H,T/Parts]. Parts of 0 is 1.
type AttentionShape struct{ B, T, H, D, G, First, Count, Parts int }

// packed is the number of query heads that share a head of keys and values.
func (s AttentionShape) packed() int { return max(s.G, 1) }

// group is how many of them are computed.
func (s AttentionShape) group() int {
	if s.Count > 0 {
		return s.Count
	}
	return s.packed()
}

// parts is the number of parts of a packed tensor.
func (s AttentionShape) parts() int { return s.packed() + 2 }

// DropoutArgs describes the dropout of attention probabilities. The mask for position i of query g
// of head h and key j is that of element (((b*G + g)*GlobalHeads + h)*T + i)*T + j, where b and h
// count in the global batch and heads. BatchOffset and HeadOffset are the first of this part. The
// zero value means no dropout.
type DropoutArgs struct {
	P                                    float64
	Key                                  MaskKey
	BatchOffset, HeadOffset, GlobalHeads int
}

func (s AttentionShape) check(function string, drop DropoutArgs) {
	if s.B < 0 || s.T < 0 || s.H < 0 || s.D <= 0 || s.G < 0 || min(s.First, s.Count) < 0 || s.First+s.group() > s.packed() ||
		s.Parts < 0 || s.T%max(s.Parts, 1) != 0 {
		panic(fmt.Sprintf("BUG: kernel.%s: shape %+v", function, s))
	}
	if drop.P != 0 && (drop.BatchOffset < 0 || drop.HeadOffset < 0 || drop.HeadOffset+s.H > drop.GlobalHeads) {
		panic(fmt.Sprintf("BUG: kernel.%s: heads [%d, %d) of %d from sequence %d", function, drop.HeadOffset, drop.HeadOffset+s.H,
			drop.GlobalHeads, drop.BatchOffset))
	}
}

// checkOperands panics if a length is wrong: of packed queries, keys and values with rows rows per
// sequence, of log-sums, or of tensors shaped like the result.
func (s AttentionShape) checkOperands(function string, rows int, qkv, lse []float32, results ...[]float32) {
	n := s.B * rows * s.H
	checkLen(function, "qkv", qkv, s.parts()*n*s.D)
	checkLen(function, "lse", lse, s.group()*n)
	for _, o := range results {
		checkLen(function, "result", o, s.group()*n*s.D)
	}
}

// Attention computes causal multi-head attention, o = dropout(softmax(q k^T / sqrt(D))) v, with q,
// k and v packed as qkv[B,T,G+2,H,D]. It sets o[B,T,G,H,D], and lse[B,G,H,T] to the logarithm of
// each row's sum of exponentials, which AttentionGrad needs. It works through tiles of scores with
// running maxima and sums, skips tiles above the diagonal (Dao et al., "FlashAttention", 2022), and
// never holds more than one tile per thread.
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

// heads is what the forward and backward pass share. A unit of work is one head of keys and values
// of one sequence with all its queries. T is the number of positions of keys.
type heads struct {
	AttentionShape
	drop    DropoutArgs
	mask    mask
	queries []ir.Run // rows of the queries on this rank, by position
	rows    int      // how many rows of queries there are
	keys    []ir.Run // all rows of keys and values, by position; nil if row i is position i

	whole [1]ir.Run // queries of Attention
}

// inOrder sets row i of queries, keys and values to be position i.
func (s *heads) inOrder() {
	s.whole[0] = ir.Run{Len: s.T}
	s.queries, s.rows, s.keys = s.whole[:], s.T, nil
}

// packed is one part of a tensor [B,rows,parts,H,D].
type packed struct {
	data              []float32
	rows, parts, part int
}

// query returns the part of query g. x is the part of the first query.
func (x packed) query(g int) packed {
	x.part += g
	return x
}

// logSum returns the index in [B Parts,G,H,rows/Parts] of row r of a tile. A tile may have rows of several parts.
func (s *heads) logSum(x queryTile, r int) int {
	parts, row := max(s.Parts, 1), x.at+r
	length := s.rows / parts
	return (((x.u/s.H*parts+row/length)*s.group()+x.g)*s.H+x.u%s.H)*length + row%length
}

// head returns the view of head u of a packed tensor, from row 0 on.
func (s *heads) head(x packed, u int) matrix {
	b, h := u/s.H, u%s.H
	return matrix{x.data[((b*x.rows*x.parts+x.part)*s.H+h)*s.D:], x.parts * s.H * s.D, 1}
}

// ordered returns the rows of keys or values in the order of positions. If they lie otherwise it
// copies them to buf [T,D].
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

// factors returns the dropout factors of four rows of scores, from row r of a tile on, and the
// distance between the rows. They are for the keys from j on that each row sees, at most m. Without
// dropout it returns nil.
func (s *heads) factors(w *worker, buf []float32, q queryTile, r, j, m int) (f []float32, ld int) {
	if s.drop.P == 0 {
		return nil, 0
	}
	b, h := q.u/s.H+s.drop.BatchOffset, q.u%s.H+s.drop.HeadOffset
	head := (uint64(b)*uint64(s.packed())+uint64(s.First+q.g))*uint64(s.drop.GlobalHeads) + uint64(h)
	ld = factorStride(m)
	if n := min(m, q.i+r+scoreQuad-j); n > 0 { // for the last row, which sees most
		start := (head*uint64(s.T)+uint64(q.i+r))*uint64(s.T) + uint64(j)
		w.isa.dropoutRows(buf, ld, n, start, uint64(s.T), &s.mask.key, uint32(s.mask.threshold), s.mask.scale)
	}
	return buf[scoreAlign:], ld
}

// factorStride is the distance between rows of factors for m keys. The first factor of each row is
// aligned.
func factorStride(m int) int { return scoreLine(scoreAlign + maskRoom(m)) }

// factorRoom is the size of a buffer for factors.
func factorRoom(m int) int { return scoreQuad * factorStride(m) }

// packedSize is the room for a T by D matrix, or its transpose, packed in panels.
func (s *heads) packedSize(width int) int {
	up := func(n int) int { return (n + width - 1) / width * width }
	return max(up(s.T)*s.D, s.T*up(s.D))
}

// eachTile calls f with tiles of at most n queries of head u.
func (s *heads) eachTile(u, n int, f func(q queryTile)) {
	for g := range s.group() {
		for _, run := range s.queries {
			for i := 0; i < run.Len; i += n {
				f(queryTile{u, g, run.Row + i, run.Pos + i, min(n, run.Len-i)})
			}
		}
	}
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

// attentionRows is a worker's memory for the rows of a tile of scores.
type attentionRows struct {
	top, total  []float32 // largest score and sum of exponentials so far, by row
	peaks, sums []float32 // the same for four rows of the current tile
	factors     []float32
}

// rowRoom is the size of attentionRows of n rows of at most m keys.
func rowRoom(n, m int) int { return 2*n + 2*scoreQuad + factorRoom(m) }

func carveRows(buf *[]float32, n, m int) attentionRows {
	return attentionRows{carve(buf, n), carve(buf, n), carve(buf, scoreQuad), carve(buf, scoreQuad), carve(buf, factorRoom(m))}
}

func (t *attentionTask) do(w *worker, lo, hi int) {
	if t.onTiles(w) {
		t.doBlocks(w, lo, hi)
		return
	}
	packed := t.packedSize(w.isa.cols)
	width := min(tileKeys, t.T)
	ld := scoreStride(width)
	buf := w.scratch(2*packed + tileQueries*ld + rowRoom(tileQueries, width) + t.room())
	keys, values := carve(&buf, packed), carve(&buf, packed)
	scores, rows := carve(&buf, tileQueries*ld), carveRows(&buf, tileQueries, width)

	for u := lo; u < hi; u++ {
		w.packRight(keys, t.ordered(buf, t.head(t.k, u)).transposed(), t.D, t.T)
		w.packRight(values, t.ordered(buf, t.head(t.v, u)), t.T, t.D)
		t.eachTile(u, tileQueries, func(q queryTile) { t.tile(w, q, keys, values, scores, ld, &rows) })
	}
}

// tile computes the output of a tile's queries.
func (t *attentionTask) tile(w *worker, x queryTile, keys, values, scores []float32, ld int, rows *attentionRows) {
	width := w.isa.cols
	q, o := t.head(t.q.query(x.g), x.u).at(x.at, 0), t.head(t.o.query(x.g), x.u).at(x.at, 0)
	for j := 0; j < x.i+x.n; j += tileKeys {
		m := min(tileKeys, x.i+x.n-j) // keys of this tile
		w.productsBelow(x.i-j, x.n, m, t.D, q, keys[j*t.D:], scores, ld)
		t.softmax(w, x, j, m, scores, ld, rows, o)
		w.productsOfLower(x.i-j, x.n, t.D, m, scores, ld, values[j*width:], width*t.T, o.data, o.rs, j > 0)
	}
	t.finish(w, x, rows, o)
}

// softmax replaces the scores of m keys from j on by their exponentials relative to the largest
// score so far of each row, with dropout. It adds to the sums before dropout, and rescales what o
// holds to the new maximum.
func (t *attentionTask) softmax(w *worker, x queryTile, j, m int, scores []float32, ld int, s *attentionRows, o matrix) {
	scale := float32(1 / math.Sqrt(float64(t.D)))
	for r := 0; r < x.n; r += scoreQuad {
		rows, top, total := scores[r*ld:], s.top[r:], s.total[r:]
		seen := x.i + r - j + 1 // how many keys the first of the four queries sees
		w.isa.maxRows(s.peaks, rows, ld, seen, m)
		for i := range s.peaks {
			s.peaks[i] *= scale
			if j > 0 && !(s.peaks[i] > top[i]) {
				s.peaks[i] = top[i]
			}
		}
		f, ldf := t.factors(w, s.factors, x, r, j, m)
		w.isa.expRows(rows, ld, seen, m, scale, s.peaks, s.sums, f, ldf)
		for i := range min(scoreQuad, x.n-r) {
			if j > 0 {
				if s.peaks[i] != top[i] {
					// There is a larger maximum: scale down what was summed so far.
					shrink := float32(math.Exp(float64(top[i] - s.peaks[i])))
					total[i] *= shrink
					out := o.data[(r+i)*o.rs:][:t.D]
					w.isa.scale(out, out, shrink)
				}
				s.sums[i] += total[i]
			}
			top[i], total[i] = s.peaks[i], s.sums[i]
		}
	}
}

// finish divides the results of a tile's queries by their sums, and sets their log-sums. o may be
// the result itself.
func (t *attentionTask) finish(w *worker, x queryTile, s *attentionRows, o matrix) {
	to := t.head(t.o.query(x.g), x.u).at(x.at, 0)
	for r := range x.n {
		w.isa.scale(to.data[r*to.rs:][:t.D], o.data[r*o.rs:][:t.D], 1/s.total[r])
		t.lse[t.logSum(x, r)] = float32(float64(s.top[r]) + math.Log(float64(s.total[r])))
	}
}

// The causal mask keeps the elements (r, s) of a tile with s <= r + offset. The products below skip
// tiles of the matrix product that lie beyond it: results that nobody reads, or terms that are
// zero.

// productsBelow sets c[n,m] = a[n,k] b[k,m] where the mask keeps it. Panels of b are as packed.
func (w *worker) productsBelow(offset, n, m, k int, a matrix, b, c []float32, ldc int) {
	rows, width := w.isa.rows, w.isa.cols
	for j := 0; j < m; j += width {
		for i := max(0, j-offset) / rows * rows; i < n; i += rows {
			h := min(rows, n-i)
			seen := min(width, m-j, i+h+offset-j)
			w.isa.product(h, seen, k, a.data[i*a.rs:], a.rs, a.cs, b[j*k:], c[i*ldc+j:], ldc, false)
		}
	}
}

// productsOfLower sets c[n,d] = tile[n,m] b[m,d], or adds that with acc.
func (w *worker) productsOfLower(offset, n, d, m int, tile []float32, ld int, b []float32, panelB int, c []float32, ldc int, acc bool) {
	rows, width := w.isa.rows, w.isa.cols
	for j := 0; j < d; j += width {
		for i := 0; i < n; i += rows {
			h := min(rows, n-i)
			k := max(0, min(m, i+h+offset)) // zero terms give zero, or NaN if b is not finite
			w.isa.product(h, min(width, d-j), k, tile[i*ld:], ld, 1, b[j/width*panelB:], c[i*ldc+j:], ldc, acc)
		}
	}
}
