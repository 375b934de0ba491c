package kernel

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"sync/atomic"
	"time"
)

// Pool is what one rank computes with: the core that its goroutine holds, and chunks of its
// operation that other cores take (see [Cores]). It also owns the partial sums of operations, so
// that none allocates once its sizes have been seen.
//
// A Pool runs one operation at a time and must not be shared by goroutines. A nil *Pool computes in
// the caller and allocates its scratch memory on each call.
type Pool struct {
	cores *Cores
	isa   isa
	id    int
	own   bool // its cores belong to this pool alone
	task  tasks

	core    *worker      // the core it holds, or nil
	home    *worker      // the core it held last, nil if any will do; guarded by Cores.mu while the pool is queued
	offered bool         // its core is offered to others
	since   time.Time    // when it got its core
	granted chan *worker // receives a core while it waits for one

	maxGrain int // for tests: if positive, the largest chunk in units, which divides even small work

	partial []float32 // per-chunk partial sums of a reduction
	sums    []float64
	squares []squareSum

	// The current job. Its fields are written before state publishes it, and only workers that hold
	// a chunk of it read them.
	job                  task
	units, grain, chunks int

	// Which chunks nobody has taken yet: in the low 16 bits the number of the first one, in the
	// next 16 how many there are from there on, above them the number of the job. The caller takes
	// chunks from the front, others from the end, so that a core tends to get the same part of a
	// tensor in consecutive operations and finds it in its cache.
	state atomic.Uint64
	done  atomic.Int64 // how many chunks are finished
	// panicked is the first panic of the current job.
	panicked atomic.Pointer[any]
	caller   parker
}

// maxChunks is the largest number of chunks of a job, and the mask of 16 bits.
const maxChunks = 1<<16 - 1

// task is one operation with its operands. do computes its units [lo, hi) with the scratch memory
// of w.
type task interface {
	do(w *worker, lo, hi int)
}

// tasks holds the operands of the current operation. It has a field for each operation, so that
// starting one allocates nothing.
type tasks struct {
	product      productTask
	tiles        tileTask
	dots         dotsTask
	unary        unaryTask
	binary       binaryTask
	combine      combineTask
	each         eachTask
	scale        scaleTask
	addBias      addBiasTask
	colSum       colSumTask
	reduce       reduceTask
	layerNorm    layerNormTask
	normGrad     layerNormGradTask
	dropout      dropoutTask
	attention    attentionTask
	attnGrad     attentionGradTask
	copyRows     copyRowsTask
	decode       decodeTask
	swiglu       swigluTask
	swigluGrad   swigluGradTask
	rope         ropeTask
	embedding    embeddingTask
	embedGrad    embeddingGradTask
	rows         rowsTask
	crossEntropy crossEntropyGradTask
	adamw        adamwTask
	half         halfTask
	asFixed      asFixedTask
	addFixed     addFixedTask
	fixedSquares fixedSquaresTask
	peak         peakTask
}

// NewPool returns a pool with cores of its own, at least 1, of which it holds one. Close ends them.
func NewPool(threads int) *Pool { return newPool(threads, bestISA()) }

func newPool(threads int, set isa) *Pool {
	p := newCores(threads, set).NewPool(0)
	p.own = true
	p.Enter()
	return p
}

// Threads returns how many threads at most compute an operation, including the caller; 1 for a nil
// pool.
func (p *Pool) Threads() int {
	if p == nil {
		return 1
	}
	return len(p.cores.all)
}

// Close ends the pool, and its cores if they are its own. The pool must be in no operation, and
// cannot be used again.
func (p *Pool) Close() {
	if p == nil {
		return
	}
	p.Leave()
	c := p.cores
	c.mu.Lock()
	pools := slices.DeleteFunc(slices.Clone(*c.pools.Load()), func(other *Pool) bool { return other == p })
	c.pools.Store(&pools)
	c.mu.Unlock()
	if p.own {
		c.Close()
	}
}

// orInline returns p, or if it is nil a pool that computes in the caller.
func (p *Pool) orInline() *Pool {
	if p == nil {
		return newPool(1, bestISA())
	}
	return p
}

// run computes units [0, units) of t in chunks of grain units, and returns when all are done. Which
// worker computes which chunk varies from run to run, so the result of a task must not depend on
// it.
func (p *Pool) run(t task, units, grain int) {
	grain = max(grain, 1)
	if p.maxGrain > 0 {
		grain = min(grain, p.maxGrain)
	}
	if units <= 0 {
		return
	}
	if p.core == nil {
		panic("BUG: kernel: the pool holds no core")
	}
	if len(p.cores.all) == 1 || units <= grain {
		t.do(p.core, 0, units)
		return
	}
	grain = max(grain, (units+maxChunks-1)/maxChunks)
	p.job, p.units, p.grain, p.chunks = t, units, grain, (units+grain-1)/grain
	p.done.Store(0)
	next := p.state.Load()>>32 + 1
	p.state.Store(next<<32 | uint64(p.chunks)<<16)
	p.cores.summon(p.chunks - 1)
	for p.chunk(p.core, true) {
	}
	for !p.finished() {
		p.caller.wait(p.finished)
	}
	if r := p.panicked.Swap(nil); r != nil {
		panic(*r)
	}
}

// Each calls f with 0 to n-1, in any order and concurrently.
func (p *Pool) Each(n int, f func(i int)) {
	p.task.each = eachTask{f}
	p.run(&p.task.each, n, 1)
}

type eachTask struct{ f func(i int) }

func (t *eachTask) do(_ *worker, lo, hi int) {
	for i := lo; i < hi; i++ {
		t.f(i)
	}
}

func (p *Pool) finished() bool { return p.done.Load() == int64(p.chunks) }

// left returns how many chunks of the current job nobody has taken.
func (p *Pool) left() int { return int(p.state.Load() >> 16 & maxChunks) }

// chunk takes a chunk of the current job from the front or the end and computes it with a worker;
// it returns false if none is left. A job cannot end while somebody holds a chunk of it, so its
// fields do not change meanwhile. Whoever comes late finds no chunk and touches nothing.
func (p *Pool) chunk(w *worker, fromFront bool) bool {
	for {
		s := p.state.Load()
		first, left := int(s&maxChunks), int(s>>16&maxChunks)
		if left == 0 {
			return false
		}
		rest, chunk := s-1<<16, first+left-1
		if fromFront {
			rest, chunk = rest+1, first
		}
		if !p.state.CompareAndSwap(s, rest) {
			continue
		}
		chunks := p.chunks
		w.last = !fromFront
		p.compute(w, chunk)
		if p.done.Add(1) == int64(chunks) {
			p.caller.unpark()
		}
		return true
	}
}

// compute does one chunk. It keeps a panic for the caller of run, since nobody could recover it on
// a helper's goroutine.
func (p *Pool) compute(w *worker, chunk int) {
	defer func() {
		if r := recover(); r != nil {
			first := r // a copy, or every chunk would allocate
			p.panicked.CompareAndSwap(nil, &first)
		}
	}()
	lo := chunk * p.grain
	p.job.do(w, lo, min(lo+p.grain, p.units))
}

// parker lets one goroutine wait for a condition: first polling, then asleep.
type parker struct {
	parked atomic.Bool
	wake   chan struct{}
}

// wait returns when ready is true. Whoever makes it true must call unpark afterwards.
func (k *parker) wait(ready func() bool) {
	for !spin(ready) {
		k.parked.Store(true)
		if ready() && k.parked.CompareAndSwap(true, false) {
			return
		}
		<-k.wake // not ready, or unpark has seen parked and its token is coming
	}
}

func (k *parker) unpark() {
	if k.parked.CompareAndSwap(true, false) {
		k.wake <- struct{}{}
	}
}

// spin polls ready for about spinTime, yielding the processor meanwhile, and reports whether it
// became true.
func spin(ready func() bool) bool {
	var start time.Time
	for {
		for range 64 {
			if ready() {
				return true
			}
		}
		goruntime.Gosched()
		if start.IsZero() {
			start = time.Now()
		} else if time.Since(start) > spinTime {
			return false
		}
	}
}

// checkLen panics unless the operand has want elements.
func checkLen[E any](function, operand string, s []E, want int) {
	if want < 0 || len(s) != want {
		panic(fmt.Sprintf("BUG: kernel.%s: %s has %d elements, want %d", function, operand, len(s), want))
	}
}
