// Command autopar plans, runs and explains the parallel training of a GPT.
//
// Each command is a struct in a file of its own: its fields are the flags, and its Run wires the packages together. cli.go has
// the grammar of the command line and runs commands, console.go and output.go are what they print and write to, status.go
// alone maps errors to exit statuses. The commands:
//
//   - plan.go searches a plan, with planprint.go, robust.go and lp.go; planfile.go reads one.
//   - explain.go and recost.go, verify.go, export.go: what to do with a plan. compile.go makes its programs.
//   - run.go trains, launch.go does so in several processes; balance.go, nodecheck.go and cuda.go are parts of that. sample.go
//     writes text.
//   - data.go and checkpoint.go: files of training.
//   - bench.go times steps, with benchsteps.go and benchops.go; profile.go measures the machine.
//   - cluster.go and galvatron.go, size.go: figures of machines and models.
//   - validate.go, validatememory.go, regret.go and fit.go compare predictions with published runs.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/autopar/autopar/launch"
)

func main() {
	// The first Ctrl-C asks the command to finish. From sameWish later, the next one kills the process, as without a handler.
	// The delay is for a process of a job, which may receive the same interrupt several times: from systemd or Slurm, which
	// signal all processes, and from its launcher. The agent of autopar launch kills by other means.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if !launch.ByAgent() {
		context.AfterFunc(ctx, func() { time.AfterFunc(sameWish, stop) })
	}
	// The end of its terminal asks the command to finish, too, unless nohup makes it ignore that. Shell and kernel both send
	// SIGHUP then, so a second one does not kill.
	if !signal.Ignored(syscall.SIGHUP) {
		ctx, _ = signal.NotifyContext(ctx, syscall.SIGHUP)
	}
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// sameWish is how long after an interrupt another one is taken for the same.
const sameWish = time.Second

// endAtOnce ends the process on an interrupt, for commands that do not handle it: see heeds.
func endAtOnce(con *console) {
	con.failure("%s", message(context.Canceled))
	os.Exit(statusFailed)
}
