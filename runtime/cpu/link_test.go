package cpu

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/runtime"
)

// TestLateAnswer: who answers late, when another has answered for it and more is asked for, leaves that to be answered.
func TestLateAnswer(t *testing.T) {
	s := &several{node: func(rank int) string { return fmt.Sprint(rank) }, threads: func(int) int { return 1 }}
	devices, err := s.Open(runtime.World{Ranks: 2, Timeout: 10 * time.Second})
	require.NoError(t, err)
	of := s.backends[0].devices[0].events
	for range 5 {
		require.NoError(t, devices[0].Record(runtime.Compute))
	}
	over := make(chan error, 1)
	go func() { over <- devices[1].Wait(runtime.Host, runtime.Event{Rank: 0, N: 6}) }()
	require.Eventually(t, func() bool { return of.least[1].Load() == 6 }, time.Minute, time.Millisecond)
	s.backends[0].others.ring(1, of, 5)
	require.NoError(t, devices[0].Record(runtime.Compute))
	require.NoError(t, <-over)
	for _, d := range devices {
		require.NoError(t, d.Close())
	}
}
