// Package planner finds the fastest plan that fits.
//
// The space is units x dp x cp x tp x pp x size of micro-batches x schedule x ZeRO x
// sequence parallelism x modules replicated or on a grid x overlap x parts of products and their collectives x offload x slices of the loss x stage cuts x recomputation x order of the
// kinds of devices (space.go; as plain loops in declared.go); the cost of a plan is the simulation of its program by
// planner/sim, to the picosecond, and its memory the arena that codegen lays out, to
// the byte. The result is the minimum: see [Search] for what that means and
// TestSearchIsExact for how it is held to it. [SearchCertified] writes down why, and
// [Certify] checks that.
//
// It is fast because little is compiled and less is priced. Repeated blocks are solved
// once ([Shrink]); a program with one block per stage, of three positions and two ranks
// of an axis, stands for all larger ones (blueprint.go). Floors from one stage of it
// rule out most of the space: what positions do (floor.go), what parameters add to it and
// the recomputation that memory makes necessary (relax.go), and how micro-batches flow
// through the positions (passage.go); what is left gets time and memory of every cut
// (skeleton.go, price.go, memory.go) and bounds from them (bound.go), and is searched
// best first (explore.go, cut.go) with exact costs (pipeline.go, flow.go). How
// parameters are split is found from the op signatures (layout.go), which modules are not
// split at all is searched (replicate.go), as is which are in two dimensions (grid.go), and, last, in how many parts
// products and collectives next to them are made (pieces.go). What
// only spares memory is looked at where that is short (relief.go, slices.go). What is said of the
// winners is read off few positions and blocks (final.go).
//
// [Document] is plan.json, the result with all that is needed to run it.
package planner
