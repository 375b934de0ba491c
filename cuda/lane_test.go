package cuda

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/runtime"
)

// TestManyEvents gives a lane the collectives of a step of many micro-batches. What the host does for one must not grow with
// how many are in progress.
func TestManyEvents(t *testing.T) {
	const many = 300_000
	s := &silent{}
	l := &lane{device: &Device{drv: s}}
	start := time.Now()
	for i := range int64(many) {
		l.note(given{transfer: &runtime.Transfer{}})
		require.NoError(t, l.record())
		require.NoError(t, l.hold(i+1, 1))
	}
	require.Equal(t, many, s.waits)
	require.Less(t, time.Since(start), 10*time.Second)
	first, ok := l.waiting()
	require.True(t, ok)
	require.Equal(t, int64(1), first.event)
	l.passed(many - 1)
	l.note(given{transfer: &runtime.Transfer{}})
	require.Len(t, l.given, 2)
}
