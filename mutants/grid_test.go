package mutants

// inGrids has those of weights that are cut over rows and columns of tensor-parallel ranks.
func inGrids() []mutant {
	const collectives, exact = "^TestGridCollectives$", "^TestGridSearchIsExact$"
	return []mutant{{
		bug: "one block does not stand for all", how: "the first of a stage slices positions between what runs beside collectives in others",
		file: "codegen/shared.go",
		old:  "case together && blocks[before.ID()] != \"\" && shared(n)", new: "case together && blocks[before.ID()] != \"\" && from < 0 && shared(n)",
		pkg: "./planner", run: "^TestCostBesideWhatBlocksShare$",
	}, {
		bug: "weights on a grid are gathered", how: "what meets a part of a weight is not cut as that is",
		file: "partition/rulecost.go",
		old:  "return w.Def.Op == ir.OpParam && to.Kind == ir.Shard && w.Spec[t.axis()] == to", new: "return w.Def.Op == ir.OpParam && to.Kind == ir.Partial && w.Spec[t.axis()] == to",
		pkg: "./partition", run: collectives,
	}, {
		bug: "gradients of weights on a grid are whole over its rows", how: "a sum over tokens costs no more than their parts",
		file: "partition/rulecost.go",
		old:  "cost += lastResort // a gradient is made directly in the shards that the rows hold", new: "cost += 0",
		pkg: "./partition", run: collectives,
	}, {
		bug: "an axis comes to a dimension before one outside of it", how: "it has to be gathered and cut again",
		file: "partition/reshard.go",
		old:  "outer := j < i && cur[j] != to[j]", new: "outer := false && cur[j] != to[j]",
		pkg: "./partition", run: "^TestNestedSlicesMove$",
	}, {
		bug: "a gradient is cut into more parts than it has", how: "over ranks of data and of tensor parallelism, along its heads",
		file: "partition/propagate.go",
		old:  "if checkSplit(pr.mesh, to, r.Type.Shape) != nil {", new: "if false {",
		pkg: "./partition", run: "^TestFewHeadsBetweenTwoAxes$",
	}, {
		bug: "a gradient is cut into more parts than it has", how: "over ranks of context and of tensor parallelism",
		file: "partition/propagate.go",
		old:  "if sharesReplicas(of) && !sharesReplicas(axis) &&", new: "if of.Name == AxisDP && axis.Name != AxisDP &&",
		pkg: "./partition", run: "^TestFewRowsBetweenTwoAxes$",
	}, {
		bug: "a gradient of 16 bits cut by too few heads has no way to be reduced", how: "a cast is made where its operand lies",
		file: "partition/rulecost.go",
		old:  "return !reduced && !roomless", new: "_ = roomless\n\treturn !reduced",
		pkg: "./partition", run: "^TestFewHeadsBetweenTwoAxes$",
	}, {
		bug: "a faster grid is missed", how: "the search has none but what are asked for",
		file: "planner/grid.go",
		old:  "range gridRows(o.tp) {", new: "range gridRows(o.tp)[:0] {",
		pkg: "./planner", run: exact,
	}, {
		bug: "tokens are exchanged for features once a stage", how: "the exchange of the gradient that a stage receives is not its last block's",
		file: "planner/blueprint.go",
		old:  "n.Op == ir.OpAllGather || n.Op == ir.OpAllToAll || n.Op == ir.OpSlice && of", new: "n.Op == ir.OpAllGather || n.Op == ir.OpSlice && of",
		pkg: "./planner", run: exact,
	}, {
		bug: "the checker's space has no grid", how: "regions of grids are none of it",
		file: "planner/declared.go",
		old:  "searched && rows*rows <= cut.tp", new: "searched && rows*rows < cut.tp",
		pkg: "./planner", run: "^TestCertificateOptions$",
	}}
}
