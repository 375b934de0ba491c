// Package lp states a part of the search as a mixed integer program for solvers that
// know nothing of it: CBC, GLPK or any other that reads CPLEX's LP format.
//
// Of a plan everything is fixed but where the blocks are cut into stages and what each
// stage recomputes. For every position of the pipeline and every number of blocks there
// is a binary variable for each way to recompute them (program.go). A program of the
// whole model is compiled for each: from its instructions, at the prices of
// planner/cost, come the times of what the position does between two transfers, and
// from its layout the bytes of its arena. Both are exact whatever the other positions
// choose, so times and bytes are linear in the binaries and nothing is approximated.
// When things happen is a continuous variable for every meeting of two positions, which
// is no earlier than what the position did before, the arrival of what it receives, and
// the release of the room that it sends into (events.go). The objective is the end of
// the last position, in picoseconds but for a power of ten.
//
// Nothing of the planner's search, of its prices of stages, of its bounds of memory or
// of planner/sim is used, so the optimum says whether those are right.
package lp
