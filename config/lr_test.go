package config

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Closed forms at it = 0, 1, w-1, w, mid, end, end+1 with lr 1e-3, min 1e-4, w 100, end 2000.
func TestLR(t *testing.T) {
	const lr, least = 1e-3, 1e-4
	base := Optimizer{LearningRate: lr, MinLR: least, WarmupIters: 100, LRDecayIters: 2000, DecayLR: true,
		Schedule: Cosine, StepIters: 300, StepFactor: 0.5}
	with := func(change func(*Optimizer)) Optimizer { o := base; change(&o); return o }
	at := [7]int{0, 1, 99, 100, 1050, 2000, 2001}

	for _, tc := range []struct {
		name string
		o    Optimizer
		want [7]float64
	}{
		{"cosine", base, [7]float64{lr / 101, 2 * lr / 101, 100 * lr / 101, lr, (lr + least) / 2, least, least}},
		{"cosine, old warmup", with(func(o *Optimizer) { o.WarmupFromZero = true }),
			[7]float64{0, lr / 100, 99 * lr / 100, lr, (lr + least) / 2, least, least}},
		{"constant", with(func(o *Optimizer) { o.Schedule = Constant }),
			[7]float64{lr / 101, 2 * lr / 101, 100 * lr / 101, lr, lr, lr, lr}},
		{"step", with(func(o *Optimizer) { o.Schedule = Step }), // 950/300 = 3 drops; 6 would be below min_lr
			[7]float64{lr / 101, 2 * lr / 101, 100 * lr / 101, lr, lr / 8, least, least}},
		{"no decay", with(func(o *Optimizer) { o.DecayLR = false }), [7]float64{lr, lr, lr, lr, lr, lr, lr}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for i, it := range at {
				require.InDelta(t, tc.want[i], tc.o.LR(it), 1e-18, "iteration %d", it)
			}
		})
	}

	quarter := base.LR(100 + 1900/4) // a quarter of the way down the cosine
	require.InDelta(t, least+(lr-least)*(1+math.Sqrt2/2)/2, quarter, 1e-18)
}

// nanoGPT divides by zero where warmup and decay end together; here the peak is reached, then decay is over.
func TestLRWithoutRoomToDecay(t *testing.T) {
	o := Optimizer{LearningRate: 1, MinLR: 0.1, WarmupIters: 10, LRDecayIters: 10, DecayLR: true, Schedule: Cosine}
	require.Equal(t, []float64{10.0 / 11, 1, 0.1}, []float64{o.LR(9), o.LR(10), o.LR(11)})
	o.LRDecayIters = 5
	require.Equal(t, []float64{6.0 / 11, 7.0 / 11, 0.1}, []float64{o.LR(5), o.LR(6), o.LR(10)})
	o.WarmupIters, o.LRDecayIters = 0, 0
	require.Equal(t, []float64{1, 0.1}, []float64{o.LR(0), o.LR(1)})
	o.WarmupIters, o.LRDecayIters = math.MaxInt, math.MaxInt // a warmup without end
	require.InEpsilon(t, 1/float64(math.MaxInt), o.LR(0), 1e-9)
}
