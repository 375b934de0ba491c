package mutants

// inTheFinals has the bugs of what is said of plans that were found, without compiling
// them.
func inTheFinals() []mutant {
	return []mutant{{
		bug: "the breakdown is of the rank that waits most", how: "of a plan that is not compiled",
		file: "planner/final.go",
		old:  "if busy[i] > busy[at] {", new: "if busy[i] < busy[at] {",
		pkg: "./planner", run: "^TestFinishIsTheProgram$",
	}, {
		bug: "lives that go from block to block are not repeated", how: "those of the copies end where they began",
		file: "codegen/repeat.go",
		old:  "next.to, ok[1] = place(l.to, by+c)", new: "next.to, ok[1] = place(l.to, by)",
		pkg: "./planner", run: "^TestFewBlocksShowMany$",
	}, {
		bug: "what blocks keep does not grow with them", how: "but for weights",
		file: "codegen/repeat.go",
		old:  "r.Block == block });", new: "r.Block == block && n.Op == ir.OpParam });",
		pkg: "./planner", run: "^TestFewBlocksShowMany$",
	}, {
		bug: "chunks that are not compiled keep nothing", how: "for micro-batches in flight",
		file: "codegen/repeat.go",
		old:  "slices.Repeat(r.Chunks[like.Block:][:1], like.More)...", new: "make([]Chunk, like.More)...",
		pkg: "./planner", run: "^TestFewChunksShowMany$",
	}, {
		bug: "chunks that are not compiled have no weights", how: "nor what else lasts",
		file: "codegen/repeat.go",
		old:  "_, t.ordinal[b] = p.Plan.Position(of)", new: "t.ordinal[b], _ = p.Plan.Position(of)",
		pkg: "./planner", run: "^TestFewChunksShowMany$",
	}}
}
