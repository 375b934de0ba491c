package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/numeric"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
)

// verifyCmd proves the programs of a plan.
type verifyCmd struct {
	planArg
	Numeric     bool   `help:"Also run the training program, at reduced sizes, against the float64 interpreter."`
	Certificate string `placeholder:"FILE" help:"Also check the proof that plan --certificate wrote: that no other plan is faster."`
	Samples     int    `with:"certificate" default:"200" placeholder:"N" help:"Random plans that are priced to check the proof."`
	Seed        uint64 `with:"certificate" default:"1" placeholder:"N" help:"Seed of the random plans."`
	format
}

// Example is shown by --help.
func (verifyCmd) Example() string {
	return `
autopar verify plan.json
autopar verify plan.json --numeric
autopar verify plan.json --certificate plan.proof`
}

// verified is the result of autopar verify.
type verified struct {
	Plan     string           `json:"plan"`
	Programs []checkedProgram `json:"programs"`
	Numeric  *numericRun      `json:"numeric,omitempty"`
	// Certificate is what was checked of the proof.
	Certificate *planner.Audit `json:"certificate,omitempty"`
}

// numericRun is the comparison with the interpreter, and the sizes it ran at.
type numericRun struct {
	Blocks    int `json:"n_layer"`
	Heads     int `json:"n_head"`
	KVHeads   int `json:"n_kv_head,omitempty"` // where heads are grouped
	Width     int `json:"n_embd"`
	BlockSize int `json:"block_size"`
	VocabSize int `json:"vocab_size"`
	Batch     int `json:"batch"`
	*numeric.Report
}

// checkedProgram counts what was checked, over all ranks and one step.
type checkedProgram struct {
	Name         string `json:"name"`
	Ranks        int    `json:"ranks"`
	Tasks        int    `json:"tasks"`
	Instructions int    `json:"instructions"`
	Collectives  int    `json:"collectives"`
	Transfers    int    `json:"transfers"` // sends, each with its receive
	Buffers      int    `json:"buffers"`   // of all stages
}

// Run proves both programs, and runs the training program if asked to.
func (c *verifyCmd) Run(con *console) error {
	if c.Samples < 0 || c.Samples > mostSamples {
		return usagef("verify: --samples is %d, must be between 0 and %d", c.Samples, mostSamples)
	}
	doc, err := c.loadPlan()
	if err != nil {
		return err
	}
	programs, err := compile(doc.Config, doc.Plan)
	if err != nil {
		return err
	}
	if err := programs.verify(); err != nil {
		return err
	}
	result := verified{Plan: c.Plan, Programs: []checkedProgram{count(programs.training), count(programs.evaluation)}}
	var mismatch *numeric.MismatchError
	if c.Numeric {
		result.Numeric, err = runNumeric(doc)
		if err != nil && !errors.As(err, &mismatch) {
			return err
		}
	}
	if c.Certificate != "" && err == nil {
		if result.Certificate, err = c.checkCertificate(doc, programs); err != nil {
			return err
		}
	}
	if c.json() {
		return errors.Join(con.json(result), err)
	}
	con.heading("%s: the programs compute the traced graphs", c.Plan)
	rows := [][]string{{"PROGRAM", "RANKS", "TASKS", "INSTRUCTIONS", "COLLECTIVES", "TRANSFERS", "BUFFERS"}}
	for _, p := range result.Programs {
		row := []string{p.Name}
		for _, n := range []int{p.Ranks, p.Tasks, p.Instructions, p.Collectives, p.Transfers, p.Buffers} {
			row = append(row, explain.Grouped(int64(n)))
		}
		rows = append(rows, row)
	}
	con.table(rows)
	con.printf("%s\n", checksText)
	if result.Numeric != nil {
		result.Numeric.print(con)
	}
	if result.Certificate != nil {
		printAudit(con, c.Certificate, result.Certificate)
	}
	return err
}

// checkCertificate checks the proof that a plan is the fastest of its space. Besides what planner.Certify checks, the proof must
// be for the configuration and plan of the document.
func (c *verifyCmd) checkCertificate(doc *planner.Document, of *compiled) (*planner.Audit, error) {
	cert, err := planner.ReadCertificate(c.Certificate)
	if err != nil {
		return nil, err
	}
	if cert.ConfigHash != doc.ConfigHash {
		return nil, &planner.RefutedError{File: c.Certificate, Line: 3, Msg: fmt.Sprintf("the certificate is for a config with hash %.12s, %s has %.12s", cert.ConfigHash, c.Plan, doc.ConfigHash)}
	}
	if key, says, has := differ(cert.Plan, doc.Plan); key != "" {
		return nil, &planner.RefutedError{File: c.Certificate, Line: 8, Msg: fmt.Sprintf("the certificate is for a plan whose %s is %.120s, that of %s is %.120s", key, says, c.Plan, has)}
	}
	want, has := configured(doc.Config), cert.Options
	if has.MicroBatch > 0 {
		want.MicroBatch = has.MicroBatch // --micro-batch may have fixed it
	}
	if has.PlanNGPUs != want.PlanNGPUs || has.RuntimeNGPUs != want.RuntimeNGPUs || has.MemoryLimit != want.MemoryLimit || has.MicroBatch != want.MicroBatch || !slices.Equal(has.Pins, want.Pins) {
		return nil, &planner.RefutedError{File: c.Certificate, Line: 5, Msg: fmt.Sprintf("the certificate is for plan_ngpus %d, runtime_ngpus %d, memory_limit %d, micro %d and %s, the config of %s has %d, %d, %d, %d and %s",
			has.PlanNGPUs, has.RuntimeNGPUs, has.MemoryLimit, has.MicroBatch, explain.Count(len(has.Pins), "pin"),
			c.Plan, want.PlanNGPUs, want.RuntimeNGPUs, want.MemoryLimit, want.MicroBatch, explain.Count(len(want.Pins), "pin"))}
	}
	audit, err := planner.Certify(of.graph, doc.Config.Batch.Global, doc.Cluster, of.evalGraph, cert, c.Samples, c.Seed)
	if refuted, ok := errors.AsType[*planner.RefutedError](err); ok {
		refuted.File = c.Certificate
	}
	return audit, err
}

// differ returns the first key that two plans have different values for, with both as JSON, or "".
func differ(a, b *partition.Plan) (key, inA, inB string) {
	var values [2]map[string]json.RawMessage
	for i, p := range []*partition.Plan{a, b} {
		text, err := json.Marshal(p)
		if err == nil {
			err = json.Unmarshal(text, &values[i])
		}
		if err != nil {
			panic("BUG: " + err.Error())
		}
	}
	said := func(i int) string { return cmp.Or(string(values[i][key]), "nothing") }
	all := maps.Clone(values[0])
	maps.Copy(all, values[1])
	for _, key = range slices.Sorted(maps.Keys(all)) {
		if inA, inB = said(0), said(1); inA != inB {
			return key, inA, inB
		}
	}
	return "", "", ""
}

// printAudit prints what was checked in a proof.
func printAudit(con *console, file string, audit *planner.Audit) {
	con.heading("%s: no plan of the space is faster", file)
	if len(audit.Fixed) > 0 {
		con.printf("the space is what was searched with %s\n", strings.Join(audit.Fixed, " "))
	}
	rows := [][]string{{"LEFT OUT BECAUSE", "", "REGIONS", "PIPELINES", "PLANS", "CHECKED IN"}}
	regions, points, plans := 0, 0, 0.0
	row := func(reason, means string, regions, points int, plans, seconds float64) {
		rows = append(rows, []string{reason, means, explain.Grouped(int64(regions)), explain.Grouped(int64(points)), countText(plans), explain.Seconds(seconds)})
	}
	for _, x := range audit.Reasons {
		row(x.Reason, x.Means, x.Regions, x.Points, x.Plans, x.Seconds)
		regions, points, plans = regions+x.Regions, points+x.Points, plans+x.Plans
	}
	row("all", "", regions, points, plans, audit.Seconds)
	con.table(rows)
	con.printf("every pipeline of the space, listed anew, is in one region, and every bound was computed anew; cut by cut %s were priced.\n", explain.Count(audit.Cuts, "plan"))
	if audit.Samples > 0 {
		con.printf("of %s none that fits is faster", explain.Count(audit.Samples, "random plan"))
		if audit.Closest > 0 {
			con.printf("; the closest takes %.4g times as long", audit.Closest)
		}
		con.printf(".\n")
	}
}

// countText prints a number that may be very large.
func countText(n float64) string {
	if n < 1e9 {
		return explain.Grouped(int64(n))
	}
	return fmt.Sprintf("%.1e", n)
}

// runNumeric compares the training program at reduced sizes with the interpreter. It returns the result also with a
// [numeric.MismatchError].
func runNumeric(doc *planner.Document) (*numericRun, error) {
	cfg, plan, err := numeric.Shrink(doc.Config, doc.Plan)
	if err != nil {
		return nil, err
	}
	report, err := numeric.Run(context.Background(), cfg, plan, numeric.Options{})
	m := cfg.Model
	run := &numericRun{m.NLayer, m.NHead, 0, m.NEmbd, m.BlockSize, m.VocabSize, cfg.Batch.Global, report}
	if m.QueryGroup() > 1 {
		run.KVHeads = m.NKVHead
	}
	return run, err
}

func (r *numericRun) print(con *console) {
	con.heading("%s on %s against float64", explain.Count(r.Steps, "step"), explain.Count(r.Ranks, "rank"))
	heads := fmt.Sprintf("n_head %d", r.Heads)
	if r.KVHeads > 0 {
		heads += fmt.Sprintf(", n_kv_head %d", r.KVHeads)
	}
	con.printf("  n_layer %d, %s, n_embd %d, block_size %d, vocab_size %d, batch %d\n", r.Blocks, heads, r.Width, r.BlockSize, r.VocabSize, r.Batch)
	rows := [][]string{{"TENSORS", "COMPARED", "LARGEST ERROR", "OF"}}
	for _, k := range r.Classes {
		rows = append(rows, []string{k.Name, explain.Grouped(int64(k.Tensors)), fmt.Sprintf("%.1e", k.Error), k.Worst})
	}
	con.table(rows)
	con.printf("errors are relative to the largest element of each tensor; tolerance %.0e of loss and norm, %.0e of tensors\n",
		numeric.OutputTolerance, numeric.TensorTolerance)
}

const checksText = `proven on every rank, by running its instructions over expressions in place of numbers: every update and
output is the traced expression; each value's supply covers its consumers' need, and sums are completed once;
all micro-batches are added before a sum is read; parts tile the whole; members of a collective and ends of a
transfer mean the same value. Checked besides: nothing is read before it is written or after it is overwritten;
no live buffers overlap; collectives match in order; every send meets its receive; no cycle of waits.`

// count counts the tasks and instructions of a program over all ranks.
func count(p *codegen.Program) checkedProgram {
	c := checkedProgram{Name: p.Graph.Name, Ranks: len(p.Schedules)}
	for _, s := range p.Stages {
		c.Buffers += len(s.Buffers)
	}
	// Ranks of a stage with the same number of micro-batches run the same instructions.
	type alike struct{ stage, microBatches int }
	ranks, first := map[alike]int{}, map[alike]*codegen.Schedule{}
	for i := range p.Schedules {
		s := &p.Schedules[i]
		a := alike{s.Stage, s.MicroBatches}
		if ranks[a]++; first[a] == nil {
			first[a] = s
		}
	}
	for a, s := range first {
		n := ranks[a]
		c.Tasks += n * len(s.Tasks)
		for _, task := range s.Tasks {
			for _, in := range p.Stages[s.Stage].Run(task) {
				if !s.Runs(&in, task) {
					continue
				}
				c.Instructions += n
				switch {
				case codegen.Collective(in.Node.Op):
					if !in.Fused {
						c.Collectives += n
					}
				case in.Node.Op == ir.OpSend:
					c.Transfers += n
				}
			}
		}
	}
	return c
}
