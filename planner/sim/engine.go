// Package sim runs a program without data, as a discrete-event simulation: every
// rank works through its tasks in order, waits where the runtime waits, and
// spends what planner/cost says on everything else.
//
// The waits are those of the runtime. A collective starts when its last member
// arrives and ends for all at once. A send copies into the buffer of the
// receiver, so it waits until the slot of its micro-batch is free there: until
// the receiver has finished with the micro-batch that had the slot before. A
// receive waits for the copy to end. A rank does one thing at a time.
//
// Such a system is a max-plus recurrence: its times do not depend on the order in
// which ranks are looked at, and never decrease when a duration grows.
package sim

import (
	"fmt"

	"github.com/autopar/autopar/planner/cost"
)

// OpKind says what a process does in one [Op].
type OpKind uint8

// The kinds.
const (
	Work OpKind = iota // spend Time
	Join               // meet the group Peer, then spend Time together
	Send               // wait for a free slot, spend Time copying
	Recv               // wait for the copy
)

// Op is one event of a process: work that needs no one else, or a meeting.
type Op struct {
	Kind OpKind
	Time cost.Picoseconds
	Peer int // group for Join, channel for Send and Recv
}

// Task is one pass of a process over a list of ops.
type Task struct {
	Ops        []Op
	Chunk      int
	MicroBatch int
	Releases   bool // the end of this task frees the micro-batch's slot in the chunk
}

// Process is the work of one rank.
type Process struct {
	Tasks []Task
}

// Channel is a connection between two processes, used once per micro-batch.
// Micro-batch k can be sent when k - Room has been released by the given chunk of
// the receiver; Room 0 is room for all.
type Channel struct {
	From, To    int
	Chunk, Room int
}

// System is a set of processes that wait for each other.
type System struct {
	Processes []Process
	Groups    [][]int // members of each group
	Channels  []Channel
	// Trace, when set, is told of every op: when it began (after any wait) and
	// ended.
	Trace func(process, task, op int, start, end cost.Picoseconds)
}

// Run returns when each process ends. It fails when processes wait for each
// other forever.
func (s *System) Run() ([]cost.Picoseconds, error) {
	r := runner{System: s, states: make([]state, len(s.Processes)), groups: make([]meeting, len(s.Groups))}
	microBatches := make([]int, len(s.Processes))
	for p := range s.Processes {
		chunks := 1
		for _, t := range s.Processes[p].Tasks {
			microBatches[p] = max(microBatches[p], t.MicroBatch+1)
			chunks = max(chunks, t.Chunk+1)
		}
		for range chunks {
			r.states[p].released = append(r.states[p].released, unset(microBatches[p]))
		}
	}
	for _, c := range s.Channels {
		r.arrivals = append(r.arrivals, unset(microBatches[c.To]))
	}
	queue := make([]int, len(s.Processes))
	for p := range queue {
		queue[p] = p
		r.states[p].queued = true
	}
	for len(queue) > 0 {
		p := queue[0]
		queue = queue[1:]
		r.states[p].queued = false
		r.woken = r.woken[:0]
		r.advance(p)
		for _, w := range r.woken {
			if !r.states[w].queued {
				r.states[w].queued = true
				queue = append(queue, w)
			}
		}
	}
	ends := make([]cost.Picoseconds, len(s.Processes))
	for p, st := range r.states {
		if st.task < len(s.Processes[p].Tasks) {
			return nil, fmt.Errorf("sim: process %d waits forever in task %d at op %d", p, st.task, st.op)
		}
		ends[p] = st.now
	}
	return ends, nil
}

func unset(n int) []cost.Picoseconds {
	x := make([]cost.Picoseconds, n)
	for i := range x {
		x[i] = -1
	}
	return x
}

type state struct {
	now      cost.Picoseconds
	task, op int
	queued   bool
	joined   bool                 // waits at a Join that it has been counted in
	released [][]cost.Picoseconds // by chunk and micro-batch
	waiting  []int                // processes that wait for something this one does
}

type meeting struct {
	arrived int
	latest  cost.Picoseconds
}

type runner struct {
	*System
	states   []state
	groups   []meeting
	arrivals [][]cost.Picoseconds // by channel and micro-batch
	woken    []int
}

// advance runs a process until it has to wait.
func (r *runner) advance(p int) {
	st, proc := &r.states[p], &r.Processes[p]
	task, op := st.task, st.op
	defer func() {
		// Who waits for this process looks again only if it has moved, so that
		// processes that wait for each other come to rest.
		if st.task != task || st.op != op {
			r.woken = append(r.woken, st.waiting...)
			st.waiting = st.waiting[:0]
		}
	}()
	for ; st.task < len(proc.Tasks); st.task++ {
		t := &proc.Tasks[st.task]
		for ; st.op < len(t.Ops); st.op++ {
			if !r.step(p, st, t) {
				return
			}
		}
		st.op = 0
		if t.Releases {
			st.released[t.Chunk][t.MicroBatch] = st.now
		}
	}
}

// step runs the next op, and reports whether it could.
func (r *runner) step(p int, st *state, t *Task) bool {
	op := &t.Ops[st.op]
	start := st.now
	switch op.Kind {
	case Join:
		g := &r.groups[op.Peer]
		members := r.Groups[op.Peer]
		if !st.joined {
			g.arrived++
			g.latest = max(g.latest, st.now)
			if g.arrived < len(members) {
				st.joined = true
				return false
			}
			// The last to arrive moves everybody on.
			start = g.latest
			*g = meeting{}
			for _, m := range members {
				if m == p {
					continue
				}
				other := &r.states[m]
				other.joined = false
				r.finish(m, other, start, start+op.Time)
				other.op++
				r.woken = append(r.woken, m)
			}
			break
		}
		return false
	case Send:
		c := r.Channels[op.Peer]
		if before := t.MicroBatch - c.Room; c.Room > 0 && before >= 0 {
			receiver := &r.states[c.To]
			free := receiver.released[c.Chunk][before]
			if free < 0 {
				receiver.waiting = append(receiver.waiting, p)
				return false
			}
			start = max(start, free)
		}
		r.arrivals[op.Peer][t.MicroBatch] = start + op.Time
	case Recv:
		at := r.arrivals[op.Peer][t.MicroBatch]
		if at < 0 {
			sender := &r.states[r.Channels[op.Peer].From]
			sender.waiting = append(sender.waiting, p)
			return false
		}
		start = max(start, at)
	}
	r.finish(p, st, start, start+op.Time)
	return true
}

func (r *runner) finish(p int, st *state, start, end cost.Picoseconds) {
	if r.Trace != nil {
		r.Trace(p, st.task, st.op, start, end)
	}
	st.now = end
}
