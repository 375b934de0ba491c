package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/planner/cost"
)

// beside hands an op to the stream, and after makes an op wait for the first n.
func beside(o Op) Op       { o.Async = true; return o }
func after(n int, o Op) Op { o.Await = n; return o }

// TestStreamRunsBeside: the streams of two processes meet twice, beside work of different lengths.
func TestStreamRunsBeside(t *testing.T) {
	process := func(first, second cost.Picoseconds) Process {
		return Process{Tasks: []Task{
			task(0, false, work(first), beside(join(10, 0)), work(4), beside(join(20, 0)), work(second), after(1, work(1))),
			task(1, false, work(2)),
		}}
	}
	var spans [][4]int
	s := System{
		Processes: []Process{process(5, 3), process(7, 50)}, Groups: [][]int{{0, 1}}, Exposed: make([]cost.Picoseconds, 2),
		Trace: func(p, task, op int, start, end cost.Picoseconds) {
			spans = append(spans, [4]int{p, op, int(start), int(end)})
		},
	}
	ends, err := s.Run()
	require.NoError(t, err)
	// The meetings: 7 to 17, when the second has come to it, and 17 to 37. The first
	// process works to 12, waits for the first meeting, works to 18, waits for the
	// second at the end of its task. The second works to 61 and 62.
	require.Equal(t, []cost.Picoseconds{39, 64}, ends)
	require.Contains(t, spans, [4]int{0, 1, 7, 17})
	require.Contains(t, spans, [4]int{1, 3, 17, 37})
	require.Contains(t, spans, [4]int{0, 5, 17, 18})
	require.Equal(t, []cost.Picoseconds{17 - 12 + 37 - 18, 0}, s.Exposed, "while the stream was communicating")
}

// TestMeetingRunsBeside: two processes meet while they do work of different lengths, and go on when both the meeting
// and their work are over.
func TestMeetingRunsBeside(t *testing.T) {
	process := func(before, beside cost.Picoseconds) Process {
		meet := join(10, 0)
		meet.Beside = 1
		return Process{Tasks: []Task{task(0, false, work(before), meet, work(beside), work(1)), task(1, false, work(before), meet, work(beside), work(1))}}
	}
	s := System{Processes: []Process{process(5, 3), process(7, 50)}, Groups: [][]int{{0, 1}}, Exposed: make([]cost.Picoseconds, 2)}
	ends, err := s.Run()
	require.NoError(t, err)
	// The meetings: 7 to 17, and 65 to 75. The first process works to 8, waits and works to 18, and
	// comes to the second at 23; it waits from 26 on. The second works to 57 and 58, to 115 and 116.
	require.Equal(t, []cost.Picoseconds{76, 116}, ends)
	require.Equal(t, []cost.Picoseconds{17 - 8 + 75 - 65, 0}, s.Exposed, "while they were communicating")
}

// TestWorkSinceMarks: Work that stands for a stretch of a program with a stream ends no sooner than its marks say.
func TestWorkSinceMarks(t *testing.T) {
	s := System{
		Processes: []Process{
			{Tasks: []Task{task(0, false, work(30), send(5, 0))}},
			{Tasks: []Task{task(0, false, work(3), recv(0), Op{Kind: Work, Time: 2, Since: []cost.Picoseconds{-1, 60}}, work(1))}},
			{Tasks: []Task{task(0, false, Op{Kind: Work, Time: 2, Since: []cost.Picoseconds{-1, -1}})}},
		},
		Channels: []Channel{{From: 0, To: 1}},
	}
	ends, err := s.Run()
	require.NoError(t, err)
	require.Equal(t, []cost.Picoseconds{35, 61, 2}, ends)
	s.Processes[1].Tasks[0].Ops[2].Since[1] = 10
	ends, err = s.Run()
	require.NoError(t, err)
	require.Equal(t, cost.Picoseconds(38), ends[1])
}

// TestStreamLeftBehind: late ops run beside later tasks, one after another, until a task joins the stream.
func TestStreamLeftBehind(t *testing.T) {
	late := func(o Op) Op { o.Async, o.Late = true, true; return o }
	update := task(0, false, work(1))
	update.Joins = true
	s := System{
		Processes: []Process{
			{Tasks: []Task{task(0, false, work(5), late(join(10, 0))), task(0, false, work(3), late(join(20, 0))), task(1, false, work(4), beside(join(1, 1)), work(2), after(1, work(1))), update}},
			{Tasks: []Task{task(0, false, work(7), late(join(10, 0))), task(0, false, work(3), late(join(20, 0))), task(1, false, work(4), beside(join(1, 1)), work(2)), update}},
		},
		Groups: [][]int{{0, 1}, {0, 1}}, Exposed: make([]cost.Picoseconds, 2),
	}
	ends, err := s.Run()
	require.NoError(t, err)
	// The meetings: 7 to 17, 17 to 37, 37 to 38. The first process works to 5, 8 and 14, and waits for the third.
	require.Equal(t, []cost.Picoseconds{40, 39}, ends)
	require.Equal(t, []cost.Picoseconds{38 - 14, 38 - 16}, s.Exposed)

	// The same, without the third, of a process that stands for both by what its work leaves.
	stands := func(work cost.Picoseconds, leaves ...cost.Picoseconds) Task {
		return Task{Ops: []Op{{Kind: Work, Time: work, Leaves: leaves}}}
	}
	ends, err = (&System{Processes: []Process{{Tasks: []Task{
		stands(7, 10, 17), stands(3, 20, 23), stands(6), {Ops: []Op{{Kind: Work, Time: 1, Since: []cost.Picoseconds{1, -1}}}},
	}}}}).Run()
	require.NoError(t, err)
	require.Equal(t, []cost.Picoseconds{38}, ends)
}
