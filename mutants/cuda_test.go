package mutants

// inTheDevice has the bugs of the CUDA backend apart from its kernels.
func inTheDevice() []mutant {
	return []mutant{{
		bug:  "a group of NCCL's calls in which one is refused stays open",
		file: "cuda/pack.go",
		old:  "if err = errors.Join(err, lib.GroupEnd()); err != nil {", new: "if err != nil {\n\t\treturn errors.Join(err)\n\t}\n\tif err = lib.GroupEnd(); err != nil {",
		pkg: "./cuda", run: "^TestGroupsEnd$",
	}, {
		bug:  "the script of the GPU machine writes the line with the ratio to PyTorch into a file",
		file: "bench/gpu/run.sh",
		old:  `(used > 0 ? sprintf("%.2f", used / 1024) : "-")`, new: `used > 0 ? sprintf("%.2f", used / 1024) : "-"`,
		pkg: "./bench/gpu", run: "^TestScript$",
	}, {
		bug:  "the script of the GPU machine lets a run of several GPUs pass that ended early",
		file: "bench/gpu/run.sh",
		old:  "END { if (n == 10)", new: "END { if (n > 0)",
		pkg: "./bench/gpu", run: "^TestScriptOnSeveralGPUs$",
	}, {
		bug:  "the script of the GPU machine loses the table of its last stage",
		file: "bench/gpu/run.sh",
		old:  ">>\"$OUT/tables.md\"\n\tpage\n", new: ">>\"$OUT/tables.md\"\n",
		pkg: "./bench/gpu", run: "^TestScript$",
	}, {
		bug: "the sum of a row depends on where it lies", how: "16 bytes are looked for in rows of float32",
		file: "cuda/kernel/loss.cu",
		old:  "skips = sizeof(T) == 2;", new: "skips = true;",
		pkg: "./cmd/autopar", run: "^FuzzPlansOnGPUs$",
	}, {
		bug: "products that are to be reproducible are a library's", how: "but for those in fixed point",
		file: "cuda/matmul.go",
		old:  " && !d.backend.opts.Reproducible\n", new: "\n",
		pkg: "./cmd/autopar", run: "^FuzzPlansOnGPUs$",
	}, {
		bug: "a product of sequences is rounded as a whole", how: "in fixed point, on a GPU",
		file: "cuda/kernel/matmul.go",
		old:  "sequences, rows := int64(a.Slab.Local[0]), ir.Elems(a.Slab.Local[1:attr.K])", new: "sequences, rows := int64(1), inner",
		pkg: "./cmd/autopar", run: "^FuzzPlansOnGPUs$",
	}, {
		bug: "a message is written over", how: "by products that are tried while a program is loaded",
		file: "cuda/memory.go",
		old:  "	d.checked = nil\n	return d.drain()", new: "	d.checked = nil\n	return nil",
		pkg: "./cuda", run: "^TestStepsLaunch$",
	}, {
		bug: "a message comes while the step before is still going on", how: "on the rank that it is for",
		file: "runtime/rank.go",
		old:  "(a.after > 0 || n > 0 && r.exec.late)", new: "a.after > 0",
		pkg: ".", run: "^TestMessagesOfTheNextStep$",
	}, {
		bug: "a stream does not wait for the ranks whose arenas it reads", how: "in a barrier of loopback collectives",
		file: "cuda/collective.go",
		old:  "\t\tif err := drv.WaitEvent(l.stream, v.members[i].events[turn]); err != nil {\n\t\t\treturn err\n\t\t}\n", new: "",
		pkg: "./cuda", run: "^TestLoopback$",
	}, {
		bug: "a receiver does not wait for the message", how: "only for the host of its sender",
		file: "cuda/transfer.go",
		old:  "return d.drv.WaitEvent(d.compute.stream, e)", new: "return nil",
		pkg: "./cuda", run: "^TestLoopback$",
	}, {
		bug: "rows are multiplied as if they were columns", how: "the operands keep their places",
		file: "cuda/matmul.go",
		old:  "d.gpu.blas.MatMul(g, d.at(k.Args[1]), d.at(k.Args[0]),", new: "d.gpu.blas.MatMul(g, d.at(k.Args[0]), d.at(k.Args[1]),",
		pkg: ".", run: "^TestReplay$",
	}, {
		bug: "a graph runs with the inputs of an earlier step", how: "what it uploads from is not renewed",
		file: "cuda/replay.go",
		old:  "\t\tif err := r.uploadTo(at, data); err != nil {\n\t\t\treturn err\n\t\t}\n", new: "",
		pkg: ".", run: "^TestReplay$",
	}, {
		bug: "runs of elements are sent to the wrong rank", how: "by NCCL, where the value is cut unevenly",
		file: "cuda/nccl.go",
		old:  "return comm.Recv(l.result(me, to), int64(n), d, i, l.stream)", new: "return comm.Recv(l.result(me, 0), int64(n), d, i, l.stream)",
		pkg: "./cuda", run: "^TestNCCL$",
	}, {
		bug: "a library that is missing is missing without a reason", how: "dlerror is asked on another thread",
		file: "cuda/driver/dl_linux.go",
		old:  "	runtime.LockOSThread()\n	defer runtime.UnlockOSThread()\n	return purego.Dlopen", new: "	return purego.Dlopen",
		pkg: "./cuda/driver", run: "^TestDlopenSaysWhy$",
	}, {
		bug: "NCCL adds numbers up as another type", how: "bfloat16",
		file: "cuda/driver/nccl.go",
		old:  "ir.BF16: 9}", new: "ir.BF16: 6}",
		pkg: "./cuda/driver", run: "^TestCollectiveCalls$",
	}, {
		bug: "a loss that is read late is that of another step", how: "two steps keep their words at one place",
		file: "cuda/end.go",
		old:  "last, memory := d.ends.at(d.ends.told)", new: "last, memory := d.ends.at(0)",
		pkg: "./train", run: "^TestLossesAreReadLate$",
	}, {
		bug: "a checkpoint of a step too few", how: "the update that is not read yet is not counted",
		file: "train/save.go",
		old:  "\tif err := r.flush(ctx, 0); err != nil {\n\t\treturn err\n\t}\n\tstep := r.result.Steps", new: "\tstep := r.result.Steps",
		pkg: "./train", run: "^TestLossesAreReadLate$",
	}, {
		bug: "one message too many in a ring", how: "where the latency of NCCL is fitted",
		file: "cuda/profile/profile.go",
		old:  "Messages: passes * (n - 1)", new: "Messages: passes * n",
		pkg: "./cuda/profile", run: "^TestMeasure$",
	}, {
		bug: "all element types at one rate", how: "in the profile of a GPU",
		file: "cuda/profile/profile.go",
		old:  "curve.Round(of * rate / best[fastest])", new: "curve.Round(of * rate / rate)",
		pkg: "./cuda/profile", run: "^TestMeasure$",
	}, {
		bug: "a process waits for the name of another group", how: "where NCCL's names go over TCP",
		file: "cuda/peers.go",
		old:  "naming{int32(v.number), id}", new: "naming{int32(v.number) + 1, id}",
		pkg: "./train", run: "^TestProcessesOnGPUs$",
	}, {
		bug: "a rank waits for one that waits for it", how: "it expects a message where its task begins",
		file: "codegen/expect.go",
		old:  "e.Before = stands.Node", new: "e.Before = nil",
		pkg: "./codegen", run: "^TestExpects$",
	}, {
		bug: "receives hold a GPU for much of a step", how: "messages are expected as if ranks ran one after another",
		file: "codegen/progress.go",
		old:  "\tif w.ended[r] == w.round {\n\t\treturn task, nil\n\t}\n", new: "",
		pkg: "./codegen", run: "^TestExpectedInTime$",
	}, {
		bug: "a message arrives where the one before is read", how: "NCCL does not wait for the place to be free",
		file: "cuda/meeting.go",
		old:  "\tif err := d.drv.WaitEvent(in.stream, free); err != nil {\n\t\treturn err\n\t}\n", new: "",
		pkg: ".", run: "^TestPipelinesOverNCCL$/^1f1b_dp_3",
	}, {
		bug: "a receiver does not wait for the message", how: "over NCCL",
		file: "cuda/meeting.go",
		old:  "\tif err := d.drv.WaitEvent(d.compute.stream, there); err != nil {\n\t\treturn err\n\t}\n", new: "",
		pkg: "./cuda", run: "^TestNCCL$/^transfers_on",
	}, {
		bug: "a sum in fixed point wraps", how: "every rank has a term that fits, over NCCL",
		file: "cuda/nccl.go",
		old:  "math.MaxInt64/int64(len(c.Members))", new: "math.MaxInt64",
		pkg: "./cuda", run: "^TestFixedNCCL$",
	}, {
		bug: "the end of a run hangs in NCCL", how: "graphs that captured communicators are destroyed after them",
		file: "cuda/backend.go",
		old:  "	errs = append(errs, b.awaitIdle()...) // before leave: see membership\n	errs = append(errs, b.leave()...)\n", new: "	errs = append(errs, b.leave()...)\n	errs = append(errs, b.awaitIdle()...)\n",
		pkg: "./cuda", run: "^TestEndsWithGraphs$/^at_the_end$",
	}, {
		bug: "a failure is not told", how: "NCCL aborts on the thread that would tell",
		file: "cuda/join.go",
		old:  "	m.ended = ended\n	go func() {", new: "	m.ended = ended\n	func() {",
		pkg: "./cuda", run: "^TestEndsWithGraphs$/^after_a_failure$",
	}, {
		bug: "a failure is not told", how: "who waits asks NCCL how a communicator is that ends",
		file: "cuda/driver/nccl.go",
		old:  "if !c.mu.TryLock() {", new: "if c.mu.Lock(); false {",
		pkg: "./cuda/driver", run: "^TestCollectiveCalls$",
	}, {
		bug: "a function has too little shared memory", how: "what it was compiled with is not counted",
		file: "cuda/kernels.go",
		old:  "if l.Shared <= e.shared[f] {", new: "if l.Shared <= max(e.shared[f], 48<<10) {",
		pkg: "./cuda", run: "^TestSharedMemory$",
	}, {
		bug: "a function has too little shared memory", how: "that of a smaller launch, prepared later",
		file: "cuda/kernels.go",
		old:  "if l.Shared <= e.shared[f] {", new: "if l.Shared == e.shared[f] || l.Shared == 0 {",
		pkg: "./cuda", run: "^TestSharedMemory$",
	}, {
		bug: "NCCL runs graphs of several GPUs of one process", how: "which may wait for each other",
		file: "cuda/backend.go",
		old:  "end-first > 1 && !b.system.Together", new: "end-first > 16 && !b.system.Together",
		pkg: ".", run: "^TestGraphsOfOneProcess$",
	}, {
		bug: "processes with a GPU each have no graphs", how: "the ranks of others count",
		file: "cuda/backend.go",
		old:  "end-first > 1 && !b.system.Together", new: "b.world.Ranks > 1 && end > first && !b.system.Together",
		pkg: "./train", run: "^TestProcessesOnGPUs$/^tp$",
	}, {
		bug: "an epilogue is never chosen", how: "the choice of the plain product waits for it",
		file: "cuda/driver/cublaslt.go",
		old:  "if apart != nil { // apart", new: "if apart != nil && b == nil { // apart",
		pkg: "./cuda/driver", run: "^TestEpilogues$",
	}, {
		bug: "a product is never timed", how: "there was no memory to, in an earlier run",
		file: "cuda/driver/cublaslt.go",
		old:  "!ok && !l.untimed[key]", new: "!ok",
		pkg: "./cuda/driver", run: "^TestUntimedProducts$",
	}, {
		bug: "processes choose products each for itself", how: "there is a process for each GPU",
		file: "cuda/driver/cublaslt.go",
		old:  "defer b.alternate(key)()", new: "_ = b.alternate",
		pkg: "./cuda/driver", run: "^TestProcessesChooseTogether$",
	}, {
		bug: "casts take scratch memory beside the arena", how: "as if all of them were in place",
		file: "cuda/kernel/launch.go",
		old:  "return 1<<32 + uint64(t.Offset)", new: "return 1 << 32",
		pkg: "./cuda/kernel", run: "^TestScratchOfCasts$",
	}, {
		bug: "a large cast in place overwrites what it has still to read", how: "a launch converts more than is converted already",
		file: "cuda/kernel/ops.go",
		old:  "low *= 2 {\n		direct(low, min(2*low, n))", new: "low *= 4 {\n		direct(low, min(4*low, n))",
		pkg: "./cuda/kernel", run: "^TestCastInPlace$",
	}, {
		bug: "NCCL moves a value by a message for each sequence and pair of ranks", how: "it is cut along the sequence",
		file: "cuda/nccl.go",
		old:  "from == (runs*n+i)*run", new: "from == i*run",
		pkg: "./cuda", run: "^TestSequencesInOrder$",
	}, {
		bug: "NCCL moves a value by a message for each row", how: "its columns are cut",
		file: "cuda/pack.go",
		old:  "cut.parts > fewRuns", new: "cut.parts > 1<<30",
		pkg: "./cuda", run: "^TestRunsArePacked$",
	}, {
		bug: "what NCCL has brought lands at another place", how: "a part of several pieces is packed",
		file: "cuda/pack.go",
		old:  "s.at + lo*n*s.pitch", new: "s.at",
		pkg: "./cuda", run: "^TestRunsArePacked$",
	}, {
		bug: "what NCCL has brought lands at another place", how: "not even one sequence has room in packing memory",
		file: "cuda/pack.go",
		old:  "s.at + lo*s.pitch + from*row", new: "s.at + lo*s.pitch",
		pkg: "./cuda", run: "^TestRunsArePacked$",
	}, {
		bug: "what NCCL has brought lands at another place", how: "ranks have parts of unequal size",
		file: "cuda/pack.go",
		old:  "lo*cut.send[c.Position].run", new: "lo*cut.send[0].run",
		pkg: "./cuda", run: "^TestPacking$",
	}, {
		bug: "a GPU is given a kernel for which it has too little shared memory", how: "it has less than a Hopper",
		file: "cuda/kernels.go",
		old:  "if int(l.Shared) > e.most {", new: "if l.Shared > 227<<10 {",
		pkg: "./cuda", run: "^TestTooLittleSharedMemory$",
	}, {
		bug:  "an arena needs less than nothing more than is free",
		file: "cuda/memory.go",
		old:  "if e.Needs <= e.Free {", new: "if e.Needs < 0 {",
		pkg: "./cuda", run: "^TestFragmentedMemory$",
	}, {
		bug: "a rank waits for a GPU that waits for it", how: "it allocates packing memory in a step",
		file: "cuda/memory.go",
		old:  "if l.packs {", new: "if l.packs && l.packing != 0 {",
		pkg: "./cuda", run: "^TestPrepared$",
	}, {
		bug: "a rank waits for a GPU that waits for it", how: "it loads the code of products in a step",
		file: "cuda/memory.go",
		old:  "gemmOf(k); !empty {", new: "gemmOf(k); empty {",
		pkg: "./cuda", run: "^TestCalls$",
	}, {
		bug: "a rank waits for a GPU that waits for it", how: "it loads the code of collectives in a step",
		file: "cuda/nccl.go",
		old:  "CheckExchanges(l.packs && !packs, l.sums && !sums)", new: "CheckExchanges(false && packs, l.sums && !sums)",
		pkg: "./cuda", run: "^TestPrepared$",
	}, {
		bug: "operations of several communicators start in any order", how: "NCCL is not told to keep that of the calls",
		file: "cuda/driver/nccl.go",
		old:  "{launchOrder: \"1\"}", new: "{launchOrder: \"0\"}",
		pkg: "./cuda/driver", run: "^TestNCCLIsAsked$",
	}, {
		bug: "a rank waits for a GPU that waits for it", how: "NCCL connects ranks in a step, in a process of several GPUs",
		file: "cuda/driver/nccl.go",
		old:  "if gpus > 1 {", new: "if gpus > 8 {",
		pkg: "./cuda/driver", run: "^TestNCCLIsAsked$",
	}, {
		bug: "a rank waits for a GPU that waits for it", how: "the first message of a step connects the two ranks",
		file: "cuda/join.go",
		old:  "if err == nil && messages {", new: "if err == nil && len(m.ranks) == 0 {",
		pkg: "./cuda", run: "^TestNCCL$/^transfers_on",
	}, {
		bug: "a rank waits for a GPU that waits for it", how: "an exchange by messages connects ranks in a step",
		file: "cuda/nccl.go",
		old:  "case c.Node.Op == ir.OpAllToAll:\n\t\treturn true", new: "case c.Node.Op == ir.OpAllToAll:\n\t\treturn false",
		pkg: "./cuda", run: "^TestJoinInOrder$",
	}, {
		bug: "ranks wait for each other in a circle", how: "they join communicators in any order",
		file: "cuda/join.go",
		old:  "number := slices.Min(slices.Collect(maps.Keys(d.coming)))", new: "number := slices.Collect(maps.Keys(d.coming))[0]",
		pkg: "./cuda", run: "^TestJoinInOrder$",
	}, {
		bug: "ranks of several processes wait for each other in a circle", how: "each joins communicators in an order of its own",
		file: "cuda/join.go",
		old:  "number := slices.Min(slices.Collect(maps.Keys(d.coming)))",
		new:  "number := slices.Sorted(maps.Keys(d.coming))[(len(d.coming)-1)*(d.rank%2)]",
		pkg:  "./train", run: "^TestProcessesOnGPUs$/^pp$",
	}, {
		bug: "communicators are made in a step", how: "those of the program that is loaded second",
		file: "runtime/load.go",
		old:  "if err := e.join(); err != nil {", new: "if len(e.programs) > 0 {\n\t} else if err := e.join(); err != nil {",
		pkg: ".", run: "^TestCommunicatorsOfPrograms$",
	}, {
		bug: "an error does not say which rank does not come", how: "to a communicator",
		file: "cuda/join.go",
		old:  "return id, b.arrive(m.view)", new: "return id, nil",
		pkg: "./cuda", run: "^TestJoinIsBounded$/^for_a_rank$",
	}, {
		bug: "results that NCCL has dropped are taken for good", how: "after a failure elsewhere",
		file: "cuda/device.go",
		old:  "\t\tcase <-d.backend.stopped: // NCCL may have dropped what is done\n\t\t\treturn runtime.ErrAborted\n",
		new:  "\t\tcase <-d.backend.stopped:\n\t\t\tif !ok && err == nil {\n\t\t\t\treturn runtime.ErrAborted\n\t\t\t}\n",
		pkg:  "./cuda", run: "^TestNCCL$/^abort$",
	}}
}
