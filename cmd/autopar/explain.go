package main

import (
	"bytes"
	"io"
	"os"

	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/planner"
)

// explainCmd shows what a plan does and why.
type explainCmd struct {
	planArg
	Format string `enum:"text,json,dot,trace,html,svg" default:"text" help:"text, json, dot (Graphviz) or trace (a timeline for ui.perfetto.dev). html and svg are not in this version."`
	Rank   *int   `placeholder:"R" help:"Print the program of one rank."`
	Why    string `placeholder:"NAME" help:"Explain one tensor or op: a name, or a regular expression."`
	Versus string `placeholder:"dp|fsdp|megatron|FILE" help:"Show this plan among those that lost: the best one of a policy, or another plan file."`
	Top    int    `default:"3" placeholder:"K" help:"Plans that lost to show."`
	Out    string `short:"o" placeholder:"FILE" help:"File to write instead of the standard output."`
	recostArgs
}

// Example is shown by --help.
func (explainCmd) Example() string {
	return `
autopar explain plan.json
autopar explain plan.json --why h.0.attn.c_attn.weight
autopar explain plan.json --format trace -o timeline.json
autopar explain plan.json --cluster a100-80g --set batch.global=64`
}

// Run explains.
func (c *explainCmd) Run(con *console) error {
	switch {
	case c.Format == "html" || c.Format == "svg":
		return usagef("explain: --format %s is not in this version", c.Format)
	case c.Rank != nil && c.Why != "":
		return usagef("explain: --rank and --why cannot be combined")
	case (c.Rank != nil || c.Why != "") && c.Format != "text":
		return usagef("explain: --rank and --why are text; --format %s is not for them", c.Format)
	case c.Top < 0:
		return usagef("explain: --top is %d, must be at least 0", c.Top)
	}
	if c.given() {
		return c.recost(con)
	}
	doc, err := c.loadPlan()
	if err != nil {
		return err
	}
	if ranks := doc.Plan.RuntimeNGPUs; c.Rank != nil && (*c.Rank < 0 || *c.Rank >= ranks) {
		return usagef("explain: --rank is %d, the plan has ranks 0 to %d", *c.Rank, ranks-1)
	}
	programs, err := compile(doc.Config, doc.Plan)
	if err != nil {
		return err
	}
	report, err := explain.Of(programs.training, doc.Config)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := c.write(&text, report, doc); err != nil {
		return err
	}
	if c.Out == "" {
		_, err = con.stdout.Write(text.Bytes())
		return err
	}
	return os.WriteFile(c.Out, text.Bytes(), 0o666)
}

func (c *explainCmd) write(w io.Writer, report *explain.Report, doc *planner.Document) error {
	switch {
	case c.Rank != nil:
		return report.Rank(w, *c.Rank)
	case c.Why != "":
		if err := report.Why(w, c.Why); err != nil {
			return usagef("--why: %v", err)
		}
		return nil
	case c.Format == "dot":
		return report.Dot(w)
	}
	if err := report.Predict(doc.Cluster); err != nil {
		return err
	}
	if c.Format == "trace" {
		return report.Trace(w, nil)
	}
	lost, err := c.lost(doc)
	if err != nil {
		return err
	}
	if err := report.Compare(lost); err != nil {
		return err
	}
	if c.Format == "json" {
		return report.JSON(w)
	}
	return report.Text(w)
}

// lost returns the plans to compare with: those that lost in the search, and
// the one of --versus.
func (c *explainCmd) lost(doc *planner.Document) ([]planner.DocumentAlternative, error) {
	var lost []planner.DocumentAlternative
	if c.Versus != "" {
		other, err := c.versus(doc)
		if err != nil {
			return nil, err
		}
		lost = append(lost, planner.DocumentAlternative{Plan: other.Plan, Predicted: other.Predicted})
	}
	return append(lost, doc.Search.Alternatives[:min(c.Top, len(doc.Search.Alternatives))]...), nil
}

// versus finds the plan of --versus: that of a file, or the best of a policy for
// the same model, devices and cluster.
func (c *explainCmd) versus(doc *planner.Document) (*planner.Document, error) {
	policy := planner.Policy(c.Versus)
	if policy != planner.DP && policy != planner.Megatron && policy != planner.FSDP {
		return planArg{Plan: c.Versus}.loadPlan()
	}
	return search(doc.Config, doc.Cluster, planner.Options{
		PlanNGPUs: doc.Plan.PlanNGPUs, RuntimeNGPUs: doc.Plan.RuntimeNGPUs, MemoryLimit: int64(doc.Config.Parallel.MemoryLimit), Policy: policy,
	})
}
