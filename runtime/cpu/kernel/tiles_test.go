package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// A number is the sum of its parts, and the parts lie where the tiles want them.
func TestSplitTilesIsExact(t *testing.T) {
	rnd := random(t, 81)
	for _, set := range instructionSets() {
		if set.splitTiles == nil {
			continue
		}
		const steps = 2
		x := rnd.floats(tileSide * steps * tileDepth)
		for i := range x {
			x[i] *= float32(math.Exp2(float64(rnd.IntN(200) - 100)))
		}
		dst := make([]float32, steps*tileFloat)
		set.splitTiles(dst, x, steps*tileDepth, tileSide, tileDepth, steps)
		for i := range tileSide {
			for k := range steps * tileDepth {
				var sum float64
				for part := range 3 {
					word := math.Float32bits(dst[k/tileDepth*tileFloat+part*2*tileSide*tileSide+i*tileSide+k%tileSide])
					if k%tileDepth < tileSide {
						word <<= 16
					}
					sum += float64(math.Float32frombits(word & 0xffff0000))
				}
				require.Equal(t, float64(x[i*steps*tileDepth+k]), sum, "row %d, term %d", i, k)
			}
		}
	}
}

// Products on tiles are no further from the truth than those of multiply-adds in float32, of numbers of either sign, of one
// sign, where errors of the same sign would add up, and of very different sizes.
func TestTilesAreAsExactAsMultiplyAdds(t *testing.T) {
	rnd := random(t, 82)
	const m, n = 64, 64
	for _, k := range []int{32, 384, 3000} {
		for name, change := range map[string]func(x []float32, i int){
			"normal":   func([]float32, int) {},
			"positive": func(x []float32, i int) { x[i] = float32(math.Abs(float64(x[i]))) },
			"spread":   func(x []float32, i int) { x[i] *= float32(math.Exp2(float64(i*7%41 - 20))) },
		} {
			a, b := rnd.floats(m*k), rnd.floats(n*k)
			for i := range a {
				change(a, i)
			}
			for i := range b {
				change(b, i)
			}
			at := func(i, q int) float32 { return a[i*k+q] }
			bt := func(q, j int) float32 { return b[j*k+q] }
			want := matMulReference(m, n, k, at, bt, nil, false)
			var errors []float64
			for _, set := range instructionSets() {
				if set.name == "portable" {
					continue
				}
				got := make([]float32, m*n)
				p := newPool(1, set)
				MatMulNT(p, m, n, k, a, b, got, false)
				p.Close()
				var sum float64
				for i := range got {
					sum += (float64(got[i]) - want[i]) * (float64(got[i]) - want[i])
				}
				errors = append(errors, math.Sqrt(sum/m/n))
				t.Logf("k %d, %s, %s: root mean square error %.3g", k, name, set.name, errors[len(errors)-1])
				require.LessOrEqual(t, errors[len(errors)-1], 1.05*errors[0], "k %d, %s, %s against %s", k, name, set.name, "avx2")
			}
		}
	}
}

// A NaN in an operand reaches the results that depend on it and no other, and an infinity is not lost.
func TestMatMulCarriesNaN(t *testing.T) {
	for _, set := range instructionSets() {
		const m, n, k = 40, 40, 70
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
			a, b, c := make([]float32, m*k), make([]float32, k*n), make([]float32, m*n)
			for i := range a {
				a[i] = 1
			}
			for i := range b {
				b[i] = 1
			}
			a[33*k+65] = bad
			p := newPool(1, set)
			MatMulNN(p, m, n, k, a, b, c, false)
			p.Close()
			for i, v := range c {
				finite := !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0)
				require.Equal(t, i/n != 33, finite, "%s: result %d is %v", set.name, i, v)
			}
		}
	}
}
