// Package planner finds the fastest plan that fits.
//
// The cost of a plan is the simulation of its program by planner/sim, to the picosecond, and its memory the arena that
// codegen lays out, to the byte. The result is the minimum over the whole space: see [Search] for what that means and
// TestSearchIsExact for how it is held to it. [SearchCertified] writes down why, and [Certify] checks that. [Document]
// is plan.json, the result with all that is needed to run it.
//
// It is fast because little is compiled and less is priced: repeated blocks are solved once, a small program stands
// for all larger ones, bounds rule out most of the space without any, and what is left is searched best first. The
// files, in the order in which to read them:
//
//   - What is asked and found: options.go, search.go; document.go and docread.go, the file. An outline is all of a plan
//     but its cut and what is recomputed: space.go lists outlines as the search meets them, declared.go again as plain
//     loops, which the certificate tiles.
//   - What a plan costs: shrink.go leaves one block of many; blueprint.go has the program of one block per stage, three
//     positions and two ranks of an axis, which stands for all of its kind; skeleton.go and price.go are the times of its
//     instructions; held.go lists what its stages have in memory, measure.go and updatememory.go add it up, memory.go bounds
//     stages of many blocks by it, footprint.go says what training software has besides; pipeline.go and flow.go put
//     micro-batches through the positions; final.go says of the winner what its whole program would, estimate.go of any plan.
//   - What is chosen beside degrees, a file each: layout.go how parameters are split, found from the op signatures,
//     replicate.go which modules are not, grid.go which in two dimensions; context.go; rankorder.go; recomputation.go;
//     interleave.go; pieces.go and undecided.go in how many parts products and their collectives are made; pools.go on
//     which kind of device a stage lies. What only spares memory is looked at where that is short: relief.go, slices.go.
//   - Bounds of outlines, from one stage: floor.go what positions do, relax.go what parameters add to it and the
//     recomputation that memory makes necessary, passage.go how micro-batches flow, beside.go and spread.go what programs
//     make in one of several ways. Bounds of cuts: bound.go, outlast.go, tail.go.
//   - The search: explore.go over outlines, cut.go over the cuts of one, incumbents.go the best so far.
//   - Around it: priceable.go refuses what cannot be counted; infeasible.go, sketch.go and leanest.go name the closest plan;
//     robust.go perturbs the cluster; certificate.go makes the proof, certificate_text.go writes it, certify.go and
//     certify_cuts.go check it.
//
// # Terms
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
