package cpu

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// TestLongMessagesBothWays: two machines send each other operands that are longer than what connections hold, on a stream, while
// each asks for events of the other, whose answers go the same way.
func TestLongMessagesBothWays(t *testing.T) {
	s := &several{node: func(rank int) string { return fmt.Sprint(rank) }, threads: func(int) int { return 1 }}
	devices, err := s.Open(runtime.World{Ranks: 2, Timeout: 20 * time.Second})
	require.NoError(t, err)
	all, _, _ := collectives(t, devices, ir.OpAllReduce, 4<<20)
	const rounds = 10
	var ranks sync.WaitGroup
	for r, d := range devices {
		ranks.Go(func() {
			for range rounds {
				all[r].Stream = runtime.Communication
				if err := errors.Join(d.Collective(all[r]), d.Record(runtime.Communication)); err != nil {
					t.Error(err)
				}
			}
			for n := range int64(300) {
				err := errors.Join(d.Record(runtime.Compute), d.Wait(runtime.Compute, runtime.Event{Rank: 1 - r, N: n + 1}))
				if err != nil {
					t.Error(r, n, err)
					return
				}
			}
			if err := d.Wait(runtime.Host, runtime.Event{Rank: r, Stream: runtime.Communication, N: rounds}); err != nil {
				t.Error(r, err)
			}
		})
	}
	ranks.Wait()
	for _, d := range devices {
		require.NoError(t, d.Close())
	}
}

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

// TestWhoReadsNothing: to send to a process that stands still takes no longer than any other wait, and its error names the rank.
// Abort ends it at once.
func TestWhoReadsNothing(t *testing.T) {
	const n = 16 << 20 // more than connections hold
	for name, c := range map[string]struct {
		timeout time.Duration
		send    func(d runtime.Device, c *runtime.Collective) error
		want    string
	}{
		"send": {500 * time.Millisecond, func(d runtime.Device, c *runtime.Collective) error {
			return d.Send(&runtime.Transfer{Node: c.Node, Peer: 1, Local: c.Members[0].In})
		}, "waited 500ms for rank 1"},
		"stream": {500 * time.Millisecond, func(d runtime.Device, c *runtime.Collective) error {
			c.Stream = runtime.Communication
			return errors.Join(d.Collective(c), d.Record(c.Stream), d.Wait(runtime.Compute, runtime.Event{Stream: c.Stream, N: 1}))
		}, "all_reduce bench: waited 500ms for rank 1"},
		"abort": {time.Minute, func(d runtime.Device, c *runtime.Collective) error {
			time.AfterFunc(50*time.Millisecond, d.(*Device).backend.Abort)
			return d.Collective(c)
		}, runtime.ErrAborted.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &several{node: func(rank int) string { return fmt.Sprint(rank) }, threads: func(int) int { return 1 }}
			devices, err := s.Open(runtime.World{Ranks: 2, Timeout: c.timeout})
			require.NoError(t, err)
			all, _, _ := collectives(t, devices, ir.OpAllReduce, n)
			still := s.backends[1].others
			still.mu.Lock() // for which who reads waits, once there is a message of a counter
			require.NoError(t, s.backends[0].others.links[1].send(kindCount, 0, 0))
			over := make(chan error, 1)
			go func() { over <- c.send(devices[0], all[0]) }()
			select {
			case err := <-over:
				require.EqualError(t, err, c.want)
			case <-time.After(20 * time.Second):
				t.Error("it does not end")
			}
			s.Abort()
			still.mu.Unlock()
			for _, d := range devices {
				require.NoError(t, d.Close())
			}
		})
	}
}
