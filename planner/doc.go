// Package planner finds the fastest plan that fits.
//
// The space is dp x tp x pp x size of micro-batches x schedule x stage cuts x
// recomputation; the cost of a plan is the simulation of its program by
// planner/sim, to the picosecond, and its memory the arena that codegen lays out,
// to the byte. The result is the minimum: see [Search] for what that means and
// TestSearchIsExact for how it is held to it.
//
// It is fast because repeated blocks are solved once ([Shrink]). A program with
// one block per stage (skeleton.go, price.go) gives time and memory of every cut of a
// pipeline; lower bounds from it (bound.go, memory.go) rule out most degrees,
// micro-batch sizes and cuts; those left are costed exactly (pipeline.go) and
// searched best first (search.go, cut.go). How parameters are split is found from
// the op signatures (layout.go). Only the few plans that win are compiled whole.
//
// [Document] is plan.json, the result with all that is needed to run it.
package planner
