package mutants

// inThePools has the bugs of clusters with several kinds of devices.
func inThePools() []mutant {
	return []mutant{{
		bug: "a position on two kinds is as fast as one of them", how: "the first",
		file: "planner/cost/kernel.go",
		old:  "for _, k := range m.kinds {", new: "for _, k := range m.kinds[:1] {",
		pkg: "./planner/cost", run: "^TestKernelsOfPools$",
	}, {
		bug: "a position on two kinds is as fast as one of them", how: "the one that a collective beside it delays least",
		file: "planner/cost/time.go",
		old:  "most = max(most, k.Slows(collective))", new: "most = min(most, k.Slows(collective))",
		pkg: "./planner/cost", run: "^TestCollectivesBesideKernelsOfPools$",
	}, {
		bug: "a position on two kinds has the memory of the roomier one", how: "in what a plan may take",
		file: "planner/cost/pool.go",
		old:  "least = min(least, pool.Cluster.MemoryPerRank(p.RuntimeNGPUs))", new: "_ = pool",
		pkg: "./planner/cost", run: "^TestPositionsLieOnPools$",
	}, {
		bug: "ranks lie along the pools as they stand in the cluster", how: "whatever their order in the plan",
		file: "planner/cost/poollayout.go",
		old:  "pool := poolAt(p, i)", new: "pool := i",
		pkg: "./planner/cost", run: "^TestNetworkOfPools$",
	}, {
		bug: "the floor of a job on two kinds is that of the slower", how: "not admissible",
		file: "planner/pools.go",
		old:  "a.forward, a.weight = min(a.forward, b.forward), min(a.weight, b.weight)", new: "a.forward, a.weight = max(a.forward, b.forward), max(a.weight, b.weight)",
		pkg: "./planner", run: "^TestStagesFollowSpeed$",
	}, {
		bug: "one order of the pools is searched", how: "the memory that comes first may be too little",
		file: "planner/space.go",
		old:  "for d.order = range c.Orders() {", new: "for d.order = range c.Orders()[:1] {",
		pkg: "./planner", run: "^TestRoomyPoolComesFirst$",
	}, {
		bug: "blocks go to the fast kind beyond its memory", how: "every stage may take what the roomiest kind has",
		file: "planner/pools.go",
		old:  "return min(s.limit, s.cluster.MemoryAt(p, position))", new: "return s.limit",
		pkg: "./planner", run: "^TestStagesFollowSpeed$",
	}, {
		bug: "one plan is its own alternative", how: "its only stage in another order of pools",
		file: "planner/pools.go",
		old:  "slices.Equal(in, kinds[d.order]) }); d.pp == 1 && all {", new: "slices.Equal(in, kinds[d.order]) }); d.pp == 0 && all {",
		pkg: "./planner", run: "^TestAlternativesDiffer$",
	}, {
		bug: "floors of two kinds of devices far below what plans take", how: "blocks at other positions take as long as at the fastest of all",
		file: "planner/fastest.go",
		old:  "return f.other", new: "return f.least",
		pkg: "./planner", run: "^TestFloorsOfKinds$",
	}, {
		bug: "a floor above what a plan takes", how: "a chain that gets shorter with each block of a fast position counts the first alone",
		file: "planner/passage.go",
		old:  "c.fixed, c.block = c.fixed+most*c.block, 0", new: "_ = most",
		pkg: "./planner", run: "^TestFloorsOfKinds$",
	}, {
		bug: "bounds of cuts far below what they take", how: "a block of a slow stage takes as long as of another",
		file: "planner/bound.go",
		old:  "x.slower = p.ahead(i).block[kept] + c.back[first][i].least() - x.pair", new: "x.slower = 0",
		pkg: "./planner", run: "^TestFloorsOfKinds$",
	}, {
		bug: "stages with ample memory are laid out", how: "half of the roomiest kind's memory is what others lack, or less",
		file: "planner/slices.go",
		old:  "limit -= s.lacks[t.stage]", new: "limit -= 2 * s.lacks[t.stage]",
		pkg: "./planner", run: "^TestRoomOnKinds$",
	}}
}
