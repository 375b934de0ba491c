package mutants

// inTheStreams has the bugs of communication beside the kernels.
func inTheStreams() []mutant {
	return []mutant{{
		bug: "buffer freed while it is communicated", how: "lives end where asynchronous instructions start",
		file: "codegen/overlap.go",
		old:  "if instrs[i].Async {\n\t\t\trunning", new: "if i < 0 {\n\t\t\trunning",
		pkg: "./codegen", run: "^TestVerifyAcceptsOverlap$",
	}, {
		bug: "new weights of a block are gathered one by one", how: "each is an end of what is handed over together",
		file: "codegen/overlap.go",
		old:  "stepOf(n) != stepOf(before)", new: "n.Op != before.Op",
		pkg: "./codegen", run: "^TestOverlapRounds$",
	}, {
		bug: "gradient reduced before the last backward", how: "in every micro-batch",
		file: "codegen/program.go",
		old:  "return !in.Last || ", new: "return true || ",
		pkg: "./codegen", run: "^TestVerifyAcceptsOverlap$",
	}, {
		bug: "update before gradients of interleaved stages are reduced", how: "nothing waits for what its tasks left",
		file: "runtime/rank.go",
		old:  "task.Phase == ir.Update && given > 0 {", new: "task.Phase == ir.Update && given < 0 {",
		pkg: ".", run: "^TestPipelinesOverNCCL$",
	}, {
		bug: "update before gradients of interleaved stages are reduced", how: "in the simulation",
		file: "planner/sim/program.go",
		old:  "Joins: t.Phase == ir.Update,", new: "Joins: t.Phase == ir.NumPhases,",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_12$",
	}, {
		bug: "gradient of one chunk reduced with another's", how: "by the first chunk to come",
		file: "codegen/overlap.go",
		old:  "of = ready{chunkBody{max(of.phase, p.phase), p.chunk}", new: "of = ready{chunkBody{max(of.phase, p.phase), 0}",
		pkg: "./codegen", run: "^TestVerifyAcceptsOverlap$",
	}, {
		bug: "reduced gradient overwritten by a later task", how: "it may lie in memory of its own task",
		file: "codegen/checkstream.go",
		old:  "b.Region != Persist && !(", new: "b.Region == Host && !(",
		pkg: "./codegen", run: "^TestLateStreamsAreChecked$",
	}, {
		bug: "accumulated before it is reduced", how: "nothing waits for what it reads",
		file: "codegen/overlap.go",
		old:  "if need > done {", new: "if need > done && in.Node.Op != ir.OpAccumulate {",
		pkg: "./codegen", run: "^TestVerifyAcceptsOverlap$",
	}, {
		bug: "kernels do not wait for the communication stream", how: "on the CPU",
		file: "runtime/cpu/stream.go",
		old:  "case of == d && e.Stream != runtime.Compute:", new: "case of == d && e.Stream == runtime.Communication && s == runtime.Compute:\n\t\treturn nil\n\tcase of == d && e.Stream != runtime.Compute:",
		pkg: "./runtime/cpu", run: "^TestConformance$/^1_thread$/^communication_stream$",
	}, {
		bug: "bucket member missing", how: "the CPU makes the first of a bucket only",
		file: "runtime/cpu/collective.go",
		old:  "for _, more := range c.More {\n\t\tif err := d.exchange(more, ", new: "for _, more := range c.More[:0] {\n\t\tif err := d.exchange(more, ",
		pkg: "./runtime/cpu", run: "^TestConformance$/^1_thread$/^communication_stream$",
	}, {
		bug: "collectives of a stream beside each other", how: "in the simulation",
		file: "planner/sim/engine.go",
		old:  "start = max(start, st.given[st.done-1].end)", new: "start = max(start, st.given[st.done-1].start)",
		pkg: "./planner/sim", run: "^TestStreamRunsBeside$",
	}, {
		bug: "gradients are reduced before they are made", how: "with those of the block that were earlier",
		file: "codegen/join.go",
		old:  "at > group[n.Args[0].Def.ID()]", new: "at > 0",
		pkg: "./codegen", run: "^TestJoin$",
	}, {
		bug: "gradients are reduced twice", how: "for the norm as well, where some are whole",
		file: "partition/rulecost.go",
		old:  "cost += lastResort // a second resharding", new: "cost += 0 // a second resharding",
		pkg: "./codegen", run: "^TestGradientsAreReducedOnce$",
	}, {
		bug: "gradients of all blocks are reduced in one go", how: "the planner counts on one for each",
		file: "codegen/join.go",
		old:  "n.Block(), b.chunk(n)}", new: "\"\", b.chunk(n)}",
		pkg: "./codegen", run: "^TestJoin$",
	}, {
		bug: "what a bucket reads is overwritten by it", how: "lives end at its first members",
		file: "codegen/overlap.go",
		old:  "if instrs[i+1].Fused {", new: "if instrs[i+1].Fused && instrs[i].Async {",
		pkg: "./codegen", run: "^TestJoin$",
	}, {
		bug: "gradients are rounded before they are whole", how: "while the block before theirs computes",
		file: "codegen/overlap.go",
		old:  "*narrows = append(*narrows, n)", new: "narrows = &segments[max(0, at-1)].narrows\n\t\t\t\t*narrows = append(*narrows, n)",
		pkg: "./codegen", run: "^TestOverlapRounds$",
	}, {
		bug: "gradients are rounded before they are whole", how: "in every micro-batch",
		file: "codegen/program.go",
		old:  "return !in.Last || t.MicroBatch", new: "return !in.Last || !in.Async || t.MicroBatch",
		pkg: "./codegen", run: "^TestOverlapRounds$",
	}, {
		bug:  "a bucket takes the hops of its last tensor alone",
		file: "planner/cost/program.go",
		old:  "share += m.share(n, one)", new: "share = m.share(n, one)",
		pkg: "./planner/cost", run: "^TestBucketInBuffers$",
	}, {
		bug:  "bucket priced as its first member",
		file: "planner/cost/program.go",
		old:  "for i := range instrs {\n\t\tone := collectiveBytes", new: "for i := range instrs[:1] {\n\t\tone := collectiveBytes",
		pkg: "./planner/cost", run: "^TestBucket$",
	}, {
		bug: "a message lands on what is still needed", how: "its place is given away until it is received",
		file: "codegen/layout.go",
		old:  "if in.Node.Op == ir.OpRecv || in.Node.Op == ir.OpInput {", new: "if in.Node.Op == ir.OpInput {",
		pkg: "./codegen", run: "^TestPipelinesAreSound$",
	}, {
		bug: "a message lands on what is still needed", how: "nobody looks",
		file: "codegen/checkstream.go",
		old:  "case before != nil:", new: "case before == in.Node:",
		pkg: "./codegen", run: "^TestLeavesAreChecked$",
	}, {
		bug: "evaluation writes over weights", how: "nobody looks",
		file: "codegen/checkleaf.go",
		old:  "b.Region == Persist && b.Offset < other.Durable", new: "b.Region == Persist && b.Offset < 0*other.Durable",
		pkg: "./codegen", run: "^TestSharedArenas$",
	}}
}
