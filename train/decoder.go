package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// decoder computes the logits of the next token of a sequence, on one rank. While the sequence fits
// in the context it feeds one token at a time and caches keys and values. Beyond that it runs the
// whole model on the last tokens.
type decoder struct {
	cfg          gpt.Config
	exec         *runtime.Executor
	decode, full *codegen.Program // full is nil if no sequence exceeds the context
	cached       int              // how many tokens have keys and values in the cache
	positions    []int32          // 0, 1, 2, ... of a full context
	logits       []float32        // of the last call
	all          []float32        // of every position of a full context
}

// newDecoder compiles the programs for sequences of at most longest tokens and loads the weights.
func newDecoder(cfg gpt.Config, weights checkpoint.Reader, longest int) (*decoder, error) {
	d := &decoder{cfg: cfg, logits: make([]float32, cfg.VocabSize)}
	plan := oneRank(cfg.NLayer)
	T := cfg.BlockSize
	g, err := gpt.Decode(cfg, 1, T)
	if err != nil {
		return nil, err
	}
	if d.decode, err = compile(g, plan, 1, nil); err != nil {
		return nil, err
	}
	if longest > T {
		if g, err = gpt.Logits(cfg, 1, T); err != nil {
			return nil, err
		}
		if d.full, err = compile(g, plan, 1, d.decode); err != nil {
			return nil, err
		}
		d.all = make([]float32, T*cfg.VocabSize)
		d.positions = newBatch(1, T).positions
	}
	if d.exec, err = start(d.decode, d.full, JobOptions{}); err != nil {
		return nil, err
	}
	if err := load(d.exec, d.decode, weights, false); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// oneRank is the plan for one rank.
func oneRank(layers int) *partition.Plan {
	return &partition.Plan{
		PlanNGPUs: 1, RuntimeNGPUs: 1, DP: 1, TP: 1, MicroBatch: 1,
		Schedule: partition.GPipe, Stages: []partition.Stage{{First: 0, Last: layers}},
	}
}

func (d *decoder) Close() error { return d.exec.Close() }

// rewind drops all but the first n tokens from the cache, which the next sequence shares.
func (d *decoder) rewind(n int) { d.cached = min(d.cached, n) }

// next returns the logits f32[V] of the token that follows ids, valid until the next call. ids must
// begin with the tokens that are cached.
func (d *decoder) next(ctx context.Context, ids []int32) ([]float32, error) {
	if len(ids) == 0 || len(ids) > d.cfg.BlockSize && d.full == nil {
		panic(fmt.Sprintf("BUG: train: decoder is given %d tokens of %d", len(ids), d.cfg.BlockSize))
	}
	if len(ids) > d.cfg.BlockSize {
		return d.window(ctx, ids[len(ids)-d.cfg.BlockSize:])
	}
	// The logits are an output of the last step, so the last token is always fed.
	for at := min(d.cached, len(ids)-1); at < len(ids); at++ {
		pos := runtime.Ints(int32(at))
		_, err := d.exec.Step(ctx, d.decode, runtime.Feeds{"ids": runtime.Ints(ids[at]), "positions": pos, "pos": pos})
		if err != nil {
			return nil, err
		}
		d.cached = at + 1
	}
	return d.logits, d.exec.ReadOutput(d.decode, "logits", d.logits)
}

// window runs the whole model on a full context.
func (d *decoder) window(ctx context.Context, ids []int32) ([]float32, error) {
	feeds := runtime.Feeds{"ids": runtime.Ints(ids...), "positions": runtime.Ints(d.positions...)}
	if _, err := d.exec.Step(ctx, d.full, feeds); err != nil {
		return nil, err
	}
	if err := d.exec.ReadOutput(d.full, "logits", d.all); err != nil {
		return nil, err
	}
	return d.all[len(d.all)-d.cfg.VocabSize:], nil
}
