package interp

import (
	"math"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/philox"
)

// add: y = a + b, b repeated over the leading dimensions of a.
func add(_ *ir.Node, in, out []Tensor) error {
	a, b, y := in[0].F, in[1].F, out[0].F
	for i := range y {
		y[i] = a[i] + b[i%len(b)]
	}
	return nil
}

// addN: y = x_0 + x_1 + ...
func addN(_ *ir.Node, in, out []Tensor) error {
	for _, x := range in {
		for i := range x.F {
			out[0].F[i] += x.F[i]
		}
	}
	return nil
}

// scale: y = s x.
func scale(_ *ir.Node, in, out []Tensor) error {
	for i, x := range in[0].F {
		out[0].F[i] = x * in[1].F[0]
	}
	return nil
}

// sumTo: y_s = Σ_l x_ls.
func sumTo(_ *ir.Node, in, out []Tensor) error {
	y := out[0].F
	for i, x := range in[0].F {
		y[i%len(y)] += x
	}
	return nil
}

// expand: y_ls = x_s.
func expand(_ *ir.Node, in, out []Tensor) error {
	x := in[0].F
	for i := range out[0].F {
		out[0].F[i] = x[i%len(x)]
	}
	return nil
}

// sum: y = Σ_i x_i.
func sum(_ *ir.Node, in, out []Tensor) error {
	for _, x := range in[0].F {
		out[0].F[0] += x
	}
	return nil
}

// sumSquares: y = Σ_i x_i².
func sumSquares(_ *ir.Node, in, out []Tensor) error {
	for _, x := range in[0].F {
		out[0].F[0] += x * x
	}
	return nil
}

// sqrt: y = √x.
func sqrt(_ *ir.Node, in, out []Tensor) error {
	out[0].F[0] = math.Sqrt(in[0].F[0])
	return nil
}

// clipScale: y = min(1, max/(norm + 1e-6)), as torch.nn.utils.clip_grad_norm_.
func clipScale(n *ir.Node, in, out []Tensor) error {
	out[0].F[0] = min(1, n.Attr.(ir.ClipAttr).MaxNorm/(in[0].F[0]+1e-6))
	return nil
}

// fixedSquares: y_0 = Σ_i of x_i² rounded to a multiple of 2^-32, and y_1 = Σ_i of the remainders.
func fixedSquares(_ *ir.Node, in, out []Tensor) error {
	for _, x := range in[0].F {
		coarse := math.Ldexp(math.RoundToEven(math.Ldexp(x*x, ir.SquareFrac)), -ir.SquareFrac)
		out[0].F[0] += coarse
		out[0].F[1] += x*x - coarse
	}
	return nil
}

// fixedRoot: y = √(x_0 + x_1).
func fixedRoot(_ *ir.Node, in, out []Tensor) error {
	out[0].F[0] = math.Sqrt(in[0].F[0] + in[0].F[1])
	return nil
}

// The tanh approximation of GELU (Hendrycks and Gimpel, "Gaussian Error Linear
// Units", 2016): x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))).
const geluCubic = 0.044715

var sqrt2OverPi = math.Sqrt(2 / math.Pi)

// gelu: y = x Φ(x), Φ the standard normal distribution function, or its tanh
// approximation.
func gelu(n *ir.Node, in, out []Tensor) error {
	tanh := n.Attr.(ir.GELUAttr).Tanh
	for i, x := range in[0].F {
		if tanh {
			out[0].F[i] = x / 2 * (1 + math.Tanh(sqrt2OverPi*(x+geluCubic*x*x*x)))
		} else {
			out[0].F[i] = x / 2 * (1 + math.Erf(x/math.Sqrt2))
		}
	}
	return nil
}

// geluGrad: dx = dy (Φ(x) + x φ(x)), or the derivative of the approximation.
func geluGrad(n *ir.Node, in, out []Tensor) error {
	tanh := n.Attr.(ir.GELUAttr).Tanh
	dy := in[0].F
	for i, x := range in[1].F {
		if tanh {
			t := math.Tanh(sqrt2OverPi * (x + geluCubic*x*x*x))
			dt := (1 - t*t) * sqrt2OverPi * (1 + 3*geluCubic*x*x)
			out[0].F[i] = dy[i] * ((1+t)/2 + x/2*dt)
		} else {
			cdf := (1 + math.Erf(x/math.Sqrt2)) / 2
			pdf := math.Exp(-x*x/2) / math.Sqrt(2*math.Pi)
			out[0].F[i] = dy[i] * (cdf + x*pdf)
		}
	}
	return nil
}

// mask is a dropout mask: the factor for each element i is 0 or 1/(1-p).
type mask struct {
	key philox.Key
	p   float64
}

// newMask returns the mask for the name of the node and its operands seed and step, whose bits are taken as
// unsigned.
func newMask(attr ir.DropoutAttr, seed, step Tensor) mask {
	return mask{philox.Key{Seed: uint64(uint32(seed.I[0])), Op: philox.OpKey(attr.Key), Step: uint32(step.I[0])}, attr.P}
}

func (m mask) at(i int) float64 {
	if m.key.Keep(uint64(i), m.p) {
		return 1 / (1 - m.p)
	}
	return 0
}

// dropout: y_i = x_i m_i, where m is the mask at row-major index i. If the sequence is folded, i counts
// positions, not rows.
func dropout(n *ir.Node, in, out []Tensor) error {
	attr := n.Attr.(ir.DropoutAttr)
	m := newMask(attr, in[1], in[2])
	keep := Tensor{Shape: in[0].Shape, F: make([]float64, len(in[0].F))}
	for i := range keep.F {
		keep.F[i] = m.at(i)
	}
	if attr.Fold > 0 {
		keep = folded(keep, attr.Dim, attr.Fold)
	}
	for i, x := range in[0].F {
		out[0].F[i] = x * keep.F[i]
	}
	return nil
}

// cast: y = x, rounded to the type of the result (see [Eval]).
func cast(_ *ir.Node, in, out []Tensor) error {
	copy(out[0].F, in[0].F)
	return nil
}

// maxLossScale is the largest scale. An infinite one could never become finite again, and the inverse of a
// larger one would not be a normal number of f32.
const maxLossScale = 1 << 126

// lossScale is the update of torch.amp.GradScaler (Micikevicius et al., "Mixed Precision Training", 2018). norm
// is that of the scaled gradients. If it is finite, the step is good and unscale = 1/scale; Interval good steps
// in a row multiply the scale by Growth, up to 2^126. If it is not finite, the step is skipped: unscale = 0,
// and the scale is multiplied by Backoff.
func lossScale(n *ir.Node, in, out []Tensor) error {
	a := n.Attr.(ir.LossScaleAttr)
	scale, good, skipped, norm := in[0].F[0], in[1].F[0], in[2].F[0], in[3].F[0]
	unscale := 0.0
	switch {
	case math.IsInf(norm, 0) || math.IsNaN(norm):
		scale, good, skipped = scale*a.Backoff, 0, skipped+1
	case good+1 == float64(a.Interval):
		unscale, good = 1/scale, 0
		scale = min(scale*a.Growth, max(scale, maxLossScale))
	default:
		unscale = 1 / scale
		good++
	}
	for i, x := range []float64{scale, good, skipped, unscale} {
		out[i].F[0] = x
	}
	return nil
}

// adamW is torch.optim.AdamW (Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", 2019) of the gradient g·clip. step counts from 0, so the
// update number t of the bias corrections is step+1:
//
//	w ← w - lr λ w
//	m ← β₁ m + (1-β₁) g
//	v ← β₂ v + (1-β₂) g²
//	w ← w - lr m/(1-β₁ᵗ) / (√(v/(1-β₂ᵗ)) + ε)
//
// With a loss scaler, skipped steps do not count in t. A step whose factor clip is not positive is skipped:
// nothing changes.
func adamW(n *ir.Node, in, out []Tensor) error {
	a := n.Attr.(ir.AdamWAttr)
	w, m, v, g := in[0].F, in[1].F, in[2].F, in[3].F
	clip, lr, t := in[4].F[0], in[5].F[0], float64(in[6].I[0])+1
	if len(in) > 7 {
		if t -= in[7].F[0]; !(clip > 0) {
			copy(out[0].F, w)
			copy(out[1].F, m)
			copy(out[2].F, v)
			return nil
		}
	}
	correct1 := 1 - math.Pow(a.Beta1, t)
	correct2 := 1 - math.Pow(a.Beta2, t)
	for i := range w {
		gi := g[i] * clip
		mi := a.Beta1*m[i] + (1-a.Beta1)*gi
		vi := a.Beta2*v[i] + (1-a.Beta2)*gi*gi
		decayed := w[i] - lr*a.WeightDecay*w[i]
		out[0].F[i] = decayed - lr*(mi/correct1)/(math.Sqrt(vi/correct2)+a.Eps)
		out[1].F[i], out[2].F[i] = mi, vi
	}
	return nil
}
