package mutants

// inCheckpoints has the bugs of checkpoints that are written while training goes on, and of going
// on from memory.
func inCheckpoints() []mutant {
	const whole, background, goesOn = "^TestMemoryIsWholeOrNothing$", "^TestBackground$", "^TestGoesOnFromMemory$"
	return []mutant{{
		bug:  "an evaluation of a run that has stopped trains it on",
		file: "train/run.go",
		old:  "EvalInterval == 0 || evaluates {", new: "EvalInterval == 0 {",
		pkg: "./train", run: "^TestEvalOnly$",
	}, {
		bug:  "what is written is what the ranks hold a step later",
		file: "checkpoint/memory.go",
		old:  "return m.replace(s, &h), nil", new: "return s, nil",
		pkg: "./checkpoint", run: background,
	}, {
		bug:  "half a copy passes for a snapshot",
		file: "checkpoint/memory.go",
		old:  "\tbinary.NativeEndian.PutUint64(m.bytes, openWord)\n", new: "",
		pkg: "./checkpoint", run: whole,
	}, {
		bug:  "damage in memory is not seen",
		file: "checkpoint/memory.go",
		old:  "sum != p.CRC32C", new: "sum == 0",
		pkg: "./checkpoint", run: whole,
	}, {
		bug:  "a run goes on from the memory of another",
		file: "checkpoint/memory.go",
		old:  "h.Config == s.Config && ", new: "",
		pkg: "./checkpoint", run: "^TestMemoryOutlivesAProcess$",
	}, {
		bug:  "a snapshot is copied over one that is being written",
		file: "checkpoint/background.go",
		old:  "if err := b.Wait(); err != nil {", new: "if err := b.Poll(); err != nil {",
		pkg: "./checkpoint", run: background,
	}, {
		bug:  "nobody hears that a checkpoint could not be written",
		file: "checkpoint/background.go",
		old:  "\t\treturn w.err\n", new: "\t\treturn nil\n",
		pkg: "./checkpoint", run: "^TestBackgroundFails$",
	}, {
		bug:  "a run ends because an old checkpoint cannot be removed",
		file: "checkpoint/save.go",
		old:  "return name, &StaleError{err}, nil", new: "return \"\", nil, err",
		pkg: "./train", run: "^TestOldCheckpointStays$",
	}, {
		bug:  "a job whose clock was set back begins from the start",
		file: "checkpoint/open.go",
		old:  "now != before && now != Mark{}", new: "now.at > before.at",
		pkg: "./checkpoint", run: "^TestSaved$",
	}, {
		bug:  "a checkpoint that its run has removed meanwhile is read",
		file: "checkpoint/open.go",
		old:  "newest == dir || again == 9", new: "newest == dir || again == 0",
		pkg: "./checkpoint", run: "^TestOpenWhileSaving$",
	}, {
		bug:  "checkpoints of an earlier run stay beside those of one that has begun anew",
		file: "checkpoint/save.go",
		old:  " && !w.keep.New &&", new: " &&",
		pkg: "./train", run: "^TestNewRunReplaces$",
	}, {
		bug:  "to interrupt a run that has begun anew removes the checkpoints of the earlier one",
		file: "train/save.go",
		old:  "r.opts.Keep.Spare = r.opts.Keep.New", new: "_ = r.opts.Keep.New",
		pkg: "./train", run: "^TestInterruptedRunSpares$",
	}, {
		bug:  "checkpoints of steps after the one that a run went on from count as its own",
		file: "checkpoint/save.go",
		old:  "w.keep.From == 0 || s.step <= w.keep.From", new: "true",
		pkg: "./train", run: "^TestInterruptedRunSpares$",
	}, {
		bug:  "a run removes its own checkpoints as those of an earlier one",
		file: "train/save.go",
		old:  "r.background.Keep = r.opts.Keep", new: "_ = r.opts.Keep",
		pkg: "./train", run: "^TestNewRunReplaces$",
	}, {
		bug:  "a run ends before its last checkpoint is on disk",
		file: "train/save.go",
		old:  "return r.background.Wait()", new: "return r.background.Poll()",
		pkg: "./train", run: "^TestInterrupt$",
	}, {
		bug: "processes go on from memory where not all can", how: "one has nothing there",
		file: "train/save.go",
		old:  "other.Step != step || step", new: "other.Step > step || step",
		pkg: "./train", run: goesOn,
	}, {
		bug: "processes go on from memory where not all can", how: "the disk has a later step",
		file: "train/save.go",
		old:  "step < max(1, disk)", new: "step < 1",
		pkg: "./train", run: goesOn,
	}, {
		bug:  "what a job goes on with from memory is not written",
		file: "train/save.go",
		old:  "r.background.Resume(held, snap)", new: "_ = snap",
		pkg: "./train", run: "^TestMemoryIsWritten$",
	}, {
		bug:  "a first copy moves to new memory beside what was reserved",
		file: "checkpoint/memory.go",
		old:  "\ttotal += slack\n", new: "",
		pkg: "./checkpoint", run: "^TestReserve$",
	}, {
		bug: "a copy takes memory that is not there", how: "that of arenas which nobody has written yet",
		file: "train/room.go",
		old:  "m.Copy > m.Spare-m.Arenas", new: "m.Copy > m.Spare",
		pkg: "./train", run: "^TestCopyHasRoom$",
	}, {
		bug: "a copy takes memory that is not there", how: "every process of a machine counts on all that is spare",
		file: "train/room.go",
		old:  "room{m.Copy + f.Copy, m.Arenas + f.Arenas, f.HostMemory}", new: "f.room",
		pkg: "./train", run: "^TestCopiesHaveRoom$",
	}, {
		bug: "a copy takes memory that is not there", how: "that of a control group around the process's",
		file: "runtime/hostmemory.go",
		old:  "len(dir) >= len(root); dir = path.Dir(dir)", new: "len(dir) >= len(root); dir = \"\"",
		pkg: "./runtime", run: "^TestHostMemory$",
	}, {
		bug:  "checkpoints hold up a run whose copy is there already",
		file: "train/room.go",
		old:  "m.Copy > 0 && ", new: "",
		pkg: "./train", run: "^TestCopiesHaveRoom$",
	}, {
		bug:  "memory does not outlive a process",
		file: "launch/agent.go",
		old:  "memory.of(i)", new: "memory.of(a.Procs)",
		pkg: "./launch", run: "^TestAgents$",
	}, {
		bug:  "what checkpoints tell each other is taken for a step's",
		file: "launch/peers.go",
		old:  "if kind == kindAside {", new: "if kind == kindAside && false {",
		pkg: "./launch", run: "^TestPeers$",
	}, {
		bug:  "checkpoints of a directory whose latest is lost are removed",
		file: "cmd/autopar/checkpoint.go",
		old:  "if there := checkpoint.Holds(string(d)); there != \"\" {", new: "if there, _, err := checkpoint.Newest(string(d)); err == nil {",
		pkg: "./cmd/autopar", run: "^TestScripts$/^run$",
	}, {
		bug:  "a checkpoint that was cut again claims the settings of the new plan",
		file: "train/reshard.go",
		old:  "if snap.Plan, err = json", new: "snap.Config = string(cfg.Marshal())\n\tif snap.Plan, err = json",
		pkg: "./train", run: "^TestReshardFiles$",
	}, {
		bug:  "updates are lost with the data",
		file: "train/run.go",
		old:  "if !errors.As(err, &unread) || r.exec.Peers() != nil {", new: "if errors.As(err, &unread) || true {",
		pkg: "./train", run: "^TestUnreadableDataKeepsTheUpdates$",
	}, {
		bug: "a run is refused for want of memory that there is", how: "where files fill a control group without a limit",
		file: "runtime/hostmemory.go",
		old:  "told && all < unlimited", new: "told",
		pkg: "./runtime", run: "^TestHostMemory$",
	}}
}
