package mutants

// inTheCluster has the bugs of the network's hierarchy, of the checks of cluster
// files and tables, and of pricing a plan anew.
func inTheCluster() []mutant {
	return []mutant{{
		bug: "the share of an outer level is not divided by the devices inside", how: "of three levels",
		file: "planner/cost/topology.go",
		old:  "reached *= f\n", new: "reached = f\n",
		pkg: "./planner/cost", run: "^TestThreeLevels$",
	}, {
		bug: "a transfer has all ports of its node to itself", how: "however many send",
		file: "planner/cost/topology.go",
		old:  "sharing := max(r.ports, float64(senders))", new: "sharing := r.ports",
		pkg: "./planner/cost", run: "^TestPortsAreShared$",
	}, {
		bug: "a transfer is as fast as most of its pairs", how: "that of the innermost level stands for all",
		file: "planner/cost/topology.go",
		old:  "slowest = max(slowest, m.rungs[l].latency+", new: "slowest = max(m.rungs[0].latency, m.rungs[l].latency+",
		pkg: "./planner/cost", run: "^TestTransferOfTheSlowestPair$",
	}, {
		bug: "a rank alone on its node brings in as little as the others", how: "groups lie evenly",
		file: "planner/cost/topology.go",
		old:  "t += u.share() * size / rate", new: "t += (f - 1) / f * (size / reached) / rate",
		pkg: "./planner/cost", run: "^TestUnevenGroups$",
	}, {
		bug: "what leaves a rack has the bandwidth of its nodes", how: "oversubscription is forgotten",
		file: "planner/cost/topology.go",
		old:  "network.bandwidth /= c.Oversubscription\n", new: "",
		pkg: "./planner/cost", run: "^TestThreeLevels$",
	}, {
		bug: "rings of rings", how: "a gather makes as many hops in a node as one node does",
		file: "planner/cost/topology.go",
		old:  "hops := max(f-1, math.Ceil(n/reached)-math.Ceil(n/(reached*f)))", new: "hops := f - 1",
		pkg: "./planner/cost", run: "^TestHops$",
	}, {
		bug: "a tensor pays for the whole buffer it goes in", how: "every tensor waits for all hops",
		file: "planner/cost/program.go",
		old:  "return min(1, float64(bytes)/m.software.Buffer)", new: "return 1",
		pkg: "./planner/cost", run: "^TestHops$",
	}, {
		bug:  "weights are cast to 8 bits for every micro-batch",
		file: "planner/cost/program.go",
		old:  "float64(ir.Elems(args[i])) / uses", new: "float64(ir.Elems(args[i])) / min(1, uses)",
		pkg: "./planner/cost", run: "^TestWeightsAreCastOnce$",
	}, {
		bug: "work divides over cores at no cost", how: "of ranks that wait",
		file: "planner/cost/crowd.go",
		old:  "return max(m.ranksPerCore, more*t)", new: "return more",
		pkg: "./planner/cost", run: "^TestCrowdedPipeline$",
	}, {
		bug: "cores are idle that have less to do", how: "the largest share is every rank's",
		file: "planner/cost/crowd.go",
		old:  "return sum / Picoseconds(ranks)", new: "return most",
		pkg: "./planner/cost", run: "^TestUnevenShares$",
	}, {
		bug: "ranks that have a core each wait for one", how: "where they meet",
		file: "planner/cost/shared.go",
		old:  "n/float64(m.cluster.Device.Cores)-1", new: "n-1",
		pkg: "./planner/cost", run: "^TestOnePass$",
	}, {
		bug: "each rank writes all that a reduce_scatter makes", how: "in its price",
		file: "planner/cost/shared.go",
		old:  "return float64(bytes) + float64(2*bytes)/n", new: "return float64(bytes) + float64(2*bytes)",
		pkg: "./planner/cost", run: "^TestOnePass$",
	}, {
		bug: "a core has near what another has written", how: "in the price of an update",
		file: "planner/cost/shared.go",
		old:  "return n.Phase == ir.Update", new: "return false",
		pkg: "./planner/cost", run: "^TestAcross$",
	}, {
		bug: "two cores share work that one does sooner", how: "in its price",
		file: "planner/cost/shared.go",
		old:  "return min(t+m.packing(w, m.alone)+m.fork+float64(bytes*m.remote), float64(t*m.alone)+one)", new: "return max(t+m.packing(w, m.alone)+m.fork+float64(bytes*m.remote), one)",
		pkg: "./planner/cost", run: "^TestKernelsOfSeveralCores$",
	}, {
		bug: "what a product packs is divided with it", how: "where cores divide its rows, each packs all columns",
		file: "planner/cost/shared.go",
		old:  "return left, terms * min(cols, cols/cores", new: "return left, terms * min(cols/cores, cols/cores",
		pkg: "./planner/cost", run: "^TestPacking$",
	}, {
		bug: "a product packs its right-hand matrix alone", how: "in its price",
		file: "planner/cost/shared.go",
		old:  "left = terms * rows / cores", new: "left = 0 * rows",
		pkg: "./planner/cost", run: "^TestPacking$",
	}, {
		bug: "weights that no cache holds are packed as fast as others", how: "on any machine",
		file: "planner/cost/shared.go",
		old:  "t += packedBytes * right /", new: "t += 0 * packedBytes * right /",
		pkg: "./planner/cost", run: "^TestPacking$",
	}, {
		bug: "the best tiles of a product are left", how: "those that take more than half of the best before",
		file: "planner/cost/kernel.go",
		old:  "full*(1-1e-9) >= best {", new: "full >= best/2 {",
		pkg: "./planner/cost", run: "^TestProductInWaves$",
	}, {
		bug: "attention needs as many keys as its gradient for half its rate", how: "where both are stated",
		file: "planner/cost/kernel.go",
		old:  "if w.backward && m.efficiency.AttentionGradHalf > 0 {", new: "if m.efficiency.AttentionGradHalf > 0 {",
		pkg: "./planner/cost", run: "^TestKernelsByOp$",
	}, {
		bug: "what computes nothing moves its bytes at the full rate", how: "whatever the cluster states of it",
		file: "planner/cost/kernel.go",
		old:  "traffic /= m.reached(w, 1)", new: "traffic /= max(1, m.reached(w, 1))",
		pkg: "./planner/cost", run: "^TestKernelsByOp$",
	}, {
		bug: "figures of shared machines are read of others, and mean nothing", how: "all but those by op",
		file: "planner/cost/shared.go",
		old:  "if figure != 0 {", new: "if figure < 0 {",
		pkg: "./planner/cost", run: "^TestSharedYAML$",
	}, {
		bug: "ranks that share a core pack as if each had one", how: "in the price of a product",
		file: "planner/cost/shared.go",
		old:  "c.Device.Pack * max(1, m.ranksPerCore)", new: "c.Device.Pack",
		pkg: "./planner/cost", run: "^TestPacking$",
	}, {
		bug: "what cores lose that divide a product is put down to products of one, too", how: "in the fit",
		file: "runtime/cpu/profile/fit.go",
		old:  "if s.share*cores > 1 {", new: "if s.share*cores >= 1 {",
		pkg: "./runtime/cpu/profile", run: "^TestFitsFindWhatMadeTheTimes$",
	}, {
		bug: "the middle one of three blocks of columns is packed by both cores", how: "products on tiles are cut as for one",
		file: "runtime/cpu/kernel/tiles.go",
		old:  "a < min(first+threads, panels+1)", new: "a < first+1",
		pkg: "./runtime/cpu/kernel", run: "^TestTileBlocks$",
	}, {
		bug: "cores divide the columns of products of many rows", how: "a number of the left counts once",
		file: "runtime/cpu/kernel/tiles.go",
		old:  "packed := 2*parts*a*m/threads", new: "packed := parts*a*m/threads/8",
		pkg: "./runtime/cpu/kernel", run: "^TestTileBlocks$",
	}, {
		bug: "gathering is priced as fast as summing in place", how: "lines are written that nobody has read",
		file: "planner/cost/shared.go",
		old:  "return float64(3 * (bytes - inPlace))", new: "return float64(2 * (bytes - inPlace))",
		pkg: "./planner/cost", run: "^TestOnePass$",
	}, {
		bug: "ranks that take turns find their tensors near another core", how: "who has waited longest gets any core",
		file: "runtime/cpu/kernel/cores.go",
		old:  "return p.home == w || p.home == nil", new: "return true",
		pkg: "./runtime/cpu/kernel", run: "^TestCoreGoesToWhoHadItLast$",
	}, {
		bug: "a rank waits for others for ever", how: "its own core never comes free",
		file: "runtime/cpu/kernel/cores.go",
		old:  "c.queue[0].home = nil", new: "_ = c.queue[0].home",
		pkg: "./runtime/cpu/kernel", run: "^TestCoreGoesToWhoHadItLast$",
	}, {
		bug: "caches of one core hold what all do", how: "what a kernel finds near others",
		file: "planner/cost/shared.go",
		old:  "bytes = min(bytes, float64(m.cache.Memory)*m.ranksPerCore)", new: "bytes = min(bytes, float64(m.cache.Memory))",
		pkg: "./planner/cost", run: "^TestKernelsOfSeveralCores$",
	}, {
		bug: "what all products of several cores lose is put down to reading across", how: "in the fit",
		file: "runtime/cpu/profile/fit.go",
		old:  "forked, apart = 1, s.across", new: "forked, apart = 0, s.across",
		pkg: "./runtime/cpu/profile", run: "^TestFitsFindWhatMadeTheTimes$",
	}, {
		bug: "an update by each of several ranks counts as shared by them", how: "when their kernels are set beside those of one rank",
		file: "runtime/cpu/profile/programs.go",
		old:  "part = of.work.FLOPs / in.work.FLOPs / cores", new: "part = 1",
		pkg: "./runtime/cpu/profile", run: "^TestPairsAreOfTheSameWork$",
	}, {
		bug: "what a whole model is priced wrong is put down to turns", how: "in the fit",
		file: "runtime/cpu/profile/profile.go",
		old:  "most*few.seconds/least", new: "most+0*least",
		pkg: "./runtime/cpu/profile", run: "^TestTurn$",
	}, {
		bug: "a run that leaves nothing is stopped in a step after two minutes", how: "no collection between steps comes first",
		file: "train/garbage.go",
		old:  "|| time.Since(g.last) > idleTime", new: "",
		pkg: "./train", run: "^TestGarbage$",
	}, {
		bug: "GOGC stays as a run has set it", how: "where another had set it before, and ended first",
		file: "train/garbage.go",
		old:  "now != backstop {", new: "now < 0 && now != backstop {",
		pkg: "./train", run: "^TestGarbageOfTwoRuns$",
	}, {
		bug: "schedules share their prices on a crowded machine", how: "the first that is priced decides",
		file: "planner/price.go",
		old:  "return &under, schedule", new: "return &under, s.plan.Schedule",
		pkg: "./planner", run: "^TestSchedulesOfACrowd$",
	}, {
		bug:  "a plan measured twice is two plans",
		file: "measured/regret.go",
		old:  "plans := once(groups[s])", new: "plans := groups[s]",
		pkg: "./measured", run: "^TestRegret$",
	}, {
		bug:  "a plan priced anew fits in a byte less than it needs",
		file: "explain/room.go",
		old:  "r.Fits = left >= 0", new: "r.Fits = left >= -1",
		pkg: "./explain", run: "^TestRecostSaysWhatDoesNotFit$",
	}, {
		bug: "micro-batches larger than the batch pass", how: "in a table of measurements",
		file: "measured/consistent.go",
		old:  "step > r.GlobalBatch {", new: "step > r.DP*r.GlobalBatch {",
		pkg: "./measured", run: "^TestReadRefuses$",
	}, {
		bug: "whole gradients are summed in the time of their parts", how: "an all-reduce is priced as a reduce-scatter",
		file: "planner/cost/program.go",
		old:  "m.collective(m.replicas(n.Op), bytes, inPlace", new: "m.collective(n.Op, bytes, inPlace",
		pkg: "./planner/cost", run: "^TestAllReduce$",
	}, {
		bug: "data-parallel ranks lose no network", how: "whatever their software reduces by",
		file: "planner/cost/program.go",
		old:  "return cmp.Or(m.software.Replicas, 1)", new: "return cmp.Or(0*m.software.Replicas, 1)",
		pkg: "./planner/cost", run: "^TestReplicas$",
	}, {
		bug: "all ranks lose network", how: "as data-parallel ones do",
		file: "planner/cost/program.go",
		old:  "crossing{hops: share, network: 1})", new: "crossing{hops: share, network: m.beyond()})",
		pkg: "./planner/cost", run: "^TestReplicas$",
	}, {
		bug: "the floor of a data-parallel collective has the whole network", how: "or another one than the collective",
		file: "planner/cost/program.go",
		old:  "hops: m.buffered(bytes), network: m.beyond()", new: "hops: m.buffered(bytes), network: 1",
		pkg: "./planner/cost", run: "^TestReplicas$",
	}, {
		bug: "groups are compared for tensor parallelism alone", how: "one that is faster for replicas is left out",
		file: "planner/cost/topology.go",
		old:  "[]float64{1, m.beyond()}", new: "[]float64{1}",
		pkg: "./planner/cost", run: "^TestNoFasterOfReplicas$",
	}, {
		bug:  "DeepSpeed reduces gradients of bfloat16 as it does those of float16",
		file: "measured/software.go",
		old:  `return "megatron-deepspeed-bf16"`, new: `return "megatron-deepspeed"`,
		pkg: "./measured", run: "^TestSoftwareByRule$",
	}, {
		bug:  "flash-attn's cross entropy takes as much as Megatron's",
		file: "measured/memory.go",
		old:  `has("llm-foundry", "flash-attn") || has("torchtitan")`, new: `has("torchtitan")`,
		pkg: "./measured", run: "^TestLoss$",
	}, {
		bug: "tensor-parallel ranks have the same parameters", how: "their sums are priced as those of replicas",
		file: "planner/cost/program.go",
		old:  "return partition.FollowsBatch(axis)\n", new: "return partition.FollowsBatch(axis) || axis.Name == partition.AxisTP\n",
		pkg: "./planner/cost", run: "^TestAllReduce$",
	}, {
		bug: "rings of slots are taken for what is in flight", how: "of interleaved chunks, in the memory of others' software",
		file: "measured/memory.go",
		old:  "*float64(f.AtOnce)/float64(f.Slots)", new: "",
		pkg: "./measured", run: "^TestMegatron$",
	}, {
		bug: "Megatron keeps what sequence parallelism gathered", how: "as autograd does",
		file: "measured/memory.go",
		old:  " && !s.regathers", new: "",
		pkg: "./measured", run: "^TestMegatron$",
	}, {
		bug: "heads whose rows are not aligned are computed on tensor cores", how: "all scores of them",
		file: "planner/cost/kernel.go",
		old:  "rate = m.peak // rows", new: "// rows",
		pkg: "./planner/cost", run: "^TestAttention$",
	}, {
		bug: "times of plans measured once count as noise", how: "the first of a plan is free too",
		file: "measured/noise.go",
		old:  "free += len(logs) - 1", new: "free += len(logs)",
		pkg: "./measured", run: "^TestNoise$",
	}, {
		bug: "a compiler's norms are kept", how: "only those made again in any case are not",
		file: "measured/memory.go",
		old:  "case r.Compiled:", new: "case r.Compiled && made.Again:",
		pkg: "./measured", run: "^TestCompiledNorms$",
	}, {
		bug: "a constant fitted to the time of an instruction with its overhead in it", how: "the straight line has no offset",
		file: "runtime/cpu/profile/fit.go",
		old:  "half: f[1] / f[0]", new: "half: 0",
		pkg: "./runtime/cpu/profile", run: "^TestFitsFindWhatMadeTheTimes$",
	}}
}
