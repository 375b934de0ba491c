//go:build mutants

package mutants

// inThePrograms has the bugs that the mixed integer programs show: of the search, for which
// cbc or glpsol must be installed, and of the programs themselves.
func inThePrograms() []mutant {
	const run = "^TestPrograms$"
	return []mutant{{
		bug: "cuts with a slow first stage are left out", how: "the way of micro-batch 0 counts twice",
		file: "planner/cut.go",
		old:  "c.descend(stage+1, left-n, before+c.bounds", new: "c.descend(stage+1, left-n, 2*before+c.bounds",
		pkg: "./planner/lp", run: run,
	}, {
		bug: "a send waits for one micro-batch to leave", how: "whatever room the receiver has",
		file: "planner/lp/events.go",
		old:  "before := microBatch - t.room", new: "before := microBatch - 1",
		pkg: "./planner/lp", run: run,
	}, {
		bug: "nobody waits for the communication stream at the end of a pass", how: "in the program",
		file: "planner/lp/body.go",
		old:  "since: latest(now, stream)", new: "since: now",
		pkg: "./planner/lp", run: run,
	}, {
		bug: "the limit of memory is twice what it is", how: "in the program",
		file: "planner/lp/write.go",
		old:  "decimal(p.options.Limit, 6)", new: "decimal(2*p.options.Limit, 6)",
		pkg: "./planner/lp", run: run,
	}}
}
