package interp

import (
	"math"

	"github.com/autopar/autopar/ir"
)

// This file defines the ops in which Llama (Touvron et al., 2023) differs from GPT-2.

// rmsNorm (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019) of
// each row x of C elements: y = x rstd w, rstd = 1/√(avg(x²) + ε).
func rmsNorm(n *ir.Node, in, out []Tensor) error {
	x, w, y, rstds := in[0].F, in[1].F, out[0].F, out[1].F
	width := len(w)
	for r := range rstds {
		square := 0.0
		for _, xi := range x[r*width : (r+1)*width] {
			square += xi * xi / float64(width)
		}
		rstds[r] = 1 / math.Sqrt(square+n.Attr.(ir.RMSNormAttr).Eps)
		for c := range width {
			y[r*width+c] = x[r*width+c] * rstds[r] * w[c]
		}
	}
	return nil
}

// rmsNormGrad: with x̂ = x rstd and dx̂ = dy w, per row dx = rstd (dx̂ - x̂ avg(dx̂ x̂))
// and, summed over rows, dw = Σ dy x̂.
func rmsNormGrad(_ *ir.Node, in, out []Tensor) error {
	dy, x, w, rstds := in[0].F, in[1].F, in[2].F, in[3].F
	dx, dw := out[0].F, out[1].F
	width := len(w)
	for r, rstd := range rstds {
		avg := 0.0
		for c, i := 0, r*width; c < width; c, i = c+1, i+1 {
			avg += dy[i] * w[c] * x[i] * rstd / float64(width)
		}
		for c, i := 0, r*width; c < width; c, i = c+1, i+1 {
			dx[i] = rstd * (dy[i]*w[c] - x[i]*rstd*avg)
			dw[c] += dy[i] * x[i] * rstd
		}
	}
	return nil
}

// gated returns the indices, in the operand [..., 2, F], of gate and up for element i of the result of swiGLU.
func gated(i, width int) (gate, up int) {
	gate = i/width*2*width + i%width
	return gate, gate + width
}

// swiGLU: y = silu(g) u with silu(g) = g/(1 + exp(-g)) (Shazeer, "GLU Variants
// Improve Transformer", 2020), for gate g and up u packed in [..., 2, F].
func swiGLU(_ *ir.Node, in, out []Tensor) error {
	_, width := split(out[0].Shape, 1)
	for i := range out[0].F {
		gate, up := gated(i, width)
		g, u := in[0].F[gate], in[0].F[up]
		out[0].F[i] = g / (1 + math.Exp(-g)) * u
	}
	return nil
}

// swiGLUGrad: with σ = 1/(1 + exp(-g)), du = dy g σ and dg = dy u σ (1 + g (1-σ)).
func swiGLUGrad(_ *ir.Node, in, out []Tensor) error {
	_, width := split(in[1].Shape, 1)
	for i, dy := range in[1].F {
		gate, up := gated(i, width)
		g, u := in[0].F[gate], in[0].F[up]
		sigma := 1 / (1 + math.Exp(-g))
		out[0].F[gate] = dy * u * sigma * (1 + g*(1-sigma))
		out[0].F[up] = dy * g * sigma
	}
	return nil
}

// rope is rotary position embedding (Su et al., "RoFormer", 2021) of queries and keys [B, T, G+2, NH, D], in
// the convention of HuggingFace's Llama. Element i of the first half of a head and element i of its second half
// are a pair, which is rotated at position p by p times their frequency, or by its negative if inverse. Values
// are not rotated.
func rope(n *ir.Node, in, out []Tensor) error {
	attr := n.Attr.(ir.RoPEAttr)
	x, y := packed{in[0]}, out[0].F
	batch, length, heads, width := x.Shape[0], x.Shape[1], x.Shape[3], x.Shape[4]
	copy(y, x.F)
	for b := range batch {
		positions := in[1].I
		if attr.Rows {
			positions = positions[b*length:]
		}
		for t := range length {
			for part := range x.group() + 1 { // queries and keys
				for h := range heads {
					for i := range width / 2 {
						angle := float64(positions[t]) * attr.Frequency(i, width)
						if attr.Inverse {
							angle = -angle
						}
						sin, cos := math.Sincos(angle)
						lo, hi := x.at(b, t, part, h, i), x.at(b, t, part, h, i+width/2)
						y[lo] = x.F[lo]*cos - x.F[hi]*sin
						y[hi] = x.F[hi]*cos + x.F[lo]*sin
					}
				}
			}
		}
	}
	return nil
}
