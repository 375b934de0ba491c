package planner

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestQuietEnds: GOGC is what it was after a search, when much of the heap is in use in one, and
// with several at once; what others set stays.
func TestQuietEnds(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(90))
	percent := func() int {
		now := debug.SetGCPercent(math.MaxInt32)
		debug.SetGCPercent(now)
		return now
	}
	runtime.GC()
	q := newQuiet()
	require.Greater(t, percent(), 90)
	q.heed()
	require.Greater(t, percent(), 90)
	q.end()
	q.end()
	require.Equal(t, 90, percent())

	q = newQuiet()
	kept := make([]byte, quietHeap)
	runtime.GC()
	q.heed()
	runtime.KeepAlive(kept)
	require.Equal(t, 90, percent())
	debug.SetGCPercent(80)
	q.end()
	require.Equal(t, 80, percent())

	first, second := newQuiet(), newQuiet()
	first.end()
	second.end()
	require.Equal(t, 80, percent())

	for _, others := range []int{50, -1} {
		q = newQuiet()
		debug.SetGCPercent(others)
		q.end()
		require.Equal(t, others, percent())
	}
	q = newQuiet()
	require.Equal(t, -1, percent(), "the collector was off")
	q.end()
	require.Equal(t, -1, percent())
}
