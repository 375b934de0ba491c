package mutants

// inTheMemory has the bugs of where state lives: ZeRO groups and host memory.
func inTheMemory() []mutant {
	const sound = "^TestCheckAcceptsEveryProgram$"
	const insert = "m = pr.comm(s.Op, m, s.Spec, stage, phase, s.Attr).Results[0]"
	return []mutant{{
		bug: "missing backward reduce", how: "over the copies of a ZeRO group",
		file: "partition/reshard.go", old: insert,
		new: "if s.Op == ir.OpAllReduce && s.Attr.Axis == AxisRep {\n\t\t\tm.Spec = s.Spec\n\t\t\tcontinue\n\t\t}\n\t\t" + insert,
		pkg: "./codegen", run: sound,
	}, {
		bug:  "batch not cut over the copies of a ZeRO group",
		file: "partition/propagate.go",
		old:  "if axis.Time || FollowsBatch(axis) && axis.Size > 1 {", new: "if axis.Time || axis.Name == AxisDP && axis.Size > 1 {",
		pkg: "./codegen", run: sound,
	}, {
		bug: "ranks priced alike that are not", how: "the parts of a part are taken for those of the whole",
		file: "planner/cost/program.go",
		old:  "return sizes", new: "return []int{v.Type.Shape[d]}",
		pkg: "./planner/sim", run: "^TestCanonicalGroups$",
	}, {
		bug:  "stash dropped",
		file: "partition/offload.go",
		old:  "stashes[u.New] = append(stashes[u.New], i)", new: "stashes[u.Param] = append(stashes[u.Param], i)",
		pkg: "./codegen", run: sound,
	}, {
		bug: "parameters held twice", how: "the backward pass reads what the forward pass fetched",
		file: "partition/offload.go",
		old:  "key := fetchKey{v, user.Phase, user.Block()}", new: "key := fetchKey{v, ir.Forward, user.Block()}",
		pkg: ".", run: "^TestParametersAreHeldOnce$",
	}, {
		bug: "fetch of a stale copy", how: "moments of another parameter, whose place they take",
		file: "codegen/allocate.go",
		old:  "s.Host += alignUp(buf.Size)", new: "s.Host = max(s.Host, alignUp(buf.Size))\n\t\t\tbuf.Offset = 0",
		pkg: "./codegen", run: sound,
	}, {
		bug: "parameters fetched in another chunk", how: "the first of their rank",
		file: "partition/offload.go",
		old:  "Phase: beside.Phase, Stage: beside.Stage,", new: "Phase: beside.Phase, Stage: v.Def.Stage,",
		pkg: "./codegen", run: "^TestPipelinesAreSound$",
	}, {
		bug:  "master weights stay on the device",
		file: "partition/offload.go",
		old:  "range n.Args[:3]", new: "range n.Args[1:3]",
		pkg: ".", run: "^TestOffloadKeepsTheBits$",
	}, {
		bug: "stash dropped", how: "by the device",
		file: "runtime/cpu/launch.go",
		old:  "ir.OpStash:      copyBetween,", new: "ir.OpStash:      func(*Device, *runtime.Kernel) error { return nil },",
		pkg: ".", run: "^TestOffloadKeepsTheBits$",
	}, {
		bug:  "evaluation with host copies of its own",
		file: "codegen/allocate.go",
		old:  "if buf := &s.Buffers[id]; !shared.share(buf) {", new: "if buf := &s.Buffers[id]; !shared.share(buf) || shared != nil {",
		pkg: "./train", run: "^TestOffload$",
	}, {
		bug:  "files of host memory stay where another job has its own",
		file: "runtime/cpu/hostfile.go",
		old:  "err := os.Remove(f.Name())", new: "err := error(nil)",
		pkg: "./train", run: "^TestOffload$",
	}}
}
