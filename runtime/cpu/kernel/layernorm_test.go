package kernel

import (
	"fmt"
	"math"
	"testing"
)

func TestLayerNorm(t *testing.T) {
	rnd := random(t, 31)
	const eps = 1e-5
	for i, s := range [][2]int{{0, 8}, {1, 1}, {3, 7}, {33, 65}, {70, 128}, {7, 384}, {100, 20}, {5, 100}} {
		rows, cols := s[0], s[1]
		x, w, b, dy := rnd.floats(rows*cols), rnd.floats(cols), rnd.floats(cols), rnd.floats(rows*cols)
		dw, db := rnd.floats(cols), rnd.floats(cols)
		for j := range x {
			x[j] = 2*x[j] + 3
		}
		acc := i%2 == 0
		if i%3 == 0 {
			b, db = nil, nil
		}
		y, dx := make([]float64, rows*cols), make([]float64, rows*cols)
		mean, rstd := make([]float64, rows), make([]float64, rows)
		wantDW, wantDB := make([]float64, cols), make([]float64, len(db))
		if acc {
			wantDW, wantDB = wide(dw), wide(db)
		}
		for r := range rows {
			var g, gx float64
			for _, v := range x[r*cols : (r+1)*cols] {
				mean[r] += float64(v) / float64(cols)
			}
			for _, v := range x[r*cols : (r+1)*cols] {
				rstd[r] += (float64(v) - mean[r]) * (float64(v) - mean[r]) / float64(cols)
			}
			rstd[r] = 1 / math.Sqrt(rstd[r]+eps)
			hat := func(j int) float64 { return (float64(x[r*cols+j]) - mean[r]) * rstd[r] }
			for j := range cols {
				d := float64(dy[r*cols+j])
				y[r*cols+j] = hat(j) * float64(w[j])
				wantDW[j] += d * hat(j)
				if b != nil {
					y[r*cols+j] += float64(b[j])
					wantDB[j] += d
				}
				g += d * float64(w[j]) / float64(cols)
				gx += d * float64(w[j]) * hat(j) / float64(cols)
			}
			for j := range cols {
				dx[r*cols+j] = rstd[r] * (float64(dy[r*cols+j])*float64(w[j]) - g - gx*hat(j))
			}
		}
		name, tol := fmt.Sprint(s), 1e-5
		if cols == 1 {
			tol = 2e-3 // no variance: rstd magnifies rounding by 316
		}
		forward := func(p *Pool) (out, m, r []float32) {
			out, m, r = make([]float32, rows*cols), make([]float32, rows), make([]float32, rows)
			LayerNorm(p, rows, cols, out, m, r, x, w, b, eps)
			return out, m, r
		}
		check(t, "LayerNorm "+name, tol, [][]float64{y, mean, rstd}, func(p *Pool) [][]float32 {
			out, m, r := forward(p)
			return [][]float32{out, m, r}
		})
		check(t, "LayerNormGrad "+name, tol, [][]float64{dx, wantDW, wantDB}, func(p *Pool) [][]float32 {
			_, m, r := forward(p)
			dx, dw, db := clone(dy), clone(dw), db
			if db != nil {
				db = clone(db)
			}
			LayerNormGrad(p, rows, cols, dx, dw, db, dx, x, w, m, r, acc)
			return [][]float32{dx, dw, db}
		})
	}
}
