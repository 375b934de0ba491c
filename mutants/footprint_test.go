package mutants

// inTheFootprint has bugs of what is told of memory beside an arena.
func inTheFootprint() []mutant {
	return []mutant{{
		bug:  "the bytes of one block stand for those of all",
		file: "planner/footprint.go",
		old:  "times = int64(blocks)", new: "_ = blocks",
		pkg: "./planner", run: "^TestFootprint$",
	}, {
		bug:  "recomputed activations counted as kept",
		file: "planner/footprint.go",
		old:  "again += count", new: "again += 0 * count",
		pkg: "./planner", run: "^TestFootprint$",
	}, {
		bug:  "plans take what devices keep free",
		file: "planner/cost/cluster.go",
		old:  "free := c.Device.Memory - c.Device.Reserve", new: "free := c.Device.Memory",
		pkg: "./planner", run: "^TestReserveIsKeptFree$",
	}, {
		bug:  "attention's scores kept for a block that is recomputed",
		file: "measured/memory.go",
		old:  "kept += float64(made.Kept) * stays", new: "kept += max(1, float64(made.Kept)) * stays",
		pkg: "./measured", run: "^TestScores$",
	}, {
		bug:  "what torch reserved is compared with all of a process",
		file: "measured/memory.go",
		old:  "return u.Total() - u.Reserve\n\t}", new: "return u.Total()\n\t}",
		pkg: "./measured", run: "^TestPublishedPeaks$",
	}}
}
