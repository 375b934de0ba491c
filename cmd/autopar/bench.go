package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
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
	PeakFLOPS   float64  `json:"peak_flops"` // what MFU refers to: of all cores, in multiply-adds, measured in this run; or of all GPUs
	Bandwidth   float64  `json:"bandwidth"`  // of memory, bytes a second, measured as well
	ArenaBytes  int64    `json:"arena_bytes"`
	PeakRSS     int64    `json:"peak_rss_bytes,omitempty"` // of the process
	PredictedMS float64  `json:"predicted_ms"`
	Cluster     string   `json:"cluster"`      // that the plan and the prediction are for
	Ops         []opTime `json:"ops"`          // all that take time, longest first; they add up to the step
	ShareOfTop  float64  `json:"share_of_top"` // share of the step that the first --top ops take
	// Without compares with the same plan without train.reproducible, if that is on.
	Without *benchWithout `json:"without_reproducible,omitempty"`
	listed  int
}

// benchWithout says what train.reproducible costs: it has the figures of the same plan without it, for all ranks together.
type benchWithout struct {
	MedianMS  float64  `json:"median_ms"`
	Ratio     float64  `json:"ratio"`      // of the medians, with to without
	CommBytes [2]int64 `json:"comm_bytes"` // received per step: with, without
	Memory    [2]int64 `json:"arena_bytes"`
}

// Run plans, runs and times.
func (c *benchCmd) Run(ctx context.Context, con *console) error {
	if c.Steps < 1 || c.BurnIn < 0 || c.Top < 0 {
		return usagef("bench: --steps %d, --burn-in %d, --top %d: want at least 1, 0 and 0", c.Steps, c.BurnIn, c.Top)
	}
	if most := math.MaxInt32; c.Steps > most || c.BurnIn > most-c.Steps {
		return usagef("bench: --steps %d and --burn-in %d: want at most %d together, which is as many as a step can count", c.Steps, c.BurnIn, most)
	}
	if err := c.validate("bench"); err != nil {
		return err
	}
	if err := errors.Join(toFile("bench: --profile", c.Trace), apart("bench: --profile", c.Trace, c.Config)); err != nil {
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

// plan returns the plan to time: the given one, or the best for the configuration on this machine. With --device cuda it also
// opens the GPUs, and plans for them.
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
	if doc, err = search(cfg, cluster, options); err != nil {
		err = located(cfg, options, err)
	}
	return doc, system, err
}

// isPlan reports whether a file is a plan. It looks into the file, because a configuration may be JSON, too.
func isPlan(name string) bool {
	var plan struct {
		Plan json.RawMessage `json:"plan"`
	}
	data, err := infile.Read(name, planner.MaxDocument)
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

// summarize turns times into the result. work has the work of each op in a step.
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
	add := func(op string, calls int, spent time.Duration) { // calls and spent are those of all ranks in all steps
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
	if len(watch.spent) > 0 { // else the time of ops is not known
		add("idle", 0, max(idle, 0))
	}
	slices.SortFunc(r.Ops, func(a, b opTime) int { return cmp.Or(cmp.Compare(b.MS, a.MS), cmp.Compare(a.Op, b.Op)) })
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
	con.heading("%s, %s after %d", explain.Count(r.Ranks, "rank"), explain.Count(r.Steps, "step"), r.BurnIn)
	rows := [][]string{
		{"ms/step", fmt.Sprintf("%.2f", r.MeanMS), fmt.Sprintf("median %.2f, least %.2f, predicted %.2f on %s", r.MedianMS, r.MinMS, r.PredictedMS, r.Cluster)},
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
	rows = append(rows, []string{"together", fmt.Sprintf("%.3f", r.MeanMS*r.ShareOfTop), percentText(r.ShareOfTop)})
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
	predicted, err := sim.Run(programs.training, found.Cluster, sim.Options{}) // as the plan may have been edited since it was planned
	if err != nil {
		return nil, err
	}
	all := []*timed{{prog: programs.training, reproducible: cfg.Train.Reproducible}}
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
		resident = peakMemory() // before the peaks are measured, which takes memory
		peaks = profile.MeasurePeaks(ctx, peakBudget)
	}
	r := c.summarize(cfg, found.Plan.RuntimeNGPUs, peaks, workOf(prog, found.Cluster), all[0].times, &all[0].watch)
	r.PredictedMS, r.Cluster = predicted.Step.Seconds()*1e3, found.Cluster.Name
	r.PeakRSS = resident
	_, r.ArenaBytes = footprint(prog)
	if c.Trace != "" {
		report, err := explain.Of(prog, nil, cfg)
		if err != nil {
			return nil, err
		}
		if err := report.Predict(found.Cluster); err != nil {
			return nil, err
		}
		var text bytes.Buffer
		if err := report.TraceBeside(&text, all[0].watch.spans); err != nil {
			return nil, err
		}
		if err := writeFile(c.Trace, text.Bytes()); err != nil {
			return nil, err
		}
		con.note("wrote %s", c.Trace)
	}
	if len(all) > 1 {
		r.Without = r.compare(all[0].prog, all[1])
	}
	return r, nil
}

// compare compares the result of a reproducible program with the same plan without train.reproducible.
func (r *benchResult) compare(with *codegen.Program, plain *timed) *benchWithout {
	slices.Sort(plain.times)
	w := &benchWithout{MedianMS: plain.times[len(plain.times)/2].Seconds() * 1e3}
	w.Ratio = r.MedianMS / w.MedianMS
	for i, p := range []*codegen.Program{with, plain.prog} {
		w.CommBytes[i], w.Memory[i] = footprint(p)
	}
	return w
}

// footprint returns the bytes that all ranks together receive in a step, and the bytes of their arenas.
func footprint(p *codegen.Program) (received, arenas int64) {
	for r := range p.Schedules {
		s := &p.Schedules[r]
		arenas += p.Stages[s.Stage].Arena()
		for _, task := range s.Tasks {
			for _, in := range p.Stages[s.Stage].Run(task) {
				if in.Node.Op != ir.OpSend && s.Runs(&in, task) { // transfers count at their receiver
					received += p.CommBytes(s, &in, task)
				}
			}
		}
	}
	return received, arenas
}
