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
		old:  "next.to, ok[1] = grown.place(l.to, by+c)", new: "next.to, ok[1] = grown.place(l.to, by)",
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
	}, {
		bug: "memory of another plan", how: "of the same blocks in more chunks",
		file: "planner/final.go",
		old:  " || last.chunks != l.chunks", new: "",
		pkg: "./planner", run: "^TestOtherNumbersOfChunks$",
	}, {
		bug: "memory of another plan", how: "which sums gradients elsewhere",
		file: "planner/final.go",
		old:  " || last.sums != l.sums", new: "",
		pkg: "./planner", run: "^TestFinishIsTheProgram$",
	}, {
		bug: "memory of another plan", how: "which recomputes other blocks",
		file: "planner/final.go",
		old:  " || !slices.Equal(last.repeats, l.repeats)", new: "",
		pkg: "./planner", run: "^TestGoldenPlans$",
	}, {
		bug: "what the chunks of a rank spend is that of one", how: "as if the first and the last had no table and no loss",
		file: "planner/final.go",
		old:  "like[i] != like[stage] || ", new: "like[i] < 0 || ",
		pkg: "./planner", run: "^TestFinishIsTheProgram$",
	}, {
		bug: "buffers lie on what is still read", how: "one ends at the instruction where the next begins",
		file: "codegen/pack.go",
		old:  "buffers[order[n]].From <= end", new: "buffers[order[n]].From < end",
		pkg: "./codegen", run: "^TestVerifyAcceptsOverlap$",
	}, {
		bug: "a plan that fits is refused", how: "what has ended counts as live for the bound without a layout",
		file: "codegen/pack.go",
		old:  "for _, bytes := range change {\n\t\tlive += bytes", new: "for _, bytes := range change {\n\t\tlive += max(0, bytes)",
		pkg: "./codegen", run: "^TestPack$",
	}, {
		bug: "buffers lie on what is still read", how: "what lives longer than a stretch of time is forgotten in parts of it",
		file: "codegen/pack.go",
		old:  "if all := o.nodes[i].always; len(all) > 0 {", new: "if all := o.nodes[i].always; false {",
		pkg: "./codegen", run: "^TestPack$",
	}, {
		bug: "peak of a plan not that of its program", how: "gaps as large as a buffer are left empty",
		file: "codegen/pack.go",
		old:  "k < len(all) && all[k].at < at+size; k++", new: "k < len(all) && all[k].at <= at+size; k++",
		pkg: "./codegen", run: "^TestPack$",
	}, {
		bug: "peak of a plan not that of its program", how: "a buffer lies on another that begins in an earlier interval",
		file: "codegen/pack.go",
		old:  "return p.intervals[(b.From-p.first)/p.width : (b.To-p.first)/p.width+1]", new: "return p.intervals[(b.From-p.first)/p.width:][:1]",
		pkg: "./codegen", run: "^TestPack$",
	}, {
		bug: "a faster order of ranks is taken for the usual one", how: "nobody asks how the ends of a pipeline reach their neighbours and each other",
		file: "planner/cost/program.go",
		old:  "ends = append(ends, positions-1-at)", new: "ends = ends[:0]",
		pkg: "./planner/cost", run: "^TestSameWays$",
	}}
}
