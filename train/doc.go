// Package train runs programs on data: nanoGPT's training loop, and sampling.
//
//	config, plan ── NewJob ──▶ Job ── Run ──▶ log lines, DIR/metrics.jsonl (for TensorBoard too), DIR/ckpt/step-NNNNNNNN
//	checkpoint or weights file ── Sample ──▶ text
//
// A [Job] is a training step and an evaluation step, compiled for one plan. They share memory and
// are checked before anything runs. What [Job.Run] does in a step is a function of the
// configuration and the step's number alone: batch, learning rate, dropout and initial weights do
// not depend on what happened before. So a run that is stopped and resumed under the same plan has
// the same bits as one that was not, and one that is resumed under another plan differs only by
// rounding.
//
// Checkpoints are written while the run goes on: see [RunOptions]. In a run of several processes
// the log names ranks that compute much longer than others (stragglers).
//
// # Files
//
// job.go has the Job, run.go the loop, save.go checkpoints and resuming, room.go the memory for
// them, agree.go what several processes check before they begin. evaluate.go, log.go, metrics.go,
// tensorboard.go and straggler.go are parts of the loop; garbage.go times Go's garbage collections.
// sample.go and decoder.go make text, reshard.go rewrites checkpoints.
package train

import (
	"fmt"
)

// InputError is a request that cannot be carried out as asked, unlike work that failed.
type InputError struct {
	What string // the option, file or key at fault
	Msg  string // what is wrong, with the numbers
	Err  error  // the cause, or nil
}

func (e *InputError) Error() string {
	text := e.What + ": " + e.Msg
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *InputError) Unwrap() error { return e.Err }

// DivergedError is a run that stopped because a number was not finite. Nothing was saved since the
// last time that all numbers were finite.
type DivergedError struct {
	Iter       int
	Quantity   string // what is not finite: loss, grad_norm, train loss or val loss
	Value      float32
	LR         float64
	Checkpoint string // the newest one, or ""
}

func (e *DivergedError) Error() string {
	text := fmt.Sprintf("train: iteration %d: %s is %v at learning rate %g", e.Iter, e.Quantity, e.Value, e.LR)
	if e.Checkpoint != "" {
		text += "; the newest checkpoint, from before, is " + e.Checkpoint
	}
	return text
}
