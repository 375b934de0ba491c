package main

import (
	"fmt"
	"strings"
)

// flags are options of plan.
type flags struct {
	c    *randomRun
	args []string
}

// give adds an option with a probability in percent, and reports whether it has.
func (f *flags) give(percent int, flag string, value any) bool {
	given := f.c.IntN(100) < percent
	if given {
		f.args = append(f.args, "--"+flag, fmt.Sprint(value))
	}
	return given
}

// options returns random options of plan for a number of ranks. Few of them contradict each other.
func (c *randomRun) options(ranks int) []string {
	f := &flags{c: c}
	units, dp, cp, tp, pp := c.degrees(ranks)
	copies := units * dp
	f.give(100, "runtime-ngpus", ranks)
	if !f.give(10, "plan-ngpus", "auto") {
		f.give(100, "plan-ngpus", ranks/units)
	}
	f.give(85, "dp", dp)
	f.give(85, "pp", pp)
	often := 85
	if c.reproducible { // both 1
		often = 100
	}
	f.give(often, "tp", tp)
	context := f.give(often, "cp", cp) && cp > 1
	f.give(50, "micro-batch", 1+c.IntN((c.batch+copies-1)/copies))
	schedule := c.word("gpipe 1f1b zero-bubble")
	if c.eager && schedule != "gpipe" && c.IntN(2) == 0 {
		schedule = "eager-" + schedule
	}
	if 2*pp <= c.layers && c.IntN(3) == 0 {
		schedule = "interleaved"
	}
	if scheduled := pp > 1 && f.give(70, "schedule", schedule); !scheduled {
		schedule = ""
	}
	if schedule == "interleaved" {
		f.give(50, "interleave", 2+c.IntN(c.layers/pp-1))
	}
	if zero := c.IntN(4); copies > 1 && f.give(60, "zero", zero) && zero > 0 {
		f.give(40, "zero-group", copies/c.divisor(copies, copies/2))
	}
	if offload := f.give(25, "offload", c.word("none optimizer params")); !offload && !context && copies > 1 {
		f.give(40, "overlap", c.word("on on off"))
	}
	f.give(50, "recompute", c.word("none pointwise selective full"))
	if !context && !c.reproducible {
		f.give(20, "loss-slices", c.divisor(c.block, 16))
	}
	grid := tp%2 == 0 && tp > 2 && c.IntN(3) == 0
	if pools := f.give(12, "cluster", fmt.Sprintf("v100:%d+h100:%d", 4*c.from(1, 2), 4*c.from(1, 2))); !pools {
		f.give(80, "cluster", c.word("v100 a100-80g h100 b200"))
		if !grid {
			f.give(25, "rank-order", c.word("dp-tp-cp-pp pp-cp-dp-tp cp-pp-tp-dp"))
		}
	}
	if tp > 1 {
		f.tensorParallel(grid, copies*tp <= c.batch, schedule)
	}
	if pp > 1 {
		f.give(50, "overlap-p2p", c.word("on on off"))
	}
	return f.args
}

// tensorParallel adds options of tensor parallelism: over a grid, of which there are sequences for all ranks, or not, under
// this schedule.
func (f *flags) tensorParallel(grid, shareable bool, schedule string) {
	beside := "on off"
	if strings.HasSuffix(schedule, "zero-bubble") {
		beside = "off"
	}
	f.give(50, "overlap-tp", f.c.word(beside))
	f.give(60, "tp-pieces", 1+f.c.IntN(4))
	if batch := !grid && shareable && f.give(30, "batch-parallel", "on"); !batch {
		f.give(60, "sequence-parallel", f.c.word("on off"))
	}
	if grid {
		f.give(100, "tp-rows", 2)
		return
	}
	modules := f.c.word("none attn mlp TABLE attn+mlp attn+TABLE mlp+TABLE")
	f.give(40, "replicate", strings.ReplaceAll(modules, "TABLE", f.c.table))
}

// degrees chooses a size of units and degrees for a number of ranks. Few choices leave data-parallel ranks without a sequence.
func (c *randomRun) degrees(ranks int) (units, dp, cp, tp, pp int) {
	for range 20 {
		units, cp, tp = c.from(1, 1, c.divisor(ranks, ranks)), 1, 1
		pp = c.divisor(ranks/units, c.layers)
		if !c.reproducible {
			cp = c.from(1, 1, 1, c.divisor(ranks/units/pp, c.block/2))
			tp = c.divisor(ranks/units/pp/cp, 8)
		}
		if dp = ranks / units / pp / cp / tp; dp*units <= c.batch {
			break
		}
	}
	return units, dp, cp, tp, pp
}
