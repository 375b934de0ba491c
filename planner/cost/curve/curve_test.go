package curve

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLinkFindsWhatMadeTheTimes: Link recovers latency and bandwidth from times made with them, also with noise of a
// tenth.
func TestLinkFindsWhatMadeTheTimes(t *testing.T) {
	const seed = 4
	for _, noise := range []float64{0, 0.1} {
		r := rand.New(rand.NewPCG(seed, 0))
		tolerance := 1e-6 + noise/2
		var all []Exchange
		for range 400 {
			e := Exchange{Messages: float64(1 + r.IntN(6)), Bytes: math.Pow(10, 3+4*r.Float64())}
			e.Seconds = (e.Messages*2e-6 + e.Bytes/1e10) * (1 + noise*(2*r.Float64()-1))
			all = append(all, e)
		}
		latency, bandwidth, off := Link(all)
		require.InEpsilon(t, 2e-6, latency, tolerance, "seed %d", seed)
		require.InEpsilon(t, 1e10, bandwidth, tolerance, "seed %d", seed)
		require.InDelta(t, noise/2, off, 0.02, "seed %d", seed)
	}
}

func TestLineStaysPhysical(t *testing.T) {
	a, b := Line([]float64{1, 2, 4}, []float64{1, 3, 8})
	require.Zero(t, b, "a line below 0 at 0 goes through it instead")
	require.Positive(t, a)
	a, b = Line([]float64{1, 2, 4}, []float64{8, 3, 1})
	require.Zero(t, a, "a falling line is flat instead")
	require.Positive(t, b)
}

func TestFigures(t *testing.T) {
	require.Equal(t, 0.688, Share(0.68754))
	require.Equal(t, 1.0, Share(1.2))
	require.Equal(t, 0.001, Share(0))
	require.Equal(t, "4.81e+12", Number(Round(4.8123e12)))
	require.Equal(t, "168", Number(168))
	require.Equal(t, "2.35e-06", Number(Round(2.3521e-6)))
}
