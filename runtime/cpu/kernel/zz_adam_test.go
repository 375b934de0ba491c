package kernel

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func med(f func() time.Duration) float64 {
	var all []time.Duration
	for range 200 {
		all = append(all, f())
	}
	slices.Sort(all)
	return all[len(all)/5].Seconds() * 1e6
}

func TestZAdam(t *testing.T) {
	for _, threads := range []int{1, 2} {
		p := NewPool(threads)
		const T, N = 8, 65536
		mk := func() (x [T][]float32) {
			all := make([]float32, T*N)
			for i := range x {
				x[i] = all[i*N : (i+1)*N]
			}
			return
		}
		w, g, m, v := mk(), mk(), mk(), mk()
		act := make([]float32, 768*512)
		act2 := make([]float32, 768*128)
		out := make([]float32, 768*512)
		flush := make([]float32, 4<<20)
		adam := func() time.Duration {
			b := time.Now()
			for i := range T {
				AdamW(p, w[i], m[i], v[i], g[i], AdamWArgs{LR: 1e-4, Beta1: .9, Beta2: .95, Eps: 1e-8, GradScale: 1, BiasCorrection1: .5, BiasCorrection2: .5})
			}
			return time.Since(b)
		}
		us := func(name string, x float64) { fmt.Printf("%d threads %-50s %8.1f us per kernel\n", threads, name, x/T) }
		us("adamw alone", med(adam))
		us("w read by all (NT products)", med(func() time.Duration {
			for i := range T {
				MatMulNT(p, 768, 512, 128, act2, w[i], out, false)
			}
			return adam()
		}))
		us("g written (TN products)", med(func() time.Duration {
			for i := range T {
				MatMulTN(p, 512, 128, 768, act, act2, g[i], false)
			}
			return adam()
		}))
		us("both", med(func() time.Duration {
			for i := range T {
				MatMulNT(p, 768, 512, 128, act2, w[i], out, false)
			}
			for i := range T {
				MatMulTN(p, 512, 128, 768, act, act2, g[i], false)
			}
			return adam()
		}))
		us("sumsq after both", med(func() time.Duration {
			for i := range T {
				MatMulNT(p, 768, 512, 128, act2, w[i], out, false)
			}
			for i := range T {
				MatMulTN(p, 512, 128, 768, act, act2, g[i], false)
			}
			for i := range T {
				SumSquares(p, g[i])
			}
			return adam()
		}))
		us("flush by 16 MB copy, both", med(func() time.Duration {
			for i := range T {
				MatMulNT(p, 768, 512, 128, act2, w[i], out, false)
			}
			Scale(p, flush, flush, 1)
			return adam()
		}))
		us("flush 64 us pause", med(func() time.Duration {
			for b := time.Now(); time.Since(b) < 200*time.Microsecond; {
			}
			return adam()
		}))
		// TN product itself
		tn := func() time.Duration {
			b := time.Now()
			for i := range T {
				MatMulTN(p, 512, 128, 768, act, act2, g[i], false)
			}
			return time.Since(b)
		}
		us("TN 512x128x768", med(tn))
		us("TN 512x128x384", med(func() time.Duration {
			b := time.Now()
			for i := range T {
				MatMulTN(p, 512, 128, 384, act[:384*512], act2[:384*128], g[i], false)
			}
			return time.Since(b)
		}))
		us("TN 128x512x768", med(func() time.Duration {
			b := time.Now()
			for i := range T {
				MatMulTN(p, 128, 512, 768, act2, act, g[i], false)
			}
			return time.Since(b)
		}))
		us("TN 128x512x384", med(func() time.Duration {
			b := time.Now()
			for i := range T {
				MatMulTN(p, 128, 512, 384, act2[:384*128], act[:384*512], g[i], false)
			}
			return time.Since(b)
		}))
		p.Close()
	}
}
