package mutants

// inTheExchange has the bugs of what tensor-parallel ranks exchange beside kernels.
func inTheExchange() []mutant {
	const accepted = "^TestVerifyAcceptsOverlapTP$"
	return []mutant{{
		bug: "memory freed while it is exchanged", how: "beside kernels",
		file: "codegen/overlap.go",
		old:  "last[i] = max(last[i], i+instrs[i].Beside)", new: "last[i] = max(last[i], i)",
		pkg: "./codegen", run: accepted,
	}, {
		bug: "what is exchanged is read too early", how: "by a kernel beside it",
		file: "codegen/beside.go",
		old:  " || slices.Contains(n.Args, nodes[i].Results[0]):", new: ":",
		pkg: "./codegen", run: accepted,
	}, {
		bug: "exchanged before it is made", how: "the collective goes back too far",
		file: "codegen/beside.go",
		old:  "nodes[at-1] == c.Args[0].Def ||", new: "c == nil ||",
		pkg: "./codegen", run: accepted,
	}, {
		bug: "exchanged before it is made", how: "the product that makes it is put off",
		file: "codegen/beside.go",
		old:  "late == nil || readsAny(nodes[i], late)", new: "late == nil",
		pkg: "./codegen", run: accepted,
	}, {
		bug: "a gradient is read before it is made", how: "its product is put off alone",
		file: "codegen/beside.go",
		old:  "if i > 0 && !readsAny(n, late) {", new: "if i > 0 {",
		pkg: "./codegen", run: accepted,
	}, {
		bug: "the first block of a stage runs unlike the others", how: "products are put off past where its gradient is received",
		file: "codegen/beside.go",
		old:  "&& !enter[b.nodes[to]]", new: "&& enter != nil",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_13$",
	}, {
		bug: "a kernel disturbs what runs beside it", how: "nobody looks",
		file: "codegen/checkstream.go",
		old:  "for k := i + 1; k <= i+in.Beside; k++ {", new: "for k := i + 1; k < i+in.Beside; k++ {",
		pkg: "./codegen", run: "^TestBesideIsChecked$",
	}, {
		bug: "ranks go on before they have what they exchange", how: "in the simulation",
		file: "planner/sim/engine.go",
		old:  "st.now = max(st.now, f.end)", new: "st.now += 0",
		pkg: "./planner/sim", run: "^TestMeetingRunsBeside$",
	}, {
		bug: "ranks go on before they have what they exchange", how: "on GPUs",
		file: "runtime/rank.go",
		old:  "if a.awaitExchanges > 0 {", new: "if a.awaitExchanges < 0 {",
		pkg: ".", run: "^TestReplayedParity$",
	}, {
		bug: "what is exchanged beside a product costs nothing", how: "however long it takes",
		file: "planner/price.go",
		old:  "max(all-price.InOrder(instrs[i+1:][:in.Beside], mesh, at), price.Slows(all))", new: "price.Slows(all)",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_12$",
	}, {
		bug: "floor above what plans take", how: "nothing is hidden by products in it",
		file: "planner/beside.go",
		old:  "return kernels(prices, in.beside, mesh)", new: "return kernels(prices, nil, mesh)",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_12$",
	}, {
		bug: "floor above what plans take", how: "what hides nothing in the trunk's program hides nothing in any",
		file: "planner/floor.go",
		old:  "x.putOff, x.beside = true, w.mayBePutOff(instrs, i)", new: "x.putOff = false",
		pkg: "./planner", run: "^TestFloorsOfLargeModels$",
	}, {
		bug: "floor above what plans take", how: "tensor-parallel ranks reduce the whole of gradients that they share",
		file: "planner/relax.go",
		old:  "o.zero > 0 && v.value.Spec[tp].Kind != ir.Shard &&", new: "o.zero > 0 && v.value.Spec[tp].Kind == ir.Replicate &&",
		pkg: "./planner", run: "^TestFloorsOfLargeModels$",
	}, {
		bug: "every block gathers the table that is cut by columns", how: "what a block reads is always gathered again by the next",
		file: "planner/blueprint.go",
		old:  "read[n.Results[0].ID] && !enters(n)", new: "read[n.Results[0].ID] && (enters(n) || true)",
		pkg: "./planner", run: "^TestColumnsOfATableAreGatheredOnce$",
	}, {
		bug: "the price of a plan is that of another", how: "programs of more tensor-parallel ranks stand for those of fewer",
		file: "planner/blueprint.go",
		old:  "x.plan.TP*p.Rows() <= p.TP*x.plan.Rows()", new: "x.plan.TP*p.Rows() > 0",
		pkg: "./planner", run: "^TestFloorsOfLargeModels$",
	}, {
		bug: "weights are gathered while nothing else is done", how: "a parameter stands between products",
		file: "codegen/shared.go",
		old:  "	b.leavesFirst()\n", new: "",
		pkg: "./planner", run: "^TestFloorsOfLargeModels$",
	}, {
		bug: "floor above what plans take", how: "it has recomputation add what zero-bubble schedules do not hide",
		file: "planner/floor.go",
		old:  "return schedule.SplitsBackward() }", new: "return schedule == \"\" }",
		pkg: "./planner", run: "^TestRecomputationInOrder$",
	}}
}
