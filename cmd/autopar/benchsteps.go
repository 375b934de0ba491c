package main

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// stopwatch adds up how long ranks spend in each op.
type stopwatch struct {
	mu    sync.Mutex
	on    bool
	spent map[ir.Op]time.Duration
	calls map[ir.Op]int
	spans []runtime.Span // of one step: see record
	keep  bool
}

// note receives the span of an instruction from the runtime.
func (s *stopwatch) note(span runtime.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keep {
		s.spans = append(s.spans, span)
	} else if s.on {
		s.spent[span.Op] += span.End - span.Start
		s.calls[span.Op]++
	}
}

func (s *stopwatch) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on, s.spent, s.calls = true, map[ir.Op]time.Duration{}, map[ir.Op]int{}
}

// record keeps the spans of the next step. Its times do not count.
func (s *stopwatch) record() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = true
}

// timed is a program whose steps are timed.
type timed struct {
	prog         *codegen.Program
	reproducible bool
	watch        stopwatch
	times        []time.Duration // of each step after the burn-in
	exec         *runtime.Executor
	feeds        runtime.Feeds
	ended        time.Time // when the step before ended, or the first began
}

// opener makes a backend for a program, and a function that receives the spans of its instructions, or nil.
type opener func(p *timed) (runtime.Backend, func(runtime.Span), error)

func openCPU(p *timed) (runtime.Backend, func(runtime.Span), error) {
	backend, err := cpu.New(cpu.Options{})
	return backend, p.watch.note, err
}

// timeOnGPU times whole steps, which run asynchronously. Then it runs the steps again and waits for every instruction, to find
// out where the time goes; this takes longer in total. If only the second part fails, the times of the first are reported.
func (c *benchCmd) timeOnGPU(ctx context.Context, con *console, cfg *config.Config, system *cuda.System, programs ...*timed) error {
	options := func(p *timed) cuda.Options {
		opts := c.options()
		opts.Reproducible = p.reproducible
		return opts
	}
	err := c.timeSteps(ctx, con, cfg, func(p *timed) (runtime.Backend, func(runtime.Span), error) {
		return cuda.New(system, options(p)), nil, nil
	}, programs...)
	if err != nil {
		return err
	}
	times := make([][]time.Duration, len(programs))
	for i, p := range programs {
		times[i], p.times = p.times, nil
	}
	err = c.timeSteps(ctx, con, cfg, func(p *timed) (runtime.Backend, func(runtime.Span), error) {
		opts := options(p)
		opts.Synchronous = true
		return cuda.New(system, opts), p.watch.note, nil
	}, programs...)
	lost := err != nil && ctx.Err() == nil && c.Trace == ""
	if lost {
		con.failure("bench: the steps were timed, but not where the time goes: %v", err)
		err = nil
	}
	for i, p := range programs {
		p.times = times[i]
		if lost {
			p.watch.start()
		}
	}
	return err
}

// timeSteps runs training programs on random tokens, and records how long each step after the burn-in took and where the time
// went. Several programs take turns, so that other load on the machine affects all of them alike.
func (c *benchCmd) timeSteps(ctx context.Context, con *console, cfg *config.Config, open opener, programs ...*timed) error {
	traced := false
	for _, p := range programs {
		backend, trace, err := open(p)
		if err != nil {
			return err
		}
		traced = traced || trace != nil
		if p.exec, err = runtime.New(p.prog, backend, runtime.Options{Trace: trace}); err != nil {
			return err
		}
		defer p.exec.Close()
		if err := p.exec.InitParams(p.prog, uint64(cfg.Train.Seed)); err != nil {
			return err
		}
		p.feeds = randomBatch(cfg, p.prog)
	}
	bar := con.bar(c.BurnIn+c.Steps, "bench")
	defer bar.clear()
	late := len(programs) == 1 && programs[0].exec.Late()
	for step := range c.BurnIn + c.Steps {
		for _, p := range programs {
			if step == c.BurnIn {
				p.watch.start()
			}
			p.feeds["step"] = runtime.Ints(int32(step)) // every program reads it, for AdamW
			if step == 0 || !late {
				p.ended = time.Now()
			}
			if err := p.exec.Begin(ctx, p.prog, p.feeds); err != nil {
				return err
			}
			first := c.BurnIn // the first step whose time is recorded
			if late {         // the host is a step ahead, as in training, and finishes the step before
				first++
			}
			if late && step == 0 {
				continue
			}
			if err := p.finish(ctx, step >= first); err != nil {
				return err
			}
		}
		bar.set(step + 1)
	}
	if late {
		if err := programs[0].finish(ctx, true); err != nil {
			return err
		}
	}
	if c.Trace == "" || !traced {
		return nil
	}
	p := programs[0]
	p.watch.record()
	p.feeds["step"] = runtime.Ints(int32(c.BurnIn + c.Steps))
	_, err := p.exec.Step(ctx, p.prog, p.feeds)
	return err
}

// finish waits for the first step that is not finished. With note it records the time since the end of the step before.
func (p *timed) finish(ctx context.Context, note bool) error {
	_, err := p.exec.Finish(ctx)
	start := p.ended
	p.ended = time.Now()
	if note {
		p.times = append(p.times, p.ended.Sub(start))
	}
	return err
}

// randomBatch returns the inputs of a training step, with random tokens: the time of a step does not depend on them.
func randomBatch(cfg *config.Config, prog *codegen.Program) runtime.Feeds {
	B, T := cfg.Batch.Global, cfg.Model.BlockSize
	random := rand.New(rand.NewPCG(uint64(cfg.Train.Seed), 0))
	ids, targets, positions := make([]int32, B*T), make([]int32, B*T), make([]int32, T)
	for i := range ids {
		ids[i], targets[i] = int32(random.IntN(cfg.Model.VocabSize)), int32(random.IntN(cfg.Model.VocabSize))
	}
	for i := range positions {
		positions[i] = int32(i)
	}
	feeds := runtime.Feeds{
		"ids": runtime.Ints(ids...), "targets": runtime.Ints(targets...), "positions": runtime.Ints(positions...),
		"seed": runtime.Ints(int32(cfg.Train.Seed)), "step": runtime.Ints(0),
		"lr": runtime.Floats(float32(cfg.Optimizer.LR(0))), "loss_weight": runtime.Floats(1 / float32(B*T)),
	}
	// A program without dropout has no seed.
	read := map[string]bool{}
	for _, v := range prog.Graph.Inputs() {
		read[partition.BaseName(v.Name())] = true
	}
	maps.DeleteFunc(feeds, func(name string, _ runtime.Array) bool { return !read[name] })
	return feeds
}
