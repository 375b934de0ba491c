package profile

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/planner/cost"
)

// TestFitsFindWhatMadeTheTimes: from times that the model makes, and from such with
// noise of a tenth, each fit finds the constants again.
func TestFitsFindWhatMadeTheTimes(t *testing.T) {
	const seed, peak = 4, 2e11
	for _, noise := range []float64{0, 0.1} {
		r := rand.New(rand.NewPCG(seed, 0))
		tolerance := 1e-6 + noise/2
		noisy := func(x float64) float64 { return x * (1 + noise*(2*r.Float64()-1)) }
		around := near{cached: 4e6, cache: 2e11, memoryRate: 3e10}
		var products, vectors, attentions []sample
		var both []pair
		for range 400 {
			share := 1 / float64(1+r.IntN(4))
			f := math.Pow(10, 5+4*r.Float64())
			products = append(products, sample{share: share, flops: f, seconds: noisy((f + 3e5) / (0.7 * peak * share)), weight: 1})
			v := sample{share: share, flops: f / 10, bytes: f / 10 * math.Pow(10, 2*r.Float64()-1), weight: 1}
			v.seconds = noisy(around.time(v, 0.08*peak))
			vectors = append(vectors, v)
			a := sample{share: share, flops: f, keys: math.Pow(10, 1+3*r.Float64()), weight: 1}
			a.seconds = noisy(a.ideal(peak) * (1 + 200/a.keys) / 0.5)
			attentions = append(attentions, a)
			p := pair{across: r.IntN(2) == 0, bytes: math.Pow(10, 3+4*r.Float64()), apart: f / peak, weight: 1}
			if p.together = p.apart / 0.9; p.across {
				p.together += min(p.bytes, around.cached) * 3 / 4 / 4 / 5e9
			}
			p.together = noisy(p.together)
			both = append(both, p)
		}
		efficiency, half, off := fitProducts(products, peak)
		require.InEpsilon(t, 0.7, efficiency, tolerance, "seed %d", seed)
		require.InEpsilon(t, 3e5, half, 4*tolerance, "seed %d", seed)
		require.InDelta(t, noise/2, off, 0.02, "seed %d", seed)
		attention, half, off := fitAttention(attentions, peak)
		require.InEpsilon(t, 0.5, attention, tolerance, "seed %d", seed)
		require.InEpsilon(t, 200, half, 4*tolerance, "seed %d", seed)
		require.InDelta(t, noise/2, off, 0.02, "seed %d", seed)
		share, _ := fitVector(vectors, peak, around)
		require.InEpsilon(t, 0.08, share, tolerance+0.02, "seed %d", seed)
		threads := threading(both)
		require.InEpsilon(t, 0.9, threads, tolerance, "seed %d", seed)
		require.InEpsilon(t, 5e9, fitRemote(both, threads, 4, around.cached), 4*tolerance, "seed %d: a quarter of what three other cores wrote", seed)
		require.Zero(t, fitRemote(both, threads/2, 4, around.cached), "no slower than others")
	}
}

func TestKnee(t *testing.T) {
	require.Equal(t, 4.0, knee([]float64{1, 2, 4, 8, 16}, []float64{90, 100, 80, 40, 30}))
	require.Equal(t, 16.0, knee([]float64{1, 4, 16}, []float64{30, 30, 30}), "no knee: all the same")
}

// TestMeasure measures in a hurry. Nothing is said of how fast this machine is, but
// the figures are possible, and the file is read as it was measured.
func TestMeasure(t *testing.T) {
	r, err := Measure(context.Background(), 500*time.Millisecond)
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, r.WriteYAML(&text))
	read, err := cost.Parse("cluster.yaml", text.Bytes())
	require.NoError(t, err, text.String())
	require.Equal(t, r.Cluster, read)
	require.Contains(t, read.Source, r.Machine)
	for _, key := range []string{"device.flops.f32", "device.memory_bandwidth", "device.efficiency.matmul", "device.efficiency.vector"} {
		require.NotEmpty(t, r.spread(key), key)
	}
	d := read.Device
	require.GreaterOrEqual(t, d.Cache.Bandwidth, d.MemoryBandwidth)
	require.Equal(t, cost.OnePass, read.Collectives)
	require.Contains(t, d.Kernels, "gelu_grad")
	require.Contains(t, d.Kernels, "attention")
	require.Less(t, d.LaunchOverhead, 1e-3)
	for _, p := range r.Products {
		require.LessOrEqual(t, p.GFLOPS, d.FLOPS["f32"]/1e9*float64(p.Threads)*1.01, "no product is faster than the peak")
	}
}

// TestUnexplained: what a step takes beyond its price is lost where ranks meet.
func TestUnexplained(t *testing.T) {
	c, err := cost.Load("cpu")
	require.NoError(t, err)
	c.Device.Cores, c.IntraNode.Latency, c.Device.Turn = 2, 0, 0
	all := workloads(2)
	few, many := all[len(all)-2], all[len(all)-1]
	require.Equal(t, []int{2, 4}, []int{few.ranks, many.ranks})
	few.ranks = 4
	require.Equal(t, few, many)
	for ranks, lost := range map[int]float64{2: 7e-6, 4: 9e-6} {
		few.ranks = ranks
		s, err := few.compile()
		require.NoError(t, err)
		s.seconds = 1
		meetings := count([]*timedStep{s}, collectiveClass)
		s.seconds -= float64(meetings) * (s.unexplained(c) - lost)
		require.InEpsilon(t, lost, s.unexplained(c), 1e-6)
		slower := c.Clone()
		slower.IntraNode.Latency, slower.Device.Turn = 3e-6, 2e-6
		want := lost - 3e-6
		if ranks == 4 {
			want -= 2e-6
		}
		require.InEpsilon(t, want, s.unexplained(slower), 1e-6, "%d ranks: those without a core take one over", ranks)
		s.seconds /= 2
		require.Zero(t, s.unexplained(c), "faster than its price")
	}
}

// TestPairsAreOfTheSameWork: the threads are judged by the same instructions.
func TestPairsAreOfTheSameWork(t *testing.T) {
	all := workloads(2)
	for i := 0; i < 6; i += 2 {
		one, each := all[i], all[i+1]
		require.Equal(t, 1, one.ranks)
		one.ranks = each.ranks
		require.Equal(t, each, one)
	}
}
