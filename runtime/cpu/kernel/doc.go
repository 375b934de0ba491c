// Package kernel holds the float32 arithmetic of the CPU backend: matrix products, attention, layer
// norm, RMS norm, GELU, SwiGLU, rotary positions, dropout, embedding, cross-entropy, AdamW and
// elementwise operations. It works on dense row-major slices with explicit sizes and knows nothing
// of graphs, plans or ranks.
//
// # Shape of the package
//
// Every exported function checks its slices once, fills a small task struct and hands it to a
// [Pool], which divides the work into chunks for its cores (pool.go, cores.go). The inner loops are
// the fields of one isa value (isa.go), chosen when the Pool is made: Go assembly generated from
// ./asm if the processor supports it, plain Go otherwise. A task never asks which of the two it
// has. For tests and measurements the environment can exclude instruction sets: with
// GODEBUG=cpu.amxtile=off matrix products and attention use AVX-512 instead of AMX, with
// cpu.avx512f=off everything uses AVX2, and with cpu.avx2=off plain Go.
//
// # Determinism
//
// Every function gives bit-identical results for any number of threads: work is divided over
// independent outputs, and a reduction runs over chunks whose bounds depend on sizes alone,
// combined in order. Elementwise loops treat a tail exactly as they treat a full vector, so a value
// does not depend on its position in a chunk either. Between instruction sets, results differ in
// the last bits.
//
// # Errors
//
// A slice of the wrong length is a bug of the caller and panics with a message that begins with
// "BUG: kernel.". NaN and infinity propagate through every function to its result. One exception: a
// maximum may ignore a NaN, but the sum of exponentials that follows it does not. On AMX tiles an
// infinity may become a NaN: see tiles.go. In attention a value that is not finite may also make NaN
// of results of a few positions before its own, which by definition do not depend on it.
package kernel

//go:generate go run ./asm -dir .
