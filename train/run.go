package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/data"
	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/ir"
)

// RunOptions says how far a run goes and what it writes. The zero value trains from scratch to max_iters and writes
// nothing.
type RunOptions struct {
	// Steps is how many updates the run has made in all when it stops, including those before a
	// resume. 0 is max_iters+1, as many as nanoGPT's loop makes.
	Steps int
	// Out is the directory of checkpoints and metrics.jsonl; "" writes neither. A new run replaces
	// what an earlier one left there: the metrics at once, the checkpoints when it first saves, unless
	// it only does so because it is interrupted.
	// With train.eval_only nothing is written.
	Out string
	// Resume continues from the newest checkpoint in Out.
	Resume bool
	// InitFrom is where the weights of a new run come from: "" or "scratch", a directory with a checkpoint, or a
	// file that [checkpoint.OpenWeights] reads.
	InitFrom string
	// Memory is a file in memory that outlives this process (see [launch.Place.Memory]), or nil. If
	// all processes of the run find a state of the same step in theirs, and nothing newer is on
	// disk, the run continues from it.
	Memory *os.File
	// Blocking makes training wait until a checkpoint is on disk. Otherwise a checkpoint is written
	// from a copy in host memory while training goes on, if on every machine the copy fits beside
	// the arenas.
	Blocking bool
	Keep     checkpoint.Retention
	Log      io.Writer // of whole lines at a time; nil discards; in a run of several processes only rank 0 writes it, and the metrics
	// Progress, if set, is called before the first step and after every step, and the same for the batches of
	// each evaluation.
	Progress func(Progress)
	// Expected is how long each rank is expected to compute per step, in any unit. nil expects the
	// same of all. In a run of several processes, ranks are reported that take more than twice as
	// long as expected relative to the median rank.
	Expected []float64
	// Slow, if set, is told in a run of several processes, after every comparison from the third on,
	// how many times as long as expected each rank has computed, relative to the median rank and in
	// the median of three comparisons, and how long the rest of the run takes at the pace of the last
	// step. If it returns true in any process, the run stops as if its context was cancelled.
	Slow func(times []float64, rest time.Duration) bool
	// PeakFLOPS is the peak of one rank, for the MFU. 0 is nanoGPT's constant, an A100 in bfloat16.
	PeakFLOPS float64

	host fs.FS // where the system reports its memory; nil is the root of all files
}

// nanoGPTPeakFLOPS is the peak of an A100 in bfloat16, from nanoGPT's model.py.
const nanoGPTPeakFLOPS = 312e12

func (o *RunOptions) validate(ranks int) error {
	switch {
	case o.Steps < 0:
		return &InputError{What: "steps", Msg: fmt.Sprintf("is %d, must be at least 0", o.Steps)}
	case o.Resume && o.Out == "":
		return &InputError{What: "resume", Msg: "needs the directory of the run"}
	case o.Resume && o.InitFrom != "" && o.InitFrom != scratch:
		return &InputError{What: "resume", Msg: "cannot be used with init-from " + o.InitFrom}
	case o.Expected != nil && len(o.Expected) != ranks:
		return &InputError{What: "expected", Msg: fmt.Sprintf("has times of %d ranks, there are %d", len(o.Expected), ranks)}
	case slices.ContainsFunc(o.Expected, func(x float64) bool { return !(x > 0) }):
		return &InputError{What: "expected", Msg: fmt.Sprintf("times are %v, want more than 0", o.Expected)}
	case !(o.PeakFLOPS >= 0):
		return &InputError{What: "peak FLOP/s", Msg: fmt.Sprintf("is %v, must be at least 0", o.PeakFLOPS)}
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.host == nil {
		o.host = os.DirFS("/")
	}
	return nil
}

const scratch = "scratch"

// Progress is how far a run has come.
type Progress struct {
	Evaluating  bool // Done and Total count batches of an evaluation, else updates
	Done, Total int
}

// Result is how a run ended.
type Result struct {
	Steps       int     // updates made, including those before a resume
	Loss        float32 // of the last update
	Last        Losses  // of the last evaluation
	BestVal     float32 // +Inf before the first evaluation
	Checkpoint  string  // the newest, or ""
	Interrupted bool    // stopped by the context before its last update, with everything saved
}

// run is one call of Job.Run.
type run struct {
	*Job
	opts       RunOptions
	last       int // number of updates at which to stop
	metrics    *metricsLog
	mfu        mfu
	stragglers stragglers
	result     Result
	bestStep   int
	saved      int           // step of the newest checkpoint of this run, written or being written, or -1
	unlogged   time.Duration // that updates took since the last logged iteration
	updates    int           // how many they are

	stop       context.CancelFunc
	memory     *checkpoint.Memory
	background *checkpoint.Background // nil if training waits for checkpoints
}

// Run trains. Its loop is nanoGPT's. Every eval_interval iterations, from 0 on, comes an
// evaluation, and then a checkpoint if the validation loss is the best so far or
// always_save_checkpoint is set (but not at iteration 0). Then come the update of the iteration and
// its log line. Run also saves every checkpoint_interval iterations, after the evaluation of that
// iteration if there is one, and at the end.
//
// If ctx is cancelled, Run finishes the step in progress, saves, and returns a result with
// Interrupted set. That is no error. In a run of several processes all stop after the same step if
// the context of one is cancelled, and none begins if one has a configuration, data or options that
// differ from rank 0's. A loss or gradient norm that is not finite is a [*DivergedError].
func (j *Job) Run(ctx context.Context, opts RunOptions) (Result, error) {
	if err := opts.validate(j.exec.Ranks()); err != nil {
		return Result{}, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r := &run{Job: j, opts: opts, last: j.Config.Train.MaxIters + 1, saved: -1, stop: stop}
	if opts.Steps > 0 {
		r.last = opts.Steps
	}
	r.result.BestVal = float32(math.Inf(1))
	r.stragglers.expected = opts.Expected
	r.openCheckpoints()
	if err := r.begin(ctx); err != nil {
		return Result{}, errors.Join(err, r.closeCheckpoints(), r.metrics.close())
	}
	err := r.loop(ctx)
	for _, name := range r.metrics.moved() { // no reason to fail: all has been trained
		r.printf("metrics: %s was moved, removed or replaced while the run was writing to it; what it wrote since is not there\n", name)
	}
	err = errors.Join(err, r.closeCheckpoints(), r.metrics.close())
	return r.result, err
}

// begin gives the parameters their values, opens the metrics, and prints the header.
func (r *run) begin(ctx context.Context) error {
	first := r.exec.Here()[0] == 0
	if !first {
		r.opts.Log = io.Discard
	}
	if err := r.agree(ctx); err != nil {
		return err
	}
	if err := r.parameters(ctx); err != nil {
		return err
	}
	evaluates := r.Config.Train.EvalOnly
	if r.opts.Out != "" && first && !evaluates {
		err := checkpoint.Writable(r.opts.Out)
		if err != nil {
			return err
		}
		if r.metrics, err = openMetrics(r.opts.Out, r.result.Steps); err != nil {
			return err
		}
		if there := checkpoint.Holds(r.opts.Out); there != "" && !r.opts.Resume {
			r.printf("%s is of an earlier run, which this one replaces when it first saves; --resume would go on with it\n", there)
		}
	}
	if err := r.sameDirectory(ctx); err != nil {
		return err
	}
	peak := r.opts.PeakFLOPS
	if peak == 0 {
		peak = nanoGPTPeakFLOPS
	}
	if r.result.Steps >= r.last && !evaluates {
		r.printf("nothing to do: %d iterations are asked for, %d are done\n", r.last, r.result.Steps)
	}
	r.mfu = mfu{flopsPerStep: float64(r.Config.Model.FLOPsPerToken()) * float64(r.TokensPerStep()), peak: peak * float64(r.exec.Ranks()), running: -1}
	r.printHeader(peak)
	return r.reserveMemory()
}

// parameters loads or initializes the parameters and the optimizer's state.
func (r *run) parameters(ctx context.Context) error {
	if resumed, err := r.resumeFromMemory(ctx); resumed || err != nil {
		return err
	}
	from := r.opts.InitFrom
	switch {
	case r.opts.Resume:
		return r.resume(ctx)
	case from == "" || from == scratch:
		if r.Config.Model.LoRARank > 0 {
			r.printf("the frozen weights are random: --init-from names trained ones\n")
		}
		return r.Init()
	}
	source, sum, err := r.openWeights(from)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := r.sameSource(ctx, from, sum); err != nil {
		return err
	}
	if err := r.Init(); err != nil { // sets the optimizer's state
		return err
	}
	if err := r.Load(source, false); err != nil {
		return err
	}
	r.printf("weights of %s\n", from)
	return nil
}

// weightSource is an open checkpoint or weights file.
type weightSource interface {
	checkpoint.Reader
	io.Closer
}

// openWeights opens what a new run begins with. sum identifies the weights, to compare them between
// processes.
func (r *run) openWeights(from string) (_ weightSource, sum string, err error) {
	info, err := os.Stat(from)
	if err != nil {
		return nil, "", &InputError{What: "init-from", Msg: "is neither scratch, nor a directory with a checkpoint, nor a file; nothing is downloaded, and a run goes on where it stopped with --resume", Err: err}
	}
	if !info.IsDir() {
		w, err := checkpoint.OpenWeights(from, r.Config.Model)
		if err != nil {
			return nil, "", err
		}
		if sum, err = r.sumOfFiles(w.Paths()); err != nil {
			return nil, "", errors.Join(err, w.Close())
		}
		return baseWeights{w}, sum, nil
	}
	c, err := checkpoint.Open(from)
	if err != nil {
		return nil, "", err
	}
	if r.opts.Out != "" && !r.Config.Train.EvalOnly && infile.Same(filepath.Join(c.Dir, "..", ".."), r.opts.Out) {
		return nil, "", errors.Join(&InputError{What: "init-from", Msg: c.Dir + " is in the directory of this run, whose checkpoints would replace it: go on there with --resume, or name another with --out"}, c.Close())
	}
	was, err := configOf(c)
	if err != nil {
		return nil, "", errors.Join(err, c.Close())
	}
	cfg, want := was.Model, r.Config.Model
	positions := cfg.BlockSize
	cfg.BlockSize = min(positions, want.BlockSize)
	if cfg.LoRARank == 0 { // the run adds new adapters
		want = want.Base()
	}
	if err := sameModel(c, cfg, want, "init-from"); err != nil {
		return nil, "", errors.Join(err, c.Close())
	}
	if cfg.LoRARank == 0 {
		return baseWeights{cropped{c, positions}}, sumOf(c), nil
	}
	return cropped{c, positions}, sumOf(c), nil
}

// cropped is a checkpoint of a model with some number of positions, read for a model with as many
// or fewer. The rest of its position table is not read, as with a weights file.
type cropped struct {
	*checkpoint.Checkpoint
	positions int
}

func (c cropped) Read(name string, dtype ir.DType, slab ir.Slab, dst []byte) error {
	if name == "wpe.weight" && len(slab.Global) == 2 {
		slab.Global = []int{c.positions, slab.Global[1]}
	}
	return c.Checkpoint.Read(name, dtype, slab, dst)
}

// loop runs iterations from the current one to the last, or one evaluation with eval_only.
func (r *run) loop(ctx context.Context) error {
	waste := collectGarbage()
	defer waste.restore()
	evaluates := r.Config.Train.EvalOnly // evaluate once, at whatever step the run is
	first := r.result.Steps
	for it := r.result.Steps; it < r.last || evaluates; it++ {
		waste.between()
		if err := r.pollCheckpoints(); err != nil {
			return err
		}
		if it%r.Config.Train.EvalInterval == 0 || evaluates {
			if err := r.flush(ctx, 0); err != nil {
				return err
			}
			err := r.evaluate(ctx, it)
			if cancelled := r.exec.Cancelled(ctx); cancelled != nil && errors.Is(err, cancelled) {
				return r.interrupt(ctx)
			}
			if err != nil {
				return r.keep(ctx, err)
			}
			if evaluates {
				return nil
			}
		}
		if every := r.Config.Train.CheckpointInterval; every > 0 && it%every == 0 { // after the evaluation, so that it is saved with its result
			if err := r.save(ctx); err != nil {
				return err
			}
		}
		if it == first {
			r.progress(it)
		}
		err := r.update(ctx, it)
		if cancelled := r.exec.Cancelled(ctx); cancelled != nil && (err == nil || errors.Is(err, cancelled)) {
			return r.interrupt(ctx)
		}
		if err != nil {
			return r.keep(ctx, err)
		}
	}
	return r.saveAndWait(ctx)
}

// keep saves the state if an update or an evaluation failed because a batch cannot be read: the updates before are as
// good as ever. The ranks of other processes may not have noticed, so with them nothing is saved.
func (r *run) keep(ctx context.Context, err error) error {
	var unread *data.InputError
	if !errors.As(err, &unread) || r.exec.Peers() != nil {
		return err
	}
	return errors.Join(err, r.stopped(ctx))
}

// interrupt saves the state and reports that the run was interrupted.
func (r *run) interrupt(ctx context.Context) error {
	if err := r.stopped(ctx); err != nil {
		return err
	}
	if r.result.Steps >= r.last && !r.Config.Train.EvalOnly {
		return nil // the step in progress was the last
	}
	r.result.Interrupted = true
	if r.result.Checkpoint == "" {
		r.printf("interrupted after %d iterations; nothing is saved\n", r.result.Steps)
	} else {
		r.printf("interrupted after %d iterations, saved in %s\n", r.result.Steps, r.result.Checkpoint)
	}
	return nil
}

// evaluate makes the evaluation before the update of iteration it, and saves if its result calls
// for it.
func (r *run) evaluate(ctx context.Context, it int) error {
	var progress func(done, total int)
	if r.opts.Progress != nil {
		progress = func(done, total int) {
			r.opts.Progress(Progress{Evaluating: true, Done: done, Total: total})
		}
	}
	r.exec.Number(int64(it))
	l, err := r.Evaluate(ctx, progress)
	if err != nil {
		return err
	}
	r.result.Last = l
	r.printf("step %d: train loss %.4f, val loss %.4f\n", it, l.Train, l.Val)
	if err := r.finite(it, "train loss", l.Train); err != nil {
		return err
	}
	if err := r.finite(it, "val loss", l.Val); err != nil {
		return err
	}
	if err := r.metrics.write(EvalMetrics{Iter: it, TrainLoss: l.Train, ValLoss: l.Val}); err != nil {
		return err
	}
	better := l.Val < r.result.BestVal
	if better {
		r.result.BestVal, r.bestStep = l.Val, it
	}
	if better || r.Config.Train.AlwaysSaveCheckpoint {
		return r.save(ctx)
	}
	return nil
}

// update makes the update of iteration it. With late devices (package runtime) it reports an update
// only after the next one has begun, so that the device never waits for the host to read a loss.
func (r *run) update(ctx context.Context, it int) error {
	if err := r.Begin(ctx, it); err != nil {
		var diverged *DivergedError
		if late := r.flush(ctx, 0); errors.As(late, &diverged) {
			return late
		}
		return err
	}
	if r.Late() {
		return r.flush(ctx, 1)
	}
	return r.flush(ctx, 0)
}

// flush finishes and reports updates until at most left are unfinished.
func (r *run) flush(ctx context.Context, left int) error {
	for r.Begun() > left {
		st, err := r.Finish(ctx)
		if err != nil {
			return err
		}
		if err := r.finished(st); err != nil {
			return err
		}
	}
	return nil
}

// finished records an update that is done, and reports it.
func (r *run) finished(st StepStats) error {
	it := st.Iter
	if err := r.finite(it, "loss", st.Loss); err != nil {
		return err
	}
	if err := r.finite(it, "grad_norm", st.GradNorm); err != nil {
		if st.LossScale == 0 {
			return err
		}
		st.GradNorm = 0 // the loss scaler has skipped the step
	}
	r.result.Steps, r.result.Loss = it+1, st.Loss
	r.mfu.steps++
	r.unlogged += st.Duration
	r.updates++
	if r.exec.Peers() != nil {
		r.stragglers.add(r.exec.Ranks(), r.exec.Computed)
	}
	if it%r.Config.Train.LogInterval == 0 {
		if err := r.report(st); err != nil {
			return err
		}
	}
	r.progress(it + 1)
	return nil
}

// progress tells the user of Run how many updates are done.
func (r *run) progress(done int) {
	if r.opts.Progress != nil {
		r.opts.Progress(Progress{Done: done, Total: r.last})
	}
}

// finite returns a [*DivergedError] if x is not finite.
func (r *run) finite(it int, quantity string, x float32) error {
	if y := float64(x); !math.IsNaN(y) && !math.IsInf(y, 0) {
		return nil
	}
	if err := r.waitForCheckpoint(); err != nil {
		return err
	}
	return &DivergedError{Iter: it, Quantity: quantity, Value: x, LR: r.Config.Optimizer.LR(it), Checkpoint: r.result.Checkpoint}
}
