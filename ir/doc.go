// Package ir defines the graph that all other packages of autopar read and write: a straight-line list of nodes
// in static single assignment form. Every value has a dtype, a global shape and, once the graph is partitioned,
// a [ShardSpec].
//
// One row of the op table (op.go) defines an operation. Its signature names every dimension of every operand
// and result. From that one line follow shape inference, the legal ways to split the op over a mesh axis, the
// collectives that a split needs, and the bytes that the op touches.
//
// Shapes are global: partitioning changes the spec of a value, never its shape. The part of a value that one
// rank holds is a [Slab], as computed by [Mesh.Local].
//
// The files, in reading order: types.go, graph.go and op.go say what a graph is, attr.go what attributes ops
// have. signature.go resolves the signature of a node (template.go parses the table's lines, resolve.go
// caches), and [Signature.Rule] lists the legal splits. mesh.go defines meshes and placements. verify.go and
// verifyspec.go check all invariants. fixed.go and fold.go define fixed-point sums and the folded sequences of
// context parallelism. The other files print and parse graphs.
package ir
