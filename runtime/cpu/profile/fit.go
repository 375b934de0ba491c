package profile

import (
	"math"
	"slices"

	"github.com/autopar/autopar/planner/cost/curve"
)

// sample is one measured piece of work.
type sample struct {
	share   float64 // of the machine that did it: 1 over the ranks that ran beside each other
	flops   float64
	bytes   float64
	keys    float64 // of attention
	packed  float64 // numbers of a product: see [cost.Work.Packed]
	seconds float64
	weight  float64 // 1 over the time of its step: every step counts the same
}

// ideal is how long the sample's operations take at a peak rate of the machine.
func (s sample) ideal(peak float64) float64 { return s.flops / (peak * s.share) }

// balance returns the factor by which the times of a model are to be multiplied so
// that they add up to those of the samples, and how far they then are from them:
// the sum of the deviations as a share of all.
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

// fitProducts returns the share of a peak rate (FLOP/s of the machine) that large
// products reach and at how many operations they reach half of it, the seconds that a
// core takes to pack a number, and how far the samples are from that. Each is of a rank
// with a core.
func fitProducts(samples []sample, peak float64) (efficiency, half, pack, off float64) {
	x, y := make([][]float64, 3), make([]float64, len(samples))
	for i, s := range samples {
		x[0], x[1], x[2] = append(x[0], s.ideal(peak)), append(x[1], 1/(peak*s.share)), append(x[2], s.packed)
		y[i] = s.seconds
	}
	f := curve.Fit(x, y, func(i int) float64 { return samples[i].weight / y[i] }) // long ones make the step
	factor, off := balance(samples, func(s sample) float64 { return f[0]*s.ideal(peak) + f[1]/(peak*s.share) + f[2]*s.packed })
	return 1 / (f[0] * factor), f[1] / f[0], f[2] * factor, off
}

// fitAttention returns the share of the peak rate that attention reaches to many keys,
// and with how many it reaches half of that.
func fitAttention(samples []sample, peak float64) (efficiency, half, off float64) {
	x, y := make([]float64, len(samples)), make([]float64, len(samples))
	for i, s := range samples {
		x[i], y[i] = 1/s.keys, s.seconds/s.ideal(peak)
	}
	b, a := curve.Line(x, y)
	if a > 0 {
		half = b / a
	}
	efficiency, off = attentionShare(samples, peak, half)
	return efficiency, half, off
}

// attentionShare is the share with which the times add up, given that half.
func attentionShare(samples []sample, peak, half float64) (share, off float64) {
	factor, off := balance(samples, func(s sample) float64 { return s.ideal(peak) * (1 + half/s.keys) })
	return 1 / factor, off
}

// pair is an instruction as ranks with a core each run it, and as one rank with all
// cores runs all of it.
type pair struct {
	across   float64 // bytes: see [cost.Work]
	apart    float64 // seconds of a core, if it did its share of what the rank does
	together float64 // seconds of the rank
	weight   float64 // see [sample]
	packed   float64 // numbers that a core packs more of what the rank does than of its share by itself
}

// lost is how much longer the rank takes than cores apart, each of which keeps a share of
// its rate, for anything but packing.
func (p pair) lost(pack, share float64) float64 { return p.together - p.apart/share - pack*p.packed }

// fitThreads returns the share of their rate that cores keep which compute together, all in
// all.
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

// fitDivided returns the share of their rate that cores keep which divide a kernel, and the
// seconds that it loses besides: of kernels whose cores have near what they read, and
// beside what it takes to pack a number.
func fitDivided(pairs []pair, pack float64) (share, fork float64) {
	x, weights := make([][]float64, 2), []float64(nil)
	var y []float64
	for _, p := range pairs {
		if packing := pack * p.packed; p.across == 0 && p.together > packing {
			x[0], x[1], y = append(x[0], p.apart), append(x[1], 1), append(y, p.together-packing)
			weights = append(weights, p.weight/p.together)
		}
	}
	f := curve.Fit(x, y, func(i int) float64 { return weights[i] })
	if f[0] > 1 {
		return 1 / f[0], f[1]
	}
	for i := range y {
		y[i] -= x[0][i]
	}
	return 1, curve.Fit(x[1:], y, func(i int) float64 { return weights[i] })[0]
}

// fitRemote returns the bytes/s at which a core reads what lies near another: what a rank
// with all cores takes longer than one a core to read across, beside what all kernels lose,
// or 0 if it does not.
func fitRemote(pairs []pair, pack, share, fork, cores float64) float64 {
	var moved, lost float64
	for _, p := range pairs {
		if p.across > 0 {
			moved += p.weight * p.across * (1 - 1/cores) / cores
			lost += p.weight * (p.lost(pack, share) - fork)
		}
	}
	if lost <= 0 {
		return 0
	}
	return moved / lost
}

// near is what vector kernels are measured against: caches and memory.
type near struct {
	cached            float64 // bytes near the processors of the whole machine
	cache, memoryRate float64 // bytes/s of the machine
}

// time of a kernel that computes at a rate (FLOP/s of the machine).
func (n near) time(s sample, rate float64) float64 {
	moved := n.memoryRate
	if s.bytes <= n.cached*s.share {
		moved = n.cache
	}
	return max(s.ideal(rate), s.bytes/(moved*s.share))
}

// fitVector returns the share of the peak rate at which kernels between products
// compute, given what memory and caches give them: the largest with which the times
// add up to those measured.
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

// knee returns the largest size at which a bandwidth that falls with size is still
// nearer, by ratio, to the highest than to that of the largest size.
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
