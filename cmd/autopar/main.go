// Command autopar plans, runs and explains the parallel training of a GPT.
//
// Each command is a struct in a file of its own, whose fields are its flags and
// whose Run does nothing but wire the packages together. What an error means
// for the exit status is decided in one place, status.go.
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
	// The first Ctrl-C asks the command to finish; a moment later the next one
	// kills the process, as without a handler. One process of many hears the same wish several times: from who stops
	// them all, as systemd and Slurm do, and from its launcher. The agent kills by other means.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if !launch.ByAgent() {
		context.AfterFunc(ctx, func() { time.AfterFunc(sameWish, stop) })
	}
	// So does the end of its terminal, unless nohup says that it is none of its concern. That is told twice, by the shell
	// and by the kernel: the second is no wish to stop at once.
	if !signal.Ignored(syscall.SIGHUP) {
		ctx, _ = signal.NotifyContext(ctx, syscall.SIGHUP)
	}
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// sameWish is how long after an interrupt another one says nothing new.
const sameWish = time.Second

// endAtOnce ends the process of a command that does not heed an interrupt.
func endAtOnce(con *console) {
	con.failure("%s", message(context.Canceled))
	os.Exit(statusFailed)
}
