package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/data"
	"github.com/autopar/autopar/export"
	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/measured"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/galvatron"
	"github.com/autopar/autopar/planner/sim"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
	"github.com/autopar/autopar/train"
)

// The exit statuses, on which scripts rely.
const (
	statusDone       = 0
	statusFailed     = 1 // the work failed, or a check did
	statusInput      = 2 // command line, YAML, plan, data or checkpoint is wrong
	statusInfeasible = 3 // no plan fits
)

// usageError is the error of a command line that parses but makes no sense.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// status maps an error to the exit status.
func status(err error) int {
	if err == nil {
		return statusDone
	}
	if is[*planner.InfeasibleError](err) || is[*runtime.MemoryError](err) || is[*cuda.MemoryError](err) {
		return statusInfeasible
	}
	if exit, ok := errors.AsType[*launch.ExitError](err); ok && !exit.Crash && exit.Status > statusFailed { // the process of the failed rank has decided
		return exit.Status
	}
	if blamesInput(err) {
		return statusInput
	}
	return statusFailed
}

// final reports whether a rank would fail in the same way if it were started again. A diverged run would, because the same
// weights and batches give the same numbers; with train.reproducible they may end it before there is a loss.
func final(err error) bool {
	return status(err) > statusFailed || is[*cpu.FixedError](err) || is[*train.DivergedError](err)
}

// blamesInput reports whether a command line, or a file or device that it names, is wrong.
func blamesInput(err error) bool {
	for _, blames := range []func(error) bool{
		is[*kong.ParseError], is[*usageError], is[*config.Error], is[*gpt.ConfigError], is[*data.InputError], is[*train.InputError],
		is[*cost.Error], is[*cost.FieldError], is[*measured.Error], is[*galvatron.FileError], is[*checkpoint.Error], is[*export.Error],
		is[*sim.LongError], is[*planner.OptionError], is[*planner.DocumentError], is[*planner.CertificateError], is[*partition.PlanError],
		is[*runtime.ProgramError], is[*cuda.DeviceError], is[*driver.MissingError], is[*launch.RefusedError],
	} {
		if blames(err) {
			return true
		}
	}
	return false
}

// message is the text of an error for the user.
func message(err error) string {
	if errors.Is(err, context.Canceled) {
		return "interrupted"
	}
	text := err.Error()
	if is[*kong.ParseError](err) {
		text = strings.Replace(text, `must be one of "",`, "must be one of ", 1) // nothing is what the flag is without being given
	}
	return text
}

// is reports whether an error of type E is in err's tree.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
