package codegen

import (
	"fmt"

	"github.com/autopar/autopar/ir"
)

// walker runs the communication of all ranks, without data, under the rules of
// the runtime: a collective needs all its members, a receive needs its message,
// and a send needs the receiver's slot to be free, because it writes there.
type walker struct {
	prog    *Program
	comm    []map[part][]*ir.Node // by stage: the instructions that may wait
	last    ir.Phase              // the pass that frees a slot
	at      []place               // by rank
	freed   [][]int               // by rank and chunk: micro-batches that have left
	rooms   map[*ir.Node]room     // of sends
	sent    map[channel]int       // messages delivered
	groups  [][]int               // by rank and axis, flat
	axes    int
	waiting []string // by rank: what it waits for, for the report
}

// part is a chunk's part of a body.
type part struct {
	phase ir.Phase
	chunk int
}

// room is where a send goes: see [Stage.RoomFor].
type room struct{ chunk, size int }

type place struct{ task, instr int }

type channel struct {
	node     *ir.Node // the send
	from, to int      // world ranks
}

// checkProgress makes sure that every rank reaches the end of its schedule.
func checkProgress(p *Program) error {
	w := &walker{
		prog: p, at: make([]place, len(p.Schedules)), rooms: map[*ir.Node]room{}, sent: map[channel]int{},
		last: Releases(p.Plan, p.Training()), axes: len(p.Mesh.Axes), waiting: make([]string, len(p.Schedules)),
	}
	for _, s := range p.Stages {
		nodes := map[part][]*ir.Node{}
		for phase, body := range s.Bodies {
			for _, in := range body.Instrs {
				if op := in.Node.Op; Collective(op) || op == ir.OpSend || op == ir.OpRecv {
					of := part{ir.Phase(phase), in.Chunk}
					nodes[of] = append(nodes[of], in.Node)
				}
			}
		}
		w.comm = append(w.comm, nodes)
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
	for progress := true; progress; {
		progress = false
		for r := range p.Schedules {
			moved, err := w.advance(r)
			if err != nil {
				return err
			}
			progress = progress || moved
		}
	}
	for r := range p.Schedules {
		if task, node := w.here(r); node != nil {
			s := &p.Schedules[r]
			return &CheckError{Rank: r, Stage: s.Stage, Instr: node.Name, Msg: fmt.Sprintf("%s: waits for ever for %s", task, w.waiting[r])}
		}
	}
	for c, n := range w.sent {
		if n != 0 {
			return &CheckError{Rank: c.from, Stage: c.node.Stage, Instr: c.node.Name, Msg: fmt.Sprintf("sends %d messages to rank %d that nobody receives", n, c.to)}
		}
	}
	return nil
}

// here returns the communication a rank stands at, or nil at its end. Tasks
// without communication are passed over.
func (w *walker) here(r int) (Task, *ir.Node) {
	s := &w.prog.Schedules[r]
	for w.at[r].task < len(s.Tasks) {
		task := s.Tasks[w.at[r].task]
		if nodes := w.comm[s.Stage][part{task.Phase, task.Chunk}]; w.at[r].instr < len(nodes) {
			return task, nodes[w.at[r].instr]
		}
		if task.Phase == w.last {
			w.freed[r][task.Chunk]++
		}
		w.at[r] = place{task: w.at[r].task + 1}
	}
	return Task{}, nil
}

// advance moves a rank as far as it goes without another rank moving.
func (w *walker) advance(r int) (moved bool, err error) {
	for {
		task, n := w.here(r)
		if n == nil {
			return moved, nil
		}
		ready := false
		switch n.Op {
		case ir.OpSend:
			ready = w.send(r, task, n)
		case ir.OpRecv:
			ready = w.receive(r, n)
		default:
			ready, err = w.meet(r, task, n)
		}
		if !ready || err != nil {
			return moved, err
		}
		moved = true
		if !Collective(n.Op) { // meet has moved all members
			w.at[r].instr++
		}
	}
}

func (w *walker) send(r int, task Task, n *ir.Node) bool {
	s := &w.prog.Schedules[r]
	to := w.prog.Peer(s, n)
	if to < 0 || to >= len(w.prog.Schedules) {
		w.waiting[r] = fmt.Sprintf("rank %d, which does not exist", to)
		return false
	}
	at, known := w.rooms[n]
	if !known {
		at.chunk, at.size = w.prog.Stages[w.prog.Schedules[to].Stage].RoomFor(n)
		w.rooms[n] = at
	}
	if at.size > 0 && task.MicroBatch-w.freed[to][at.chunk] >= at.size {
		w.waiting[r] = fmt.Sprintf("rank %d to free one of its %d slots", to, at.size)
		return false
	}
	w.sent[channel{n, r, to}]++
	return true
}

func (w *walker) receive(r int, n *ir.Node) bool {
	from := w.prog.Peer(&w.prog.Schedules[r], n)
	c := channel{n.Args[0].Def, from, r}
	if w.sent[c] == 0 {
		w.waiting[r] = fmt.Sprintf("%s from rank %d", n.Args[0].Def.Name, from)
		return false
	}
	w.sent[c]--
	return true
}

// meet lets all members of a collective pass together. Members that stand at
// different collectives of the same group will never meet.
func (w *walker) meet(r int, task Task, n *ir.Node) (bool, error) {
	s := &w.prog.Schedules[r]
	axis := w.prog.Mesh.Axis(n.Attr.(ir.CommAttr).Axis)
	group := w.groups[r*w.axes+axis]
	for _, m := range group {
		other, on := w.here(m)
		if on == n && other.MicroBatch == task.MicroBatch {
			continue
		}
		w.waiting[r] = fmt.Sprintf("rank %d to enter the same %s", m, n.Op)
		if on == nil {
			return false, &CheckError{Rank: r, Stage: s.Stage, Instr: n.Name, Msg: fmt.Sprintf("%s: rank %d never enters this %s", task, m, n.Op)}
		}
		if attr, ok := on.Attr.(ir.CommAttr); ok && Collective(on.Op) && w.prog.Mesh.Axis(attr.Axis) == axis {
			return false, &CheckError{Rank: r, Stage: s.Stage, Instr: n.Name,
				Msg: fmt.Sprintf("%s: rank %d of its group enters %s (%s) instead", task, m, on.Name, other)}
		}
		return false, nil
	}
	for _, m := range group {
		w.at[m].instr++
	}
	return true, nil
}
