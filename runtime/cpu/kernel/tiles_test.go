package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// withTiles returns the instruction sets, at least one of them with tiles, emulated in Go if
// necessary, so that the code around tiles is tested on any processor.
func withTiles() []isa {
	sets := instructionSets()
	if set := sets[len(sets)-1]; set.tileProducts == nil {
		set.name, set.tileProducts, set.splitTiles = "tiles in Go", tileProductsGeneric, splitTilesGeneric
		sets = append(sets, set)
	}
	return sets
}

// tileProductsGeneric multiplies numbers that it joins from their parts.
func tileProductsGeneric(panels, steps int, a, b []float32, gap int, c []float32, ldc int, acc bool, _ []float32, _, _, _ int) {
	const side = 2 * tileSide
	dot := bestISA().dot
	var left, right [side][side]float32 // numbers by row and term, and by column and term
	for panel := range panels {
		for i := range side {
			if !acc {
				clear(c[i*ldc+panel*side:][:side])
			}
		}
		for step := range steps {
			joinTiles(&left, a[step*tileFloat:], true)
			joinTiles(&right, b[step*tileFloat:], false)
			for i := range side {
				for j := range side {
					c[i*ldc+panel*side+j] += dot(left[i][:], right[j][:])
				}
			}
		}
		if panel < panels-1 {
			b = b[steps*tileFloat+gap:]
		}
	}
}

// joinTiles sets x to the numbers of a step, by row of a left-hand matrix or column of a right-hand
// one, and by term.
func joinTiles(x *[2 * tileSide][2 * tileSide]float32, tiles []float32, left bool) {
	const size = tileSide * tileSide
	for i := range tiles[:2*size] {
		var pair [2]float32
		for part := range 3 {
			word := math.Float32bits(tiles[2*part*size+i])
			pair[0] += math.Float32frombits(word << 16)
			pair[1] += math.Float32frombits(word & 0xffff0000)
		}
		half, row, word := i/size*tileSide, i%size/tileSide, i%tileSide
		if !left {
			row, word = word, row
		}
		x[half+row][word], x[half+row][word+tileSide] = pair[0], pair[1]
	}
}

func splitTilesGeneric(dst, src []float32, ld, pair, step, steps int) {
	for s := range steps {
		for i := range tileSide {
			for j := range tileSide {
				at := s*step + i*ld + j
				low, high := src[at], src[at+pair]
				for part := range 3 {
					l, h := math.Float32bits(low)&0xffff0000, math.Float32bits(high)&0xffff0000
					dst[s*tileFloat+(2*part*tileSide+i)*tileSide+j] = math.Float32frombits(l>>16 | h)
					low, high = low-math.Float32frombits(l), high-math.Float32frombits(h)
				}
			}
		}
	}
}

// A number is the sum of its parts, and the parts lie where tiles need them. Exception: numbers
// below 2^-126 count as zero, and must not affect the number beside them.
func TestSplitTilesIsExact(t *testing.T) {
	rnd := random(t, 81)
	for _, set := range instructionSets() {
		if set.splitTiles == nil {
			continue
		}
		for _, least := range []int{-100, -149} { // exponents, and the 100 that follow
			const steps = 2
			x := rnd.floats(tileSide * steps * tileDepth)
			for i := range x {
				x[i] *= float32(math.Exp2(float64(least + rnd.IntN(100))))
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
						if v := math.Float32frombits(word & 0xffff0000); math.Abs(float64(v)) >= 0x1p-126 {
							sum += float64(v)
						}
					}
					want, lost := float64(x[i*steps*tileDepth+k]), 0.0
					if math.Abs(want) < 0x1p-103 {
						lost = 0x1p-125
					}
					require.InDelta(t, want, sum, lost, "row %d, term %d", i, k)
				}
			}
		}
	}
}

// Products on tiles are no less accurate than a chain of multiply-adds in float32: for numbers of
// both signs, of one sign (where errors of one sign would add up), and, within a tenth, of very
// different sizes (where few terms make the sum).
func TestTilesAreAsExactAsMultiplyAdds(t *testing.T) {
	rnd := random(t, 82)
	const m, n = 64, 64
	sets := instructionSets()
	if len(sets) == 1 {
		t.Skip("plain Go rounds every product")
	}
	p := newPool(1, sets[len(sets)-1])
	defer p.Close()
	for _, k := range []int{32, 384, 3000} {
		for _, numbers := range []struct {
			name   string
			change func(x []float32, i int)
			limit  float64
		}{
			{"either sign", func([]float32, int) {}, 1},
			{"one sign", func(x []float32, i int) { x[i] = float32(math.Abs(float64(x[i]))) }, 1},
			{"spread", func(x []float32, i int) { x[i] *= float32(math.Exp2(float64(i*7%41 - 20))) }, 1.1},
		} {
			a, b := rnd.floats(m*k), rnd.floats(n*k)
			for i := range a {
				numbers.change(a, i)
			}
			for i := range b {
				numbers.change(b, i)
			}
			got := make([]float32, m*n)
			MatMulNT(p, m, n, k, a, b, got, false)
			var ours, chains float64 // squared errors
			for i := range m {
				for j := range n {
					var exact float64
					var chain float32
					for q := range k {
						term := float64(a[i*k+q]) * float64(b[j*k+q])
						exact += term
						chain = float32(float64(chain) + term)
					}
					ours += math.Pow(float64(got[i*n+j])-exact, 2)
					chains += math.Pow(float64(chain)-exact, 2)
				}
			}
			t.Logf("%s, %d terms, %s: root mean square error %.3g of a chain's", p.isa.name, k, numbers.name, math.Sqrt(ours/chains))
			require.LessOrEqual(t, math.Sqrt(ours), numbers.limit*math.Sqrt(chains), "%d terms, %s", k, numbers.name)
		}
	}
}

// A NaN in an operand reaches exactly the results that depend on it, and an infinity is not lost.
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

// Cores divide the columns of a product of few rows, so that each packs its part of the right-hand
// matrix. They divide the rows of a product of many, which are then in their caches. One core has
// no more blocks than its cache needs.
func TestTileBlocks(t *testing.T) {
	for _, c := range []struct {
		threads, m, n, k, parts int
		mc, nc                  int
	}{
		{1, 64, 384, 384, 1, 64, 384},
		{1, 1024, 1536, 384, 1, 1024, 512}, // 21 panels of 384 terms fit
		{2, 64, 384, 384, 1, 32, 192},
		{2, 512, 384, 384, 1, 32, 384},
		{2, 128, 1536, 384, 1, 32, 384}, // four blocks: of three, both cores would pack the middle one
		{2, 1024, 1536, 384, 1, 32, 512},
		{2, 64, 384, 384, 2, 32, 384}, // each core has half of the terms
		{2, 64, 20, 384, 1, 32, 32},   // one panel
		{4, 32, 1536, 384, 1, 32, 384},
	} {
		p := newPool(c.threads, portable())
		mc, nc := p.tileBlocks(c.m, c.n, c.k, c.parts)
		p.Close()
		require.Equal(t, [2]int{c.mc, c.nc}, [2]int{mc, nc}, "%+v", c)
	}
}
