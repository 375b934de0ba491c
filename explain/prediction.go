package explain

import (
	"fmt"
	"io"
	"time"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
	"github.com/autopar/autopar/runtime"
)

// Prediction is what a simulation of one step on a cluster gives.
type Prediction struct {
	Cluster         string  `json:"cluster"`
	StepSeconds     float64 `json:"step_seconds"`
	TokensPerSecond float64 `json:"tokens_per_second"`
	// Busiest is the rank that waits least, among the first ranks of all positions of the pipeline, as in
	// [sim.Timeline.Breakdown]. The first rank of a position has the most work there. The times below are those of
	// Busiest; the first four add up to the step.
	Busiest       int     `json:"busiest_rank"`
	Compute       float64 `json:"compute_seconds"`
	Communication float64 `json:"communication_seconds"`
	Optimizer     float64 `json:"optimizer_seconds"`
	Bubble        float64 `json:"bubble_seconds"`
	// Overlapped is communication that runs beside the rest. It takes no time of the step.
	Overlapped float64 `json:"overlapped_seconds,omitempty"`
	// Terms divide the busiest rank's step by what is done, Binds by the resource that would have to be faster;
	// each adds up to the step.
	Terms []Share `json:"terms"`
	Binds []Share `json:"binds"`
	// Imbalance is how much longer the busiest rank computes than the mean rank. It is a part of the first two terms.
	Imbalance float64    `json:"imbalance_seconds"`
	Ranks     []RankTime `json:"ranks"`
	// Devices says what each stage runs on, if the cluster has several kinds of devices.
	Devices []StageDevices `json:"devices,omitempty"`
	// PeakBytes is what a rank of each stage needs: the larger of the arenas of a training step and of an evaluation.
	PeakBytes []int64 `json:"peak_bytes"`
	Room

	cluster *cost.Cluster
	like    []int // by rank, the first rank that does the same at the same times
}

// RankTime is what one rank does in a step; the parts add up to the step.
type RankTime struct {
	Rank          int     `json:"rank"`
	Compute       float64 `json:"compute_seconds"`
	Communication float64 `json:"communication_seconds"`
	Optimizer     float64 `json:"optimizer_seconds"`
	Bubble        float64 `json:"bubble_seconds"`
	Overlapped    float64 `json:"overlapped_seconds,omitempty"` // beside those
}

// holds checks that a cluster has the devices and the link to host memory that a plan needs. It fails with a
// *partition.PlanError.
func holds(c *cost.Cluster, p *partition.Plan) error {
	if p.Offload.Moves() && c.Host == nil {
		return &partition.PlanError{Key: "offload", Msg: fmt.Sprintf("is %s, but cluster %s states no link to host memory", p.Offload, c.Name)}
	}
	return c.Holds(p)
}

// Predict simulates a step of the program on a cluster and adds the result to the report. It fails with a
// *partition.PlanError if the plan cannot run on the cluster.
func (r *Report) Predict(c *cost.Cluster) error {
	if err := holds(c, r.prog.Plan); err != nil {
		return err
	}
	line, err := sim.Run(r.prog, c, sim.Options{Account: newLedger(c, r.prog).account, Accounts: accounts})
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	peaks := r.peaks()
	p := &Prediction{
		Cluster: c.Name, StepSeconds: line.Step.Seconds(), PeakBytes: peaks, Room: room(c, r.cfg, r.prog.Plan, peaks), cluster: c,
	}
	if line.Step > 0 {
		p.TokensPerSecond = float64(r.Tokens) / p.StepSeconds
	}
	for rank, t := range line.Ranks {
		b := t.Breakdown
		p.like = append(p.like, t.Like)
		p.Ranks = append(p.Ranks, RankTime{rank, b.Compute.Seconds(), b.Communication.Seconds(), b.Optimizer.Seconds(), b.Bubble.Seconds(), b.Overlapped.Seconds()})
		if t.First && b.Bubble < line.Ranks[p.Busiest].Breakdown.Bubble {
			p.Busiest = rank
		}
	}
	busiest := p.Ranks[p.Busiest]
	p.Compute, p.Communication, p.Optimizer, p.Bubble = busiest.Compute, busiest.Communication, busiest.Optimizer, busiest.Bubble
	p.Overlapped = busiest.Overlapped
	p.divide(line.Ranks[p.Busiest].Accounts)
	all := make([][]float64, len(line.Ranks))
	for rank := range all {
		all[rank] = line.Ranks[rank].Accounts
	}
	p.Imbalance = imbalance(all[p.Busiest], all)
	r.Prediction, r.price = p, cost.NewProgram(c, r.prog.Plan, r.prog.Mesh)
	p.Devices = r.stageDevices(c)
	return nil
}

// peaks lists what a rank of each stage needs, in bytes.
func (r *Report) peaks() []int64 {
	peaks := make([]int64, len(r.prog.Stages))
	for i, st := range r.prog.Stages {
		peaks[i] = st.Arena()
		if r.eval != nil {
			peaks[i] = max(peaks[i], r.eval.Stages[i].Arena())
		}
	}
	return peaks
}

// Verdict says whether the plan fits into the memory that its ranks may use.
func (p *Prediction) Verdict() string { return p.verdict(p.PeakBytes) }

// Spans simulates the step again and returns the timeline of the given ranks, or of all ranks if none is given. It
// fails without a prediction.
func (r *Report) Spans(ranks ...int) ([]runtime.Span, error) {
	if r.Prediction == nil {
		return nil, fmt.Errorf("explain: there is no timeline: nothing was predicted or measured")
	}
	line, err := sim.Run(r.prog, r.Prediction.cluster, sim.Options{Spans: true, Only: ranks})
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	spans := make([]runtime.Span, len(line.Spans))
	for i, s := range line.Spans {
		sched := &r.prog.Schedules[s.Rank]
		task := sched.Tasks[s.Task]
		instrs := r.prog.Stages[sched.Stage].Run(task)[s.Instr:]
		n := instrs[0].Node
		spans[i] = runtime.Span{
			Rank: s.Rank, Phase: task.Phase, MicroBatch: task.MicroBatch, Op: n.Op, Name: n.Name, Start: duration(s.Start), End: duration(s.End),
			Part: instrs[0].Part, Parts: instrs[0].Parts,
		}
		switch {
		case s.Stream:
			spans[i].Stream = runtime.Communication
		case s.Beside:
			spans[i].Stream = runtime.Exchange
		case s.Posted:
			spans[i].Stream = runtime.Transfers
		}
		for _, with := range instrs[1 : 1+s.Bucket] {
			spans[i].With = append(spans[i].With, with.Node.Name)
		}
	}
	return spans, nil
}

// duration rounds down to nanoseconds. Rounding is monotonic, so the order of times is kept.
func duration(p cost.Picoseconds) time.Duration { return time.Duration(p / 1000) }

func (p *Prediction) text(out io.Writer) {
	fmt.Fprintf(out, "predicted on %s: %s per step, %s tokens/s\n", p.Cluster, Seconds(p.StepSeconds), Grouped(int64(p.TokensPerSecond)))
	fmt.Fprintln(out, p.Verdict())
	share := func(s float64) string { return fmt.Sprintf("%.1f%%", 100*s/p.StepSeconds) }
	rows := [][]string{
		{"compute", Seconds(p.Compute), share(p.Compute)},
		{"communication", Seconds(p.Communication), share(p.Communication)},
		{"optimizer", Seconds(p.Optimizer), share(p.Optimizer)},
		{"bubble", Seconds(p.Bubble), share(p.Bubble)},
	}
	if p.Overlapped > 0 {
		rows = append(rows, []string{"beside it, communication", Seconds(p.Overlapped), share(p.Overlapped)})
	}
	table(out, fmt.Sprintf("of which rank %d, the busiest, spends", p.Busiest), rows, 1, 2)
	p.bindsText(out)
	p.devicesText(out)
}
