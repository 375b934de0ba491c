package runtime

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/autopar/autopar/codegen"
)

// begun is a step that has begun and is not finished. At most one of those runs; the next one
// waits.
type begun struct {
	program *program
	number  int64
}

// maxBegun is how many steps can be begun and not finished: the one that runs, and the next.
const maxBegun = 2

// Step runs one step of a loaded program on all ranks: [Executor.Begin], then [Executor.Finish]. A
// cancelled context keeps a step from starting (see [Executor.Cancelled]) but does not interrupt
// one. The error of a failed step is a [StepError].
func (e *Executor) Step(ctx context.Context, prog *codegen.Program, feeds Feeds) (Outputs, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.begun) > 0 {
		return nil, errors.New("runtime: the step before is not finished")
	}
	if err := e.begin(ctx, prog, feeds); err != nil {
		return nil, err
	}
	return e.finish(ctx)
}

// Begin begins a step; [Executor.Finish] waits for its end. With [Late] devices Begin returns when
// the devices have been given all work of the step, so that the caller can prepare and begin the
// next one meanwhile. Otherwise the step is over when it returns. The error may be that of a step
// begun before.
func (e *Executor) Begin(ctx context.Context, prog *codegen.Program, feeds Feeds) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.begun) > 0 && (!e.late || len(e.begun) == maxBegun) {
		return errors.New("runtime: a step before is not finished")
	}
	return e.begin(ctx, prog, feeds)
}

// Finish returns the scalar outputs of the oldest step that is not finished, after waiting for its
// end.
func (e *Executor) Finish(ctx context.Context) (Outputs, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.begun) == 0 {
		return nil, errors.New("runtime: no step has begun")
	}
	return e.finish(ctx)
}

// Number sets the step number that errors name from now on for programs without a step input, such
// as evaluations. Without it they name how many steps of the program this process has run.
func (e *Executor) Number(step int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.programs {
		p.steps = step
	}
}

// Late reports whether a step can begin while the one before still runs.
func (e *Executor) Late() bool { return e.late }

func (e *Executor) begin(ctx context.Context, prog *codegen.Program, feeds Feeds) error {
	p, err := e.ready(prog)
	if err != nil {
		return err
	}
	if err := e.Cancelled(ctx); err != nil {
		return err
	}
	if err := p.bind(feeds); err != nil {
		return err
	}
	p.start = time.Now()
	step := begun{p, p.step()}
	if err := e.runAll(p.run.at(step.number)); err != nil {
		return err
	}
	for s := range e.events {
		for r, n := range p.events[s] {
			e.events[s][r] += n
		}
	}
	p.steps++
	e.begun = append(e.begun, step)
	return nil
}

func (e *Executor) finish(ctx context.Context) (Outputs, error) {
	step := e.begun[0]
	e.begun = append(e.begun[:0], e.begun[1:]...)
	p := step.program
	if err := e.failure(); err != nil {
		return nil, err
	}
	if e.late {
		if err := e.runAll(p.finish.at(step.number)); err != nil {
			return nil, err
		}
	}
	for _, o := range p.scalars {
		r := e.local(o.rank)
		if r == nil {
			continue
		}
		word := e.word[:]
		if e.late {
			word = r.words[4*o.word:]
		} else if err := r.device.Download(word, OnDevice, o.offset); err != nil {
			return nil, e.fail(fmt.Errorf("runtime: output %s: %w", o.name, err))
		}
		p.outputs[o.name] = math.Float32frombits(binary.NativeEndian.Uint32(word))
	}
	if e.opts.Peers != nil {
		if err := e.share(ctx, p); err != nil {
			return nil, e.fail(e.here[0].describe(err))
		}
	}
	return p.outputs, nil
}

// end ends the rank's part of a step, whose compute stream has n events: it waits for the last of
// them, or tells a [Late] device to keep the scalar outputs.
func (r *rank) end(p *program, n int64) error {
	if r.exec.late {
		return r.device.(Late).End(p.words[r.id])
	}
	return r.device.Wait(Host, Event{r.id, Compute, r.exec.events[Compute][r.id] + n})
}

// last waits for the end of the oldest step and reads the rank's scalar outputs.
func (r *rank) last(p *program) error {
	t := len(p.tasks[r.id]) - 1
	r.place.Store(int64(t)<<32 | int64(len(p.tasks[r.id][t].actions)))
	r.words = append(r.words[:0], make([]byte, 4*len(p.words[r.id]))...)
	return r.device.(Late).Last(r.words)
}
