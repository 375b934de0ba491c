package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
	"github.com/autopar/autopar/runtime/cpu/profile"
)

// benchCmd times training steps.
type benchCmd struct {
	Config string   `arg:"" optional:"" name:"gpt.yaml" help:"Model and batch to time, or a plan.json; without it nanoGPT's model for a CPU, on four ranks."`
	Set    []string `sep:"none" placeholder:"SECTION.KEY=VALUE" help:"Override one value of the YAML. May be repeated."`
	BurnIn int      `default:"10" help:"Steps before the clock starts."`
	Steps  int      `default:"20" help:"Steps to time."`
	Top    int      `default:"12" help:"Ops to list; 0 lists all."`
	Trace  string   `name:"profile" placeholder:"FILE" help:"Also write the timeline of one step beside the predicted one, for Perfetto."`
	deviceArgs
	format
}

// Example is shown by --help.
func (benchCmd) Example() string {
	return `
autopar bench examples/quick.yaml --steps 50
autopar bench plan.json --profile trace.json`
}

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
	PeakFLOPS   float64  `json:"peak_flops"` // of all cores, in multiply-adds, measured in this run, or of all GPUs: MFU refers to it
	Bandwidth   float64  `json:"bandwidth"`  // of memory, bytes a second, measured too
	ArenaBytes  int64    `json:"arena_bytes"`
	PeakRSS     int64    `json:"peak_rss_bytes,omitempty"` // of the process
	PredictedMS float64  `json:"predicted_ms"`
	Ops         []opTime `json:"ops"`          // all that take time, longest first; they add up to the step
	ShareOfTop  float64  `json:"share_of_top"` // of the step that the first --top of them take
	// Without is the same plan without train.reproducible, when that is on.
	Without *benchWithout `json:"without_reproducible,omitempty"`
	listed  int
}

// benchWithout says what train.reproducible costs: the figures of the same plan
// without it, of all ranks together.
type benchWithout struct {
	MedianMS  float64  `json:"median_ms"`
	Ratio     float64  `json:"ratio"`      // of the medians, with to without
	CommBytes [2]int64 `json:"comm_bytes"` // received a step: with, without
	Memory    [2]int64 `json:"arena_bytes"`
}

// Run plans, runs and times.
func (c *benchCmd) Run(ctx context.Context, con *console) error {
	if c.Steps < 1 || c.BurnIn < 0 || c.Top < 0 {
		return usagef("bench: --steps %d, --burn-in %d, --top %d: want at least 1, 0 and 0", c.Steps, c.BurnIn, c.Top)
	}
	if err := c.validate("bench"); err != nil {
		return err
	}
	doc, system, err := c.plan(con)
	if err != nil {
		return err
	}
	result, err := c.measure(ctx, con, doc, system)
	if err != nil {
		return err
	}
	if c.json() {
		return con.json(result)
	}
	result.print(con)
	return nil
}

// plan is the plan to time: the best for the configuration on this machine, or the one
// given. With --device cuda it opens the GPU, which is planned for.
func (c *benchCmd) plan(con *console) (doc *planner.Document, system *cuda.System, err error) {
	if isPlan(c.Config) {
		if len(c.Set) > 0 {
			return nil, nil, usagef("bench: --set changes a YAML; %s is a plan for one", c.Config)
		}
		if doc, err = (planArg{Plan: c.Config}).loadPlan(); err == nil && c.cuda() {
			system, err = c.openCUDA(con, doc.Plan.RuntimeNGPUs, nil)
		}
		return doc, system, err
	}
	cfg, err := c.load()
	if err != nil {
		return nil, nil, err
	}
	cluster, err := cost.Load("cpu")
	if err != nil {
		return nil, nil, err
	}
	if c.cuda() {
		if system, err = c.openCUDA(con, max(1, int(cfg.Parallel.RuntimeNGPUs)), nil); err != nil {
			return nil, nil, err
		}
		if cluster, err = clusterOfGPU(system.Driver); err != nil {
			return nil, nil, err
		}
		if cluster == nil {
			return nil, nil, usagef("bench: there is no built-in cluster of this GPU to plan for; autopar cluster lists those there are")
		}
	}
	options, err := (&planCmd{}).options(cfg)
	if err != nil {
		return nil, nil, err
	}
	doc, err = search(cfg, cluster, options)
	return doc, system, err
}

// isPlan reports whether a file is a plan: a configuration may be JSON, too.
func isPlan(name string) bool {
	var plan struct {
		Plan json.RawMessage `json:"plan"`
	}
	data, err := os.ReadFile(name)
	return err == nil && json.Unmarshal(data, &plan) == nil && plan.Plan != nil
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
	spans []runtime.Span // of the step in progress, if they are kept
	keep  bool
}

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

// record keeps the spans of the next step, which counts in nothing else.
func (s *stopwatch) record() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = true
}

// timed is a program whose steps are timed.
type timed struct {
	prog  *codegen.Program
	watch stopwatch
	times []time.Duration // of each step after the burn-in
	exec  *runtime.Executor
	feeds runtime.Feeds
	ended time.Time // of the step before, or when the first began
}

// opener makes a backend for a program, and what hears of its instructions, if anything.
type opener func(p *timed) (runtime.Backend, func(runtime.Span), error)

func openCPU(p *timed) (runtime.Backend, func(runtime.Span), error) {
	backend, err := cpu.New(cpu.Options{})
	return backend, p.watch.note, err
}

// timeOnGPU times whole steps, in which nothing waits, and then where the time goes with
// every instruction waited for, which adds up to more.
func (c *benchCmd) timeOnGPU(ctx context.Context, con *console, cfg *config.Config, system *cuda.System, programs ...*timed) error {
	err := c.timeSteps(ctx, con, cfg, func(*timed) (runtime.Backend, func(runtime.Span), error) {
		return cuda.New(system, c.options()), nil, nil
	}, programs...)
	if err != nil {
		return err
	}
	times := make([][]time.Duration, len(programs))
	for i, p := range programs {
		times[i], p.times = p.times, nil
	}
	err = c.timeSteps(ctx, con, cfg, func(p *timed) (runtime.Backend, func(runtime.Span), error) {
		opts := c.options()
		opts.Synchronous = true
		return cuda.New(system, opts), p.watch.note, nil
	}, programs...)
	for i, p := range programs {
		p.times = times[i]
	}
	return err
}

// timeSteps runs training programs on random tokens and notes how long each step
// after the burn-in took, and where the time went. Several take turns, so that
// what else the machine does troubles all alike.
func (c *benchCmd) timeSteps(ctx context.Context, con *console, cfg *config.Config, open opener, programs ...*timed) error {
	for _, p := range programs {
		backend, trace, err := open(p)
		if err != nil {
			return err
		}
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
			p.feeds["step"] = runtime.Ints(int32(step)) // every program has one: AdamW counts it
			if step == 0 || !late {
				p.ended = time.Now()
			}
			if err := p.exec.Begin(ctx, p.prog, p.feeds); err != nil {
				return err
			}
			first := c.BurnIn // of those that are noted
			if late {         // the host is a step ahead, as in training
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
	if c.Trace == "" {
		return nil
	}
	p := programs[0]
	p.watch.record()
	p.feeds["step"] = runtime.Ints(int32(c.BurnIn + c.Steps))
	_, err := p.exec.Step(ctx, p.prog, p.feeds)
	return err
}

// finish waits for the first step that is not finished, and notes how long after the end of
// the one before it ended, if asked.
func (p *timed) finish(ctx context.Context, note bool) error {
	_, err := p.exec.Finish(ctx)
	start := p.ended
	p.ended = time.Now()
	if note {
		p.times = append(p.times, p.ended.Sub(start))
	}
	return err
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

// summarize turns times into the result. work is that of each op in a step.
func (c *benchCmd) summarize(cfg *config.Config, ranks int, peaks profile.Peaks, work map[string]cost.Work, times []time.Duration, watch *stopwatch) *benchResult {
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
		PeakFLOPS:  peaks.FLOPS, Bandwidth: peaks.Bandwidth,
	}
	r.MFU = float64(cfg.Model.FLOPsPerToken()) * r.TokensPerS / r.PeakFLOPS
	add := func(op string, calls int, spent time.Duration) { // of all ranks in all steps
		turns := float64(len(times) * ranks)
		o := opTime{Op: op, Calls: float64(calls) / turns, MS: ms(spent) / turns, Share: spent.Seconds() / float64(ranks) / total.Seconds()}
		o.rate(work[op], peaks)
		r.Ops = append(r.Ops, o)
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
	con.heading("%s, %d steps after %d", explain.Count(r.Ranks, "rank"), r.Steps, r.BurnIn)
	rows := [][]string{
		{"ms/step", fmt.Sprintf("%.2f", r.MeanMS), fmt.Sprintf("median %.2f, least %.2f, predicted %.2f", r.MedianMS, r.MinMS, r.PredictedMS)},
		{"tokens/s", explain.Grouped(int64(r.TokensPerS))},
		{"MFU", fmt.Sprintf("%.2f %%", 100*r.MFU), fmt.Sprintf("of %.4g GFLOP/s; memory %.3g GB/s", r.PeakFLOPS/1e9, r.Bandwidth/1e9)},
	}
	if r.PeakRSS > 0 {
		over := float64(r.PeakRSS)/float64(r.ArenaBytes) - 1
		rows = append(rows, []string{"memory", explain.Bytes(r.PeakRSS), fmt.Sprintf("at most, %.1f %% more than the arenas' %s", 100*over, explain.Bytes(r.ArenaBytes))})
	}
	con.table(rows)
	if w := r.Without; w != nil {
		ratio := func(x [2]int64) string {
			if x[0] == 0 {
				return "none"
			}
			return fmt.Sprintf("%.2f x", float64(x[0])/float64(max(x[1], 1)))
		}
		con.heading("train.reproducible costs, beside the same plan without it")
		con.table([][]string{
			{"time", fmt.Sprintf("%.2f x", w.Ratio), fmt.Sprintf("median %.2f ms, without %.2f", r.MedianMS, w.MedianMS)},
			{"communication", ratio(w.CommBytes), fmt.Sprintf("%s bytes a step, without %s", explain.Grouped(w.CommBytes[0]), explain.Grouped(w.CommBytes[1]))},
			{"memory", ratio(w.Memory), fmt.Sprintf("%s bytes, without %s", explain.Grouped(w.Memory[0]), explain.Grouped(w.Memory[1]))},
		})
	}
	rows = [][]string{{"OP", "MS/STEP", "SHARE", "CALLS", "GFLOP/S", "GB/S", "ROOFLINE"}}
	for _, op := range r.Ops[:r.listed] {
		rows = append(rows, op.cells())
	}
	rows = append(rows, []string{"together", fmt.Sprintf("%.3f", r.MeanMS*r.ShareOfTop), fmt.Sprintf("%.1f %%", 100*r.ShareOfTop)})
	con.table(rows)
}

// measure times the steps of a plan.
func (c *benchCmd) measure(ctx context.Context, con *console, found *planner.Document, system *cuda.System) (*benchResult, error) {
	cfg := found.Config
	con.note("plan: %s", explain.PlanText(found.Plan))
	programs, err := compile(cfg, found.Plan)
	if err != nil {
		return nil, err
	}
	if err := programs.verify(); err != nil {
		return nil, err
	}
	all := []*timed{{prog: programs.training}}
	if cfg.Train.Reproducible {
		plain := *cfg
		plain.Train.Reproducible = false
		others, err := compile(&plain, found.Plan)
		if err != nil {
			return nil, err
		}
		all = append(all, &timed{prog: others.training})
	}
	if system != nil {
		err = c.timeOnGPU(ctx, con, cfg, system, all...)
	} else {
		err = c.timeSteps(ctx, con, cfg, openCPU, all...)
	}
	if err != nil {
		return nil, err
	}
	prog := programs.training
	peaks, resident := peaksOf(found), int64(0)
	if system == nil {
		resident = peakMemory() // before the peaks are measured, which takes some
		peaks = profile.MeasurePeaks(ctx, peakBudget)
	}
	r := c.summarize(cfg, found.Plan.RuntimeNGPUs, peaks, workOf(prog, found.Cluster), all[0].times, &all[0].watch)
	r.PredictedMS = found.Predicted.StepSeconds * 1e3
	r.PeakRSS = resident
	_, r.ArenaBytes = footprint(prog)
	if c.Trace != "" {
		report, err := explain.Of(prog, cfg)
		if err != nil {
			return nil, err
		}
		if err := report.Predict(found.Cluster); err != nil {
			return nil, err
		}
		if err := writeFile(c.Trace, func(w io.Writer) error { return report.TraceBeside(w, all[0].watch.spans) }); err != nil {
			return nil, err
		}
		con.note("wrote %s", c.Trace)
	}
	if len(all) > 1 {
		r.Without = r.compare(all[0].prog, all[1])
	}
	return r, nil
}

// compare sets the result, of a reproducible program, beside the same plan without
// train.reproducible.
func (r *benchResult) compare(with *codegen.Program, plain *timed) *benchWithout {
	slices.Sort(plain.times)
	w := &benchWithout{MedianMS: plain.times[len(plain.times)/2].Seconds() * 1e3}
	w.Ratio = r.MedianMS / w.MedianMS
	for i, p := range []*codegen.Program{with, plain.prog} {
		w.CommBytes[i], w.Memory[i] = footprint(p)
	}
	return w
}

// footprint returns the bytes that all ranks receive in a step, and their arenas.
func footprint(p *codegen.Program) (received, arenas int64) {
	for r := range p.Schedules {
		s := &p.Schedules[r]
		arenas += p.Stages[s.Stage].Arena()
		for _, task := range s.Tasks {
			for _, in := range p.Stages[s.Stage].Run(task) {
				if in.Node.Op != ir.OpSend && s.Runs(&in, task) { // the receiver counts what is sent
					received += p.CommBytes(s, in.Node, task)
				}
			}
		}
	}
	return received, arenas
}
