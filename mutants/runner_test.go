//go:build mutants

package mutants

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
)

// A run of a test without a mutant may take longest. With one it may take some
// times as long, on a machine that others share, and extra: a mutant that makes
// ranks wait for ever is dead then.
const (
	longest = 15 * time.Minute
	times   = 4
	extra   = 30 * time.Second
)

func TestMutants(t *testing.T) {
	lab := newLaboratory(t)
	verdicts := make([]string, len(lab.table))
	t.Cleanup(func() { // when all have ended
		var table bytes.Buffer
		tab := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tab, "mutant\tkilled by\tseconds\twithout it")
		for _, verdict := range verdicts {
			if verdict != "" {
				fmt.Fprintln(tab, verdict)
			}
		}
		require.NoError(t, tab.Flush())
		t.Logf("\n%s", &table)
	})
	for i, m := range lab.table {
		t.Run(m.name(), func(t *testing.T) {
			t.Parallel()
			tree := <-lab.trees
			defer func() { lab.trees <- tree }()
			tests, took, err := lab.sound(tree, m)
			require.NoError(t, err, "without the mutant")

			begin := time.Now()
			killer, said, err := tree.kill(m, i+1, tests, times*took+extra)
			seconds := time.Since(begin).Seconds()
			verdict := killer
			if err != nil {
				verdict = "ERROR"
			} else if killer == "" {
				verdict = "SURVIVES " + m.pkg + " " + m.run
			}
			verdict = fmt.Sprintf("%s\t%.1f\t%.1f", verdict, seconds, took.Seconds())
			verdicts[i] = m.name() + "\t" + verdict
			t.Logf("%s\n%s", verdict, said)
			require.NoError(t, err)
			require.NotEmpty(t, killer, "%s of %s pass with the bug", m.run, m.pkg)
		})
	}
}

// laboratory has a tree for each mutant that is run at a time, and what is known
// of tests without any.
type laboratory struct {
	table    []mutant
	trees    chan *tree
	dir      string   // of programs
	programs sync.Map // package -> func() (*program, error)
	runs     sync.Map // package and tests -> func() (took time.Duration, err error)
}

func newLaboratory(t *testing.T) *laboratory {
	n := flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int)
	lab := &laboratory{table: mutants(), trees: make(chan *tree, n), dir: t.TempDir()}
	for range n {
		lab.trees <- copyTree(t)
	}
	return lab
}

// sound fails unless the tests of a mutant pass without it. It returns their
// program and how long they run: each is built once for a package, each run once.
func (lab *laboratory) sound(tr *tree, m mutant) (*program, time.Duration, error) {
	build, _ := lab.programs.LoadOrStore(m.pkg, sync.OnceValues(func() (*program, error) {
		return tr.build(m.pkg, lab.dir, lab.table)
	}))
	run, _ := lab.runs.LoadOrStore([2]string{m.pkg, m.run}, sync.OnceValues(func() (time.Duration, error) {
		tests, err := build.(func() (*program, error))()
		if err != nil {
			return 0, fmt.Errorf("%s %w", m.pkg, err)
		}
		begin := time.Now()
		err = tr.green(m, tests.path)
		return time.Since(begin), err
	}))
	took, err := run.(func() (time.Duration, error))()
	if err != nil {
		return nil, 0, err
	}
	tests, err := build.(func() (*program, error))()
	return tests, took, err
}

// tree is a copy of the module in which files may be changed.
type tree struct{ dir, binary string }

// copyTree copies what git would commit, with the changes at hand.
func copyTree(t *testing.T) *tree {
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		t.Skipf("git cannot list the files of %s: %v", root, err)
	}
	temp := t.TempDir()
	tr := &tree{dir: filepath.Join(temp, "tree"), binary: filepath.Join(temp, "package.test")}
	for _, name := range strings.Split(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and git not told yet
		}
		require.NoError(t, err)
		path := filepath.Join(tr.dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, content, 0o644))
	}
	return tr
}

// kill returns the first test that fails with the mutant, or does not end within
// the limit, or "", and what it says. An error says that the mutant proves nothing.
func (tr *tree) kill(m mutant, place int, tests *program, limit time.Duration) (killer, said string, err error) {
	path := tests.path
	if !tests.has[place] {
		file, source, bug, err := m.plant(tr.dir)
		if err != nil {
			return "", "", err
		}
		defer func() { err = errors.Join(err, os.WriteFile(file, source, 0o644)) }()
		if err := os.WriteFile(file, bug, 0o644); err != nil {
			return "", "", err
		}
		path = tr.binary
		if err := tr.compile(m.pkg, path); err != nil {
			return "", "", fmt.Errorf("the mutant %w", err)
		}
	}
	red, output := tr.test(m, place, path, limit)
	if !red {
		return "", "", nil
	}
	killer, said = culprit(output)
	return killer, said, nil
}

// green fails unless the tests exist and pass.
func (tr *tree) green(m mutant, program string) error {
	red, output := tr.test(m, 0, program, longest)
	if red {
		test, said := culprit(output)
		return fmt.Errorf("%s is red in %s:\n%s", test, m.pkg, said)
	}
	for _, name := range m.tests() {
		if !strings.Contains(output, "--- PASS: "+name+" ") {
			return fmt.Errorf("%s did not run in %s:\n%s", name, m.pkg, output)
		}
	}
	return nil
}

// compile builds the tests of a package, apart from running them: a program that
// does not compile is no bug that a test has found.
func (tr *tree) compile(pkg, program string, flags ...string) error {
	args := slices.Concat([]string{"test", "-c", "-trimpath", "-vet=off", "-ldflags=-s -w"}, flags, []string{"-o", program, pkg})
	build := exec.Command("go", args...)
	build.Dir = tr.dir
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("does not compile: %w\n%s", err, output)
	}
	return nil
}

// test runs tests of a package by a program that compile has made, with the
// mutant of this place in the table if the program has it.
func (tr *tree) test(m mutant, place int, program string, limit time.Duration) (red bool, output string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.v", "-test.failfast", "-test.run="+m.run, "-test.timeout="+limit.String())
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", planted, place))
	cmd.Dir = filepath.Join(tr.dir, m.pkg)
	text, err := cmd.CombinedOutput()
	return err != nil, string(text)
}

var (
	failed  = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	began   = regexp.MustCompile(`(?m)^=== RUN +([^\s/]+)`)
	seed    = regexp.MustCompile(`seed \d+$`)
	tooLong = regexp.MustCompile(`(?m)^panic: test timed out`)
	reason  = regexp.MustCompile(`(?m)^(panic: .*|\s+\w+\.go:\d+: \S.*|\s+(Error|Messages):.*(\n\s+\t.*){0,3})$`)
)

// culprit names the test that failed, with its first subtest that did, or that
// was running when all came to an end, and quotes its first reasons.
func culprit(output string) (test, said string) {
	reasons := slices.DeleteFunc(reason.FindAllString(output, -1), seed.MatchString)
	said = strings.Join(reasons[:min(3, len(reasons))], "\n")
	for _, m := range failed.FindAllStringSubmatch(output, -1) {
		if test == "" || strings.HasPrefix(m[1], test+"/") {
			test = m[1]
		}
	}
	if test != "" {
		return test, said
	}
	how := " (panic)"
	if tooLong.MatchString(output) {
		how = " (hangs)"
	}
	if m := began.FindAllStringSubmatch(output, -1); m != nil {
		return m[len(m)-1][1] + how, said
	}
	return "the test binary" + how, said
}
