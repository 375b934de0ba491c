// Package train runs programs on data: the training loop of nanoGPT, and sampling.
//
//	config, plan ── NewJob ──▶ Job ── Run ──▶ log lines, DIR/metrics.jsonl (for TensorBoard too), DIR/ckpt/step-NNNNNNNN
//	checkpoint or weights file ── Sample ──▶ text
//
// A [Job] is a training step and an evaluation step, compiled for the same plan into the same memory and checked before
// anything runs. [Job.Run] is a function of configuration and step alone: batches, learning rate, dropout and initial
// weights depend on nothing that happened before. So a run that is stopped and resumed under the same plan gives the same
// bits as one that was not, and one resumed under another plan differs only by rounding.
//
// Checkpoints are written while the run goes on, see [RunOptions]. Of a run of several processes the log names those that
// compute for much longer than others.
package train

import (
	"fmt"
)

// InputError is a request that cannot be carried out as asked, as opposed to work that failed.
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

// DivergedError is a run that stopped because its numbers are no longer finite. Nothing was saved after they last were.
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
