package lp

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/autopar/autopar/planner/cost"
)

// This file writes a program in CPLEX's LP format.

// Name returns the name of the binary variable for a choice of a position:
// x_position_blocks_full_selective_pointwise.
func (p *Program) Name(position, choice int) string {
	x := p.Choices[position][choice]
	return fmt.Sprintf("x_%d_%d_%d_%d_%d", position, x.Blocks, x.Full, x.Selective, x.Pointwise)
}

// Digits says in which unit times are written: 10^Digits ps. They are exact all the same. Solvers compare with
// absolute tolerances, so the unit is chosen to have the longest duration between 100 and 1,000.
func (p *Program) Digits() int {
	var most cost.Picoseconds
	for i := range p.durations {
		most = max(most, slices.Max(p.durations[i].times))
	}
	digits := 0
	for ; most >= 1000; most /= 10 {
		digits++
	}
	return digits
}

// decimal returns n / 10^digits as decimal text, exactly.
func decimal(n int64, digits int) string {
	text := strconv.FormatInt(n, 10)
	if digits == 0 {
		return text
	}
	if short := digits + 1 - len(text); short > 0 {
		text = strings.Repeat("0", short) + text
	}
	whole, fraction := text[:len(text)-digits], strings.TrimRight(text[len(text)-digits:], "0")
	if fraction == "" {
		return whole
	}
	return whole + "." + fraction
}

// Write writes the program in CPLEX's LP format. Comments at its top say how to solve it; name is the file's name in
// them, and claimed the time that they say the optimum has.
func (p *Program) Write(w io.Writer, name string, claimed cost.Picoseconds) error {
	out := &lines{Writer: bufio.NewWriter(w)}
	digits := p.Digits()
	for _, text := range []string{
		fmt.Sprintf("The choice of cuts and recomputation of %d blocks for %s, micro-batches of %d,", p.blocks, p.plan.Degrees(), p.plan.MicroBatch),
		fmt.Sprintf("schedule %s, as a mixed integer program: see package planner/lp.", p.plan.ScheduleText()),
		fmt.Sprintf("Times are in 10^%d ps, memory in 10^6 bytes.", digits),
		"x_P_N_F_S_Q = 1: position P has N blocks, F recomputed in full, then S selectively, then Q pointwise. F, B, W and U",
		"name what it does forward, backward, for weights and in the update, t_ when something is.",
		fmt.Sprintf("The planner says that the optimum is %s. To see for oneself:", decimal(int64(claimed), digits)),
		fmt.Sprintf("  cbc %s -ratioGap 0 -allowableGap 0 -solve -solution /dev/stdout", name),
		fmt.Sprintf("  glpsol --lp %s -o /dev/stdout", name),
	} {
		fmt.Fprintf(out, "\\ %s\n", text)
	}
	out.text("Minimize\n step: makespan\nSubject To\n")
	p.writeChoices(out)
	p.writeTimes(out, digits)
	out.text("Binary\n")
	for at, all := range p.Choices {
		for k := range all {
			out.term(" " + p.Name(at, k))
		}
		out.end("")
	}
	out.text("End\n")
	return out.Flush()
}

// writeChoices states that every position holds one choice, that together these hold all blocks, and that each fits
// into memory.
func (p *Program) writeChoices(out *lines) {
	for at, all := range p.Choices {
		out.row("one_%d", at)
		for k := range all {
			out.term(" + " + p.Name(at, k))
		}
		out.end(" = 1")
		out.row("memory_%d", at)
		for k, x := range all {
			out.term(" + " + decimal(x.Bytes, 6) + " " + p.Name(at, k))
		}
		out.end(" <= " + decimal(p.limits[at], 6))
	}
	out.row("blocks")
	for at, all := range p.Choices {
		for k, x := range all {
			out.term(fmt.Sprintf(" + %d %s", x.Blocks, p.Name(at, k)))
		}
	}
	out.end(fmt.Sprintf(" = %d", p.blocks))
}

// writeTimes states durations as sums over choices, and the order of events.
func (p *Program) writeTimes(out *lines, digits int) {
	for _, d := range p.durations {
		out.row("is_%s", d.name)
		out.term(" " + d.name)
		for k, t := range d.times {
			if t > 0 {
				out.term(" - " + decimal(int64(t), digits) + " " + p.Name(d.position, k))
			}
		}
		out.end(" = 0")
	}
	after := func(e expression) {
		if e.event >= 0 {
			out.term(" - t_" + p.events[e.event])
		}
		for _, s := range e.spend {
			out.term(fmt.Sprintf(" - %d %s", s.times, p.durations[s.duration].name))
		}
		out.end(" >= 0")
	}
	for i, x := range p.order {
		out.row("after_%d", i)
		out.term(" t_" + p.events[x.event])
		after(x.after)
	}
	for at, e := range p.ends {
		out.row("end_%d", at)
		out.term(" makespan")
		after(e)
	}
}

// lines breaks rows into lines of a length that all readers of the format accept.
type lines struct {
	*bufio.Writer
	width int
}

func (l *lines) text(s string) { l.WriteString(s) } // errors are reported by Flush

func (l *lines) row(format string, args ...any) {
	l.text(" ")
	fmt.Fprintf(l, format, args...)
	l.text(":")
}

func (l *lines) term(s string) {
	if l.width += len(s); l.width > 200 {
		l.text("\n")
		l.width = len(s)
	}
	l.text(s)
}

func (l *lines) end(s string) {
	l.text(s + "\n")
	l.width = 0
}
