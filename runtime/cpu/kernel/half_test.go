package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir/half"
)

// same reports equal bits, or two NaNs.
func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// TestHalf: every instruction set converts as package half does: all 65,536 values, and floats of
// any bits including ties, at any length, and it writes nothing beyond.
func TestHalf(t *testing.T) {
	formats := []struct {
		f    Format
		to   func(float32) uint16
		from func(uint16) float32
	}{{BF16, half.BF16, half.FromBF16}, {F16, half.F16, half.FromF16}}
	rnd := random(t, 73)
	for _, set := range instructionSets() {
		p := newPool(3, set)
		defer p.Close()
		for _, c := range formats {
			all := make([]uint16, 1<<16)
			for i := range all {
				all[i] = uint16(i)
			}
			wide := make([]float32, len(all))
			Widen(p, c.f, wide, all)
			for i, x := range wide {
				if want := c.from(all[i]); !same(want, x) {
					t.Fatalf("%s %d: %#04x is %v, want %v", set.name, c.f, i, x, want)
				}
			}
			var src []float32
			for _, x := range wide {
				bits := math.Float32bits(x)
				for _, d := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xfff, 0x1000, 0x1001, 0x1800, 0xffff} {
					src = append(src, math.Float32frombits(bits+d))
				}
			}
			for _, x := range rnd.floats(1 << 16) {
				src = append(src, x, x*1e-6, x*1e5, math.Float32frombits(math.Float32bits(x)*2654435761))
			}
			narrow := make([]uint16, len(src))
			Narrow(p, c.f, narrow, src)
			for i, h := range narrow {
				if want := c.to(src[i]); !same(c.from(want), c.from(h)) {
					t.Fatalf("%s %d: %v (%#08x) rounds to %#04x, want %#04x", set.name, c.f, src[i], math.Float32bits(src[i]), h, want)
				}
			}
			for n := range 40 {
				got := make([]uint16, n+2)
				set.narrow[c.f](src[:n], got[:n])
				require.Equal(t, narrow[:n], got[:n])
				require.Zero(t, got[n])
				back := make([]float32, n+2)
				set.widen[c.f](back[:n], all[0x3f00:0x3f00+n])
				require.Equal(t, wide[0x3f00:0x3f00+n], back[:n])
				require.Zero(t, back[n])
			}
		}
	}
}
