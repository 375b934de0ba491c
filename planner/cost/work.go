package cost

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// Work is what an instruction has to do, as it is priced: what a measurement of its
// time is fitted to.
type Work struct {
	Class  string // product, attention or vector; collective, or empty for what is not fitted
	FLOPs  float64
	Bytes  int64   // of memory traffic, or of a collective's tensor
	Keys   float64 // of attention: how many a query has before it is masked
	Rows   float64 // of a product, of its result
	Cols   float64
	Across int64   // bytes that its parts read of what all parts of kernels before have written, or write of what those have read
	Group  Group   // of a collective
	Moved  float64 // bytes of memory that a collective by [OnePass] moves for each rank
}

// Packed is how many numbers of a product's matrices the core packs that packs most, where
// so many divide the product, and what bytes it moves for that to and from memory where its
// cache holds so many.
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

// WorkOf returns the work of an instruction at a position of a mesh, or of a bucket: see
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
			w.Moved += passed(n.Op, bytes, m.there(&instrs[i], mesh, at), float64(w.Group.Size))
		}
		return w
	}
	w := m.work(in, mesh, at)
	class := [...]string{vector: "vector", product: "product", attention: "attention"}[classOf(n.Op)]
	return Work{Class: class, FLOPs: w.flops, Bytes: w.bytes, Keys: w.keys, Rows: float64(w.rows), Cols: float64(w.cols), Across: w.across}
}
