package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/planner/cost"
)

func work(t cost.Picoseconds) Op            { return Op{Kind: Work, Time: t} }
func send(t cost.Picoseconds, ch int) Op    { return Op{Kind: Send, Time: t, Peer: ch} }
func recv(ch int) Op                        { return Op{Kind: Recv, Peer: ch} }
func join(t cost.Picoseconds, g int) Op     { return Op{Kind: Join, Time: t, Peer: g} }
func task(mb int, rel bool, ops ...Op) Task { return Task{Ops: ops, MicroBatch: mb, Releases: rel} }

func TestJoinWaitsForTheLast(t *testing.T) {
	s := System{
		Processes: []Process{
			{Tasks: []Task{task(0, false, work(5), join(2, 0), work(1), join(3, 0))}},
			{Tasks: []Task{task(0, false, work(9), join(2, 0), work(4), join(3, 0))}},
			{Tasks: []Task{task(0, false, work(1), join(2, 0), work(2), join(3, 0))}},
		},
		Groups: [][]int{{0, 1, 2}},
	}
	ends, err := s.Run()
	require.NoError(t, err)
	require.Equal(t, []cost.Picoseconds{18, 18, 18}, ends, "9+2, 4, 3")
}

// Two stages, three micro-batches, one slot at the receiver: the sender may copy
// micro-batch k only when the receiver has finished k-1.
func TestSendWaitsForTheSlot(t *testing.T) {
	run := func(slots int) []cost.Picoseconds {
		var a, b []Task
		for k := range 3 {
			a = append(a, task(k, true, work(10), send(2, 0)))
			b = append(b, task(k, true, recv(0), work(20)))
		}
		s := System{
			Processes: []Process{{Tasks: a}, {Tasks: b}},
			Channels:  []Channel{{From: 0, To: 1, Room: slots}},
		}
		ends, err := s.Run()
		require.NoError(t, err)
		return ends
	}
	// 12 arrives, works to 32; copied 32-34, works to 54; copied 54-56, works to 76.
	require.Equal(t, []cost.Picoseconds{56, 76}, run(1))
	// With two slots the copies are hidden but the first.
	require.Equal(t, []cost.Picoseconds{36, 72}, run(2))
}

func TestDeadlockIsAnError(t *testing.T) {
	s := System{
		Processes: []Process{
			{Tasks: []Task{task(0, false, recv(0), send(1, 1))}},
			{Tasks: []Task{task(0, false, recv(1), send(1, 0))}},
		},
		Channels: []Channel{{From: 1, To: 0}, {From: 0, To: 1}},
	}
	_, err := s.Run()
	require.ErrorContains(t, err, "waits forever")
}
