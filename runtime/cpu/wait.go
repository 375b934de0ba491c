package cpu

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// How ranks wait for each other. Everything that a rank waits for is a counter that only grows:
// events, messages, arrivals at collectives. A waiting rank first lends its core, then polls for a
// moment, then parks.

// counter is a count that ranks can wait for. Its numbers may be in memory that processes share.
type counter struct {
	id     int // number of the counter, in messages to other processes
	n      *atomic.Int64
	least  []atomic.Int64 // by process: the smallest count that a rank parked there waits for, 0 if none
	others *others        // nil in a world of one process
	mu     sync.Mutex     // guards parked and asked
	parked []parked       // ranks of this process
	asked  []asked        // requests of processes on other machines
}

// parked is a rank that waits until a counter has reached want.
type parked struct {
	pool *kernel.Pool
	want int64
}

// asked is a request of a process on another machine, to tell it once when the counter has reached want. Each
// of its streams may have one.
type asked struct {
	process int
	want    int64
}

// newCounter returns a counter for ranks of one process. The count has cache lines of its own,
// because waiting ranks read it all the time. (Counters in the table that processes share are laid
// out so too.)
func newCounter() *counter {
	own := new(struct {
		_ [lineBytes]byte
		n atomic.Int64
		_ [lineBytes - 8]byte
	})
	return &counter{n: &own.n, least: make([]atomic.Int64, 1)}
}

// lineBytes keeps what different ranks write on different cache lines, which processors fetch in
// pairs of 64 bytes.
const lineBytes = 128

// add adds to the count, wakes ranks whose wait is over, and returns the new count.
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

// ask records a request of a process on another machine.
func (c *counter) ask(process int, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, asked{process, n})
	c.setLeast(process)
}

// answer removes the requests of a process for counts up to n, and reports whether there were any.
func (c *counter) answer(process int, n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.asked)
	c.asked = slices.DeleteFunc(c.asked, func(a asked) bool { return a.process == process && a.want <= n })
	c.setLeast(process)
	return len(c.asked) < before
}

func (c *counter) setLeast(process int) {
	least := int64(0)
	for _, a := range c.asked {
		if a.process == process && (least == 0 || a.want < least) {
			least = a.want
		}
	}
	c.least[process].Store(least)
}

// wake wakes the ranks of this process whose wait is over.
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

// note updates the smallest count that this process waits for.
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

// park registers a pool to be woken at count n. It returns false if the count has reached n
// already.
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

// unpark removes a pool that stops waiting.
func (c *counter) unpark(pool *kernel.Pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(pool)
}

func (c *counter) remove(pool *kernel.Pool) {
	c.parked = slices.DeleteFunc(c.parked, func(p parked) bool { return p.pool == pool })
	c.note()
}

// wait waits until c has reached n, at most for the world's timeout. late lists the ranks to blame
// in the error.
func (d *Device) wait(c *counter, n int64, late func() []int) error {
	return d.waitFor(c, n, d.backend.world.Timeout, late)
}

// waitFor is wait with another timeout. The rank first lends its core and polls for a moment:
// waking a parked goroutine costs tens of microseconds, and ranks in step meet sooner. A parked
// rank holds no core.
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

// enter acquires a core for the rank. Every call that computes or copies begins with it.
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

// stopped returns a timer that is not running.
func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
