package mutants

// inRankOrders has the bugs of how the axes of a unit lie over its ranks.
func inRankOrders() []mutant {
	return []mutant{{
		bug: "ranks are found as in the usual order", how: "the inverse of another mapping",
		file: "partition/plan.go",
		old:  "p.Device(dp, at(s.CP, cp)) + at(s.TP, p.TP)", new: "p.Device(dp, at(s.TP, cp)) + at(s.CP, p.TP)",
		pkg: "./partition", run: "^TestRankOrders$",
	}, {
		bug: "the devices of a stage are a run in every order", how: "senders are counted where there are none",
		file: "planner/cost/topology.go",
		old:  "rank = u*p.PlanNGPUs + apart[d]", new: "_ = apart[d]",
		pkg: "./planner/cost", run: "^TestWaysOfAll$",
	}, {
		bug: "the devices of a unit are the first of the mesh", how: "in other orders of ranks",
		file: "planner/cost/topology.go",
		old:  "apart = append(apart, ranks.Of(device))", new: "apart = append(apart, ranks.Of(len(apart)+0*device))",
		pkg: "./planner/cost", run: "^TestWaysOfAll$",
	}, {
		bug: "groups begin again as in the usual order", how: "the most spread one is missed",
		file: "planner/cost/program.go",
		old:  `	if m.plan.RankOrder == "" {` + "\n\t\tof =", new: "	if true {\n\t\tof =",
		pkg: "./planner/cost", run: "^TestWaysOfAll$",
	}, {
		bug: "the checker's space has the usual order of ranks alone", how: "regions of others are none of it",
		file: "planner/declared.go",
		old:  "range d.rankOrders(cut) {", new: "range d.rankOrders(cut)[:1] {",
		pkg: "./planner", run: "^TestCertificateOptions$",
	}, {
		bug: "no other order of ranks is searched", how: "the data-parallel ranks of a node may be neighbours",
		file: "planner/explore.go",
		old:  "if len(found.best) > 0 && s.reorder() {", new: "if false && s.reorder() {",
		pkg: "./planner", run: "^TestRankOrderSearchIsExact$",
	}}
}
