package mutants

// inTheProcesses has the bugs of a run with a process for each rank, and of what
// starts and watches them.
func inTheProcesses() []mutant {
	const agents, elastic, own = "^TestAgents$", "^TestLaunchElastic$", "^TestOwnRanks$"
	return []mutant{{
		bug:  "a program is loaded before memory that is not there is refused",
		file: "runtime/load.go",
		old:  "e.alloc(prog, true)", new: "e.alloc(prog, false)",
		pkg: "./runtime", run: "^TestMemoryComesFirst$",
	}, {
		bug: "processes number groups and wires in other ways", how: "each begins with those of its own ranks",
		file: "runtime/outline.go",
		old:  "\t\to := l.order(s)\n\t\tfor _, in", new: "\t\to := l.order(s)\n\t\tif l.exec.local(i) == nil && len(o.meets) > 0 {\n\t\t\to.meets = o.meets[:1]\n\t\t}\n\t\tfor _, in",
		pkg: "./runtime", run: own,
	}, {
		bug: "a micro-batch computes in the place of another", how: "of all slots in the first",
		file: "runtime/outline.go",
		old:  "v.slot = t.MicroBatch %", new: "v.slot = 0 * t.MicroBatch %",
		pkg: "./runtime", run: own,
	}, {
		bug: "a micro-batch computes in the place of another", how: "of all inboxes in the first",
		file: "runtime/outline.go",
		old:  "v.inbox = t.MicroBatch %", new: "v.inbox = 0 * t.MicroBatch %",
		pkg: "./runtime", run: own,
	}, {
		bug: "later micro-batches overwrite sums as the first does", how: "they share its actions",
		file: "runtime/outline.go",
		old:  "u.first && t.MicroBatch == 0", new: "u.first && t.MicroBatch < 0",
		pkg: "./runtime", run: own,
	}, {
		bug: "a short micro-batch is taken for a full one", how: "they share actions",
		file: "runtime/outline.go",
		old:  "rows: rows,", new: "rows: 0 * rows,",
		pkg: "./runtime", run: own,
	}, {
		bug: "micro-batches have the same dropout mask", how: "they share kernels",
		file: "runtime/outline.go",
		old:  "drop.P > 0:", new: "drop.P > 1:",
		pkg: "./runtime", run: own,
	}, {
		bug: "a message overwrites what is in use", how: "its place is free one micro-batch later",
		file: "runtime/action.go",
		old:  "t.MicroBatch - at.room}", new: "max(0, t.MicroBatch-at.room-1)}",
		pkg: "./runtime", run: own,
	}, {
		bug: "a report names another micro-batch", how: "they share collectives",
		file: "runtime/outline.go",
		old:  "l.exec.opts.Trace != nil", new: "l.exec.opts.Trace == nil",
		pkg: "./explain", run: "^TestMeasuredRun$",
	}, {
		bug: "ranks take more memory than there is", how: "each fits alone",
		file: "runtime/cpu/device.go",
		old:  "bytes > b.free-b.taken {", new: "bytes > b.free {",
		pkg: "./runtime/cpu", run: "^TestArenasOfAProcess$",
	}, {
		bug: "ranks take more memory than there is", how: "each process of a machine fits alone",
		file: "train/room.go",
		old:  "if m.Arenas > m.Free {", new: "if all[rank].Arenas > m.Free {",
		pkg: "./train", run: "^TestArenasHaveRoom$",
	}, {
		bug:  "a port that is mute is not said to be",
		file: "launch/join.go",
		old:  "else if ended && (err == nil", new: "else if !ended && (err == nil",
		pkg: "./launch", run: "^TestLate$",
	}, {
		bug:  "a rank that is interrupted while it waits for rank 0 is taken for lost",
		file: "launch/join.go",
		old:  "		conn.write(kindInterrupted, interrupted)\n", new: "",
		pkg: "./launch", run: "^TestInterruptedWhileJoining$",
	}, {
		bug:  "a restart leaves a global batch out",
		file: "train/run.go",
		old:  "for it := r.result.Steps; ", new: "for it := r.result.Steps + min(1, r.result.Steps); ",
		pkg: "./cmd/autopar", run: "^TestEachWindowIsConsumed$",
	}, {
		bug:  "processes train by different plans",
		file: "train/agree.go",
		old:  "if line != theirs[i] {", new: "if false {",
		pkg: "./train", run: "^TestProcessesTrainAlike$",
	}, {
		bug: "processes train by different plans", how: "whose programs differ in what an op is told",
		file: "runtime/peers.go",
		old:  "in.Node.Attr, in.Results", new: "in.Results",
		pkg: "./train", run: "^TestProcessesTrainAlike$",
	}, {
		bug: "processes train by different plans", how: "that differ in which rank is where alone",
		file: "runtime/peers.go",
		old:  "json.Marshal(prog.Plan)", new: "json.Marshal(0)",
		pkg: "./runtime", run: "^TestProcessesFail$",
	}, {
		bug:  "processes resume from different checkpoints",
		file: "train/save.go",
		old:  "if other.Disk != all[0].Disk {", new: "if other.Disk > all[0].Disk {",
		pkg: "./train", run: "^TestProcessesResumeAlike$",
	}, {
		bug:  "processes begin with different weights",
		file: "train/agree.go",
		old:  "if string(other) != string(sums[0]) {", new: "if false {",
		pkg: "./train", run: "^TestProcessesBeginAlike$",
	}, {
		bug: "who is slow to say who it is is turned away for good", how: "by rank 0",
		file: "launch/join.go",
		old:  "return 0, true, err", new: "return 0, false, err",
		pkg: "./launch", run: "^TestSilence$",
	}, {
		bug: "who is slow to say who it is is turned away for good", how: "by machine 0",
		file: "launch/host.go",
		old:  "if err != nil {\n\t\tconn.Close()\n\t\treturn\n\t}", new: "if err != nil {\n\t\tconn.write(kindFail, nil)\n\t\tconn.Close()\n\t\treturn\n\t}",
		pkg: "./launch", run: "^TestSilence$",
	}, {
		bug: "a process adds up what another has not written", how: "it does not wait for all to enter",
		file: "runtime/cpu/collective.go",
		old:  "if g.shared && large(c) {\n\t\tif err := d.wait(g.arrivals, all, g.late); err != nil {", new: "if g.shared && large(c) {\n\t\tif err := d.wait(g.arrivals, 0, g.late); err != nil {",
		pkg: "./runtime/cpu", run: "^TestLateOperand$",
	}, {
		bug: "what a rank takes in a collective is counted for nobody", how: "each makes a share",
		file: "runtime/cpu/exchange.go",
		old:  "shares == 1 || i == share", new: "shares == 1",
		pkg: "./runtime/cpu", run: "^TestLateOperand$",
	}, {
		bug: "the last elements of a tensor are in nobody's share", how: "elements that lie together begin with their first",
		file: "ir/slab.go",
		old:  "for skip := lo % run; ", new: "for skip := 0; ",
		pkg: "./ir", run: "^TestEachRunOf$",
	}, {
		bug: "one core makes a collective while another is idle", how: "elements do not lie together in large numbers",
		file: "runtime/cpu/exchange.go",
		old:  "d.split = max(n/unitElems, (4*d.pool.Threads()+made-1)/made)", new: "d.split = max(min(n/unitElems, c.Members[0].Out.Slab.Local[len(c.Members[0].Out.Slab.Local)-1]/512), 1)",
		pkg: "./runtime/cpu", run: "^TestExchangeOfShortRuns$",
	}, {
		bug: "the last elements of a tensor are in nobody's share", how: "shares are whole lines of cache",
		file: "runtime/cpu/exchange.go",
		old:  "if share+1 == shares {", new: "if share+1 == shares && n%lineElems == 0 {",
		pkg: "./runtime/cpu", run: "^TestConformanceOfProcesses$/^shared_memory$/^collectives$/^all_reduce$",
	}, {
		bug: "wrong p2p destination", how: "on another machine",
		file: "runtime/cpu/link.go",
		old:  "bytes(runtime.OnDevice, int64(b), n)", new: "bytes(runtime.OnDevice, int64(b)+4, n)",
		pkg: "./runtime/cpu", run: "^TestConformanceOfProcesses$/^TCP$/^transfers_on",
	}, {
		bug: "a rank waits for an event that has happened", how: "whom another machine answers late forgets what was asked since",
		file: "runtime/cpu/wait.go",
		old:  "a.process == process && a.want <= n", new: "a.process == process",
		pkg: "./runtime/cpu", run: "^TestLateAnswer$",
	}, {
		bug: "a rank waits for an event that has happened", how: "of what two of its streams wait for another machine keeps one",
		file: "runtime/cpu/wait.go",
		old:  "c.asked = append(c.asked, asked{process, n})", new: "c.asked = append(c.asked[:0], asked{process, n})",
		pkg: "./runtime/cpu", run: "^TestConformanceOfProcesses$/^TCP$/^two_streams",
	}, {
		bug:  "two machines wait for each other to read",
		file: "runtime/cpu/link.go",
		old:  "o.start(func() { o.ring(l.rank, c, now) })", new: "o.ring(l.rank, c, now)",
		pkg: "./runtime/cpu", run: "^TestReaderDoesNotWait$",
	}, {
		bug: "memory that processes share goes while it is in use", how: "by a stream that has done its work",
		file: "runtime/cpu/stream.go",
		old:  "s.lane.backend.others.start(s.serve)", new: "go s.serve()",
		pkg: "./runtime/cpu", run: "^TestSharedMemoryWaits$",
	}, {
		bug: "a rank waits without end", how: "for a machine that takes nothing of what it sends",
		file: "runtime/cpu/link.go",
		old:  "if waited >= l.timeout {", new: "if waited < 0 {",
		pkg: "./runtime/cpu", run: "^TestWhoReadsNothing$",
	}, {
		bug: "a failed run waits", how: "for a machine that takes nothing of what it sends",
		file: "runtime/cpu/link.go",
		old:  "case <-l.stopped:\n\t\t\tl.end(true)", new: "case <-make(chan struct{}):\n\t\t\tl.end(true)",
		pkg: "./runtime/cpu", run: "^TestWhoReadsNothing$",
	}, {
		bug:  "a process leaves processors idle on which no other may run",
		file: "runtime/cpu/others.go",
		old:  "n := len(o.beside)", new: "n := len(o.local)",
		pkg: "./runtime/cpu", run: "^TestProcessorsOfOthers$",
	}, {
		bug:  "who waits for a connection does not hear that another rank has failed",
		file: "launch/connect.go",
		old:  "case <-p.failed:\n\t\t\tcancel()", new: "case <-p.failed:",
		pkg: "./launch", run: "^TestConnectHearsOfFailure$",
	}, {
		bug: "processes stop before different steps", how: "each heeds its own signal",
		file: "runtime/peers.go",
		old:  "e.shared.stop = e.shared.stop || b[0] != 0", new: "e.shared.stop = e.shared.stop || b[0] != 0 && rank == e.first",
		pkg: "./runtime", run: "^TestProcessesStopTogether$",
	}, {
		bug:  "a machine that comes is left waiting",
		file: "launch/host.go",
		old:  "\t\t\t\tstop(stopGently)\n", new: "\t\t\t\t_ = stopGently\n",
		pkg: "./launch", run: "^TestMachinesComeAndGo$",
	}, {
		bug:  "wrong input is tried again",
		file: "launch/agent.go",
		old:  "return exit.Final\n", new: "return exit.Final && false\n",
		pkg: "./launch", run: agents,
	}, {
		bug:  "numbers that are not finite are computed again",
		file: "cmd/autopar/status.go",
		old:  " || is[*train.DivergedError](err)", new: "",
		pkg: "./cmd/autopar", run: "^TestStatusOfErrors$",
	}, {
		bug: "numbers that are not finite are computed again", how: "with train.reproducible",
		file: "cmd/autopar/status.go",
		old:  "is[*cpu.FixedError](err)", new: "is[*cpu.FixedError](nil)",
		pkg: "./cmd/autopar", run: "^TestStatusOfErrors$",
	}, {
		bug:  "another rank is blamed for one that the system has killed",
		file: "launch/agent.go",
		old:  "ok && killed && exit.Signal", new: "ok && (killed || first != nil) && exit.Signal",
		pkg: "./launch", run: agents,
	}, {
		bug:  "a rank that stands still when others have ended well is waited for without end",
		file: "launch/agent.go",
		old:  "within(a.Patience)", new: "_ = a.Patience",
		pkg: "./launch", run: "^TestOthersHaveEnded$",
	}, {
		bug:  "the end of a last line is lost",
		file: "launch/agent.go",
		old:  "out.flush()", new: "_ = out.flush",
		pkg: "./launch", run: agents,
	}, {
		bug:  "a job goes on by the plan of another number of ranks",
		file: "cmd/autopar/launch.go",
		old:  "n != ranks {", new: "n < 0 {",
		pkg: "./cmd/autopar", run: elastic,
	}, {
		bug:  "a restarted job begins from the start",
		file: "cmd/autopar/launch.go",
		old:  "s.Number > 0 && checkpoint", new: "s.Number < 0 && checkpoint",
		pkg: "./cmd/autopar", run: elastic,
	}, {
		bug: "a job that is told to stop twice is killed before it has saved", how: "by its launcher, and by who stops all processes",
		file: "cmd/autopar/main.go",
		old:  "if !launch.ByAgent() {", new: "if true {",
		pkg: "./cmd/autopar", run: "^TestSignalToAll$",
	}, {
		bug: "a job that is told to stop twice is killed before it has saved", how: "within a moment",
		file: "cmd/autopar/main.go",
		old:  "time.AfterFunc(sameWish, stop)", new: "stop()",
		pkg: "./cmd/autopar", run: "^TestSignalToAll$",
	}, {
		bug: "a run that was interrupted passes for one that is done", how: "to who has started it",
		file: "cmd/autopar/run.go",
		old:  "return context.Canceled\n", new: "return nil\n",
		pkg: "./cmd/autopar", run: "^TestHangUp$",
	}, {
		bug: "a run that was interrupted passes for one that is done", how: "to the machines of a job",
		file: "launch/host.go",
		old:  "\t\t\treturn context.Canceled\n", new: "\t\t\treturn nil\n",
		pkg: "./launch", run: "^TestMachinesComeAndGo$",
	}, {
		bug:  "a process that has failed gathers what others sent before they knew",
		file: "launch/peers.go",
		old:  "if err := p.Err(); err != nil {", new: "if err := p.Err(); err != nil && false {",
		pkg: "./launch", run: "^TestFailure$",
	}, {
		bug:  "a process that has ended because of another is blamed",
		file: "launch/peers.go",
		old:  "case <-moment.C:\n\t\tp.lost(rank, addr, err)\n\t}", new: "default:\n\t\tp.lost(rank, addr, err)\n\t}",
		pkg: "./launch", run: "^TestLostHearsWhy$",
	}, {
		bug:  "rank 0 ends before it has told the others of a failure",
		file: "launch/peers.go",
		old:  "case <-p.told:", new: "case <-p.failed:",
		pkg: "./launch", run: "^TestLostHearsWhy$",
	}, {
		bug:  "ranks that hung are not named",
		file: "launch/agent.go",
		old:  "if other.Late > 0 {", new: "if other.Late > 0 && false {",
		pkg: "./launch", run: "^TestHungRanksAreNamed$",
	}, {
		bug:  "machines train though they save in directories of their own",
		file: "train/agree.go",
		old:  "err != nil && len(names[0]) > 0 {", new: "err != nil && len(names[0]) < 0 {",
		pkg: "./train", run: "^TestProcessesSaveTogether$",
	}}
}
