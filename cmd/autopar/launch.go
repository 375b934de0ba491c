package main

import (
	"context"
	"fmt"
	"os"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/launch"
)

// launchCmd trains in several processes: it starts `autopar run` once for each rank.
type launchCmd struct {
	runCmd
	NProc       int    `name:"nproc" placeholder:"N" help:"Processes on this machine, a rank each. The default is the plan's ranks over the machines."`
	NNodes      int    `name:"nnodes" default:"1" placeholder:"N" help:"Machines. Start this command on each."`
	NodeRank    int    `name:"node-rank" placeholder:"N" help:"Which of the machines this is, from 0."`
	Master      string `placeholder:"HOST:PORT" help:"Where machine 0 is reached by the others."`
	MaxRestarts int    `name:"max-restarts" placeholder:"N" help:"How often to go on from the newest checkpoint when a process has failed."`
}

// Example is shown by --help.
func (launchCmd) Example() string {
	return `
autopar launch plan.json --nproc 4 --max-restarts 2
autopar launch plan.json --nproc 4 --nnodes 2 --node-rank 1 --master 10.0.0.1:29500`
}

// Run starts the processes and waits for them.
func (c *launchCmd) Run(ctx context.Context, con *console) error {
	if err := c.check(); err != nil {
		return err
	}
	doc, err := c.loadPlan()
	if err != nil {
		return err
	}
	ranks := doc.Plan.RuntimeNGPUs
	if c.NProc == 0 && c.NNodes > 0 {
		c.NProc = ranks / c.NNodes
	}
	switch {
	case c.NNodes < 1 || c.NodeRank < 0 || c.NodeRank >= c.NNodes:
		return usagef("launch: --node-rank is %d of --nnodes %d, want 0 to %d", c.NodeRank, c.NNodes, c.NNodes-1)
	case c.NProc*c.NNodes != ranks:
		return usagef("launch: %d machines with %d processes are %d, the plan has %d ranks: each process is one rank", c.NNodes, c.NProc, c.NProc*c.NNodes, ranks)
	case c.NNodes > 1 && c.Master == "":
		return usagef("launch: --nnodes %d needs --master, the address of machine 0", c.NNodes)
	case c.MaxRestarts < 0:
		return usagef("launch: --max-restarts is %d, must be at least 0", c.MaxRestarts)
	}
	out := c.Out
	if out == "" {
		out = doc.Config.Train.OutDir
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	before := checkpoint.Saved(out)
	agent := &launch.Agent{
		Exe: exe, Procs: c.NProc, Nodes: c.NNodes, Node: c.NodeRank, Addr: c.Master, MaxRestarts: c.MaxRestarts,
		Stdout: con.stdout, Stderr: con.stderr, Note: con.note,
		Args: func(start int) []string {
			resume := c.Resume || start > 0 && checkpoint.Saved(out).After(before)
			return c.args(con, resume)
		},
	}
	return agent.Run(ctx)
}

// args are those of the command that each process runs.
func (c *launchCmd) args(con *console, resume bool) []string {
	args := []string{"autopar", "run", c.Plan, "--device", c.Device, "--timeout", c.Timeout.String()}
	for flag, on := range map[string]bool{"--loopback": c.Loopback, "--resume": resume, "--quiet": con.quiet, "--verbose": con.verbose} {
		if on {
			args = append(args, flag)
		}
	}
	for flag, value := range map[string]string{"--out": c.Out, "--offload-dir": c.Offload} {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	if c.Steps != nil {
		args = append(args, "--steps", fmt.Sprint(*c.Steps))
	}
	if !resume {
		args = append(args, "--init-from", c.InitFrom)
	}
	return args
}
