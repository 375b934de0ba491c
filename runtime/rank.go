// This file has the goroutine of a rank: it goes through the actions of a step and hands each to
// the device, between the waits and events that order the streams. It also says where a rank is,
// for reports of failures and for the watch over hanging ranks.

package runtime

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// job is something that every rank does.
type job struct {
	do   func(*rank) error
	of   *program // whose step it is, nil for other jobs
	step int64    // number of that step, for reports
}

// at returns the job for the step of the given number.
func (j job) at(step int64) job {
	j.step = step
	return j
}

// rank drives one device. Its goroutine lives as long as the executor.
type rank struct {
	id       int
	exec     *Executor
	device   Device
	jobs     chan job
	exited   chan struct{}
	counters Counters
	words    []byte // scalar outputs of the step that was finished last, of [Late] devices
	// In the last step: how long the rank computed, and how long it communicated or waited.
	computed, apart time.Duration

	// Where the rank is: the program, and the indexes of the task and of its action. Reports of
	// failures and the watch over progress read them.
	program atomic.Pointer[program]
	place   atomic.Int64           // task << 32 | action
	number  atomic.Int64           // of the step
	sending atomic.Pointer[posted] // the posted sends that it waits for, if any

	// Used by [Executor.runAll] alone, which watches over progress.
	finished bool
	seen     int64
	stalls   int
}

// stallTicks is how many looks in a row must find a rank at the same place.
const stallTicks = 3

func (r *rank) stalled() bool {
	if at := r.place.Load(); at != r.seen {
		r.seen, r.stalls = at, 0
	}
	r.stalls++
	return r.stalls > stallTicks
}

func (r *rank) serve() {
	defer close(r.exited)
	for j := range r.jobs {
		r.place.Store(0)
		r.sending.Store(nil)
		r.number.Store(j.step)
		r.program.Store(j.of)
		if err := r.guard(j); err != nil {
			r.exec.fail(r.describe(err)) // ErrAborted follows the first failure
		}
		r.exec.done <- r.id
	}
}

// guard runs a job and turns a panic into an error with the stack.
func (r *rank) guard(j job) (err error) {
	defer func() {
		if x := recover(); x != nil {
			err = Panicked(x)
		}
	}()
	return j.do(r)
}

// step runs the rank's tasks of one step. Between the actions it makes the compute stream wait for
// the other streams where the program says so; at the end of each task it records an event, for peers
// that send to this rank.
func (r *rank) step(p *program, start time.Time) error {
	r.counters, r.apart = Counters{}, 0
	began := time.Now()
	trace := r.exec.opts.Trace
	var done int64 // events recorded on the compute stream in this step
	for t := range p.tasks[r.id] {
		task := &p.tasks[r.id][t]
		r.place.Store(int64(t) << 32)
		// An update reads what all collectives before it have made.
		if given := task.before[Communication]; task.Phase == ir.Update && given > 0 {
			if err := r.waitFor(Communication, given); err != nil {
				return err
			}
		}
		if task.awaitSends != nil {
			if err := r.waitSent(task.awaitSends); err != nil {
				return err
			}
		}
		for i := range task.actions {
			r.place.Store(int64(t)<<32 | int64(i))
			a := task.actions[i]
			if a.awaitBuckets > 0 {
				if err := r.waitFor(Communication, task.before[Communication]+int64(a.awaitBuckets)); err != nil {
					return err
				}
			}
			if a.awaitExchanges > 0 {
				if err := r.waitFor(Exchange, task.before[Exchange]+int64(a.awaitExchanges)); err != nil {
					return err
				}
			}
			if a.expects {
				if err := r.device.(Meeter).Expect(a.transfer); err != nil {
					return err
				}
				continue
			}
			if a.stream() != Compute {
				done++
				if err := r.give(a, done); err != nil {
					return err
				}
				continue
			}
			var begin time.Duration
			if trace != nil {
				begin = time.Since(start)
			}
			if err := r.act(a); err != nil {
				return err
			}
			if trace != nil {
				trace(Span{Rank: r.id, Phase: task.Phase, MicroBatch: task.MicroBatch, Op: a.node.Op, Name: a.node.Name, Start: begin, End: time.Since(start), With: a.with, Part: a.part, Parts: a.parts})
			}
		}
		r.place.Store(int64(t)<<32 | int64(len(task.actions)))
		if task.bucketsDone > 0 {
			if err := r.waitFor(Communication, task.before[Communication]+int64(task.bucketsDone)); err != nil {
				return err
			}
		}
		if task.endSends != nil {
			if err := r.waitSent(task.endSends); err != nil {
				return err
			}
		}
		done++
		if err := r.device.Record(Compute); err != nil {
			return err
		}
	}
	r.computed = time.Since(began) - r.apart
	return r.end(p, done)
}

// waitFor holds the compute stream back until event n of this step of another stream has happened.
func (r *rank) waitFor(s Stream, n int64) error {
	began := time.Now()
	err := r.device.Wait(Compute, Event{r.id, s, r.exec.events[s][r.id] + n})
	r.apart += time.Since(began)
	return err
}

// waitSent holds the compute stream back until posted sends are done. If that fails, the last of these sends is
// where the rank is.
func (r *rank) waitSent(p *posted) error {
	r.sending.Store(p)
	err := r.waitFor(Transfers, p.n)
	if err == nil {
		r.sending.Store(nil)
	}
	return err
}

// give hands a collective or transfer to its own stream. It starts when all work given to the
// compute stream before is done. n is the number, in this step, of the compute event that says so.
func (r *rank) give(a *action, n int64) error {
	if err := r.device.Record(Compute); err != nil {
		return err
	}
	if err := r.device.Wait(a.stream(), Event{r.id, Compute, r.exec.events[Compute][r.id] + n}); err != nil {
		return err
	}
	if err := r.exchange(a); err != nil {
		return err
	}
	return r.device.Record(a.stream())
}

// act runs one action on the compute stream.
func (r *rank) act(a *action) error {
	switch {
	case a.kernel != nil:
		if codegen.HostCopy(a.node.Op) {
			r.counters.HostCopies++
			r.counters.HostBytes += a.bytes
		}
		return r.device.Launch(a.kernel)
	case a.collective == nil && a.transfer == nil:
		return r.device.Upload(OnDevice, a.offset, a.feed.data[a.from:a.to])
	}
	began := time.Now()
	err := r.exchange(a)
	r.apart += time.Since(began)
	return err
}

// exchange takes part in a collective or transfer, and counts it.
func (r *rank) exchange(a *action) error {
	if a.collective != nil {
		r.counters.Collectives++
		r.counters.CollectiveBytes += a.bytes
		return r.device.Collective(a.collective)
	}
	r.counters.Transfers++
	r.counters.TransferBytes += a.bytes
	if a.node.Op == ir.OpRecv {
		return r.device.Recv(a.transfer)
	}
	// The destination is free at event a.after of the peer's current step. If a.after is 0 it has
	// been free since the end of the peer's last step, which only late devices must still wait for.
	peer := a.transfer.Peer
	if n := r.exec.events[Compute][peer] + a.after; !r.exec.meets && (a.after > 0 || n > 0 && r.exec.late) {
		if err := r.device.Wait(a.transfer.Stream, Event{peer, Compute, n}); err != nil {
			return err
		}
	}
	return r.device.Send(a.transfer)
}

// where returns the task and node at which the rank is; ok is false outside of a step.
func (r *rank) where() (task codegen.Task, node *ir.Node, ok bool) {
	p := r.program.Load()
	if p == nil {
		return codegen.Task{}, nil, false
	}
	if s := r.sending.Load(); s != nil {
		return s.task, s.node, true
	}
	place := r.place.Load()
	t, i := int(place>>32), int(int32(place))
	if t >= len(p.tasks[r.id]) {
		return codegen.Task{}, nil, false
	}
	if actions := p.tasks[r.id][t].actions; i < len(actions) {
		node = actions[i].node
	}
	return p.tasks[r.id][t].Task, node, true
}

// describe adds to an error where the rank is. If the rank waited in vain for other ranks, it also
// adds where they are.
func (r *rank) describe(err error) error {
	beside, onStream := errors.AsType[*StreamError](err)
	if onStream && beside.Stream != Compute {
		err = fmt.Errorf("on the %s stream: %w", beside.Stream, beside.Err)
	}
	if wait, ok := errors.AsType[*WaitError](err); ok {
		var at []string
		for _, id := range wait.Ranks {
			other := r.exec.local(id)
			if other == nil {
				continue
			}
			if task, node, ok := other.where(); ok && node != nil {
				at = append(at, fmt.Sprintf("rank %d is at %s, %s %s", id, task, node.Op, node.Name))
			}
		}
		if len(at) > 0 {
			err = fmt.Errorf("%w; %s", err, strings.Join(at, "; "))
		}
	}
	task, node, ok := r.where()
	if onStream {
		node = beside.Node
	}
	if !ok {
		return fmt.Errorf("runtime: rank %d: %w", r.id, err)
	}
	return &StepError{Rank: r.id, Step: r.number.Load(), Task: task, Node: node, Err: err}
}
