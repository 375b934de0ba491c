package main

import (
	"bytes"

	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/export"
	"github.com/autopar/autopar/planner"
)

// exportCmd writes a plan for another system.
type exportCmd struct {
	planArg
	Format string `required:"" enum:"megatron,torchtitan,slurm,k8s" placeholder:"megatron|torchtitan|slurm|k8s" help:"megatron (a script that starts Megatron-LM's pretrain_gpt.py), torchtitan (a job file of torchtitan 0.2), slurm (a batch script) or k8s (manifests); the last two train with autopar."`
	Image  string `default:"autopar" placeholder:"NAME" help:"Container image that has autopar and sh, for k8s."`
	Out    string `short:"o" placeholder:"FILE" help:"File to write instead of the standard output, which - names too."`
}

// Example is shown by --help.
func (exportCmd) Example() string {
	return `
autopar export plan.json --format megatron -o pretrain.sh
autopar export plan.json --format slurm | sbatch`
}

// Run writes the plan.
func (c *exportCmd) Run(con *console) error {
	if c.Format != "k8s" && c.Image != "autopar" {
		return usagef("export: --image is for --format k8s")
	}
	if err := apart("export: -o", c.Out, c.Plan); err != nil {
		return err
	}
	doc, err := c.loadPlan()
	if err != nil {
		return err
	}
	priced, err := explain.Price(doc.Plan, doc.Cluster, doc.Config) // as it may have been edited since it was planned
	if is[*planner.DocumentError](err) {
		return c.blame(doc, err)
	} else if err != nil {
		return err
	}
	doc.Predicted = priced.Predicted
	var text bytes.Buffer
	if err := export.Write(&text, doc, export.Options{Format: c.Format, Plan: c.Plan, Image: c.Image}); err != nil {
		return err
	}
	return con.put(c.Out, text.Bytes())
}
