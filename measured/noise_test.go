package measured

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNoise: only repeated plans count for the spread, and the regret is that of choosing between two plans by times with that
// spread.
func TestNoise(t *testing.T) {
	row := func(source string, batch, micro int, took float64) Outcome {
		return Outcome{Row: Row{Source: source, GlobalBatch: batch, MicroBatch: micro, SeqLen: 1, GPUs: 1, StepSeconds: took}}
	}
	low := row("s", 8, 1, 9)
	low.Confidence = "low"
	all := NoiseOf([]Outcome{
		row("s", 8, 1, math.Exp(0.3)), row("s", 8, 1, math.Exp(0.5)), low, // the mean of their logarithms is 0.4
		row("s", 16, 1, 1), row("s", 16, 2, 1.1), // measured once each
		row("once", 8, 1, 1), row("once", 8, 2, 2),
	})
	require.Len(t, all, 1)
	n := all[0]
	require.Equal(t, "s", n.SourceID)
	require.Equal(t, 1, n.Repeated)
	require.InDelta(t, math.Sqrt(2*0.1*0.1), n.Spread, 1e-12)
	// The slower plan is chosen if one of two normal variables exceeds the other by ln 1.1. Their difference is normal, with
	// deviation sqrt(2)·spread = 0.2.
	wrong := 0.5 * math.Erfc(math.Log(1.1)/0.2/math.Sqrt2)
	require.InDelta(t, 0.1*wrong, n.Regret, 0.1*4*math.Sqrt(wrong*(1-wrong)/noiseDraws))
	require.Greater(t, n.Spearman, 0.3)
	require.Less(t, n.Spearman, 0.99)
	require.Empty(t, NoiseOf(nil))
}

// TestSumsHaveOneOrder: all figures of a table have the same bits every time.
func TestSumsHaveOneOrder(t *testing.T) {
	var outcomes []Outcome
	for i := range 60 { // 20 plans of 4 sources, each measured three times
		seconds := 1 + float64(i*i%37)/7
		row := Row{Source: fmt.Sprint(i % 4), MicroBatch: i % 20, SeqLen: 1, GPUs: 1, GlobalBatch: 8, StepSeconds: seconds}
		outcomes = append(outcomes, Outcome{Row: row, PredictedSeconds: 1 + float64(i%11)/3})
	}
	noise, mean := NoiseOf(outcomes), MeanMAPE(Summarize(outcomes))
	for range 20 {
		require.Equal(t, noise, NoiseOf(outcomes))
		require.Equal(t, mean, MeanMAPE(Summarize(outcomes)))
	}
}
