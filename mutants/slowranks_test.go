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
	}}
}
