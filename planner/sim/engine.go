// Package sim runs a program without data, as a discrete-event simulation: every
// rank works through its tasks in order, waits where the runtime waits, and
// spends what planner/cost says on everything else.
//
// The waits are those of the runtime. A collective starts when its last member
// arrives and ends for all at once. A send copies into the buffer of the
// receiver, so it waits until the slot of its micro-batch is free there: until
// the receiver has finished with the micro-batch that had the slot before. A
// receive waits for the copy to end. A rank does one thing at a time, but for
// what it hands to its communication stream: that does one thing at a time too,
// beside the rank, each when the rank has come to it and the one before is done;
// the rank waits for it where an op says so, and at the end of the task or, for what is
// late, at the start of a task that joins it. Of a collective that ops run beside, the rank
// only says that it has come to it, and waits for its end after those ops. Sends that are posted are made one after another
// by a stream of their own, each when its slot is free: the rank waits for those of a part of the program when it begins that
// part again, and for all at its end.
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
	// Async says that the op, Work or a Join, is handed to the stream, and Late that the
	// end of the task does not wait for it.
	Async, Late bool
	// Posted says that a Send is handed to the stream of transfers, which makes one after another.
	Posted bool
	// Beside is how many ops after a Join, all of them Work, the process goes on with when it
	// has come to the meeting: it waits for the end of that after them.
	Beside int
	// Await is how many of the task's asynchronous ops are done before the op starts.
	Await int
	// Since makes Work end no sooner than Since[i] after mark i of the task, a stretch
	// that stands for a program with a stream of its own. The marks are when the stream
	// has done what tasks before left it, when the task began, and when each of its
	// transfers so far ended. Negative entries mean nothing.
	Since []cost.Picoseconds
	// Leaves, as Since, says when the stream has done what the task leaves it, of Work at
	// its end. nil leaves it nothing but late ops.
	Leaves []cost.Picoseconds
}

// Task is one pass of a process over a list of ops.
type Task struct {
	Ops        []Op
	Chunk      int
	MicroBatch int
	Releases   bool // the end of this task frees the micro-batch's slot in the chunk
	Joins      bool // it starts when the stream has done what tasks before left it
	// Part numbers the tasks of a process that post the same: each starts when what those before it have posted is sent.
	Part int
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
	// Exposed, when set, is added up by process: for how long the process waited
	// for its stream while that was communicating.
	Exposed []cost.Picoseconds
	// Waited, when set with Exposed, is told of each part of that: how long the
	// process waited for an op of its stream, or one that it had posted.
	Waited func(process, task, op int, time cost.Picoseconds)
}

// Run returns when each process ends. It fails when processes wait for each
// other forever.
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
	times := make([]cost.Picoseconds, count) // of all micro-batches everywhere
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
		if st.task < len(s.Processes[p].Tasks) || !r.away(p, st, -1) {
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
	joined   bool                 // waits at a Join that it has been counted in
	released [][]cost.Picoseconds // by chunk and micro-batch
	waiting  []int                // processes that wait for something this one does
	marks    []cost.Picoseconds   // see Op.Since
	left     cost.Picoseconds     // when the stream has done what ops with Leaves left it

	forked fork // the meeting that the process runs something beside

	// The stream.
	given     []given // in the task in hand, after what tasks before left it
	before    int     // how many of those that is
	done      int     // of all
	streaming bool    // the next waits at a Join that it has been counted in

	posted []given          // sends, in order; those of tasks that have begun again are dropped
	sent   int              // of these, how many are made
	last   cost.Picoseconds // the end of the last of those
}

// fork is a Join that ops of its process run beside, up to but not including one of the task;
// until is 0 if there is none. start and end are set when all have come to it.
type fork struct {
	op, until  int
	met        bool
	start, end cost.Picoseconds
}

// given is an op handed to the stream. start and end are set when it is done.
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
	arrivals [][]cost.Picoseconds // by channel and micro-batch
	woken    []int
}

// advance runs a process until it has to wait.
func (r *runner) advance(p int) {
	st, proc := &r.states[p], &r.Processes[p]
	task, op, moved := st.task, st.op, r.transfer(p, st)
	defer func() {
		// Who waits for this process looks again only if it has moved, so that
		// processes that wait for each other come to rest.
		if st.task != task || st.op != op || moved {
			r.woken = append(r.woken, st.waiting...)
			st.waiting = st.waiting[:0]
		}
	}()
	for ; st.task < len(proc.Tasks); st.task++ {
		t := &proc.Tasks[st.task]
		r.stream(p, st)
		if len(st.marks) == 0 {
			if len(st.posted) > 0 && !r.away(p, st, t.Part) {
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
				st.op++
				r.stream(p, st)
				continue
			}
			if o.Posted {
				st.posted = append(st.posted, given{task: st.task, op: st.op, at: st.now})
				r.transfer(p, st)
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
		if n == len(st.given) && (n > st.before || t.Joins) { // all is done, and waited for
			st.given, st.done = st.given[:0], 0
		}
		st.op, st.before = 0, len(st.given)
		st.marks = st.marks[:0]
		if t.Releases {
			st.released[t.Chunk][t.MicroBatch] = st.now
		}
	}
}

// fork has a process say that it has come to a meeting, and go on. The last to come tells the
// others when the meeting ends.
func (r *runner) fork(p int, st *state, o *Op) {
	st.forked = fork{op: st.op, until: st.op + 1 + o.Beside}
	st.op++
	meet := &r.groups[o.Peer]
	meet.arrived++
	meet.latest = max(meet.latest, st.now)
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

// rejoin holds a process until the meeting is over that it has run ops beside, and reports
// whether that is known to have begun.
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

// await holds a process until so many of the ops given to its stream are done, and
// reports whether they are.
func (r *runner) await(p int, st *state, n int) bool {
	switch {
	case st.done < n:
		return false
	case n == 0:
		return true
	}
	until := st.given[n-1].end
	if r.Exposed != nil {
		for i := range st.given[:st.done] {
			g := &st.given[i]
			waited := max(0, min(g.end, until)-max(g.start, st.now))
			r.Exposed[p] += waited
			if r.Waited != nil && waited > 0 {
				r.Waited(p, g.task, g.op, waited)
			}
		}
	}
	st.now = max(st.now, until)
	return true
}

// stream does what the stream of a process has been given, as far as it can.
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

// streamed ends the op that the stream of a process is at.
func (r *runner) streamed(p int, st *state, start, end cost.Picoseconds) {
	g := &st.given[st.done]
	g.start, g.end = start, end
	st.done++
	st.streaming = false
	if r.Trace != nil {
		r.Trace(p, g.task, g.op, start, end)
	}
}

// transfer makes the sends that a process has posted, as far as their slots are free, and reports whether it made one.
func (r *runner) transfer(p int, st *state) (moved bool) {
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

// away holds a process until what tasks of a part have posted is sent, or with part -1 everything, and reports whether it is known when that
// is. What was posted before that is sent then, too.
func (r *runner) away(p int, st *state, part int) bool {
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
	until := st.posted[n-1].end
	if r.Exposed != nil {
		for i := range st.posted[:n] {
			g := &st.posted[i]
			waited := max(0, min(g.end, until)-max(g.start, st.now))
			r.Exposed[p] += waited
			if r.Waited != nil && waited > 0 {
				r.Waited(p, g.task, g.op, waited)
			}
		}
	}
	st.now = max(st.now, until)
	st.posted, st.sent = append(st.posted[:0], st.posted[n:]...), st.sent-n
	return true
}

// free returns when a message can be sent that is ready at a time: when its slot is free, which may not be known.
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
