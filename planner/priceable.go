package planner

import (
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
)

// A step that is too long to count in picoseconds is refused before it is priced. [Search] and [Predict]
// ask for that first.

// How many days a step may take at the peak rate of its devices, and at the rates that their kernels reach.
// Picoseconds in 64 bits count 106 days. A sum that is up to twice as long is negative, which is seen.
const (
	longest        = 10
	longestReached = 200
)

// priceable refuses a step that would take longer on so many ranks than can be counted.
func priceable(g *ir.Graph, batch int, c *cost.Cluster, ranks int) error {
	weights, tokens, attention, bytes, dtype := 0.0, int64(0), 0.0, 0.0, ir.F32
	for _, n := range g.Nodes {
		switch n.Op {
		case ir.OpInput:
			tokens = max(tokens, n.Results[0].Type.Elems())
		case ir.OpAttention, ir.OpAttentionKV: // 2 products forward and 5 backward, over half of the keys
			out := n.Results[0].Type
			attention += 7 * float64(out.Elems()) * float64(max(1, ir.SequenceParts(n.Attr))*out.Shape[1])
		case ir.OpMatMul:
			dtype = n.Args[0].Type.DType
		case ir.OpParam:
			if !n.Attr.(ir.ParamAttr).State {
				weights += float64(n.Results[0].Type.Elems())
			}
		}
		for _, r := range n.Results {
			bytes += float64(r.Type.Bytes()) // each value is written at least once
		}
	}
	const day = 24 * 3600
	peak, e := c.PeakFLOPS(dtype.String(), ranks)*float64(ranks)*day, c.Device.Efficiency
	memory := c.Device.MemoryBandwidth * e.Memory * day
	if !c.Device.Shared {
		memory *= float64(ranks)
	}
	products := 6 * weights * float64(tokens) // Kaplan et al. 2020, section 2.1
	if days := (products + attention) / peak; days > longest {
		return optionErrorf("batch.global", "is %d sequences, %.3g days a step at the peak rate of cluster %s, runtime_ngpus %d: longer than can be priced", batch, days, c.Name, ranks)
	}
	if days := (products/e.Matmul+attention/e.Attention)/peak + bytes/memory; days > longestReached {
		return optionErrorf("batch.global", "is %d sequences, %.3g days a step at the rates that kernels reach on cluster %s, runtime_ngpus %d: longer than can be priced", batch, days, c.Name, ranks)
	}
	return nil
}
