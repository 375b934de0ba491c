package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/cuda"
	gpuprofile "github.com/autopar/autopar/cuda/profile"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/measured"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
	"github.com/autopar/autopar/runtime/cpu/profile"
)

// profileCmd measures this machine.
type profileCmd struct {
	Device string `enum:"cpu,cuda" default:"cpu" help:"cpu, or cuda: all visible GPUs, with NCCL where there are several."`
	Out    string `short:"o" default:"cluster.yaml" placeholder:"FILE" help:"Cluster file to write; - prints it."`
	Budget int    `default:"16" placeholder:"SECONDS" help:"About how long to measure."`
	Check  bool   `help:"Hold predictions against measured steps of twelve plans of two small models, taken between the turns of the measurement, and print the table in Markdown."`
	Steps  int    `with:"check" default:"40" help:"Steps of each plan that --check times."`
}

// Example is shown by --help.
func (profileCmd) Example() string {
	return `
autopar profile -o cluster.yaml
autopar plan gpt.yaml --cluster cluster.yaml`
}

// Run measures and writes.
func (c *profileCmd) Run(ctx context.Context, con *console) error {
	switch {
	case c.Device == "cuda" && c.Check:
		return usagef("profile: --check is for --device cpu; autopar bench compares a step on GPUs with its prediction")
	case c.Budget < 1 || c.Budget > 600:
		return usagef("profile: --budget is %d, must be 1 to 600 seconds", c.Budget)
	case c.Steps < profile.Turns:
		return usagef("profile: --steps is %d, must be at least %d", c.Steps, profile.Turns)
	}
	if err := mayBeFile("profile: -o", c.Out); err != nil {
		return err
	}
	con.note("measuring %d s; leave the machine alone", c.Budget)
	if c.Device == "cuda" {
		return c.gpus(ctx, con)
	}
	m, err := profile.Begin(ctx, time.Duration(c.Budget)*time.Second)
	if err != nil {
		return err
	}
	defer m.Close()
	var check *check
	for turn := range profile.Turns {
		if turn > 0 && !c.Check && m.Spent() {
			break
		}
		if err := m.Turn(ctx); err != nil {
			return err
		}
		if !c.Check {
			continue
		}
		if turn == 0 {
			if check, err = newCheck(m); err != nil {
				return err
			}
		}
		if err := check.round(ctx, c.Steps/profile.Turns); err != nil {
			return err
		}
		con.note("round %d of %d", turn+1, profile.Turns)
	}
	result, err := m.Result()
	if err != nil {
		return err
	}
	cluster, err := c.write(con, result.WriteYAML)
	if err != nil {
		return err
	}
	if c.Out != "-" {
		c.print(con, result)
	}
	if check == nil {
		return nil
	}
	rows, err := check.rows(cluster)
	if err != nil {
		return err
	}
	c.printCheck(con, cluster, rows)
	return nil
}

// write writes the cluster file and reads it as planning will.
func (c *profileCmd) write(con *console, yaml func(io.Writer) error) (*cost.Cluster, error) {
	var text bytes.Buffer
	if err := yaml(&text); err != nil {
		return nil, err
	}
	cluster, err := cost.Parse(c.Out, text.Bytes())
	if err != nil {
		return nil, fmt.Errorf("BUG: profile wrote a file that cannot be read: %w", err)
	}
	if c.Out == "-" {
		con.printf("%s", text.Bytes())
		return cluster, nil
	}
	if err := writeFile(c.Out, text.Bytes()); err != nil {
		return nil, err
	}
	con.note("wrote %s", c.Out)
	return cluster, nil
}

// gpus measures the visible GPUs.
func (c *profileCmd) gpus(ctx context.Context, con *console) error {
	system, err := openMachine(cuda.MachineOptions{})
	if err != nil {
		return err
	}
	like, err := clusterOfGPU(system.Driver)
	if err != nil {
		return err
	}
	begin := time.Now()
	note := func(what string) { con.note("%3.0f s: %s", time.Since(begin).Seconds(), what) }
	result, err := gpuprofile.Measure(ctx, system, gpuprofile.Options{Budget: time.Duration(c.Budget) * time.Second, Like: like, Note: note})
	if err != nil {
		return err
	}
	cluster, err := c.write(con, result.WriteYAML)
	if err != nil || c.Out == "-" {
		return err
	}
	d, e := cluster.Device, cluster.Device.Efficiency
	rate := func(t string, share float64) string {
		return fmt.Sprintf("%.4g TFLOP/s in %s", share*d.FLOPS[t]/1e12, t)
	}
	off := func(class string) string { return fmt.Sprintf("off %.0f %%", 100*result.Off[class]) }
	network := "not measured: one GPU"
	if result.NCCL != "" {
		network = fmt.Sprintf("%s, %.4g GB/s by NCCL %s", explain.Seconds(cluster.IntraNode.Latency), cluster.IntraNode.Bandwidth/1e9, result.NCCL)
	}
	con.heading("%d x %s", result.GPUs, result.GPU)
	con.table([][]string{
		{"large products", rate("bf16", e.Matmul) + ", " + rate("f32", e.Matmul), off("product")},
		{"attention", rate("bf16", e.Attention), off("attention")},
		{"memory", fmt.Sprintf("%.4g GB/s in kernels of training", e.Memory*d.MemoryBandwidth/1e9), off("vector")},
		{"a kernel", explain.Seconds(d.LaunchOverhead) + " in a graph, " + explain.Seconds(result.Launch.Alone) + " alone", ""},
		{"a message", network, ""},
		{"the host", fmt.Sprintf("%s, %.4g GB/s", explain.Seconds(cluster.Host.Latency), cluster.Host.Bandwidth/1e9), ""},
		{"taken beside an arena", explain.Bytes(d.Reserve), ""},
	})
	return nil
}

func (c *profileCmd) print(con *console, r *profile.Result) {
	d, e := r.Cluster.Device, r.Cluster.Device.Efficiency
	con.heading("%s%s", r.Machine, map[bool]string{true: fmt.Sprintf(", load %.2f before", r.Load)}[r.Load >= 0])
	spread := map[string]string{}
	for _, f := range r.Figures {
		spread[f.Key] = fmt.Sprintf("spread %.0f %%", 100*f.Spread)
	}
	con.table([][]string{
		{"products, one core", fmt.Sprintf("%.4g GFLOP/s", d.FLOPS["f32"]/1e9), spread["device.flops.f32"]},
		{"products in training", fmt.Sprintf("%.0f %% of it, half at %s FLOPs", 100*e.Matmul, explain.Grouped(int64(e.MatmulHalf))), spread["device.efficiency.matmul"]},
		{"attention", fmt.Sprintf("%.0f %%", 100*e.Attention), spread["device.efficiency.attention"]},
		{"other kernels", percentText(e.Vector), spread["device.efficiency.vector"]},
		{"memory", fmt.Sprintf("%.4g GB/s", d.MemoryBandwidth/1e9), spread["device.memory_bandwidth"]},
		{"caches", fmt.Sprintf("%.4g GB/s up to %s", d.Cache.Bandwidth/1e9, explain.Bytes(d.Cache.Memory)), spread["device.cache"]},
		{"an instruction", explain.Seconds(d.LaunchOverhead), spread["device.launch_overhead"]},
		{"a meeting", fmt.Sprintf("%s, %s for each turn on a core; collectives %.4g GB/s", explain.Seconds(r.Cluster.IntraNode.Latency), explain.Seconds(d.Turn), r.Cluster.IntraNode.Bandwidth/1e9), spread["intra_node"]},
	})
}

// checkedPlan is a plan of --check with its times, in seconds.
type checkedPlan struct {
	model, name string
	ranks       int
	with        planner.Options // what is fixed; the rest is searched
	plan        *partition.Plan // what the search has found

	predicted float64
	quiet     float64 // mean of the fastest tenth of the steps, as the profile counts
	noise     float64 // standard error of quiet over the rounds, as a share of it
	median    float64
}

func (p checkedPlan) error() float64 { return p.predicted/p.quiet - 1 }

// checkedModels are the models of the check, with their batches.
var checkedModels = []struct{ name, config string }{
	{"narrow", "model: {preset: quick}\nbatch: {global: 12}\n"},
	{"wide", "model: {preset: shakespeare_char, n_layer: 2, dropout: 0}\nbatch: {global: 4}\n"},
}

// checkedPlans are twelve plans: for each model two plans on one, two and four ranks each. Together they have every way to
// divide a step among ranks, and micro-batches, ZeRO and recomputation from none to all.
func checkedPlans() []checkedPlan {
	zero := func(stage int) *int { return &stage }
	return []checkedPlan{
		{model: "narrow", name: "1 rank", ranks: 1, with: planner.Options{MicroBatch: 12}},
		{model: "narrow", name: "1 rank, 12 micro-batches", ranks: 1, with: planner.Options{MicroBatch: 1}},
		{model: "narrow", name: "2 ranks, dp, ZeRO 2", ranks: 2, with: planner.Options{DP: 2, MicroBatch: 6, ZeRO: zero(2)}},
		{model: "narrow", name: "2 ranks, tp, 4 micro-batches, recomputing all", ranks: 2, with: planner.Options{TP: 2, MicroBatch: 3, Recompute: "full"}},
		{model: "narrow", name: "4 ranks, dp, 3 micro-batches, ZeRO 3", ranks: 4, with: planner.Options{DP: 4, MicroBatch: 1, ZeRO: zero(3)}},
		{model: "narrow", name: "4 ranks, pp, 6 micro-batches", ranks: 4, with: planner.Options{PP: 4, MicroBatch: 2, Schedule: "1f1b"}},
		{model: "wide", name: "1 rank, 4 micro-batches", ranks: 1, with: planner.Options{MicroBatch: 1}},
		{model: "wide", name: "1 rank, recomputing all", ranks: 1, with: planner.Options{MicroBatch: 4, Recompute: "full"}},
		{model: "wide", name: "2 ranks, dp, ZeRO 1", ranks: 2, with: planner.Options{DP: 2, MicroBatch: 2, ZeRO: zero(1)}},
		{model: "wide", name: "2 ranks, pp, 4 micro-batches, recomputing all", ranks: 2, with: planner.Options{PP: 2, MicroBatch: 1, Schedule: "1f1b", Recompute: "full"}},
		{model: "wide", name: "4 ranks, dp x tp, 2 micro-batches, ZeRO 3", ranks: 4, with: planner.Options{DP: 2, TP: 2, MicroBatch: 1, ZeRO: zero(3)}},
		{model: "wide", name: "4 ranks, tp", ranks: 4, with: planner.Options{TP: 4, MicroBatch: 4}},
	}
}

// check times twelve plans. It has a round after each turn of the measurement of the machine, so that other load affects the
// predictions and the times they are compared with alike.
type check struct {
	plans   []checkedPlan
	configs map[string]*config.Config
	timed   []*timed
	each    [][]float64 // by plan and round, the mean of the fastest tenth of the steps in seconds
}

// newCheck searches what the plans leave open, with the figures that the measurement has after its first turn. The predictions
// are made later, with the figures of the whole measurement: see rows.
func newCheck(m *profile.Measurement) (*check, error) {
	soFar, err := m.Result()
	if err != nil {
		return nil, err
	}
	c := &check{plans: checkedPlans(), configs: map[string]*config.Config{}}
	for _, m := range checkedModels {
		cfg, err := config.Parse("check", []byte(m.config), nil)
		if err != nil {
			return nil, err
		}
		if err := cfg.Validate(); err != nil {
			return nil, err
		}
		c.configs[m.name] = cfg
	}
	for i := range c.plans {
		k := &c.plans[i]
		o := k.with
		o.PlanNGPUs, o.RuntimeNGPUs, o.Overlap = k.ranks, k.ranks, "off"
		o.DP, o.TP, o.PP, o.CP = max(o.DP, 1), max(o.TP, 1), max(o.PP, 1), 1
		doc, err := search(c.configs[k.model], soFar.Cluster, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
		compiled, err := compile(c.configs[k.model], doc.Plan)
		if err != nil {
			return nil, err
		}
		k.plan = doc.Plan
		c.timed = append(c.timed, &timed{prog: compiled.training})
	}
	c.each = make([][]float64, len(c.plans))
	return c, nil
}

// round times some steps of every plan.
func (c *check) round(ctx context.Context, steps int) error {
	for i, p := range c.timed {
		from := len(p.times)
		if err := timeRound(ctx, c.configs[c.plans[i].model], p, steps); err != nil {
			return err
		}
		c.each[i] = append(c.each[i], quietest(slices.Clone(p.times[from:])))
	}
	return nil
}

// rows returns the plans with what was measured, and what a cluster's figures predict.
func (c *check) rows(cluster *cost.Cluster) ([]checkedPlan, error) {
	for i := range c.plans {
		k, cfg := &c.plans[i], c.configs[c.plans[i].model]
		training, evaluation, err := cfg.Steps()
		if err != nil {
			return nil, err
		}
		x, err := planner.Predict(training, cfg.Batch.Global, cluster, k.plan, evaluation)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
		k.predicted = x.Step.Seconds()
		k.quiet = quietest(c.timed[i].times)
		k.noise = stderr(c.each[i]) / k.quiet
		k.median = c.timed[i].times[len(c.timed[i].times)/2].Seconds()
	}
	return c.plans, nil
}

// quietest sorts times and returns the mean of the shortest tenth of them, in seconds.
func quietest(times []time.Duration) float64 {
	slices.Sort(times)
	least, sum := times[:max(1, len(times)/10)], 0.0
	for _, d := range least {
		sum += d.Seconds()
	}
	return sum / float64(len(least))
}

// stderr is the standard error of the mean of some figures.
func stderr(x []float64) float64 {
	var sum, squares float64
	for _, v := range x {
		sum += v
	}
	n := float64(len(x))
	for _, v := range x {
		squares += (v - sum/n) * (v - sum/n)
	}
	return math.Sqrt(squares / n / (n - 1))
}

// timeRound times some steps of a program. A few steps before them are not timed, because their memory is in no cache yet. No
// instructions are traced, as that would take time.
func timeRound(ctx context.Context, cfg *config.Config, p *timed, steps int) error {
	backend, err := cpu.New(cpu.Options{})
	if err != nil {
		return err
	}
	exec, err := runtime.New(p.prog, backend, runtime.Options{})
	if err != nil {
		return err
	}
	defer exec.Close()
	if err := exec.InitParams(p.prog, uint64(cfg.Train.Seed)); err != nil {
		return err
	}
	feeds := randomBatch(cfg, p.prog)
	const warm = 5
	for step := range warm + steps {
		feeds["step"] = runtime.Ints(int32(step))
		start := time.Now()
		if _, err := exec.Step(ctx, p.prog, feeds); err != nil {
			return err
		}
		if step >= warm {
			p.times = append(p.times, time.Since(start))
		}
	}
	return nil
}

func (c *profileCmd) printCheck(con *console, cluster *cost.Cluster, rows []checkedPlan) {
	con.printf("\n%s, %d steps of each plan in turn\n\n", cluster.Source, c.Steps)
	con.printf("| model | plan | predicted | measured, quietest tenth | error | noise | median |\n|---|---|---|---|---|---|---|\n")
	ms := func(s float64) string { return fmt.Sprintf("%.2f ms", 1e3*s) }
	sum, worst := 0.0, 0.0
	predicted, took := map[string][]float64{}, map[string][]float64{}
	for _, r := range rows {
		con.printf("| %s | %s | %s | %s | %+.1f %% | %.1f %% | %s |\n", r.model, r.name, ms(r.predicted), ms(r.quiet), 100*r.error(), 100*r.noise, ms(r.median))
		for _, of := range []string{r.model, ""} {
			predicted[of], took[of] = append(predicted[of], r.predicted), append(took[of], r.quiet)
		}
		sum += math.Abs(r.error())
		worst = max(worst, math.Abs(r.error()))
	}
	con.printf("\nmean error %.1f %%, largest %.1f %%, rank correlation", 100*sum/float64(len(rows)), 100*worst)
	for _, m := range checkedModels {
		con.printf(" %.3f of the %s model,", measured.Spearman(predicted[m.name], took[m.name]), m.name)
	}
	con.printf(" %.3f of all\n", measured.Spearman(predicted[""], took[""]))
}
