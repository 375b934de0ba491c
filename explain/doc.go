// Package explain shows what a plan does and why: which tensor lives where and
// for what reason, every collective with its bytes, where the memory goes, where
// the time goes, and what the plans that lost would have cost.
//
// A [Report] is derived from the [codegen.Program] that ranks run, so its figures
// are the program's: the bytes of a stage add up to its arena, and the bytes of
// collectives are those that the runtime counts. Everything printed is a function
// of the plan alone, to the byte.
//
// A [Study] answers what the plan would be if something were different, by searching
// again: policies, faster links, more memory, other batches, more devices. What it
// finds is part of the report.
//
// [Report.HTML] writes a page that needs nothing else: everything is drawn as SVG
// here, and the script in page/ only zooms it and answers to the pointer.
//
// Repeated blocks are shown once. The tensors or collectives of one kind that lie
// alike in several blocks share a row, named h.*.mlp.c_fc.weight when all blocks
// of the stage do, h.{0-2}.… when some do.
//
// # JSON
//
// [Report.JSON] writes the exported fields of [Report] under the names of their
// json tags. "schema" is [Schema]; it grows by one when a field changes its
// meaning or goes away. Fields may be added. Sizes are bytes of one rank (the
// largest, where slices are uneven) and times are seconds, unless a name says
// otherwise.
package explain
