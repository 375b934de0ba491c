package mutants

// inTheBounds has the bugs of bounds that promise too much, so that the search leaves out
// what it should have looked at.
func inTheBounds() []mutant {
	const first = "^TestCostIsSimulation$/^seed_12$"
	const all = "^TestCostIsSimulation$/^seed_44$"
	return []mutant{{
		bug: "a sum of whole gradients where shares would do", how: "all ranks sum before they cut",
		file: "partition/reshard.go",
		old:  "|| smaller || ofShares", new: "|| smaller || ofShares && false",
		pkg: "./partition", run: "^TestPathSumsShares$",
	}, {
		bug: "a floor that rules out little", how: "refined floors have no stream",
		file: "planner/floor.go",
		old:  "if o := p.outline; o.overlap &&", new: "if o := p.outline; false &&",
		pkg: "./planner", run: "^TestFloorsOfStreams$",
	}, {
		bug: "a floor that rules out little", how: "nobody sums the tables outside of blocks",
		file: "planner/waits.go",
		old:  "+before.reduces+before.once-order", new: "+before.reduces-order",
		pkg: "./planner", run: "^TestFloorsOfStreams$",
	}, {
		bug: "a floor that rules out little", how: "interleaved streams sum beside all passes",
		file: "planner/passage.go",
		old:  "p.exposed(last, at), p.outlastEven(", new: "p.exposed(last, at), 0*p.outlastEven(",
		pkg: "./planner", run: "^TestFloorsOfStreams$",
	}, {
		bug: "a floor that rules out little", how: "tensor-parallel ranks gather nothing of what they share",
		file: "planner/relax.go",
		old:  "\t\t\tif whole := v.gradient && !o.batch; cut &&", new: "\t\t\tif whole := v.gradient && !o.batch; false &&",
		pkg: "./planner", run: "^TestFloorsOfStreams$",
	}, {
		bug: "a floor above what plans take", how: "sums that come late hide nothing",
		file: "planner/waits.go",
		old:  "max(0, x.reduce-x.slow.reduce-x.late)", new: "max(0, x.reduce-x.slow.reduce)",
		pkg: "./planner", run: "^TestWaitsAreNoLonger$",
	}, {
		bug: "a floor above what plans take", how: "all ranks have a term of a gradient that they hold whole",
		file: "planner/relax.go",
		old:  "if !o.batch {\n\t\t\t\twhole.overTP = 0", new: "if false {\n\t\t\t\twhole.overTP = 0",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a stage that does not fit taken for one that does", how: "blocks have one of all buffers together",
		file: "planner/slices.go",
		old:  "bytes *= int64(t.blocks)", new: "bytes *= 1",
		pkg: "./planner", run: all,
	}, {
		bug: "a bound of blocks that recompute nothing too high", how: "what recomputation does ahead takes time after the gradient",
		file: "planner/cut.go",
		old:  "least -= max(ahead[whole], ahead[rest])", new: "least -= 0 * max(ahead[whole], ahead[rest])",
		pkg: "./planner", run: all,
	}, {
		bug: "a shell of a stage too large", how: "slots have twice what a block keeps",
		file: "planner/memory.go",
		old:  "all[i].leaveSlots(slot)", new: "all[i].leaveSlots(2 * slot)",
		pkg: "./planner", run: all,
	}, {
		bug: "a price of another pass", how: "all last micro-batches are like the others",
		file: "planner/pipeline.go",
		old:  "(len(a) == 0 || &a[0] == &b[0])", new: "true",
		pkg: "./planner", run: all,
	}, {
		bug: "a floor above what plans take", how: "a part of a product lies in no cache that is too small for all",
		file: "planner/floor.go",
		old:  "return (slice || part) &&", new: "return (slice || part && false) &&",
		pkg: "./planner", run: "^TestPartsInACacheAreBounded$",
	}, {
		bug: "a floor above what plans take", how: "stages of a pipeline cast terms of a tied table's gradient in a step of one micro-batch",
		file: "planner/floor.go",
		old:  "case w.piped && w.of.lone && x.part", new: "case false && x.part",
		pkg: "./planner", run: "^TestTermsOfATableAreNotCast$",
	}, {
		bug: "a floor above what plans take", how: "all stages join terms of the norm as one does that has table and head",
		file: "planner/floor.go",
		old:  "ir.OpToPartial && phase == ir.Update &&", new: "ir.OpToPartial && false &&",
		pkg: "./planner", run: "^TestTermsOfTheNormAreWhole$",
	}, {
		bug: "a bound of memory above what plans take", how: "gradients of weights read all that ranks have, where each makes a share",
		file: "planner/relax.go",
		old:  "case x.apart && w.gathered(like, x.Buffer):", new: "case false:",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a bound of memory above what plans take", how: "a share of a whole weight's gradient is always made from what all ranks have",
		file: "planner/spread.go",
		old:  "n.Results[0].Spec[tp].Kind != ir.Partial\n}", new: "n.Results[0].Spec[tp].Kind == ir.Replicate\n}",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a step of software that overlaps by itself is mispriced", how: "a rank with fewer sequences hides less and takes longer",
		file: "planner/cost/crowd.go",
		old:  "first[mb] = at[mb]", new: "first[mb] = 0",
		pkg: "./planner/cost", run: "^TestFewerSequencesTakeNoLonger$",
	}, {
		bug: "a step of software that overlaps by itself is mispriced", how: "the gradient with which the last block begins is of no block",
		file: "planner/cost/program.go",
		old:  "(n.Block() != \"\" || backward)", new: "n.Block() != \"\"",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a step of software that overlaps by itself is mispriced", how: "a pass in two hides less",
		file: "planner/cost/program.go",
		old:  "n.Phase == ir.Backward || n.Phase == ir.WeightGrad", new: "n.Phase == ir.Backward",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "software reduces gradients over context-parallel ranks as it sends activations", how: "in 16 bits, each at once",
		file: "planner/cost/program.go",
		old:  "return n.Args[0].Spec[mesh.Axis(partition.AxisMB)].Kind != ir.Shard", new: "return false",
		pkg: "./planner/cost", run: "^TestGradientsOverContextParallelRanks$",
	}, {
		bug: "a floor above what plans take", how: "no order of ranks is nearer than the fastest group of the usual one",
		file: "planner/rankorder.go",
		old:  "l[k] = append(l[k], price.Group(axis))", new: "_ = price\n\t\t\tl[k] = append(l[k], s.rates.Groups(size, max(1, k*o.tp))...)",
		pkg: "./planner", run: "^TestNearestOrder$",
	}, {
		bug: "the first block of a stage is not like the others", how: "a weight is exchanged in two steps before the gradient comes in",
		file: "codegen/beside.go",
		old:  "slices.ContainsFunc(nodes[i:at+1], func", new: "slices.ContainsFunc(nodes[at:at+1], func",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug:  "the search ends in a panic where a stage sends after work of no block",
		file: "planner/flow.go",
		old:  "there = own && last || !own && first", new: "there = len(of.items) > 0 && last || len(of.items) == 0 && first",
		pkg: "./planner", run: "^TestSendAfterWorkOfNoBlock$",
	}, {
		bug: "a floor above what plans take", how: "gradients are cast before the pass sends",
		file: "planner/floor.go",
		old:  "in.Node.Op != ir.OpAccumulate && !in.Delayed {", new: "in.Node.Op != ir.OpAccumulate {",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a floor above what plans take", how: "ZeRO cuts a gradient where its weight is too narrow",
		file: "planner/relax.go",
		old:  "v.like, v.turned = of, kinds[of].turned", new: "v.turned = kinds[of].turned",
		pkg: "./planner", run: "^TestGradientsAreReducedAsWeightsAreCut$",
	}, {
		bug: "a floor above what plans take", how: "weights are fetched for the backward pass when its gradient is there, whatever is recomputed",
		file: "planner/relax.go",
		old:  "inPasses(&v, way.hostCopy(part))", new: "ahead := each.ahead\n\t\t\tinPasses(&v, way.hostCopy(part))\n\t\t\teach.ahead = ahead",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "the price of a plan is not its program's", how: "the first block has what no block reads",
		file: "planner/blueprint.go",
		old:  "return given[r.ID] })", new: "return true })",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a bound of memory above what plans take", how: "every block has a sum of all squares",
		file: "planner/held.go",
		old:  "x.Value.Def.Op != ir.OpRecv && !once[id]", new: "x.Value.Def.Op != ir.OpRecv && len(once) > 0",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a floor above what plans take", how: "keys and values end a row of kernels beside a collective, and stand elsewhere where attention is recomputed",
		file: "codegen/beside.go",
		old:  "case b.goesBefore(n, nodes[i], kernels):", new: "case false:",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a floor above what plans take", how: "nothing is put off in the forward pass",
		file: "planner/floor.go",
		old:  "x.part == inBlock && phase != ir.Update && ofTP(n) {", new: "x.part == inBlock && phase == ir.Backward && ofTP(n) {",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a floor above what plans take", how: "the gradients of all tokens are summed for a table that all hold whole",
		file: "planner/spread.go",
		old:  "b.ofWhole[maker] = !cut || maker.Results", new: "b.ofWhole[maker] = false && maker.Results",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a floor above what plans take", how: "the gradients of all tokens are summed for a table that all hold whole, which is tied",
		file: "planner/spread.go",
		old:  "sum.Op == ir.OpAddN {", new: "sum.Op == ir.OpInvalid {",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "the price of a plan is not its program's", how: "the last block has what is given to the first",
		file: "planner/flow.go",
		old:  "early := !own || x.given;", new: "early := !own;",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "the first block of a stage is not like the others", how: "the positions of its tokens are cut before its weights are waited for",
		file: "codegen/layout.go",
		old:  "\tb.sharedFirst()\n\tb.overlap()\n\tb.join()\n", new: "\tb.overlap()\n\tb.join()\n\tb.sharedFirst()\n",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_302$",
	}, {
		bug: "a floor above what plans take", how: "the first stage adds up the gradients of the head",
		file: "planner/floor.go",
		old:  "x.part = parts[in.Segment]", new: "x.part = part",
		pkg: "./planner", run: "^TestHeadAddsItsOwnGradients$",
	}, {
		bug: "a search leaves out what an option would find", how: "micro-batches of more than one sequence",
		file: "planner/space.go",
		old:  "sizes := microBatches(local)\n", new: "sizes := microBatches(local)[:1]\n",
		pkg: "./planner", run: "^FuzzOptions$",
	}, {
		bug: "a bound depends on what was bounded before", how: "what slices of the loss leave is that of before a layout",
		file: "planner/interleave.go",
		old:  "c.least, c.bare = never, 0", new: "c.least = never",
		pkg: "./planner", run: "^TestSlicesAfterALayout$",
	}, {
		bug: "a bound depends on what was bounded before", how: "what is recomputed has the groups of another order of ranks",
		file: "planner/rankorder.go",
		old:  "w.recomputed, w.passes = map[recomputeKey]*recomputeTimes{}, [extents]*work{}", new: "w.recomputed = map[recomputeKey]*recomputeTimes{}",
		pkg: "./planner", run: "^TestRecomputationLiesAsItsRanksDo$",
	}, {
		bug: "the first block unlike the others", how: "what it is given stays cut over the rows of a grid",
		file: "partition/reshard.go",
		old:  "if tensorParallel(a) && a.Size > 1 {", new: "if a.Name == AxisTP && a.Size > 1 {",
		pkg: "./partition", run: "^TestBlocksAreGivenTheStreamAlike$",
	}, {
		bug: "the first block unlike the others", how: "it puts off what it makes while its stage waits for weights",
		file: "codegen/beside.go",
		old:  "b.nodes[i-1].Op == ir.OpRecv && b.spot", new: "b.nodes[i-1].Op == ir.OpFold && b.spot",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "the first block unlike the others", how: "it adds to terms of what is looked up",
		file: "partition/reshard.go",
		old:  "if tensorParallel(a) && a.Size > 1 {", new: "if tensorParallel(a) && a.Size > 1 && v.Spec[i].Kind != ir.Partial {",
		pkg: "./partition", run: "^TestBlocksAreGivenTheStreamAlike$",
	}, {
		bug: "a program of one block is no program of many", how: "the norm's terms of one block are reduced one by one",
		file: "partition/rulecost.go",
		old:  "return n.Op == ir.OpAddN && n.Phase == ir.Update", new: "return n.Op == ir.OpMatMul && n.Phase == ir.Update",
		pkg: "./partition", run: "^TestNormIsReducedOnce$",
	}, {
		bug: "a rule's choice depends on the degree", how: "the share that n ranks receive",
		file: "partition/rulecost.go",
		old:  "\treturn bytes / 2\n", new: "\treturn bytes * float64(n-1) / float64(n)\n",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_210$",
	}, {
		bug: "a floor forgets what ZeRO shards", how: "weights of stage 3",
		file: "planner/relax.go",
		old:  "\t\tweights /= ranks", new: "\t\tweights /= 1",
		pkg: "./planner", run: first,
	}, {
		bug: "a floor has each tensor-parallel rank add up all of a gradient of which it updates a share", how: "as in a trunk, where ZeRO shards none",
		file: "planner/relax.go",
		old:  "gradients -= b.whole - b.whole/int64(o.sharers(1))", new: "gradients -= 0 * b.whole",
		pkg: "./planner", run: "^TestKeptSharesOfWholeGradients$",
	}, {
		bug: "the first block gathers its input again for its backward pass", how: "where other blocks have kept theirs",
		file: "partition/propagate.go",
		old:  "if OutsideBlocks(a.Def) && len(a.Type.Shape) == 3 {", new: "if OutsideBlocks(a.Def) && len(a.Type.Shape) == 3 && n.Phase == ir.Forward {",
		pkg: "./partition", run: "^TestBlocksAreGivenTheStreamAlike$",
	}, {
		bug: "gradients of the head are reduced with those of a block", how: "as what moves them stands before it",
		file: "codegen/overlap.go",
		old:  "made := !b.computedWith(c)", new: "made := c == nil && !b.computedWith(c)",
		pkg: "./planner", run: "^TestFirstBlocksAreLikeOthers$",
	}, {
		bug: "gradients of the head are reduced with those of a block", how: "those of 16 bits, which are cast before they are added up",
		file: "codegen/overlap.go",
		old:  "r.Op.Class() == ir.Compute && !b.widens(r) ||", new: "r.Op.Class() == ir.Compute ||",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a floor has tensor-parallel ranks make whole gradients of weights that they hold whole", how: "as in a trunk, where ZeRO shards none",
		file: "planner/floor.go",
		old:  "|| w.gathers(n) || w.gathersFor", new: "|| w.gathersFor",
		pkg: "./planner", run: "^TestCostInPiecesIsSimulation$/^seed_3107$",
	}, {
		bug: "a floor has what reductions would delay", how: "of a position that waits meanwhile, under an interleaved schedule",
		file: "planner/posted.go",
		old:  "p.update(updated) - cost.Picoseconds(updated)*p.last[inBlock].delays", new: "p.update(updated)",
		pkg: "./planner", run: "^TestWaitingPositionsAreNotDelayed$",
	}, {
		bug: "a floor keeps more micro-batches than are in flight", how: "one",
		file: "planner/passage.go",
		old:  "x.flights = rooms[at][0].Slots", new: "x.flights = rooms[at][0].Slots + 1",
		pkg: "./planner", run: first,
	}, {
		bug: "a floor gathers for the backward pass what it does not read", how: "a bias",
		file: "planner/relax.go",
		old:  "if v.read[ir.Backward] { // recomputation", new: "if v.read[ir.Backward] || v.read[ir.Forward] { // recomputation",
		pkg: "./planner", run: "^TestCertificateOptions$",
	}, {
		bug:  "a floor sends every micro-batch twice",
		file: "planner/passage.go",
		old:  "time := cost.Picoseconds(sending) *", new: "time := 2 * cost.Picoseconds(sending) *",
		pkg: "./planner", run: "^TestNoFloorIsAboveAPlan$",
	}, {
		bug: "a floor of what is exchanged has a block too many", how: "at the position that has most",
		file: "planner/floor.go",
		old:  "blocks := (s.graphs.blocks + o.pp - 1) / o.pp", new: "blocks := (s.graphs.blocks+o.pp-1)/o.pp + 1",
		pkg: "./planner", run: "^TestExchangedWhateverTheSize$",
	}, {
		bug: "a certificate has nothing to say of what a coarse floor left", how: "its micro-batches are not listed",
		file: "planner/certificate.go",
		old:  "\t\ts.list(t.pending)\n", new: "",
		pkg: "./planner", run: "^TestCertificateOptions$",
	}, {
		bug: "any number of chunks keeps as much as one of them", how: "the one that keeps the most",
		file: "planner/interleave.go",
		old:  "min(least.flights, mine.flights)", new: "max(least.flights, mine.flights)",
		pkg: "./planner", run: "^TestAnyChunks$",
	}, {
		bug: "any number of chunks has as many blocks before a position as one of them", how: "the one that has the most",
		file: "planner/interleave.go",
		old:  "min(least.before, mine.before)", new: "max(least.before, mine.before)",
		pkg: "./planner", run: "^TestAnyChunks$",
	}, {
		bug: "the last chunk of a rank keeps as much as the first", how: "what the head of the model keeps",
		file: "planner/interleave.go",
		old:  "= &m.lastSlot, m.lastInbox", new: "= &m.slot, m.lastInbox",
		pkg: "./planner", run: first,
	}, {
		bug: "a chunk of a rank has room to receive a micro-batch more", how: "than codegen gives it",
		file: "planner/interleave.go",
		old:  "int64(p.room[i].Inboxes)*inbox", new: "int64(p.room[i].Inboxes+1)*inbox",
		pkg: "./planner", run: first,
	}, {
		bug: "every block keeps what the first hands to the embedding", how: "as it is gathered under the block's name",
		file: "planner/measure.go",
		old:  "if b.ofBlock[in.Node] != ofBlocks {", new: "if (in.Node.Block() != \"\") != ofBlocks {",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_44$",
	}, {
		bug: "attention is never what is recomputed alone", how: "whatever norms and activation functions take",
		file: "planner/recomputation.go",
		old:  "partly := []extent{pointwise, selective}", new: "partly := []extent{pointwise}",
		pkg: "./planner", run: "^TestPartialRecomputation$",
	}, {
		bug: "a floor keeps the norms that are recomputed", how: "and the activation functions",
		file: "planner/relax.go",
		old:  "case e.partial() && e.drops(x.Value):", new: "case e.partial() && e.drops(x.Value) && e == selective:",
		pkg: "./planner", run: first,
	}, {
		bug: "ranks of interleaved schedules recompute nothing or everything", how: "and not norms alone",
		file: "planner/interleave.go",
		old:  "return []extent{kept, pointwise, full}", new: "return []extent{kept, full}",
		pkg: "./planner", run: "^TestInterleavedSearchIsExact$",
	}, {
		bug: "plans of degrees that are found are of interest though they take longer", how: "with fewer degrees than are asked for all are",
		file: "planner/incumbents.go",
		old:  "return min(x.limit(), mine.time)", new: "return x.limit()",
		pkg: "./planner", run: "^TestFewDegreesAreNoMoreWork$",
	}, {
		bug: "plans of other degrees are of interest only while nothing is found", how: "alternatives are slower",
		file: "planner/incumbents.go",
		old:  "len(all) >= x.wanted {\n\t\tx.worst = all[x.wanted-1].time", new: "true {\n\t\tx.worst = all[0].time",
		pkg: "./planner", run: "^TestAlternativesAreTheBestOfTheirDegrees$",
	}, {
		bug: "memory that is short is spared with no size of micro-batches", how: "as it would be enough with another",
		file: "planner/relief.go",
		old:  "!p.base.slowed(x, p.pieces, limit)", new: "!p.base.slowed(x, p.pieces, limit) || true",
		pkg: "./planner", run: "^TestOffloadWhereMemoryIsShort$",
	}, {
		bug: "a floor takes a bucket for its first collective", how: "the others may be of what data-parallel ranks share",
		file: "planner/floor.go",
		old:  "for i := range all {\n\t\tn := all[i].Node\n\t\tofBatch", new: "for i := range all[:1] {\n\t\tn := all[i].Node\n\t\tofBatch",
		pkg: "./planner", run: "^TestSharesOfBuckets$",
	}, {
		bug: "a floor takes the sums of the first position for those of all", how: "data-parallel ranks of others may lie nearer",
		file: "planner/floor.go",
		old:  "&of.shared[place]", new: "&of.shared[0]",
		pkg: "./planner", run: "^TestFloorsOfEnds$",
	}, {
		bug: "a floor takes what the first position does for the least of all", how: "others may do less",
		file: "planner/pools.go",
		old:  "if len(spots) > 1 {\n\t\t\tp.first.f", new: "if false {\n\t\t\tp.first.f",
		pkg: "./planner", run: "^TestFloorsOfEnds$",
	}, {
		bug: "a floor above what plans take", how: "ranks that have shares of a tied table's gradient hand over all of it",
		file: "planner/relax.go",
		old:  "if o.zero >= 2 {\n\t\t\t\tshared /=", new: "if false {\n\t\t\t\tshared /=",
		pkg: "./planner", run: "^TestFloorsOfEnds$",
	}, {
		bug: "a floor above what plans take", how: "a frozen table has a gradient that its stages exchange",
		file: "planner/relax.go",
		old:  "if v.frozen {\n\t\t\tcontinue\n\t\t}\n\t\tbytes, cut", new: "if false {\n\t\t\tcontinue\n\t\t}\n\t\tbytes, cut",
		pkg: "./planner", run: "^TestFloorsOfEnds$",
	}, {
		bug: "floors far below what plans take", how: "the first position hands no gradient of a tied table to the last one",
		file: "planner/relax.go",
		old:  "x.first.before += transfers.Hand(shared, 0, o.pp-1)", new: "",
		pkg: "./planner", run: "^TestFloorsOfEnds$",
	}, {
		bug: "a price that depends on what was looked at before", how: "a program of one data-parallel rank stands for those of several, where ZeRO shards alike",
		file: "planner/blueprint.go",
		old:  "p.TP > 1, over.dp > 1,", new: "p.TP > 1, true,",
		pkg: "./planner", run: "^TestShardsOfOneReplica$",
	}, {
		bug: "a winner on GPUs is not priced as the program that it becomes", how: "a step of one micro-batch has the program of several",
		file: "planner/blueprint.go",
		old:  "return m == 1 && b.widens", new: "return m == 0 && b.widens",
		pkg: "./planner", run: "^FuzzPrices$",
	}, {
		bug: "tokens are not shared where sequences cannot be", how: "batches that leave ranks with unequal numbers of them",
		file: "planner/search.go",
		old:  "case s.batch%sharing != 0:", new: "case false:",
		pkg: "./planner", run: "^TestUnevenBatches$",
	}, {
		bug: "tokens are not shared where sequences cannot be", how: "as fewer ranks of a node have equal numbers of them",
		file: "planner/search.go",
		old:  "|| stage <= s.cluster.DevicesPerNode {", new: "|| stage < 0 {",
		pkg: "./planner", run: "^TestWholeWeightsInANode$",
	}, {
		bug: "ZeRO gathers from another node", how: "where smaller groups would fill one",
		file: "planner/space.go",
		old:  "case replicas*ranks <= node || node%(g*ranks) == 0:", new: "case replicas > 0:",
		pkg: "./planner", run: "^TestGroupsOfNodes$",
	}, {
		bug: "two stages exchange gradients one after the other", how: "the second to send waits until it has updated the table",
		file: "partition/stage.go",
		old:  "\tsendEarly(c.dst)\n", new: "",
		pkg: "./partition", run: "^TestGradientsOfTablesCross$",
	}, {
		bug: "a floor shares out what a kernel takes that is larger than the cache", how: "a part of it may lie in that",
		file: "planner/relax.go",
		old:  "near := &w.restNear[inBlock]", new: "near := &w.restTimes[inBlock]",
		pkg: "./planner", run: "^TestFloorsOfUpdates$",
	}, {
		bug: "a bound counts blocks that lie before a stage", how: "one",
		file: "planner/bound.go",
		old:  "o.late[turn]+cost.Picoseconds(left)*x.back", new: "o.late[turn]+cost.Picoseconds(left+1)*x.back",
		pkg: "./planner", run: first,
	}, {
		bug: "forward passes of gpipe hide nothing", how: "not even the first, which is on the way",
		file: "planner/pipeline.go",
		old:  "\t\treturn 1\n", new: "\t\treturn 0\n",
		pkg: "./planner", run: first,
	}, {
		bug: "the first block of a model hands its gradient to the embedding with those of weights", how: "where that has one gradient, unlike other blocks",
		file: "partition/weightgrad.go",
		old:  "&& !handsOn {", new: "&& (!handsOn || handsOn) {",
		pkg: "./planner", run: "^TestOverlapUnderZeroBubble$",
	}, {
		bug: "what a stream still has to do is added to what the position does meanwhile", how: "after handing it over",
		file: "planner/outlast.go",
		old:  "t.stream-t.order-s.sums", new: "t.stream-s.sums",
		pkg: "./planner", run: "^TestOutlasts$",
	}, {
		bug: "a bound forgets that a stream outlasts the last pass", how: "so that overlap under late schedules ends with a gap",
		file: "planner/bound.go",
		old:  "tail+x.pipe.lastPass(stage).outlasts(n, r)", new: "tail+0*x.pipe.lastPass(stage).outlasts(n, r)",
		pkg: "./planner", run: "^TestBoundsKnowStreams$",
	}, {
		bug: "a bound of all cuts leaves out some", how: "a stage has one block more than the others leave to it",
		file: "planner/bound.go",
		old:  "max(1, most[i]-spare)", new: "max(1, most[i]-spare+1)",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_44$",
	}, {
		bug: "two blocks that fit are not found", how: "where three do not, as one of them lies between two others",
		file: "planner/recomputation.go",
		old:  "if m.tempMiddle[e] > m.temp[kept] {", new: "if false {",
		pkg: "./planner", run: "^TestFewest$",
	}, {
		bug: "blocks go on as the last ones did", how: "though what is in order and the stream have not grown alike",
		file: "planner/flow.go",
		old:  " || grown[i] >= 0 && grown[i] != t-was:", new: ":",
		pkg: "./planner", run: "^TestAlikeBlocks$",
	}, {
		bug: "a collective is nearer than any group", how: "inner levels count as fast as outer ones",
		file: "planner/cost/topology.go",
		old:  "rate, latency = max(rate, m.crossed(l, by)), min(latency, m.rungs[l].latency)", new: "rate, latency = m.crossed(l, by), m.rungs[l].latency",
		pkg: "./planner/cost", run: "^TestWaysOfAll$",
	}, {
		bug: "a step waits for all that its updates send", how: "one after the other",
		file: "planner/tail.go",
		old:  "max(own[k], max(left, t.sent(stage, k))+", new: "max(own[k], left+t.sent(stage, k)+",
		pkg: "./planner", run: first,
	}, {
		bug: "updates wait for nobody", how: "bounds of zero-bubble pipelines are far",
		file: "planner/tail.go",
		old:  "\tif x.kind != sim.Send {", new: "\tif x.kind != sim.Send || true {",
		pkg: "./planner", run: first,
	}, {
		bug: "floors far below what plans take", how: "the last pass is never as long as its stream after all that comes before it",
		file: "planner/passage.go",
		old:  "\t\tx.addEnding(drain, &streamed, closing, blocks)\n", new: "",
		pkg: "./planner", run: "^TestFloorsOfStreams$",
	}, {
		bug: "a floor above what a plan takes", how: "what the stream of a lone backward pass has beside it counts, too",
		file: "planner/passage.go",
		old:  "drain.block -= ownBack", new: "_ = head",
		pkg: "./planner", run: "^TestFloorsOfStreams$",
	}, {
		bug: "floors far below what plans take", how: "nothing is gathered in the update",
		file: "planner/passage.go",
		old:  "{normed + p.ends.down[at] + renews, squares + block.renews},", new: "{},",
		pkg: "./planner", run: "^TestFloorsOfStreams$",
	}, {
		bug: "floors far below what plans take", how: "tables are not gathered in the update",
		file: "planner/relax.go",
		old:  "t[part].renews = s.coll", new: "_ = s.coll",
		pkg: "./planner", run: "^TestFloorsOfStreams$",
	}, {
		bug: "floors far below what plans take", how: "no position waits for what the ends do with the norm of all gradients",
		file: "planner/passage.go",
		old:  "{normed + max(p.ends.down[0]+p.afterNorm(0), p.afterNorm(p.pp-1)), squares},", new: "{},",
		pkg: "./planner", run: "^TestFloorsWaitForTheNorm$",
	}, {
		bug: "a floor above what a plan takes", how: "two positions send the norm there and back",
		file: "planner/relax.go",
		old:  "case o.pp == 2: // they exchange their sums", new: "case o.pp == 0:",
		pkg: "./planner", run: "^TestFloorsWaitForTheNorm$",
	}, {
		bug: "floors far below what plans take", how: "the norm of all gradients is at the last position at once",
		file: "planner/relax.go",
		old:  "x.up[at] = x.up[at+1] + transfers.Hand(bytes, at, at+1)", new: "x.up[at] = x.up[at+1]",
		pkg: "./planner", run: "^TestFloorsWaitForTheNorm$",
	}, {
		bug: "floors far below what plans take", how: "ranks with shares of gradients have the norm of all",
		file: "planner/relax.go",
		old:  "if o.zero > 0 && s.replicas(o)*o.cp > 1 && slices", new: "if o.zero > 4 && s.replicas(o)*o.cp > 1 && slices",
		pkg: "./planner", run: "^TestFloorsWaitForTheNorm$",
	}, {
		bug: "floors far below what plans take", how: "interleaved schedules are not rehearsed",
		file: "planner/rehearse.go",
		old:  "const mostRehearsed = 4096", new: "const mostRehearsed = 1",
		pkg: "./planner", run: "^TestFloorsOfStreams$",
	}, {
		bug: "floors far below what plans take", how: "in a rehearsal stages do not wait for each other",
		file: "planner/rehearse.go",
		old:  "max(began+lead, arrived-ahead)", new: "began + lead + 0*ahead",
		pkg: "./planner", run: "^TestFloorsOfStreams$",
	}, {
		bug: "a last position that is short of memory is not given slices of the loss", how: "any is taken to have room",
		file: "planner/slices.go",
		old:  "return c.chunks() == 1 && c.roomy", new: "return c.pipe != nil || c.roomy",
		pkg: "./planner", run: "^TestSlicesAfterALayout$",
	}, {
		bug: "planner: programs of ranks that share sequences unevenly are taken from those that do", how: "those of two ranks that do not for those of three that do",
		file: "planner/blueprint.go",
		old:  "cp > 2 && b.even(p, 2) != b.even(p, cp)", new: "b.even(p, 2) && !b.even(p, cp)",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a floor above what a plan takes", how: "the first position of an interleaved schedule waits for the update of the last",
		file: "planner/passage.go",
		old:  "ending = max(ending, before*p.last[inBlock].returned()+", new: "ending += max(0, before*p.last[inBlock].returned()+0*",
		pkg: "./planner", run: "^TestFloorsOfEnds$",
	}, {
		bug: "a floor above what a plan takes", how: "gradients that are summed in order are summed on the stream, too",
		file: "planner/floor.go",
		old:  "w.sums = w.sums || ", new: "w.sums = w.sums && ",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "bounds of cuts far below what they take", how: "no micro-batch waits for one before it to leave a stage",
		file: "planner/bound.go",
		old:  "max(o.passes, around)+b.end", new: "max(o.passes, 0*around)+b.end",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "bounds of cuts far below what they take", how: "backward passes follow each other though the stream has sums to make",
		file: "planner/bound.go",
		old:  "cost.Picoseconds(others)*waits.backward + cost", new: "0*waits.backward + cost",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "a stage is taken to have room that has none", how: "what a zero-bubble schedule keeps for gradients of weights counts once",
		file: "planner/slices.go",
		old:  "if c.pipe.template.Schedule.SplitsBackward() { // it may be kept", new: "if false { // it may be kept",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "floors far below what plans take", how: "a pass that reduces gradients does not wait for its stream",
		file: "planner/passage.go",
		old:  "all.fixed+all.block > 0 {", new: "all.fixed+all.block > never {",
		pkg: "./planner", run: "^TestFloorsOfStreams$",
	}, {
		bug: "a floor above what a plan takes", how: "more passes wait for their streams than there are",
		file: "planner/passage.go",
		old:  "longer.times(p.m-1)", new: "longer.times(p.m+1)",
		pkg: "./planner", run: "^TestFloorsOfEnds$",
	}, {
		bug: "floors far below what plans take", how: "groups do not sum their shares of tables' gradients that are reduced in every micro-batch",
		file: "planner/relax.go",
		old:  "\t\tdefault: // groups sum", new: "\t\tcase o.zero == 0: // groups sum",
		pkg: "./planner", run: "^TestFloorsOfStreams$",
	}, {
		bug: "a floor above what a plan takes", how: "software is as slow to sum what tensor-parallel ranks share",
		file: "planner/relax.go",
		old:  "time = price.Sharers", new: "time = price.Replicas",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a floor above what a plan takes", how: "waits hide of what delays kernels what those of the least delayed kind of device are delayed by",
		file: "planner/waits.go",
		old:  "slow.gather, slow.regather, slow.reduce = max(slow.gather, at.slows(x.gather)), max(slow.regather, at.slows(x.regather)), max(slow.reduce, at.slows(x.reduce))",
		new:  "least := s.waysOf(p.outline)\n\t\tslow.gather, slow.regather, slow.reduce, _ = least.slows(x.gather), least.slows(x.regather), least.slows(x.reduce), at",
		pkg:  "./planner", run: "^TestFloorsOfUnlikeDelays$",
	}, {
		bug: "a floor above what a plan takes", how: "a table is gathered of which ranks sum what they find in their shards",
		file: "planner/relax.go",
		old:  "o.zero == 3 && v.first && !v.alike", new: "o.zero == 3 && v.first",
		pkg: "./planner", run: "^TestFloorsOfPositions$",
	}, {
		bug: "a floor above what a plan takes", how: "what a pass receives comes before what it gathers delays anything",
		file: "planner/rehearse.go",
		old:  "lead, ahead = x.firstGather(), 2*x.slow.gather", new: "lead = x.firstGather()",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a floor above what a plan takes", how: "gradients that are moved first are reduced on the stream",
		file: "planner/relax.go",
		old:  "case n.Op == ir.OpAllToAll:\n\t\treturn true", new: "case false:\n\t\treturn true",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a floor above what a plan takes", how: "a lone backward pass gathers nothing before its gradient arrives",
		file: "planner/passage.go",
		old:  "case m > 1: // else it may gather before the gradient arrives\n\t\t\t\tadd(&drain, last.regathers-back(last))",
		new:  "case m > 1:\n\t\t\t\tadd(&drain, last.regathers-back(last))\n\t\t\tdefault:\n\t\t\t\tadd(&drain, last.regathers)",
		pkg:  "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a bound of all cuts above what one takes", how: "the last gradient that rounds leave to send is sent twice",
		file: "planner/bound.go",
		old:  "if i > 0 && r.left == 0 {", new: "if i > 0 {",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a floor above what a plan takes", how: "the stream gathers weights that are moved before others gather them",
		file: "planner/relax.go",
		old:  "if v.streamed[pass] {", new: "if v.read[pass] {",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a floor above what a plan takes", how: "a table of which one gradient is moved is reduced on the stream",
		file: "planner/relax.go",
		old:  "case n.Op == ir.OpAddN:", new: "case false && n.Op == ir.OpAddN:",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a floor above what a plan takes", how: "the last position hands its gradient of a table to the first as slowly as that to it",
		file: "planner/relax.go",
		old:  "transfers.Hand(shared, o.pp-1, 0)", new: "transfers.Hand(shared, 0, o.pp-1)",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a floor above what a plan takes", how: "gradients that come with that of the input are reduced only after it",
		file: "planner/passage.go",
		old:  "return t.once - t.soon", new: "return t.once",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a price that is not a program's", how: "software narrows sums of 64 bits",
		file: "planner/cost/program.go",
		old:  "wide > size && (", new: "wide > 0 && (",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a price that is not a program's", how: "positions count as alike that send to some that gather unlike",
		file: "planner/cost/poollayout.go",
		old:  "m.software.Scatter && tp >= 0 {", new: "false {",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a floor above what a plan takes", how: "a table's gradient that is sliced before it is summed is reduced on the stream",
		file: "planner/relax.go",
		old:  "return n.Op == ir.OpSlice || n.Op == ir.OpAllGather", new: "return n.Op == ir.OpAllGather",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a floor above what a plan takes", how: "a pass gathers nothing before its gradient arrives",
		file: "planner/passage.go",
		old:  "update.fixed -= 2 * first[inBlock].regathers", new: "",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a floor above what a plan takes", how: "groups sum further what tensor-parallel ranks have before they share it out",
		file: "planner/relax.go",
		old:  "updated := v.ofLike(trunk.mesh) / int64(ranks)", new: "updated := part",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a floor above what a plan takes", how: "a tied table that all ranks hold is summed on the stream",
		file: "planner/relax.go",
		old:  "if v.turned || shared && v.first && v.again {", new: "if v.turned || shared && false {",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a floor above what a plan takes", how: "the first position updates after all gradients of weights of another",
		file: "planner/passage.go",
		old:  "ending = min(ending, p.finish(at, 1, false))", new: "_ = at",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a bound that rules out little", how: "passes do not wait until what those before them have posted is sent",
		file: "planner/bound.go",
		old:  "w.sent.forward, w.sent.backward = p.body(i, ir.Forward, whole).sent(), p.body(i, ir.Backward, whole).sent()", new: "",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "a bound above what a plan takes", how: "passes of other schedules wait so too",
		file: "planner/bound.go",
		old:  "if p.template.Schedule == partition.GPipe {\n\t\tw.sent", new: "if true {\n\t\tw.sent",
		pkg: "./planner", run: "^FuzzFloors$",
	}, {
		bug: "a bound above what a cut takes", how: "gradients of weights that were made before a round are made after it",
		file: "planner/bound.go",
		old:  "made := max(0, t.first-lag)", new: "made := 0 * max(0, t.first-lag)",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "a bound above what a cut takes", how: "the last stage makes gradients of weights as soon as the first does",
		file: "planner/bound.go",
		old:  "others-max(0, lag-t.first)", new: "others",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "a bound above what a cut takes", how: "of as many micro-batches as there are stages one is left after a round",
		file: "planner/bound.go",
		old:  "turn{rounds * p.early[0], rounds,", new: "turn{rounds * (p.early[0] - 1), rounds,",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "a bound above what a cut takes", how: "between rounds stage 0 makes another stage's gradients of weights",
		file: "planner/bound.go",
		old:  "if x.stage > 0 {\n\t\tweight = 0", new: "if false {\n\t\tweight = 0",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "a bound above what a cut takes", how: "gradients of weights that stage 0 makes between rounds count twice",
		file: "planner/bound.go",
		old:  "cost.Picoseconds(x.turns[k].rounds)*before.weights", new: "cost.Picoseconds(x.turns[k].rounds)*2*before.weights",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "bounds of cuts far below what they take", how: "rounds of a stage follow none of stage 0",
		file: "planner/bound.go",
		old:  "number < stages && (number", new: "number < 1 && (number",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "a bound above what a cut takes", how: "a stage has as many rounds after those of stage 0 as without",
		file: "planner/bound.go",
		old:  "r := rounds{before: before, number: (last-before.first)/k + 1", new: "r := rounds{before: before, number: last/k + 1",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "bounds of cuts far below what they take", how: "a stage does its work without a round before it",
		file: "planner/bound.go",
		old:  "most = max(0, p.microBatches-2) / p.early[0]", new: "most = 0 * p.microBatches",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "bounds of cuts far below what they take", how: "between the first and the last backward pass nobody makes gradients of weights",
		file: "planner/bound.go",
		old:  "max(0, others-max(0, lag-t.first)))*weight", new: "0*max(0, others-max(0, lag-t.first)))*weight",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "a bound of all cuts with so many blocks on stage 0 is of others", how: "that have one more there",
		file: "planner/bound.go",
		old:  "max(1, most[0]-spare, some)", new: "max(1, most[0]-spare, some+1)",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "a search that gives up returns a cut", how: "that moving a block makes faster",
		file: "planner/cut.go",
		old:  "time < least {\n\t\t\t\tleast, tried = time, 0", new: "false {\n\t\t\t\tleast, tried = time, 0",
		pkg: "./planner", run: "^TestClimbs$",
	}, {
		bug: "a search that gives up returns a cut", how: "that climbing from that of another pipeline beats",
		file: "planner/explore.go",
		old:  "p.solve(ceiling, 0, share)", new: "p.solve(ceiling, 0, 0*share)",
		pkg: "./planner", run: "^TestProofClimbs$",
	}, {
		bug: "a proof that leaves a wide gap", how: "it bounds cuts by stages of which the first may have any number of blocks",
		file: "planner/cut.go",
		old:  "steps > quick && least <= ceiling", new: "steps > quick && least > ceiling",
		pkg: "./planner", run: "^TestProofNarrowsTheGap$",
	}, {
		bug: "a floor above what a plan takes", how: "gradients that are moved are reduced in the slices that they had before",
		file: "planner/relax.go",
		old:  "bytes = min(bytes, v.ofLike(trunk.mesh))", new: "bytes = max(bytes, 0)",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a proof that leaves a wide gap", how: "it begins with any pipeline",
		file: "planner/explore.go",
		old:  "return cmp.Compare(p.least, q.least)", new: "return 0 * cmp.Compare(p.least, q.least)",
		pkg: "./planner", run: "^TestProofNarrowsTheGap$",
	}, {
		bug: "a bound of memory above what a stage has", how: "every block has the head's weights beside it",
		file: "planner/measure.go",
		old:  "!early[b.Buffer]", new: "!early[nil]",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "an eager schedule that is none", how: "a position runs ahead no further",
		file: "codegen/order.go",
		old:  "after *= 2", new: "after *= 1",
		pkg: "./codegen", run: "^TestEagerOrder$",
	}, {
		bug: "an eager schedule that is none", how: "weight gradients lag behind no further",
		file: "codegen/order.go",
		old:  "return 2 * position", new: "return position",
		pkg: "./codegen", run: "^TestEagerOrder$",
	}, {
		bug: "part of the space dropped", how: "eager schedules are never searched",
		file: "planner/space.go",
		old:  ", partition.EagerOneFOneB, partition.EagerZeroBubble}", new: "}",
		pkg: "./planner", run: "^TestEagerSearchIsExact$",
	}, {
		bug: "an eager schedule where it makes no difference", how: "plans are ordered by the names of their schedules",
		file: "planner/space.go",
		old:  "		compareBools(a.Schedule.Eager(), b.Schedule.Eager()),\n", new: "",
		pkg: "./planner", run: "^TestEagerSearchIsExact$",
	}, {
		bug: "a bound above what a plan takes", how: "an eager position has as few forward passes before its first backward pass as another",
		file: "planner/pipeline.go",
		old:  "codegen.WarmUp(schedule, positions, at, m)+1", new: "codegen.WarmUp(partition.OneFOneB, positions, at, m)+1",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a bound above what a cut takes", how: "a message is sent after its pass and again with all others",
		file: "planner/bound.go",
		old:  "time += cost.Picoseconds(some-2)*passes", new: "time += cost.Picoseconds(some)*passes",
		pkg: "./planner", run: "^TestCostOfEagerSchedulesIsSimulation$",
	}, {
		bug: "bounds of cuts far below what they take", how: "any number of messages may be on their way at once",
		file: "planner/bound.go",
		old:  "w.posting(p, x.stage, n, r))", new: "0*w.posting(p, x.stage, n, r))",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "bounds of cuts far below what they take", how: "passes of a warm-up do not wait for messages",
		file: "planner/bound.go",
		old:  "if some > 1 {", new: "if some < 1 {",
		pkg: "./planner", run: "^TestBoundsOfCuts$",
	}, {
		bug: "a floor above what a plan takes", how: "slices of the loss make the head's product in the forward pass",
		file: "planner/floor.go",
		old:  "head.moved = head.forward", new: "head.moved = 0",
		pkg: "./planner", run: "^FuzzCosts$",
	}}
}
