// Package kernel holds the float32 arithmetic of the CPU backend: matrix products, attention, layer norm, RMS norm, GELU,
// SwiGLU, rotary positions, dropout, embedding, cross-entropy, AdamW and the element-wise operations between them. It works on dense row-major slices with
// explicit sizes and knows nothing of graphs, plans or ranks.
//
// # Shape of the package
//
// Every exported function checks its slices once, fills a small task struct and hands it to a Pool, which cuts the work
// into chunks for its goroutines. The inner loops are the fields of one isa value, chosen when the Pool is made: Go
// assembly generated from ./asm (see there) where the processor has it, plain Go elsewhere. A task never asks which of the
// two it got. The environment can leave sets out, for tests and measurements: GODEBUG=cpu.amxtile=off has matrix products
// and attention in AVX-512, cpu.avx512f=off everything in AVX2 and cpu.avx2=off in plain Go.
//
// # Determinism
//
// Every function gives bit-identical results for any number of threads: work is split over outputs that do not depend on
// each other, and a reduction runs over chunks whose bounds depend on the sizes alone, combined in order. Element-wise
// loops treat a tail exactly as they treat a full vector, so a value does not depend on its position in a chunk either.
// Results do differ, in the last bits, between instruction sets.
//
// # Errors
//
// A slice of the wrong length is a bug of the caller and panics with a message starting "BUG: kernel.". NaN and infinity
// travel through every function to its result, except that a maximum may pass over a NaN; the sum of exponentials that
// follows it does not. On the tiles of AMX an infinity may become a NaN: see tiles.go.
package kernel

//go:generate go run ./asm -dir .
