package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/launch"
)

// grammar is the command line.
type grammar struct {
	Globals
	Version kong.VersionFlag `help:"Print the version, and what it was built with."`

	Plan       planCmd       `cmd:"" help:"Search the fastest plan for a model and write it to a file."`
	Run        runCmd        `cmd:"" help:"Train by a plan."`
	Launch     launchCmd     `cmd:"" help:"Train by a plan in several processes."`
	Explain    explainCmd    `cmd:"" help:"Show what a plan does and why."`
	Verify     verifyCmd     `cmd:"" help:"Check every rank's program of a plan without running it."`
	Profile    profileCmd    `cmd:"" help:"Measure this machine and write a cluster file."`
	Cluster    clusterCmd    `cmd:"" help:"List the built-in clusters, or print one to copy and edit."`
	Size       sizeCmd       `cmd:"" help:"Count parameters, FLOPs and bytes of a model."`
	Data       dataCmd       `cmd:"" help:"Prepare training data."`
	Sample     sampleCmd     `cmd:"" help:"Write text with a trained model."`
	Checkpoint checkpointCmd `cmd:"" help:"Look into and convert checkpoints."`
	Bench      benchCmd      `cmd:"" help:"Time training steps."`
	Validate   validateCmd   `cmd:"" help:"Compare predictions with published measurements."`

	Fit fitCmd `cmd:"" help:"Fit the constants of predictions to published measurements."`

	Export exportCmd `cmd:"" help:"Write a plan in the words of another system."`
}

// Globals are the flags of every command.
type Globals struct {
	Quiet   bool `short:"q" help:"Print results only: no notes, no progress."`
	Verbose bool `short:"v" help:"Print more: the placements of a plan, the place in the program of a BUG."`
	NoColor bool `name:"no-color" help:"Print without colour. So does the environment variable NO_COLOR."`
}

// yamlArgs are the arguments of a command that reads a gpt.yaml.
type yamlArgs struct {
	Config string   `arg:"" name:"gpt.yaml" help:"Model and training configuration, or the config.json of a HuggingFace GPT-2 or Llama."`
	Set    []string `sep:"none" placeholder:"SECTION.KEY=VALUE" help:"Override one value of the YAML. May be repeated."`
}

// load reads the configuration and checks it.
func (a *yamlArgs) load() (*config.Config, error) {
	cfg, err := config.Load(a.Config, a.Set)
	if err != nil {
		return nil, err
	}
	return cfg, cfg.Validate()
}

// flagOverride is a flag that overrides a key of the YAML, unless its value is empty.
type flagOverride struct{ flag, key, value string }

// apply sets the key. An error names the flag.
func (o flagOverride) apply(cfg *config.Config) error {
	if o.value == "" {
		return nil
	}
	err := config.Override(cfg, o.flag, o.key+"="+o.value)
	if bad, ok := err.(*config.Error); ok {
		return usagef("%s: %s", o.flag, bad.Msg)
	}
	return err
}

// format is how a result is printed.
type format struct {
	Format string `enum:"text,json" default:"text" help:"text or json."`
}

func (f format) json() bool { return f.Format == "json" }

// exitRequest is how kong's --help ends a parse.
type exitRequest int

// execute runs one command line and returns its exit status.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) (code int) {
	con := newConsole(stdout, stderr)
	defer func() {
		switch r := recover().(type) {
		case nil:
		case exitRequest:
			code = int(r)
		default:
			verbose := con.verbose || slices.Contains(args, "-v") || slices.Contains(args, "--verbose")
			con.bug(fmt.Sprint(r), string(debug.Stack()), verbose)
			code = launch.ExitStatus(statusFailed, true)
		}
	}()
	var cli grammar
	parser, err := kong.New(&cli,
		kong.Name("autopar"),
		kong.Description("autopar finds the fastest way to train a GPT on many devices, explains it, and trains that way."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exitRequest(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 100}),
		kong.Help(printHelp),
		kong.Vars{"version": version()},
		kong.ValueFormatter(helpOf),
		kong.KindMapper(reflect.String, kong.MapperFunc(asItIs)),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(con),
	)
	if err != nil {
		panic(fmt.Sprintf("BUG: grammar: %v", err))
	}
	parsed, err := parser.Parse(negatives(args))
	if err == nil {
		err = idleFlag(parsed)
	}
	if err == nil {
		con.configure(cli.Globals)
		if !heeds(parsed.Selected()) { // it has nothing to save, and its files are written whole or not at all
			defer context.AfterFunc(ctx, func() { endAtOnce(con) })()
		}
		// A command may have been canceled because its output was lost: see [console.training].
		if err = parsed.Run(); con.lost != nil && (err == nil || errors.Is(err, context.Canceled)) {
			err = con.lost
		}
	}
	if err == nil {
		return statusDone
	}
	if what, trace, isPanic := strings.Cut(err.Error(), "\ngoroutine "); isPanic { // runtime returns the panic of a rank as an error
		con.bug(what, "goroutine "+trace, con.verbose)
		return launch.ExitStatus(statusFailed, true)
	}
	if errors.Is(err, context.Canceled) && launch.ByAgent() { // which says so, for all its processes
		return launch.Interrupted
	}
	con.failure("%s", message(err))
	if usage, ok := errors.AsType[*kong.ParseError](err); ok {
		fmt.Fprintf(con.stderr, "Run \"%s --help\" for more information.\n", commandOf(usage.Context))
	}
	return launch.ExitStatus(status(err), final(err))
}

// version is one line about the program: its version, which of a build in a repository has the revision, and "+dirty" if there were
// changes; the release of Go; and the system.
func version() string {
	is := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		is = info.Main.Version
	}
	return fmt.Sprintf("autopar %s, %s %s/%s", is, goruntime.Version(), goruntime.GOOS, goruntime.GOARCH)
}

// negatives joins flags with the negative numbers after them, which kong takes for flags, so that whoever checks the number refuses it.
func negatives(args []string) []string {
	longFlag, negative := regexp.MustCompile(`^--[^=]+$`), regexp.MustCompile(`^-[0-9.]`)
	var joined []string
	for _, arg := range args {
		last := len(joined) - 1
		if last >= 0 && longFlag.MatchString(joined[last]) && negative.MatchString(arg) {
			joined[last] += "=" + arg
		} else {
			joined = append(joined, arg)
		}
	}
	return joined
}

// asItIs reads a text from the command line. Kong's own replaces what is not UTF-8, but files may have such names.
func asItIs(ctx *kong.DecodeContext, target reflect.Value) error {
	text, err := ctx.Scan.PopValue("string")
	if err == nil {
		target.SetString(text.String())
	}
	return err
}

// idleFlag refuses a flag that has no effect: one that is given without a value, as by --versus "$FILE" with FILE unset, or without
// another one, which its tag "with" names.
func idleFlag(parsed *kong.Context) error {
	given := map[string]bool{}
	for _, p := range parsed.Path {
		if p.Flag != nil {
			given[p.Flag.Name] = true
		}
	}
	for _, p := range parsed.Path {
		if p.Flag == nil {
			continue
		}
		if p.Flag.Target.Kind() == reflect.String && p.Flag.Target.Len() == 0 {
			return usagef("%s: --%s is empty, want %s", parsed.Selected().Name, p.Flag.Name, p.Flag.PlaceHolder)
		}
		if other := p.Flag.Tag.Get("with"); other != "" && !given[other] {
			return usagef("%s: --%s is for --%s", parsed.Selected().Name, p.Flag.Name, other)
		}
	}
	return nil
}

// heeds reports whether a command ends by itself when it is interrupted. Such a command has a Run that takes the context.
func heeds(command *kong.Node) bool {
	run := command.Target.Addr().MethodByName("Run").Type()
	for in := range run.Ins() {
		if in == reflect.TypeFor[context.Context]() {
			return true
		}
	}
	return false
}

func commandOf(ctx *kong.Context) string {
	if ctx != nil && ctx.Selected() != nil {
		return ctx.Selected().FullPath()
	}
	return "autopar"
}

// bug reports a panic, with its stack trace if verbose.
func (c *console) bug(what, trace string, verbose bool) {
	if !strings.Contains(what, "BUG:") {
		what = "BUG: " + what
	}
	c.failure("%s", what)
	if verbose {
		fmt.Fprintln(c.stderr, trace)
		return
	}
	fmt.Fprintln(c.stderr, "This is an error in autopar, not in your input. -v shows the place in the program; please report both.")
}

// exampler is a command whose --help ends in an example.
type exampler interface{ Example() string }

// helpOf is the help of a flag or argument, with its default where a placeholder stands in the place in which kong shows it.
func helpOf(value *kong.Value) string {
	if value.Tag.PlaceHolder == "" || value.Default == "" {
		return value.Help
	}
	return value.Help + " The default is " + value.Default + "."
}

// printHelp is kong's help followed by the command's example.
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	node := ctx.Selected()
	if node == nil {
		node = ctx.Model.Node
	}
	if !node.Target.CanAddr() {
		return nil
	}
	if cmd, ok := node.Target.Addr().Interface().(exampler); ok {
		example := strings.ReplaceAll(strings.TrimSpace(cmd.Example()), "\n", "\n  ")
		fmt.Fprintf(ctx.Stdout, "\nExample:\n  %s\n", example)
	}
	return nil
}

// Example shows the way through the program.
func (grammar) Example() string {
	return `
autopar data prepare shakespeare_char
autopar plan examples/quick.yaml -o plan.json
autopar explain plan.json
autopar run plan.json
autopar sample --from out-quick`
}
