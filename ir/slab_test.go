package ir_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
)

// TestEachRunOf: a range of the common elements of two parts is that range of all of them, in
// order, wherever it begins and ends.
func TestEachRunOf(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	whole, some := 0, 0
	for range 2000 {
		rank := r.IntN(5)
		a, b := ir.Slab{Global: make([]int, rank), Offset: make([]int, rank), Local: make([]int, rank)}, ir.Slab{Offset: make([]int, rank), Local: make([]int, rank)}
		b.Global = a.Global
		for i := range rank {
			a.Global[i] = 1 + r.IntN(5)
			for _, s := range []ir.Slab{a, b} {
				s.Offset[i] = r.IntN(3) / 2 * r.IntN(a.Global[i])
				if s.Local[i] = a.Global[i] - s.Offset[i]; r.IntN(2) == 0 {
					s.Local[i] = 1 + r.IntN(s.Local[i])
				}
			}
		}
		var all [][2]int
		add := func(to *[][2]int) func(inA, inB, n int) {
			return func(inA, inB, n int) {
				require.Positive(t, n)
				for i := range n {
					*to = append(*to, [2]int{inA + i, inB + i})
				}
			}
		}
		ir.EachRun(a, b, add(&all))
		lo, hi := r.IntN(len(all)+3)-1, r.IntN(len(all)+3)-1
		var part [][2]int
		require.Equal(t, len(all), ir.EachRunOf(a, b, lo, hi, add(&part)))
		var want [][2]int
		if lo, hi := max(lo, 0), min(hi, len(all)); lo < hi {
			want = all[lo:hi]
			some++
		}
		require.Equal(t, want, part, "%d to %d of %v in %v", lo, hi, b, a)
		for _, at := range all { // both are the same element of the value
			require.Equal(t, a.GlobalIndex(at[0]), b.GlobalIndex(at[1]))
		}
		if len(all) > 0 {
			whole++
		}
	}
	require.Greater(t, whole, 500)
	require.Greater(t, some, 300)
}
