package codegen_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// message is one transfer between ranks.
type message struct {
	send       *ir.Node
	from, to   int
	microBatch int
}

// act is something that a rank does and other ranks may wait for.
type act struct {
	op      ir.Op // OpSend, OpRecv, a collective, or OpInvalid: it expects a message
	node    *ir.Node
	message message
	task    int
}

// acts lists what a rank does in a step, including the points at which it expects messages.
func acts(p *codegen.Program, r int, expects []codegen.Expect) (all []act) {
	s := &p.Schedules[r]
	stage := p.Stages[s.Stage]
	for i, task := range s.Tasks {
		tell := func(at func(e codegen.Expect) bool) {
			for _, e := range expects {
				if e.Task == i && at(e) {
					all = append(all, act{message: message{e.Send, e.From, r, e.MicroBatch}, task: i})
				}
			}
		}
		tell(func(e codegen.Expect) bool { return e.Before == nil && !e.End })
		instrs := stage.Run(task)
		for j := range instrs {
			n := instrs[j].Node
			if !s.Runs(&instrs[j], task) {
				continue
			}
			tell(func(e codegen.Expect) bool { return e.Before == n })
			switch {
			case n.Op == ir.OpSend:
				all = append(all, act{op: n.Op, message: message{n, r, p.Peer(s, n), task.MicroBatch}, task: i})
			case n.Op == ir.OpRecv:
				all = append(all, act{op: n.Op, message: message{n.Args[0].Def, p.Peer(s, n), r, task.MicroBatch}, task: i})
			case codegen.Collective(n.Op) && !instrs[j].Async:
				all = append(all, act{op: n.Op, node: n, task: i})
			}
		}
		tell(func(e codegen.Expect) bool { return e.Before == nil && e.End })
	}
	return all
}

// TestExpects runs what ranks do in a step in random orders, with transfers as rendezvous: the sender waits for
// the receiver to expect the message, and the receiver takes it later. All ranks reach their ends, and every
// message is expected exactly once, when its place is free and before it is taken.
func TestExpects(t *testing.T) {
	for i, c := range []struct {
		dp, tp, pp, chunks, mb int
		schedule               partition.Schedule
	}{
		{1, 1, 2, 0, 1, partition.GPipe},
		{2, 1, 4, 0, 2, partition.GPipe},
		{1, 1, 2, 0, 1, partition.OneFOneB},
		{1, 2, 4, 0, 1, partition.OneFOneB},
		{3, 1, 2, 0, 1, partition.OneFOneB},
		{1, 1, 2, 2, 1, partition.Interleaved},
		{2, 1, 2, 2, 1, partition.Interleaved},
		{1, 2, 4, 2, 2, partition.Interleaved},
		{1, 1, 2, 4, 2, partition.Interleaved},
		{1, 1, 2, 1, 1, partition.ZeroBubble},
		{2, 1, 4, 1, 1, partition.ZeroBubble},
		{1, 1, 3, 1, 2, partition.ZeroBubble},
		{1, 1, 4, 0, 1, partition.EagerOneFOneB},
		{2, 1, 2, 0, 1, partition.EagerOneFOneB},
		{1, 1, 4, 0, 1, partition.EagerZeroBubble},
		{1, 2, 2, 0, 2, partition.EagerZeroBubble},
	} {
		t.Run(fmt.Sprintf("%s dp %d tp %d pp %d chunks %d micro-batch %d", c.schedule, c.dp, c.tp, c.pp, c.chunks, c.mb), func(t *testing.T) {
			p := plan(c.dp, c.tp, c.pp, c.mb, 8, c.schedule, false)
			if c.chunks > 0 {
				p = pipeline(c.dp, c.tp, c.pp, c.chunks, c.mb, 8, false)
			}
			prog := generate(t, trainGraph(t, 8), p)
			expects, err := codegen.Expects(prog)
			require.NoError(t, err)
			todo := make([][]act, len(prog.Schedules))
			for r := range todo {
				todo[r] = acts(prog, r, expects[r])
			}
			free(t, prog, todo)
			meet(t, prog, todo, rand.New(rand.NewPCG(uint64(i), 1)))
		})
	}
}

// free checks that no message is expected before the previous micro-batch in its place has left.
func free(t *testing.T, p *codegen.Program, todo [][]act) {
	last := codegen.Releases(p.Plan, true)
	for r := range todo {
		s := &p.Schedules[r]
		for _, a := range todo[r] {
			if a.op != ir.OpInvalid {
				continue
			}
			chunk, room := p.Stages[s.Stage].RoomFor(a.message.send)
			if room == 0 || a.message.microBatch < room {
				continue
			}
			left := -1
			for i, task := range s.Tasks {
				if task.Phase == last && task.Chunk == chunk && task.MicroBatch == a.message.microBatch-room {
					left = i
				}
			}
			require.Less(t, left, a.task, "rank %d: micro-batch %d", r, a.message.microBatch)
		}
	}
}

// meet runs all acts of all ranks.
func meet(t *testing.T, p *codegen.Program, todo [][]act, rng *rand.Rand) {
	sent, taken := map[message]bool{}, map[message]bool{}
	try := func(r int) bool {
		a := todo[r][0]
		l := a.message
		switch a.op {
		case ir.OpInvalid:
			require.False(t, sent[l], "expected twice: %+v", l)
			if from := todo[l.from]; len(from) == 0 || from[0].op != ir.OpSend || from[0].message != l {
				return false
			}
			todo[l.from] = todo[l.from][1:]
			sent[l] = true
		case ir.OpSend:
			return false
		case ir.OpRecv:
			require.True(t, sent[l], "taken before it is expected: %+v", l)
			require.False(t, taken[l])
			taken[l] = true
		default:
			ranks, _ := p.Group(&p.Schedules[r], a.node)
			for _, m := range ranks {
				if len(todo[m]) == 0 || todo[m][0].node != a.node {
					return false
				}
			}
			for _, m := range ranks {
				if m != r {
					todo[m] = todo[m][1:]
				}
			}
		}
		todo[r] = todo[r][1:]
		return true
	}
	for moved := true; moved; {
		moved = false
		for _, r := range rng.Perm(len(todo)) {
			for len(todo[r]) > 0 && rng.IntN(4) > 0 && try(r) {
				moved = true
			}
		}
		for r := range todo { // no rank stands still only because of the random numbers
			moved = moved || len(todo[r]) > 0 && try(r)
		}
	}
	for r := range todo {
		if len(todo[r]) > 0 {
			t.Fatalf("rank %d waits for ever at task %d: %s %+v", r, todo[r][0].task, todo[r][0].op, todo[r][0].message)
		}
	}
	require.Equal(t, sent, taken)
}

// TestExpectedInTime: a message is expected one task before the one that takes it, or two if it arrives early.
// So a posted receive does not occupy a GPU for longer.
func TestExpectedInTime(t *testing.T) {
	for _, p := range []*partition.Plan{plan(1, 1, 4, 1, 8, partition.OneFOneB, false), pipeline(1, 1, 4, 1, 1, 8, false)} {
		prog := generate(t, trainGraph(t, 8), p)
		expects, err := codegen.Expects(prog)
		require.NoError(t, err)
		ahead := map[int]int{}
		for r := range expects {
			where := map[message]int{}
			for _, a := range acts(prog, r, expects[r]) {
				switch a.op {
				case ir.OpInvalid:
					where[a.message] = a.task
				case ir.OpRecv:
					ahead[a.task-where[a.message]]++
				}
			}
		}
		t.Log(p.ScheduleText(), ahead)
		require.LessOrEqual(t, len(ahead), 3)
		require.Less(t, ahead[2], ahead[0]+ahead[1])
	}
}
