package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"strings"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/planner"
)

// mostPrice bounds the dollars that a device may be said to cost an hour. Of much more, products with numbers of devices and hours
// cannot be written as JSON.
const mostPrice = 1e9

// explainCmd shows what a plan does and why.
type explainCmd struct {
	planArg
	Format        string  `enum:"text,json,html,svg,png,dot,trace" default:"text" help:"text, json, html (one page that needs no network), svg or png (see --view), dot (Graphviz) or trace (a timeline for ui.perfetto.dev)."`
	View          string  `enum:"timeline,memory,pareto" default:"timeline" help:"What to draw as svg or png: timeline, memory or pareto."`
	Rank          *int    `placeholder:"R" help:"Print the program of one rank, or with --format trace its timeline."`
	Why           string  `placeholder:"NAME" help:"Explain one tensor or op: a name, or a regular expression."`
	Versus        string  `placeholder:"dp|fsdp|megatron|all|FILE" help:"Hold this plan against the best one of a policy, of all three, or another plan file, term by term."`
	Sensitivities bool    `help:"Search again: what more memory, links and HBM of twice the bandwidth, another batch and more devices would buy."`
	Pareto        bool    `help:"Search again: time against memory, and against devices."`
	Price         float64 `placeholder:"USD" help:"What a device costs an hour, to print costs in money."`
	Quick         bool    `help:"Leave out of a page what needs to search again."`
	Top           int     `default:"3" placeholder:"K" help:"Plans that lost to show, of those that the plan file has: the best plans of so many other degrees."`
	Out           string  `short:"o" placeholder:"FILE" help:"File to write instead of the standard output, which - names too."`
	recostArgs
}

// Example is shown by --help.
func (explainCmd) Example() string {
	return `
autopar explain plan.json
autopar explain plan.json --versus fsdp
autopar explain plan.json --sensitivities --pareto --price 2.5
autopar explain plan.json --format html -o plan.html
autopar explain plan.json --why h.0.attn.c_attn.weight
autopar explain plan.json --cluster a100-80g --set batch.global=64`
}

// Run explains.
func (c *explainCmd) Run(con *console) error {
	switch {
	case c.Rank != nil && c.Why != "":
		return usagef("explain: --rank and --why cannot be combined")
	case c.Rank != nil && c.Format != "text" && c.Format != "trace" || c.Why != "" && c.Format != "text" && c.Format != "json":
		return usagef("explain: --rank is text or trace, --why text or json; --format %s is not for them", c.Format)
	case c.Top < 0:
		return usagef("explain: --top is %d, must be at least 0", c.Top)
	case !(c.Price >= 0 && c.Price <= mostPrice): // nor NaN
		return usagef("explain: --price is %v, must be a number from 0 to %v", c.Price, float64(mostPrice))
	}
	if err := c.unseen(); err != nil {
		return err
	}
	if err := apart("explain: -o", c.Out, c.Plan, c.Versus); err != nil {
		return err
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
	report, err := explain.Of(programs.training, programs.evaluation, doc.Config)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := c.write(con, &text, report, doc); err != nil {
		return err
	}
	return con.put(c.Out, text.Bytes())
}

// unseen refuses a flag that has no effect on the requested output.
func (c *explainCmd) unseen() error {
	picture := c.Format == "svg" || c.Format == "png"
	part := c.Rank != nil || c.Why != "" || c.given()
	whole := !part && (c.Format == "text" || c.Format == "json" || c.Format == "html")
	const reports = "--format text, json or html of the whole plan as it is, without --rank, --why, --cluster and --set"
	for _, flag := range []struct {
		name         string
		given, shown bool
		where        string
	}{
		{"--versus", c.Versus != "", whole, reports},
		{"--sensitivities", c.Sensitivities, whole, reports},
		{"--pareto", c.Pareto, whole || picture && c.View == "pareto", reports + ", and --view pareto"},
		{"--price", c.Price > 0, whole && (c.Format != "text" || c.Sensitivities || c.Pareto), "--sensitivities and --pareto, and --format json or html"},
		{"--quick", c.Quick, c.Format == "html", "--format html"},
		{"--view " + c.View, c.View != "timeline", picture, "--format svg or png"},
	} {
		if flag.given && !flag.shown {
			return usagef("explain: %s is for %s", flag.name, flag.where)
		}
	}
	return nil
}

func (c *explainCmd) write(con *console, w io.Writer, report *explain.Report, doc *planner.Document) error {
	switch {
	case c.Rank != nil && c.Format == "text":
		return report.Rank(w, *c.Rank)
	case c.Format == "dot":
		return report.Dot(w)
	}
	if err := report.Predict(doc.Cluster); err != nil {
		return c.misplaced(doc, err)
	}
	switch {
	case c.Why != "":
		why := report.Why
		if c.Format == "json" {
			why = report.WhyJSON
		}
		if err := why(w, c.Why); err != nil {
			return usagef("--why: %v", err)
		}
		return nil
	case c.Format == "trace":
		note, err := report.PredictedTrace(w, c.Rank)
		if note != "" {
			con.note("%s; --rank shows another", note)
		}
		return err
	}
	if err := c.study(con, report, doc); err != nil {
		return err
	}
	switch c.Format {
	case "json":
		return report.JSON(w)
	case "html":
		return report.HTML(w)
	case "svg", "png":
		return report.Picture(w, explain.View(c.View), c.Format)
	case "text":
		if c.Versus != "" || c.Sensitivities || c.Pareto {
			return report.Summary(w)
		}
	}
	return report.Text(w)
}

// study adds other plans to the report: alternatives of the search, and what the flags ask for.
func (c *explainCmd) study(con *console, report *explain.Report, doc *planner.Document) error {
	if err := report.Compare(doc.Search.Alternatives[:min(c.Top, len(doc.Search.Alternatives))]); err != nil {
		if is[*planner.DocumentError](err) {
			return c.blame(doc, err)
		}
		return err
	}
	if err := report.Divide(); err != nil {
		return err
	}
	study := explain.NewStudy(doc, report)
	page := c.Format == "html" && !c.Quick
	switch {
	case c.Versus == "all":
		if err := study.Policies(); err != nil {
			return err
		}
	case c.Versus != "":
		v, err := c.against(report, study, doc)
		if err != nil {
			return err
		}
		report.Versus = append(report.Versus, v)
	case page:
		if err := study.Policies(); err != nil {
			return err
		}
	}
	if c.Sensitivities || page {
		if err := study.Sensitivities(); err != nil {
			return err
		}
	}
	if picture := c.Format == "svg" || c.Format == "png"; c.Pareto || page || picture && c.View == "pareto" {
		if err := study.Fronts(); err != nil {
			return err
		}
	}
	if c.Price > 0 {
		report.Price(c.Price)
	}
	if study.Searches > 0 {
		con.note("searched %s in %s", explain.Count(study.Searches, "time"), explain.Seconds(study.Seconds))
	}
	return nil
}

// against compares the plan with that of --versus: the plan of a file, or the best of a policy for the same model, devices and
// cluster.
func (c *explainCmd) against(report *explain.Report, study *explain.Study, doc *planner.Document) (*explain.Versus, error) {
	policy := planner.Policy(c.Versus)
	if policy == planner.DP || policy == planner.Megatron || policy == planner.FSDP {
		return study.Policy(policy)
	}
	other, err := planArg{Plan: c.Versus}.loadPlan()
	if errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(c.Versus, `./\`) {
		return nil, usagef("explain: --versus is %s, want a plan or one of dp, fsdp, megatron, all; did you mean %s?", c.Versus, config.Nearest(c.Versus, []string{"fsdp", "dp", "megatron", "all"}))
	}
	if err != nil {
		return nil, err
	}
	if other.GraphHash != doc.GraphHash {
		return nil, usagef("explain: --versus: %s is a plan for another model or batch than %s", c.Versus, c.Plan)
	}
	v, err := report.Against(c.Versus, other.Plan)
	return v, planArg{Plan: c.Versus}.misplaced(other, err)
}
