package main

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/ir"
)

// verifyCmd proves the programs of a plan sound.
type verifyCmd struct {
	planArg
	Numeric     bool   `help:"Also run the program at reduced sizes against the float64 interpreter. Not in this version."`
	Certificate string `placeholder:"FILE" help:"Also re-check the optimality proof of plan --certificate. Not in this version."`
	format
}

// Example is shown by --help.
func (verifyCmd) Example() string { return "autopar verify plan.json" }

// verified is the result of autopar verify.
type verified struct {
	Plan     string           `json:"plan"`
	Programs []checkedProgram `json:"programs"`
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

// Run checks both programs.
func (c *verifyCmd) Run(con *console) error {
	switch {
	case c.Numeric:
		return usagef("verify: --numeric is not in this version")
	case c.Certificate != "":
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
	result := verified{Plan: c.Plan}
	for _, p := range []*codegen.Program{programs.training, programs.evaluation} {
		if err := codegen.Check(p); err != nil {
			return err
		}
		result.Programs = append(result.Programs, count(p))
	}
	if c.json() {
		return con.json(result)
	}
	con.heading("%s: sound", c.Plan)
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
	return nil
}

const checksText = `checked on every rank: placements are legal, so each value's supply covers its consumers' need;
nothing is read before it is written or after it is overwritten; no live buffers overlap; gradients of
all micro-batches are added; collectives match on all members in order; every send meets its receive;
no cycle of waits.`

func count(p *codegen.Program) checkedProgram {
	c := checkedProgram{Name: p.Graph.Name, Ranks: len(p.Schedules)}
	for _, s := range p.Stages {
		c.Buffers += len(s.Buffers)
	}
	for i := range p.Schedules {
		s := &p.Schedules[i]
		c.Tasks += len(s.Tasks)
		for _, task := range s.Tasks {
			for _, in := range p.Stages[s.Stage].Bodies[task.Phase].Instrs {
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
