package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/data"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// JobOptions say on what devices a job runs. The zero value is the CPU.
type JobOptions struct {
	// Backend must be new: the job opens it. nil is the CPU backend with its defaults.
	Backend runtime.Backend
	Runtime runtime.Options
	// HostDir is where the default backend keeps offloaded state: see [cpu.Options].
	HostDir string
}

// Job is a model that is ready to be trained under a plan. One goroutine at a time may use it.
type Job struct {
	Config *config.Config
	Plan   *partition.Plan
	// Train and Eval are the two programs. They share the arenas.
	Train, Eval *codegen.Program

	exec     *runtime.Executor
	bins     *data.Bins
	samplers map[string]*data.Sampler // by stream
	batch    batch
	trainsOn map[string]bool // inputs of Train
	evalsOn  map[string]bool // inputs of Eval
	begun    []begunStep
	ended    time.Time // when the last update was finished
}

// The sampler's streams of random numbers.
const (
	trainStream     = "train"
	evalTrainStream = "eval/train"
	evalValStream   = "eval/val"
)

// NewJob compiles and checks the programs of a configuration under a plan, opens the data, and
// starts the ranks. Parameters have no values yet: see [Job.Init], [Job.Load] and [Job.Run].
func NewJob(cfg *config.Config, plan *partition.Plan, opts JobOptions) (*Job, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	j := &Job{Config: cfg, Plan: plan}
	if err := j.compile(); err != nil {
		return nil, err
	}
	if err := j.openData(); err != nil {
		return nil, err
	}
	exec, err := start(j.Train, j.Eval, opts)
	if err != nil {
		return nil, errors.Join(err, j.bins.Close())
	}
	j.exec = exec
	return j, nil
}

// Close stops the ranks and closes the data.
func (j *Job) Close() error { return errors.Join(j.exec.Close(), j.bins.Close()) }

func (j *Job) compile() error {
	B := j.Config.Batch.Global
	step, eval, err := j.Config.Steps()
	if err != nil {
		return err
	}
	if j.Train, err = compile(step, j.Plan, B, nil); err != nil {
		return err
	}
	if j.Eval, err = compile(eval, j.Plan, B, j.Train); err != nil {
		return err
	}
	j.trainsOn, j.evalsOn = inputs(j.Train), inputs(j.Eval)
	return nil
}

// compile turns a traced graph into a verified program. If share is set, the program uses the same
// memory.
func compile(g *ir.Graph, plan *partition.Plan, batch int, share *codegen.Program) (*codegen.Program, error) {
	prog, err := codegen.Compile(g, plan, batch, share)
	if err != nil {
		return nil, err
	}
	if err := codegen.Verify(prog, g); err != nil || share == nil {
		return prog, err
	}
	return prog, codegen.CheckShared(prog, share)
}

// inputs returns the inputs that a program reads. Without dropout, for one, it reads no seed.
func inputs(p *codegen.Program) map[string]bool {
	names := map[string]bool{}
	for _, s := range p.Stages {
		for name := range s.Inputs {
			names[name] = true
		}
	}
	return names
}

// start opens the ranks for two programs that share their arenas. The second may be nil.
func start(first, second *codegen.Program, opts JobOptions) (*runtime.Executor, error) {
	backend := opts.Backend
	if backend == nil {
		var err error
		if backend, err = cpu.New(cpu.Options{HostDir: opts.HostDir}); err != nil {
			return nil, err
		}
	}
	exec, err := runtime.New(first, backend, opts.Runtime)
	if err != nil || second == nil {
		return exec, err
	}
	if err := exec.Add(second); err != nil {
		return nil, errors.Join(err, exec.Close())
	}
	return exec, nil
}

func (j *Job) openData() error {
	c := j.Config
	var err error
	j.bins, err = data.OpenBins(c.Data.Dir, data.BinsOptions{BlockSize: c.Model.BlockSize, VocabSize: c.Model.VocabSize})
	if err != nil {
		return err
	}
	j.samplers = map[string]*data.Sampler{}
	for _, s := range []struct {
		stream   string
		split    *data.Split
		eachOnce bool
	}{
		{trainStream, j.bins.Train, c.Data.Sampling == "without_replacement"},
		{evalTrainStream, j.bins.Train, false},
		{evalValStream, j.bins.Val, false},
	} {
		j.samplers[s.stream], err = data.NewSampler(data.SamplerOptions{
			Seed: uint64(c.Train.Seed), Stream: s.stream, Tokens: s.split.Tokens(),
			BlockSize: c.Model.BlockSize, Batch: c.Batch.Global, EachOnce: s.eachOnce,
		})
		if err != nil {
			return errors.Join(err, j.bins.Close())
		}
	}
	j.batch = newBatch(c.Batch.Global, c.Model.BlockSize)
	return nil
}

// contents identifies the data of each file, to compare it with that of other runs and processes.
func (j *Job) contents() map[string]string {
	return map[string]string{data.TrainFile: j.bins.Train.Contents(), data.ValFile: j.bins.Val.Contents()}
}

// Init gives every parameter its initial value, and the optimizer's state zeros. The values are the
// same under every plan.
func (j *Job) Init() error { return j.exec.InitParams(j.Train, uint64(j.Config.Train.Seed)) }

// Load reads the weights, each rank the parts that it holds. With state it also reads the
// optimizer's state. Without, master copies begin as copies of the weights, and adapters that a
// [baseWeights] lacks keep their values.
func (j *Job) Load(from checkpoint.Reader, state bool) error {
	return load(j.exec, j.Train, from, state)
}

func load(exec *runtime.Executor, prog *codegen.Program, from checkpoint.Reader, state bool) error {
	var buf []byte
	for _, r := range exec.Here() {
		for _, s := range runtime.Shards(prog, r) {
			name := s.Name
			if !state {
				if name = sourceOf(s); name == "" || lacks(from, name) {
					continue
				}
			}
			buf = append(buf[:0], make([]byte, s.Bytes())...)
			if err := from.Read(name, s.Type.DType, s.Slab, buf); err != nil {
				return err
			}
			if err := exec.WriteShard(s, buf); err != nil {
				return err
			}
		}
	}
	return nil
}

// sourceOf names the weight whose value a part of a parameter begins with, or "" for other state.
func sourceOf(s runtime.Shard) string {
	if s.Attr.State {
		return s.Attr.Master
	}
	return s.Name
}

// baseWeights is a source of the weights of a model without adapters.
type baseWeights struct{ weightSource }

// lacks reports whether a source has no value for a parameter because it has no adapters.
func lacks(from checkpoint.Reader, param string) bool {
	_, base := from.(baseWeights)
	return base && gpt.IsAdapter(param)
}

// Snapshot describes the state of the job after a number of updates, for [checkpoint.Save].
func (j *Job) Snapshot(step int) (checkpoint.Snapshot, error) {
	plan, err := json.Marshal(j.Plan)
	if err != nil {
		return checkpoint.Snapshot{}, err
	}
	snap := checkpoint.Snapshot{Step: step, Config: string(j.Config.Marshal()), Plan: plan, Data: j.contents(), Peers: j.exec.Peers(), Patience: j.exec.Timeout()}
	for r := range j.exec.Ranks() {
		for _, s := range runtime.Shards(j.Train, r) {
			snap.Shards = append(snap.Shards, checkpoint.Shard{
				Rank: r, Name: s.Name, Type: s.Type, Slab: s.Slab,
				Read: func(dst []byte) error { return j.exec.ReadShard(s, dst) },
			})
		}
	}
	return snap, nil
}

// PeakBytes is the size of the largest arena of a rank.
func (j *Job) PeakBytes() int64 {
	peak := int64(0)
	for i := range j.Train.Stages {
		peak = max(peak, j.Train.Stages[i].Arena(), j.Eval.Stages[i].Arena())
	}
	return peak
}

// TokensPerStep is the number of tokens of the global batch.
func (j *Job) TokensPerStep() int { return j.Config.Batch.Global * j.Config.Model.BlockSize }

// StepStats are the results of one training step.
type StepStats struct {
	Iter        int
	Loss        float32
	GradNorm    float32 // before clipping; not finite in a step that the loss scaler skipped
	LossScale   float32 // after the step, 0 without a scaler
	Skipped     int     // how many steps the scaler has skipped so far
	LR          float64
	Duration    time.Duration // without the time to read the batch
	CommBytes   int64         // over all ranks: received by collectives, sent and received by transfers, copied from and to the host
	Collectives int           // calls over all ranks
}

// Step makes the update of iteration it, with the batch, learning rate and dropout of that
// iteration. A step that has begun is finished even if ctx is cancelled: see
// [runtime.Executor.Cancelled].
func (j *Job) Step(ctx context.Context, it int) (StepStats, error) {
	if err := j.Begin(ctx, it); err != nil {
		return StepStats{}, err
	}
	return j.Finish(ctx)
}

// Late reports whether an update can begin while the one before still runs.
func (j *Job) Late() bool { return j.exec.Late() }

// Begin begins the update of an iteration: see [Job.Step]. Updates are finished in order. With late
// devices one more can begin before the first is finished.
func (j *Job) Begin(ctx context.Context, it int) error {
	if it > math.MaxInt32 {
		return fmt.Errorf("train: iteration %d is beyond what a step can count", it)
	}
	if err := j.batch.read(j.bins.Train, j.samplers[trainStream], it); err != nil {
		return err
	}
	st := StepStats{Iter: it, LR: j.Config.Optimizer.LR(it)}
	feeds := j.batch.feeds()
	feeds["seed"] = runtime.Ints(int32(j.Config.Train.Seed))
	feeds["step"] = runtime.Ints(int32(it))
	feeds["lr"] = runtime.Floats(float32(st.LR))
	begin := time.Now()
	if err := j.exec.Begin(ctx, j.Train, only(feeds, j.trainsOn)); err != nil {
		return err
	}
	j.begun = append(j.begun, begunStep{st, begin})
	return nil
}

// begunStep is an update that is not finished, with the time at which it began.
type begunStep struct {
	stats StepStats
	at    time.Time
}

// Begun is how many updates have begun and are not finished.
func (j *Job) Begun() int { return len(j.begun) }

// Finish waits for the oldest update that is not finished.
func (j *Job) Finish(ctx context.Context) (StepStats, error) {
	st, at := j.begun[0].stats, j.begun[0].at
	j.begun = append(j.begun[:0], j.begun[1:]...)
	out, err := j.exec.Finish(ctx)
	if err != nil {
		return st, err
	}
	if j.ended.After(at) { // it ran after the one before
		at = j.ended
	}
	j.ended = time.Now()
	st.Duration = j.ended.Sub(at)
	st.Loss, st.GradNorm = out["loss"], out["grad_norm"]
	st.LossScale, st.Skipped = out["loss_scale"], int(out["skipped_steps"])
	for r := range j.exec.Ranks() { // the counters are those of the last step begun; all updates have the same
		c := j.exec.Counters(r)
		st.CommBytes += c.CollectiveBytes + c.TransferBytes + c.HostBytes
		st.Collectives += c.Collectives
	}
	return st, nil
}

// batch holds the arrays of a global batch.
type batch struct {
	ids, targets, positions []int32
	weight                  float32 // of one target
}

func newBatch(sequences, length int) batch {
	b := batch{
		ids: make([]int32, sequences*length), targets: make([]int32, sequences*length),
		positions: make([]int32, length), weight: float32(1 / float64(sequences*length)),
	}
	for i := range b.positions {
		b.positions[i] = int32(i)
	}
	return b
}

// read fills the batch with the sequences that the sampler draws for a step. Every token has a
// target.
func (b *batch) read(split *data.Split, sampler *data.Sampler, step int) error {
	return split.Fill(b.ids, b.targets, sampler.Batch(step))
}

func (b *batch) feeds() runtime.Feeds {
	return runtime.Feeds{
		"ids": runtime.Ints(b.ids...), "targets": runtime.Ints(b.targets...),
		"positions": runtime.Ints(b.positions...), "loss_weight": runtime.Floats(b.weight),
	}
}

// only removes the feeds that a program does not read.
func only(feeds runtime.Feeds, read map[string]bool) runtime.Feeds {
	for name := range feeds {
		if !read[name] {
			delete(feeds, name)
		}
	}
	return feeds
}
