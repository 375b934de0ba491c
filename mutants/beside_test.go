package mutants

// inBeside is what runs beside kernels, how much it delays them, and what bounds know of that.
func inBeside() []mutant {
	return []mutant{{
		bug: "passes wait for reductions of gradients", how: "that are cast before they are added up",
		file: "codegen/overlap.go",
		old:  "return n.Op == ir.OpCast && n.Phase != ir.Update && len(readers) > 0", new: "return n.Op == ir.OpCast && n.Phase == ir.Update && len(readers) > 0",
		pkg: "./codegen", run: "^TestOverlapReducesEach$",
	}, {
		bug: "a sum is reduced further before it is complete", how: "with what its block reduces in every micro-batch",
		file: "codegen/overlap.go",
		old:  "if in.delayed {", new: "if in.delayed && n.Op == ir.OpCast {",
		pkg: "./codegen", run: "^TestOverlapReducesEach$",
	}, {
		bug: "collectives slow down nothing", how: "on a stream, in the simulation",
		file: "planner/sim/engine.go",
		old:  "\t\t\t\tst.now += o.Slows\n\t\t\t\tst.op++\n", new: "\t\t\t\tst.op++\n",
		pkg: "./planner/sim", run: "^TestStreamsSlowDown$",
	}, {
		bug: "collectives slow down nothing", how: "that kernels run beside, in the simulation",
		file: "planner/sim/engine.go",
		old:  "\tst.now += o.Slows\n\tmembers", new: "\tmembers",
		pkg: "./planner/sim", run: "^TestStreamsSlowDown$",
	}, {
		bug: "collectives slow down nothing", how: "in the price of a plan",
		file: "planner/flow.go",
		old:  "\tr.now.add(r.slows(t))\n", new: "",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_12$",
	}, {
		bug: "collectives slow down nothing", how: "in parts of products",
		file: "planner/pieces.go",
		old:  "second + max(prices[0].Slows(first), first-second)", new: "second + max(0, first-second)",
		pkg: "./planner", run: "^TestTrunksTellWhatPartsTake$",
	}, {
		bug: "kernels lose the rate that they keep", how: "beside a collective",
		file: "planner/cost/time.go",
		old:  "(1 - m.efficiency.Beside) * float64", new: "m.efficiency.Beside * float64",
		pkg: "./planner/cost", run: "^TestSlows$",
	}, {
		bug: "a stream outlasts a body by more than it does", how: "which it delays",
		file: "planner/outlast.go",
		old:  "\tt.order += times * h.slow\n", new: "",
		pkg: "./planner", run: "^TestOutlasts$",
	}, {
		bug: "a body waits for its first gathers longer than it does", how: "which delay it",
		file: "planner/outlast.go",
		old:  "return least - next", new: "return least - 0*next",
		pkg: "./planner", run: "^TestWaitsAreNoLonger$",
	}, {
		bug: "a body waits for its first gathers longer than it does", how: "while it does what comes before the second",
		file: "planner/outlast.go",
		old:  "lead -= x.time", new: "lead -= 0 * x.time",
		pkg: "./planner", run: "^TestWaitsAreNoLonger$",
	}, {
		bug: "a block takes least where it keeps all", how: "in the bound of a cut",
		file: "planner/bound.go",
		old:  "return slices.Min(l.block[:])", new: "return l.block[kept]",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "floor above what plans take", how: "a pass waits for the first block's gather when it has the head to do",
		file: "planner/waits.go",
		old:  "max(first, x.regather)+max(0, n-1)*x.regather+n*x.reduce,", new: "first+n*x.regather+n*x.reduce,",
		pkg: "./planner", run: "^TestWaitsAreNoLonger$",
	}, {
		bug: "floor above what plans take", how: "a pass that waits is delayed as well",
		file: "planner/waits.go",
		old:  "\t\torder-x.slow.gather,\n", new: "\t\torder,\n",
		pkg: "./planner", run: "^TestWaitsAreNoLonger$",
	}, {
		bug: "floor above what plans take", how: "a stage has the buffers of neighbours of its only block",
		file: "planner/memory.go",
		old:  "if count > 2 {", new: "if count > 0 {",
		pkg: "./planner", run: "^TestCostIsSimulation$|^FuzzCosts$",
	}, {
		bug: "torchtitan reduces gradients in 16 bits", how: "as their type is",
		file: "measured/software.go",
		old:  "\t\ts.Reduce = 4\n", new: "\t\ts.Reduce = 2\n",
		pkg: "./measured", run: "^TestSoftwareByRule$",
	}, {
		bug: "a stage waits for its gradient until others have reduced theirs further", how: "beside blocks",
		file: "codegen/overlap.go",
		old:  "b.prog.Plan.Chunks() == 1 && slices", new: "b.prog.Plan.Chunks() == 0 && slices",
		pkg: "./codegen", run: "^TestOverlapSendsBeforeItReducesFurther$",
	}, {
		bug: "a stage waits for its gradient until others have reduced theirs further", how: "in the price of a plan",
		file: "planner/price.go",
		old:  "f.lastly = s.plan.Chunks() == 1 && slices", new: "f.lastly = s.plan.Chunks() == 0 && slices",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a bound takes more than the step", how: "what is reduced further beside blocks is done at the end as well",
		file: "planner/outlast.go",
		old:  "if further := f.handed(s.further); !f.lastly {", new: "if further := f.handed(s.further); f.lastly || !f.lastly {",
		pkg: "./planner", run: "^TestOutlasts$",
	}, {
		bug: "a bound takes more than the step", how: "what the body still adds up is done already when it hands over what reduces the next",
		file: "planner/outlast.go",
		old:  "-s.sums-t.before+t.after", new: "-s.sums+t.after",
		pkg: "./planner", run: "^TestOutlastsWithSums$",
	}, {
		bug: "a bound takes more than the step", how: "sums follow reductions that the body does not wait for",
		file: "planner/outlast.go",
		old:  "&& len(s.further) == 0 && !slices.Contains(s.late, true)", new: "",
		pkg: "./planner", run: "^TestOutlastsWithSums$",
	}, {
		bug: "a proof leaves a wide gap", how: "passes for weight gradients end before their stream",
		file: "planner/bound.go",
		old:  "l.weight[whole]+weight, n, r)", new: "l.weight[whole]+0*weight, n, r)",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "a proof leaves a wide gap", how: "backward passes end before their stream",
		file: "planner/bound.go",
		old:  "w.backward[whole].at(n, r), backward),", new: "w.backward[whole].at(n, r), 0*backward),",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "the first block waits where others do not", how: "positions stand between its product and what gathers the result in parts",
		file: "codegen/shared.go",
		old:  "!p.OverlapTP && p.TPPieces <= 1", new: "!p.OverlapTP",
		pkg: "./planner", run: "^FuzzCosts$",
	}}
}
