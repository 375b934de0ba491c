package kernel

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRMSNorm(t *testing.T) {
	rnd := random(t, 61)
	const eps = 1e-5
	for i, s := range [][2]int{{0, 8}, {1, 1}, {3, 7}, {33, 65}, {70, 128}, {7, 384}, {100, 20}, {5, 100}} {
		rows, cols := s[0], s[1]
		x, w, dy, dw := rnd.floats(rows*cols), rnd.floats(cols), rnd.floats(rows*cols), rnd.floats(cols)
		for j := range x {
			x[j] = 2*x[j] + 3 // a mean that must not be subtracted
		}
		acc := i%2 == 0
		y, dx := make([]float64, rows*cols), make([]float64, rows*cols)
		rstd, wantDW := make([]float64, rows), make([]float64, cols)
		if acc {
			wantDW = wide(dw)
		}
		for r := range rows {
			square, inner := 0.0, 0.0
			for _, v := range x[r*cols : (r+1)*cols] {
				square += float64(v) * float64(v) / float64(cols)
			}
			rstd[r] = 1 / math.Sqrt(square+eps)
			for j := range cols {
				at := r*cols + j
				hat := float64(x[at]) * rstd[r]
				y[at] = hat * float64(w[j])
				wantDW[j] += float64(dy[at]) * hat
				inner += float64(dy[at]) * float64(w[j]) * hat / float64(cols)
			}
			for j := range cols {
				at := r*cols + j
				dx[at] = rstd[r] * (float64(dy[at])*float64(w[j]) - float64(x[at])*rstd[r]*inner)
			}
		}
		check(t, fmt.Sprint("RMSNorm ", s), 1e-5, [][]float64{y, rstd}, func(p *Pool) [][]float32 {
			out, scale := make([]float32, rows*cols), make([]float32, rows)
			RMSNorm(p, rows, cols, out, scale, x, w, eps)
			return [][]float32{out, scale}
		})
		check(t, fmt.Sprint("RMSNormGrad ", s), 1e-5, [][]float64{dx, wantDW}, func(p *Pool) [][]float32 {
			dx, dw, scale := clone(dy), clone(dw), make([]float32, rows)
			RMSNorm(p, rows, cols, make([]float32, rows*cols), scale, x, w, eps)
			RMSNormGrad(p, rows, cols, dx, dw, dx, x, w, scale, acc)
			return [][]float32{dx, dw}
		})
	}
}

// silu returns x times its logistic function, and the derivative.
func silu(x float64) (y, slope float64) {
	s := 1 / (1 + math.Exp(-x))
	return x * s, s * (1 + x*(1-s))
}

func TestSwiGLU(t *testing.T) {
	rnd := random(t, 62)
	for _, s := range [][2]int{{0, 8}, {1, 1}, {3, 7}, {33, 65}, {70, 128}, {7, 384}, {100, 20}} {
		rows, cols := s[0], s[1]
		x, dy := rnd.floats(2*rows*cols), rnd.floats(rows*cols)
		Scale(nil, x, x, 3)
		y, dx := make([]float64, rows*cols), make([]float64, 2*rows*cols)
		for i := range y {
			gate := i/cols*2*cols + i%cols
			act, slope := silu(float64(x[gate]))
			y[i] = act * float64(x[gate+cols])
			dx[gate] = float64(dy[i]) * float64(x[gate+cols]) * slope
			dx[gate+cols] = float64(dy[i]) * act
		}
		check(t, fmt.Sprint("SwiGLU ", s), 1e-6, [][]float64{y}, func(p *Pool) [][]float32 {
			y := make([]float32, rows*cols)
			SwiGLU(p, rows, cols, y, x)
			return [][]float32{y}
		})
		check(t, fmt.Sprint("SwiGLUGrad ", s), 2e-6, [][]float64{dx}, func(p *Pool) [][]float32 {
			dx := clone(x)
			SwiGLUGrad(p, rows, cols, dx, dx, dy)
			return [][]float32{dx}
		})
	}
}

// The accuracy that SwiGLU and its gradient state, over a fine grid.
func TestSwiGLUAccuracy(t *testing.T) {
	var x []float32
	for v := -100.0; v <= 100; v += 0.00073 {
		x = append(x, float32(v))
	}
	ones, y := make([]float32, len(x)), make([]float32, len(x))
	dgate, dup := make([]float32, len(x)), make([]float32, len(x))
	for i := range ones {
		ones[i] = 1
	}
	for _, set := range instructionSets() {
		set.swiglu(y, x, ones)
		set.swigluGrad(dgate, dup, ones, x, ones)
		var off, offUp, offGate float64
		for i, v := range x {
			want, slope := silu(float64(v))
			offGate = max(offGate, math.Abs(float64(dgate[i])-slope))
			if v < -87 {
				require.Less(t, math.Abs(float64(y[i])-want), 1e-35, "%s: %v", set.name, v)
				require.Less(t, math.Abs(float64(dup[i])-want), 1e-32, "%s: %v", set.name, v)
				continue
			}
			ulp := float64(math.Nextafter32(float32(math.Abs(want)), math.MaxFloat32) - float32(math.Abs(want)))
			off = max(off, math.Abs(float64(y[i])-want)/ulp)
			if v >= -80 {
				offUp = max(offUp, math.Abs(float64(dup[i])-want)/ulp)
			}
		}
		t.Logf("%s: SwiGLU is off by at most %.2f ulp, its gradient of up by %.2f ulp, of gate by %.2g", set.name, off, offUp, offGate)
		require.LessOrEqual(t, off, 5.0, set.name)
		require.LessOrEqual(t, offUp, 5.0, set.name)
		require.LessOrEqual(t, offGate, 1e-6, set.name)

		nan, inf := float32(math.NaN()), float32(math.Inf(1))
		a, b := make([]float32, 9), make([]float32, 9)
		in := []float32{nan, inf, 1, 1, 1, 1, 1, 1, nan}
		set.swiglu(a, in, ones[:9])
		require.True(t, math.IsNaN(float64(a[0])) && a[1] == inf && math.IsNaN(float64(a[8])), "%s: %v", set.name, a)
		set.swigluGrad(a, b, ones[:9], in, ones[:9])
		require.True(t, math.IsNaN(float64(a[0])) && math.IsNaN(float64(b[0])) && math.IsNaN(float64(b[8])), "%s: %v %v", set.name, a, b)
	}
}

// The inverse rotation undoes rotation, positions need not be in order, and values are unchanged.
func TestRoPE(t *testing.T) {
	rnd := random(t, 63)
	for _, s := range []AttentionShape{{B: 1, T: 1, H: 1, D: 2}, {B: 3, T: 7, H: 5, D: 6}, {B: 2, T: 33, H: 3, D: 64}, {B: 2, T: 5, H: 2, D: 34}} {
		width := s.H * s.D
		x, positions := rnd.floats(3*s.B*s.T*width), rnd.ids(s.T, 0, 5000)
		frequency := func(i int) float64 { return math.Pow(10000, -2*float64(i)/float64(s.D)) }
		want, bound := wide(x), 0.0
		for i := range want {
			d, part, at := i%s.D, i/width%3, i/(3*width)%s.T
			if part == 2 {
				continue
			}
			pair, sign := i+s.D/2, -1.0
			if d >= s.D/2 {
				pair, sign, d = i-s.D/2, 1, d-s.D/2
			}
			sin, cos := math.Sincos(float64(positions[at]) * frequency(d))
			want[i] = float64(x[i])*cos + sign*float64(x[pair])*sin
			bound = max(bound, 1.5*0x1p-23*(math.Abs(float64(x[i]))+math.Abs(float64(x[pair]))))
		}
		check(t, fmt.Sprint("RoPE ", s), bound, [][]float64{want}, func(p *Pool) [][]float32 {
			y := clone(x)
			RoPE(p, y, y, positions, s, frequency, false)
			return [][]float32{y}
		})
		check(t, fmt.Sprint("RoPE inverse ", s), 2e-6, [][]float64{wide(x)}, func(p *Pool) [][]float32 {
			y, z := make([]float32, len(x)), make([]float32, len(x))
			RoPE(p, y, x, positions, s, frequency, false)
			RoPE(p, z, y, positions, s, frequency, true)
			return [][]float32{z}
		})
	}
}
