// Package explain shows what a plan does and why: where each tensor lives and for what reason, every
// collective with its bytes, where memory and time go, and what the plans that lost would have cost.
//
// A [Report] is derived from the [codegen.Program] that ranks run, so its figures are the program's: the
// bytes of a stage add up to its arena, and the bytes of collectives are those that the runtime counts.
// The same plan gives the same output, to the byte.
//
// A [Study] answers what the plan would be if something were different: another policy, faster links,
// more memory, another batch, more devices. It searches again for each. What it finds becomes part of
// the report.
//
// [Report.HTML] writes one page that loads nothing else: everything is drawn as SVG here, and the script
// in page/ only zooms it and answers to the pointer.
//
// Repeated blocks are shown once. Tensors or collectives that differ in their block alone share a row. It
// is named h.*.mlp.c_fc.weight if it stands for all blocks of the stage, h.{0-2}.… if for some.
//
// # Reading order
//
//   - The report: report.go makes it from a program; tensors.go lists the buffers of a stage, memory.go
//     what its arena consists of, traffic.go what its ranks communicate.
//   - Why a value lies where it does: rule.go, reason.go. Answers about one tensor or op: why.go as text,
//     answer.go as JSON, alternative.go what the other rules of the op would move.
//   - Time: prediction.go simulates a step, terms.go divides it by what is done and by what limits it,
//     pools.go by kind of device. room.go says whether the plan fits.
//   - Other plans: rejected.go the runners-up, division.go the same plan with products in other numbers of
//     parts, versus.go any other plan, study.go those of further searches. recost.go prices the plan on
//     another cluster, batch or sequence.
//   - Output: text.go; page.go for HTML, with drawing.go, chart.go, film.go (a step over time) and
//     profile.go (memory within a task); plot.go for pictures, dot.go for Graphviz; trace.go, spans.go and
//     flow.go for Perfetto.
//
// # Terms
//
// A [Stage] of a report is a position of the pipeline. Under an interleaved schedule it runs several stages
// of the plan, its chunks. A slot holds the activations of one micro-batch between its forward and its
// backward pass; an inbox holds what a micro-batch has received from the stage before.
//
// # JSON
//
// [Report.JSON] writes the exported fields of [Report] under the names of their
// json tags. "schema" is [Schema]; it grows by one when a field changes its
// meaning or goes away. Fields may be added. Sizes are bytes of one rank (the
// largest, where slices are uneven) and times are seconds, unless a name says
// otherwise.
package explain
