package mutants

// inPosted has the bugs of stages that go on while what they send is on its way.
func inPosted() []mutant {
	const sound, overNCCL, floors = "^TestVerifyAcceptsPosted$", "^TestPipelinesOverNCCL$", "^TestNoFloorIsAboveAPlan$"
	return []mutant{{
		bug: "what is still being sent is overwritten", how: "a task does not wait until the same one's messages before have gone",
		file: "runtime/rank.go",
		old:  "if task.awaitSends != nil {", new: "if task.awaitSends != nil && t < 0 {",
		pkg: ".", run: overNCCL,
	}, {
		bug: "what is still being sent is overwritten", how: "in the next step",
		file: "runtime/rank.go",
		old:  "if task.endSends != nil {", new: "if task.endSends != nil && t < 0 {",
		pkg: ".", run: overNCCL,
	}, {
		bug: "what is still being sent is overwritten", how: "it lies with what is temporary",
		file: "codegen/layout.go",
		old:  "case b.isSent(v):\n\t\treturn Persist", new: "case b.isSent(v):\n\t\treturn Temp",
		pkg: "./codegen", run: sound,
	}, {
		bug: "what is still being sent is overwritten", how: "in the place of an operand",
		file: "codegen/layout.go",
		old:  "if b.isSent(x) || b.isSent(r) && region == Persist {", new: "if b.isSent(x) {",
		pkg: "./codegen", run: sound,
	}, {
		bug: "a program that overwrites what it sends is accepted", how: "by another chunk",
		file: "codegen/posted.go",
		old:  "if len(others) == 0 || other == phase && others[0].Chunk == in.Chunk {", new: "if len(others) == 0 || other == phase {",
		pkg: "./codegen", run: "^TestPostedIsChecked$",
	}, {
		bug: "a program that overwrites what it sends is accepted", how: "in the same task",
		file: "codegen/posted.go",
		old:  "s.writesNone(instrs[i+1:], in)", new: "s.writesNone(nil, in)",
		pkg: "./codegen", run: "^TestPostedIsChecked$",
	}, {
		bug: "a program that overwrites what it sends is accepted", how: "from where its backward pass recomputes",
		file: "codegen/posted.go",
		old:  "s.Buffers[id].View || s.Buffers[id].Region != Persist {", new: "s.Buffers[id].View || s.Buffers[id].Region == Temp {",
		pkg: "./codegen", run: "^TestPostedFromSlots$",
	}, {
		bug: "messages travel all at once", how: "in the simulation",
		file: "planner/sim/engine.go",
		old:  "r.free(p, t, op, max(g.at, st.last))", new: "r.free(p, t, op, g.at)",
		pkg: "./planner/sim", run: "^TestPostedInTurn$",
	}, {
		bug: "a step ends before its messages have arrived", how: "in the simulation",
		file: "planner/sim/engine.go",
		old:  "|| !r.awaitPosted(p, st, -1) {", new: "|| r.awaitPosted(p, st, -1) && st.now < 0 {",
		pkg: "./planner/sim", run: "^TestPostedDeadlock$",
	}, {
		bug: "a floor is above a plan", how: "what is posted is work of the position",
		file: "planner/passage.go",
		old:  "if t.way += time; !o.posts() {", new: "if t.way += time; true {",
		pkg: "./planner", run: floors,
	}, {
		bug: "a floor is above a plan", how: "the last position has other chunks in between, too",
		file: "planner/posted.go",
		old:  " - others*(early*block.forward+late*(block.all-block.forward))", new: " - 0*others*early*late",
		pkg: "./planner", run: floors,
	}, {
		bug: "a bound of cuts is above a plan", how: "what is posted is work of the stage",
		file: "planner/price.go",
		old:  "\t\tif !b[i].posted {\n\t\t\tl.add(&b[i])", new: "\t\tif true {\n\t\t\tl.add(&b[i])",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_901$",
	}, {
		bug: "a bound of cuts is above a plan", how: "a stage waits for the first gradient that it posts",
		file: "planner/bound.go",
		old:  "\tx.start -= posted\n", new: "",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_2016_case_103$",
	}, {
		bug: "memory is bounded from above", how: "every block has a place to send from",
		file: "planner/held.go",
		old:  "if in.Posted && st.Buffers[in.Args[0]].Region == codegen.Persist {", new: "if in.Posted && st.Buffers[in.Args[0]].Region == codegen.Slot {",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a plan that fits is not found", how: "stages always have places to send from",
		file: "planner/relief.go",
		old:  `waits = []bool{false, true}`, new: "waits = []bool{false}",
		pkg: "./planner", run: "^TestWaitingWhereMemoryIsShort$",
	}, {
		bug: "a plan is waited for in vain", how: "it takes as long as one that goes on, and less memory",
		file: "planner/cut.go",
		old:  "return waits(d.plan)", new: "return waits(c.plan)",
		pkg: "./planner", run: "^TestSearchIsExact$",
	}, {
		bug: "memory that is short is not spared", how: "as bounds do not tell that a stage would be faster without recomputation",
		file: "planner/relief.go",
		old:  "o.time <= time && !c.bounds.fits(i, n, o.recomputation, c.learned)", new: "o.time <= time && c.bounds.time(i, n) > o.time",
		pkg: "./planner", run: "^TestCertificates$",
	}, {
		bug: "a certificate leaves out a part of the space", how: "stages that wait for what they send",
		file: "planner/certificate.go",
		old:  "beside = s.sparing(t.pending)", new: "beside = nil",
		pkg: "./planner", run: "^TestWaitingWhereMemoryIsShort$",
	}, {
		bug: "regions of a certificate overlap", how: "waiting or not, two of them are joined that have other micro-batches",
		file: "planner/certificate.go",
		old:  "r.pieces, r.sizes, r.schedules)", new: "r.pieces, r.schedules)",
		pkg: "./planner", run: "^TestCertificates$",
	}, {
		bug: "bounds of a certificate believed", how: "of what spares memory, as its base does not fit",
		file: "planner/certify.go",
		old:  "c.size, c.schedule, nil, r.bound)", new: "c.size, c.schedule, a.again(base.outline, c.size, c.schedule), r.bound)",
		pkg: "./planner", run: "^TestSparedBoundsAreOfTheirOwn$",
	}, {
		bug: "another solver's program is another", how: "positions wait for what they post",
		file: "planner/lp/events.go",
		old:  "case t.posted:\n", new: "case t.posted && t.room < 0:\n",
		pkg: "./planner/lp", run: "^TestPrograms$",
	}}
}
