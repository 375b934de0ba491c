// Package mutants plants bugs in the sources, one at a time, and demands that a
// test turns red. Each is a bug that shipped somewhere: see table_test.go.
//
//	go test -tags mutants -timeout 3h -v ./mutants
//	go test -tags mutants -v ./mutants -run 'TestMutants/.*p2p'
//
// It works in copies of the tree, on as many mutants at a time as go test is given
// with -parallel, and prints which test kills which mutant. It fails on a mutant that
// no test notices, and also, because they would prove nothing, on one that does not
// apply any more, that does not compile, and on a test that is red without it.
// It takes long, so it hides behind a build tag; that the table is of this tree
// is tested without. A row is cheapest where it names one test, or one seed of it.
package mutants

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutant is one planted bug.
type mutant struct {
	bug      string // what is wrong
	how      string // how it comes about; "" where there is one way only
	file     string // relative to the module
	old, new string // old occurs once in file
	pkg      string // package of the tests that must turn red
	run      string // those tests, as go test -run has them
}

func (m mutant) name() string {
	if m.how == "" {
		return m.bug
	}
	return m.bug + ": " + m.how
}

// plant returns the file of a tree that has the mutant, as it is and with the bug.
func (m mutant) plant(tree string) (path string, source, bug []byte, err error) {
	path = filepath.Join(tree, m.file)
	if source, err = os.ReadFile(path); err != nil {
		return "", nil, nil, err
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return "", nil, nil, fmt.Errorf("the mutant no longer applies: %s has %d times\n%s", m.file, n, m.old)
	}
	return path, source, []byte(strings.Replace(string(source), m.old, m.new, 1)), nil
}

// tests are the names of the tests to run, without those of subtests.
func (m mutant) tests() (names []string) {
	for _, name := range strings.Split(m.run, "|") {
		name, _, _ = strings.Cut(name, "/")
		names = append(names, strings.Trim(name, "^$"))
	}
	return names
}

// TestTableIsOfThisTree holds what the table names against the sources: each text
// stands once where it is said to, and the tests are there.
func TestTableIsOfThisTree(t *testing.T) {
	tests := map[string]string{} // package -> the text of its tests
	listed := map[string]bool{}
	for _, m := range mutants() {
		t.Run(m.name(), func(t *testing.T) {
			require.False(t, listed[m.name()], "there are two of this name")
			listed[m.name()] = true
			_, source, bug, err := m.plant("..")
			require.NoError(t, err)
			require.NotEqual(t, string(source), string(bug))
			if tests[m.pkg] == "" {
				files, err := filepath.Glob(filepath.Join("..", m.pkg, "*_test.go"))
				require.NoError(t, err)
				for _, file := range files {
					text, err := os.ReadFile(file)
					require.NoError(t, err)
					tests[m.pkg] += string(text)
				}
			}
			for _, name := range m.tests() {
				require.True(t, strings.Contains(tests[m.pkg], "\nfunc "+name+"(t *testing.T)") || strings.Contains(tests[m.pkg], "\nfunc "+name+"(f *testing.F)"), "%s has no %s", m.pkg, name)
			}
		})
	}
}
