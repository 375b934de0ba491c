package measured

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRegret(t *testing.T) {
	row := func(id string, batch, micro int, predicted, took float64) Outcome {
		return Outcome{Row: Row{ID: id, Source: "s", GlobalBatch: batch, MicroBatch: micro, StepSeconds: took}, PredictedSeconds: predicted}
	}
	other := row("h", 8, 1, 0.1, 1)
	other.FusedNorm = true // other software: not the same setting
	low := row("l", 8, 8, 0.1, 5)
	low.Confidence = "low"
	again := row("m", 16, 2, 2, 1) // with e 2 on average, as d
	r := Regret([]Outcome{
		row("a", 8, 1, 2, 1.0), row("b", 8, 2, 1, 1.1), row("c", 8, 4, 3, 0.8), // b is chosen, c is the fastest
		row("d", 16, 1, 1, 2), row("e", 16, 2, 2, 3), // d is chosen and the fastest
		row("f", 32, 1, 1, 1),                               // one plan: no choice
		row("g", 64, 1, 1, 2), row("i", 64, 2, 1, 3), other, // equal predictions: the slower one is chosen
		row("j", 128, 1, 1, 0), row("k", 128, 2, 1, 1), // j was not measured
		low, again,
	})
	require.Equal(t, []Choice{{"s", 3, "b", "c", 1.1/0.8 - 1}, {"s", 2, "d", "d", 0}, {"s", 2, "i", "g", 0.5}}, r.Choices)
	require.InDelta(t, (1.1/0.8-1+0.5)/3, r.Mean, 1e-12)
	require.Equal(t, 0.5, r.Worst)
	require.Equal(t, 1, r.Right)
	require.Equal(t, 7, r.Plans)
	require.Empty(t, Regret(nil).Choices)
	require.Zero(t, Regret(nil).Mean)
}
