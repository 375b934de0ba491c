package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// benchCmd times training steps.
type benchCmd struct {
	Config string   `arg:"" optional:"" name:"gpt.yaml" help:"Model and batch to time; without it nanoGPT's model for a CPU, on four ranks."`
	Set    []string `sep:"none" placeholder:"SECTION.KEY=VALUE" help:"Override one value of the YAML. May be repeated."`
	BurnIn int      `default:"10" help:"Steps before the clock starts."`
	Steps  int      `default:"20" help:"Steps to time."`
	Top    int      `default:"12" help:"Ops to list; 0 lists all."`
	format
}

// Example is shown by --help.
func (benchCmd) Example() string { return "autopar bench examples/quick.yaml --steps 50" }

// defaultBench is what autopar bench times without a YAML.
const defaultBench = `
model:    {preset: quick}
batch:    {global: 12}
parallel: {plan_ngpus: 2, runtime_ngpus: 4}
`

// benchResult is the result of autopar bench. Times are milliseconds a step.
type benchResult struct {
	Ranks       int      `json:"ranks"`
	BurnIn      int      `json:"burn_in"`
	Steps       int      `json:"steps"`
	MeanMS      float64  `json:"ms_per_step"`
	MedianMS    float64  `json:"median_ms"`
	MinMS       float64  `json:"min_ms"`
	TokensPerS  float64  `json:"tokens_per_s"`
	MFU         float64  `json:"mfu"`
	PeakFLOPS   float64  `json:"peak_flops"` // of all ranks, which MFU refers to
	PredictedMS float64  `json:"predicted_ms"`
	Ops         []opTime `json:"ops"`          // all that take time, longest first; they add up to the step
	ShareOfTop  float64  `json:"share_of_top"` // of the step that the first --top of them take
	listed      int
}

// opTime is the time of one op, averaged over ranks. That of collectives and
// receives includes waiting for the other ranks. The op idle is the time in which
// a rank runs no instruction: where there are more ranks than processors, it is
// mostly waiting for one at the start of a step.
type opTime struct {
	Op    string  `json:"op"`
	Calls float64 `json:"calls_per_step"` // of one rank
	MS    float64 `json:"ms_per_step"`
	Share float64 `json:"share"` // of the step
}

// Run plans, runs and times.
func (c *benchCmd) Run(ctx context.Context, con *console) error {
	if c.Steps < 1 || c.BurnIn < 0 || c.Top < 0 {
		return usagef("bench: --steps %d, --burn-in %d, --top %d: want at least 1, 0 and 0", c.Steps, c.BurnIn, c.Top)
	}
	cfg, err := c.load()
	if err != nil {
		return err
	}
	result, err := c.measure(ctx, con, cfg)
	if err != nil {
		return err
	}
	if c.json() {
		return con.json(result)
	}
	result.print(con)
	return nil
}

func (c *benchCmd) load() (*config.Config, error) {
	if c.Config != "" {
		args := yamlArgs{Config: c.Config, Set: c.Set}
		return args.load()
	}
	cfg, err := config.Parse("bench", []byte(defaultBench), c.Set)
	if err != nil {
		return nil, err
	}
	return cfg, cfg.Validate()
}

// stopwatch adds up how long ranks spend in each op.
type stopwatch struct {
	mu    sync.Mutex
	on    bool
	spent map[ir.Op]time.Duration
	calls map[ir.Op]int
}

func (s *stopwatch) note(span runtime.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on {
		s.spent[span.Op] += span.End - span.Start
		s.calls[span.Op]++
	}
}

func (s *stopwatch) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on, s.spent, s.calls = true, map[ir.Op]time.Duration{}, map[ir.Op]int{}
}

// timeSteps runs a training program on random tokens and returns how long each
// step after the burn-in took, and where the time went.
func (c *benchCmd) timeSteps(ctx context.Context, con *console, cfg *config.Config, prog *codegen.Program) ([]time.Duration, *stopwatch, error) {
	backend, err := cpu.New(cpu.Options{})
	if err != nil {
		return nil, nil, err
	}
	watch := &stopwatch{}
	exec, err := runtime.New(prog, backend, runtime.Options{Trace: watch.note})
	if err != nil {
		return nil, nil, err
	}
	defer exec.Close()
	if err := exec.InitParams(prog, uint64(cfg.Train.Seed)); err != nil {
		return nil, nil, err
	}
	feeds := randomBatch(cfg, prog)
	bar := con.bar(c.BurnIn+c.Steps, "bench")
	defer bar.clear()
	var times []time.Duration
	for step := range c.BurnIn + c.Steps {
		if step == c.BurnIn {
			watch.start()
		}
		feeds["step"] = runtime.Ints(int32(step)) // every program has one: AdamW counts it
		start := time.Now()
		if _, err := exec.Step(ctx, prog, feeds); err != nil {
			return nil, nil, err
		}
		if step >= c.BurnIn {
			times = append(times, time.Since(start))
		}
		bar.set(step + 1)
	}
	return times, watch, nil
}

// randomBatch feeds a training step with tokens that mean nothing: the time of a
// step does not depend on them.
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

// summarize turns times into the result. cluster gives the peak rate.
func (c *benchCmd) summarize(cfg *config.Config, ranks int, cluster *cost.Cluster, times []time.Duration, watch *stopwatch) *benchResult {
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 }
	var total time.Duration
	for _, d := range times {
		total += d
	}
	slices.Sort(times)
	mean := total / time.Duration(len(times))
	tokens := float64(cfg.Batch.Global * cfg.Model.BlockSize)
	r := &benchResult{
		Ranks: ranks, BurnIn: c.BurnIn, Steps: c.Steps,
		MeanMS: ms(mean), MedianMS: ms(times[len(times)/2]), MinMS: ms(times[0]),
		TokensPerS: tokens / mean.Seconds(),
		PeakFLOPS:  cluster.PeakFLOPS("f32", ranks) * float64(ranks),
	}
	r.MFU = float64(cfg.Model.FLOPsPerToken()) * r.TokensPerS / r.PeakFLOPS
	add := func(op string, calls int, spent time.Duration) { // of all ranks in all steps
		turns := float64(len(times) * ranks)
		r.Ops = append(r.Ops, opTime{
			Op: op, Calls: float64(calls) / turns, MS: ms(spent) / turns, Share: spent.Seconds() / float64(ranks) / total.Seconds(),
		})
	}
	idle := total * time.Duration(ranks)
	for op, spent := range watch.spent {
		add(op.String(), watch.calls[op], spent)
		idle -= spent
	}
	add("idle", 0, max(idle, 0))
	sort.Slice(r.Ops, func(i, j int) bool {
		return r.Ops[i].MS > r.Ops[j].MS || r.Ops[i].MS == r.Ops[j].MS && r.Ops[i].Op < r.Ops[j].Op
	})
	r.listed = len(r.Ops)
	if c.Top > 0 {
		r.listed = min(c.Top, len(r.Ops))
	}
	for _, op := range r.Ops[:r.listed] {
		r.ShareOfTop += op.Share
	}
	return r
}

func (r *benchResult) print(con *console) {
	con.heading("%d ranks, %d steps after %d", r.Ranks, r.Steps, r.BurnIn)
	con.table([][]string{
		{"ms/step", fmt.Sprintf("%.2f", r.MeanMS), fmt.Sprintf("median %.2f, least %.2f, predicted %.2f", r.MedianMS, r.MinMS, r.PredictedMS)},
		{"tokens/s", explain.Grouped(int64(r.TokensPerS))},
		{"MFU", fmt.Sprintf("%.2f %%", 100*r.MFU), fmt.Sprintf("of %.4g GFLOP/s", r.PeakFLOPS/1e9)},
	})
	rows := [][]string{{"OP", "MS/STEP", "SHARE", "CALLS"}}
	for _, op := range r.Ops[:r.listed] {
		rows = append(rows, []string{op.Op, fmt.Sprintf("%.3f", op.MS), fmt.Sprintf("%.1f %%", 100*op.Share), fmt.Sprintf("%.4g", op.Calls)})
	}
	rows = append(rows, []string{"together", fmt.Sprintf("%.3f", r.MeanMS*r.ShareOfTop), fmt.Sprintf("%.1f %%", 100*r.ShareOfTop)})
	con.table(rows)
}

// measure plans the configuration for this machine and times its steps.
func (c *benchCmd) measure(ctx context.Context, con *console, cfg *config.Config) (*benchResult, error) {
	cluster, err := cost.Load("cpu")
	if err != nil {
		return nil, err
	}
	options, err := (&planCmd{}).options(cfg)
	if err != nil {
		return nil, err
	}
	found, err := search(cfg, cluster, options)
	if err != nil {
		return nil, err
	}
	con.note("plan: %s", planWords(found.Plan))
	programs, err := compile(cfg, found.Plan)
	if err != nil {
		return nil, err
	}
	if err := programs.verify(); err != nil {
		return nil, err
	}
	times, watch, err := c.timeSteps(ctx, con, cfg, programs.training)
	if err != nil {
		return nil, err
	}
	r := c.summarize(cfg, found.Plan.RuntimeNGPUs, cluster, times, watch)
	r.PredictedMS = found.Predicted.StepSeconds * 1e3
	return r, nil
}
