package profile

import (
	"math"
	"slices"

	"github.com/autopar/autopar/planner/cost/curve"
)

// sample is one measured instruction.
type sample struct {
	share   float64 // share of the machine that it had: 1 over the number of concurrent ranks
	flops   float64
	bytes   float64
	keys    float64 // number of keys, for attention
	packed  float64 // for a product, how many numbers are packed: see [cost.Work.Packed]
	across  float64 // for a product, bytes read from other cores' caches: see [cost.Work]
	moved   float64 // seconds in which a core moves what it packs to and from memory
	seconds float64
	weight  float64 // 1 over the time of its step, so that every step has the same weight
}

// ideal returns the time of the sample's operations at a peak rate of the machine.
func (s sample) ideal(peak float64) float64 { return s.flops / (peak * s.share) }

// balance returns the factor by which the times of a model must be multiplied so that they add up
// to those of the samples. off is the sum of the remaining deviations, as a share of the total.
func balance(samples []sample, model func(sample) float64) (factor, off float64) {
	all, modelled := 0.0, 0.0
	for _, s := range samples {
		all, modelled = all+s.weight*s.seconds, modelled+s.weight*model(s)
	}
	factor = all / modelled
	for _, s := range samples {
		off += s.weight * math.Abs(factor*model(s)-s.seconds)
	}
	return factor, off / all
}

// productFit are the constants of matrix products.
type productFit struct {
	efficiency float64 // share of the peak rate that large products reach
	half       float64 // number of operations at which a product reaches half of that
	pack       float64 // seconds in which a core packs a number
	fork       float64 // seconds lost by a product that several cores share
	remote     float64 // bytes/s at which a core reads another one's cache; 0 if that takes no longer
}

// fitProducts fits the constants to products of ranks with one core and with all of them, given the
// peak rate of the machine (FLOP/s). off is how far the samples are from the fit.
func fitProducts(samples []sample, peak, cores float64) (p productFit, off float64) {
	x, y := make([][]float64, 5), make([]float64, len(samples))
	for i, s := range samples {
		forked, apart := 0.0, 0.0
		if s.share*cores > 1 {
			forked, apart = 1, s.across*(1-1/cores)/cores
		}
		for j, v := range []float64{s.ideal(peak), 1 / (peak * s.share), s.packed, forked, apart} {
			x[j] = append(x[j], v)
		}
		y[i] = max(0, s.seconds-s.moved)
	}
	f := curve.Fit(x, y, func(i int) float64 { return samples[i].weight / samples[i].seconds }) // long products dominate the step
	all, fitted := 0.0, 0.0
	model := make([]float64, len(samples))
	for i, s := range samples {
		for j := range f {
			model[i] += f[j] * x[j][i]
		}
		all, fitted = all+s.weight*y[i], fitted+s.weight*model[i]
	}
	factor := all / fitted
	for i, s := range samples {
		off += s.weight * math.Abs(factor*model[i]-y[i]) / all
	}
	p = productFit{efficiency: 1 / (f[0] * factor), half: f[1] / f[0], pack: f[2] * factor, fork: f[3] * factor}
	if f[4] > 0 {
		p.remote = 1 / (f[4] * factor)
	}
	return p, off
}

// fitAttention fits an attention op: the share of the peak rate that it reaches with many keys, and
// the number of keys at which it reaches half of that. off is how far the samples are from the fit.
func fitAttention(samples []sample, peak float64) (share, half, off float64) {
	x, y := make([][]float64, 2), make([]float64, len(samples))
	for i, s := range samples {
		x[0], x[1], y[i] = append(x[0], s.ideal(peak)), append(x[1], s.ideal(peak)/s.keys), s.seconds
	}
	if f := curve.Fit(x, y, func(i int) float64 { return samples[i].weight / y[i] }); f[0] > 0 { // long ones dominate the step
		half = f[1] / f[0]
	}
	factor, off := balance(samples, func(s sample) float64 { return s.ideal(peak) * (1 + half/s.keys) })
	return 1 / factor, half, off
}

// pair is the same instruction run by ranks with one core each, and by one rank with all cores,
// which does all of their work.
type pair struct {
	apart    float64 // seconds that a core would need for its share of the one rank's work
	together float64 // seconds of the one rank
	weight   float64 // see [sample]
}

// fitThreads returns the share of their rate that cores keep when they share kernels.
func fitThreads(pairs []pair) float64 {
	var apart, together float64
	for _, p := range pairs {
		apart, together = apart+p.weight*p.apart, together+p.weight*p.together
	}
	if together == 0 {
		return 1
	}
	return min(apart/together, 1)
}

// near describes caches and memory, against which vector kernels are measured.
type near struct {
	cached            float64 // bytes of cache of the whole machine
	cache, memoryRate float64 // bytes/s of the machine
}

// traffic returns the time in which a kernel's bytes are moved.
func (n near) traffic(s sample) float64 {
	moved := n.memoryRate
	if s.bytes <= n.cached*s.share {
		moved = n.cache
	}
	return s.bytes / (moved * s.share)
}

// time returns the time of a kernel that computes at a rate (FLOP/s of the machine).
func (n near) time(s sample, rate float64) float64 { return max(s.ideal(rate), n.traffic(s)) }

// fitMoves returns the share of the bandwidth of memory and caches that an op without arithmetic
// reaches.
func fitMoves(samples []sample, n near) float64 {
	factor, _ := balance(samples, n.traffic)
	return 1 / factor
}

// fitVector returns the share of the peak rate at which kernels between products compute, given the
// bandwidth of memory and caches: the largest one with which the times add up to those measured.
func fitVector(samples []sample, peak float64, n near) (share, off float64) {
	for exponent := 0.0; exponent >= -3; exponent -= 0.005 {
		share = math.Pow(10, exponent)
		factor, deviation := balance(samples, func(s sample) float64 { return n.time(s, peak*share) })
		if off = deviation; factor <= 1 {
			break
		}
	}
	return share, off
}

// knee returns the largest size at which the bandwidth, which falls with size, is still closer (by
// ratio) to the highest than to that of the largest size.
func knee(sizes, rates []float64) float64 {
	middle := math.Sqrt(slices.Max(rates) * rates[len(rates)-1])
	at := sizes[0]
	for i, r := range rates {
		if r >= middle {
			at = sizes[i]
		}
	}
	return at
}
