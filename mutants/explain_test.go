package mutants

// inTheAnswers has the bugs of what explain and the robust choice say.
func inTheAnswers() []mutant {
	return []mutant{{
		bug: "what a step moves is told wrong where micro-batches differ", how: "the last counts as the first",
		file: "explain/traffic.go",
		old:  "[]codegen.Task{tasks[0], tasks[len(tasks)-1]}", new: "[]codegen.Task{tasks[0], tasks[0]}",
		pkg: "./cmd/autopar", run: "^FuzzCommandsAgree$",
	}, {
		bug:  "parts without rows are told as if they had some",
		file: "partition/plan.go",
		old:  "max(0, p.TPPieces-p.MicroBatch*max(1, p.SequenceParts))", new: "0",
		pkg: "./explain", run: "^TestDivisions$",
	}, {
		bug: "what parts hide is told of the plan as it is", how: "the number of parts is not changed",
		file: "planner/pieces.go",
		old:  "q.TPPieces, q.SequenceParts = n, 0", new: "q.SequenceParts = 0",
		pkg: "./explain", run: "^TestDivisions$",
	}, {
		bug: "ranks with less to do are simulated as the first", how: "whatever their parts are",
		file: "planner/sim/program.go",
		old:  "prog.Mesh.Device(canonical(s.Coord))", new: "prog.Mesh.Device(ir.Coord{})",
		pkg: "./planner/sim", run: "^TestAlike$",
	}, {
		bug: "a meeting waits for ranks that nobody simulates", how: "those that are like others",
		file: "planner/sim/program.go",
		old:  "if b.like[r] == r {", new: "{",
		pkg: "./planner/sim", run: "^TestAlike$",
	}, {
		bug: "a timeline says that a rank is as another which does less", how: "all of a position are",
		file: "explain/trace.go",
		old:  "return line.like[shown] == like })", new: "return r.prog.Schedules[shown].Stage == r.prog.Schedules[like].Stage })",
		pkg: "./explain", run: "^TestTraceOfMany$",
	}, {
		bug: "communication beside kernels counts as exposed", how: "in the accounts of the simulator",
		file: "planner/sim/program.go",
		old:  "if b.account != nil && (!hidden || apart) {", new: "if b.account != nil {",
		pkg: "./explain", run: "^TestTermsAddUp$",
	}, {
		bug: "slower memory is taken for faster", how: "where the share of a resource is read off the price",
		file: "planner/cost/constants.go",
		old:  "d.Device.MemoryBandwidth *= by", new: "d.Device.MemoryBandwidth /= by",
		pkg: "./explain", run: "^TestWhatBinds$",
	}, {
		bug: "recomputed kernels are work like any other", how: "no memory capacity binds",
		file: "explain/terms.go",
		old:  "if term == termRecompute || term == termHost {", new: "if term == termHost {",
		pkg: "./explain", run: "^TestWhatBinds$",
	}, {
		bug: "regret is against the best of the stated cluster", how: "in every sample",
		file: "planner/robust.go",
		old:  "best = min(best, t[s])", new: "best = min(best, t[0])",
		pkg: "./planner", run: "^TestRobust$",
	}, {
		bug:  "the measured time decides which plan the prediction would choose",
		file: "measured/regret.go",
		old:  "cmp.Compare(a.PredictedSeconds, b.PredictedSeconds), cmp.Compare(b.StepSeconds, a.StepSeconds))", new: "cmp.Compare(a.StepSeconds, b.StepSeconds), 0)",
		pkg: "./measured", run: "^TestRegret$",
	}, {
		bug: "activations stay in flight after the last pass", how: "in the memory shown over time",
		file: "explain/film.go",
		old:  "case t.Phase == release:", new: "case t.Phase == release && t.MicroBatch < 0:",
		pkg: "./explain", run: "^TestFilm$",
	}, {
		bug: "the next limit of the memory front is the one before", how: "so that the front is one point",
		file: "explain/study.go",
		old:  "x.limit = int64(memoryStep * float64(o.PeakBytes))", new: "x.limit = int64(float64(o.PeakBytes) / memoryStep)",
		pkg: "./explain", run: "^TestStudy$",
	}, {
		bug: "a task ends where another does", how: "what a stream does beside the next is taken for it",
		file: "explain/trace.go",
		old:  "s.Stream == runtime.Compute && t != doing {", new: "t != doing {",
		pkg: "./explain", run: "^TestPredictedTrace$",
	}, {
		bug:  "a part without sequences comes after what reads it",
		file: "planner/sim/program.go",
		old:  "cmp.Compare(a.Task, b.Task), cmp.Compare(a.Instr, b.Instr))", new: "cmp.Compare(b.Task, a.Task), cmp.Compare(b.Instr, a.Instr))",
		pkg: "./explain", run: "^TestPredictedTrace$",
	}, {
		bug:  "empty micro-batches of a small share are taken for whole ones",
		file: "explain/traffic.go",
		old:  "if len(r.prog.Plan.BatchShares) == 0 {", new: "if true {",
		pkg: "./explain", run: "^TestTrafficIsThePrograms$",
	}, {
		bug:  "a pin that others leave nothing to is ignored",
		file: "planner/options.go",
		old:  "places = places || first[n].spec == spec", new: "places = true",
		pkg: "./planner", run: "^TestOptions$",
	}, {
		bug:  "a proof that cannot be closed takes the plan with it",
		file: "planner/certificate.go",
		old:  "return res, nil, &UnprovenError{steps, res.Stats.Gap}", new: "return nil, nil, &UnprovenError{steps, res.Stats.Gap}",
		pkg: "./planner", run: "^TestUnproven$",
	}, {
		bug:  "a model with experts is priced as one without",
		file: "measured/predict.go",
		old:  "case r.Experts > 1:", new: "case r.Experts > 1000:",
		pkg: "./measured", run: "^TestSkipsExperts$",
	}, {
		bug: "what binds is told wrong", how: "a host that starts kernels faster waits for them as long",
		file: "planner/cost/constants.go",
		old:  "d.Software.Sync /= by", new: "d.Software.Sync *= 1",
		pkg: "./planner/cost", run: "^TestFaster$",
	}, {
		bug: "what binds is told wrong", how: "links do not bind the time by which collectives delay kernels",
		file: "planner/sim/program.go",
		old:  "x.accounts[i] += a / float64(time) * float64(o.slows)", new: "x.accounts[min(i, 0)] += a / float64(time) * float64(o.slows)",
		pkg: "./explain", run: "^TestLinksBindCommunication$",
	}, {
		bug:  "a kernel in parts takes what one of them takes",
		file: "explain/alternative.go",
		old:  "t, _ := r.price.Instr(&in, r.prog.Mesh, r.prog.At(s, task))\n\t\ttime += t", new: "t, _ := r.price.Instr(&in, r.prog.Mesh, r.prog.At(s, task))\n\t\ttime = t",
		pkg: "./explain", run: "^TestChoicesOfParts$",
	}, {
		bug:  "plans of policies are alternatives of the robust choice",
		file: "cmd/autopar/robust.go",
		old:  "if all = all[:searched]; r.Least < searched {", new: "if searched = len(all); r.Least < searched {",
		pkg: "./cmd/autopar", run: "^TestRobustAlternatives$",
	}, {
		bug: "a plan is priced on two clusters of one name", how: "and nothing tells which is which",
		file: "cmd/autopar/recost.go",
		old:  "&& !sameFigures(doc.Cluster, cluster) {", new: "&& !sameFigures(cluster, cluster) {",
		pkg: "./cmd/autopar", run: "^TestScripts$/^recost$",
	}, {
		bug: "a plan is priced on two clusters of one name", how: "that are the same",
		file: "cmd/autopar/recost.go",
		old:  "&& !sameFigures(doc.Cluster, cluster) {", new: "&& c.given() {",
		pkg: "./cmd/autopar", run: "^TestScripts$/^recost$",
	}, {
		bug:  "twice the network also has half the latency",
		file: "explain/study.go",
		old:  "x.cluster.Wider(r, 2)", new: "x.cluster.Faster(r, 2)",
		pkg: "./explain", run: "^TestTwiceTheNetworkIsBandwidth$",
	}, {
		bug: "twice the network is the network as it is", how: "between kinds of devices",
		file: "planner/cost/constants.go",
		old:  "link(&d.Between)", new: "_ = link",
		pkg: "./explain", run: "^TestStudyOfPools$",
	}}
}
