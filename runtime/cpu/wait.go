package cpu

import (
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/autopar/autopar/runtime"
)

// spinTime is how long a rank looks before it parks. Waking a parked goroutine
// costs tens of microseconds; ranks that are in step meet sooner.
const spinTime = 50 * time.Microsecond

// counter counts what has happened and wakes those who wait for it. The zero
// value is ready for use.
type counter struct {
	n       atomic.Int64
	waiting atomic.Int32 // whether parked holds any
	mu      sync.Mutex
	parked  []*parker
}

// add counts one more and wakes everybody who waits.
func (c *counter) add() {
	c.n.Add(1)
	if c.waiting.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.parked {
		p.unpark()
	}
	c.parked = c.parked[:0]
	c.waiting.Store(0)
}

// park notes that p waits, to be woken by the next add.
func (c *counter) park(p *parker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parked = append(c.parked, p)
	c.waiting.Store(1)
}

// parker is where one goroutine sleeps. It may be woken without cause.
type parker struct {
	wake  chan struct{}
	timer *time.Timer
}

func newParker() *parker {
	p := &parker{wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	p.timer.Stop()
	return p
}

func (p *parker) unpark() {
	select {
	case p.wake <- struct{}{}:
	default: // it is waking up already
	}
}

// wait returns when c has reached n. late makes the error of a wait that takes
// too long.
func (d *Device) wait(c *counter, n int64, late func() []int) error {
	return d.waitFor(c, n, d.backend.world.Timeout, late)
}

// waitFor waits no longer than the given time.
func (d *Device) waitFor(c *counter, n int64, timeout time.Duration, late func() []int) error {
	if c.n.Load() >= n {
		return nil
	}
	start := time.Now()
	for time.Since(start) < spinTime {
		for range 64 {
			if c.n.Load() >= n {
				return nil
			}
		}
		goruntime.Gosched() // there may be more ranks than processors
	}
	d.parker.timer.Reset(timeout - time.Since(start))
	defer d.parker.timer.Stop()
	for {
		c.park(d.parker)
		if c.n.Load() >= n {
			return nil
		}
		select {
		case <-d.parker.wake:
			if c.n.Load() >= n {
				return nil
			}
		case <-d.backend.stopped:
			return runtime.ErrAborted
		case <-d.parker.timer.C:
			return &runtime.WaitError{Ranks: late(), After: timeout}
		}
	}
}
