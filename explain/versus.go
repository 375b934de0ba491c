package explain

import (
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// Versus compares the reported plan with another one: it says where each second and each byte of the difference comes
// from, or which limit the other breaks.
type Versus struct {
	Name string `json:"name"` // a policy, or a file
	Plan string `json:"plan"` // the other plan's degrees, in words
	// Same says that both are the same plan.
	Same bool `json:"same,omitempty"`
	// Reason says why there is no plan to compare with. Then all below is empty, except for Breaks if the reason is
	// memory.
	Reason string  `json:"reason,omitempty"`
	Breaks *Breaks `json:"breaks,omitempty"`

	StepSeconds  float64 `json:"step_seconds,omitempty"`
	DeltaSeconds float64 `json:"delta_seconds"` // beyond the reported plan's step
	PeakBytes    int64   `json:"peak_bytes,omitempty"`
	DeltaBytes   int64   `json:"delta_bytes"`
	// Time compares the terms of the busiest ranks' steps. The terms of a plan add up to its step.
	Time []TermDifference `json:"time,omitempty"`
	// Imbalance is a part of the kernels' terms: see [Prediction.Imbalance].
	Imbalance TermDifference `json:"imbalance"`
	// Launches is a part of all terms but recomputation and copies from and to the host: starting kernels and collectives.
	// Beside is communication hidden by kernels, which is no part of the step. Both change with overlap and with products
	// in parts.
	Launches TermDifference `json:"launches"`
	Beside   TermDifference `json:"beside"`
	// Memory compares the parts of the fullest stages' arenas. The parts of a plan add up to the arena of a training step;
	// an evaluation may need more.
	Memory []PartDifference `json:"memory,omitempty"`
}

// TermDifference is a part of two steps, in seconds.
type TermDifference struct {
	Name   string  `json:"name"`
	Ours   float64 `json:"ours_seconds"`
	Theirs float64 `json:"theirs_seconds"`
}

// PartDifference is a part of two arenas, in bytes.
type PartDifference struct {
	Name   string `json:"name"`
	Ours   int64  `json:"ours_bytes"`
	Theirs int64  `json:"theirs_bytes"`
}

// Breaks says where a plan exceeds the memory of a rank.
type Breaks struct {
	Stage int   `json:"stage"`
	Needs int64 `json:"needs_bytes"`
	Limit int64 `json:"limit_bytes"`
	// Text says the same in words, with the parts of the arena: "stage 0 over by 1.3 GiB: ...".
	Text string `json:"text"`
}

// Against compares the reported plan with another one for the same model, batch and cluster. If the other plan exceeds the
// memory that its ranks may use, the result says so in Breaks and has the comparison all the same. Against fails without a
// prediction, or if the other plan does not apply to the model or cluster.
func (r *Report) Against(name string, plan *partition.Plan) (*Versus, error) {
	other, err := r.sibling(plan)
	if err != nil {
		return nil, err
	}
	v := &Versus{Name: name, Plan: PlanText(plan), Same: samePlan(plan, r.prog.Plan)}
	p, q := r.Prediction, other.Prediction
	v.StepSeconds, v.DeltaSeconds = q.StepSeconds, q.StepSeconds-p.StepSeconds
	v.PeakBytes, v.DeltaBytes = other.peak(), other.peak()-r.peak()
	for i, t := range p.Terms {
		v.Time = append(v.Time, TermDifference{t.Name, t.Seconds, q.Terms[i].Seconds})
	}
	v.Imbalance = TermDifference{"computed beyond the mean rank", p.Imbalance, q.Imbalance}
	v.Launches = TermDifference{"starting kernels and collectives", p.Binds[cost.Launch].Seconds, q.Binds[cost.Launch].Seconds}
	v.Beside = TermDifference{"beside it, communication", p.Overlapped, q.Overlapped}
	ours, theirs := r.fullest().Memory.parts(), other.fullest().Memory.parts()
	for i := range ours {
		if ours[i].Bytes > 0 || theirs[i].Bytes > 0 {
			v.Memory = append(v.Memory, PartDifference{ours[i].Kind, ours[i].Bytes, theirs[i].Bytes})
		}
	}
	if stage, _ := q.tightest(q.PeakBytes); !q.Fits {
		needs, most := q.PeakBytes[stage], q.at(stage)
		v.Breaks = &Breaks{stage, needs, most, other.Stages[stage].overText(needs, most)}
	}
	return v, nil
}

// samePlan reports whether two plans say the same.
func samePlan(a, b *partition.Plan) bool {
	x, y := *a, *b
	x.Placements, y.Placements = slices.Concat(a.Placements), slices.Concat(b.Placements) // nil if empty
	return reflect.DeepEqual(x, y)
}

// infeasible turns the error of a search that found no plan into a Versus: name is the policy that was searched. It returns
// errors of other kinds as they are.
func (r *Report) infeasible(name string, err error) (*Versus, error) {
	v := &Versus{Name: name, Reason: strings.TrimPrefix(err.Error(), "planner: ")}
	var none *planner.InfeasibleError
	var option *planner.OptionError
	switch {
	case errors.As(err, &option):
		return v, nil
	case !errors.As(err, &none):
		return nil, err
	}
	if !tooLarge(none) {
		return v, nil
	}
	v.Plan = PlanText(none.Closest)
	other, err := r.sibling(none.Closest)
	if err != nil {
		return nil, err
	}
	st := other.Stages[none.Stage]
	v.Reason = "none fits in memory"
	v.Breaks = &Breaks{none.Stage, none.Needs, none.Limit, st.overText(none.Needs, none.Limit)}
	return v, nil
}

// sibling returns the report of another plan for the same model and batch, with a prediction on the same cluster.
func (r *Report) sibling(plan *partition.Plan) (*Report, error) {
	if r.Prediction == nil {
		return nil, fmt.Errorf("explain: a plan to compare with one that has no prediction")
	}
	training, evaluation, err := r.cfg.Steps()
	if err != nil {
		return nil, err
	}
	prog, err := codegen.Compile(training, plan, r.prog.Batch, nil)
	if err != nil {
		return nil, err
	}
	eval, err := codegen.Compile(evaluation, plan, r.prog.Batch, prog)
	if err != nil {
		return nil, err
	}
	other, err := Of(prog, eval, r.cfg)
	if err != nil {
		return nil, err
	}
	return other, other.Predict(r.Prediction.cluster)
}

// fullest returns the stage with the largest arena.
func (r *Report) fullest() *Stage {
	most := r.Stages[0]
	for _, st := range r.Stages {
		if st.Memory.Arena > most.Memory.Arena {
			most = st
		}
	}
	return most
}

// The parts of an arena beside the kinds of tensors.
const (
	partInFlight  = "activations in flight"
	partInbox     = "room to receive"
	partTemporary = "temporary"
)

// parts lists what an arena consists of. The list has the same kinds for every arena, some of them with 0 bytes.
func (m *Memory) parts() []Part {
	var parts []Part
	for _, kind := range append(kinds(), KindPadding) {
		p := Part{Kind: kind}
		for _, x := range m.Parts {
			if x.Kind == kind {
				p.Bytes = x.Bytes
			}
		}
		parts = append(parts, p)
	}
	var slots, inboxes int64
	for _, c := range m.Chunks {
		slots, inboxes = slots+int64(c.Slots)*c.Slot, inboxes+int64(c.Inboxes)*c.Inbox
	}
	return append(parts, Part{partInFlight, slots}, Part{partInbox, inboxes}, Part{partTemporary, m.Temp})
}

// overText says by how much a stage exceeds a limit, and what its arena consists of: parts of at least 2 %, activations
// as micro-batches in flight times the bytes of each.
func (st *Stage) overText(needs, limit int64) string {
	var parts []string
	listed := int64(0)
	for _, p := range st.Memory.parts() {
		listed += p.Bytes
		if p.Bytes*50 < needs {
			continue // less than 2 % explains nothing
		}
		if p.Kind != partInFlight {
			parts = append(parts, p.Kind+" "+Bytes(p.Bytes))
			continue
		}
		for _, c := range st.Memory.Chunks {
			parts = append(parts, fmt.Sprintf("%d in flight x %s", c.Slots, Bytes(c.Slot)))
		}
	}
	if more := needs - listed; more > 0 {
		parts = append(parts, "the evaluation "+Bytes(more)+" beyond a step")
	}
	return fmt.Sprintf("stage %d over by %s: %s of %s: %s", st.Index, Bytes(needs-limit), Bytes(needs), Bytes(limit), strings.Join(parts, " + "))
}

func (v *Versus) text(out io.Writer, step float64) {
	fmt.Fprintf(out, "against %s: %s\n", v.Name, v.Plan)
	if v.Reason != "" {
		fmt.Fprintf(out, "  not possible: %s\n", v.Reason)
	}
	if v.Breaks != nil {
		fmt.Fprintf(out, "  does not fit: %s\n", v.Breaks.Text)
	}
	if v.Same {
		fmt.Fprintf(out, "  it is this plan\n")
	}
	if v.Time == nil || v.Same {
		return
	}
	how := "slower"
	if v.DeltaSeconds < 0 {
		how = "faster"
	}
	fmt.Fprintf(out, "  %s per step, %s %s (%s); %s on the fullest rank (%s)\n",
		Seconds(v.StepSeconds), Seconds(max(v.DeltaSeconds, -v.DeltaSeconds)), how, percent(v.DeltaSeconds/step), Bytes(v.PeakBytes), signedSize(v.DeltaBytes))
	var rows [][]string
	add := func(t TermDifference) {
		rows = append(rows, []string{t.Name, Seconds(t.Ours), Seconds(t.Theirs), signed(t.Theirs - t.Ours)})
	}
	var ours, theirs float64
	for _, t := range v.Time {
		ours, theirs = ours+t.Ours, theirs+t.Theirs
		if t.Ours > 0 || t.Theirs > 0 {
			add(t)
		}
	}
	add(TermDifference{"step", ours, theirs})
	for _, t := range []TermDifference{v.Imbalance, v.Launches} {
		if t.Ours > 0 || t.Theirs > 0 {
			t.Name = "of which " + t.Name
			add(t)
		}
	}
	if v.Beside.Ours > 0 || v.Beside.Theirs > 0 {
		add(v.Beside)
	}
	table(out, "time of the busiest rank: this plan, the other, difference", rows, 1, 2, 3)
	rows = nil
	for _, m := range v.Memory {
		rows = append(rows, []string{m.Name, Grouped(m.Ours), Grouped(m.Theirs), signedBytes(m.Theirs - m.Ours)})
	}
	rows = append(rows, []string{"arena", Grouped(v.PeakBytes - v.DeltaBytes), Grouped(v.PeakBytes), signedBytes(v.DeltaBytes)})
	table(out, "bytes of the fullest rank: this plan, the other, difference", rows, 1, 2, 3)
}

// Bytes prints an amount of memory with three or more significant digits.
func Bytes(n int64) string {
	if value, unit := inUnits(float64(n)); unit != "B" {
		return fmt.Sprintf("%.2f %s", value, unit)
	}
	return fmt.Sprintf("%d B", n)
}

// inUnits returns an amount of memory in the largest unit of which it is at least one.
func inUnits(bytes float64) (value float64, unit string) {
	value, unit = bytes, "B"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if math.Abs(value) < 1024 {
			break
		}
		value, unit = value/1024, larger
	}
	return value, unit
}

func signedSize(n int64) string {
	if n < 0 {
		return Bytes(n)
	}
	return "+" + Bytes(n)
}
