package profile

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/runtime"
)

// TestFitsFindWhatMadeTheTimes: from times that the model makes, with and without noise of a tenth,
// each fit finds the constants again.
func TestFitsFindWhatMadeTheTimes(t *testing.T) {
	const seed, peak = 4, 2e11
	for _, noise := range []float64{0, 0.1} {
		r := rand.New(rand.NewPCG(seed, 0))
		tolerance := 1e-6 + noise/2
		noisy := func(x float64) float64 { return x * (1 + noise*(2*r.Float64()-1)) }
		around := near{cached: 4e6, cache: 2e11, memoryRate: 3e10}
		const cores = 4
		var products, vectors, attentions, moves []sample
		var both []pair
		for range 400 {
			share := 1 / float64(1+r.IntN(cores))
			f := math.Pow(10, 5+4*r.Float64())
			p := sample{share: share, flops: f, packed: f / math.Pow(10, 1+2*r.Float64()), weight: 1}
			if r.IntN(2) == 0 {
				p.across = f / 10
			}
			p.seconds = (f+3e5)/(0.7*peak*share) + 4e-10*p.packed
			if share > 1./cores {
				p.seconds += 1e-6 + p.across*3/4/4/5e9
			}
			p.seconds = noisy(p.seconds)
			products = append(products, p)
			v := sample{share: share, flops: f / 10, bytes: f / 10 * math.Pow(10, 2*r.Float64()-1), weight: 1}
			v.seconds = noisy(around.time(v, 0.08*peak))
			vectors = append(vectors, v)
			v.flops, v.seconds = 0, noisy(around.traffic(v)/0.3)
			moves = append(moves, v)
			a := sample{share: share, flops: f, keys: math.Pow(10, 1+3*r.Float64()), weight: 1}
			a.seconds = noisy(a.ideal(peak) * (1 + 200/a.keys) / 0.5)
			attentions = append(attentions, a)
			both = append(both, pair{f / peak, noisy(f / peak / 0.8), 1 / f})
		}
		p, off := fitProducts(products, peak, cores)
		require.InEpsilon(t, 0.7, p.efficiency, tolerance, "seed %d", seed)
		require.InEpsilon(t, 3e5, p.half, 12*tolerance, "seed %d", seed)
		require.InEpsilon(t, 4e-10, p.pack, 2*tolerance, "seed %d", seed)
		require.InEpsilon(t, 1e-6, p.fork, 12*tolerance, "seed %d", seed)
		require.InEpsilon(t, 5e9, p.remote, 4*tolerance, "seed %d: a quarter of what three other cores wrote", seed)
		require.InDelta(t, noise/2, off, 0.02, "seed %d", seed)
		for i := range products {
			products[i].across = 0
		}
		p, _ = fitProducts(products, peak, cores)
		require.Zero(t, p.remote, "no slower than others")
		attention, half, off := fitAttention(attentions, peak)
		require.InEpsilon(t, 0.5, attention, tolerance, "seed %d", seed)
		require.InEpsilon(t, 200, half, 4*tolerance, "seed %d", seed)
		require.InDelta(t, noise/2, off, 0.02, "seed %d", seed)
		share, _ := fitVector(vectors, peak, around)
		require.InEpsilon(t, 0.08, share, tolerance+0.02, "seed %d", seed)
		require.InEpsilon(t, 0.3, fitMoves(moves, around), tolerance, "seed %d", seed)
		require.InEpsilon(t, 0.8, fitThreads(both), tolerance, "seed %d", seed)
	}
}

func TestKnee(t *testing.T) {
	require.Equal(t, 4.0, knee([]float64{1, 2, 4, 8, 16}, []float64{90, 100, 80, 40, 30}))
	require.Equal(t, 16.0, knee([]float64{1, 4, 16}, []float64{30, 30, 30}), "no knee: all the same")
}

// TestMeasurement makes a short measurement. It cannot say how fast this machine is, but the
// figures must be possible, and the file must be read as it was measured. Every turn times all
// workloads, and figures are those of all turns so far.
func TestMeasurement(t *testing.T) {
	m, err := Begin(context.Background(), 500*time.Millisecond)
	require.NoError(t, err)
	defer m.Close()
	for turn := range 2 {
		for _, s := range m.steps {
			require.Len(t, s.runs, 1+turn)
		}
		r, err := m.Result()
		require.NoError(t, err)
		require.Equal(t, len(m.steps[0].instrs), len(m.steps[0].average().instrs))
		require.Zero(t, m.steps[0].seconds, "averages are of copies")
		require.Equal(t, m.result.Took, r.Took)
		require.NoError(t, m.Turn(context.Background()))
	}
	r, err := m.Result()
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
	require.Contains(t, d.Kernels, "attention_grad")
	require.Less(t, d.LaunchOverhead, 1e-3)
	for _, p := range r.Products {
		require.LessOrEqual(t, p.GFLOPS, d.FLOPS["f32"]/1e9*float64(p.Threads)*1.01, "no product is faster than the peak")
	}
}

// TestTurn: what a step of many ranks takes beyond its price, corrected by how far the price for
// few ranks is off, is lost at meetings.
func TestTurn(t *testing.T) {
	c, err := cost.Load("cpu")
	require.NoError(t, err)
	c.Device.Cores, c.Device.Turn = 2, 0
	all := workloads(2)
	w, x := all[len(all)-2], all[len(all)-1]
	require.Equal(t, []int{2, 4}, []int{w.ranks, x.ranks})
	x.ranks = w.ranks
	require.Equal(t, w, x)
	few, err := w.compile()
	require.NoError(t, err)
	many, err := all[len(all)-1].compile()
	require.NoError(t, err)
	for _, off := range []float64{1, 1.25} {
		few.seconds, _ = few.price(c)
		price, meetings := many.price(c)
		few.seconds *= off
		many.seconds = off*price + float64(meetings)*9e-6
		require.InEpsilon(t, 9e-6, turn(few, many, c), 1e-6)
		slower := c.Clone()
		slower.Device.Turn = 4e-6
		price, _ = few.price(slower)
		require.InEpsilon(t, few.seconds, off*price, 1e-9, "each has a core")
		require.InEpsilon(t, 9e-6-off*4e-6, turn(few, many, slower), 1e-6)
		many.seconds /= 2
		require.Zero(t, turn(few, many, c), "faster than its price")
	}
}

// TestWaiting: the time of a collective is that of the rank that comes last; the others wait.
func TestWaiting(t *testing.T) {
	s := &timedStep{instrs: []timedInstr{{op: ir.OpAdd, name: "a"}, {op: ir.OpAllReduce, name: "r", work: cost.Work{Class: collectiveClass}}}}
	span := func(op ir.Op, name string, from, to time.Duration) runtime.Span {
		return runtime.Span{Op: op, Name: name, Start: from, End: to}
	}
	run := s.spent(12, [][]runtime.Span{
		{span(ir.OpInput, "x", 0, 1), span(ir.OpAdd, "a", 1, 3), span(ir.OpAllReduce, "r", 3, 12)},
		{span(ir.OpInput, "x", 0, 1), span(ir.OpAdd, "a", 1, 7), span(ir.OpAllReduce, "r", 7, 12)},
	})
	require.Equal(t, timedRun{took: 12, spent: []time.Duration{2, 5}, waited: 2}, run, "4 of one rank, none of the other")
}

// TestBucketsAreTimed: a bucket is timed as one collective of all its bytes.
func TestBucketsAreTimed(t *testing.T) {
	s, err := workload{2, 4, 128, 64, 12, 2, 0, 1}.compile()
	require.NoError(t, err)
	var all []timedInstr
	for _, in := range s.instrs {
		if in.work.Class == collectiveClass {
			all = append(all, in)
		}
	}
	const width = 128
	block := int64(4 * (12*width*width + 2*width)) // weights and norms in f32
	require.Len(t, all, 3, "what is in no block, and each block")
	require.Equal(t, []int64{block, block}, []int64{all[1].work.Bytes, all[2].work.Bytes})
}

// TestPairsAreOfTheSameWork: the cores of a rank are judged by the same instructions.
func TestPairsAreOfTheSameWork(t *testing.T) {
	all := workloads(2)
	for i := 0; i < 10; i += 2 {
		one, each := all[i], all[i+1]
		require.Equal(t, 1, one.ranks)
		one.ranks, one.zero = each.ranks, each.zero
		require.Equal(t, each, one)
	}
	require.Equal(t, []int{0, 1, 2}, []int{all[1].zero, all[3].zero, all[5].zero}, "every way to sum gradients")
	for i, whole := range []bool{true, false} {
		var steps []*timedStep
		for _, w := range all[2*i:][:2] {
			s, err := w.compile()
			require.NoError(t, err)
			for i := range s.instrs {
				s.instrs[i].seconds = 1e-3
			}
			s.seconds = 1
			steps = append(steps, s)
		}
		kinds := map[pair]int{}
		for _, p := range pairs(steps, 2) {
			kinds[p]++
		}
		require.Greater(t, kinds[pair{1e-3, 1e-3, 1}], 30, "half the batch each")
		if whole {
			require.Greater(t, kinds[pair{0.5e-3, 1e-3, 1}], 30, "of an update, which each makes whole, half counts")
		} else {
			require.Less(t, kinds[pair{0.5e-3, 1e-3, 1}], 10, "which they share, but for what is small")
		}
	}
}

// TestFastest: rates that differ by less than one GFLOP/s are distinguished, so that the spread
// printed beside the peak is that of its product.
func TestFastest(t *testing.T) {
	products := []Product{{Threads: 1, GFLOPS: 10.2, Spread: .5}, {Threads: 2, GFLOPS: 21.8, Spread: .1}, {Threads: 1, GFLOPS: 10.6}}
	require.Equal(t, products[1], fastest(products))
}
