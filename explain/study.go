package explain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// Study answers what the plan would be if something were different, by searching again. It never searches the same setting
// twice.
type Study struct {
	report *Report
	doc    *planner.Document
	limit  int64
	graphs map[int][2]*ir.Graph // by batch: training and evaluation
	asked  map[string]*Option   // what was searched already
	// Searches counts the searches so far, Seconds is the time they took.
	Searches int
	Seconds  float64
}

// Option is the fastest plan for a setting, or the reason why there is none.
type Option struct {
	Change string `json:"change"` // what is different
	Plan   string `json:"plan,omitempty"`
	Reason string `json:"reason,omitempty"` // why there is no plan
	Ranks  int    `json:"ranks"`
	// LimitBytes is the memory of a rank, which the plan must not exceed.
	LimitBytes      int64   `json:"limit_bytes"`
	StepSeconds     float64 `json:"step_seconds,omitempty"`
	TokensPerSecond float64 `json:"tokens_per_second,omitempty"`
	PeakBytes       int64   `json:"peak_bytes,omitempty"` // of the fullest rank
	// GPUHours is what 1e9 tokens take on all ranks together, Cost their price if a price of a GPU-hour was given.
	GPUHours float64 `json:"gpu_hours_per_1e9_tokens,omitempty"`
	Cost     float64 `json:"cost_per_1e9_tokens,omitempty"`

	plan  *partition.Plan
	cause error
}

// Sensitivities say how the fastest plan changes with the setting.
type Sensitivities struct {
	// Planned is the reported plan. Now is what a search finds for the same setting if only the configuration restricts
	// it, and not the flags that the reported plan was searched with.
	Planned Option   `json:"planned"`
	Now     Option   `json:"now"`
	Changes []Option `json:"changes"`
}

// Fronts are two Pareto fronts: step time against memory, and against the number of devices.
type Fronts struct {
	// Planned is the reported plan, whether it is on a front or not.
	Planned Option `json:"planned"`
	// Memory has the fastest plan under descending limits of memory, until nothing fits. Each limit is a tenth below the
	// peak of the plan before.
	Memory []Option `json:"memory"`
	// Devices has the fastest plan for numbers of devices.
	Devices []Option `json:"devices"`
}

// NewStudy returns a study of the plan of a document. The report must be of the same plan, with a prediction.
func NewStudy(doc *planner.Document, r *Report) *Study {
	s := &Study{report: r, doc: doc, graphs: map[int][2]*ir.Graph{}, asked: map[string]*Option{}}
	s.limit = s.memory(doc.Cluster, doc.Plan.RuntimeNGPUs)
	return s
}

// memory is what each of a number of ranks of a cluster may use, in bytes, under the limit of the document if it has one.
func (s *Study) memory(c *cost.Cluster, ranks int) int64 {
	return c.MemoryUnder(int64(s.doc.Config.Parallel.MemoryLimit), ranks)
}

// setting is everything about a search that a study changes.
type setting struct {
	change  string
	cluster *cost.Cluster
	ranks   int
	batch   int
	limit   int64
	policy  planner.Policy
}

// now is the setting of the document itself, with a name for what the caller will change.
func (s *Study) now(change string) setting {
	return setting{change, s.doc.Cluster, s.doc.Plan.RuntimeNGPUs, s.doc.Config.Batch.Global, s.limit, planner.AutoDist}
}

// unit is the size of a unit for a number of ranks: the plan's own if the plan has several units and their size divides the
// ranks, else all ranks.
func (s *Study) unit(ranks int) int {
	if p := s.doc.Plan; p.Units() > 1 && ranks%p.PlanNGPUs == 0 {
		return p.PlanNGPUs
	}
	return ranks
}

// ask searches the fastest plan for a setting. That no plan fits, or that an option cannot be had, is a result and not an
// error.
func (s *Study) ask(x setting) (*Option, error) {
	figures, err := json.Marshal(x.cluster)
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	key := fmt.Sprint(x.ranks, x.batch, x.limit, x.policy, string(figures))
	if known := s.asked[key]; known != nil {
		again := *known
		again.Change = x.change
		return &again, nil
	}
	graphs, traced := s.graphs[x.batch]
	if !traced {
		cfg := *s.doc.Config
		cfg.Batch.Global = x.batch
		if graphs[0], graphs[1], err = cfg.Steps(); err != nil {
			return nil, err
		}
		s.graphs[x.batch] = graphs
	}
	start := time.Now()
	found, err := planner.Search(graphs[0], x.batch, x.cluster, planner.Options{
		PlanNGPUs: s.unit(x.ranks), RuntimeNGPUs: x.ranks, MemoryLimit: x.limit, Policy: x.policy, Eval: graphs[1],
		MicroBatch: int(s.doc.Config.Batch.Micro), Pins: s.pins(),
	})
	s.Searches++
	s.Seconds += time.Since(start).Seconds()
	o := &Option{Change: x.change, Ranks: x.ranks, LimitBytes: x.limit}
	var none *planner.InfeasibleError
	var option *planner.OptionError
	switch {
	case errors.As(err, &none):
		o.Reason, o.cause = shortfall(none), err
	case errors.As(err, &option):
		o.Reason, o.cause = err.Error()[len("planner: "):], err
	case err != nil:
		return nil, err
	default:
		o.plan = found.Plan
		o.fill(s.tokens(x.batch), found.Plan, found.Prediction.Step.Seconds(), found.Prediction.PeakBytes)
	}
	s.asked[key] = o
	return o, nil
}

// shortfall says in a line why there is no plan.
func shortfall(e *planner.InfeasibleError) string {
	switch {
	case !tooLarge(e):
		return "a step of the closest plan takes more than the 53 days that can be counted"
	case e.AtLeast < e.Needs: // others were not laid out, and may be closer
		return fmt.Sprintf("nothing fits: stage %d of the closest plan that was laid out needs %s more", e.Stage, Bytes(e.Needs-e.Limit))
	}
	return fmt.Sprintf("nothing fits: stage %d needs %s more at least", e.Stage, Bytes(e.Needs-e.Limit))
}

// tooLarge reports whether memory is why there is no plan, and not time.
func tooLarge(e *planner.InfeasibleError) bool { return e.Needs > e.Limit }

// pins are the placements that the configuration asks for.
func (s *Study) pins() []partition.Placement {
	var pins []partition.Placement
	for _, pin := range s.doc.Config.Parallel.Pins {
		pins = append(pins, partition.Placement{Match: pin.Match, Spec: pin.Spec()})
	}
	return pins
}

// tokens is the number of tokens of a step at a batch size.
func (s *Study) tokens(batch int) float64 {
	return float64(batch) * float64(s.doc.Config.Model.BlockSize)
}

// fill sets the figures of a plan: step is its time in seconds, tokens are those of a step, peaks the bytes of each stage.
func (o *Option) fill(tokens float64, p *partition.Plan, step float64, peaks []int64) {
	o.Plan, o.Ranks, o.StepSeconds, o.TokensPerSecond = PlanText(p), p.RuntimeNGPUs, step, tokens/step
	o.PeakBytes = slices.Max(peaks)
	o.GPUHours = float64(o.Ranks) * step / 3600 * 1e9 / tokens
}

// Policy compares the plan with the best of a policy: one search.
func (s *Study) Policy(policy planner.Policy) (*Versus, error) {
	x := s.now(string(policy))
	x.policy = policy
	o, err := s.ask(x)
	if err != nil {
		return nil, err
	}
	if o.plan == nil {
		return s.report.infeasible(string(policy), o.cause)
	}
	return s.report.Against(string(policy), o.plan)
}

// Policies compares the plan with the best of every policy: three searches.
func (s *Study) Policies() error {
	for _, policy := range []planner.Policy{planner.DP, planner.FSDP, planner.Megatron} {
		v, err := s.Policy(policy)
		if err != nil {
			return err
		}
		s.report.Versus = append(s.report.Versus, v)
	}
	return nil
}

// planned returns the reported plan as an option.
func (s *Study) planned() Option {
	o := Option{Change: "as planned", LimitBytes: s.limit, plan: s.doc.Plan}
	o.fill(s.tokens(s.doc.Config.Batch.Global), s.doc.Plan, s.report.Prediction.StepSeconds, []int64{s.report.peak()})
	return o
}

// Sensitivities adds to the report the fastest plans with one GiB more, with links and HBM of twice the bandwidth, with half and
// twice the batch, and with twice the devices. It takes at most eight searches.
func (s *Study) Sensitivities() error {
	out := &Sensitivities{Planned: s.planned()}
	now, err := s.ask(s.now("searched again"))
	if err != nil {
		return err
	}
	out.Now = *now
	var settings []setting
	change := func(name string, f func(*setting)) {
		x := s.now(name)
		f(&x)
		settings = append(settings, x)
	}
	change("+1 GiB per device", func(x *setting) { x.limit, x.cluster = x.limit+1<<30, x.cluster.Larger(1<<30, x.ranks) })
	wider := func(name string, r cost.Resource) {
		change(name, func(x *setting) { x.cluster = x.cluster.Wider(r, 2) })
	}
	if p := s.doc.Plan; s.doc.Cluster.Node(p, p.RuntimeNGPUs-1) > 0 {
		wider("2x network between nodes", cost.InterLink)
	}
	wider("2x network in a node", cost.IntraLink)
	wider("2x HBM bandwidth", cost.HBM)
	if batch := s.doc.Config.Batch.Global; batch > 1 {
		name := "half the batch"
		if batch%2 > 0 {
			name = fmt.Sprintf("a batch of %d", batch/2)
		}
		change(name, func(x *setting) { x.batch = batch / 2 })
	}
	change("twice the batch", func(x *setting) { x.batch *= 2 })
	change("twice the devices", func(x *setting) { s.double(x) })
	for _, x := range settings {
		o, err := s.ask(x)
		if err != nil {
			return err
		}
		out.Changes = append(out.Changes, *o)
	}
	s.report.Sensitivities = out
	return nil
}

// double changes a setting to twice the devices. If they all share the memory of one machine, none may use more
// than its part of that.
func (s *Study) double(x *setting) {
	x.ranks *= 2
	x.cluster = x.cluster.Times(2)
	x.limit = s.memory(x.cluster, x.ranks)
}

// The front of memory.
const (
	memoryPoints = 8   // limits, at most
	memoryStep   = 0.9 // the next limit, as a share of the peak of the plan before
)

// allMemory names the first point of the front of memory, which has the limit of the study.
const allMemory = "all there is"

// Fronts adds to the report the fronts of time against memory, by at most eight searches, and of time against devices, by
// at most five: a quarter, half, once, twice and four times the devices, as far as these are whole numbers.
func (s *Study) Fronts() error {
	out := &Fronts{Planned: s.planned()}
	x := s.now(allMemory)
	for range memoryPoints {
		o, err := s.ask(x)
		if err != nil {
			return err
		}
		if k := len(out.Memory) - 1; o.plan != nil && k >= 0 && o.StepSeconds <= out.Memory[k].StepSeconds {
			o.Change, o.LimitBytes = out.Memory[k].Change, out.Memory[k].LimitBytes // the plan before takes as long, and more memory
			out.Memory[k] = *o
		} else {
			out.Memory = append(out.Memory, *o)
		}
		if o.plan == nil {
			break
		}
		x.limit = int64(memoryStep * float64(o.PeakBytes))
		x.change = "at most " + Bytes(x.limit)
	}
	ranks := s.doc.Plan.RuntimeNGPUs
	for _, x := range []struct{ by, over int }{{1, 4}, {1, 2}, {1, 1}, {2, 1}, {4, 1}} {
		n := ranks * x.by / x.over
		if n*x.over != ranks*x.by {
			continue
		}
		q := s.now(Count(n, "device"))
		q.ranks = n
		if x.by > 1 {
			q.cluster = q.cluster.Times(x.by)
		}
		q.limit = s.memory(q.cluster, n)
		o, err := s.ask(q)
		if err != nil {
			return err
		}
		o.Change = q.change
		out.Devices = append(out.Devices, *o)
	}
	s.report.Fronts = out
	return nil
}

// Price sets the cost of every option of the report, given the price of a device for an hour.
func (r *Report) Price(perHour float64) {
	r.HourPrice = perHour
	set := func(options []Option) {
		for i := range options {
			options[i].Cost = options[i].GPUHours * perHour
		}
	}
	if s := r.Sensitivities; s != nil {
		s.Planned.Cost, s.Now.Cost = s.Planned.GPUHours*perHour, s.Now.GPUHours*perHour
		set(s.Changes)
	}
	if f := r.Fronts; f != nil {
		f.Planned.Cost = f.Planned.GPUHours * perHour
		set(f.Memory)
		set(f.Devices)
	}
}

// optionRow prints an option as a row of a table. The gain is relative to base.
func (r *Report) optionRow(o Option, base Option) []string {
	if o.plan == nil {
		return []string{o.Change, "-", "-", "-", "-", "-", r.costText(o), o.Reason}
	}
	return []string{
		o.Change, Seconds(o.StepSeconds), Grouped(int64(o.TokensPerSecond)), percent(o.TokensPerSecond/base.TokensPerSecond - 1),
		Bytes(o.PeakBytes), fmt.Sprintf("%.4g", o.GPUHours), r.costText(o), o.Plan,
	}
}

// costText prints the cost of an option, or nothing if no price was given.
func (r *Report) costText(o Option) string {
	switch {
	case r.HourPrice == 0:
		return ""
	case o.plan == nil:
		return "-"
	}
	return fmt.Sprintf("%.2f", o.Cost)
}

// optionTable prints options under a title.
func (r *Report) optionTable(out io.Writer, title string, base Option, options ...Option) {
	money := ""
	if r.HourPrice > 0 {
		money = fmt.Sprintf(", USD at %.4g an hour", r.HourPrice)
	}
	var rows [][]string
	for _, o := range options {
		rows = append(rows, r.optionRow(o, base))
	}
	table(out, fmt.Sprintf("%s: step, tokens/s, gain, peak of a rank, GPU-hours for 1e9 tokens%s, plan", title, money), rows, 1, 2, 3, 4, 5, 6)
}

func (r *Report) sensitivityText(out io.Writer) {
	s := r.Sensitivities
	r.optionTable(out, "what a change would buy", s.Planned, append([]Option{s.Planned, s.Now}, s.Changes...)...)
}

func (r *Report) frontText(out io.Writer) {
	f := r.Fronts
	r.optionTable(out, "time against memory, the fastest plan under each limit", f.Planned, append([]Option{f.Planned}, f.Memory...)...)
	r.optionTable(out, "time against devices", f.Planned, append([]Option{f.Planned}, f.Devices...)...)
}
