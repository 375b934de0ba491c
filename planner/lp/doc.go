// Package lp states one part of the search, the choice of a pipeline's cut and recomputation, as a mixed integer
// program. Any solver that reads CPLEX's LP format, such as CBC or GLPK, can then check the planner's optimum without
// knowing anything of the planner.
//
// Everything about the plan is fixed except where the blocks are cut into stages, and what each stage recomputes. For
// every pipeline position and every number of blocks, each way to recompute them is a binary variable (program.go).
// For each of these choices a program of the whole model is compiled. Its instructions, at the prices of
// planner/cost, give the times that the position takes between two transfers (body.go). Its memory layout gives the
// bytes of the position's arena. Both are the same whatever the other positions choose, so times and bytes are linear
// in the binaries, and nothing is approximated.
//
// The times of events are continuous variables, one for every point where a position waits for another. An event is
// no earlier than the position's own work before it, the arrival of what it receives, and the release of the slot
// that it sends into (events.go). The objective is the end of the last position, in picoseconds times a power of ten
// (write.go).
//
// Package lp uses nothing of the planner's search, of its prices of stages and bounds of memory, nor of planner/sim.
// Its optimum is therefore an independent check of all of them.
package lp
