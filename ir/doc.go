// Package ir is the graph that every other room of autopar reads and writes: a
// straight-line list of nodes in static single assignment form, in which every
// value has a dtype, a global shape and, once partitioned, a [ShardSpec].
//
// One row of the op table (op.go) defines an operation. Its signature names
// every dimension of every operand and result, and from that one line derive
// shape inference, the legal ways to split the op over a mesh axis, the
// collectives a split needs, and the bytes it touches.
//
// Shapes are global: partitioning changes a value's spec, never its shape. The
// part of a value that one rank holds is [Mesh.Local].
package ir
