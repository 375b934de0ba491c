package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"autopar": main})
}

// TestScripts runs the command lines of testdata/script as a shell would, each
// file in a directory of its own. -update rewrites what they expect.
//
// Beside testscript's own commands there is
//
//	exits STATUS autopar ARGS...   fails unless the exit status is STATUS
//	edit FILE OLD NEW              replaces the one place where FILE says OLD
//	truncate FILE BYTES            cuts FILE, or fills it with zeros, to BYTES
//	scrub FILE                     takes out of a plan how long the search took
//	waitfor FILE TEXT              waits until FILE says TEXT
//	samelosses FILE FILE           compares every loss of two metrics.jsonl, to the bit
//
// and $EXAMPLES is the directory of the example configurations, $ORACLE that of the files of PyTorch.
func TestScripts(t *testing.T) {
	examples, err := filepath.Abs("../../examples")
	require.NoError(t, err)
	oracle, err := filepath.Abs("../../testdata/oracle")
	require.NoError(t, err)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("EXAMPLES", examples)
			env.Setenv("ORACLE", oracle)
			env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, ".cache"))
			const planted = "AUTOPAR_PLANTED_MUTANT" // as in package mutants: the commands of a script are processes of their own
			env.Setenv(planted, os.Getenv(planted))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "edit": edit, "truncate": truncate, "samelosses": sameLosses, "waitfor": waitFor, "scrub": scrub,
		},
	})
}

var update = flag.Bool("update", false, "rewrite the golden output in testdata/script")

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS|STATUS... COMMAND ARGS...")
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if !slices.Contains(strings.Split(args[0], "|"), strconv.Itoa(got)) {
		ts.Fatalf("exit status %d, want %s", got, args[0])
	}
}

func edit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: edit FILE OLD NEW")
	}
	text := ts.ReadFile(args[0])
	if n := strings.Count(text, args[1]); n != 1 {
		ts.Fatalf("%s has %d places that say %q, want 1", args[0], n, args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Replace(text, args[1], args[2], 1)), 0o666))
}

func truncate(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: truncate FILE BYTES")
	}
	size, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Check(os.Truncate(ts.MkAbs(args[0]), size))
}

func scrub(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: scrub FILE")
	}
	text := regexp.MustCompile(`("(?:alternatives_)?seconds": )[0-9.e+-]+`).ReplaceAllString(ts.ReadFile(args[0]), "${1}0")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o666))
}

func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waitfor FILE TEXT")
	}
	for range 1200 {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && strings.Contains(string(text), args[1]) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	ts.Fatalf("%s does not say %q", args[0], args[1])
}

func sameLosses(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: samelosses FILE FILE")
	}
	a, b := losses(ts, args[0]), losses(ts, args[1])
	if len(a) == 0 || !slices.Equal(a, b) {
		ts.Fatalf("losses differ:\n%s\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
}

// losses returns the digits of every loss in a metrics.jsonl. Numbers there
// round-trip, so equal digits are equal bits.
func losses(ts *testscript.TestScript, file string) (all []string) {
	for line := range strings.Lines(ts.ReadFile(file)) {
		var record struct {
			Iter      int
			Loss      json.Number
			GradNorm  json.Number `json:"grad_norm"`
			TrainLoss json.Number `json:"train_loss"`
			ValLoss   json.Number `json:"val_loss"`
		}
		ts.Check(json.Unmarshal([]byte(line), &record))
		all = append(all, fmt.Sprint(record))
	}
	return all
}

// TestStatusIsInOnePlace fails if a command ends the process by itself.
func TestStatusIsInOnePlace(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if file != "main.go" && file != "script_test.go" {
			require.NotContains(t, string(text), "os.Exit", file)
		}
	}
}
