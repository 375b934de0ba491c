package mutants

// inShortMemory has the bugs of bounds where memory is short.
func inShortMemory() []mutant {
	const first, near = "^TestCostIsSimulation$/^seed_12$", "^TestMemoryOfManyBlocks$"
	return []mutant{{
		bug: "memory bound of an update too high", how: "what lives beside the gradients, but not until AdamW",
		file: "planner/updatememory.go",
		old:  "if !x.block || x.From <= last && x.To >= first {", new: "if !x.block || x.From <= last || x.To >= first {",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_107$",
	}, {
		bug: "memory bound of a stage too high", how: "as if what the head leaves behind were there during all blocks",
		file: "planner/memory.go",
		old:  "temp = max(temp, m.tempInner[e])", new: "temp = max(temp, m.temp[e])",
		pkg: "./planner", run: "^TestMemoryOfTheLastBlock$",
	}, {
		bug: "memory bound of an update too low", how: "that of several chunks has the blocks of one",
		file: "planner/interleave.go",
		old:  "max(temp, m.update.of(blocks))", new: "temp",
		pkg: "./planner", run: "^TestMemoryOfManyChunks$",
	}, {
		bug: "the plan named where none fits is not the closest", how: "none has the loss in slices",
		file: "planner/leanest.go",
		old:  "x.withoutHead() >= least {", new: "x.least > 0 {",
		pkg: "./planner", run: "^TestClosestIsExact$",
	}, {
		bug: "the plan named where none fits is said to be the closest", how: "though none has been laid out in all ways",
		file: "planner/leanest.go",
		old:  "if lay(x); !x.certain() {", new: "if lay(x); false {",
		pkg: "./planner", run: "^TestClosestIsExact$",
	}, {
		bug: "memory bound of the only micro-batch too low", how: "gradients of the head beside what blocks keep",
		file: "planner/memory.go",
		old:  "slot+m.afterHead[r.last(n)])", new: "slot)",
		pkg: "./planner", run: "^TestSearchOfOneMicroBatch$",
	}, {
		bug: "memory bound between two blocks too low", how: "the gradient that the next block hands over is missing",
		file: "planner/held.go",
		old:  "h.handed = handed[id]", new: "h.handed = 0 * handed[id]",
		pkg: "./planner", run: "^TestSearchOfShards$",
	}, {
		bug: "memory bound between two blocks too low", how: "as if slices of the loss spared what only blocks have",
		file: "planner/slices.go",
		old:  "of.tempOfBlocks(e, last, sizes), got.tempAmong", new: "of.tempOfBlocks(e, last, sizes), 0",
		pkg: "./planner", run: "^TestSearchOfShards$",
	}, {
		bug: "memory bound of an update too low", how: "positions between the ends",
		file: "planner/memory.go",
		old:  "if few[i].update.block < update.block {", new: "if false {",
		pkg: "./planner", run: near,
	}, {
		bug: "floor of short memory too high", how: "what passes keep at once is there twice",
		file: "planner/relax.go",
		old:  "limit: s.limit - temp,", new: "limit: s.limit - 2*temp,",
		pkg: "./planner", run: first,
	}, {
		bug: "master copies that came from the host wait for each other", how: "they are rounded when all are updated",
		file: "partition/stage.go",
		old:  "if rounded[n.ID()] != nil {", new: "if false {",
		pkg: "./partition", run: "^TestNewWeightsAreRoundedAtOnce$",
	}, {
		bug: "nothing fits where something does", how: "what is temporary is there twice",
		file: "planner/relax.go",
		old:  "return temp + int64((s.graphs", new: "return 2*temp + int64((s.graphs",
		pkg: "./planner", run: "^TestSketchesKeepNoMoreThanPlansNeed$",
	}, {
		bug: "nothing fits where something does", how: "gradients have room of their own beside the only micro-batch",
		file: "planner/relax.go",
		old:  "m > 1 && b > sizes[0]", new: "m > 0 && b > sizes[0]",
		pkg: "./planner", run: "^TestSketchesKeepNoMoreThanPlansNeed$",
	}, {
		bug: "the plan named where none fits is not the closest", how: "one program's bound counts a block of each chunk twice",
		file: "planner/sketch.go",
		old:  "int64(n-s.plan.Chunks())*m.morePersist", new: "int64(n)*m.morePersist",
		pkg: "./planner", run: "^TestSketchesKeepNoMoreThanPlansNeed$",
	}, {
		bug: "no plan where a search gives up", how: "the cut that bounds lead to is forgotten",
		file: "planner/cut.go",
		old:  "if len(c.ties) == 0 && first != nil {", new: "if false {",
		pkg: "./planner", run: "^TestCutThatBoundsLeadTo$",
	}, {
		bug: "memory of slices never short", how: "numbers of blocks with which the last position needs no recomputation",
		file: "planner/bound.go",
		old:  "if !ok {", new: "if ok {",
		pkg: "./planner", run: "^TestSlicesAreSearched$",
	}}
}
