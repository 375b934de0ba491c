package kernel

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
)

// scaled returns floats of all magnitudes that fixed point with 50 fraction bits distinguishes,
// including ties.
func (s *source) scaled(n int) []float32 {
	x := s.floats(n)
	for i := range x {
		x[i] = float32(math.Ldexp(float64(x[i]), s.IntN(66)-56))
		if s.IntN(8) == 0 {
			x[i] = float32(math.Ldexp(float64(2*s.IntN(100)+1), -51)) // half a unit
		}
	}
	return x
}

// TestAddAsFixed compares every instruction set with exact arithmetic, at every length of tail.
func TestAddAsFixed(t *testing.T) {
	const frac = 50
	rnd := random(t, 81)
	for _, set := range instructionSets() {
		for _, n := range sizes() {
			x, dst, want := rnd.scaled(n), make([]int64, n+2), make([]int64, n+2)
			for i := range dst {
				dst[i] = rnd.Int64() >> 2
			}
			copy(want, dst)
			for i, v := range x {
				want[i+1] += round(new(big.Float).SetMantExp(big.NewFloat(float64(v)), frac))
			}
			p := newPool(1+n%3, set)
			require.True(t, AddAsFixed(p, dst[1:n+1], x, frac), "%s n=%d", set.name, n)
			p.Close()
			require.Equal(t, want, dst, "%s n=%d", set.name, n)
		}
		for _, bad := range []struct {
			x   float32
			dst int64
		}{
			{float32(math.NaN()), 0}, {float32(math.Inf(1)), 0}, {float32(math.Inf(-1)), 0}, {0x1p13, 0}, {-0x1p13, 0}, {math.MaxFloat32, 0},
			{0x1p12, 1 << 62}, {-0x1p12 - 1, -1 << 62}, {0x1p-50, math.MaxInt64}, {-0x1p-50, math.MinInt64},
		} {
			for at := range 19 {
				x, dst := make([]float32, 19), make([]int64, 19)
				x[at], dst[at] = bad.x, bad.dst
				require.False(t, AddAsFixed(newPool(1, set), dst, x, frac), "%s %v at %d", set.name, bad, at)
				dst[at], x[at] = 1, math.Nextafter32(0x1p13, 0)
				require.True(t, AddAsFixed(newPool(1, set), dst, x, frac), "%s at %d", set.name, at)
			}
		}
	}
}

// round rounds to the nearest integer, ties to even.
func round(x *big.Float) int64 {
	whole, _ := x.Int64()
	rest, _ := new(big.Float).Sub(x, new(big.Float).SetInt64(whole)).Float64()
	return whole + int64(math.RoundToEven(rest+float64(whole&1))) - whole&1
}

// TestFixedSquares compares every instruction set with exact arithmetic, whatever the cut.
func TestFixedSquares(t *testing.T) {
	const frac = 32
	rnd := random(t, 82)
	for _, n := range sizes() {
		x := rnd.scaled(n)
		if n%2 == 0 {
			for i := range x {
				x[i] /= 1 << 8 // below what makes the assembly give up
			}
		}
		var coarse, fine int64
		for _, v := range x {
			square := new(big.Float).SetPrec(100).SetMantExp(new(big.Float).Mul(big.NewFloat(float64(v)), big.NewFloat(float64(v))), frac)
			whole := round(square)
			coarse += whole
			fine += round(new(big.Float).SetMantExp(new(big.Float).Sub(square, new(big.Float).SetInt64(whole)), frac))
		}
		for _, set := range instructionSets() {
			p := newPool(1+n%3, set)
			gotCoarse, gotFine, ok := FixedSquares(p, x, frac)
			require.True(t, ok)
			require.Equal(t, [2]int64{coarse, fine}, [2]int64{gotCoarse, gotFine}, "%s n=%d", set.name, n)
			cut := n / 3
			a, b, _ := FixedSquares(p, x[:cut], frac)
			c, d, _ := FixedSquares(p, x[cut:], frac)
			require.Equal(t, [2]int64{coarse, fine}, [2]int64{a + c, b + d}, "%s n=%d, in two parts", set.name, n)
			p.Close()
		}
	}
	for _, set := range instructionSets() {
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), 46341, math.MaxFloat32} {
			x := make([]float32, 19)
			x[17] = bad
			_, _, ok := FixedSquares(newPool(1, set), x, frac)
			require.False(t, ok, "%s %v", set.name, bad)
		}
		coarse, fine, ok := FixedSquares(newPool(1, set), []float32{46340}, frac)
		require.Equal(t, []any{int64(46340 * 46340 << frac), int64(0), true}, []any{coarse, fine, ok}, "%s: the largest integer", set.name)
		x := make([]float32, 4*sumChunk)
		for i := range x {
			x[i] = 300
		}
		_, _, ok = FixedSquares(newPool(1, set), x, frac)
		require.False(t, ok, "the sum")
	}
}

// TestFromFixed rounds once, also in place.
func TestFromFixed(t *testing.T) {
	rnd := random(t, 83)
	for _, n := range sizes() {
		x, want := make([]int64, n), make([]float32, n)
		for i := range x {
			x[i] = rnd.Int64()>>rnd.IntN(63) - rnd.Int64()>>rnd.IntN(63)>>1
			want[i], _ = new(big.Float).SetMantExp(new(big.Float).SetInt64(x[i]), -50).Float32()
		}
		y := make([]float32, n)
		FromFixed(y, x, 50)
		require.Equal(t, want, y)
	}
}

// TestFixedLimits: the least int64 is a sum like any other, and slices of different lengths are a bug.
func TestFixedLimits(t *testing.T) {
	for _, set := range instructionSets() {
		p := newPool(1, set)
		dst := []int64{math.MinInt64 / 2}
		require.True(t, AddAsFixed(p, dst, []float32{-0x1p12}, 50), set.name)
		require.Equal(t, []int64{math.MinInt64}, dst, set.name)
		dst = []int64{math.MinInt64 / 2}
		require.True(t, AddFixed(p, dst, dst))
		require.Equal(t, []int64{math.MinInt64}, dst)
		require.False(t, AddFixed(p, dst, []int64{-1}))
	}
	require.PanicsWithValue(t, "BUG: kernel.AddFixed: src has 3 elements, want 2", func() { AddFixed(nil, make([]int64, 2), make([]int64, 3)) })
	require.PanicsWithValue(t, "BUG: kernel.FromFixed: x has 3 elements, want 2", func() { FromFixed(make([]float32, 2), make([]int64, 3), 50) })
}
