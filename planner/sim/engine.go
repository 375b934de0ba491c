// Package sim simulates one step of a program without its data, as a discrete-event simulation. Every rank runs its
// tasks in order, waits where the runtime waits, and takes the time that planner/cost says for everything else.
//
// A rank waits as in the runtime:
//
//   - A collective starts when its last member arrives, and ends for all members at once.
//   - A send copies into a buffer of the receiver. It starts when the slot for its micro-batch is free there, that
//     is, when the receiver has finished with the micro-batch that had the slot before.
//   - A receive waits for the end of the copy.
//   - A rank does one thing at a time, except for what it hands to its communication stream. The stream runs these
//     ops beside the rank, one at a time and in order, each when the rank has reached it and the op before it is
//     done. The rank waits for the stream where an op awaits it, and at the end of the task. For late ops it waits at
//     the start of a task that joins the stream.
//   - A collective may run beside the ops that follow it. The rank then only announces its arrival, and waits for the
//     collective's end after those ops.
//   - What runs beside the ops of a rank slows them down. The rank loses that time when it hands the op over.
//   - Posted sends are made by another stream, one after another, each when its slot is free. A rank waits for the
//     sends that a part of the program has posted before it starts that part again, and for all of them at its end.
//
// Such a system is a max-plus recurrence. Its times do not depend on the order in which ranks are advanced, and never
// decrease when a duration grows.
//
// engine.go simulates a [System] of processes, which knows nothing of programs; the search also builds systems of its
// own. program.go turns a program into a System ([Run]).
package sim

import (
	"fmt"

	"github.com/autopar/autopar/planner/cost"
)

// OpKind says what a process does in one [Op].
type OpKind uint8

// The kinds.
const (
	Work OpKind = iota // take Time
	Join               // meet the group Peer, then take Time together
	Send               // wait for a free slot, then take Time to copy
	Recv               // wait for the end of the copy
)

// Op is one event of a process: work that involves no other process, or a meeting with one.
type Op struct {
	Kind OpKind
	Time cost.Picoseconds
	Peer int // group of a Join, channel of a Send or Recv
	// Async hands the op, Work or a Join, to the communication stream. Late says that the end of the task does not
	// wait for it.
	Async, Late bool
	// Slows, of an op that the process does not wait for at once, is by how much it delays what the process does
	// beside it.
	Slows cost.Picoseconds
	// Posted hands a Send to the stream of transfers, which makes one after another.
	Posted bool
	// Beside, of a Join, is how many ops after it run beside it; all of them are Work. The process waits for the end
	// of the Join after them.
	Beside int
	// Await is how many of the task's asynchronous ops must be done before this op starts.
	Await int
	// Since delays the end of Work to at least Since[i] after mark i of the task. With it, Work stands for a stretch
	// of a program that uses its communication stream. The marks are: when the stream has finished what earlier tasks
	// left to it; when the task began; and when each of the task's transfers so far ended. A negative entry is
	// ignored.
	Since []cost.Picoseconds
	// Leaves, of Work at the end of a task, says as Since does when the stream finishes what the task leaves to it.
	// nil leaves nothing but late ops.
	Leaves []cost.Picoseconds
}

// Task is one pass of a process through a list of ops.
type Task struct {
	Ops        []Op
	Chunk      int
	MicroBatch int
	Releases   bool // its end frees the slot of the micro-batch in the chunk
	Joins      bool // it starts only when the stream has finished what earlier tasks left to it
	// Part numbers the part of the program that the task runs. A task starts only when what earlier tasks of the same
	// part have posted is sent.
	Part int
}

// Process is the work of one rank.
type Process struct {
	Tasks []Task
}

// Channel connects two processes, and is used once per micro-batch. Micro-batch k can be sent when the receiver's
// given chunk has released micro-batch k - Room. Room 0 means that there is room for all.
type Channel struct {
	From, To    int
	Chunk, Room int
}

// System is a set of processes that wait for each other.
type System struct {
	Processes []Process
	Groups    [][]int // the processes in each group
	Channels  []Channel
	// Trace, if set, is called for every op with the time when it began (after any wait) and ended.
	Trace func(process, task, op int, start, end cost.Picoseconds)
	// Exposed, if set, accumulates by process how long it waited for its streams while these were communicating.
	Exposed []cost.Picoseconds
	// Waited, if set together with Exposed, is called for each part of that: how long the process waited for one op
	// of its stream, or one that it had posted.
	Waited func(process, task, op int, time cost.Picoseconds)
}

// Run returns when each process ends. It fails if processes wait for each other forever.
func (s *System) Run() ([]cost.Picoseconds, error) {
	r := runner{System: s, states: make([]state, len(s.Processes)), groups: make([]meeting, len(s.Groups))}
	microBatches, chunks := make([]int, len(s.Processes)), make([]int, len(s.Processes))
	count := 0
	for p := range s.Processes {
		chunks[p] = 1
		for i := range s.Processes[p].Tasks {
			t := &s.Processes[p].Tasks[i]
			microBatches[p] = max(microBatches[p], t.MicroBatch+1)
			chunks[p] = max(chunks[p], t.Chunk+1)
		}
		count += chunks[p] * microBatches[p]
	}
	for _, c := range s.Channels {
		count += microBatches[c.To]
	}
	times := make([]cost.Picoseconds, count) // releases and arrivals of all micro-batches
	for i := range times {
		times[i] = -1
	}
	unset := func(n int) []cost.Picoseconds {
		next := times[:n]
		times = times[n:]
		return next
	}
	for p := range s.Processes {
		r.states[p].released = make([][]cost.Picoseconds, chunks[p])
		for chunk := range chunks[p] {
			r.states[p].released[chunk] = unset(microBatches[p])
		}
	}
	r.arrivals = make([][]cost.Picoseconds, len(s.Channels))
	for i, c := range s.Channels {
		r.arrivals[i] = unset(microBatches[c.To])
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
	for p := range r.states {
		st := &r.states[p]
		if st.task < len(s.Processes[p].Tasks) || !r.awaitPosted(p, st, -1) {
			return nil, fmt.Errorf("sim: process %d waits forever in task %d at op %d", p, st.task, st.op)
		}
		ends[p] = st.now
	}
	return ends, nil
}

type state struct {
	now      cost.Picoseconds
	task, op int
	queued   bool
	joined   bool                 // it waits at a Join, and is counted as arrived
	released [][]cost.Picoseconds // by chunk and micro-batch; -1 until then
	waiting  []int                // processes that wait for something that this one does
	marks    []cost.Picoseconds   // see [Op.Since]
	left     cost.Picoseconds     // when the stream has finished what ops with Leaves left to it

	forked fork // the Join that the process runs ops beside

	// The communication stream.
	given     []given // what earlier tasks left to it, then the ops of the current task
	before    int     // how many of given earlier tasks left
	done      int     // how many of given are done
	streaming bool    // the next one waits at a Join, and is counted as arrived

	posted []given          // sends, in order, without those that the process has waited for
	sent   int              // how many of posted are made
	last   cost.Picoseconds // the end of the last of these
}

// fork is a Join beside which its process runs the ops of the task up to, but not including, until. until is 0 if
// there is none. start and end are set when all members have arrived.
type fork struct {
	op, until  int
	met        bool
	start, end cost.Picoseconds
}

// given is an op that is handed to a stream. start and end are set when it is done.
type given struct {
	task, op       int
	at, start, end cost.Picoseconds
}

type meeting struct {
	arrived int
	latest  cost.Picoseconds
}

type runner struct {
	*System
	states   []state
	groups   []meeting
	arrivals [][]cost.Picoseconds // by channel and micro-batch; -1 until then
	woken    []int
}

// advance runs a process until it has to wait.
func (r *runner) advance(p int) {
	st, proc := &r.states[p], &r.Processes[p]
	task, op, moved := st.task, st.op, r.sendPosted(p, st)
	defer func() {
		// Processes that wait for this one are looked at again only if it has moved. So processes that wait for each
		// other in a cycle do not keep the queue busy forever.
		if st.task != task || st.op != op || moved {
			r.woken = append(r.woken, st.waiting...)
			st.waiting = st.waiting[:0]
		}
	}()
	for ; st.task < len(proc.Tasks); st.task++ {
		t := &proc.Tasks[st.task]
		r.stream(p, st)
		if len(st.marks) == 0 {
			if len(st.posted) > 0 && !r.awaitPosted(p, st, t.Part) {
				return
			}
			if t.Joins && !r.await(p, st, st.before) {
				return
			}
			st.marks = append(st.marks, st.left, st.now)
		}
		for st.op < len(t.Ops) {
			if st.forked.until > 0 && st.op == st.forked.until && !r.rejoin(p, st) {
				return
			}
			o := &t.Ops[st.op]
			if o.Beside > 0 {
				r.fork(p, st, o)
				continue
			}
			if o.Await > 0 && !r.await(p, st, st.before+o.Await) {
				return
			}
			if o.Async {
				st.given = append(st.given, given{task: st.task, op: st.op, at: st.now})
				st.now += o.Slows
				st.op++
				r.stream(p, st)
				continue
			}
			if o.Posted {
				st.posted = append(st.posted, given{task: st.task, op: st.op, at: st.now})
				r.sendPosted(p, st)
			} else if !r.step(p, st, t) {
				return
			}
			if o.Kind == Send || o.Kind == Recv {
				st.marks = append(st.marks, st.now)
			}
			st.op++
		}
		n := len(st.given)
		for n > st.before && t.Ops[st.given[n-1].op].Late {
			n--
		}
		if n > st.before && !r.await(p, st, n) {
			return
		}
		if n == len(st.given) && (n > st.before || t.Joins) { // all is done and waited for
			st.given, st.done = st.given[:0], 0
		}
		st.op, st.before = 0, len(st.given)
		st.marks = st.marks[:0]
		if t.Releases {
			st.released[t.Chunk][t.MicroBatch] = st.now
		}
	}
}

// fork announces the arrival of a process at a Join and lets it go on. The last member to arrive tells the others
// when the Join ends.
func (r *runner) fork(p int, st *state, o *Op) {
	st.forked = fork{op: st.op, until: st.op + 1 + o.Beside}
	st.op++
	meet := &r.groups[o.Peer]
	meet.arrived++
	meet.latest = max(meet.latest, st.now)
	st.now += o.Slows
	members := r.Groups[o.Peer]
	if meet.arrived < len(members) {
		return
	}
	start := meet.latest
	*meet = meeting{}
	for _, m := range members {
		f := &r.states[m].forked
		f.met, f.start, f.end = true, start, start+o.Time
		if r.Trace != nil {
			r.Trace(m, r.states[m].task, f.op, f.start, f.end)
		}
		if m != p {
			r.woken = append(r.woken, m)
		}
	}
}

// rejoin holds a process until the end of the Join that it has run ops beside. It reports false if that is not yet
// known.
func (r *runner) rejoin(p int, st *state) bool {
	f := &st.forked
	if !f.met {
		return false
	}
	if waited := f.end - max(f.start, st.now); waited > 0 && r.Exposed != nil {
		r.Exposed[p] += waited
		if r.Waited != nil {
			r.Waited(p, st.task, f.op, waited)
		}
	}
	st.now = max(st.now, f.end)
	*f = fork{}
	return true
}

// await holds a process until the first n of the ops given to its stream are done, and reports whether they are.
func (r *runner) await(p int, st *state, n int) bool {
	switch {
	case st.done < n:
		return false
	case n == 0:
		return true
	}
	r.hold(p, st, st.given[:st.done], st.given[n-1].end)
	return true
}

// hold holds a process until a time, and books how long it waits while ops of one of its streams run.
func (r *runner) hold(p int, st *state, ops []given, until cost.Picoseconds) {
	if r.Exposed != nil {
		for i := range ops {
			g := &ops[i]
			waited := max(0, min(g.end, until)-max(g.start, st.now))
			r.Exposed[p] += waited
			if r.Waited != nil && waited > 0 {
				r.Waited(p, g.task, g.op, waited)
			}
		}
	}
	st.now = max(st.now, until)
}

// stream runs the ops that a process has given to its stream, as far as possible.
func (r *runner) stream(p int, st *state) {
	for st.done < len(st.given) && !st.streaming {
		g := &st.given[st.done]
		op := &r.Processes[p].Tasks[g.task].Ops[g.op]
		start := g.at
		if st.done > 0 {
			start = max(start, st.given[st.done-1].end)
		}
		if op.Kind != Join {
			r.streamed(p, st, start, start+op.Time)
			continue
		}
		meet := &r.groups[op.Peer]
		meet.arrived++
		meet.latest = max(meet.latest, start)
		if meet.arrived < len(r.Groups[op.Peer]) {
			st.streaming = true
			return
		}
		start = meet.latest
		*meet = meeting{}
		for _, m := range r.Groups[op.Peer] {
			r.streamed(m, &r.states[m], start, start+op.Time)
			if m != p {
				r.woken = append(r.woken, m)
			}
		}
	}
}

// streamed records the end of the stream's current op.
func (r *runner) streamed(p int, st *state, start, end cost.Picoseconds) {
	g := &st.given[st.done]
	g.start, g.end = start, end
	st.done++
	st.streaming = false
	if r.Trace != nil {
		r.Trace(p, g.task, g.op, start, end)
	}
}

// sendPosted makes the sends that a process has posted, as far as their slots are free, and reports whether it made
// any.
func (r *runner) sendPosted(p int, st *state) (moved bool) {
	for ; st.sent < len(st.posted); st.sent++ {
		g := &st.posted[st.sent]
		t := &r.Processes[p].Tasks[g.task]
		op := &t.Ops[g.op]
		start, ok := r.free(p, t, op, max(g.at, st.last))
		if !ok {
			return moved
		}
		g.start, g.end = start, start+op.Time
		st.last, moved = g.end, true
		r.arrivals[op.Peer][t.MicroBatch] = g.end
		if r.Trace != nil {
			r.Trace(p, g.task, g.op, g.start, g.end)
		}
	}
	return moved
}

// awaitPosted holds a process until all that tasks of a part have posted is sent, or with part -1 all that it has posted. It
// reports false if that time is not yet known. Sends are made in order, so those posted earlier by other parts are
// sent by then, too.
func (r *runner) awaitPosted(p int, st *state, part int) bool {
	n := len(st.posted)
	for n > 0 && part >= 0 && r.Processes[p].Tasks[st.posted[n-1].task].Part != part {
		n--
	}
	if st.sent < n {
		return false
	}
	if n == 0 {
		return true
	}
	r.hold(p, st, st.posted[:n], st.posted[n-1].end)
	st.posted, st.sent = append(st.posted[:0], st.posted[n:]...), st.sent-n
	return true
}

// free returns when a send that is ready at a time can start: when its slot is free. known is false if that is not
// yet known.
func (r *runner) free(p int, t *Task, op *Op, ready cost.Picoseconds) (start cost.Picoseconds, known bool) {
	c := r.Channels[op.Peer]
	before := t.MicroBatch - c.Room
	if c.Room == 0 || before < 0 {
		return ready, true
	}
	receiver := &r.states[c.To]
	free := receiver.released[c.Chunk][before]
	if free < 0 {
		receiver.waiting = append(receiver.waiting, p)
		return 0, false
	}
	return max(ready, free), true
}

// step runs the next op, and reports whether it could.
func (r *runner) step(p int, st *state, t *Task) bool {
	op := &t.Ops[st.op]
	start := st.now
	end := start + op.Time
	switch op.Kind {
	case Work:
		for i, since := range op.Since {
			if since >= 0 {
				end = max(end, st.marks[i]+since)
			}
		}
		for i, since := range op.Leaves {
			if since >= 0 {
				st.left = max(st.left, st.marks[i]+since)
			}
		}
		r.finish(p, st, start, end)
		return true
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
		var known bool
		if start, known = r.free(p, t, op, start); !known {
			return false
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
