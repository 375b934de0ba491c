package runtime

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// Options of an executor. The zero value is ready for use.
type Options struct {
	// Timeout bounds every wait of one rank for another; 0 is five minutes.
	Timeout time.Duration
	// Trace, when set, is told of every instruction. Ranks and their streams call it
	// concurrently.
	Trace func(Span)
}

const defaultTimeout = 5 * time.Minute

// grace is how long after a failure the ranks get to stop. A rank that does not
// is left behind.
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

// Executor runs programs on the devices of one world, one goroutine a rank. Its
// programs share the devices' arenas, so parameters that lie at the same place
// are the same parameters. Methods may be called from any goroutine, and wait
// for each other.
//
// The first failure of any rank stops all of them, for good: every later step
// returns the same error.
type Executor struct {
	opts    Options
	backend Backend
	ranks   []*rank
	done    chan int // ranks that have finished the job in hand
	timer   *time.Timer

	mu       sync.Mutex // held by the method in progress
	programs map[*codegen.Program]*program
	groups   map[string]int // by stream and world ranks
	wires    int
	// events is how many events each rank had recorded before this step, by stream.
	events [Host][]int64
	word   [4]byte // an output on its way
	begun  []begun // steps that are not finished, oldest first
	late   bool    // all devices are [Late]
	closed bool

	failMu sync.Mutex
	err    error // the first failure
}

// Outputs are the scalar outputs of a step by name. The map is the executor's:
// it is valid until the program's next step.
type Outputs map[string]float32

// New opens one device for each rank of the program and loads the program.
func New(prog *codegen.Program, backend Backend, opts Options) (*Executor, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	n := len(prog.Schedules)
	devices, err := backend.Open(World{Ranks: n, Timeout: opts.Timeout})
	if err != nil {
		return nil, fmt.Errorf("runtime: opening %d devices: %w", n, err)
	}
	e := &Executor{
		opts: opts, backend: backend, done: make(chan int, n), timer: time.NewTimer(opts.Timeout),
		events:   [Host][]int64{make([]int64, n), make([]int64, n)},
		programs: map[*codegen.Program]*program{}, groups: map[string]int{},
	}
	e.late = true
	for i, d := range devices {
		if _, ok := d.(Late); !ok {
			e.late = false
		}
		r := &rank{id: i, exec: e, device: d, jobs: make(chan job, 1), exited: make(chan struct{})}
		e.ranks = append(e.ranks, r)
		go r.serve()
	}
	if err := e.Add(prog); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// ReadOutput copies an output of the last step, of any shape, to dst, which has
// one element for each of its.
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
	return e.ranks[o.rank].device.Download(floatBytes(dst), OnDevice, o.offset)
}

// Counters returns what a rank communicated in the last step.
func (e *Executor) Counters(rank int) Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ranks[rank].counters
}

// Ranks returns the number of ranks.
func (e *Executor) Ranks() int { return len(e.ranks) }

// Close stops the ranks and frees their devices. It returns even if a rank hangs,
// and says so.
func (e *Executor) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	for _, r := range e.ranks {
		close(r.jobs)
	}
	deadline := time.NewTimer(min(e.opts.Timeout, grace))
	defer deadline.Stop()
	var errs []error
	for _, r := range e.ranks {
		select {
		case <-r.exited:
			errs = append(errs, r.device.Close())
		case <-deadline.C:
			// It is using its device still.
			errs = append(errs, fmt.Errorf("runtime: rank %d hangs, its device stays open", r.id))
			deadline.Reset(0)
		}
	}
	return errors.Join(errs...)
}

// ready returns a loaded program, or why nothing can run.
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

// fail notes the first failure, stops all ranks and returns the first failure.
func (e *Executor) fail(err error) error {
	e.failMu.Lock()
	defer e.failMu.Unlock()
	if e.err == nil {
		e.err = err
		e.backend.Abort()
	}
	return e.err
}

// failure returns why nothing can run: the first failure, or nil.
func (e *Executor) failure() error {
	if e.closed {
		return errClosed
	}
	e.failMu.Lock()
	defer e.failMu.Unlock()
	return e.err
}

// runAll gives every rank a job and waits until all are done. It watches that
// ranks get ahead: a device bounds its own waits by the timeout, so a rank that
// stays at one place for longer hangs. After a failure ranks get a moment to
// stop; one that does not is left behind.
func (e *Executor) runAll(j job) error {
	for _, r := range e.ranks {
		r.finished, r.stalls = false, 0
		r.jobs <- j
	}
	tick := e.opts.Timeout / 2
	e.timer.Reset(tick)
	defer e.timer.Stop()
	failing := false
	for left := len(e.ranks); left > 0; {
		select {
		case id := <-e.done:
			e.ranks[id].finished = true
			left--
		case <-e.timer.C:
			if failing {
				return e.failure()
			}
			for _, r := range e.ranks {
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
