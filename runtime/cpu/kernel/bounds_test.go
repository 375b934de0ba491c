package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// allMagnitudes are numbers of every exponent and both signs: every 16381st float32 from zero
// through the denormals to the largest, infinities and NaN, and the two with the largest error of
// GELU by erf among those from 2^-10 to 2.
func allMagnitudes() []float32 {
	var x []float32
	for bits := uint32(0); bits < 0x7f800000; bits += 16381 {
		v := math.Float32frombits(bits)
		x = append(x, v, -v)
	}
	inf := float32(math.Inf(1))
	x = append(x, -0.13856266, 0.0037184467)
	return append(x, math.MaxFloat32, -math.MaxFloat32, inf, -inf, float32(math.NaN()))
}

// ulps returns the distance of got from want, in units in the last place of want as a float32.
func ulps(got float32, want float64) float64 {
	_, exponent := math.Frexp(want)
	return math.Abs(float64(got)-want) / math.Ldexp(1, exponent-24)
}

// The bounds that math_generic.go states, over all magnitudes and for every instruction set.
func TestMathBounds(t *testing.T) {
	x := allMagnitudes()
	y, ones := make([]float32, len(x)), make([]float32, len(x))
	for i := range ones {
		ones[i] = 1
	}
	logistic := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	twice := func(x float64) float64 { return 2 * math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x) }
	for _, f := range []struct {
		name  string
		run   func(set isa)
		want  func(x float64) float64
		bound func(x float64) float64 // in ulp
	}{
		{"exp", func(set isa) { set.expMul(y, x, 0, 1) }, math.Exp, func(float64) float64 { return 2 }},
		{"GELU by erf", func(set isa) { set.gelu(y, x) }, func(x float64) float64 { return x * 0.5 * math.Erfc(-x/math.Sqrt2) },
			func(x float64) float64 { return 9 + x*min(x, 0)/2 }},
		{"GELU by tanh", func(set isa) { set.geluTanh(y, x) }, func(x float64) float64 { return x * logistic(twice(x)) },
			func(x float64) float64 { return 3 - 3*min(twice(x), 0) }},
		{"SwiGLU", func(set isa) { set.swiglu(y, x, ones) }, func(x float64) float64 { return x * logistic(x) },
			func(x float64) float64 { return 3 - min(x, 0) }},
	} {
		want := make([]float64, len(x))
		for i, v := range x {
			want[i] = f.want(float64(v))
		}
		for _, set := range instructionSets() {
			f.run(set)
			var most float64 // as a share of the bound
			var at float32
			for i, v := range x {
				switch {
				case math.IsNaN(want[i]) || math.IsInf(float64(v), -1):
					// Zero times infinity may be zero or NaN.
					require.True(t, y[i] != y[i] || y[i] == 0 && math.IsInf(float64(v), -1), "%s: %s(%v) is %v", set.name, f.name, v, y[i])
				case want[i] > math.MaxFloat32:
					require.True(t, math.IsInf(float64(y[i]), 1), "%s: %s(%v) is %v", set.name, f.name, v, y[i])
				case math.Abs(want[i]) < 0x1p-121 && v < -1: // exponentials below the normal numbers, or their inverses beyond the largest
					require.InDelta(t, want[i], y[i], 0x1p-121, "%s: %s(%v)", set.name, f.name, v)
				case math.Abs(want[i]) < 0x1p-126: // half of a denormal's last place
					require.InDelta(t, want[i], y[i], 0x1p-147, "%s: %s(%v)", set.name, f.name, v)
				default:
					if share := ulps(y[i], want[i]) / f.bound(float64(v)); !(share <= most) {
						most, at = share, v
					}
				}
			}
			t.Logf("%s: %s: %.2f of the bound of %.2f ulp at %v", set.name, f.name, most, f.bound(float64(at)), at)
			require.LessOrEqual(t, most, 1.0, "%s: %s(%v)", set.name, f.name, at)
		}
	}
}

// Derivatives hold for every float32 too: at most 2e-6 off, and exactly zero or one where they are
// so to the last bit, however large the number.
func TestDerivativeBounds(t *testing.T) {
	x := allMagnitudes()
	ones, got, other := make([]float32, len(x)), make([]float32, len(x)), make([]float32, len(x))
	for i := range ones {
		ones[i] = 1
	}
	logistic := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for _, f := range []struct {
		name string
		run  func(set isa)
		want func(x float64) float64 // between -1e2 and 1e2
	}{
		{"GELU by erf", func(set isa) { set.geluGrad(got, ones, x) }, func(x float64) float64 {
			return 0.5*math.Erfc(-x/math.Sqrt2) + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
		}},
		{"GELU by tanh", func(set isa) { set.geluTanhGrad(got, ones, x) }, func(x float64) float64 {
			u := math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x)
			return logistic(2*u) + x*logistic(2*u)*logistic(-2*u)*2*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x)
		}},
		{"SwiGLU, gate", func(set isa) { set.swigluGrad(got, other, ones, x, ones) }, func(x float64) float64 {
			return logistic(x) + x*logistic(x)*logistic(-x)
		}},
	} {
		for _, set := range instructionSets() {
			f.run(set)
			for i, v := range x {
				want := f.want(max(-1e2, min(float64(v), 1e2))) // beyond, the same
				if math.IsInf(float64(v), 0) && got[i] != got[i] {
					continue // zero times infinity
				}
				if diff := math.Abs(float64(got[i]) - want); !(diff <= 2e-6) && !(v != v && got[i] != got[i]) {
					t.Fatalf("%s: %s has derivative %v at %v, want %v", set.name, f.name, got[i], v, want)
				}
			}
		}
	}
	for _, set := range instructionSets() {
		set.swigluGrad(got, other, ones, x, ones)
		for i, v := range x {
			if v < -80 && !math.IsInf(float64(v), 0) {
				require.InDelta(t, 0, other[i], 1e-32, "%s: SwiGLU, up, at %v", set.name, v)
			}
		}
	}
}
