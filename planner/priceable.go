package planner

import (
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
)

// A step that is too long to count in picoseconds is refused before it is priced. [Search] and [Predict]
// ask for that first.

// longest is how many days a step may take at the peak rate of its devices. Picoseconds in 64 bits
// count 106 days; the rest is left for everything that is not a product.
const longest = 10

// priceable refuses a step that would take longer on so many ranks than can be counted.
func priceable(g *ir.Graph, batch int, c *cost.Cluster, ranks int) error {
	flops, tokens, dtype := 0.0, int64(0), ir.F32 // 6 per weight and token, without attention (Kaplan et al. 2020, section 2.1)
	for _, n := range g.Nodes {
		switch n.Op {
		case ir.OpInput:
			tokens = max(tokens, n.Results[0].Type.Elems())
		case ir.OpMatMul:
			dtype = n.Args[0].Type.DType
		case ir.OpParam:
			if !n.Attr.(ir.ParamAttr).State {
				flops += 6 * float64(n.Results[0].Type.Elems())
			}
		}
	}
	days := flops * float64(tokens) / float64(ranks) / c.PeakFLOPS(dtype.String(), ranks) / (24 * 3600)
	if days > longest {
		return optionErrorf("batch.global", "is %d sequences, %.3g days a step at the peak rate of cluster %s, runtime_ngpus %d: longer than can be priced", batch, days, c.Name, ranks)
	}
	return nil
}
