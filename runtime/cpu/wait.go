package cpu

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// counter counts what has happened and wakes those who wait for it. The numbers may
// be in memory that processes share.
type counter struct {
	id     int // for other processes
	n      *atomic.Int64
	least  []atomic.Int64 // by process: what the first of those parked there waits for; 0 for none
	others *others        // nil when there are none
	mu     sync.Mutex
	parked []parked // in this process
	asked  []asked  // by processes of other machines
}

// parked is a rank that waits for a count.
type parked struct {
	pool *kernel.Pool
	want int64
}

// asked is what a process of another machine waits for, on one of its streams: it is told once.
type asked struct {
	process int
	want    int64
}

// newCounter returns a counter of ranks of one process. Its count has lines of cache of its own, as it has in the table
// that processes share: one who waits for it reads it all the time.
func newCounter() *counter {
	own := new(struct {
		_ [lineBytes]byte
		n atomic.Int64
		_ [lineBytes - 8]byte
	})
	return &counter{n: &own.n, least: make([]atomic.Int64, 1)}
}

// lineBytes keeps apart what different ranks write: processors fetch lines of cache of 64 bytes in pairs.
const lineBytes = 128

// add counts some more, wakes those who wait for it, and returns the count.
func (c *counter) add(more int64) int64 {
	n := c.n.Add(more)
	for process := range c.least {
		if least := c.least[process].Load(); least == 0 || n < least {
			continue
		}
		if c.others == nil || process == c.others.self {
			c.wake()
		} else {
			c.others.ring(process, c, n)
		}
	}
	return n
}

// ask keeps what a process of another machine waits for.
func (c *counter) ask(process int, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, asked{process, n})
	c.noteAsked(process)
}

// answer forgets what a process of another machine has waited for up to n, and reports whether there was any.
func (c *counter) answer(process int, n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.asked)
	c.asked = slices.DeleteFunc(c.asked, func(a asked) bool { return a.process == process && a.want <= n })
	c.noteAsked(process)
	return len(c.asked) < before
}

func (c *counter) noteAsked(process int) {
	least := int64(0)
	for _, a := range c.asked {
		if a.process == process && (least == 0 || a.want < least) {
			least = a.want
		}
	}
	c.least[process].Store(least)
}

// wake wakes those of this process whose wait is over.
func (c *counter) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n.Load()
	c.parked = slices.DeleteFunc(c.parked, func(p parked) bool {
		if p.want > n {
			return false
		}
		p.pool.Wake()
		return true
	})
	c.note()
}

// note keeps what the first of those parked waits for.
func (c *counter) note() {
	least := int64(0)
	for _, p := range c.parked {
		if least == 0 || p.want < least {
			least = p.want
		}
	}
	self := 0
	if c.others != nil {
		self = c.others.self
	}
	c.least[self].Store(least)
}

// park has a pool that awaits the n-th be woken, unless that has happened.
func (c *counter) park(pool *kernel.Pool, n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parked = append(c.parked, parked{pool, n})
	if c.note(); c.n.Load() < n {
		return true
	}
	c.remove(pool)
	return false
}

// unpark ends the wait of a pool, which will not be woken any more.
func (c *counter) unpark(pool *kernel.Pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(pool)
}

func (c *counter) remove(pool *kernel.Pool) {
	c.parked = slices.DeleteFunc(c.parked, func(p parked) bool { return p.pool == pool })
	c.note()
}

// wait returns when c has reached n. late makes the error of a wait that takes
// too long.
func (d *Device) wait(c *counter, n int64, late func() []int) error {
	return d.waitFor(c, n, d.backend.world.Timeout, late)
}

// waitFor waits no longer than the given time. The rank looks for a moment before
// it parks, as waking a parked goroutine costs tens of microseconds and ranks that
// are in step meet sooner; parked, it holds no core.
func (d *Device) waitFor(c *counter, n int64, timeout time.Duration, late func() []int) error {
	if c.n.Load() >= n || d.pool.Lend(c.n, n) || d.backend.others.linger(d, c, n) {
		return nil
	}
	d.pool.Leave()
	if !c.park(d.pool, n) || d.pool.Await(d.backend.stopped, timeout, d.timer) {
		return nil
	}
	c.unpark(d.pool)
	d.pool.Withdraw()
	switch {
	case d.aborted():
		return runtime.ErrAborted
	case c.n.Load() >= n:
		late = d.backend.cores.Holders
	}
	return &runtime.WaitError{Ranks: late(), After: timeout}
}

// enter has the rank hold a core: every call that computes or copies starts so.
func (d *Device) enter() error {
	if d.pool.Enter() {
		return nil
	}
	timeout := d.backend.world.Timeout
	if d.pool.Await(d.backend.stopped, timeout, d.timer) {
		return nil
	}
	d.pool.Withdraw()
	if d.aborted() {
		return runtime.ErrAborted
	}
	return &runtime.WaitError{Ranks: d.backend.cores.Holders(), After: timeout}
}

// aborted reports whether the run has failed.
func (d *Device) aborted() bool {
	select {
	case <-d.backend.stopped:
		return true
	default:
		return false
	}
}

// stopped returns a timer that does not run.
func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
