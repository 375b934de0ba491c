package profile

import (
	"context"
	goruntime "runtime"
	"time"

	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// Peaks are rates of all cores together that no kernel exceeds: FLOP/s of float32 multiply-adds in
// vector registers, and bytes/s of adding two tensors that no cache holds.
type Peaks struct{ FLOPS, Bandwidth float64 }

// MeasurePeaks measures them in about the given time.
func MeasurePeaks(ctx context.Context, budget time.Duration) Peaks {
	pool := kernel.NewPool(goruntime.GOMAXPROCS(0))
	defer pool.Close()
	var p Peaks
	const chunks = 1 << 8
	var flop float64
	t := repeat(ctx, budget/2, func() { flop = kernel.MultiplyAdd(pool, chunks) })
	p.FLOPS = flop / t.least.Seconds()
	const n = 8 << 20 // of each tensor: 96 MiB in all
	a, b, c := make([]float32, n), make([]float32, n), make([]float32, n)
	t = repeat(ctx, budget/2, func() { kernel.Add(pool, c, a, b) })
	p.Bandwidth = 12 * n / t.least.Seconds()
	return p
}
