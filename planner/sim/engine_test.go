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

// TestSendWaitsForTheSlot: two stages, three micro-batches, one slot at the receiver. The sender may copy micro-batch
// k only when the receiver has finished k-1.
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

// TestStreamsSlowDown: what a process hands to its stream, or runs beside others, delays it by what it slows down, but not
// where the process waits for it at once.
func TestStreamsSlowDown(t *testing.T) {
	run := func(beside bool, after cost.Picoseconds) cost.Picoseconds {
		first, rest := Op{Kind: Join, Time: 20, Slows: 4}, work(after)
		first.Async = !beside
		if beside {
			first.Beside = 1
		}
		s := System{Processes: []Process{{Tasks: []Task{task(0, false, work(5), first, rest, work(1))}}}, Groups: [][]int{{0}}}
		if !beside {
			s.Processes[0].Tasks[0].Ops[3].Await = 1
		}
		ends, err := s.Run()
		require.NoError(t, err)
		return ends[0]
	}
	for _, beside := range []bool{false, true} {
		require.Equal(t, cost.Picoseconds(5+4+30+1), run(beside, 30), "%v", beside)
		require.Equal(t, cost.Picoseconds(5+20+1), run(beside, 16), "%v", beside)
		require.Equal(t, cost.Picoseconds(5+20+1), run(beside, 0), "%v", beside)
	}
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

// TestPostedSends: a stage goes on while its posted sends are made, until it runs the same part again or the step
// ends. Sends are made one after another, each when its slot is free.
func TestPostedSends(t *testing.T) {
	post := func(t cost.Picoseconds, ch int) Op { return Op{Kind: Send, Time: t, Peer: ch, Posted: true} }
	other := Task{Ops: []Op{work(10)}, Part: 1}
	run := func(room int, receive cost.Picoseconds) ([]cost.Picoseconds, cost.Picoseconds) {
		s := System{
			Processes: []Process{
				{Tasks: []Task{task(0, true, work(10), post(100, 0)), other, task(1, true, work(10), post(100, 0)), other}},
				{Tasks: []Task{task(0, true, recv(0), work(receive)), task(1, true, recv(0), work(receive))}},
			},
			Channels: []Channel{{From: 0, To: 1, Room: room}},
			Exposed:  make([]cost.Picoseconds, 2),
		}
		ends, err := s.Run()
		require.NoError(t, err)
		return ends, s.Exposed[0]
	}
	// Posted at 10 and there at 110; the other task until 20; again from 110, posted at 120, the other until 130, there at 220.
	ends, exposed := run(2, 5)
	require.Equal(t, []cost.Picoseconds{220, 225}, ends)
	require.Equal(t, cost.Picoseconds(110-20+220-130), exposed)
	// The slot is free at 110+200: sent from then to 410. The wait for it is no communication.
	ends, exposed = run(1, 200)
	require.Equal(t, []cost.Picoseconds{410, 610}, ends)
	require.Equal(t, cost.Picoseconds(110-20+410-310), exposed)
}

// TestPostedInTurn: sends that are posted together are made one after another, also to different receivers.
func TestPostedInTurn(t *testing.T) {
	s := System{
		Processes: []Process{
			{Tasks: []Task{task(0, true, work(10), Op{Kind: Send, Time: 100, Posted: true}, Op{Kind: Send, Time: 100, Peer: 1, Posted: true})}},
			{Tasks: []Task{task(0, true, recv(0))}}, {Tasks: []Task{task(0, true, recv(1))}},
		},
		Channels: []Channel{{From: 0, To: 1}, {From: 0, To: 2}},
	}
	ends, err := s.Run()
	require.NoError(t, err)
	require.Equal(t, []cost.Picoseconds{210, 110, 210}, ends)
}

// TestPostedDeadlock: a posted send whose slot is never freed is an error, though its sender has nothing else to do.
func TestPostedDeadlock(t *testing.T) {
	s := System{
		Processes: []Process{
			{Tasks: []Task{task(0, true, Op{Kind: Send, Time: 1, Posted: true}), {MicroBatch: 1, Part: 1, Ops: []Op{{Kind: Send, Time: 1, Posted: true}}}}},
			{Tasks: []Task{task(0, false, recv(0)), task(1, false)}},
		},
		Channels: []Channel{{From: 0, To: 1, Room: 1}},
	}
	_, err := s.Run()
	require.ErrorContains(t, err, "waits forever")
}
