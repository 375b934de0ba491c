// This file has the Executor: it opens the devices, runs one goroutine per rank, gives all ranks a
// job at a time, and stops all of them at the first failure. Package train calls it, as do tests of
// backends. load.go makes programs ready, step.go runs steps, rank.go is the goroutine of a rank,
// peers.go is for runs of several processes, param.go reads and writes parameters.

package runtime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/launch"
)

// Options of an executor. The zero value is ready for use.
type Options struct {
	// Timeout bounds every wait of one rank for another; 0 is five minutes.
	Timeout time.Duration
	// Trace, if set, is called with every instruction that has run. Ranks and streams call it
	// concurrently.
	Trace func(Span)
	// Peers are the processes of the run, each with one rank. Every process has an executor and
	// calls the same methods in the same order. It is nil if all ranks are in this process.
	Peers *launch.Peers
}

const defaultTimeout = 5 * time.Minute

// grace is how long ranks have to stop after a failure. A rank that does not stop is left behind.
const grace = 5 * time.Second

func (o *Options) validate() error {
	if o.Timeout < 0 {
		return fmt.Errorf("runtime: timeout is %v, want at least 0", o.Timeout)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	return nil
}

// Executor runs programs on the devices of one world. It has one goroutine per rank of this
// process. Its programs share the arenas, so parameters at the same place are the same parameters.
// Methods may be called from any goroutine; they run one at a time.
//
// The first failure of any rank stops all of them for good. Every later step returns the same
// error.
type Executor struct {
	opts    Options
	backend Backend
	here    []*rank  // of this process, in order
	first   int      // number of the first of them
	done    chan int // ranks that have finished the current job send their numbers
	timer   *time.Timer

	mu       sync.Mutex // held by the method in progress
	programs map[*codegen.Program]*program
	groups   map[string]int // numbers of groups, by stream and world ranks
	wires    int
	// events is how many events each rank had recorded before the current step, by stream.
	events [Host][]int64
	word   [4]byte // the bytes of an output while it is read
	begun  []begun // steps that are not finished, oldest first
	late   bool    // all devices are [Late]
	meets  bool    // transfers are meetings: all devices are [Meeter] and say so
	closed bool
	shared shared // of the last step, in a run of several processes

	failMu sync.Mutex
	err    error // the first failure
}

// Outputs are the scalar outputs of a step by name. The executor owns the map. It is valid until
// the next step of the program.
type Outputs map[string]float32

// New opens a device for each rank of this process and loads the program.
func New(prog *codegen.Program, backend Backend, opts Options) (*Executor, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	n := len(prog.Schedules)
	if opts.Peers != nil && opts.Peers.World() != n {
		return nil, fmt.Errorf("runtime: program %s is for %d ranks, the run has %d processes", prog.Graph.Name, n, opts.Peers.World())
	}
	world := World{Ranks: n, Timeout: opts.Timeout, Peers: opts.Peers}
	first, end := world.Here()
	devices, err := backend.Open(world)
	if err != nil {
		return nil, fmt.Errorf("runtime: opening %d devices: %w", end-first, err)
	}
	e := &Executor{
		opts: opts, backend: backend, first: first, done: make(chan int, end-first), timer: time.NewTimer(opts.Timeout),
		programs: map[*codegen.Program]*program{}, groups: map[string]int{},
	}
	for s := range e.events {
		e.events[s] = make([]int64, n)
	}
	e.late, e.meets = true, true
	for i, d := range devices {
		if _, ok := d.(Late); !ok {
			e.late = false
		}
		if m, ok := d.(Meeter); !ok || !m.Meets() {
			e.meets = false
		}
		r := &rank{id: first + i, exec: e, device: d, jobs: make(chan job, 1), exited: make(chan struct{})}
		e.here = append(e.here, r)
		go r.serve()
	}
	if err := e.Add(prog); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// local returns a rank of this process, or nil if it is in another.
func (e *Executor) local(rank int) *rank {
	if i := rank - e.first; i >= 0 && i < len(e.here) {
		return e.here[i]
	}
	return nil
}

// ReadOutput copies an output of the last step to dst. The output may have any shape; dst has one
// element for each of its elements.
func (e *Executor) ReadOutput(prog *codegen.Program, name string, dst []float32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, err := e.ready(prog)
	if err != nil {
		return err
	}
	v := prog.Graph.Output(name)
	if v == nil {
		return fmt.Errorf("runtime: program %s has no output %q", prog.Graph.Name, name)
	}
	if n := v.Type.Elems(); v.Type.DType != ir.F32 || int64(len(dst)) != n {
		return fmt.Errorf("runtime: output %s is %s, cannot be read into %d elements", name, v.Type, len(dst))
	}
	o := p.output(name, v)
	r := e.local(o.rank)
	if r == nil {
		return fmt.Errorf("runtime: output %s is on rank %d, in another process", name, o.rank)
	}
	return r.device.Download(floatBytes(dst), OnDevice, o.offset)
}

// Counters returns what a rank communicated in the last step.
func (e *Executor) Counters(rank int) Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.local(rank); r != nil {
		return r.counters
	}
	return e.shared.counters[rank]
}

// Computed returns how long a rank computed in the last step, without the time that it communicated
// or waited. It is 0 in a run of one process, and with [Late] devices, whose time the host does not
// see.
func (e *Executor) Computed(rank int) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.late || e.shared.computed == nil {
		return 0
	}
	return e.shared.computed[rank]
}

// Ranks returns the number of ranks, including those of other processes.
func (e *Executor) Ranks() int { return len(e.events[Compute]) }

// Here returns the ranks of this process, in order.
func (e *Executor) Here() []int {
	var ranks []int
	for _, r := range e.here {
		ranks = append(ranks, r.id)
	}
	return ranks
}

// Unwritten is how many bytes of this machine's memory the arenas of this process will take once
// its ranks have written them: see [Hosted].
func (e *Executor) Unwritten() (bytes int64) {
	for _, r := range e.here {
		if d, ok := r.device.(Hosted); ok {
			bytes += d.Unwritten()
		}
	}
	return bytes
}

// Timeout bounds every wait of one rank for another.
func (e *Executor) Timeout() time.Duration { return e.opts.Timeout }

// Peers returns the processes of the run, nil when this is the only one.
func (e *Executor) Peers() *launch.Peers { return e.opts.Peers }

// Arithmetic names the kernels of this process (see [Arithmetic]), or is "" if the backend names
// none.
func (e *Executor) Arithmetic() string {
	if b, ok := e.backend.(Arithmetic); ok {
		return b.Arithmetic()
	}
	return ""
}

// Close stops the ranks and frees their devices. It returns even if a rank hangs; the error says
// so.
func (e *Executor) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	for _, r := range e.here {
		close(r.jobs)
	}
	bounded, cancel := context.WithTimeout(context.Background(), min(e.opts.Timeout, grace))
	defer cancel()
	var errs []error
	for _, r := range e.here {
		if !r.gone(bounded) {
			// It is using its device still.
			errs = append(errs, fmt.Errorf("runtime: rank %d hangs, its device stays open", r.id))
			continue
		}
		errs = append(errs, r.device.Close())
	}
	return errors.Join(errs...)
}

// gone waits until the rank's goroutine has exited, and reports whether it has before the context
// ends.
func (r *rank) gone(bounded context.Context) bool {
	select {
	case <-r.exited:
		return true
	case <-bounded.Done():
	}
	select {
	case <-r.exited:
		return true
	default:
		return false
	}
}

// ready returns the loaded form of a program, or the reason why nothing can run.
func (e *Executor) ready(prog *codegen.Program) (*program, error) {
	if err := e.failure(); err != nil {
		return nil, err
	}
	p, ok := e.programs[prog]
	if !ok {
		return nil, fmt.Errorf("runtime: program %s is not loaded", prog.Graph.Name)
	}
	return p, nil
}

var errClosed = errors.New("runtime: the executor is closed")

// fail records the first failure, stops all ranks, and returns the first failure.
func (e *Executor) fail(err error) error {
	e.failMu.Lock()
	defer e.failMu.Unlock()
	if e.err == nil {
		e.err = err
		e.backend.Abort()
		if e.opts.Peers != nil {
			e.opts.Peers.Fail(err)
		}
	}
	return e.err
}

// failure returns the reason why nothing can run, or nil.
func (e *Executor) failure() error {
	if e.closed {
		return errClosed
	}
	e.failMu.Lock()
	defer e.failMu.Unlock()
	return e.err
}

// runAll gives every rank a job and waits until all are done. It also watches that ranks make
// progress. A device bounds its own waits by the timeout, so a rank that stays at one place for
// longer hangs. After a failure ranks have a grace period to stop; one that does not is left
// behind.
func (e *Executor) runAll(j job) error {
	for _, r := range e.here {
		r.finished, r.stalls = false, 0
		r.jobs <- j
	}
	var elsewhere <-chan struct{} // closed at a failure of another process
	if e.opts.Peers != nil {
		elsewhere = e.opts.Peers.Failed()
	}
	tick := e.opts.Timeout / 2
	e.timer.Reset(tick)
	defer e.timer.Stop()
	failing := false
	for left := len(e.here); left > 0; {
		select {
		case id := <-e.done:
			e.local(id).finished = true
			left--
		case <-elsewhere:
			elsewhere = nil
			e.fail(e.here[0].describe(e.opts.Peers.Err()))
		case <-e.timer.C:
			if failing {
				return e.failure()
			}
			for _, r := range e.here {
				if !r.finished && r.stalled() {
					e.fail(r.describe(fmt.Errorf("hangs: no progress for %v", tick*stallTicks)))
				}
			}
			e.timer.Reset(tick)
		}
		if !failing && e.failure() != nil {
			failing = true
			e.timer.Reset(min(e.opts.Timeout, grace))
		}
	}
	return e.failure()
}
