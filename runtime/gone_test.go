package runtime

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGone asks after ranks when the wait is over: of each as often as one likes, and one that has
// exited is not said to hang.
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
