package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/numeric"
	"github.com/autopar/autopar/planner"
)

// verifyCmd proves the programs of a plan.
type verifyCmd struct {
	planArg
	Numeric     bool   `help:"Also run the training program, at reduced sizes, against the float64 interpreter."`
	Certificate string `placeholder:"FILE" help:"Also re-check the optimality proof of plan --certificate. Not in this version."`
	format
}

// Example is shown by --help.
func (verifyCmd) Example() string {
	return `
autopar verify plan.json
autopar verify plan.json --numeric`
}

// verified is the result of autopar verify.
type verified struct {
	Plan     string           `json:"plan"`
	Programs []checkedProgram `json:"programs"`
	Numeric  *numericRun      `json:"numeric,omitempty"`
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
func (c *verifyCmd) Run(ctx context.Context, con *console) error {
	if c.Certificate != "" {
		return usagef("verify: --certificate is not in this version")
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
		result.Numeric, err = runNumeric(ctx, doc)
		if err != nil && !errors.As(err, &mismatch) {
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
	return err
}

// runNumeric compares the programs at reduced sizes with the interpreter. The
// result is there with a [numeric.MismatchError] too.
func runNumeric(ctx context.Context, doc *planner.Document) (*numericRun, error) {
	cfg, plan, err := numeric.Shrink(doc.Config, doc.Plan)
	if err != nil {
		return nil, err
	}
	report, err := numeric.Run(ctx, cfg, plan, numeric.Options{})
	m := cfg.Model
	run := &numericRun{m.NLayer, m.NHead, 0, m.NEmbd, m.BlockSize, m.VocabSize, cfg.Batch.Global, report}
	if m.QueryGroup() > 1 {
		run.KVHeads = m.NKVHead
	}
	return run, err
}

func (r *numericRun) print(con *console) {
	con.heading("%d steps on %d ranks against float64", r.Steps, r.Ranks)
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

func count(p *codegen.Program) checkedProgram {
	c := checkedProgram{Name: p.Graph.Name, Ranks: len(p.Schedules)}
	for _, s := range p.Stages {
		c.Buffers += len(s.Buffers)
	}
	for i := range p.Schedules {
		s := &p.Schedules[i]
		c.Tasks += len(s.Tasks)
		for _, task := range s.Tasks {
			for _, in := range p.Stages[s.Stage].Run(task) {
				if !s.Runs(&in, task) {
					continue
				}
				c.Instructions++
				switch {
				case codegen.Collective(in.Node.Op):
					if !in.Fused {
						c.Collectives++
					}
				case in.Node.Op == ir.OpSend:
					c.Transfers++
				}
			}
		}
	}
	return c
}
