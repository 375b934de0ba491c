package interp

import (
	"fmt"
	"math"

	"github.com/autopar/autopar/ir"
)

// matMul: y[M,N] = Σ_K of the operands, whose groups of dimensions are in the order that the form says. K is
// the product of the contracted dimensions.
func matMul(n *ir.Node, in, out []Tensor) error {
	attr := n.Attr.(ir.MatMulAttr)
	a, b, y := in[0], in[1], out[0].F
	var rows, cols, depth int
	var at func(i, k int) float64 // a of output row i and contracted index k
	var bt func(j, k int) float64 // b of output column j and contracted index k
	switch attr.Form {
	case ir.MatMulNT:
		rows, depth = split(a.Shape, attr.K)
		cols, _ = split(b.Shape, attr.K)
	case ir.MatMulNN:
		rows, depth = split(a.Shape, attr.K)
		_, cols = split(b.Shape, len(b.Shape)-attr.K)
	case ir.MatMulTN:
		depth, rows = split(a.Shape, len(a.Shape)-attr.K)
		_, cols = split(b.Shape, len(b.Shape)-attr.K)
	}
	at = func(i, k int) float64 { return a.F[i*depth+k] }
	if attr.Form == ir.MatMulTN {
		at = func(i, k int) float64 { return a.F[k*rows+i] }
	}
	bt = func(j, k int) float64 { return b.F[k*cols+j] }
	if attr.Form == ir.MatMulNT {
		bt = func(j, k int) float64 { return b.F[j*depth+k] }
	}
	for i := range rows {
		for j := range cols {
			for k := range depth {
				y[i*cols+j] += at(i, k) * bt(j, k)
			}
		}
	}
	return nil
}

// embedding: y_r = table[ids_r].
func embedding(_ *ir.Node, in, out []Tensor) error {
	table, ids := in[0], in[1].I
	rows, width := table.Shape[0], table.Shape[1]
	for r, id := range ids {
		if id < 0 || int(id) >= rows {
			return fmt.Errorf("id %d at index %d is out of range [0, %d)", id, r, rows)
		}
		copy(out[0].F[r*width:(r+1)*width], table.F[int(id)*width:])
	}
	return nil
}

// embeddingGrad: dtable[v] = Σ of dy_r over the r with ids_r = v.
func embeddingGrad(n *ir.Node, in, out []Tensor) error {
	ids, dy := in[0].I, in[1].F
	rows, width := n.Attr.(ir.EmbeddingGradAttr).Rows, out[0].Shape[1]
	for r, id := range ids {
		if id < 0 || int(id) >= rows {
			return fmt.Errorf("id %d at index %d is out of range [0, %d)", id, r, rows)
		}
		for c := range width {
			out[0].F[int(id)*width+c] += dy[r*width+c]
		}
	}
	return nil
}

// layerNorm (Ba, Kiros and Hinton, 2016) of each row x of C elements, with the
// biased variance: y = (x - mean) rstd w + b, rstd = 1/√(var + ε).
func layerNorm(n *ir.Node, in, out []Tensor) error {
	attr := n.Attr.(ir.LayerNormAttr)
	x, w := in[0].F, in[1].F
	y, means, rstds := out[0].F, out[1].F, out[2].F
	width := len(w)
	for r := range means {
		row := x[r*width : (r+1)*width]
		mean, variance := 0.0, 0.0
		for _, xi := range row {
			mean += xi / float64(width)
		}
		for _, xi := range row {
			variance += (xi - mean) * (xi - mean) / float64(width)
		}
		rstd := 1 / math.Sqrt(variance+attr.Eps)
		for c, xi := range row {
			y[r*width+c] = (xi - mean) * rstd * w[c]
			if attr.Bias {
				y[r*width+c] += in[2].F[c]
			}
		}
		means[r], rstds[r] = mean, rstd
	}
	return nil
}

// layerNormGrad: with x̂ = (x - mean) rstd and dx̂ = dy w, per row
//
//	dx = rstd (dx̂ - avg(dx̂) - x̂ avg(dx̂ x̂))
//
// and, summed over rows, dw = Σ dy x̂ and db = Σ dy.
func layerNormGrad(n *ir.Node, in, out []Tensor) error {
	dy, x, w, means, rstds := in[0].F, in[1].F, in[2].F, in[3].F, in[4].F
	dx, dw := out[0].F, out[1].F
	width := len(w)
	for r := range means {
		xhat := func(c int) float64 { return (x[r*width+c] - means[r]) * rstds[r] }
		dxhat := func(c int) float64 { return dy[r*width+c] * w[c] }
		avg, avgX := 0.0, 0.0
		for c := range width {
			avg += dxhat(c) / float64(width)
			avgX += dxhat(c) * xhat(c) / float64(width)
		}
		for c := range width {
			dx[r*width+c] = rstds[r] * (dxhat(c) - avg - xhat(c)*avgX)
			dw[c] += dy[r*width+c] * xhat(c)
			if n.Attr.(ir.LayerNormAttr).Bias {
				out[2].F[c] += dy[r*width+c]
			}
		}
	}
	return nil
}

// rowMax: max_r = max over v of x_rv.
func rowMax(_ *ir.Node, in, out []Tensor) error {
	_, width := split(in[0].Shape, 1)
	for r := range out[0].F {
		out[0].F[r] = math.Inf(-1)
		for _, x := range in[0].F[r*width : (r+1)*width] {
			out[0].F[r] = max(out[0].F[r], x)
		}
	}
	return nil
}

// rowSumExp: sum_r = Σ_v exp(x_rv - max_r).
func rowSumExp(_ *ir.Node, in, out []Tensor) error {
	_, width := split(in[0].Shape, 1)
	for i, x := range in[0].F {
		out[0].F[i/width] += math.Exp(x - in[1].F[i/width])
	}
	return nil
}

// rowPick: pick_r = x_r,target, 0 where target < 0 (an ignored token).
func rowPick(_ *ir.Node, in, out []Tensor) error {
	_, width := split(in[0].Shape, 1)
	for r, target := range in[1].I {
		if int(target) >= width {
			return fmt.Errorf("target %d at index %d is out of range [0, %d)", target, r, width)
		}
		if target >= 0 {
			out[0].F[r] = in[0].F[r*width+int(target)]
		}
	}
	return nil
}

// nll: -log softmax(x)_target = max + log(sum) - pick, 0 where target < 0.
func nll(_ *ir.Node, in, out []Tensor) error {
	for r, target := range in[3].I {
		if target >= 0 {
			out[0].F[r] = in[0].F[r] + math.Log(in[1].F[r]) - in[2].F[r]
		}
	}
	return nil
}

// crossEntropyGrad: dx_rv = dnll_r (exp(x_rv - max_r)/sum_r - [v = target_r]),
// 0 where target < 0.
func crossEntropyGrad(_ *ir.Node, in, out []Tensor) error {
	x, maxes, sums, targets, dnll := in[0], in[1].F, in[2].F, in[3].I, in[4].F
	_, width := split(x.Shape, 1)
	for r, target := range targets {
		if int(target) >= width {
			return fmt.Errorf("target %d at index %d is out of range [0, %d)", target, r, width)
		}
		if target < 0 {
			continue
		}
		for v := range width {
			p := math.Exp(x.F[r*width+v]-maxes[r]) / sums[r]
			if v == int(target) {
				p--
			}
			out[0].F[r*width+v] = dnll[r] * p
		}
	}
	return nil
}
