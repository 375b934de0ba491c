package kernel

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func mapReference(n int, f func(i int) float64) [][]float64 {
	y := make([]float64, n)
	for i := range y {
		y[i] = f(i)
	}
	return [][]float64{y}
}

func TestElementwise(t *testing.T) {
	rnd := random(t, 21)
	for _, n := range sizes() {
		a, b := rnd.floats(n), rnd.floats(n)
		in := func(f func(p *Pool, dst []float32)) func(p *Pool) [][]float32 {
			return func(p *Pool) [][]float32 {
				dst := clone(a)
				f(p, dst)
				return [][]float32{dst}
			}
		}
		const tol = 1e-6
		name := fmt.Sprint("n=", n)
		sum := mapReference(n, func(i int) float64 { return float64(a[i]) + float64(b[i]) })
		check(t, "Add "+name, tol, sum, in(func(p *Pool, dst []float32) { Add(p, dst, a, b) }))
		check(t, "Add in place "+name, tol, sum, in(func(p *Pool, dst []float32) { Add(p, dst, dst, b) }))
		check(t, "AddInto "+name, tol, sum, in(func(p *Pool, dst []float32) { AddInto(p, dst, b) }))
		check(t, "MaxInto "+name, tol, mapReference(n, func(i int) float64 { return float64(max(a[i], b[i])) }),
			in(func(p *Pool, dst []float32) { MaxInto(p, dst, b) }))
		check(t, "Copy "+name, 0, [][]float64{wide(b)}, in(func(p *Pool, dst []float32) { Copy(p, dst, b) }))
		check(t, "Scale "+name, tol, mapReference(n, func(i int) float64 { return 1.7 * float64(b[i]) }),
			in(func(p *Pool, dst []float32) { Scale(p, dst, b, 1.7) }))
	}
}

func TestBiasAndColSum(t *testing.T) {
	rnd := random(t, 22)
	for _, s := range [][2]int{{0, 5}, {1, 1}, {3, 7}, {33, 65}, {130, 64}, {129, 200}, {7, 384}, {300, 129}} {
		rows, cols := s[0], s[1]
		x, b := rnd.floats(rows*cols), rnd.floats(cols)
		name := fmt.Sprint(s)
		check(t, "AddBias "+name, 1e-6, mapReference(rows*cols, func(i int) float64 { return float64(x[i]) + float64(b[i%cols]) }),
			func(p *Pool) [][]float32 {
				dst := make([]float32, rows*cols)
				AddBias(p, rows, cols, dst, x, b)
				return [][]float32{dst}
			})
		for _, acc := range []bool{false, true} {
			check(t, "ColSum "+name, 1e-5, mapReference(cols, func(j int) float64 {
				var s float64
				if acc {
					s = float64(b[j])
				}
				for i := range rows {
					s += float64(x[i*cols+j])
				}
				return s
			}), func(p *Pool) [][]float32 {
				dst := clone(b)
				ColSum(p, rows, cols, dst, x, acc)
				return [][]float32{dst}
			})
		}
	}
}

func TestSums(t *testing.T) {
	rnd := random(t, 23)
	for _, n := range append(sizes(), 100_003) {
		x := rnd.floats(n)
		var sum, squares float64
		for _, v := range x {
			sum += float64(v)
			squares += float64(v) * float64(v)
		}
		check(t, fmt.Sprint("Sum n=", n), 1e-6, [][]float64{{sum}}, func(p *Pool) [][]float32 { return [][]float32{{Sum(p, x)}} })
		check(t, fmt.Sprint("SumSquares n=", n), 1e-7, [][]float64{{squares}}, func(p *Pool) [][]float32 {
			return [][]float32{{float32(SumSquares(p, x))}}
		})
	}
}

func geluReference(x float64, tanh bool) (y, slope float64) {
	if tanh {
		c := math.Sqrt(2 / math.Pi)
		th := math.Tanh(c * (x + 0.044715*x*x*x))
		return 0.5 * x * (1 + th), 0.5*(1+th) + 0.5*x*(1-th*th)*c*(1+3*0.044715*x*x)
	}
	phi := 0.5 * math.Erfc(-x/math.Sqrt2)
	return x * phi, phi + x*math.Exp(-0.5*x*x)/math.Sqrt(2*math.Pi)
}

func TestGELU(t *testing.T) {
	rnd := random(t, 24)
	for _, tanh := range []bool{false, true} {
		for _, n := range sizes() {
			x, dy := rnd.floats(n), rnd.floats(n)
			Scale(nil, x, x, 3)
			name := fmt.Sprint("tanh=", tanh, " n=", n)
			check(t, "GELU "+name, 5e-7, mapReference(n, func(i int) float64 { y, _ := geluReference(float64(x[i]), tanh); return y }),
				func(p *Pool) [][]float32 {
					y := make([]float32, n)
					GELU(p, y, x, tanh)
					return [][]float32{y}
				})
			check(t, "GELUGrad "+name, 2e-6, mapReference(n, func(i int) float64 {
				_, slope := geluReference(float64(x[i]), tanh)
				return float64(dy[i]) * slope
			}), func(p *Pool) [][]float32 {
				dx := clone(dy)
				GELUGrad(p, dx, dx, x, tanh)
				return [][]float32{dx}
			})
		}
	}
}

// The accuracy that the package states, over a fine grid.
func TestMathAccuracy(t *testing.T) {
	var x []float32
	for v := -100.0; v <= 100; v += 0.00073 {
		x = append(x, float32(v))
	}
	y := make([]float32, len(x))
	for _, set := range instructionSets() {
		set.expMul(y, x, 0, 1)
		var worst float64
		for i, v := range x {
			want := math.Exp(float64(v))
			switch {
			case want < 0x1p-125:
				require.Less(t, y[i], float32(0x1p-124), "%s: exp(%v)", set.name, v)
			case want > math.MaxFloat32:
				require.True(t, math.IsInf(float64(y[i]), 1), "%s: exp(%v) = %v", set.name, v, y[i])
			default:
				ulp := float64(math.Nextafter32(float32(want), math.MaxFloat32) - float32(want))
				if float32(want) < math.MaxFloat32 {
					worst = max(worst, math.Abs(float64(y[i])-want)/ulp)
				}
			}
		}
		t.Logf("%s: exp is off by at most %.2f ulp", set.name, worst)
		require.LessOrEqual(t, worst, 2.0, set.name)

		for _, tanh := range []bool{false, true} {
			f, g := set.gelu, set.geluGrad
			if tanh {
				f, g = set.geluTanh, set.geluTanhGrad
			}
			ones := make([]float32, len(x))
			for i := range ones {
				ones[i] = 1
			}
			slopes := make([]float32, len(x))
			f(y, x)
			g(slopes, ones, x)
			var off, offSlope float64
			for i, v := range x {
				want, slope := geluReference(float64(v), tanh)
				if math.Abs(float64(v)) <= 6 {
					off = max(off, math.Abs(float64(y[i])-want))
				}
				require.InDelta(t, want, y[i], 1e-5, "%s: gelu(%v)", set.name, v)
				offSlope = max(offSlope, math.Abs(float64(slopes[i])-slope))
			}
			t.Logf("%s: GELU(tanh=%v) is off by at most %.2g on [-6, 6], its slope by %.2g", set.name, tanh, off, offSlope)
			require.LessOrEqual(t, off, 6e-7, set.name)
			require.LessOrEqual(t, offSlope, 1e-6, set.name)
		}
	}
}

func TestSpecialValues(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, set := range instructionSets() {
		y := make([]float32, 9)
		set.expMul(y, []float32{-inf, inf, nan, 0, 88.7, 89, -87.5, -1000, 1000}, 0, 1)
		require.Equal(t, float32(0), y[0], set.name)
		require.Equal(t, inf, y[1], set.name)
		require.True(t, math.IsNaN(float64(y[2])), set.name)
		require.Equal(t, float32(1), y[3], set.name)
		require.Equal(t, []float32{inf, 0, 0, inf}, y[5:], set.name)

		p := newPool(1, set)
		for at := range 40 { // a NaN anywhere reaches every reduction
			x := make([]float32, 40)
			x[at] = nan
			require.True(t, math.IsNaN(float64(Sum(p, x))), set.name)
			require.True(t, math.IsNaN(SumSquares(p, x)), set.name)
			out := make([]float32, 1)
			RowSumExp(p, 1, 40, out, x, []float32{0})
			require.True(t, math.IsNaN(float64(out[0])), set.name)
		}
	}
}

func TestAdamW(t *testing.T) {
	rnd := random(t, 25)
	for _, n := range sizes() {
		w, m, v, g := rnd.floats(n), rnd.floats(n), rnd.floats(n), rnd.floats(n)
		for i := range v {
			v[i] *= v[i]
		}
		args := AdamWArgs{LR: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, BiasCorrection1: 0.3, BiasCorrection2: 0.2, GradScale: 0.7}
		want := make([][]float64, 3)
		for i := range n {
			gi := float64(g[i]) * float64(args.GradScale)
			mi := args.Beta1*float64(m[i]) + (1-args.Beta1)*gi
			vi := args.Beta2*float64(v[i]) + (1-args.Beta2)*gi*gi
			wi := float64(w[i]) * (1 - float64(args.LR)*float64(args.WeightDecay))
			wi -= float64(args.LR) / float64(args.BiasCorrection1) * mi / (math.Sqrt(vi)/math.Sqrt(float64(args.BiasCorrection2)) + float64(args.Eps))
			want[0], want[1], want[2] = append(want[0], wi), append(want[1], mi), append(want[2], vi)
		}
		check(t, fmt.Sprint("AdamW n=", n), 1e-6, want, func(p *Pool) [][]float32 {
			w, m, v := clone(w), clone(m), clone(v)
			AdamW(p, w, m, v, g, args)
			return [][]float32{w, m, v}
		})
	}
}
