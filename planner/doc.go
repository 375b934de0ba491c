// Package planner finds the fastest plan that fits in memory.
//
// # The problem
//
// Given are one training step as a graph, a global batch, a cluster, and options that fix some of the
// choices. A plan (partition.Plan) says how the step is run: the degrees of data, context, tensor and
// pipeline parallelism, micro-batch size and schedule, ZeRO stage, offload, what is recomputed, where
// the model is cut into stages, and more. [Search] returns the plan with the shortest step among those
// that no device lacks memory for. [Options] lists the choices and says where each is searched.
//
// # The objective
//
// Both functions of a plan are defined by other packages. Its time is that of its program in
// planner/sim, in whole picoseconds. Its memory is the arena that codegen lays out for each device, in
// bytes. Integers leave no rounding to argue about: plans of equal time are ordered by peak memory,
// then by comparePlans, so the result is unique.
//
// # How a plan is priced
//
// A plan for a thousand devices is never compiled. All blocks of a model are repeats of one, all
// positions of a pipeline between its ends do the same, and a rank of an axis does the same however
// many ranks the axis has. So a [blueprint], a program with one block per stage, at most three
// positions and mostly two ranks per axis, stands for all programs of its structure. A [skeleton] prices
// its instructions on the mesh of the real plan, a [pipeline] composes them for any cut, and its method
// time runs planner/sim over one process per position. This is exact, not an approximation.
//
// # The search
//
// The search is a best-first branch and bound, from coarse to fine, under lower bounds of the step
// time that never exceed the time of a plan they stand for (admissible bounds, here called floors where
// they are of outlines). Most of the space is ruled out by bounds that need no program of its own.
//
//  1. [outline]: a plan without micro-batch size, schedule and cut. All are listed first (space.go), as
//     [tract]s: wherever in the network their ranks lie.
//  2. [pending]: an outline at one place in the network, with a floor for every micro-batch size and
//     schedule ([sized]). Floors rise in levels ([level]) as the search asks for more; each level costs
//     more than the one before.
//  3. [point]: one of those whose floor left it worth a [skeleton]. Its [cutter] bounds all cuts by the
//     number of blocks of each stage ([bounds]).
//  4. [candidate]: a complete plan, from branch and bound over cuts and recomputation in the cutter,
//     simulated, and with the memory of its stages laid out.
//
// The loop is [searcher.run]. Whatever has a floor above the best plans so far ([incumbents]) is pruned.
// Options that only spare memory (offload, slices of the loss) are opened only beside plans that the
// limit on memory slows down.
//
// # Exactness
//
// The result is the minimum of the objective over the declared space, not the best plan met. Tests
// hold it to that in three steps. A price is the simulation of the whole program, to the picosecond and
// the byte (TestCostIsSimulation, TestFinishIsTheProgram). No floor is above a plan
// (TestNoFloorIsAboveAPlan, TestFloorsOfLargeModels). And the search returns what plain enumeration of
// all plans does, on random small jobs (TestSearchIsExact and its siblings in brute_test.go). Only the
// branch and bound over cuts has a limit on its steps; if a search exceeds it, [Stats] has Optimal false
// and the gap that is left.
//
// # The certificate
//
// [SearchCertified] writes down why no plan is faster: a list of regions that tile the space, each with
// a reason, such as a bound that is no less than the winner's time. [Certify] checks it without trust in
// the search: it lists the space by loops of its own ([declared]), computes all bounds anew, and repeats
// by itself what was searched cut by cut.
//
// # Reading order
//
//   - What is asked and found: options.go, search.go; document.go and docread.go for plan.json.
//   - The space: space.go, and declared.go, which defines it again as plain loops. A file for each choice
//     besides the degrees: layout.go which dimension of each weight tensor parallelism splits,
//     replicate.go which modules it leaves whole, grid.go which it cuts in two dimensions; context.go for
//     context parallelism; rankorder.go, ways.go and pools.go for the place in the network and on kinds of
//     devices; recomputation.go; interleave.go; pieces.go and undecided.go for products and collectives
//     made in parts; relief.go and slices.go for what only spares memory.
//   - The price of a plan: shrink.go, blueprint.go, skeleton.go, price.go; pipeline.go and flow.go put
//     micro-batches through the positions; held.go, measure.go, updatememory.go and memory.go bound
//     memory, final.go lays it out, footprint.go adds what training software holds besides; estimate.go
//     does it for any plan.
//   - Bounds of outlines: floor.go, relax.go, passage.go, rehearse.go, posted.go, waits.go, beside.go, spread.go. Bounds of cuts:
//     bound.go, outlast.go, tail.go.
//   - The search: explore.go over outlines, cut.go over the cuts of one, incumbents.go the best so far.
//   - Around it: priceable.go refuses steps too long to count; infeasible.go, sketch.go and leanest.go name
//     the closest plan if none fits; robust.go perturbs the cluster; balance.go fits a plan to
//     ranks whose speeds were measured; certificate.go and certificate_text.go make and write the proof,
//     certify.go and certify_cuts.go check it.
//
// # Terms
//
// Words for plans and their parts:
//
//   - unit: the devices that one plan cuts into dp x cp x tp x pp. A run has RuntimeNGPUs/PlanNGPUs units,
//     which are further data-parallel replicas.
//   - position: one of the pp places of a pipeline, with all ranks there.
//   - stage: consecutive blocks that a position runs together. A position has one stage, or under
//     interleaved schedules several, its chunks.
//   - pool: the devices of one kind, in a cluster of several kinds.
//   - micro-batches: all but the last are whole; the last, which may be smaller, is the rest.
//   - lone: of a step, with one micro-batch; in models that cast gradients to add them up it has programs of its own.
//   - cut: the stages of a plan, with what they recompute.
//   - extent: how much of a block is recomputed: kept (nothing), pointwise, selective (attention), full.
//   - slices: of the loss, one of which has logits at a time; pieces: parts of tensor-parallel products
//     and collectives, which overlap each other; parts of sequences: see partition.Plan.SequenceParts.
//   - beside: at the same time as something else, so that only the longer of the two counts.
//
// Words of the search:
//
//   - outline: a plan without micro-batch size, schedule and cut; sharding and split are parts of it.
//   - anywhere: stands for all units and rank orders; a tract is an outline anywhere.
//   - anyChunks, anyPieces: likewise for all numbers of chunks and of pieces.
//   - pending: an outline at one place that still has something to price; sized: a micro-batch size and
//     schedule of it, with its floor.
//   - point: a pending outline's micro-batch size and schedule that is priced; cell: the same in a
//     certificate; region: cells with one reason.
//   - floor: a lower bound of the time of an outline's plans; level: what a floor accounts for.
//   - trunk: what all outlines with the same tensor and context parallelism do for every micro-batch.
//   - passage: the way of micro-batches through the positions of a pipeline whose cut is open.
//   - ways: how the communication of an outline goes through the network; twins: outlines with the same
//     ways, so that one stands for both.
//   - groupPlaces: where the groups of tensor and context parallelism lie in the network.
//   - limit: the longest time of a plan that is still of interest; ceiling: one that the search raises
//     step by step; never: the bound of what does not fit.
//   - sparing, relief: outlines that only spare memory beside another one.
//
// Words of prices and memory:
//
//   - blueprint: a small program that stands for all larger ones of its structure.
//   - skeleton: the prices of an outline's stages by number of blocks; inner: a blueprint of one stage.
//   - pipeline: a skeleton with a micro-batch size and a schedule, everything but the cut.
//   - body: what a stage does in one phase, as parts between transfers; busy: all of a body in order;
//     through: from its last receive to its first send.
//   - early: what recomputation does before the gradient has arrived; ahead: what it may do.
//   - laid out: of memory, allocated by codegen's own allocator instead of bounded.
//   - persist, sums, slot, inbox, temp: the regions of an arena (package codegen); room: how many slots
//     and inboxes a schedule needs.
//
// Words of bounds of time:
//
//   - in order: on the device, one kernel or collective after another; opposed to beside, and to the communication stream.
//   - head: what follows the blocks of a model: last norm, logits, loss. The part before the blocks is the embedding.
//   - shared: of work and its instructions, with a time that depends on the number of data-parallel ranks.
//   - moved: what an outline does for a block beyond the trunk: gradients, gathered weights, copies of offload, the update.
//   - near: priced as if all that a kernel reads and writes lay in the cache.
//   - put off: of a kernel, moved behind others so that it runs beside a collective (package codegen).
//   - again: a lower bound of the recomputation without which a position does not fit; more, as an argument, is that.
//   - chain: events that wait for each other under every schedule, so that no step is shorter than they are together.
//   - way: what a micro-batch takes on its way through the pipeline: its passes up to the send, without what follows that.
//   - exposed: what is left of a collective after the kernels beside it.
//   - posted: of a send, made while the stage goes on (package codegen).
//   - tail: what follows the last pass of a stage until the step ends; outlasts: by how much a communication stream is done
//     later than what is in order.
//   - segment, mark, moment: in a body with overlap, what codegen's segments are; a time that others count from; and a time
//     as the latest of all marks, each with something added.
//
// Words of memory:
//
//   - keeps: what blocks must have in memory, whatever else a program has; sketch: an outline of which only that is known.
//   - held: a buffer of a program with one block per stage; kind: buffers of the same size.
//   - apart: of gradients of weights, in a pass of their own, as a zero-bubble schedule runs them, and of what they read.
//   - shell: a stage of which only that is known which it has whatever is recomputed.
//   - lean: a pipeline of which the cut with the smallest fullest stage is searched.
//   - headless: of a pipeline, with its last position as small as any number of slices of the loss makes it.
package planner
