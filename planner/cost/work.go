package cost

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// This file exposes what the cost model counts for an instruction (operations, bytes, shapes), without prices.
// autopar profile fits the constants of a cluster file to measured times with it.

// Work is what an instruction does, in the quantities that its price depends on. Measured times are fitted to
// it.
type Work struct {
	Class  string // product, attention or vector; collective; or empty for what is not fitted
	FLOPs  float64
	Bytes  int64   // of memory traffic; of a collective, the size of its tensor
	Keys   float64 // of attention: keys per query before masking
	Rows   float64 // of a product: rows of its result
	Cols   float64 // of a product: columns of its result
	Across int64   // bytes exchanged between the rank's cores by this kernel and those before it: see [across]
	Group  Group   // of a collective
	Moved  float64 // bytes of memory that a collective moves per rank under [OnePass]
}

// Packed returns how many matrix elements the busiest core packs when the given number of cores divide a
// product, and how many bytes that moves to and from memory if a core's cache holds so many bytes. Both are 0
// for other kernels.
func (w *Work) Packed(cores, cached float64) (numbers, bytes float64) {
	if w.Class != "product" {
		return 0, 0
	}
	left, right := packed(w.FLOPs, w.Rows, w.Cols, float64(w.Across), cores)
	if 2*w.FLOPs > cached*w.Rows {
		bytes = packedBytes * right
	}
	return left + right, bytes
}

// WorkOf returns the work of an instruction, or of a bucket of collectives, at a position of a mesh: see
// [Program.Bucket].
func (m *Program) WorkOf(instrs []codegen.Instr, mesh ir.Mesh, at ir.Coord) Work {
	in := &instrs[0]
	n := in.Node
	switch n.Op {
	case ir.OpInput, ir.OpSlice, ir.OpFold, ir.OpUnfold, ir.OpToPartial:
		if !in.Moves(mesh) {
			return Work{}
		}
		return Work{Class: "vector", Bytes: 2 * localBytes(n.Results[0], mesh, at)}
	case ir.OpAccumulate:
		return Work{Class: "vector", Bytes: 3 * localBytes(n.Results[0], mesh, at)}
	case ir.OpSend, ir.OpRecv, ir.OpFetch, ir.OpStash:
		return Work{}
	}
	if n.Op.Class() == ir.Comm {
		axis := mesh.Axis(n.Attr.(ir.CommAttr).Axis)
		w := Work{Class: "collective", Group: m.group(n, axis)}
		for i := range instrs {
			bytes := collectiveBytes(&instrs[i], mesh, at)
			w.Bytes += bytes
			w.Moved += passed(n.Op, bytes, m.inPlace(&instrs[i], mesh, at), float64(w.Group.Size))
		}
		return w
	}
	w := m.work(in, mesh, at)
	class := [...]string{vector: "vector", product: "product", attention: "attention"}[classOf(n.Op)]
	return Work{Class: class, FLOPs: w.flops, Bytes: w.bytes, Keys: w.keys, Rows: float64(w.rows), Cols: float64(w.cols), Across: w.across}
}
