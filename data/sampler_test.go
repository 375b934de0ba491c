package data

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir/philox"
)

func mustSampler(t *testing.T, opts SamplerOptions) *Sampler {
	s, err := NewSampler(opts)
	require.NoError(t, err)
	return s
}

// A resumed run must get the same draws, so they may not change.
func TestBatchGolden(t *testing.T) {
	opts := SamplerOptions{Seed: 1337, Stream: "train", Tokens: 1_003_854, BlockSize: 64, Batch: 7}
	require.Equal(t, []int{495076, 18386, 354684, 909382, 347896, 370667, 633068}, mustSampler(t, opts).Batch(3))
	opts.EachOnce = true
	require.Equal(t, []int{254093, 343693, 319885, 655181, 705293, 97613, 886349}, mustSampler(t, opts).Batch(3))
}

func TestBatchIsAFunctionOfItsArguments(t *testing.T) {
	for _, once := range []bool{false, true} {
		opts := SamplerOptions{Seed: 1, Stream: "train", Tokens: 10_000, BlockSize: 33, Batch: 7, EachOnce: once}
		s := mustSampler(t, opts)
		want := s.Batch(41)
		s.Batch(2)
		require.Equal(t, want, s.Batch(41))
		require.Equal(t, want, mustSampler(t, opts).Batch(41))
		for _, other := range []func(*SamplerOptions){
			func(o *SamplerOptions) { o.Seed++ },
			func(o *SamplerOptions) { o.Seed += 1 << 32 },
			func(o *SamplerOptions) { o.Stream = "eval/train" },
		} {
			changed := opts
			other(&changed)
			require.NotEqual(t, want, mustSampler(t, changed).Batch(41))
		}
		require.NotEqual(t, want, s.Batch(42))
	}
}

// However many ranks there are, their rows are disjoint and make the one global
// batch, ids and targets.
func TestRanksShareOneGlobalBatch(t *testing.T) {
	dir := t.TempDir()
	writeBin(t, dir+"/"+TrainFile, counting(500)...)
	writeBin(t, dir+"/"+ValFile, counting(500)...)
	const block, batch = 33, 7
	bins, err := OpenBins(dir, BinsOptions{BlockSize: block})
	require.NoError(t, err)
	defer bins.Close()
	opts := SamplerOptions{Seed: 5, Stream: "train", Tokens: bins.Train.Tokens(), BlockSize: block, Batch: batch}
	var want []int32
	for ranks := 1; ranks <= 4; ranks++ {
		var got []int32
		lo := 0
		for rank := range ranks {
			hi := lo + batch/ranks
			if rank < batch%ranks {
				hi++
			}
			ids, targets := make([]int32, (hi-lo)*block), make([]int32, (hi-lo)*block)
			starts := mustSampler(t, opts).Batch(9) // each rank for itself
			require.NoError(t, bins.Train.Fill(ids, targets, starts[lo:hi]))
			for i := range ids {
				require.Equal(t, ids[i]+1, targets[i])
			}
			got = append(got, ids...)
			lo = hi
		}
		require.Equal(t, batch, lo)
		if ranks == 1 {
			want = got
		}
		require.Equal(t, want, got, "%d ranks", ranks)
	}
}

func TestIndependentStartsAreUniform(t *testing.T) {
	const n = 10 // starts 0 to 9
	s := mustSampler(t, SamplerOptions{Seed: 3, Stream: "train", Tokens: n + 4, BlockSize: 4, Batch: 1000})
	counts := make([]int, n)
	for step := range 100 {
		for _, start := range s.Batch(step) {
			counts[start]++ // panics when out of range
		}
	}
	for start, count := range counts {
		require.InDelta(t, 10_000, count, 500, "start %d", start) // 5 sigma
	}
}

// Every window of an epoch comes exactly once, whatever the sizes.
func TestEachOnceCoversEpochs(t *testing.T) {
	for _, c := range []struct{ tokens, block, batch int }{
		{2, 1, 3}, {34, 33, 7}, {66, 33, 7}, {67, 33, 5}, {1000, 33, 7}, {4097, 4, 64}, {65 * 33, 33, 1},
	} {
		s := mustSampler(t, SamplerOptions{Seed: 11, Stream: "train", Tokens: c.tokens, BlockSize: c.block, Batch: c.batch, EachOnce: true})
		var starts []int
		for step := 0; len(starts) < 3*s.Windows(); step++ {
			starts = append(starts, s.Batch(step)...)
		}
		var orders [][]int
		for epoch := range 3 {
			order := starts[epoch*s.Windows() : (epoch+1)*s.Windows()]
			orders = append(orders, order)
			sorted := slices.Sorted(slices.Values(order))
			require.GreaterOrEqual(t, sorted[0], 0)
			require.Less(t, sorted[len(sorted)-1], c.tokens-c.block, "%+v", c)
			for i := 1; i < len(sorted); i++ {
				require.Equal(t, c.block, sorted[i]-sorted[i-1], "%+v, epoch %d", c, epoch)
			}
		}
		if s.Windows() > 20 {
			require.NotEqual(t, orders[0], orders[1], "%+v: the order repeats", c)
			require.False(t, slices.IsSorted(orders[0]), "%+v: not shuffled", c)
		}
	}
}

func TestPermuteIsABijection(t *testing.T) {
	for n := uint64(1); n < 70; n++ {
		seen := make([]bool, n)
		for i := range n {
			seen[permute(philox.Key{Seed: 8, Step: uint32(n)}, i, n)] = true
		}
		require.NotContains(t, seen, false, "n = %d", n)
	}
	// Over many keys, each of three positions is equally likely.
	var counts [3]int
	for key := range uint32(3000) {
		counts[permute(philox.Key{Step: key}, 0, 3)]++
	}
	for _, count := range counts {
		require.InDelta(t, 1000, count, 130) // 5 sigma
	}
}

func TestNewSamplerErrors(t *testing.T) {
	good := SamplerOptions{Tokens: 100, BlockSize: 33, Batch: 7}
	for want, edit := range map[string]func(*SamplerOptions){
		"data: block_size 0 is not positive":                   func(o *SamplerOptions) { o.BlockSize = 0 },
		"data: a global batch of -1 sequences is not positive": func(o *SamplerOptions) { o.Batch = -1 },
		"data: 33 tokens are too few for block_size 33":        func(o *SamplerOptions) { o.Tokens = 33 },
	} {
		opts := good
		edit(&opts)
		_, err := NewSampler(opts)
		require.EqualError(t, err, want)
	}
	require.Panics(t, func() { mustSampler(t, good).Batch(-1) })
}
