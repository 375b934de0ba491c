package kernel

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// What comes after a product or a norm's gradient has, to the bit, the results of the same operations one after the other, at
// sizes of one block, of many, and of none; the last is done in place.
func TestAfter(t *testing.T) {
	rnd := random(t, 91)
	for _, s := range [][3]int{{1, 1, 1}, {3, 65, 33}, {5, 7, 0}, {0, 5, 3}, {7, 65, 128}, {33, 17, 257}, {70, 97, 900}, {33, 2100, 130}, {150, 40, 300}} {
		m, n, k := s[0], s[1], s[2]
		a, b, bias, x, w, stats := rnd.floats(m*k), rnd.floats(n*k), rnd.floats(n), rnd.floats(m*n), rnd.floats(n), rnd.floats(m)
		params := make([]float32, 2*n)
		for _, first := range []struct {
			name string
			run  func(p *Pool, c []float32, after ...After)
		}{
			{"NT", func(p *Pool, c []float32, after ...After) { MatMulNT(p, m, n, k, a, b, c, false, after...) }},
			{"NN", func(p *Pool, c []float32, after ...After) { MatMulNN(p, m, n, k, a, b, c, true, after...) }},
			{"TN", func(p *Pool, c []float32, after ...After) { MatMulTN(p, m, n, k, a, b, c, false, after...) }},
			{"layer norm", func(p *Pool, c []float32, after ...After) {
				LayerNormGrad(p, m, n, c, params[:n], params[n:], c, x, w, stats, stats, false, after...)
			}},
			{"RMS norm", func(p *Pool, c []float32, after ...After) {
				RMSNormGrad(p, m, n, c, params[:n], c, x, w, stats, false, after...)
			}},
		} {
			start := rnd.floats(m * n)
			for _, set := range instructionSets() {
				for threads := 1; threads <= 3; threads++ {
					p := newPool(threads, set)
					if threads > 1 {
						p.maxGrain = threads
					}
					var want, got [4][]float32
					for i := range want {
						want[i], got[i] = clone(start), clone(start)
					}
					first.run(p, want[0])
					AddBias(p, m, n, want[1], want[0], bias)
					GELU(p, want[2], want[1], threads == 2)
					Add(p, want[3], x, want[2])
					GELUGrad(p, want[3], want[3], want[1], threads == 2)
					gelu, geluGrad := AfterGELU, AfterGELUGrad
					if threads == 2 {
						gelu, geluGrad = AfterGELUTanh, AfterGELUTanhGrad
					}
					first.run(p, got[0], After{AfterBias, got[1], got[0], bias}, After{gelu, got[2], got[1], nil},
						After{AfterAdd, got[3], x, got[2]}, After{geluGrad, got[3], got[3], got[1]})
					p.Close()
					require.Equal(t, want, got, fmt.Sprint(s, first.name, set.name, threads))
				}
			}
		}
	}
}
