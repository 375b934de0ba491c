package mutants

// inAdapters has the bugs of models that are frozen beside adapters.
func inAdapters() []mutant {
	const run = "^TestAdapters$"
	return []mutant{{
		bug:  "frozen weights are trained",
		file: "trace/trace.go",
		old:  "!attr.State && !attr.Frozen {", new: "!attr.State {",
		pkg: "./models/gpt", run: "^TestAdaptersAlone$",
	}, {
		bug: "adapters are not scaled", how: "in training",
		file: "models/gpt/lora.go",
		old:  "t.Linear(t.Scale(low, m.loraScale), b,", new: "t.Linear(low, b,",
		pkg: "./train", run: run,
	}, {
		bug: "adapters are not scaled", how: "where they become part of the weights",
		file: "checkpoint/fold.go",
		old:  "adapter.Factor*x", new: "x",
		pkg: "./train", run: run,
	}, {
		bug:  "adapters begin with something else than what the model computes",
		file: "models/gpt/lora.go",
		old:  "trace.ParamAttr{Init: trace.InitZeros, Decay: true}", new: "trace.ParamAttr{Init: trace.InitNormal, Std: std, Decay: true}",
		pkg: "./train", run: run,
	}, {
		bug:  "a file has the weights without what adapters have learned",
		file: "checkpoint/weights.go",
		old:  "readFloats(Folded(from, cfg), p,", new: "readFloats(from, p,",
		pkg: "./train", run: run,
	}, {
		bug: "adapters are left out", how: "where text is written",
		file: "models/gpt/step.go",
		old:  "m := &model{Config: cfg, adapted: cfg.Adapted()}", new: "m := &model{Config: cfg}",
		pkg: "./train", run: run,
	}, {
		bug: "adapters of another model are taken for its own", how: "beside other layers",
		file: "models/gpt/config.go",
		old:  `strings.Join(c.Adapted(), " "), strings.Join(other.Adapted(), " ")`, new: `"", ""`,
		pkg: "./models/gpt", run: "^TestAdaptersOfAnotherModel$",
	}, {
		bug: "the first block of a frozen model is not like the others", how: "it has no gradient of what it reads",
		file: "models/gpt/step.go",
		old:  "weights[:len(weights):len(weights)], m.stream)", new: "weights[:len(weights):len(weights)])",
		pkg: "./partition", run: "^TestWeightGradsOfFrozenWeights$",
	}, {
		bug: "the first block of a frozen model is not like the others", how: "a zero-bubble schedule puts off the gradient of what it reads",
		file: "partition/weightgrad.go",
		old:  "n.Op == ir.OpRecv || !read[id]\n", new: "n.Op == ir.OpRecv\n",
		pkg: "./partition", run: "^TestWeightGradsOfFrozenWeights$",
	}, {
		bug:  "a floor has data-parallel ranks exchange frozen weights",
		file: "planner/relax.go",
		old:  "case v.frozen:", new: "case false:",
		pkg: "./planner", run: "^TestCostOfAdaptersIsSimulation$",
	}, {
		bug:  "a rank of less than there are rows is cut over them",
		file: "planner/grid.go",
		old:  "if shape[at] >= rows {", new: "if shape[at] > 0 {",
		pkg: "./planner", run: "^TestGridOfNarrowAdapters$",
	}, {
		bug: "a bound of blocks that recompute nothing too high", how: "keys and values are taken out after the gradient",
		file: "planner/price.go",
		old:  " || n.Op == ir.OpKeysValues\n", new: "\n",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a bound of memory above what plans take", how: "what is put off in the trunk's program is put off in all",
		file: "planner/relax.go",
		old:  "return x.from, x.to", new: "return x.From, x.To",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "the first block of a stage is not like the others", how: "a weight is gathered before the gradient comes in, and in others beside what is recomputed",
		file: "codegen/beside.go",
		old:  "for i > 0 && rearranged(nodes[i-1])", new: "for i < 0 && rearranged(nodes[i-1])",
		pkg: "./planner", run: "^FuzzCosts$",
	}}
}
