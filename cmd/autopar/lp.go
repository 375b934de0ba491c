package main

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/lp"
)

// writeLP writes the choice of cuts and recomputation, with everything else as in the plan that was found, as a mixed integer
// program: see package lp.
func (c *planCmd) writeLP(con *console, cfg *config.Config, cluster *cost.Cluster, o planner.Options, doc *planner.Document) error {
	training, evaluation, err := cfg.Steps()
	if err != nil {
		return err
	}
	limit := cluster.MemoryUnder(o.MemoryLimit, doc.Plan.RuntimeNGPUs)
	program, err := lp.New(training, cfg.Batch.Global, cluster, doc.Plan, lp.Options{Limit: limit, Recompute: o.Recompute, Eval: evaluation})
	if err != nil { // depends on the plan, which is kept
		return usagef("plan: --lp %s is not written, but the plan is as shown: %s", c.LP, strings.TrimPrefix(err.Error(), "lp: "))
	}
	var text bytes.Buffer
	step := cost.Picoseconds(math.Round(doc.Predicted.StepSeconds * 1e12))
	if err := program.Write(&text, c.LP, step); err != nil {
		return fmt.Errorf("plan: --lp: %w", err)
	}
	if err := writeFile(c.LP, text.Bytes()); err != nil {
		return err
	}
	binaries := 0
	for _, all := range program.Choices {
		binaries += len(all)
	}
	con.note("wrote %s: %s", c.LP, explain.Count(binaries, "binary variable"))
	return nil
}
