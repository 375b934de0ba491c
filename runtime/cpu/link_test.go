package cpu

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// TestReaderDoesNotWait: a reader with an answer to send continues reading while a long message is
// being sent there, because that may wait for another one to be read here.
func TestReaderDoesNotWait(t *testing.T) {
	s := &several{node: func(rank int) string { return fmt.Sprint(rank) }, threads: func(int) int { return 1 }}
	devices, err := s.Open(runtime.World{Ranks: 2, Timeout: time.Minute})
	require.NoError(t, err)
	require.NoError(t, devices[0].Record(runtime.Compute))
	back := s.backends[0].others.links[1]
	back.mu.Lock() // as its sender does
	asked, next := s.backends[0].devices[0].events, s.backends[0].devices[1].events
	require.NoError(t, s.backends[1].others.links[0].send(kindAwait, asked.id, 1))
	require.NoError(t, s.backends[1].others.links[0].send(kindCount, next.id, 5))
	require.Eventually(t, func() bool { return next.n.Load() == 5 }, 10*time.Second, time.Millisecond)
	back.mu.Unlock()
	told := s.backends[1].devices[0].events
	require.Eventually(t, func() bool { return told.n.Load() == 1 }, 10*time.Second, time.Millisecond)
	for _, d := range devices {
		require.NoError(t, d.Close())
	}
}

// TestLateAnswer: an answer that comes late, after another one and a new request, leaves the new
// request to be answered.
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

// TestWhoReadsNothing: sending to a process that does not read is bounded like any other wait, and
// the error names the rank. Abort ends it at once.
func TestWhoReadsNothing(t *testing.T) {
	const n = 16 << 20 // more than a connection buffers
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
			still.mu.Lock() // on which the reader waits once a counter's message has come
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
