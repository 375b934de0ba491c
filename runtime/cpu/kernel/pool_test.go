package kernel

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// countTask counts how often each unit is computed.
type countTask struct {
	seen  []atomic.Int32
	pause time.Duration
}

func (c *countTask) do(_ *worker, lo, hi int) {
	for i := lo; i < hi; i++ {
		c.seen[i].Add(1)
	}
	time.Sleep(c.pause)
}

func TestPoolDoesEachUnitOnce(t *testing.T) {
	for threads := 1; threads <= 5; threads++ {
		p := NewPool(threads)
		require.Equal(t, threads, p.Threads())
		for job := range 300 {
			c := &countTask{seen: make([]atomic.Int32, job%97)}
			if job%50 == 0 {
				time.Sleep(2 * spinTime) // let the workers park
				c.pause = 2 * spinTime   // let the caller park
			}
			p.run(c, len(c.seen), 1+job%7)
			for i := range c.seen {
				require.Equal(t, int32(1), c.seen[i].Load(), "%d threads, job %d, unit %d", threads, job, i)
			}
		}
		p.Close()
	}
}

// Several ranks, each with its own pool and more threads than processors, must not block each
// other.
func TestPoolsTogether(t *testing.T) {
	var ranks sync.WaitGroup
	for range 4 {
		ranks.Go(func() {
			p := NewPool(3)
			defer p.Close()
			x, y := make([]float32, 1000), make([]float32, 1000)
			p.maxGrain = 100
			for i := range x {
				x[i] = 1
			}
			for range 500 {
				AddInto(p, y, x)
			}
			if y[999] != 500 {
				t.Errorf("sum is %v, want 500", y[999])
			}
		})
	}
	ranks.Wait()
}

func TestPoolLimits(t *testing.T) {
	require.PanicsWithValue(t, "BUG: kernel.NewCores: 0 cores", func() { NewPool(0) })
	require.PanicsWithValue(t, "BUG: kernel.Add: b has 3 elements, want 4", func() {
		Add(nil, make([]float32, 4), make([]float32, 4), make([]float32, 3))
	})
	var none *Pool
	require.Equal(t, 1, none.Threads())
	none.Close()
}

// No operation allocates once its sizes have been seen.
func TestNoAllocation(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	p.maxGrain = 64
	const rows, cols = 128, 96
	s := AttentionShape{B: 2, T: 64, H: 2, D: 16}
	n := s.B * s.T * s.H
	x, y, z, w := make([]float32, rows*cols), make([]float32, rows*cols), make([]float32, rows*cols), make([]float32, cols*cols)
	b, stat, stat2 := make([]float32, cols), make([]float32, rows), make([]float32, rows)
	ids := make([]int32, rows)
	qkv, o, lse := make([]float32, 3*n*s.D), make([]float32, n*s.D), make([]float32, n)
	dqkv, cache := make([]float32, 3*n*s.D), make([]float32, 2*n*s.D)
	drop := DropoutArgs{P: 0.1, GlobalHeads: 2}
	slab := Slab{[]int{rows, cols}, []int{0, 0}, []int{rows, cols}}
	step := func() {
		MatMulNT(p, rows, cols, cols, x, w, y, false)
		MatMulNN(p, rows, cols, cols, x, w, y, true)
		MatMulTN(p, cols, cols, rows, x, y, w, false)
		MatMulNT(p, 1, cols, cols, x[:cols], w, y[:cols], false)
		Add(p, x, x, y)
		AddBias(p, rows, cols, y, x, b)
		ColSum(p, rows, cols, b, x, false)
		Scale(p, x, x, 0.5)
		Sum(p, x)
		SumSquares(p, x)
		LayerNorm(p, rows, cols, y, stat, stat2, x, b, nil, 1e-5)
		LayerNormGrad(p, rows, cols, z, b, nil, y, x, b, stat, stat2, true)
		GELU(p, y, x, true)
		GELUGrad(p, z, y, x, false)
		Dropout(p, y, x, 0.1, MaskKey{}, slab)
		Attention(p, o, lse, qkv, s, drop)
		AttentionGrad(p, dqkv, o, qkv, o, lse, s, drop)
		AttentionDecode(p, o[:s.B*s.H*s.D], qkv[:3*s.B*s.H*s.D], cache, s, 3)
		Embedding(p, cols, y, w, ids, 0)
		EmbeddingGrad(p, cols, w, y, ids, 0, false)
		RowMax(p, rows, cols, stat, x)
		RowSumExp(p, rows, cols, stat2, x, stat)
		RowPick(p, rows, cols, stat2, x, ids, 0)
		NLL(p, stat, stat, stat2, stat, ids)
		CrossEntropyGrad(p, rows, cols, y, x, stat, stat2, ids, 0, stat)
		AdamW(p, x, y, z, y, AdamWArgs{})
	}
	// A worker's scratch memory grows when it first gets a chunk of an operation, which may be
	// late.
	var allocs float64
	for range 20 {
		if allocs = testing.AllocsPerRun(5, step); allocs == 0 {
			return
		}
	}
	require.Zero(t, allocs)
}

// failing panics in its last chunk, which a worker takes if there are any.
type failing struct{}

func (failing) do(_ *worker, _, hi int) {
	if hi == 64 {
		panic("kernel fails")
	}
}

// TestPanicReachesTheCaller: on whichever goroutine a kernel panics, the caller can recover, and
// the pool still works.
func TestPanicReachesTheCaller(t *testing.T) {
	for threads := 1; threads <= 3; threads++ {
		p := NewPool(threads)
		for range 10 {
			require.PanicsWithValue(t, "kernel fails", func() { p.run(failing{}, 64, 1) })
		}
		x := make([]float32, 10_000)
		Scale(p, x, x, 2)
		p.Close()
	}
}
