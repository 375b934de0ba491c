package codegen

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/ir"
)

// walker executes only the communication of all ranks, without data, to find deadlocks. It follows the rules of
// the runtime:
//
//   - A collective needs all its members, a receive needs its message.
//   - A send writes into the receiver's slot, so that slot must be free.
//   - Asynchronous collectives go through the rank's communication stream, one after another, and meet those of
//     the other members' streams. An instruction with Await waits for them, as does the end of the task; those
//     that run in the last micro-batch only are awaited by the update instead.
//
// It runs in rounds. In a round every rank ends at most one task, and makes its sends once all other ranks have
// come as far as they can. That is roughly the order of a run in which all tasks take equally long.
type walker struct {
	prog    *Program
	stops   [][ir.NumPhases][][]stop // by stage, phase and chunk: the instructions that may wait
	last    ir.Phase                 // the pass that frees a slot
	at      []place                  // by rank: the next task, and the next of its stops
	streams [][]entry                // by rank: asynchronous collectives that are not done, in order
	freed   [][]int                  // by rank and chunk: the number of micro-batches that have left
	rooms   map[*ir.Node]room        // by send
	sent    map[channel]int          // messages sent and not received
	groups  [][]int                  // by rank and axis, flattened: world ranks of the group
	axes    int
	waiting []func() string // by rank: what it waits for, for error messages

	round   int
	ended   []int                  // by rank: the last round in which it ended a task
	moves   int                    // steps made by all ranks: progress if it grows
	sending []int                  // ranks that are about to send
	expect  func(to int, e Expect) // called before each message is sent, if not nil
}

// room is the chunk that receives a send, and its number of slots or inboxes: see [Stage.RoomFor].
type room struct{ chunk, size int }

type place struct{ task, instr int }

// stop is an instruction that may wait. number counts the asynchronous instructions of the task up to it.
type stop struct {
	*Instr
	number int
}

// entry is an asynchronous collective on a stream.
type entry struct {
	node   *ir.Node
	task   Task
	number int
	last   bool // see [Instr.Last]
}

type channel struct {
	node     *ir.Node // the send
	from, to int      // world ranks
}

// checkProgress makes sure that every rank reaches the end of its schedule.
func checkProgress(p *Program) error { return newWalker(p).run() }

func newWalker(p *Program) *walker {
	w := &walker{
		prog: p, at: make([]place, len(p.Schedules)), streams: make([][]entry, len(p.Schedules)),
		rooms: map[*ir.Node]room{}, sent: map[channel]int{}, ended: make([]int, len(p.Schedules)),
		last: Releases(p.Plan, p.Training()), axes: len(p.Mesh.Axes), waiting: make([]func() string, len(p.Schedules)),
	}
	for _, s := range p.Stages {
		var stops [ir.NumPhases][][]stop
		for phase := range ir.NumPhases {
			stops[phase] = make([][]stop, max(1, len(s.Chunks)))
			for _, instrs := range s.runs(phase) {
				number := 0
				for i := range instrs {
					in := &instrs[i]
					if in.Async {
						number++
					}
					if op := in.Node.Op; (Collective(op) || op == ir.OpSend || op == ir.OpRecv || in.Await > 0) && !in.Fused {
						chunk := in.Chunk
						if phase == ir.Update {
							chunk = 0 // one task runs all of them
						}
						stops[phase][chunk] = append(stops[phase][chunk], stop{in, number})
					}
				}
			}
		}
		w.stops = append(w.stops, stops)
	}
	for i := range p.Schedules {
		s := &p.Schedules[i]
		w.freed = append(w.freed, make([]int, len(p.Stages[s.Stage].Chunks)))
		for axis, a := range p.Mesh.Axes {
			var group []int
			if !a.Time {
				for _, d := range p.Mesh.Group(s.Coord, axis) {
					group = append(group, p.Plan.WorldRank(s.Stage, d))
				}
			}
			w.groups = append(w.groups, group)
		}
	}
	return w
}

// run runs all ranks to their ends, or returns an error for one that gets stuck.
func (w *walker) run() error {
	p := w.prog
	for start := -1; w.moves > start; w.deliver() {
		start = w.moves
		w.round++
		for before := -1; w.moves > before; {
			before, w.sending = w.moves, w.sending[:0]
			for r := range p.Schedules {
				if err := w.advance(r); err != nil {
					return err
				}
			}
		}
	}
	for r := range p.Schedules {
		if task, node := w.stuck(r); node != nil {
			s := &p.Schedules[r]
			return &CheckError{Rank: r, Stage: s.Stage, Instr: node.Name, Msg: fmt.Sprintf("%s: waits for ever for %s", task, w.waiting[r]())}
		}
	}
	for c, n := range w.sent {
		if n != 0 {
			return &CheckError{Rank: c.from, Stage: c.node.Stage, Instr: c.node.Name, Msg: fmt.Sprintf("sends %d messages to rank %d that nobody receives", n, c.to)}
		}
	}
	return nil
}

// stuck returns the task and node at which a rank waits, or a nil node at its end.
func (w *walker) stuck(r int) (Task, *ir.Node) {
	if s := w.streams[r]; len(s) > 0 {
		return s[0].task, s[0].node
	}
	if task, in := w.here(r); in != nil {
		return task, in.Node
	}
	return Task{}, nil
}

// here returns the stop at which a rank stands, and ends the rank's task if there are no more stops. The stop
// is nil if the rank is at the end of its schedule, of a task that waits for its stream, or of its task of this
// round, and before an update that waits for the stream.
func (w *walker) here(r int) (Task, *stop) {
	s := &w.prog.Schedules[r]
	if w.at[r].task == len(s.Tasks) {
		return Task{}, nil
	}
	task := s.Tasks[w.at[r].task]
	stream := w.streams[r]
	if w.ended[r] == w.round {
		return task, nil
	}
	if task.Phase == ir.Update && len(stream) > 0 && stream[0].task != task {
		return task, nil
	}
	stops := w.stops[s.Stage][task.Phase][task.Chunk]
	for w.at[r].instr < len(stops) && !s.Runs(stops[w.at[r].instr].Instr, task) {
		w.at[r].instr++
	}
	if w.at[r].instr < len(stops) {
		return task, &stops[w.at[r].instr]
	}
	if slices.ContainsFunc(stream, func(e entry) bool { return !e.last }) {
		return task, nil
	}
	if task.Phase == w.last {
		w.freed[r][task.Chunk]++
	}
	w.at[r] = place{task: w.at[r].task + 1}
	w.ended[r] = w.round
	w.moves++
	return task, nil
}

// advance moves a rank as far as it can go in this round by itself, up to its next send.
func (w *walker) advance(r int) error {
	for {
		for len(w.streams[r]) > 0 {
			head := w.streams[r][0]
			ready, err := w.meet(r, head.task, head.node, true)
			if err != nil {
				return err
			}
			if !ready {
				break
			}
			w.moves++
		}
		task, in := w.here(r)
		if in == nil {
			return nil
		}
		var err error
		ready := false
		switch {
		case w.held(r, in):
			first := w.streams[r][0].node
			w.waiting[r] = func() string { return first.Name }
		case in.Async:
			w.streams[r] = append(w.streams[r], entry{in.Node, task, in.number, in.Last})
			ready = true
		case in.Node.Op == ir.OpSend:
			w.sending = append(w.sending, r)
			return nil
		case in.Node.Op == ir.OpRecv:
			ready = w.receive(r, in.Node)
		case Collective(in.Node.Op):
			ready, err = w.meet(r, task, in.Node, false)
		default:
			ready = true
		}
		if !ready || err != nil {
			return err
		}
		w.moves++
		if in.Async || !Collective(in.Node.Op) { // meet has advanced all members
			w.at[r].instr++
		}
	}
}

// deliver makes the sends of all ranks that are about to send, as far as the receivers have room.
func (w *walker) deliver() {
	for len(w.sending) > 0 {
		r := w.sending[0]
		w.sending = w.sending[1:]
		task, in := w.here(r)
		if !w.room(r, task, in.Node) {
			continue
		}
		if w.expect != nil {
			w.tell(r)
		}
		w.sent[channel{in.Node, r, w.prog.Peer(&w.prog.Schedules[r], in.Node)}]++
		w.at[r].instr++
		w.moves++
		if _, in = w.here(r); in != nil && in.Node.Op == ir.OpSend && !w.held(r, in) {
			w.sending = append(w.sending, r)
		}
	}
}

// room reports whether the receiver has room for a message.
func (w *walker) room(r int, task Task, n *ir.Node) bool {
	to := w.prog.Peer(&w.prog.Schedules[r], n)
	if to < 0 || to >= len(w.prog.Schedules) {
		w.waiting[r] = func() string { return fmt.Sprintf("rank %d, which does not exist", to) }
		return false
	}
	at, known := w.rooms[n]
	if !known {
		at.chunk, at.size = w.prog.Stages[w.prog.Schedules[to].Stage].RoomFor(n)
		w.rooms[n] = at
	}
	if at.size > 0 && task.MicroBatch-w.freed[to][at.chunk] >= at.size {
		w.waiting[r] = func() string { return fmt.Sprintf("rank %d to free one of its %d slots", to, at.size) }
		return false
	}
	return true
}

func (w *walker) receive(r int, n *ir.Node) bool {
	from := w.prog.Peer(&w.prog.Schedules[r], n)
	c := channel{n.Args[0].Def, from, r}
	if w.sent[c] == 0 {
		w.waiting[r] = func() string { return fmt.Sprintf("%s from rank %d", n.Args[0].Def.Name, from) }
		return false
	}
	w.sent[c]--
	return true
}

// meet lets all members of a collective pass it together: the heads of their streams if async, else what they
// stand at. It returns an error if a member stands at another collective of the same group, because then they
// never meet.
func (w *walker) meet(r int, task Task, n *ir.Node, async bool) (bool, error) {
	s := &w.prog.Schedules[r]
	axis := w.prog.Mesh.Axis(n.Attr.(ir.CommAttr).Axis)
	group := w.groups[r*w.axes+axis]
	for _, m := range slices.Backward(group) { // ranks come in ascending order: the last one is missing until all are there
		other, on := w.stands(m, async)
		if on == n && (other.MicroBatch == task.MicroBatch || n.Phase == ir.Update) {
			continue
		}
		w.waiting[r] = func() string { return fmt.Sprintf("rank %d to enter the same %s", m, n.Op) }
		if on == nil && w.at[m].task == len(w.prog.Schedules[m].Tasks) {
			return false, &CheckError{Rank: r, Stage: s.Stage, Instr: n.Name, Msg: fmt.Sprintf("%s: rank %d never enters this %s", task, m, n.Op)}
		}
		if on == nil {
			return false, nil
		}
		if attr, ok := on.Attr.(ir.CommAttr); ok && Collective(on.Op) && w.prog.Mesh.Axis(attr.Axis) == axis {
			return false, &CheckError{Rank: r, Stage: s.Stage, Instr: n.Name,
				Msg: fmt.Sprintf("%s: rank %d of its group enters %s (%s) instead", task, m, on.Name, other)}
		}
		return false, nil
	}
	for _, m := range group {
		if async {
			w.streams[m] = w.streams[m][1:]
		} else {
			w.at[m].instr++
		}
	}
	return true, nil
}

// stands returns what a rank, or its stream, does next.
func (w *walker) stands(r int, async bool) (Task, *ir.Node) {
	if async {
		if s := w.streams[r]; len(s) > 0 {
			return s[0].task, s[0].node
		}
		return Task{}, nil
	}
	task, in := w.here(r)
	if in == nil || in.Async || w.held(r, in) {
		return task, nil // it is not there yet
	}
	return task, in.Node
}

// held reports whether an instruction of a rank waits for the rank's stream.
func (w *walker) held(r int, in *stop) bool {
	if in.Await == 0 || len(w.streams[r]) == 0 {
		return false
	}
	first := w.streams[r][0]
	return first.number <= in.Await || first.task != w.prog.Schedules[r].Tasks[w.at[r].task]
}
