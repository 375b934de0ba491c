package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/export"
	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/train"
)

// runCmd trains.
type runCmd struct {
	planArg
	deviceArgs
	Steps    *int   `placeholder:"N" help:"Stop when N updates have been made, those before a resume included. The default is the configuration's max_iters+1."`
	Out      string `placeholder:"DIR" help:"Directory of checkpoints, metrics.jsonl and the same for TensorBoard, to which one run at a time writes. The default is the configuration's train.out_dir."`
	Resume   bool   `help:"Go on from the newest checkpoint in the directory."`
	Offload  string `name:"offload-dir" placeholder:"DIR" help:"Keep what the plan offloads in files of this directory, mapped into memory, instead of in memory."`
	InitFrom string `placeholder:"scratch|DIR|FILE" default:"scratch" help:"Weights to start from: scratch, the directory of another run, or a file of weights, as for checkpoint import. The run is a new one, at step 0: of a ckpt.pt, too, only the weights are read."`

	Blocking bool          `name:"blocking-save" help:"Hold training up until a checkpoint is on disk. The default is to write a copy in host memory, as large as what is saved, while training goes on, if there is room for it."`
	Check    bool          `name:"node-check" help:"Before training, time a product and an exchange on every rank, and end if one fails or takes more than twice the median."`
	Set      []string      `sep:"none" hidden:"" help:"Refused: see check."`
	Balance  string        `name:"balance-to" hidden:"" help:"Stop when a plan in which slow ranks have fewer sequences is much faster, and write it to this file. The launcher goes on by it."`
	Timeout  time.Duration `default:"5m" help:"How long a rank waits for another before the run fails."`
}

// Example is shown by --help.
func (runCmd) Example() string {
	return `
autopar run plan.json
autopar run plan.json --steps 4000 --resume`
}

// check looks at the flags of a command that need no plan.
func (c *runCmd) check(command string) error {
	switch {
	case len(c.Set) > 0:
		return usagef("%s: --set %s: the configuration of a run is in its plan; make another by autopar plan --set %[2]s", command, export.Quote(c.Set[0]))
	case c.Steps != nil && (*c.Steps < 1 || *c.Steps > math.MaxInt32): // as many as a step can count
		return usagef("%s: --steps is %d, must be between 1 and %d", command, *c.Steps, math.MaxInt32)
	case c.Resume && c.InitFrom != "scratch": // launch passes either --resume or --init-from
		return usagef("%s: --resume goes on with the weights of the checkpoint and cannot be used with --init-from %s", command, c.InitFrom)
	case c.Timeout <= 0:
		return usagef("%s: --timeout is %v, must be more than 0", command, c.Timeout)
	}
	return c.validate(command)
}

// directory returns the directory that a run of a plan writes to.
func (c *runCmd) directory(command string, doc *planner.Document) (string, error) {
	out, named := c.Out, command+": --out"
	if out == "" {
		out, named = doc.Config.Train.OutDir, command+": train.out_dir"
	}
	if doc.Config.Train.EvalOnly && c.Steps != nil {
		return "", usagef("%s: --steps is %d, but by train.eval_only the plan makes no updates", command, *c.Steps)
	}
	if doc.Config.Train.EvalOnly { // nothing is written, and a checkpoint may be evaluated
		return out, namesDirectory(named, out)
	}
	return out, mayBeRun(named, out)
}

// join connects to the other processes of the run, if a launcher's environment variables say that there are some. peers is nil
// if there are none. memory is the file in memory that the launcher keeps for this rank over restarts, or nil.
func (c *runCmd) join(ctx context.Context, con *console, plan *partition.Plan) (peers *launch.Peers, memory *os.File, err error) {
	place, err := launch.PlaceFrom(os.Getenv)
	if err != nil {
		return nil, nil, usagef("run: %v", err)
	}
	if place.Memory > 0 {
		memory = os.NewFile(uintptr(place.Memory), "memory")
	}
	switch {
	case place.World == 1:
		return nil, memory, nil
	case c.Loopback:
		return nil, nil, usagef("run: --loopback runs all ranks in one process, but the launcher has started %d", place.World)
	}
	if place.World != plan.RuntimeNGPUs {
		return nil, nil, usagef("run: the launcher has started %d processes, the plan has %s: each process is one rank", place.World, explain.Count(plan.RuntimeNGPUs, "rank"))
	}
	con.quiet, con.progress = con.quiet || place.Rank > 0, con.progress && place.Rank == 0
	bounded, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	peers, err = launch.Join(bounded, place)
	return peers, memory, err
}

// Run trains until it is done. A run that is interrupted before saves and fails with context.Canceled, so that a script or a
// cluster's scheduler does not take it for done.
func (c *runCmd) Run(ctx context.Context, con *console) (err error) {
	if err := c.check("run"); err != nil {
		return err
	}
	began := time.Now()
	ctx, stdout := con.training(ctx)
	doc, err := c.loadPlan()
	if err != nil {
		return err
	}
	cluster, err := cost.Load("cpu")
	if err != nil {
		return err
	}
	if c.Offload != "" && !doc.Plan.Offload.Moves() {
		return usagef("run: --offload-dir is %s, but the plan offloads nothing; plan with --offload optimizer or params", c.Offload)
	}
	if err := mayBeDirectory("run: --offload-dir", c.Offload); err != nil {
		return err
	}
	out, err := c.directory("run", doc)
	if err != nil {
		return err
	}
	peers, memory, err := c.join(ctx, con, doc.Plan)
	if err != nil {
		return err
	}
	interrupted := false // then all ranks end after the same step, and this one must not report a failure to them
	if peers != nil {
		defer func() {
			if err != nil && !interrupted {
				peers.Fail(err)
			}
			peers.Close()
		}()
	}
	var system *cuda.System
	on := train.JobOptions{HostDir: c.Offload, Runtime: runtime.Options{Timeout: c.Timeout, Peers: peers}}
	if c.cuda() {
		if c.Offload != "" {
			return usagef("run: --offload-dir is for --device cpu; GPUs keep what is offloaded in pinned memory")
		}
		if system, err = c.openCUDA(con, doc.Plan.RuntimeNGPUs, peers); err != nil {
			return err
		}
		if cluster, err = clusterOfGPU(system.Driver); err != nil {
			return err
		}
		if cluster == nil {
			cluster = doc.Cluster // its peak is the best that is known to compute MFU
		}
		opts := c.options()
		opts.Reproducible = doc.Config.Train.Reproducible
		opts.Note = func(text string) { con.note("%s", text) }
		on.Backend = cuda.New(system, opts)
	}
	if c.Check {
		if err := c.checkNodes(ctx, con, peers, system); err != nil {
			return err
		}
	}
	job, err := train.NewJob(doc.Config, doc.Plan, on)
	if err != nil {
		return err
	}
	defer job.Close()
	p := &progress{con: con, stdout: stdout}
	defer p.end()
	opts := train.RunOptions{
		Out: out, Resume: c.Resume, InitFrom: c.InitFrom, Memory: memory, Blocking: c.Blocking, Keep: checkpoint.Retention{Last: 2},
		Log: p, PeakFLOPS: cluster.PeakFLOPS(doc.Config.DType().String(), doc.Plan.RuntimeNGPUs),
	}
	if peers != nil && peers.Rank() == 0 {
		opts.Expected = expected(con, doc, job)
		if c.Balance != "" {
			opts.Slow = (&balancer{con: con, doc: doc, to: c.Balance, start: time.Since(began)}).judge
		}
	}
	if c.Steps != nil {
		opts.Steps = *c.Steps
	}
	if con.progress {
		opts.Progress = p.update
	}
	context.AfterFunc(ctx, func() {
		if con.progress { // after the ^C that the terminal shows
			con.note("")
		}
		con.note("interrupted: finishing the step and saving; once more to stop at once")
	})
	result, err := job.Run(ctx, opts)
	if err != nil {
		return err
	}
	p.end()
	if interrupted = result.Interrupted; !interrupted || launch.ByAgent() && result.Steps > 0 { // the agent has interrupted it, or sees what is saved
		return nil
	}
	if result.Checkpoint != "" {
		con.goOn("run", c.Plan, out, c.flags())
	}
	return context.Canceled
}

// flags are the flags of the command line, except for --out, --resume and --init-from.
func (c *runCmd) flags() (args []string) {
	if c.cuda() {
		args = give(args, "device", c.Device)
	}
	args = give(args, "loopback", c.Loopback)
	if c.Steps != nil {
		args = give(args, "steps", *c.Steps)
	}
	args = give(args, "offload-dir", c.Offload)
	args = give(args, "blocking-save", c.Blocking)
	args = give(args, "node-check", c.Check)
	if c.Timeout != defaultTimeout {
		args = give(args, "timeout", c.Timeout)
	}
	return args
}

// defaultTimeout is that of --timeout.
const defaultTimeout = 5 * time.Minute

// give adds a flag to arguments, unless its value is the zero value.
func give[T comparable](args []string, flag string, value T) []string {
	var zero T
	text := fmt.Sprint(value)
	switch {
	case value == zero:
		return args
	case any(value) == any(true):
		return append(args, "--"+flag)
	case strings.HasPrefix(text, "-"): // as another argument it is taken for a flag
		return append(args, "--"+flag+"="+text)
	}
	return append(args, "--"+flag, text)
}

// argument is a file as an argument, which is taken for a flag if it begins as one.
func argument(path string) string {
	if strings.HasPrefix(path, "-") {
		return "./" + path
	}
	return path
}

// goOn prints the command that resumes an interrupted run.
func (c *console) goOn(command, plan, out string, flags []string) {
	words := append(give([]string{"autopar", command, argument(plan), "--resume"}, "out", out), flags...)
	for i, word := range words {
		words[i] = export.Quote(word)
	}
	c.note("go on with: %s", strings.Join(words, " "))
}

// expected is how long each rank computes in a step, in seconds, according to the cost model on the cluster of the plan. The
// detection of slow ranks needs it, because stages of a pipeline may have different work, and kinds of devices differ. It
// returns nil, after a note, if the plan cannot be simulated.
func expected(con *console, doc *planner.Document, job *train.Job) (seconds []float64) {
	line, err := sim.Run(job.Train, doc.Cluster, sim.Options{})
	if err != nil {
		con.note("stragglers are looked for as if all ranks had as much to do: %v", err)
		return nil
	}
	for _, r := range line.Ranks {
		seconds = append(seconds, (r.Breakdown.Compute + r.Breakdown.Optimizer).Seconds())
	}
	return seconds
}

// progress prints the lines of a run, with a bar below them on a terminal.
type progress struct {
	con    *console
	stdout io.Writer
	bar    bar // the one that is shown
	train  bar
	last   train.Progress
}

var _ io.Writer = (*progress)(nil)

// Write prints whole lines in place of the bar, which the next update draws
// again below them.
func (p *progress) Write(lines []byte) (int, error) {
	if bytes.IndexByte(lines, '\n') >= 0 {
		p.bar.clear()
	}
	return p.stdout.Write(lines)
}

func (p *progress) update(now train.Progress) {
	if p.bar.ProgressBar == nil || now.Evaluating != p.last.Evaluating {
		p.bar.clear()
		if now.Evaluating {
			p.bar = p.con.bar(now.Total, "eval")
		} else {
			if p.train.ProgressBar == nil { // else it goes on, with the pace that it knows
				what := "train"
				if now.Done > 0 { // before a resume
					what = fmt.Sprintf("train after %d", now.Done)
				}
				p.train = p.con.bar(now.Total-now.Done, what)
				p.train.from = now.Done
			}
			p.bar = p.train
		}
	}
	p.last = now
	p.bar.set(now.Done)
}

func (p *progress) end() {
	p.bar.clear()
	p.bar = bar{}
}
