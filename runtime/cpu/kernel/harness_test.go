package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every test of an operation goes through check. It runs on each instruction set, with pools of 1,
// 2 and 3 threads that divide the work as finely as possible, one of them with scratch memory full
// of NaN. The result must agree with a float64 reference within a tolerance, and among the runs to
// the bit.
func check(t *testing.T, name string, tol float64, want [][]float64, run func(p *Pool) [][]float32) {
	t.Helper()
	checkOn(t, instructionSets(), name, tol, want, run)
}

// checkOn is check on some instruction sets.
func checkOn(t *testing.T, sets []isa, name string, tol float64, want [][]float64, run func(p *Pool) [][]float32) {
	t.Helper()
	for _, set := range sets {
		var first [][]float32
		for threads := 1; threads <= 3; threads++ {
			p := newPool(threads, set)
			if threads > 1 {
				p.maxGrain = threads
			}
			if threads == 2 {
				leaveNaN(p)
			}
			got := run(p)
			p.Close()
			require.Len(t, got, len(want))
			if first == nil {
				first = got
				for k := range want {
					requireClose(t, fmt.Sprintf("%s %s result %d", set.name, name, k), tol, want[k], got[k])
				}
				continue
			}
			for k := range first {
				for i := range first[k] {
					if math.Float32bits(first[k][i]) != math.Float32bits(got[k][i]) {
						t.Fatalf("%s %s result %d: element %d is %v with 1 thread, %v with %d", set.name, name, k, i, first[k][i], got[k][i], threads)
					}
				}
			}
		}
	}
}

// nans are NaNs as earlier operations may have left them in the memory of a pool of up to three
// threads.
var nans = func() (x struct {
	all    []float32
	memory [7][1 << 16]float32
}) {
	x.all = slices.Repeat([]float32{float32(math.NaN())}, len(x.memory[0]))
	return x
}()

// leaveNaN fills the scratch memory of an unused pool with NaN.
func leaveNaN(p *Pool) {
	next := 0
	memory := func() []float32 {
		next++
		copy(nans.memory[next-1][:], nans.all)
		return nans.memory[next-1][:]
	}
	p.partial = memory()
	for _, w := range p.cores.all {
		w.buf, w.packed = memory(), memory()
		copy(w.lines[:], nans.all)
	}
}

// requireClose fails unless got is within tol of want, relative to the larger of 1 and want.
func requireClose(t *testing.T, name string, tol float64, want []float64, got []float32) {
	t.Helper()
	require.Len(t, got, len(want), name)
	for i, w := range want {
		if g := float64(got[i]); !(math.Abs(g-w) <= tol*max(1, math.Abs(w))) && !(math.IsNaN(g) && math.IsNaN(w)) && g != w {
			t.Fatalf("%s: element %d of %d is %v, want %v (tolerance %v)", name, i, len(want), g, w, tol)
		}
	}
}

// random is a seeded source of operands.
func random(t testing.TB, seed uint64) *source {
	t.Logf("seed %d", seed)
	return &source{rand.New(rand.NewPCG(seed, 1))}
}

type source struct{ *rand.Rand }

// floats returns n draws from the standard normal distribution.
func (s *source) floats(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(s.NormFloat64())
	}
	return x
}

func (s *source) ids(n, lo, hi int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(lo + s.IntN(hi-lo))
	}
	return x
}

func clone[E any](x []E) []E { return append(make([]E, 0, len(x)), x...) }

// wide returns x in float64.
func wide(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// sizes are vector lengths that hit every tail of the assembly loops, and some that cross chunks.
func sizes() []int {
	var s []int
	for n := range 70 {
		s = append(s, n)
	}
	return append(s, 127, 128, 129, 1000, 4099, 20000)
}
