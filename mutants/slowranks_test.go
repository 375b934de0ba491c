package mutants

// inSlowRanks has the bugs of finding ranks that are broken or slow, before and while they train.
func inSlowRanks() []mutant {
	const finds, named = "^TestFindsTheRank$", "^TestSlowRankIsNamed$"
	return []mutant{{
		bug: "the partner of a bad rank is blamed", how: "the second round has the pairs of the first",
		file: "nodecheck/check.go",
		old:  "meetings = nextMeetings(one)", new: "meetings = firstMeetings(n)",
		pkg: "./nodecheck", run: finds,
	}, {
		bug: "the partner of a bad rank is blamed", how: "who meets it twice, of three",
		file: "nodecheck/meetings.go",
		old:  "return !met(round, rank, other)", new: "return met(round, rank, other)",
		pkg: "./nodecheck", run: finds,
	}, {
		bug: "the partner of a bad rank is blamed", how: "who waits for that partner until both have no time left",
		file: "nodecheck/check.go",
		old:  "1+before(meetings[:i], m)", new: "1+0*before(meetings[:i], m)",
		pkg: "./nodecheck", run: "^TestFindsTheStuckRank$",
	}, {
		bug:  "a bad rank is well in one of two rounds",
		file: "nodecheck/judge.go",
		old:  "if failed := failure(rank, x, round); failed != \"\" {", new: "if failed := x.Err; failed != \"\" {",
		pkg: "./nodecheck", run: "^TestOneSideFails$",
	}, {
		bug:  "of two ranks none is slow",
		file: "nodecheck/judge.go",
		old:  "return all[(len(all)-1)/2]", new: "return all[len(all)/2]",
		pkg: "./nodecheck", run: "^TestFindsTwo$",
	}, {
		bug:  "a device that computes wrong numbers is well",
		file: "nodecheck/work.go",
		old:  "n, d.compared = d.size*d.size, true", new: "d.compared = true",
		pkg: "./nodecheck", run: "^TestWrongNumbers$",
	}, {
		bug: "nobody is a straggler", how: "waiting for it counts as computing",
		file: "runtime/rank.go",
		old:  "r.computed = time.Since(began) - r.apart", new: "r.computed = time.Since(began)",
		pkg: "./train", run: named,
	}, {
		bug: "nobody is a straggler", how: "each knows its own time alone",
		file: "runtime/peers.go",
		old:  "e.shared.computed[rank] = time.Duration", new: "_ = time.Duration",
		pkg: "./train", run: named,
	}, {
		bug:  "the rank of a larger stage is a straggler",
		file: "train/straggler.go",
		old:  "float64(s.steps) / s.share(rank)", new: "float64(s.steps)",
		pkg: "./train", run: "^TestStragglers$",
	}, {
		bug:  "a rank that was disturbed once is slow",
		file: "train/straggler.go",
		old:  "looks[settled/2]", new: "looks[settled-1]",
		pkg: "./train", run: "^TestSlowAndQuick$",
	}, {
		bug: "a slow rank has as many sequences as others", how: "who is next is who has the fewest",
		file: "planner/balance.go",
		old:  "float64(n+1)*pace[dp] < float64(shares[to]+1)*pace[to]", new: "n < shares[to]",
		pkg: "./planner", run: "^TestShares$",
	}, {
		bug: "a slow rank has as many sequences as others", how: "only the first stage of a pipeline counts",
		file: "planner/balance.go",
		old:  "even.WorldRank(position, device)", new: "even.WorldRank(0*position, device)",
		pkg: "./planner", run: "^TestShares$",
	}, {
		bug: "a slow rank has as many sequences as others", how: "its job ends with the plan for it",
		file: "launch/host.go",
		old:  "if again, err = h.Again(); !again {", new: "if _, err = h.Again(); !again {",
		pkg: "./launch", run: "^TestAgain$",
	}, {
		bug:  "a job says that it was restarted where nothing had failed",
		file: "launch/host.go",
		old:  "Restarts: h.restarts,", new: "Restarts: number,",
		pkg: "./launch", run: "^TestAgain$",
	}, {
		bug: "another rank has the slow one's share", how: "ranks have their shares in the order of the mesh",
		file: "partition/shares.go",
		old:  "return cmp.Compare(p.BatchShares[b], p.BatchShares[a]) })\n\treturn order", new: "return 0 })\n\treturn order",
		pkg: "./partition", run: "^TestBatchShares$",
	}, {
		bug:  "a job is started anew for a plan that is hardly faster",
		file: "cmd/autopar/balance.go",
		old:  "case gain < worthwhile:", new: "case gain < 0:",
		pkg: "./cmd/autopar", run: "^TestBalancer$",
	}, {
		bug:  "ranks wait for a slow one as if it was none",
		file: "planner/sim/program.go",
		old:  "b.slow[s.Rank] * float64(o.work)", new: "b.slow[0] * float64(o.work)",
		pkg: "./planner", run: "^TestBalance$",
	}, {
		bug:  "elements of parts with shares are in two of them",
		file: "ir/mesh.go",
		old:  "off := min(i, left)", new: "off := 0",
		pkg: "./ir", run: "^TestLocalTiles$",
	}}
}
