package kernel

import "math"

// AdamWArgs are the scalars of one AdamW step.
type AdamWArgs struct {
	LR, Eps, WeightDecay float32
	Beta1, Beta2         float64 // as given: 1-Beta is rounded once, not the complement of what was rounded
	// BiasCorrection1 and BiasCorrection2 are 1 - beta^t of the step t being taken, counted from 1.
	BiasCorrection1, BiasCorrection2 float32
	GradScale                        float32 // the gradient is multiplied by it first: 1, or the factor of a clip
}

// adamwFactors are AdamWArgs as the inner loop wants them: an array, so that the assembly can address its elements.
type adamwFactors = [9]float32

// Indices into adamwFactors.
const (
	gradScale = iota
	beta1
	gain1 // 1 - beta1
	beta2
	gain2    // 1 - beta2
	decay    // 1 - lr*weightDecay
	stepSize // lr / biasCorrection1
	rootBias // 1 / sqrt(biasCorrection2)
	epsilon
)

// AdamW takes one step of AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) in place, as
// torch.optim.AdamW does: with g scaled by GradScale,
//
//	w *= 1 - LR*WeightDecay
//	m = Beta1*m + (1-Beta1)*g
//	v = Beta2*v + (1-Beta2)*g*g
//	w -= LR/BiasCorrection1 * m / (sqrt(v)/sqrt(BiasCorrection2) + Eps)
func AdamW(p *Pool, w, m, v, g []float32, args AdamWArgs) {
	checkLen("AdamW", "m", m, len(w))
	checkLen("AdamW", "v", v, len(w))
	checkLen("AdamW", "g", g, len(w))
	p = p.orInline()
	p.task.adamw = adamwTask{w: w, m: m, v: v, g: g, factors: adamwFactors{
		gradScale: args.GradScale,
		beta1:     float32(args.Beta1),
		gain1:     float32(1 - args.Beta1),
		beta2:     float32(args.Beta2),
		gain2:     float32(1 - args.Beta2),
		decay:     float32(1 - float64(args.LR)*float64(args.WeightDecay)),
		stepSize:  float32(float64(args.LR) / float64(args.BiasCorrection1)),
		rootBias:  float32(1 / math.Sqrt(float64(args.BiasCorrection2))),
		epsilon:   args.Eps,
	}}
	p.run(&p.task.adamw, len(w), grainHeavy)
}

type adamwTask struct {
	w, m, v, g []float32
	factors    adamwFactors
}

func (t *adamwTask) do(w *worker, lo, hi int) {
	w.isa.adamw(t.w[lo:hi], t.m[lo:hi], t.v[lo:hi], t.g[lo:hi], &t.factors)
}
