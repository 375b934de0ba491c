package explain

import (
	"fmt"
	"io"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// Division is what the reported plan costs if tensor-parallel products and the collectives next to them are made in a
// number of parts, everything else unchanged. Times are those of the busiest rank.
type Division struct {
	Parts       int     `json:"parts"`                 // 1 is whole
	Empty       int     `json:"empty_parts,omitempty"` // those beyond the rows of a micro-batch
	Chosen      bool    `json:"chosen"`
	StepSeconds float64 `json:"step_seconds"`
	// Exposed is the time of tensor-parallel communication that nothing runs beside, Kernels that of the kernels of all
	// passes. More parts make the first shorter and the second longer, as each kernel has fewer rows.
	Exposed float64 `json:"exposed_seconds"`
	Kernels float64 `json:"kernels_seconds"`
	// Launches is the time of starting kernels and collectives, except kernels that run again: see [ledger]. Beside is the
	// time of communication that runs beside kernels.
	Launches  float64 `json:"launches_seconds"`
	Beside    float64 `json:"beside_seconds"`
	PeakBytes int64   `json:"peak_bytes"` // of the fullest rank
}

// Divide adds to the report what the plan would cost with each number of parts that the search tries. It needs a
// prediction. If nothing can be made in parts, it adds nothing.
func (r *Report) Divide() error {
	c := r.Prediction.cluster
	g, err := r.cfg.TrainStep()
	if err != nil {
		return err
	}
	var all []Division
	divided := false
	for _, plan := range planner.Divisions(r.prog.Plan, g, r.prog.Batch, c) {
		x := &Report{Tokens: r.Tokens, cfg: r.cfg, prog: r.prog, Prediction: r.Prediction}
		chosen := plan.TPPieces == r.prog.Plan.TPPieces
		if !chosen {
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
			Parts: max(1, plan.TPPieces), Empty: plan.EmptyPieces(), Chosen: chosen, StepSeconds: p.StepSeconds, Exposed: p.Terms[termTensor].Seconds,
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

// reason compares a division with another one: how much faster or slower it is, and in what.
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

// Words says how products are made: "whole", "in 4 parts" or "in 4 parts (1 empty)".
func (d Division) Words() string {
	if d.Parts == 1 {
		return "whole"
	}
	return "in " + PiecesText("parts", d.Parts, d.Empty)
}

// divisionsText prints the chosen division beside the others.
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
