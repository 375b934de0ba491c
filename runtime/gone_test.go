package runtime

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGone asks after the wait whether ranks have exited. Each may be asked any number of times,
// and one that has exited is not reported as hanging.
func TestGone(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	exited, hanging := &rank{exited: make(chan struct{})}, &rank{exited: make(chan struct{})}
	close(exited.exited)
	for range 50 {
		require.True(t, exited.gone(over))
		require.False(t, hanging.gone(over))
	}
}
