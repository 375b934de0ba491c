package runtime

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// program is a loaded program: everything that a step hands to the devices,
// made once.
type program struct {
	src     *codegen.Program
	tasks   [][]task      // by rank, of those of this process
	events  [Host][]int64 // of a step, by stream and rank
	inputs  []*input
	byName  map[string]*input
	scalars []output
	words   [][]int64 // offsets of the scalars of each rank
	outputs Outputs
	run     job
	finish  job
	start   time.Time
	steps   int64 // run so far
}

type task struct {
	codegen.Task
	actions []action
	// before and after are how many events of each stream the step has before the task, and up to its end.
	before, after [Host]int64
	joins         int // of the buckets given in it, how many are done at its end: see [codegen.Instr.Async]
	// away and left are which transfers are done before the task starts and before it ends: see [codegen.Instr.Posted].
	away, left *sent
}

// sent says how many transfers of a step are done, and which is the last of them.
type sent struct {
	transfers int64
	task      codegen.Task
	node      *ir.Node
}

// action is one instruction of one task. Exactly one of kernel, collective,
// transfer and feed is set.
type action struct {
	node       *ir.Node
	kernel     *Kernel
	collective *Collective
	transfer   *Transfer
	expects    bool     // of a transfer: it is expected from here on, and received later
	await      int      // buckets of the task that must be done first
	rejoin     int      // collectives of the task's on the exchange stream that must be done first
	after      int64    // a send first waits for this event of the step of the peer
	bytes      int64    // communicated
	with       []string // nodes of collectives that are made with this one, for the trace

	part, parts int // of the instruction

	feed     *input // bytes from:to of it go to offset
	from, to int64
	offset   int64
}

// stream is where an action takes place.
func (a *action) stream() Stream {
	switch {
	case a.collective != nil:
		return a.collective.Stream
	case a.transfer != nil:
		return a.transfer.Stream
	}
	return Compute
}

// output is where an output lies.
type output struct {
	name   string
	rank   int
	offset int64
	word   int // of a scalar, among those of its rank
}

// step returns the number of the step in hand.
func (p *program) step() int64 {
	if in, ok := p.byName["step"]; ok && in.typ.DType == ir.I32 && len(in.data) == 4 {
		return int64(int32(binary.NativeEndian.Uint32(in.data)))
	}
	return p.steps
}

// Add loads another program for the same ranks, and lets the arenas grow to
// what it needs. Adding a loaded program does nothing.
func (e *Executor) Add(prog *codegen.Program) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.failure(); err != nil {
		return err
	}
	if _, ok := e.programs[prog]; ok {
		return nil
	}
	if len(e.begun) > 0 {
		return fmt.Errorf("runtime: program %s is added while a step is not finished", prog.Graph.Name)
	}
	if n := len(prog.Schedules); n != e.Ranks() {
		return fmt.Errorf("runtime: program %s is for %d ranks, the executor has %d", prog.Graph.Name, n, e.Ranks())
	}
	p := &program{src: prog, byName: map[string]*input{}, outputs: Outputs{}}
	p.run = job{of: p, do: func(r *rank) error { return r.step(p, p.start) }}
	p.finish = job{of: p, do: func(r *rank) error { return r.last(p) }}
	l := &loader{exec: e, program: p, wires: map[wire]int{}, members: map[meeting][]Member{}, messages: map[message]*Transfer{}, last: codegen.Releases(prog.Plan, prog.Training()), uses: uses(prog.Graph)}
	for i := range prog.Schedules { // of other processes too: all number groups and wires alike
		tasks, err := l.schedule(&prog.Schedules[i])
		if err != nil {
			return fmt.Errorf("runtime: program %s, rank %d: %w", prog.Graph.Name, i, err)
		}
		last := &tasks[len(tasks)-1]
		for s, n := range last.after {
			p.events[s] = append(p.events[s], n)
		}
		if e.local(i) == nil {
			tasks = nil
		}
		p.tasks = append(p.tasks, tasks)
	}
	if e.meets {
		if err := l.expect(); err != nil {
			return fmt.Errorf("runtime: program %s: %w", prog.Graph.Name, err)
		}
	}
	p.words = make([][]int64, len(prog.Schedules))
	for _, o := range prog.Graph.Outputs {
		if len(o.Value.Type.Shape) == 0 && o.Value.Type.DType == ir.F32 {
			at := p.output(o.Name, o.Value)
			at.word = len(p.words[at.rank])
			p.words[at.rank] = append(p.words[at.rank], at.offset)
			p.scalars = append(p.scalars, at)
		}
	}
	for _, r := range e.here {
		stage := prog.Stages[prog.Schedules[r.id].Stage]
		for space, bytes := range [...]int64{OnDevice: stage.Arena(), OnHost: stage.Host} {
			if err := r.device.Alloc(Space(space), bytes); err != nil {
				return fmt.Errorf("runtime: rank %d: %s arena of %d bytes: %w", r.id, Space(space), bytes, err)
			}
		}
	}
	if err := e.agree(prog); err != nil {
		return e.fail(err)
	}
	e.programs[prog] = p
	return nil
}

// output finds an output on the first rank of the stage that makes it.
func (p *program) output(name string, v *ir.Value) output {
	position, _ := p.src.Plan.Position(v.Def.Stage)
	stage := p.src.Stages[position]
	return output{name: name, rank: p.src.Plan.WorldRank(stage.Index, 0), offset: stage.Offset(stage.Outputs[name], 0)}
}

// loader builds what the ranks of one program hand to their devices.
type loader struct {
	exec    *Executor
	program *program
	wires   map[wire]int
	members map[meeting][]Member // shared by the members
	last    ir.Phase             // the pass after which a micro-batch has left its slot
	uses    map[*ir.Value]int

	messages map[message]*Transfer // of their receivers, if they are meetings
}

// message is one of those on a wire.
type message struct {
	wire
	microBatch int
}

// wire is a sending instruction between two ranks.
type wire struct {
	send     *ir.Node
	from, to int
}

// meeting is one run of a collective.
type meeting struct {
	node       *ir.Node
	part       int
	microBatch int
	first      int // world rank of the first member
}

// schedule builds the tasks of one rank. Constants and step inputs are fed by
// the first.
func (l *loader) schedule(s *codegen.Schedule) ([]task, error) {
	prog := l.program.src
	stage := prog.Stages[s.Stage]
	tasks := make([]task, len(s.Tasks))
	var count [Host]int64
	type part struct {
		phase ir.Phase
		chunk int
	}
	away := map[part]*sent{} // by the part of a body that a task runs
	var posted *sent         // the last
	for i, t := range s.Tasks {
		of := part{t.Phase, t.Chunk}
		tasks[i].Task, tasks[i].before, tasks[i].away = t, count, away[of]
		if i == 0 {
			tasks[i].actions = l.prepare(s, stage, t)
		}
		given := []int{0} // buckets given with so many asynchronous instructions of the body
		awaits := 0       // of instructions that have nothing to do
		exchanges, until := 0, 0
		instrs := stage.Run(t)
		for j := range instrs {
			in := &instrs[j]
			runs := s.Runs(in, t)
			if in.Async {
				n := given[len(given)-1]
				if runs && !in.Fused {
					n++
				}
				given = append(given, n)
				if !in.Last {
					tasks[i].joins = n
				}
			}
			if !runs {
				continue
			}
			awaits = max(awaits, given[in.Await])
			if in.Idle() {
				continue
			}
			a, err := l.action(s, stage, t, in)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", t, in.Node.Name, err)
			}
			if in.Fused {
				bucket := &tasks[i].actions[len(tasks[i].actions)-1]
				bucket.collective.More = append(bucket.collective.More, a.collective)
				bucket.bytes += a.bytes
				continue
			}
			a.await, awaits = awaits, 0
			if until > 0 && j >= until {
				a.rejoin, until = exchanges, 0
			}
			if in.Beside > 0 {
				exchanges++
				until = j + 1 + in.Beside
			}
			if in.Posted {
				count[Transfers]++
				posted = &sent{count[Transfers], t, in.Node}
				away[of] = posted
			}
			tasks[i].actions = append(tasks[i].actions, a)
		}
		count[Communication] += int64(given[len(given)-1])
		count[Exchange] += int64(exchanges)
		count[Compute] += int64(given[len(given)-1]+exchanges) + count[Transfers] - tasks[i].before[Transfers] + 1
		tasks[i].after = count
		l.observe(s, &tasks[i])
		if err := l.fuse(s, tasks[i].actions); err != nil {
			return nil, fmt.Errorf("%s: %w", t, err)
		}
	}
	tasks[len(tasks)-1].left = posted
	return tasks, nil
}

// fuse tells a device that wants to know which kernels follow each other.
func (l *loader) fuse(s *codegen.Schedule, actions []action) error {
	r := l.exec.local(s.Rank)
	if r == nil {
		return nil
	}
	f, ok := r.device.(Fuser)
	if !ok {
		return nil
	}
	var run []*Kernel
	for i := range actions {
		a := &actions[i]
		if a.kernel != nil && a.await == 0 && a.rejoin == 0 && a.parts == 0 {
			run = append(run, a.kernel)
			continue
		}
		if err := f.Fuse(run, l.uses); err != nil {
			return err
		}
		if run = nil; a.kernel != nil && a.parts == 0 { // others read all of what parts make
			run = []*Kernel{a.kernel}
		}
	}
	return f.Fuse(run, l.uses)
}

// uses counts the reads of every value of a graph, and its outputs.
func uses(g *ir.Graph) map[*ir.Value]int {
	n := map[*ir.Value]int{}
	for _, node := range g.Nodes {
		for _, v := range node.Args {
			n[v]++
		}
	}
	for _, o := range g.Outputs {
		n[o.Value]++
	}
	return n
}

// expect puts into the tasks of this process's ranks from where on they expect messages.
func (l *loader) expect() error {
	all, err := codegen.Expects(l.program.src)
	if err != nil {
		return err
	}
	for _, r := range l.exec.here {
		for _, e := range all[r.id] {
			recv := l.messages[message{wire{e.Send, e.From, r.id}, e.MicroBatch}]
			actions := &l.program.tasks[r.id][e.Task].actions
			at := -1
			if !e.End { // after those that are there already
				at = slices.IndexFunc(*actions, func(a action) bool { return !a.expects && (e.Before == nil || a.node == e.Before) })
			}
			if at < 0 {
				at = len(*actions)
			}
			*actions = slices.Insert(*actions, at, action{node: recv.Node, transfer: recv, expects: true})
		}
	}
	return nil
}

// observe lets the trace hear of what runs on streams beside the kernels, and of what is made together.
func (l *loader) observe(s *codegen.Schedule, t *task) {
	trace := l.exec.opts.Trace
	for i := range t.actions {
		a := &t.actions[i]
		if trace == nil || a.collective == nil && a.transfer == nil {
			continue
		}
		if a.collective != nil {
			for _, more := range a.collective.More {
				a.with = append(a.with, more.Node.Name)
			}
		}
		if a.stream() == Compute {
			continue
		}
		span := Span{Rank: s.Rank, Phase: t.Phase, MicroBatch: t.MicroBatch, Op: a.node.Op, Name: a.node.Name, Stream: a.stream(), With: a.with, Part: a.part, Parts: a.parts}
		ran := func(start, end time.Time) {
			span := span
			span.Start, span.End = start.Sub(l.program.start), end.Sub(l.program.start)
			trace(span)
		}
		if a.collective != nil {
			a.collective.Ran = ran
		} else {
			a.transfer.Ran = ran
		}
	}
}

// event returns the number, in a step of a rank, of the event at the end of a task.
func (l *loader) event(s *codegen.Schedule, task int) int64 {
	stage := l.program.src.Stages[s.Stage]
	var n int64
	for _, t := range s.Tasks[:task+1] {
		n++
		instrs := stage.Run(t)
		for i := range instrs {
			if in := &instrs[i]; (in.Async && !in.Fused || in.Beside > 0 || in.Posted) && s.Runs(in, t) {
				n++
			}
		}
	}
	return n
}

// find returns the index of a task in a schedule, or -1.
func find(s *codegen.Schedule, t codegen.Task) int { return slices.Index(s.Tasks, t) }
