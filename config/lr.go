package config

import "math"

// The values of Optimizer.Schedule.
const (
	Cosine   = "cosine"
	Step     = "step"
	Constant = "constant"
)

// LR is the learning rate of iteration it (0-based), as nanoGPT's get_lr: with w = WarmupIters and e = LRDecayIters,
//
//	it < w    LearningRate (it+1)/(w+1); with WarmupFromZero LearningRate it/w
//	cosine    MinLR + (LearningRate-MinLR) (1+cos(pi (it-w)/(e-w)))/2 up to e, then MinLR
//	step      LearningRate StepFactor^floor((it-w)/StepIters), at least MinLR
//	constant  LearningRate
//
// Without DecayLR it is LearningRate throughout, warmup included.
func (o Optimizer) LR(it int) float64 {
	w := o.WarmupIters
	switch {
	case !o.DecayLR:
		return o.LearningRate
	case it < w && o.WarmupFromZero:
		return o.LearningRate * float64(it) / float64(w)
	case it < w:
		return o.LearningRate * float64(it+1) / (float64(w) + 1) // w+1 may be more than an int holds
	}
	switch o.Schedule {
	case Constant:
		return o.LearningRate
	case Step:
		return max(o.MinLR, o.LearningRate*math.Pow(o.StepFactor, float64((it-w)/o.StepIters)))
	}
	if it > o.LRDecayIters || it > w && o.LRDecayIters <= w {
		return o.MinLR
	}
	progress := 0.0
	if it > w {
		progress = float64(it-w) / float64(o.LRDecayIters-w)
	}
	return o.MinLR + 0.5*(1+math.Cos(math.Pi*progress))*(o.LearningRate-o.MinLR)
}
