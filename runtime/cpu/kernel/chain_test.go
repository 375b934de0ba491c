package kernel

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Steps have, to the bit, the results of the same operations one after the other: by themselves, and after the gradient of a norm.
// The last is done in place.
func TestChain(t *testing.T) {
	rnd := random(t, 91)
	for _, s := range [][2]int{{1, 1}, {0, 3}, {3, 65}, {7, 33}, {70, 97}, {33, 2100}, {300, 40}} {
		rows, cols := s[0], s[1]
		n := rows * cols
		bias, x, w, stats := rnd.floats(cols), rnd.floats(n), rnd.floats(cols), rnd.floats(rows)
		params := make([]float32, 2*cols)
		start := rnd.floats(n)
		for name, first := range map[string]func(p *Pool, y []float32, after ...Step){
			"chain": func(p *Pool, _ []float32, steps ...Step) { Chain(p, rows, cols, steps...) },
			"layer norm": func(p *Pool, y []float32, after ...Step) {
				LayerNormGrad(p, rows, cols, y, params[:cols], params[cols:], y, x, w, stats, stats, false, after...)
			},
			"RMS norm": func(p *Pool, y []float32, after ...Step) {
				RMSNormGrad(p, rows, cols, y, params[:cols], y, x, w, stats, false, after...)
			},
		} {
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
					tanh, gelu, geluGrad := threads == 2, StepGELU, StepGELUGrad
					if tanh {
						gelu, geluGrad = StepGELUTanh, StepGELUTanhGrad
					}
					first(p, want[0])
					AddBias(p, rows, cols, want[1], want[0], bias)
					GELU(p, want[2], want[1], tanh)
					Add(p, want[3], x, want[2])
					GELUGrad(p, want[3], want[3], want[1], tanh)
					first(p, got[0], Step{StepBias, got[1], got[0], bias}, Step{gelu, got[2], got[1], nil},
						Step{StepAdd, got[3], x, got[2]}, Step{geluGrad, got[3], got[3], got[1]})
					p.Close()
					require.Equal(t, want, got, fmt.Sprint(s, name, set.name, threads))
				}
			}
		}
	}
}
