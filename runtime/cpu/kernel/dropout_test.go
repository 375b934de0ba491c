package kernel

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDropout(t *testing.T) {
	rnd := random(t, 51)
	key := MaskKey{Seed: 0x1234_5678_9abc_def0, Op: 77, Step: 5}
	for _, tc := range []struct {
		p    float64
		slab Slab
	}{
		{0.2, Slab{[]int{7}, []int{0}, []int{7}}},
		{0.2, Slab{[]int{1000}, []int{3}, []int{901}}},
		{0.5, Slab{[]int{5, 33, 7}, []int{1, 2, 3}, []int{3, 31, 4}}},
		{0.1, Slab{[]int{5, 33, 70}, []int{2, 0, 0}, []int{3, 33, 70}}},
		{0.1, Slab{[]int{5, 33, 70}, []int{2, 5, 0}, []int{3, 20, 70}}},
		{0.9, Slab{[]int{2, 3, 2, 3, 2, 5}, []int{1, 0, 1, 0, 1, 2}, []int{1, 3, 1, 2, 1, 3}}},
		{0, Slab{[]int{40, 3}, []int{1, 0}, []int{39, 3}}},
		{1, Slab{[]int{40, 3}, []int{1, 0}, []int{39, 3}}},
		{0.3, Slab{[]int{1 << 20, 1 << 16}, []int{1<<20 - 2, 5}, []int{2, 40}}}, // indices beyond 2^34
		{0.3, Slab{[]int{4, 0}, []int{0, 0}, []int{4, 0}}},
	} {
		var global []uint64 // of each local element
		var walk func(d int, at uint64)
		walk = func(d int, at uint64) {
			if d == len(tc.slab.Global) {
				global = append(global, at)
				return
			}
			for i := range tc.slab.Local[d] {
				walk(d+1, at*uint64(tc.slab.Global[d])+uint64(tc.slab.Offset[d]+i))
			}
		}
		walk(0, 0)
		x := rnd.floats(len(global))
		check(t, fmt.Sprint(tc), 1e-6, mapReference(len(x), func(i int) float64 {
			if key.Keep(global[i], tc.p) {
				return float64(x[i]) / (1 - tc.p)
			}
			return 0
		}), func(p *Pool) [][]float32 {
			y := clone(x)
			Dropout(p, y, y, tc.p, key, tc.slab)
			return [][]float32{y}
		})
	}
}

func TestDropoutWhole(t *testing.T) {
	x := make([]float32, 1_000_000)
	for i := range x {
		x[i] = 1
	}
	y := make([]float32, len(x))
	Dropout(nil, y, x, 0.2, MaskKey{Seed: 3}, Slab{})
	require.InDelta(t, 1, float64(Sum(nil, y))/float64(len(y)), 0.003)
	z := make([]float32, len(x))
	Dropout(nil, z, x, 0.2, MaskKey{Seed: 3}, Slab{[]int{1000, 1000}, []int{0, 0}, []int{1000, 1000}})
	require.Equal(t, y, z)
}

// Every instruction set must draw exactly the same masks.
func TestDropoutFactors(t *testing.T) {
	for _, block := range []uint64{0, 1, 1<<32 - 5, 1<<40 + 3} {
		key := MaskKey{Seed: 0xfedcba9876543210, Op: 0x89abcdef, Step: 0x76543210}
		want := make([]float32, 11*dropoutStep)
		dropoutFactorsGeneric(want, block, &key, 0x80000001, 2)
		for _, set := range instructionSets() {
			got := make([]float32, len(want))
			set.dropoutFactors(got, block, &key, 0x80000001, 2)
			require.Equal(t, want, got, set.name)
		}
	}
}

// An element whose bits equal the threshold is kept.
func TestDropoutThreshold(t *testing.T) {
	key := MaskKey{Seed: 3}
	for _, set := range instructionSets() {
		got := make([]float32, dropoutStep)
		for i := range got {
			bits := key.Uint32(uint64(i))
			set.dropoutFactors(got, 0, &key, bits, 2)
			require.Equal(t, float32(2), got[i], set.name)
			set.dropoutFactors(got, 0, &key, bits+1, 2)
			require.Equal(t, float32(0), got[i], set.name)
		}
	}
}
