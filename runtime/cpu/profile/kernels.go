package profile

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// timing is the time of something that was repeated.
type timing struct {
	least, median time.Duration
}

func timingOf(all []time.Duration) timing {
	sorted := slices.Sorted(slices.Values(all))
	return timing{sorted[0], sorted[len(sorted)/2]}
}

// spread returns how far the median is above the least, as a share of it. Figures are made from the
// least, because interference can only add.
func (t timing) spread() float64 { return t.median.Seconds()/t.least.Seconds() - 1 }

// repeat times f for about the given time, at least five times.
func repeat(ctx context.Context, budget time.Duration, f func()) timing {
	f() // warms caches and allocates scratch memory
	var all []time.Duration
	for start := time.Now(); len(all) < 5 || time.Since(start) < budget && len(all) < 1000; {
		if ctx.Err() != nil && len(all) > 0 {
			break
		}
		begin := time.Now()
		f()
		all = append(all, time.Since(begin))
	}
	return timingOf(all)
}

// Product is one point of the curve of matrix products: C[M,N], with sums over K.
type Product struct {
	M, N, K int
	Threads int
	GFLOPS  float64
	Spread  float64 // see [Figure]
}

// shapes are those of linear layers of small models, from 0.1 MFLOP to 2 GFLOP.
func shapes() [][3]int {
	return [][3]int{{64, 64, 16}, {64, 128, 64}, {192, 128, 128}, {768, 128, 128}, {768, 512, 128}, {1024, 1024, 256}, {1024, 1024, 1024}}
}

// products measures the curve of matrix products with a number of threads.
func products(ctx context.Context, threads int, budget time.Duration) []Product {
	pool := kernel.NewPool(threads)
	defer pool.Close()
	var curve []Product
	for _, s := range shapes() {
		m, n, k := s[0], s[1], s[2]
		a, b, c := random(m*k), random(n*k), make([]float32, m*n)
		t := repeat(ctx, budget/time.Duration(len(shapes())), func() { kernel.MatMulNT(pool, m, n, k, a, b, c, false) })
		curve = append(curve, Product{m, n, k, threads, 2 * float64(m) * float64(n) * float64(k) / t.least.Seconds() / 1e9, t.spread()})
	}
	return curve
}

func random(n int) []float32 {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = r.Float32() - 0.5
	}
	return x
}

// Stream is the rate at which adding two tensors moves bytes, those of the sum included. Bytes is
// the size of all three.
type Stream struct {
	Bytes  int
	GBs    float64
	Spread float64
}

// streams measures that rate with all threads at growing sizes.
func streams(ctx context.Context, threads int, budget time.Duration) []Stream {
	pool := kernel.NewPool(threads)
	defer pool.Close()
	const largest = 96 << 20 // bytes of the three tensors together
	a, b, c := random(largest/12), random(largest/12), make([]float32, largest/12)
	var all []Stream
	for bytes := 192 << 10; bytes <= largest; bytes *= 2 {
		n := bytes / 12
		t := repeat(ctx, budget/10, func() { kernel.Add(pool, c[:n], a[:n], b[:n]) })
		all = append(all, Stream{bytes, float64(bytes) / t.least.Seconds() / 1e9, t.spread()})
	}
	return all
}
