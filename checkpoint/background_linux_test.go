package checkpoint

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/launch/launchtest"
)

// TestStoppedProcessIsNotLate: a process that is stopped for longer than writing may take, as by ^Z, goes on waiting.
func TestStoppedProcessIsNotLate(t *testing.T) {
	b := &Background{Dir: t.TempDir(), Memory: NewMemory(nil)}
	writing := make(chan written)
	b.writing, b.bound = writing, 2*time.Second
	go func() {
		writing <- written{"step", launchtest.Stop(3)}
	}()
	began := time.Now()
	require.NoError(t, b.Wait())
	require.Greater(t, time.Since(began), b.bound)
	require.NoError(t, b.Close())
}
