package kernel

import (
	"math"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// enter makes a pool hold a core, as a rank does.
func enter(t *testing.T, p *Pool) {
	if !p.Enter() {
		timer := time.NewTimer(time.Hour)
		if !p.Await(nil, time.Minute, timer) {
			t.Error("no core in a minute")
		}
	}
}

// busyTask records how many chunks are computed at once, and by which cores.
type busyTask struct {
	now, most atomic.Int32
}

func (b *busyTask) do(w *worker, lo, hi int) {
	n := b.now.Add(1)
	for most := b.most.Load(); n > most && !b.most.CompareAndSwap(most, n); most = b.most.Load() {
	}
	time.Sleep(100 * time.Microsecond) // others get the processor
	b.now.Add(-1)
}

// TestPoolsShareCores: however many pools compute, no more chunks are computed at once than there
// are cores, each on its own core, and all pools finish.
func TestPoolsShareCores(t *testing.T) {
	for cores := 1; cores <= 3; cores++ {
		c := NewCores(cores)
		var b busyTask
		var ranks sync.WaitGroup
		for id := range 5 {
			ranks.Go(func() {
				p := c.NewPool(id)
				defer p.Close()
				for i := range 10 {
					enter(t, p)
					p.run(&b, 6, 1)
					if i%2 == 0 {
						p.Offer()
					} else {
						p.Leave()
					}
				}
			})
		}
		ranks.Wait()
		require.LessOrEqual(t, int(b.most.Load()), cores)
		require.Eventually(t, func() bool { return c.free.Load() == int32(cores) }, time.Minute, time.Millisecond, "every core is given back")
		require.Zero(t, c.wanted.Load())
		require.Empty(t, c.Holders())
		c.Close()
	}
}

// helpedTask makes every core but one wait until that one has computed a chunk.
type helpedTask struct {
	by     *worker // that one
	helped chan struct{}
	once   sync.Once
	late   atomic.Bool // it has not come within a minute
}

func (h *helpedTask) do(w *worker, lo, hi int) {
	if w == h.by {
		h.once.Do(func() { close(h.helped) })
		return
	}
	select {
	case <-h.helped:
	case <-time.After(time.Minute):
		h.late.Store(true)
	}
}

// TestWaitingPoolHelps: a pool that waits computes chunks of another's operation, and returns when
// its wait is over.
func TestWaitingPoolHelps(t *testing.T) {
	c := NewCores(2)
	defer c.Close()
	busy, waiting := c.NewPool(0), c.NewPool(1)
	enter(t, busy)
	enter(t, waiting)
	require.ElementsMatch(t, []int{0, 1}, c.Holders())
	h := helpedTask{by: waiting.core, helped: make(chan struct{})}
	var done atomic.Int64
	go func() {
		busy.run(&h, 200, 1)
		done.Store(7)
	}()
	for !waiting.Lend(&done, 7) {
		goruntime.Gosched()
	}
	require.False(t, h.late.Load())
	busy.Close()
	waiting.Close()
}

// TestWaitingPoolGivesWay: if a pool is queued, one that waits gives up its core. A pool that is
// woken gets one.
func TestWaitingPoolGivesWay(t *testing.T) {
	c := NewCores(1)
	defer c.Close()
	first, second := c.NewPool(0), c.NewPool(1)
	enter(t, first)
	require.False(t, second.Enter(), "the only core is held")
	var never atomic.Int64
	require.False(t, first.Lend(&never, 1))
	first.Leave()
	timer := time.NewTimer(time.Hour)
	require.True(t, second.Await(nil, time.Minute, timer))
	require.Equal(t, []int{1}, c.Holders())

	// A pool that gives up waiting keeps no core, even if it was granted one meanwhile.
	require.False(t, first.Enter())
	second.Leave()
	first.Withdraw()
	require.Equal(t, int32(1), c.free.Load())
	stop := make(chan struct{})
	close(stop)
	enter(t, second)
	require.False(t, first.Enter())
	require.False(t, first.Await(stop, time.Minute, timer))
	first.Withdraw()
	require.Zero(t, c.wanted.Load())

	// An offered core may be taken, also by a pool that was queued before the offer.
	require.False(t, first.Enter())
	go second.Offer()
	require.True(t, first.Await(nil, time.Minute, timer))
	first.Wake() // for the next wait
	first.Leave()
	require.True(t, first.Await(nil, time.Minute, timer))
	first.Leave()
	second.Leave()
	require.Equal(t, int32(1), c.free.Load())
}

// TestCoreGoesToWhoHadItLast: of the waiting pools the first that held a core last gets it. A pool
// that was passed over once gets the next core.
func TestCoreGoesToWhoHadItLast(t *testing.T) {
	c := NewCores(2)
	defer c.Close()
	x, y := c.NewPool(0), c.NewPool(1)
	enter(t, x)
	enter(t, y)
	core := map[byte]*worker{'x': x.core, 'y': y.core}
	for _, row := range []struct{ homes, left, served string }{
		{"yxx", "xxx", "102"},   // the first has been passed over once, and not again
		{"yyxyx", "xxy", "201"}, // so has each that has become the first
		{"yyx", "yyy", "012"},
		{"xxx", "yyy", "012"}, // held by nobody before
	} {
		var waiting []*Pool
		for id, home := range []byte(row.homes) {
			p := c.NewPool(id)
			p.home = core[home]
			require.False(t, p.Enter())
			waiting = append(waiting, p)
		}
		var served []byte
		for i := range row.left {
			w := core[row.left[i]]
			w.holder.Leave()
			for id, p := range waiting {
				if w.holder == p {
					require.True(t, p.Await(nil, time.Minute, time.NewTimer(time.Hour)))
					served = append(served, '0'+byte(id))
				}
			}
		}
		require.Equal(t, row.served, string(served), row.homes)
		for _, p := range waiting {
			if p.core == nil {
				p.Withdraw()
			}
		}
	}
}

// TestSharedCoresKeepTheBits: an operation has the same bits whoever helps with it.
func TestSharedCoresKeepTheBits(t *testing.T) {
	const m, n, k = 70, 90, 300
	rnd := random(t, 5)
	a, b := rnd.floats(m*k), rnd.floats(n*k)
	want := make([]float32, m*n)
	MatMulNT(nil, m, n, k, a, b, want, false)
	sum := Sum(nil, a)
	for cores := 1; cores <= 3; cores++ {
		c := NewCores(cores)
		var ranks sync.WaitGroup
		for id := range 4 {
			ranks.Go(func() {
				p := c.NewPool(id)
				defer p.Close()
				got := make([]float32, m*n)
				for range 20 {
					enter(t, p)
					MatMulNT(p, m, n, k, a, b, got, false)
					for i := range got {
						if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
							t.Errorf("%d cores, element %d is %v, alone %v", cores, i, got[i], want[i])
							return
						}
					}
					if s := Sum(p, a); s != sum {
						t.Errorf("%d cores, sum is %v, alone %v", cores, s, sum)
					}
					p.Offer()
				}
			})
		}
		ranks.Wait()
		c.Close()
	}
}

// TestCombine takes sums and maxima of one to five tensors, to other places and in place.
func TestCombine(t *testing.T) {
	rnd := random(t, 6)
	for ins := 1; ins <= 5; ins++ {
		for _, n := range []int{0, 1, 7, combineBlock, combineBlock + 5, combineElems + 1} {
			for _, largest := range []bool{false, true} {
				var from [][]float32
				want := make([]float32, n)
				for i := range ins {
					from = append(from, rnd.floats(n))
					for j, x := range from[i] {
						switch {
						case i == 0:
							want[j] = x
						case largest:
							want[j] = max(want[j], x)
						default:
							want[j] += x
						}
					}
				}
				p := NewPool(2)
				alone, apart := make([]float32, n), [][]float32{make([]float32, n), make([]float32, n)}
				CombineAlone(p, largest, alone, from)
				require.Equal(t, want, alone)
				Combine(p, largest, apart, from)
				require.Equal(t, [][]float32{want, want}, apart)
				Combine(p, largest, from, from)
				for i := range from {
					require.Equal(t, want, from[i], "%d tensors of %d in place, number %d", ins, n, i)
				}
				p.Close()
			}
		}
	}
}
