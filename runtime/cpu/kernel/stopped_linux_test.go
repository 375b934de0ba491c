package kernel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/launch/launchtest"
)

// TestStoppedProcessIsNotLate: a process that is stopped for longer than a wait may take, as by ^Z, goes on waiting.
func TestStoppedProcessIsNotLate(t *testing.T) {
	c := NewCores(1)
	defer c.Close()
	p := c.NewPool(0)
	var err error
	go func() {
		err = launchtest.Stop(3)
		p.Wake()
	}()
	began := time.Now()
	require.True(t, p.Await(nil, 2*time.Second, time.NewTimer(time.Hour)))
	require.NoError(t, err)
	require.Greater(t, time.Since(began), 2*time.Second)
	p.Leave()
}
