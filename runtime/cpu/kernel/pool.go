package kernel

import (
	"fmt"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"
)

// spinTime is how long an idle worker looks for work before it parks. Waking a parked goroutine costs tens of microseconds,
// as much as a small matrix product; operations of one training step follow each other closer than this.
const spinTime = 40 * time.Microsecond

// Pool is the set of threads that one rank computes with: the calling goroutine and threads-1 worker goroutines, which spin
// briefly between operations and then park. It also owns the scratch memory of the operations, so that none allocates once
// its sizes have been seen.
//
// A Pool runs one operation at a time and must not be shared by goroutines. A nil *Pool computes in the caller and
// allocates its scratch anew on each call.
type Pool struct {
	isa     isa
	workers []*worker // workers[0] is the calling goroutine
	task    tasks

	maxGrain int // when positive, the largest chunk of units: tests cut small work with it

	partial []float32 // per-chunk partial sums of a reduction
	sums    []float64
	squares []squareSum

	// The current job. Its fields are written before state publishes it and read only by a worker that holds a chunk of it.
	job                  task
	units, grain, chunks int

	// Which chunks nobody has taken yet: 16 bits of the first one's number, 16 of how many there are from it on; above them
	// the number of the job. The caller takes the first, the workers the last, so that a core tends to get the same part of
	// a tensor in one operation after another and finds it in its cache.
	state atomic.Uint64
	done  atomic.Int64 // chunks finished
	// panicked is the first panic of the current job.
	panicked atomic.Pointer[any]
	caller   parker
	closed   atomic.Bool
	exited   sync.WaitGroup
}

// maxChunks is the largest number of chunks of a job, and the mask of 16 bits.
const maxChunks = 1<<16 - 1

// task is one operation with its operands. do computes the units [lo, hi) of it, using w's scratch memory.
type task interface {
	do(w *worker, lo, hi int)
}

// tasks holds the operands of the operation in flight, one field an operation, so that starting one allocates nothing.
type tasks struct {
	product      productTask
	tiles        tileTask
	dots         dotsTask
	unary        unaryTask
	binary       binaryTask
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

// worker is one thread of a pool and its scratch memory.
type worker struct {
	isa  *isa
	last bool // takes the last chunk of a job, not the first: see Pool.state
	buf  []float32

	packed       []float32                      // right-hand matrix of the product in flight
	packedSerial uint64                         // number of the column block: see productTask
	lines        [tileSide * tileSlice]float32  // see packSide
	block        [tileLines * tileLines]float32 // see edge

	parker parker
	ready  func() bool
}

// scratch returns n float32 of the worker's memory with undefined contents. A task calls it once a chunk: a second call
// returns the same memory.
func (w *worker) scratch(n int) []float32 {
	w.buf = grow(w.buf, n)
	return w.buf
}

// grow returns a slice of n elements with undefined contents, s itself where it is large enough.
func grow[E any](s []E, n int) []E {
	if cap(s) < n {
		return make([]E, n)
	}
	return s[:n]
}

// NewPool starts a pool of the given number of threads, at least 1, counting the caller. Close ends it.
func NewPool(threads int) *Pool { return newPool(threads, bestISA()) }

func newPool(threads int, set isa) *Pool {
	if threads < 1 {
		panic(fmt.Sprintf("BUG: kernel.NewPool: %d threads", threads))
	}
	p := &Pool{isa: set}
	p.task.product.serial = 1 // 0 is what a new worker has packed
	p.caller.wake = make(chan struct{}, 1)
	for i := range threads {
		w := &worker{isa: &p.isa, last: i > 0}
		p.workers = append(p.workers, w)
		if i == 0 {
			continue
		}
		w.parker.wake = make(chan struct{}, 1)
		w.ready = func() bool { return uint32(p.state.Load())>>16 != 0 || p.closed.Load() }
		p.exited.Add(1)
		go p.serve(w)
	}
	return p
}

// Threads returns the number of threads, counting the caller; 1 for a nil pool.
func (p *Pool) Threads() int {
	if p == nil {
		return 1
	}
	return len(p.workers)
}

// Close ends the worker goroutines and waits for them. The pool must be idle, and is of no use afterwards.
func (p *Pool) Close() {
	if p == nil {
		return
	}
	p.closed.Store(true)
	for _, w := range p.workers[1:] {
		w.parker.unpark()
	}
	p.exited.Wait()
}

// orInline returns p, or for nil a pool that computes in the caller.
func (p *Pool) orInline() *Pool {
	if p == nil {
		return newPool(1, bestISA())
	}
	return p
}

// run computes units [0, units) of t in chunks of grain units and returns when all are done. Which worker gets which chunk
// varies from run to run, so a task's result must not depend on it.
func (p *Pool) run(t task, units, grain int) {
	grain = max(grain, 1)
	if p.maxGrain > 0 {
		grain = min(grain, p.maxGrain)
	}
	if units <= 0 {
		return
	}
	if len(p.workers) == 1 || units <= grain {
		t.do(p.workers[0], 0, units)
		return
	}
	grain = max(grain, (units+maxChunks-1)/maxChunks)
	p.job, p.units, p.grain, p.chunks = t, units, grain, (units+grain-1)/grain
	p.done.Store(0)
	next := p.state.Load()>>32 + 1
	p.state.Store(next<<32 | uint64(p.chunks)<<16)
	for _, w := range p.workers[1:] {
		w.parker.unpark()
	}
	p.drain(p.workers[0])
	for !p.finished() {
		p.caller.wait(p.finished)
	}
	if r := p.panicked.Swap(nil); r != nil {
		panic(*r)
	}
}

func (p *Pool) finished() bool { return p.done.Load() == int64(p.chunks) }

func (p *Pool) serve(w *worker) {
	defer p.exited.Done()
	for {
		w.parker.wait(w.ready)
		if p.closed.Load() {
			return
		}
		p.drain(w)
	}
}

// drain takes chunks of the current job until none is left. Holding a chunk keeps the job from ending, hence its fields
// from changing; a worker that wakes late finds no chunk and touches nothing.
func (p *Pool) drain(w *worker) {
	for {
		s := p.state.Load()
		first, left := int(s&maxChunks), int(s>>16&maxChunks)
		if left == 0 {
			return
		}
		rest, chunk := s-1<<16, first+left-1
		if w == p.workers[0] {
			rest, chunk = rest+1, first
		}
		if !p.state.CompareAndSwap(s, rest) {
			continue
		}
		chunks := p.chunks
		p.compute(w, chunk)
		if p.done.Add(1) == int64(chunks) {
			p.caller.unpark()
		}
	}
}

// compute does one chunk. A panic is kept for the caller of run: on a worker's goroutine nobody could recover it.
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

// parker lets one goroutine wait for a condition: spinning first, then asleep.
type parker struct {
	parked atomic.Bool
	wake   chan struct{}
}

// wait returns when ready does. Whoever makes the condition true calls unpark afterwards.
func (k *parker) wait(ready func() bool) {
	for !spin(ready) {
		k.parked.Store(true)
		if ready() && k.parked.CompareAndSwap(true, false) {
			return
		}
		<-k.wake // not ready, or unpark has seen parked and its token is on the way
	}
}

func (k *parker) unpark() {
	if k.parked.CompareAndSwap(true, false) {
		k.wake <- struct{}{}
	}
}

// spin looks at ready for about spinTime, yielding the processor between looks, and reports whether it held.
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
