package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/data"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
	"github.com/autopar/autopar/runtime/cpu/profile"
	"github.com/autopar/autopar/train"
)

// TestStatusOfErrors: errors of the input, and numbers that are not finite, are final: they would come again after a restart.
func TestStatusOfErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, statusDone},
		{usagef("x"), statusInput},
		{&config.Error{}, statusInput},
		{&gpt.ConfigError{}, statusInput},
		{&cost.Error{}, statusInput},
		{&data.InputError{}, statusInput},
		{&checkpoint.Error{}, statusInput},
		{&partition.PlanError{}, statusInput},
		{&planner.OptionError{}, statusInput},
		{&planner.DocumentError{}, statusInput},
		{&train.InputError{}, statusInput},
		{&runtime.ProgramError{}, statusInput},
		{&planner.InfeasibleError{Closest: &partition.Plan{Stages: []partition.Stage{{Last: 1}}}}, statusInfeasible},
		{&launch.RefusedError{Err: errors.New("it has 1 processes, machine 0 has 2")}, statusInput},
		{&launch.ExitError{Status: statusInput}, statusInput},
		{&launch.ExitError{Status: statusInput, Crash: true}, statusFailed},
		{&train.DivergedError{}, statusFailed},
		{&cpu.FixedError{}, statusFailed},
		{&codegen.CheckError{}, statusFailed},
		{data.ErrUnavailable, statusFailed},
		{context.Canceled, statusFailed},
		{errors.New("disk full"), statusFailed},
	} {
		require.Equal(t, c.want, status(c.err), "%T", c.err)
		_, diverged := c.err.(*train.DivergedError)
		_, fixed := c.err.(*cpu.FixedError)
		require.Equal(t, diverged || fixed || c.want > statusFailed, final(c.err), "%T", c.err)
		if c.err != nil {
			require.Equal(t, c.want, status(fmt.Errorf("wrapped: %w", c.err)), "wrapped %T", c.err)
			require.Equal(t, final(c.err), final(fmt.Errorf("wrapped: %w", c.err)), "wrapped %T", c.err)
		}
	}
}

// TestIdleFlags: a flag that would have no effect is refused, before any file is read.
func TestIdleFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"plan: --samples is for --robust":        {"plan", "x.yaml", "--samples", "4"},
		"plan: --seed is for --robust":           {"plan", "x.yaml", "--seed", "4"},
		"verify: --samples is for --certificate": {"verify", "plan.json", "--samples", "4"},
		"verify: --seed is for --certificate":    {"verify", "plan.json", "--seed", "4"},
		"profile: --steps is for --check":        {"profile", "--steps", "4"},
		"cluster: --model is for --galvatron":    {"cluster", "h100", "--model", "x.yaml"},
		"explain: --sensitivities is for --format text, json or html of the whole plan as it is, without --rank, --why, --cluster and --set":             {"explain", "plan.json", "--cluster", "v100", "--sensitivities"},
		"explain: --pareto is for --format text, json or html of the whole plan as it is, without --rank, --why, --cluster and --set, and --view pareto": {"explain", "plan.json", "--rank", "1", "--pareto"},
		"explain: --versus is for --format text, json or html of the whole plan as it is, without --rank, --why, --cluster and --set":                    {"explain", "plan.json", "--why", "wte", "--versus", "dp"},
		"explain: --price is for --sensitivities and --pareto, and --format json or html":                                                                {"explain", "plan.json", "--price", "2"},
		"explain: --quick is for --format html":                                                              {"explain", "plan.json", "--format", "json", "--quick"},
		"explain: --view memory is for --format svg or png":                                                  {"explain", "plan.json", "--view", "memory"},
		"launch: --resume goes on with the weights of the checkpoint and cannot be used with --init-from it": {"launch", "plan.json", "--resume", "--init-from", "it"},
	} {
		var stderr bytes.Buffer
		require.Equal(t, statusInput, execute(t.Context(), args, &bytes.Buffer{}, &stderr), args)
		require.Contains(t, stderr.String(), want)
	}
}

// TestNamesAsTheyAre: files may have names that are not UTF-8; values of the YAML may not.
func TestNamesAsTheyAre(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "caf\xe9")
	if err := os.WriteFile(name+".yaml", []byte("model: {n_layer: 1, n_head: 1, n_embd: 4, block_size: 4, vocab_size: 4}\nbatch: {global: 1}"), 0o600); err != nil {
		t.Skip(err)
	}
	require.Equal(t, statusDone, execute(t.Context(), []string{"plan", name + ".yaml", "-o", name + ".json", "-q"}, io.Discard, io.Discard))
	require.FileExists(t, name+".json")
	var stderr bytes.Buffer
	require.Equal(t, statusInput, execute(t.Context(), []string{"size", name + ".yaml", "--set", "data.dir=caf\xe9"}, io.Discard, &stderr))
	require.Equal(t, "autopar: --set: data.dir: is not UTF-8\n", stderr.String())
}

// TestFlagsAreNamed: an error about the value of a flag names that flag, and not --set.
func TestFlagsAreNamed(t *testing.T) {
	for want, args := range map[string][]string{
		"autopar: --runtime-ngpus: parallel.runtime_ngpus: 6 is not a multiple of plan_ngpus 4 (by --plan-ngpus)\n":                 {"--runtime-ngpus", "6", "--plan-ngpus", "4"},
		"autopar: --set: parallel.runtime_ngpus: 6 is not a multiple of plan_ngpus 4 (by --plan-ngpus)\n":                           {"--set", "parallel.runtime_ngpus=6", "--plan-ngpus", "4"},
		"autopar: --memory-limit: wants a size such as 16GiB, 512MiB or bytes, got \"much\"\n":                                      {"--memory-limit", "much"},
		"autopar: ../../examples/quick.yaml:10:28: parallel.runtime_ngpus: 4 is not a multiple of plan_ngpus 3 (by --plan-ngpus)\n": {"--plan-ngpus", "3"},
	} {
		var stderr bytes.Buffer
		args = append([]string{"plan", "../../examples/quick.yaml", "-o", "-"}, args...)
		require.Equal(t, statusInput, execute(t.Context(), args, &bytes.Buffer{}, &stderr), args)
		require.Equal(t, want, stderr.String())
	}
}

// TestHelpHasExamples: the help of every command has an example, also that of commands with subcommands.
func TestHelpHasExamples(t *testing.T) {
	parser, err := kong.New(new(grammar))
	require.NoError(t, err)
	require.NoError(t, kong.Visit(parser.Model, func(node kong.Visitable, next kong.Next) error {
		if command, ok := node.(*kong.Node); ok && command.Type == kong.CommandNode {
			var stdout bytes.Buffer
			execute(t.Context(), append(strings.Fields(command.Path()), "--help"), &stdout, &bytes.Buffer{})
			require.Contains(t, stdout.String(), "\nExample:\n  autopar "+command.Path())
		}
		return next(nil)
	}))
}

func TestPanicsAreReported(t *testing.T) {
	for _, verbose := range []bool{false, true} {
		var stderr bytes.Buffer
		con := newConsole(&bytes.Buffer{}, &stderr)
		con.bug("index out of range", "goroutine 1 [running]", verbose)
		require.Contains(t, stderr.String(), "BUG: index out of range")
		require.Equal(t, verbose, bytes.Contains(stderr.Bytes(), []byte("goroutine")))
	}
	// A panic outside of ranks ends in the same message, without a trace. Its status tells the agent that it would come again.
	for _, want := range []int{statusFailed, 64 + statusFailed} {
		var stderr bytes.Buffer
		code := execute(nil, []string{"data", "prepare", "--input", "cli_test.go", "-o", t.TempDir()}, &bytes.Buffer{}, &stderr) //nolint:staticcheck // a nil context panics
		require.Equal(t, want, code)
		require.Contains(t, stderr.String(), "BUG: ")
		require.NotContains(t, stderr.String(), "goroutine")
		t.Setenv("AUTOPAR_AGENT", "1")
	}
}

// TestInterrupt interrupts a search that would take minutes: it ends at once, without a plan.
func TestInterrupt(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	w := workplace{t.TempDir()}
	require.NoError(t, os.Symlink(exe, filepath.Join(w.dir, "autopar")))
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "deep.yaml"), []byte("model: {n_layer: 10000, n_head: 2, n_embd: 32}\n"), 0o666))
	cmd := w.command("plan", "deep.yaml", "--cluster", "h100", "--plan-ngpus", "8")
	require.NoError(t, cmd.Start())
	time.Sleep(300 * time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(30 * time.Second):
		_ = cmd.Process.Kill()
		t.Fatal("it goes on")
	}
	require.NoFileExists(t, filepath.Join(w.dir, "plan.json"))
}

func TestColourIsForTerminals(t *testing.T) {
	var out bytes.Buffer
	con := newConsole(&out, &out)
	con.heading("plan")
	con.bar(3, "x").set(1)
	require.Equal(t, "plan\n", out.String())
	con.color = true
	con.configure(Globals{NoColor: true})
	require.Equal(t, "plan", con.paint("1", "plan"))
}

// TestBarOfARun: the bar of the iterations goes on after an evaluation, and counts none that were made before a resume. It would
// see all of these at once and predict the end of a long run within seconds.
func TestBarOfARun(t *testing.T) {
	var out bytes.Buffer
	p := &progress{con: &console{stderr: &out, progress: true}, stdout: &out}
	p.update(train.Progress{Done: 6999, Total: 9000})
	p.update(train.Progress{Done: 7000, Total: 9000})
	before := p.bar
	p.update(train.Progress{Evaluating: true, Done: 1, Total: 2})
	require.Contains(t, out.String(), "eval")
	p.update(train.Progress{Done: 7001, Total: 9000})
	require.Same(t, before.ProgressBar, p.bar.ProgressBar)
	require.EqualValues(t, 2, p.bar.State().CurrentNum)
	require.EqualValues(t, 2001, p.bar.State().Max)
	require.Contains(t, out.String(), "train after 6999")
	p.end()
}

func TestBenchAddsUpToTheStep(t *testing.T) {
	cfg, err := (&benchCmd{}).load()
	require.NoError(t, err)
	watch := &stopwatch{
		spent: map[ir.Op]time.Duration{ir.OpMatMul: 12 * time.Millisecond, ir.OpAllReduce: 6 * time.Millisecond},
		calls: map[ir.Op]int{ir.OpMatMul: 40, ir.OpAllReduce: 4},
	}
	times := []time.Duration{7 * time.Millisecond, 5 * time.Millisecond} // of two ranks: 24 ms, of which 18 in ops
	work := map[string]cost.Work{"matmul": {Class: "product", FLOPs: 6e9, Bytes: 3e6}, "all_reduce": {Class: "collective", Bytes: 3e6}}
	r := (&benchCmd{Steps: 2, Top: 2}).summarize(cfg, 2, profile.Peaks{FLOPS: 4e12, Bandwidth: 1e10}, work, times, watch)
	require.Equal(t, []opTime{
		{Op: "matmul", Calls: 10, MS: 3, Share: 0.5, GFLOPS: 2000, GBs: 1, Roofline: 0.5},
		{Op: "all_reduce", Calls: 1, MS: 1.5, Share: 0.25, GBs: 2},
		{Op: "idle", MS: 1.5, Share: 0.25},
	}, r.Ops)
	require.Equal(t, 0.75, r.ShareOfTop)
	require.Equal(t, 6.0, r.MeanMS)
	require.InDelta(t, 12*64/6e-3, r.TokensPerS, 1e-6)
	require.InDelta(t, r.TokensPerS*float64(cfg.Model.FLOPsPerToken())/4e12, r.MFU, 1e-12)
}
