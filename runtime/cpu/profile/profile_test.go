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
		var products, vectors []sample
		for range 400 {
			share := 1 / float64(1+r.IntN(4))
			f := math.Pow(10, 5+4*r.Float64())
			products = append(products, sample{share: share, flops: f, seconds: noisy((f + 3e5) / (0.7 * peak * share)), weight: 1})
			v := sample{share: share, flops: f / 10, bytes: f / 10 * math.Pow(10, 2*r.Float64()-1), weight: 1}
			v.seconds = noisy(around.time(v, 0.08*peak))
			vectors = append(vectors, v)
		}
		efficiency, half, off := fitProducts(products, peak)
		require.InEpsilon(t, 0.7, efficiency, tolerance, "seed %d", seed)
		require.InEpsilon(t, 3e5, half, 4*tolerance, "seed %d", seed)
		require.InDelta(t, noise/2, off, 0.02, "seed %d", seed)
		attention, _ := fitAttention([]sample{{share: 1, flops: 1e9, seconds: 0.01, weight: 1}, {share: 0.5, flops: 1e9, seconds: 0.02, weight: 1}}, peak)
		require.InEpsilon(t, 0.5, attention, 1e-9)
		share, _ := fitVector(vectors, peak, around)
		require.InEpsilon(t, 0.08, share, tolerance+0.02, "seed %d", seed)
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
	require.Less(t, d.LaunchOverhead, 1e-3)
	for _, p := range r.Products {
		require.LessOrEqual(t, p.GFLOPS, d.FLOPS["f32"]/1e9*float64(p.Threads)*1.01, "no product is faster than the peak")
	}
}

// TestCrowding: what two ranks a core take beyond the work and the overhead of one each
// is what they lose.
func TestCrowding(t *testing.T) {
	few := &timedStep{seconds: 0.011, instrs: make([]timedInstr, 100)}
	many := &timedStep{seconds: 0.0145, instrs: make([]timedInstr, 100)}
	require.InEpsilon(t, 0.8, crowding(few, many, 1e-5), 1e-9, "10 ms of work take 12.5")
	require.Equal(t, 1.0, crowding(many, few, 1e-5), "never more than all")
	all := workloads(3)
	few.workload, many.workload = all[len(all)-2], all[len(all)-1]
	require.Equal(t, []int{3, 6}, []int{few.ranks, many.ranks})
	few.ranks = 6
	require.Equal(t, few.workload, many.workload)
}

// TestPairsAreOfTheSameWork: the threads are judged by the same instructions.
func TestPairsAreOfTheSameWork(t *testing.T) {
	all := workloads(2)
	for i := 0; i+2 < len(all); i += 2 {
		one, each := all[i], all[i+1]
		require.Equal(t, 1, one.ranks)
		one.ranks = each.ranks
		require.Equal(t, each, one)
	}
}
