package explain

import (
	"fmt"
	"io"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// Division is what the plan reported costs if products and the collectives of tensor-parallel ranks next to them are
// made in a number of parts, all else being as it is. Times are of the busiest rank.
type Division struct {
	Parts       int     `json:"parts"` // 1 is whole
	Chosen      bool    `json:"chosen"`
	StepSeconds float64 `json:"step_seconds"`
	// Exposed is communication over tp that nothing runs beside, Kernels those of the passes: with more parts the first
	// is less and the others, of fewer rows each, are more.
	Exposed float64 `json:"exposed_seconds"`
	Kernels float64 `json:"kernels_seconds"`
	// Launches is what starting kernels and collectives takes of both, and Beside communication that runs beside kernels.
	Launches  float64 `json:"launches_seconds"`
	Beside    float64 `json:"beside_seconds"`
	PeakBytes int64   `json:"peak_bytes"` // of the fullest rank
}

// Divide adds to the report what the plan would cost in other numbers of parts: those that the search tries. It needs a
// prediction. Where nothing can be made in parts it adds nothing.
func (r *Report) Divide() error {
	c := r.Prediction.cluster
	counts := planner.PieceCounts(r.prog.Plan, c)
	var all []Division
	divided := false
	for _, pieces := range counts {
		x := &Report{Tokens: r.Tokens, prog: r.prog, Prediction: r.Prediction}
		chosen := pieces == max(1, r.prog.Plan.TPPieces)
		if !chosen {
			plan := *r.prog.Plan
			if plan.TPPieces = pieces; pieces == 1 {
				plan.TPPieces = 0
			}
			g, err := r.cfg.TrainStep()
			if err != nil {
				return err
			}
			if x.prog, err = codegen.Compile(g, &plan, r.prog.Batch, nil); err != nil {
				return err
			}
			if err := x.Predict(c); err != nil {
				return err
			}
		}
		divided = divided || inParts(x.prog)
		p := x.Prediction
		d := Division{
			Parts: pieces, Chosen: chosen, StepSeconds: p.StepSeconds, Exposed: p.Terms[termTensor].Seconds,
			Kernels: p.Terms[termBlocks].Seconds + p.Terms[termHead].Seconds + p.Terms[termRecompute].Seconds, Launches: p.Binds[cost.Launch].Seconds, Beside: p.Overlapped,
		}
		for _, st := range x.prog.Stages {
			d.PeakBytes = max(d.PeakBytes, st.Arena())
		}
		all = append(all, d)
	}
	if divided {
		r.Divisions = all
	}
	return nil
}

// inParts reports whether a program makes anything in parts.
func inParts(prog *codegen.Program) bool {
	for _, st := range prog.Stages {
		for _, body := range st.Bodies {
			if slices.ContainsFunc(body.Instrs, func(in codegen.Instr) bool { return in.Parts > 1 }) {
				return true
			}
		}
	}
	return false
}

// reason says why the plan has the parts that it has and not those of another division.
func (d *Division) reason(other *Division) string {
	less := func(what string, was, is float64) string {
		word := "less"
		if is > was {
			word = "more"
		}
		return fmt.Sprintf("%s %s %s (%s -> %s)", what, Seconds(max(was-is, is-was)), word, Seconds(was), Seconds(is))
	}
	how := "slower"
	if d.StepSeconds < other.StepSeconds {
		how = "faster"
	}
	return fmt.Sprintf("%s %s than %s: %s; %s, launches %s of it", Seconds(max(d.StepSeconds-other.StepSeconds, other.StepSeconds-d.StepSeconds)), how, other.Words(),
		less("exposed communication over tp", other.Exposed, d.Exposed), less("kernels", other.Kernels, d.Kernels), signed(d.Launches-other.Launches))
}

// Words says how products are made.
func (d Division) Words() string {
	if d.Parts == 1 {
		return "whole"
	}
	return fmt.Sprintf("in %d parts", d.Parts)
}

// divisionsText says why the plan makes products in parts or whole.
func (r *Report) divisionsText(out io.Writer) {
	at := slices.IndexFunc(r.Divisions, func(d Division) bool { return d.Chosen })
	if at < 0 {
		return
	}
	chosen := &r.Divisions[at]
	var rows [][]string
	for i := range r.Divisions {
		if d := &r.Divisions[i]; d != chosen {
			rows = append(rows, []string{chosen.reason(d)})
		}
	}
	table(out, fmt.Sprintf("products and collectives of tp next to them are made %s:", chosen.Words()), rows)
	rows = [][]string{{"", "step", "exposed over tp", "kernels", "launches", "beside kernels", "peak bytes"}}
	for i := range r.Divisions {
		d := &r.Divisions[i]
		mark := d.Words()
		if d.Chosen {
			mark += " *"
		}
		rows = append(rows, []string{mark, Seconds(d.StepSeconds), Seconds(d.Exposed), Seconds(d.Kernels), Seconds(d.Launches), Seconds(d.Beside), Grouped(d.PeakBytes)})
	}
	table(out, "of the busiest rank, all else as it is (* is what it does)", rows, 1, 2, 3, 4, 5, 6)
}
