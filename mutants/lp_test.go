package mutants

// inThePrograms has the bugs of the mixed integer programs, one of the search that solvers
// find too, and bugs in Galvatron's terms. None takes a solver to be seen.
func inThePrograms() []mutant {
	return []mutant{{
		bug: "cuts with a slow first stage are left out", how: "the way of micro-batch 0 counts twice",
		file: "planner/bound.go",
		old:  "if before.time += b.through[stage].at(n, r); stage == 0 {", new: "if before.time += before.time + b.through[stage].at(n, r); stage == 0 {",
		pkg: "./planner", run: "^TestSearchIsExact$",
	}, {
		bug: "a send waits for one micro-batch to leave", how: "whatever room the receiver has",
		file: "planner/lp/events.go",
		old:  "before := microBatch - t.room", new: "before := microBatch - 1",
		pkg: "./planner/lp", run: "^TestPrograms$/^pipeline_alone$",
	}, {
		bug: "nobody waits for the communication stream at the end of a pass", how: "in the program",
		file: "planner/lp/body.go",
		old:  "since: latest(now, stream)", new: "since: now",
		pkg: "./planner/lp", run: "^TestPrograms$/^overlapped_ZeRO$",
	}, {
		bug: "the limit of memory is twice what it is", how: "in the program",
		file: "planner/lp/write.go",
		old:  "decimal(p.limits[at], 6)", new: "decimal(2*p.limits[at], 6)",
		pkg: "./planner/lp", run: "^TestMemoryRows$",
	}, {
		bug: "every layer pays for the transfer between stages", how: "in Galvatron's terms",
		file: "planner/galvatron/model.go",
		old:  "* m.PointToPoint[s.PP] / float64(m.Layers)", new: "* m.PointToPoint[s.PP]",
		pkg: "./planner/galvatron", run: "^TestCostIsGalvatrons$",
	}, {
		bug: "a mix that takes more memory dominates", how: "in the search of Galvatron's space",
		file: "planner/galvatron/search.go",
		old:  " && x.memory <= y.memory", new: "",
		pkg: "./planner/galvatron", run: "^TestSearchIsExact$",
	}, {
		bug:  "a plan that the LP cannot state is not shown",
		file: "cmd/autopar/plan.go",
		old:  "err = c.writeLP(con, cfg, cluster, options, doc)", new: "if err := c.writeLP(con, cfg, cluster, options, doc); err != nil {\n\t\t\treturn err\n\t\t}",
		pkg: "./cmd/autopar", run: "^TestScripts$/^lp$",
	}}
}
