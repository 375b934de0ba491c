package kernel

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// spinTime is how long an idle thread polls for work before it parks. Waking a parked goroutine
// costs tens of microseconds if its processor is running, and 200 in a virtual machine whose
// processor has halted: as much as a matrix product. A thread that polls as long as waking takes
// loses at most twice the unavoidable time.
const spinTime = 200 * time.Microsecond

// quantum is how long a pool may keep its core while others wait for one.
const quantum = 10 * time.Millisecond

// Cores are the processors that the pools of a process share. Whoever computes holds a core. The
// goroutine of a pool holds one while it has work. A core that no pool holds goes to a helper, a
// goroutine that takes chunks of the operation of any pool. A pool that waits for another rank lets
// its core take chunks too, and gives the core up if a pool with work has none. So no more
// goroutines compute than there are cores, and no core is idle while there is a chunk to take.
//
// Scratch memory of operations belongs to cores, so that it does not grow with the number of pools.
type Cores struct {
	isa   isa
	all   []*worker
	pools atomic.Pointer[[]*Pool] // all open pools; replaced by a new list when one opens or closes

	free   atomic.Int32 // number of idle cores
	wanted atomic.Int32 // number of pools that wait for a core

	mu     sync.Mutex
	idle   []*worker      // cores that nobody holds, the last used at the end
	queue  []*Pool        // pools that wait for a core, in order
	asleep []chan *worker // channels of helpers that wait for a core
	serial uint64         // number of pools opened so far
	closed bool
	exited sync.WaitGroup
}

// worker is a core: what one thread computes with.
type worker struct {
	isa  *isa
	last bool // takes chunks from the end of a job, not the front: see Pool.state
	buf  []float32

	packed       []float32                     // packed right-hand matrix of the current product
	packedSerial uint64                        // number of its column block: see productTask
	lines        [tileSide * tileSlice]float32 // see packSide

	holder *Pool                // nil for a helper or nobody; guarded by Cores.mu
	offer  atomic.Pointer[Pool] // the holder while it computes nothing
}

// scratch returns n float32 of the worker's memory with undefined contents. A task calls it once
// per chunk, because a second call returns the same memory.
func (w *worker) scratch(n int) []float32 {
	w.buf = grow(w.buf, n)
	return w.buf
}

// grow returns a slice of n elements with undefined contents: s itself if it is large enough.
func grow[E any](s []E, n int) []E {
	if cap(s) < n {
		return make([]E, n)
	}
	return s[:n]
}

// NewCores returns n cores, at least 1. Close ends their helpers.
func NewCores(n int) *Cores { return newCores(n, bestISA()) }

func newCores(n int, set isa) *Cores {
	if n < 1 {
		panic(fmt.Sprintf("BUG: kernel.NewCores: %d cores", n))
	}
	c := &Cores{isa: set}
	for range n {
		c.all = append(c.all, &worker{isa: &c.isa})
	}
	c.idle = slices.Clone(c.all)
	c.free.Store(int32(n))
	c.pools.Store(new([]*Pool))
	for range n - 1 { // the pool of an operation holds a core itself
		given := make(chan *worker, 1)
		c.asleep = append(c.asleep, given)
		c.exited.Go(func() { c.help(given) })
	}
	return c
}

// Count returns how many cores there are.
func (c *Cores) Count() int { return len(c.all) }

// Close ends the helpers and waits for them. No pool may be in an operation.
func (c *Cores) Close() {
	c.mu.Lock()
	c.closed = true
	for _, given := range c.asleep {
		close(given)
	}
	c.mu.Unlock()
	c.exited.Wait()
}

// NewPool opens a pool that holds no core yet. id is for [Cores.Holders].
func (c *Cores) NewPool(id int) *Pool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &Pool{cores: c, isa: c.isa, id: id, granted: make(chan *worker, 1)}
	p.caller.wake = make(chan struct{}, 1)
	c.serial++
	p.task.product.serial = c.serial << 40 // numbers of products differ between pools; a new worker has packed number 0
	pools := append(slices.Clone(*c.pools.Load()), p)
	c.pools.Store(&pools)
	return p
}

// Holders returns the ids of the pools that hold a core.
func (c *Cores) Holders() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []int
	for _, w := range c.all {
		if w.holder != nil && !slices.Contains(ids, w.holder.id) {
			ids = append(ids, w.holder.id)
		}
	}
	return ids
}

// Enter makes the pool hold a core, and reports whether it does. If none is free the pool is queued
// and must call [Pool.Await]. A pool that has held its core for a quantum gives it up if others
// wait.
func (p *Pool) Enter() bool {
	c := p.cores
	if p.retake(); p.core != nil {
		if c.wanted.Load() == 0 || time.Since(p.since) < quantum {
			return true
		}
		p.Leave()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.take()
	if w == nil {
		c.enqueue(p)
		return false
	}
	p.hold(w)
	return true
}

// Wake is called by another pool for one that is in Await or about to be. What it waits for has
// happened, so it needs a core.
func (p *Pool) Wake() {
	c := p.cores
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.take(); w != nil {
		p.grant(w)
	} else {
		c.enqueue(p)
	}
}

// take returns an idle core, or one that its holder offers, or nil. The caller holds c.mu.
func (c *Cores) take() *worker {
	if n := len(c.idle); n > 0 {
		w := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.free.Add(-1)
		return w
	}
	for _, w := range c.all {
		if of := w.offer.Load(); of != nil && w.offer.CompareAndSwap(of, nil) {
			return w
		}
	}
	return nil
}

func (c *Cores) enqueue(p *Pool) {
	c.queue = append(c.queue, p)
	c.wanted.Add(1)
}

func (p *Pool) hold(w *worker) { p.core, p.home, w.holder, p.since = w, w, p, time.Now() }

// grant gives a core to a pool that waits for one. The caller holds c.mu.
func (p *Pool) grant(w *worker) {
	w.holder, p.home = p, w
	p.granted <- w
}

// next returns the queue index of the pool that gets a core: the first one that held this core
// last, whose tensors are in its cache. A pool that is passed over takes any core from then on. The
// caller holds c.mu.
func (c *Cores) next(w *worker) int {
	at := max(0, slices.IndexFunc(c.queue, func(p *Pool) bool { return p.home == w || p.home == nil }))
	if at > 0 {
		c.queue[0].home = nil
	}
	return at
}

// Offer says that the pool's goroutine computes nothing at the moment. The pool keeps its core, and
// likely still has it when it enters again, but another pool may take it.
func (p *Pool) Offer() {
	if p.core != nil && !p.offered {
		p.offered = true
		p.core.offer.Store(p)
	}
}

// retake ends an offer. The pool holds no core if another has taken it.
func (p *Pool) retake() {
	if p.offered {
		p.offered = false
		if !p.core.offer.CompareAndSwap(p, nil) {
			p.core = nil
		}
	}
}

// Await returns true when the pool holds a core, for which Enter has queued it or Wake will. It
// returns false if stop is closed or the time is over before; the caller must then ensure that Wake
// is not called any more, and call Withdraw. It uses the timer. While the process is stopped, as by ^Z, nobody is late: of such
// a time at most a tenth of the timeout counts.
func (p *Pool) Await(stop <-chan struct{}, timeout time.Duration, timer *time.Timer) bool {
	defer timer.Stop()
	for left, since := timeout, time.Now(); ; {
		timer.Reset(min(quantum, left))
		select {
		case w := <-p.granted:
			p.core, p.since = w, time.Now()
			return true
		case <-stop:
			return false
		case now := <-timer.C:
			left -= min(now.Sub(since), max(quantum, timeout/10))
			if since = now; left <= 0 {
				return false
			}
			p.again()
		}
	}
}

// again looks for a core for a pool that is queued: one that was offered since may not be retaken
// soon.
func (p *Pool) again() {
	c := p.cores
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.Index(c.queue, p)
	if at < 0 {
		return
	}
	if w := c.take(); w != nil {
		c.dequeue(at)
		p.grant(w)
	}
}

// Withdraw ends a wait after Await has returned false.
func (p *Pool) Withdraw() {
	c := p.cores
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := slices.Index(c.queue, p); at >= 0 {
		c.dequeue(at)
	}
	select {
	case w := <-p.granted:
		c.put(w)
	default:
	}
}

func (c *Cores) dequeue(at int) {
	c.queue = slices.Delete(c.queue, at, at+1)
	c.wanted.Add(-1)
}

// Leave gives up the pool's core, if it holds one.
func (p *Pool) Leave() {
	if p.retake(); p.core == nil {
		return
	}
	p.cores.mu.Lock()
	defer p.cores.mu.Unlock()
	p.cores.put(p.core)
	p.core = nil
}

// Lend waits until n has reached want, but only for a moment, and reports whether it has. Meanwhile
// the pool's core computes for other pools. Lend returns at once if a pool with work waits for a
// core, or if this pool holds none.
func (p *Pool) Lend(n *atomic.Int64, want int64) bool {
	if p.retake(); p.core == nil {
		return n.Load() >= want
	}
	return p.cores.serve(p.core, n, want)
}

// Wanted reports whether a pool with work waits for a core.
func (c *Cores) Wanted() bool { return c.wanted.Load() > 0 }

// serve computes chunks of any pool's operation. It returns true when n, unless it is nil, has
// reached want, and false when a pool wants the core or there has been no chunk for spinTime.
func (c *Cores) serve(w *worker, n *atomic.Int64, want int64) bool {
	var since time.Time
	for {
		for range 64 {
			if n != nil && n.Load() >= want {
				return true
			}
			if p := c.open(); p != nil && c.wanted.Load() == 0 && p.chunk(w, false) {
				since = time.Time{}
			}
		}
		if c.wanted.Load() > 0 {
			return false
		}
		if since.IsZero() {
			since = time.Now()
		} else if time.Since(since) > spinTime {
			return false
		}
		goruntime.Gosched()
	}
}

// put gives a core to a pool that waits for one, or else makes it idle, for a helper. The caller
// holds c.mu.
func (c *Cores) put(w *worker) {
	w.holder = nil
	if len(c.queue) > 0 {
		at := c.next(w)
		p := c.queue[at]
		c.dequeue(at)
		p.grant(w)
		return
	}
	c.idle = append(c.idle, w)
	c.free.Add(1)
	// A pool publishes an operation and then looks for idle cores. Here it is the other way round:
	// the core is made idle first, then operations are looked for. So one of the two sees the
	// other.
	if c.open() != nil {
		c.rouse()
	}
}

// rouse gives an idle core to a helper, and reports whether there were both. The caller holds c.mu.
func (c *Cores) rouse() bool {
	cores, helpers := len(c.idle), len(c.asleep)
	if cores == 0 || helpers == 0 || c.closed {
		return false
	}
	c.asleep[helpers-1] <- c.idle[cores-1]
	c.idle, c.asleep = c.idle[:cores-1], c.asleep[:helpers-1]
	c.free.Add(-1)
	return true
}

// summon gives up to n idle cores to helpers.
func (c *Cores) summon(n int) {
	if c.free.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; n > 0 && c.rouse(); n-- {
	}
}

// open returns a pool whose operation has chunks that nobody has taken, or nil.
func (c *Cores) open() *Pool {
	for _, p := range *c.pools.Load() {
		if p.left() > 0 {
			return p
		}
	}
	return nil
}

// help is the goroutine of a helper: it computes whenever it is given a core.
func (c *Cores) help(given chan *worker) {
	for w := range given {
		c.serve(w, nil, 0)
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return
		}
		c.asleep = append(c.asleep, given)
		c.put(w)
		c.mu.Unlock()
	}
}
