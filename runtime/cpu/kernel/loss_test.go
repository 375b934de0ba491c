package kernel

import (
	"fmt"
	"math"
	"testing"
)

// The loss of logits cut by columns, as vocabulary-parallel ranks compute it, equals that of the
// whole.
func TestCrossEntropy(t *testing.T) {
	rnd := random(t, 41)
	for _, s := range [][3]int{{7, 65, 65}, {33, 65, 17}, {3, 5, 2}, {64, 100, 33}} {
		rows, vocab, part := s[0], s[1], s[2]
		x, dnll, targets := rnd.floats(rows*vocab), rnd.floats(rows), rnd.ids(rows, -1, vocab)
		targets[0] = -1
		top, total, nll := make([]float64, rows), make([]float64, rows), make([]float64, rows)
		dx := make([]float64, rows*vocab)
		for r := range rows {
			top[r] = math.Inf(-1)
			for _, v := range x[r*vocab : (r+1)*vocab] {
				top[r] = max(top[r], float64(v))
			}
			for _, v := range x[r*vocab : (r+1)*vocab] {
				total[r] += math.Exp(float64(v) - top[r])
			}
			if targets[r] < 0 {
				continue
			}
			nll[r] = math.Log(total[r]) + top[r] - float64(x[r*vocab+int(targets[r])])
			for j := range vocab {
				dx[r*vocab+j] = math.Exp(float64(x[r*vocab+j])-top[r]) / total[r] * float64(dnll[r])
			}
			dx[r*vocab+int(targets[r])] -= float64(dnll[r])
		}
		check(t, fmt.Sprint(s), 2e-6, [][]float64{top, total, nll, dx}, func(p *Pool) [][]float32 {
			columns := func(lo, hi int) []float32 {
				var c []float32
				for r := range rows {
					c = append(c, x[r*vocab+lo:r*vocab+hi]...)
				}
				return c
			}
			top, total, pick := make([]float32, rows), make([]float32, rows), make([]float32, rows)
			for r := range top {
				top[r] = float32(math.Inf(-1))
			}
			tmp := make([]float32, rows)
			for lo := 0; lo < vocab; lo += part {
				hi := min(lo+part, vocab)
				RowMax(p, rows, hi-lo, tmp, columns(lo, hi))
				MaxInto(p, top, tmp)
			}
			dx := make([]float32, rows*vocab)
			for lo := 0; lo < vocab; lo += part {
				hi := min(lo+part, vocab)
				RowSumExp(p, rows, hi-lo, tmp, columns(lo, hi), top)
				AddInto(p, total, tmp)
				RowPick(p, rows, hi-lo, tmp, columns(lo, hi), targets, lo)
				AddInto(p, pick, tmp)
			}
			nll := make([]float32, rows)
			NLL(p, nll, top, total, pick, targets)
			for lo := 0; lo < vocab; lo += part {
				hi := min(lo+part, vocab)
				d := columns(lo, hi)
				CrossEntropyGrad(p, rows, hi-lo, d, d, top, total, targets, lo, dnll)
				for r := range rows {
					copy(dx[r*vocab+lo:], d[r*(hi-lo):(r+1)*(hi-lo)])
				}
			}
			return [][]float32{top, total, nll, dx}
		})
	}
}

func TestEmbedding(t *testing.T) {
	rnd := random(t, 42)
	for _, s := range [][3]int{{1, 1, 1}, {33, 65, 7}, {100, 9, 128}, {70, 20, 300}} {
		rows, vocab, cols := s[0], s[1], s[2]
		table, dy, ids := rnd.floats(vocab*cols), rnd.floats(rows*cols), rnd.ids(rows, 0, vocab)
		lo := vocab / 3
		local := table[lo*cols : (lo+(vocab+1)/2)*cols]
		y, dtable := make([]float64, rows*cols), wide(local)
		for r, id := range ids {
			for j := range cols {
				if at := (int(id)-lo)*cols + j; at >= 0 && at < len(local) {
					y[r*cols+j] = float64(local[at])
					dtable[at] += float64(dy[r*cols+j])
				}
			}
		}
		check(t, fmt.Sprint(s), 1e-5, [][]float64{y, dtable}, func(p *Pool) [][]float32 {
			y, d := make([]float32, rows*cols), clone(local)
			Embedding(p, cols, y, local, ids, lo)
			EmbeddingGrad(p, cols, d, dy, ids, lo, true)
			fresh := clone(local)
			EmbeddingGrad(p, cols, fresh, dy, ids, lo, false)
			AddInto(p, fresh, local)
			requireClose(t, "EmbeddingGrad without acc", 1e-5, wide(d), fresh)
			return [][]float32{y, d}
		})
	}
}

// The maximum of negative numbers in rows of every length: padding of vectors must not count.
func TestRowMax(t *testing.T) {
	rnd := random(t, 43)
	for _, n := range sizes()[1:] {
		x := rnd.floats(3 * n)
		want := []float64{math.Inf(-1), math.Inf(-1), math.Inf(-1)}
		for i := range x {
			x[i] = -1 - x[i]*x[i]
			want[i/n] = max(want[i/n], float64(x[i]))
		}
		check(t, fmt.Sprint("RowMax n=", n), 0, [][]float64{want}, func(p *Pool) [][]float32 {
			out := make([]float32, 3)
			RowMax(p, 3, n, out, x)
			return [][]float32{out}
		})
	}
}
