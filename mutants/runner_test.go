//go:build mutants

package mutants

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
)

// A run of a test without a mutant may take longest. With one it may take as
// much longer as extra: a mutant that makes ranks wait for ever is dead then.
const (
	longest = 5 * time.Minute
	extra   = 30 * time.Second
)

func TestMutants(t *testing.T) {
	tree := copyTree(t)
	var table bytes.Buffer
	tab := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "mutant\tkilled by\tseconds")
	type soundness struct {
		err  error
		took time.Duration
	}
	sound := map[[2]string]soundness{} // package and tests -> how they end without a mutant
	for _, m := range mutants() {
		t.Run(m.name(), func(t *testing.T) {
			key := [2]string{m.pkg, m.run}
			if _, known := sound[key]; !known {
				begin := time.Now()
				err := tree.green(m)
				sound[key] = soundness{err, time.Since(begin)}
			}
			require.NoError(t, sound[key].err, "without the mutant")

			begin := time.Now()
			killer, said, err := tree.kill(m, sound[key].took+extra)
			seconds := time.Since(begin).Seconds()
			verdict := killer
			if err != nil {
				verdict = "ERROR"
			} else if killer == "" {
				verdict = "SURVIVES " + m.pkg + " " + m.run
			}
			fmt.Fprintf(tab, "%s\t%s\t%.1f\n", m.name(), verdict, seconds)
			t.Logf("%s (%.1f s)\n%s", verdict, seconds, said)
			require.NoError(t, err)
			require.NotEmpty(t, killer, "%s of %s pass with the bug", m.run, m.pkg)
		})
	}
	require.NoError(t, tab.Flush())
	t.Logf("\n%s", &table)
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
func (tr *tree) kill(m mutant, limit time.Duration) (killer, said string, err error) {
	path, source, bug, err := m.plant(tr.dir)
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(path, source, 0o644)) }()
	if err := os.WriteFile(path, bug, 0o644); err != nil {
		return "", "", err
	}
	if err := tr.compile(m.pkg); err != nil {
		return "", "", fmt.Errorf("the mutant %w", err)
	}
	red, output := tr.test(m, limit)
	if !red {
		return "", "", nil
	}
	killer, said = culprit(output)
	return killer, said, nil
}

// green fails unless the tests exist and pass.
func (tr *tree) green(m mutant) error {
	if err := tr.compile(m.pkg); err != nil {
		return fmt.Errorf("%s %w", m.pkg, err)
	}
	red, output := tr.test(m, longest)
	if red {
		return fmt.Errorf("%s is red in %s:\n%s", m.run, m.pkg, output)
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
func (tr *tree) compile(pkg string) error {
	build := exec.Command("go", "test", "-c", "-trimpath", "-o", tr.binary, pkg)
	build.Dir = tr.dir
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("does not compile: %w\n%s", err, output)
	}
	return nil
}

// test runs tests of the package compiled last.
func (tr *tree) test(m mutant, limit time.Duration) (red bool, output string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, tr.binary, "-test.v", "-test.failfast", "-test.run="+m.run, "-test.timeout="+limit.String())
	cmd.Dir = filepath.Join(tr.dir, m.pkg)
	text, err := cmd.CombinedOutput()
	return err != nil, string(text)
}

var (
	failed  = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	began   = regexp.MustCompile(`(?m)^=== RUN +([^\s/]+)`)
	seed    = regexp.MustCompile(`seed \d+$`)
	tooLong = regexp.MustCompile(`(?m)^panic: test timed out`)
	reason  = regexp.MustCompile(`(?m)^(panic: .*|\s+\w+\.go:\d+: \S.*|\s+(Error|Messages):.*(\n\s+\t.*){0,3})$`)
)

// culprit names the test that failed, or was running when all came to an end,
// and quotes its first reasons.
func culprit(output string) (test, said string) {
	reasons := slices.DeleteFunc(reason.FindAllString(output, -1), seed.MatchString)
	said = strings.Join(reasons[:min(3, len(reasons))], "\n")
	if m := failed.FindStringSubmatch(output); m != nil {
		return m[1], said
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
