package philox

import (
	"hash/fnv"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Known answers published with Random123 (tests/kat_vectors, philox4x32 10).
func TestBlockKnownAnswers(t *testing.T) {
	const ff = 0xffffffff
	for _, c := range []struct {
		name string
		key  [2]uint32
		ctr  [4]uint32
		want [4]uint32
	}{
		{"zeros", [2]uint32{}, [4]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{"ones", [2]uint32{ff, ff}, [4]uint32{ff, ff, ff, ff}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{"pi", [2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		require.Equal(t, c.want, Block(c.key[0], c.key[1], c.ctr), c.name)
	}
}

func TestKeyPacksPositionIntoCounter(t *testing.T) {
	k := Key{Seed: 0x299f31d0_a4093822, Op: 0x13198a2e, Step: 0x03707344}
	// The counter's low words 0x243f6a88, 0x85a308d3 as index >> 2 and >> 34;
	// word 1 of a real index has at most 30 bits, so check the packing on Block.
	require.Equal(t, Block(0xa4093822, 0x299f31d0, [4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}), k.Block(0x85a308d3_243f6a88))

	const i = uint64(5)<<34 | uint64(7)<<2
	w := Block(0xa4093822, 0x299f31d0, [4]uint32{7, 5, 0x13198a2e, 0x03707344})
	for lane := range uint64(4) {
		require.Equal(t, w[lane], k.Uint32(i+lane))
	}
	r := math.Sqrt(-2 * math.Log((float64(w[2])+1)/(1<<32)))
	require.InDelta(t, r*math.Cos(2*math.Pi*float64(w[3])/(1<<32)), k.Normal(i+2), 1e-12)
	require.InDelta(t, r*math.Sin(2*math.Pi*float64(w[3])/(1<<32)), k.Normal(i+3), 1e-12)
}

func TestUniformIsTheTopBits(t *testing.T) {
	k := Key{Seed: 1}
	for i := range uint64(100) {
		require.Equal(t, float64(k.Uint32(i)>>8)/(1<<24), float64(k.Uniform(i)))
	}
}

func TestOpKeyIsFNV1a(t *testing.T) {
	for _, name := range []string{"", "wte", "h.3.attn.c_attn/dropout", "é"} {
		h := fnv.New32a()
		h.Write([]byte(name))
		require.Equal(t, h.Sum32(), OpKey(name), name)
	}
}

// FillNormal must give what Normal gives, from any start and length.
func TestFillNormalAgreesWithNormal(t *testing.T) {
	k := Key{Seed: 1337, Op: OpKey("h.0.attn/dropout"), Step: 9}
	for start := range uint64(9) {
		for n := range 11 {
			normal := make([]float32, n)
			k.FillNormal(normal, start, 0.5, 0.02)
			for j := range n {
				i := start + uint64(j)
				require.Equal(t, float32(0.5+float64(0.02*k.Normal(i))), normal[j], "start %d, element %d of %d", start, j, n)
			}
		}
	}
}

func TestStatistics(t *testing.T) {
	const n = 1_000_000
	k := Key{Seed: 42, Op: OpKey("dropout"), Step: 3}
	for _, p := range []float64{0.1, 0.2, 0.5} {
		kept := 0
		for i := range uint64(n) {
			if uint64(k.Uint32(i)) >= Threshold(p) {
				kept++
			}
		}
		require.InEpsilon(t, 1-p, float64(kept)/n, 0.01, "p = %v", p)
	}

	values := make([]float32, n)
	k.FillNormal(values, 0, 3, 2)
	var sum, squares, third float64
	for _, v := range values {
		z := (float64(v) - 3) / 2
		sum += z
		squares += z * z
		third += z * z * z
	}
	require.InDelta(t, 0, sum/n, 0.01)
	require.InDelta(t, 1, math.Sqrt(squares/n), 0.01)
	require.InDelta(t, 0, third/n, 0.02)
}

func TestKeepBounds(t *testing.T) {
	k := Key{Seed: 1}
	for i := range uint64(100) {
		require.True(t, k.Keep(i, 0))
		require.False(t, k.Keep(i, 1))
		require.Equal(t, k.Uint32(i) >= 1<<31, k.Keep(i, 0.5))
	}
	require.Panics(t, func() { k.Keep(0, 1.5) })
	require.Panics(t, func() { k.Keep(0, math.NaN()) })
}

func TestNoAllocations(t *testing.T) {
	k, dst := Key{Seed: 1}, make([]float32, 33)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		k.FillNormal(dst, 3, 0, 1)
		_ = k.Uint32(17)
	}))
}

func BenchmarkFillNormal(b *testing.B) {
	dst := make([]float32, 1<<14)
	b.SetBytes(4 << 14)
	for b.Loop() {
		Key{Seed: 1}.FillNormal(dst, 0, 0, 0.02)
	}
}
