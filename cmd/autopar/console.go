package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// console is what commands print to: results on stdout, everything else on
// stderr.
type console struct {
	stdout, stderr io.Writer
	lost           error // the first error of printing a result
	quiet, verbose bool
	// color and progress are true only if the streams are terminals.
	color, progress bool
}

func newConsole(stdout, stderr io.Writer) *console {
	c := &console{stdout: stdout, stderr: stderr}
	c.color = isTerminal(stdout) && isTerminal(stderr) && os.Getenv("NO_COLOR") == ""
	c.progress = isTerminal(stderr)
	return c
}

func (c *console) configure(g Globals) {
	c.quiet, c.verbose = g.Quiet, g.Verbose
	c.color = c.color && !g.NoColor
	c.progress = c.progress && !g.Quiet
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// printf prints a result.
func (c *console) printf(format string, args ...any) {
	_, err := fmt.Fprintf(c.stdout, format, args...)
	c.lose(err)
}

// lose records that a result could not be printed, if err is not nil. The command then fails, whatever else it did.
func (c *console) lose(err error) {
	if err != nil && c.lost == nil {
		c.lost = fmt.Errorf("results are lost: %w", err)
	}
}

// note prints a line about what is going on, unless the user wants results only.
func (c *console) note(format string, args ...any) {
	if !c.quiet {
		fmt.Fprintf(c.stderr, format+"\n", args...)
	}
}

// failure prints an error, which ends the program or a part of what it does.
func (c *console) failure(format string, args ...any) {
	fmt.Fprintf(c.stderr, "%s %s\n", c.paint("31;1", "autopar:"), fmt.Sprintf(format, args...))
}

// heading prints a line above a table.
func (c *console) heading(format string, args ...any) {
	c.printf("%s\n", c.paint("1", fmt.Sprintf(format, args...)))
}

func (c *console) paint(code, text string) string {
	if !c.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// json prints a value as indented JSON.
func (c *console) json(v any) error {
	e := json.NewEncoder(c.stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table prints rows of cells in aligned columns, indented by two.
func (c *console) table(rows [][]string) {
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			switch {
			case i == 0:
				fmt.Fprint(w, "  ", cell)
			default:
				fmt.Fprint(w, "\t", cell)
			}
		}
		fmt.Fprintln(w)
	}
	c.lose(w.Flush())
}

// percentText prints a fraction as percent.
func percentText(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) }

// bar draws progress towards a total on a terminal, and nothing elsewhere.
type bar struct {
	*progressbar.ProgressBar
	from int // the position where it began: the pace is that of what came after
}

func (c *console) bar(total int, what string) bar {
	if !c.progress {
		return bar{}
	}
	b := progressbar.NewOptions(total,
		progressbar.OptionSetWriter(c.stderr),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionUseANSICodes(c.color),
	)
	b.StartWithoutRender()
	return bar{ProgressBar: b}
}

// set moves the bar to a position.
func (b bar) set(n int) {
	if b.ProgressBar != nil {
		b.Set(n - b.from)
	}
}

// clear removes the bar from the screen, so that a line can be printed. The next set draws it again.
func (b bar) clear() {
	if b.ProgressBar != nil {
		b.Clear()
	}
}
