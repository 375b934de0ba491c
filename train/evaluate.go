package train

import (
	"context"

	"github.com/autopar/autopar/data"
)

// Losses are the mean losses of an evaluation.
type Losses struct{ Train, Val float32 }

// Evaluate estimates the loss on both splits, as nanoGPT's estimate_loss does: without dropout, the
// mean over eval_iters batches of each split. The batches are the same at every evaluation and
// under every plan, and all ranks share each batch. A cancelled ctx ends it between two batches.
func (j *Job) Evaluate(ctx context.Context, progress func(done, total int)) (Losses, error) {
	n := j.Config.Train.EvalIters
	if progress == nil {
		progress = func(int, int) {}
	}
	progress(0, 2*n)
	mean := func(split *data.Split, stream string, before int) (float32, error) {
		sum := 0.0
		for k := range n {
			if err := j.batch.read(split, j.samplers[stream], k); err != nil {
				return 0, err
			}
			out, err := j.exec.Step(ctx, j.Eval, only(j.batch.feeds(), j.evalsOn))
			if err != nil {
				return 0, err
			}
			sum += float64(out["loss"])
			progress(before+k+1, 2*n)
		}
		return float32(sum / float64(n)), nil
	}
	var l Losses
	var err error
	if l.Train, err = mean(j.bins.Train, evalTrainStream, 0); err != nil {
		return l, err
	}
	l.Val, err = mean(j.bins.Val, evalValStream, n)
	return l, err
}
