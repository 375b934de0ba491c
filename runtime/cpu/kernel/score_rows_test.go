package kernel

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Loops over rows of scores do, on each instruction set, what portable Go does element by element.
// They clear the rest, and do not touch what lies beyond.
func TestScoreRows(t *testing.T) {
	rnd := random(t, 73)
	const most = 70
	ld, ldf := scoreStride(most), factorStride(most)
	scores, grads := rnd.floats(scoreQuad*ld+scoreAlign), rnd.floats(scoreQuad*ld+scoreAlign)
	shifts, delta := rnd.floats(scoreQuad), rnd.floats(scoreQuad)
	key := MaskKey{Seed: 0x1234567890abcdef, Op: 5, Step: 6}
	const threshold, kept, scale = 1 << 30, 4.0 / 3, 0.25
	for _, set := range instructionSets() {
		for m := 1; m <= most; m++ {
			for _, seen := range []int{-9, -3, -1, 0, 1, 2, 15, 16, 29, 30, 45, 61, 64, 80} {
				for _, at := range []struct{ start, stride uint64 }{{}, {1<<36 - 8, 24}, {5, 33}, {1<<34 - 2, 67}} {
					name := fmt.Sprintf("%s: m %d, seen %d, rows from %d on, %d apart", set.name, m, seen, at.start, at.stride)
					factors := make([]float32, factorRoom(most))
					n := min(m, seen+scoreQuad-1)
					if n > 0 {
						set.dropoutRows(factors, ldf, n, at.start, at.stride, &key, threshold, kept)
					}
					factors = factors[scoreAlign:]
					var f []float32
					if at.start > 0 { // without dropout otherwise
						f = factors
					}
					top, sums := make([]float32, scoreQuad), make([]float32, scoreQuad)
					exps, p, dp := clone(scores), clone(scores), clone(grads)
					set.maxRows(top, scores, ld, seen, m)
					set.expRows(exps, ld, seen, m, scale, shifts, sums, f, ldf)
					set.gradRows(p, dp, ld, seen, m, scale, shifts, delta, f, ldf)
					for r := range scoreQuad {
						sum, largest := 0.0, float32(math.Inf(-1))
						for i := range ld {
							j := r*ld + i
							var want [3]float64 // exps, p, dp
							switch {
							case i >= scoreLine(m):
								want = [3]float64{float64(scores[j]), float64(scores[j]), float64(grads[j])}
							case i < min(m, seen+r):
								factor := 1.0
								if f != nil {
									factor = 0
									if key.Uint32(at.start+uint64(r)*at.stride+uint64(i)) >= threshold {
										factor = float64(float32(kept))
									}
									if f[r*ldf+i] != float32(factor) {
										t.Fatalf("%s: row %d: factor %d is %v, want %v", name, r, i, f[r*ldf+i], factor)
									}
								}
								e := math.Exp(scale*float64(scores[j]) - float64(shifts[r]))
								sum, largest = sum+e, max(largest, scores[j])
								want = [3]float64{e * factor, e * factor, scale * e * (float64(grads[j])*factor - float64(delta[r]))}
							}
							for k, got := range []float32{exps[j], p[j], dp[j]} {
								if !(math.Abs(float64(got)-want[k]) <= 1e-6*math.Abs(want[k])+1e-5*math.Abs(want[0])) {
									t.Fatalf("%s: row %d: element %d of result %d is %v, want %v", name, r, i, k, got, want[k])
								}
							}
						}
						require.Equal(t, largest, top[r], "%s: row %d, largest", name, r)
						require.InDelta(t, sum, sums[r], 1e-5*(1+sum), "%s: row %d, sum", name, r)
					}
				}
			}
		}
	}
}
