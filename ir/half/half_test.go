package half_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir/half"
)

type format struct {
	name      string
	exp, frac int // bits
	to        func(float32) uint16
	from      func(uint16) float32
	round     func(float64) float64
}

func formats() []format {
	return []format{
		{"bf16", 8, 7, half.BF16, half.FromBF16, half.RoundBF16},
		{"f16", 5, 10, half.F16, half.FromF16, half.RoundF16},
	}
}

// value is the definition of the format: IEEE 754-2019, section 3.4.
func (f format) value(h uint16) float64 {
	sign := 1.0
	if h>>15 == 1 {
		sign = -1
	}
	bias := 1<<(f.exp-1) - 1
	e, m := int(h>>f.frac)&(1<<f.exp-1), float64(h&(1<<f.frac-1))
	switch e {
	case 0:
		return sign * math.Ldexp(m, 1-bias-f.frac)
	case 1<<f.exp - 1:
		if m != 0 {
			return math.NaN()
		}
		return sign * math.Inf(1)
	}
	return sign * math.Ldexp(m+math.Ldexp(1, f.frac), e-bias-f.frac)
}

// TestEveryValue: all 65,536 are what the definition says, and come back.
func TestEveryValue(t *testing.T) {
	for _, f := range formats() {
		for i := range 1 << 16 {
			h := uint16(i)
			want, got := f.value(h), f.from(h)
			if math.IsNaN(want) {
				require.True(t, math.IsNaN(float64(got)), "%s %#04x", f.name, h)
				require.True(t, math.IsNaN(float64(f.from(f.to(got)))), "%s %#04x", f.name, h)
				continue
			}
			require.Equal(t, math.Float64bits(want), math.Float64bits(float64(got)), "%s %#04x", f.name, h)
			require.Equal(t, h, f.to(got), "%s %#04x", f.name, h)
			require.Equal(t, want, f.round(want), "%s %#04x", f.name, h)
		}
	}
}

// TestRounding: between two neighbours the nearer one is taken, and of two
// equally near the even one, from every interval of the format.
func TestRounding(t *testing.T) {
	for _, f := range formats() {
		top := uint16(1<<f.exp-1) << f.frac // infinity
		for h := uint16(0); h < top; h++ {
			low, high := f.value(h), f.value(h+1)
			if h+1 == top {
				high = 2*low - f.value(h-1) // where the next one would be
			}
			mid, even := (low+high)/2, h+h&1
			for _, sign := range []float64{1, -1} {
				bit := uint16(0)
				if sign < 0 {
					bit = 0x8000
				}
				for _, c := range []struct {
					x    float64
					want uint16
				}{
					{mid, even},
					{float64(math.Nextafter32(float32(mid), 0)), h},
					{float64(math.Nextafter32(float32(mid), float32(math.Inf(1)))), h + 1},
				} {
					require.Equal(t, c.want|bit, f.to(float32(sign*c.x)), "%s: %v between %v and %v", f.name, sign*c.x, low, high)
					require.Equal(t, f.value(c.want|bit), f.round(sign*c.x), "%s: %v", f.name, sign*c.x)
				}
			}
		}
	}
}

// TestRandomFloats: any bits of a float32 round as the definition does.
func TestRandomFloats(t *testing.T) {
	const seed = 37
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, f := range formats() {
		for range 1 << 18 {
			x := math.Float32frombits(rng.Uint32())
			got, want := float64(f.from(f.to(x))), f.round(float64(x))
			if math.IsNaN(want) && math.IsNaN(got) {
				continue
			}
			require.Equal(t, math.Float64bits(want), math.Float64bits(got), "%s: %v (seed %d)", f.name, x, seed)
		}
		require.True(t, math.IsNaN(float64(f.from(f.to(math.Float32frombits(0x7f800001))))), "a NaN of low bits alone")
	}
}
