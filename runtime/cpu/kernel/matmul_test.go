package kernel

import (
	"fmt"
	"math"
	"testing"
)

// matMulReference computes c (+)= a b in float64, with at giving the elements of a[m,k] and b[k,n].
func matMulReference(m, n, k int, a, b func(i, j int) float32, c []float32, acc bool) []float64 {
	out := make([]float64, m*n)
	for i := range m {
		for j := range n {
			var s float64
			if acc {
				s = float64(c[i*n+j])
			}
			for q := range k {
				s += float64(a(i, q)) * float64(b(q, j))
			}
			out[i*n+j] = s
		}
	}
	return out
}

func TestMatMul(t *testing.T) {
	rnd := random(t, 11)
	shapes := [][3]int{{1, 1, 1}, {0, 3, 4}, {3, 0, 4}, {3, 5, 0}, {2, 65, 33}, {4, 16, 8}, {7, 65, 128}, {48, 64, 256}, {33, 17, 257}, {96, 128, 128},
		{150, 40, 300}, {5, 2100, 9}, {13, 33, 515}, {64, 65, 64}, {70, 97, 900},
		{33, 2100, 130}, {5, 6, 8480}, {96, 40, 1000},
		{33, 17, 769}} // halves of 384 and 385 terms; only the last step is incomplete
	for range 25 {
		shapes = append(shapes, [3]int{1 + rnd.IntN(60), 1 + rnd.IntN(80), 1 + rnd.IntN(90)})
	}
	for i, s := range shapes {
		m, n, k, acc := s[0], s[1], s[2], i%2 == 1
		a, b, c := rnd.floats(m*k), rnd.floats(k*n), rnd.floats(m*n)
		product := func(f func(p *Pool, m, n, k int, a, b, c []float32, acc bool)) func(p *Pool) [][]float32 {
			return func(p *Pool) [][]float32 {
				out := clone(c)
				f(p, m, n, k, a, b, out, acc)
				return [][]float32{out}
			}
		}
		name := fmt.Sprint(s, acc)
		tol := 3e-6 * max(1, math.Sqrt(float64(k)))
		checkOn(t, withTiles(), "MatMulNT "+name, tol, [][]float64{matMulReference(m, n, k,
			func(i, q int) float32 { return a[i*k+q] }, func(q, j int) float32 { return b[j*k+q] }, c, acc)}, product(MatMulNT))
		checkOn(t, withTiles(), "MatMulNN "+name, tol, [][]float64{matMulReference(m, n, k,
			func(i, q int) float32 { return a[i*k+q] }, func(q, j int) float32 { return b[q*n+j] }, c, acc)}, product(MatMulNN))
		checkOn(t, withTiles(), "MatMulTN "+name, tol, [][]float64{matMulReference(m, n, k,
			func(i, q int) float32 { return a[q*m+i] }, func(q, j int) float32 { return b[q*n+j] }, c, acc)}, product(MatMulTN))
	}
}

// A product writes only its own elements: c lies between guards that no tile may touch.
func TestMatMulStaysInside(t *testing.T) {
	rnd := random(t, 12)
	for _, set := range instructionSets() {
		p := newPool(1, set)
		for n := 1; n <= 2*set.cols+1; n++ {
			for m := 1; m <= 2*set.rows+1; m++ {
				a, b := rnd.floats(m*3), rnd.floats(3*n)
				whole := make([]float32, m*n+64)
				for i := range whole {
					whole[i] = 7
				}
				MatMulNN(p, m, n, 3, a, b, whole[32:32+m*n], false)
				for i := range 32 {
					if whole[i] != 7 || whole[32+m*n+i] != 7 {
						t.Fatalf("%s: m=%d n=%d wrote outside its result", set.name, m, n)
					}
				}
			}
		}
	}
}
