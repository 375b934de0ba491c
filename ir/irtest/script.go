package irtest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the output of golden scripts")

// Case is one case of a golden script.
type Case struct {
	Command string
	Args    map[string]string // key=value, or a bare key with an empty value
	Input   string            // the lines before ----, each ending in a newline
	Output  string            // the lines after it, up to a blank line
	Where   string            // file:line, for messages

	comments []string // blank and # lines before the case
	header   string   // the command line as written
}

// Has reports whether an argument is given.
func (c Case) Has(key string) bool {
	_, ok := c.Args[key]
	return ok
}

// Command computes the output of a case. It fails the test on misuse; an error
// that the case is about is part of the output.
type Command func(t *testing.T, c Case) string

// RunScripts runs every script that matches the pattern, one subtest each. A
// script is a text file of cases
//
//	# a comment
//	command key=value flag
//	input lines
//	----
//	output lines
//
// with a blank line after each output. An output other than the recorded one is
// an error, or, with the flag -update, is recorded.
func RunScripts(t *testing.T, pattern string, commands map[string]Command) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no script matches %s (%v)", pattern, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) { runScript(t, path, commands) })
	}
}

func runScript(t *testing.T, path string, commands map[string]Command) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cases, trailer, err := parseScript(path, string(text))
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		command := commands[c.Command]
		if command == nil {
			t.Fatalf("%s: unknown command %q", c.Where, c.Command)
		}
		got := command(t, c)
		if got != "" && !strings.HasSuffix(got, "\n") {
			got += "\n"
		}
		if strings.Contains("\n"+got, "\n\n") {
			t.Fatalf("%s: output has a blank line, which ends a case:\n%s", c.Where, got)
		}
		if got != c.Output && !*update {
			t.Errorf("%s: %s\ngot:\n%swant:\n%s", c.Where, c.header, got, c.Output)
		}
		cases[i].Output = got
	}
	if *update {
		if err := os.WriteFile(path, []byte(formatScript(cases, trailer)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// parseScript returns the cases and the comments after the last.
func parseScript(path, text string) (cases []Case, trailer []string, err error) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i < len(lines); {
		if lines[i] == "" || strings.HasPrefix(lines[i], "#") {
			trailer = append(trailer, lines[i])
			i++
			continue
		}
		c := Case{Where: fmt.Sprintf("%s:%d", path, i+1), comments: trailer, header: lines[i], Args: map[string]string{}}
		trailer = nil
		fields := strings.Fields(lines[i])
		c.Command = fields[0]
		for _, f := range fields[1:] {
			key, value, _ := strings.Cut(f, "=")
			c.Args[key] = value
		}
		for i++; i < len(lines) && lines[i] != "----"; i++ {
			c.Input += lines[i] + "\n"
		}
		if i == len(lines) {
			return nil, nil, fmt.Errorf("%s: no ---- after the input", c.Where)
		}
		for i++; i < len(lines) && lines[i] != ""; i++ {
			c.Output += lines[i] + "\n"
		}
		i++ // the blank line
		cases = append(cases, c)
	}
	return cases, trailer, nil
}

func formatScript(cases []Case, trailer []string) string {
	var b strings.Builder
	for i, c := range cases {
		if i > 0 {
			b.WriteString("\n")
		}
		for _, line := range c.comments {
			b.WriteString(line + "\n")
		}
		b.WriteString(c.header + "\n" + c.Input + "----\n" + c.Output)
	}
	for i, line := range trailer {
		if i == 0 {
			b.WriteString("\n")
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
