package mutants

// inContext has the bugs of context parallelism.
func inContext() []mutant {
	const (
		masks       = "^TestContextMasks$"
		conformance = "^TestConformance$"
	)
	return []mutant{{
		bug: "ranks that share sequences hold all that ZeRO shards", how: "in the program",
		file: "partition/propagate.go",
		old:  "return a.Name == AxisDP || a.Name == AxisCP", new: "return a.Name == AxisDP",
		pkg: ".", run: "^TestZeROBytes$",
	}, {
		bug: "data-parallel ranks hold all of their part", how: "ZeRO shards over ranks that share sequences alone",
		file: "partition/propagate.go",
		old:  "if sharesReplicas(a) && a.Size > 1 {", new: "if a.Name == AxisCP && a.Size > 1 {",
		pkg: ".", run: "^TestContextZeROTraffic$",
	}, {
		bug: "a floor forgets what ZeRO shards", how: "over ranks that share sequences",
		file: "planner/relax.go",
		old:  "cmp.Or(o.group, s.replicas(o)) * o.cp }", new: "cmp.Or(o.group, s.replicas(o)) }",
		pkg: "./planner", run: "^TestCostIsSimulation$",
	}, {
		bug: "a floor has data-parallel ranks exchange what ranks that share sequences have shares of", how: "of parameters and gradients",
		file: "planner/relax.go",
		old:  "\t\tbytes /= int64(o.cp)\n", new: "",
		pkg: "./planner", run: "^TestGoldenPlans$",
	}, {
		bug: "a small program shards in other dimensions than the plan that it stands for", how: "over ranks that share sequences",
		file: "planner/blueprint.go",
		old:  "b.shards(p, p.ShardGroup()*p.ContextParallel())", new: "b.shards(p, p.ShardGroup())",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_44_case_53$",
	}, {
		bug: "a faster plan is missed", how: "ZeRO over ranks that share the only sequence",
		file: "planner/space.go",
		old:  "alone := o.replicas(opts)*o.cp == 1", new: "alone := o.replicas(opts) == 1",
		pkg: "./planner", run: "^TestSearchIsExact$",
	}, {
		bug: "sequence not balanced", how: "contiguous shards",
		file: "ir/fold.go",
		old:  "early, late := (part.Len+1)/2, part.Len/2", new: "early, late := part.Len, 0*part.Len",
		pkg: ".", run: "^TestContextIsBalanced$",
	}, {
		bug: "non-causal mask", how: "rows of a folded sequence taken for positions",
		file: "runtime/cpu/kernel/attention.go",
		old:  "queryTile{u, g, run.Row + i, run.Pos + i,", new: "queryTile{u, g, run.Row + i, run.Row + i,",
		pkg: "./runtime/cpu", run: "^TestConformance$/^3_threads$/^ops$/^attention_kv$",
	}, {
		bug: "key gradients of another head left in", how: "sums by position not cleared",
		file: "runtime/cpu/kernel/attention_grad.go",
		old:  "\t\t\tclear(dk)\n", new: "",
		pkg: "./runtime/cpu", run: "^TestConformance$/^1_thread$/^ops$/^attention_kv_grad$",
	}, {
		bug: "dropout mask of rows instead of positions", how: "activations are not told of the fold",
		file: "partition/context.go",
		old:  "attr.Fold, attr.Dim = c.parts, dim", new: "attr.Dim = dim",
		pkg: ".", run: masks,
	}, {
		bug: "dropout mask of rows instead of positions", how: "runs of a folded sequence start where the part does",
		file: "runtime/cpu/context.go",
		old:  "part.Offset[attr.Dim], part.Local[attr.Dim] = run.Pos, run.Len", new: "part.Offset[attr.Dim], part.Local[attr.Dim] = run.Row, run.Len",
		pkg: "./runtime/cpu", run: "^TestConformance$/^1_thread$/^ops$/^dropout$",
	}, {
		bug: "work repeated by ranks that share a sequence", how: "activations gathered where that is cheap",
		file: "partition/rulecost.go",
		old:  "return !t.sig.Dims[t.sig.Args[i][from.Dim]].Frozen", new: "return false",
		pkg: ".", run: "^TestContextTraffic$",
	}, {
		bug:  "logits in the order of a folded sequence",
		file: "partition/context.go",
		old:  "g.Outputs[i].Value = c.unfold(g, o.Value, dim)", new: "g.Outputs[i].Value, _ = o.Value, c.unfold(g, o.Value, dim)",
		pkg: ".", run: "^TestContextEvaluation$",
	}}
}
