package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/train"
	"github.com/autopar/autopar/wholefile"
)

// launchCmd trains in several processes: it starts `autopar run` once for each rank.
type launchCmd struct {
	runCmd
	NProc       *int   `name:"nproc" placeholder:"N" help:"Processes on this machine, a rank each. The default is the plan's ranks over the machines."`
	NNodes      string `name:"nnodes" default:"1" placeholder:"MIN:MAX" help:"Machines. Start this command on each. With MIN:MAX the job starts anew, by a plan for as many as there are, when one comes or goes."`
	NodeRank    int    `name:"node-rank" placeholder:"N" help:"Which of the machines this is, from 0."`
	Master      string `placeholder:"HOST:PORT" help:"Where machine 0 is reached by the others."`
	Rebalance   bool   `help:"When ranks have computed at different speeds for a while, go on by a plan in which slow ones have fewer sequences of the same batch, if that is predicted to be much faster."`
	MaxRestarts int    `name:"max-restarts" placeholder:"N" help:"How often to go on, from the newest snapshot in memory or on disk, when a process has failed."`
}

// Example is shown by --help.
func (launchCmd) Example() string {
	return `
autopar launch plan.json --nproc 4 --max-restarts 2 --node-check
autopar launch plan.json --nproc 4 --rebalance
autopar launch plan.json --nproc 4 --nnodes 2 --node-rank 1 --master 10.0.0.1:29500
autopar launch plan.json --nproc 8 --nnodes 2:4 --node-rank 3 --master 10.0.0.1:29500 --max-restarts 3`
}

// Run starts the processes and waits for them.
func (c *launchCmd) Run(ctx context.Context, con *console) error {
	if err := c.check("launch"); err != nil {
		return err
	}
	if info, err := os.Stat(c.Plan); err == nil && !info.Mode().IsRegular() {
		return usagef("launch: %s is not a regular file, and every process reads the plan anew", c.Plan)
	}
	doc, err := c.loadPlan()
	if err != nil {
		return err
	}
	least, most, err := c.machines()
	if err != nil {
		return err
	}
	given, err := doc.Marshal()
	if err != nil {
		return err
	}
	ranks := doc.Plan.RuntimeNGPUs
	procs := max(1, ranks/most)
	if c.NProc != nil {
		procs = *c.NProc
	}
	switch {
	case procs < 1:
		return usagef("launch: --nproc is %d, must be at least 1", procs)
	case c.NodeRank < 0 || c.NodeRank >= most:
		return usagef("launch: --node-rank is %d of --nnodes %s, want 0 to %d", c.NodeRank, c.NNodes, most-1)
	case ranks%procs != 0 || ranks/procs < least || ranks/procs > most:
		return usagef("launch: --nnodes %s with --nproc %d cannot be the %s of the plan: each process is one rank", c.NNodes, procs, explain.Count(ranks, "rank"))
	case most > 1 && c.Master == "":
		return usagef("launch: --nnodes %s needs --master, the address of machine 0", c.NNodes)
	case c.Master != "" && !hasPort(c.Master):
		return usagef("launch: --master is %q, want HOST:PORT, such as 10.0.0.1:29500", c.Master)
	case c.MaxRestarts < 0:
		return usagef("launch: --max-restarts is %d, must be at least 0", c.MaxRestarts)
	case c.Rebalance && c.cuda():
		return usagef("launch: --rebalance compares how long ranks compute, which is known of --device cpu alone")
	}
	if c.Out, err = c.directory("launch", doc); err != nil { // every start would fail
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, stdout := con.training(ctx)
	before := checkpoint.Saved(c.Out)
	var last launch.Start
	first, began := 0, time.Now()
	if c.Resume {
		_, first, _ = checkpoint.Newest(c.Out) // without one the ranks refuse
	}
	var next nextPlan
	if c.Rebalance && c.NodeRank == 0 {
		if err := next.open(); err != nil {
			return err
		}
		defer next.close()
	}
	saved := func() bool {
		return !doc.Config.Train.EvalOnly && (c.Resume || checkpoint.SavedSince(c.Out, before))
	}
	agent := &launch.Agent{
		Exe: exe, Procs: procs, Least: least, Most: most, Node: c.NodeRank, Addr: c.Master, MaxRestarts: c.MaxRestarts, Patience: c.Timeout,
		Stdout: stdout, Stderr: con.stderr, Note: con.note,
		Brief: func(s launch.Start) ([]byte, error) {
			last = s
			b := brief{Resume: c.Resume || s.Number > 0 && checkpoint.SavedSince(c.Out, before), Balance: next.file()}
			n := s.Nodes * procs
			if b.Plan = next.of(con, n); b.Plan == nil && n != ranks {
				if b.Plan, err = c.planAnew(con, doc, n); err != nil {
					return nil, err
				}
			}
			return json.Marshal(b)
		},
		Again: func() (bool, error) {
			switch {
			case next.take(con):
				return true, nil
			case saved() && !c.done(doc): // interrupted processes end with status 0, too, whoever has interrupted them
				return false, context.Canceled
			}
			return false, nil
		},
		Args: func(s launch.Start) ([]string, error) {
			var b brief
			if err := json.Unmarshal(s.Brief, &b); err != nil {
				return nil, err
			}
			plan := filepath.Join(c.Out, fmt.Sprintf("plan-%d.json", s.Nodes*procs))
			switch {
			case b.Plan != nil:
			case c.holds(given):
				return c.args(con, c.Plan, b), nil
			default: // somebody has planned something else, and the job must not become that when it starts anew
				con.note("%s is not what it was when the job began, which goes on by %s, as it was", c.Plan, plan)
				b.Plan = given
			}
			if err := wholefile.Write(plan, b.Plan); err != nil {
				return nil, err
			}
			return c.args(con, plan, b), nil
		},
	}
	err = agent.Run(ctx)
	if last.Number > 0 {
		step := first
		if checkpoint.SavedSince(c.Out, before) {
			_, step, _ = checkpoint.Newest(c.Out)
		}
		c.goodput(con, last, first, step, time.Since(began))
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	if err != nil && saved() {
		if c.done(doc) {
			return nil
		}
		c.goOn(con)
	}
	return err
}

// holds reports whether the file of the plan says what is given, the text of a plan.
func (c *launchCmd) holds(given []byte) bool {
	doc, err := planner.ReadDocument(c.Plan)
	if err != nil {
		return false
	}
	now, err := doc.Marshal()
	return err == nil && bytes.Equal(now, given)
}

// hasPort reports whether an address has a host, at which others can reach it, and a port, from 1 to 65535.
func hasPort(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	n, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil && n > 0 && host != ""
}

// brief is what machine 0 tells all machines about a start of the job.
type brief struct {
	Resume bool
	Plan   json.RawMessage `json:",omitempty"` // in place of the plan that the job was given
	// Balance is where rank 0 writes a plan for ranks of different speeds, by which the job is to go on: a file of machine 0.
	Balance string `json:",omitempty"`
}

// machines parses --nnodes: N or MIN:MAX.
func (c *launchCmd) machines() (least, most int, err error) {
	from, to, ok := strings.Cut(c.NNodes, ":")
	if !ok {
		to = from
	}
	least, err = strconv.Atoi(from)
	if err == nil {
		most, err = strconv.Atoi(to)
	}
	if err != nil || least < 1 || most < least {
		return 0, 0, usagef("launch: --nnodes is %q, want a number of machines such as 2, or the least and the most such as 2:4", c.NNodes)
	}
	return least, most, nil
}

// planAnew searches the plan by which a job goes on with another number of ranks, for the same batch, cluster and limits, with
// units of any size. It returns the plan file.
func (c *launchCmd) planAnew(con *console, doc *planner.Document, ranks int) ([]byte, error) {
	cfg, err := config.Parse("plan", doc.Config.Marshal(), []string{"parallel.plan_ngpus=auto", fmt.Sprint("parallel.runtime_ngpus=", ranks)})
	if err != nil {
		return nil, err
	}
	options, err := (&planCmd{}).options(cfg)
	if err != nil {
		return nil, err
	}
	anew, err := search(cfg, doc.Cluster, options)
	if err != nil {
		return nil, err
	}
	con.note("planned anew for %s: %s", explain.Count(ranks, "rank"), explain.PlanText(anew.Plan))
	return anew.Marshal()
}

// args is the command line of each process.
func (c *launchCmd) args(con *console, plan string, b brief) []string {
	args := append(give([]string{"autopar", "run", argument(plan)}, "out", c.Out), c.flags()...)
	args = give(args, "quiet", con.quiet)
	args = give(args, "verbose", con.verbose)
	args = give(args, "balance-to", b.Balance)
	if b.Resume {
		return append(args, "--resume")
	}
	return give(args, "init-from", c.InitFrom)
}

// done reports whether the newest checkpoint of a job is that of its last update.
func (c *launchCmd) done(doc *planner.Document) bool {
	last := doc.Config.Train.MaxIters + 1
	if c.Steps != nil {
		last = *c.Steps
	}
	_, step, err := checkpoint.Newest(c.Out)
	return err == nil && step >= last
}

// goodput prints which share of the time of a restarted job went into updates that were not lost: those from step first to step
// last, which is saved.
func (c *launchCmd) goodput(con *console, at launch.Start, first, last int, took time.Duration) {
	updates := max(0, last-first)
	each, err := train.UpdateTime(c.Out, first)
	if err != nil {
		con.note("%v", err)
		return
	}
	starts := explain.Count(at.Restarts, "restart")
	if others := at.Number - at.Restarts; others > 0 {
		starts += ", " + explain.Count(others, "change") + " of plan"
	}
	con.printf("%s, goodput %s: %s of %s that stay, in %s\n", starts,
		percentText(min(1, float64(updates)*each/took.Seconds())), explain.Count(updates, "update"), explain.Seconds(each), explain.Seconds(took.Seconds()))
}

// goOn prints the command that resumes an interrupted job.
func (c *launchCmd) goOn(con *console) {
	flags := c.flags()
	if c.NProc != nil {
		flags = give(flags, "nproc", *c.NProc)
	}
	flags = give(flags, "max-restarts", c.MaxRestarts)
	flags = give(flags, "rebalance", c.Rebalance)
	if c.Master != "" {
		flags = append(flags, "--nnodes", c.NNodes, "--node-rank", fmt.Sprint(c.NodeRank), "--master", c.Master)
	}
	con.goOn("launch", c.Plan, c.Out, flags)
}
