// This file loads programs: it turns the schedule of each rank into tasks, lists of actions with
// all arguments of the device calls made (action.go has one kind of action after another). It also
// computes the number of every event that ranks wait for, which is the same in every step.

package runtime

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// program is a loaded program: everything that a step hands to the devices, made once.
type program struct {
	src     *codegen.Program
	tasks   [][]task      // by rank; nil for ranks of other processes
	events  [Host][]int64 // how many events a step records, by stream and rank
	inputs  []*input
	byName  map[string]*input
	scalars []output
	words   [][]int64 // arena offsets of the scalar outputs, by rank
	outputs Outputs
	run     job
	finish  job
	start   time.Time
	steps   int64 // steps that were run so far, or what [Executor.Number] says
}

type task struct {
	codegen.Task
	actions []action
	// before and after count the events of each stream in this step: those before the task, and
	// those up to its end.
	before, after [Host]int64
	bucketsDone   int // how many of its buckets must be done at its end; the others may run on: see [codegen.Instr.Async]
	// awaitSends and endSends are the sends of this step that must be done before the task starts and
	// before it ends; nil is none. See [codegen.Instr.Posted].
	awaitSends, endSends *posted
}

// posted says how many posted sends of a step must be done, and which is the last of them.
type posted struct {
	n    int64
	task codegen.Task
	node *ir.Node
}

// action is one instruction of one task. Exactly one of kernel, collective, transfer and feed is
// set.
type action struct {
	node           *ir.Node
	kernel         *Kernel
	collective     *Collective
	transfer       *Transfer
	expects        bool     // the action is an Expect of the transfer; its Recv comes later
	awaitBuckets   int      // how many buckets of the task must be done first
	awaitExchanges int      // how many collectives of the task on the exchange stream must be done first
	after          int64    // a send first waits for this compute event of the peer's step; 0 is none
	bytes          int64    // communicated
	with           []string // nodes of the other collectives of its bucket, for the trace

	part, parts int // those of the instruction: see [codegen.Instr]

	feed     *input // bytes [from, to) of the input go to offset
	from, to int64
	offset   int64
}

// stream returns the stream that runs the action.
func (a *action) stream() Stream {
	switch {
	case a.collective != nil:
		return a.collective.Stream
	case a.transfer != nil:
		return a.transfer.Stream
	}
	return Compute
}

// output is the place of an output: a rank and a byte offset of its arena.
type output struct {
	name   string
	rank   int
	offset int64
	word   int // of a scalar: its index among the scalar outputs of the rank
}

// step returns the number of the step that is about to run: the program's step input if it has one.
func (p *program) step() int64 {
	if in, ok := p.byName["step"]; ok && in.typ.DType == ir.I32 && len(in.data) == 4 {
		return int64(int32(binary.NativeEndian.Uint32(in.data)))
	}
	return p.steps
}

// Add loads another program for the same ranks, and grows the arenas to what it needs. Adding a
// loaded program does nothing.
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
	if err := e.alloc(prog, true); err != nil { // first, as to load the tasks of many ranks takes minutes
		return err
	}
	p := &program{src: prog, byName: map[string]*input{}, outputs: Outputs{}}
	p.run = job{of: p, do: func(r *rank) error { return r.step(p, p.start) }}
	p.finish = job{of: p, do: func(r *rank) error { return r.last(p) }}
	l := &loader{exec: e, program: p, wires: map[wire]int{}, members: map[meeting][]Member{}, messages: map[message]*Transfer{}, last: codegen.Releases(prog.Plan, prog.Training()), uses: uses(prog.Graph)}
	for i := range prog.Schedules { // also for other processes, so that all number groups and wires alike
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
	if err := e.alloc(prog, false); err != nil { // last, as GPUs then prepare for all kernels that they were asked about
		return err
	}
	if err := e.agree(prog); err != nil {
		return e.fail(err)
	}
	if err := e.join(); err != nil {
		return err
	}
	e.programs[prog] = p
	return nil
}

// alloc makes the arenas of the devices that are [Hosted], or of those that are not.
func (e *Executor) alloc(prog *codegen.Program, hosted bool) error {
	for _, r := range e.here {
		if _, is := r.device.(Hosted); is != hosted {
			continue
		}
		stage := prog.Stages[prog.Schedules[r.id].Stage]
		for space, bytes := range [...]int64{OnDevice: stage.Arena(), OnHost: stage.Host} {
			if err := r.device.Alloc(Space(space), bytes); err != nil {
				return fmt.Errorf("runtime: rank %d: %s arena of %d bytes: %w", r.id, Space(space), bytes, err)
			}
		}
	}
	return nil
}

// output finds an output on the first rank of the stage that computes it.
func (p *program) output(name string, v *ir.Value) output {
	position, _ := p.src.Plan.Position(v.Def.Stage)
	stage := p.src.Stages[position]
	return output{name: name, rank: p.src.Plan.WorldRank(stage.Index, 0), offset: stage.Offset(stage.Outputs[name], 0)}
}

// loader builds the tasks of all ranks of one program.
type loader struct {
	exec    *Executor
	program *program
	wires   map[wire]int
	members map[meeting][]Member // shared by all members of a collective
	last    ir.Phase             // the phase of the pass after which a micro-batch's slot is free
	uses    map[*ir.Value]int

	messages map[message]*Transfer // receives by message, if transfers are meetings
}

// message is the message of one micro-batch on a wire.
type message struct {
	wire
	microBatch int
}

// wire is one send instruction between two ranks.
type wire struct {
	send     *ir.Node
	from, to int
}

// meeting identifies one run of a collective.
type meeting struct {
	node       *ir.Node
	part       int
	microBatch int
	first      int // world rank of the first member
}

// schedule builds the tasks of one rank. The first task also uploads constants and step inputs.
func (l *loader) schedule(s *codegen.Schedule) ([]task, error) {
	stage := l.program.src.Stages[s.Stage]
	tasks := make([]task, len(s.Tasks))
	var count [Host]int64 // events so far
	type part struct {
		phase ir.Phase
		chunk int
	}
	away := map[part]*posted{} // the last send of the last task of the same phase and chunk, which the next such task waits for
	var last *posted
	for i, t := range s.Tasks {
		of := part{t.Phase, t.Chunk}
		tasks[i].Task, tasks[i].before, tasks[i].awaitSends = t, count, away[of]
		if i == 0 {
			tasks[i].actions = l.prepare(s, stage, t)
		}
		events, sent, err := l.body(s, stage, &tasks[i])
		if err != nil {
			return nil, err
		}
		for stream, n := range events {
			count[stream] += n
		}
		if tasks[i].after = count; sent != nil {
			last = &posted{count[Transfers], t, sent}
			away[of] = last
		}
		l.observe(s, &tasks[i])
		if err := l.fuse(s, tasks[i].actions); err != nil {
			return nil, fmt.Errorf("%s: %w", t, err)
		}
	}
	tasks[len(tasks)-1].endSends = last // the next step may overwrite what is being sent
	return tasks, l.announce(s, tasks)
}

// body appends the actions of a task's instructions, and returns how many events the task records on
// each stream, and its last posted send if it has any.
func (l *loader) body(s *codegen.Schedule, stage *codegen.Stage, to *task) (events [Host]int64, sent *ir.Node, err error) {
	t := to.Task
	given := []int{0} // given[n] is how many buckets the first n asynchronous instructions of the body are in
	awaits := 0       // the Await of instructions that do nothing passes to the next one that runs
	until := 0        // the instruction that waits for the collectives on the exchange stream, if not 0
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
				to.bucketsDone = n
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
			return events, nil, fmt.Errorf("%s: %s: %w", t, in.Node.Name, err)
		}
		if in.Fused {
			bucket := &to.actions[len(to.actions)-1]
			bucket.collective.More = append(bucket.collective.More, a.collective)
			bucket.bytes += a.bytes
			continue
		}
		a.awaitBuckets, awaits = awaits, 0
		if until > 0 && j >= until {
			a.awaitExchanges, until = int(events[Exchange]), 0
		}
		if in.Beside > 0 {
			events[Exchange]++
			until = j + 1 + in.Beside
		}
		if in.Posted {
			events[Transfers]++
			sent = in.Node
		}
		to.actions = append(to.actions, a)
	}
	events[Communication] = int64(given[len(given)-1])
	// The compute stream records one event before each action on another stream, and one at the end.
	events[Compute] = events[Communication] + events[Exchange] + events[Transfers] + 1
	return events, sent, nil
}

// fuse tells a device that can fuse kernels which ones follow each other.
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
		if a.kernel != nil && a.awaitBuckets == 0 && a.awaitExchanges == 0 && a.parts == 0 {
			run = append(run, a.kernel)
			continue
		}
		if err := f.Fuse(run, l.uses); err != nil {
			return err
		}
		if run = nil; a.kernel != nil && a.parts == 0 { // a kernel that makes a part of a value starts no run: the others read all parts of it
			run = []*Kernel{a.kernel}
		}
	}
	return f.Fuse(run, l.uses)
}

// announce tells a device that wants to know it which collectives and transfers it will make.
func (l *loader) announce(s *codegen.Schedule, tasks []task) error {
	r := l.exec.local(s.Rank)
	if r == nil {
		return nil
	}
	p, ok := r.device.(Preparer)
	if !ok {
		return nil
	}
	var collectives []*Collective
	var transfers []*Transfer
	for t := range tasks {
		for _, a := range tasks[t].actions {
			switch {
			case a.collective != nil:
				collectives = append(collectives, a.collective)
			case a.transfer != nil:
				transfers = append(transfers, a.transfer)
			}
		}
	}
	return p.Prepare(collectives, transfers)
}

// join connects this process's ranks with each other and with those of other processes, where devices need it. They have
// agreed on the program, so they have the same groups.
func (e *Executor) join() error {
	prepares := func(r *rank) bool { _, ok := r.device.(Preparer); return ok }
	if !slices.ContainsFunc(e.here, prepares) {
		return nil
	}
	return e.runAll(job{do: func(r *rank) (err error) {
		p, more := r.device.(Preparer)
		for more && err == nil {
			more, err = p.Join()
			r.place.Add(1) // counts as progress for the watch in runAll
		}
		return err
	}})
}

// uses counts for every value of a graph how often it is read, as an argument or as an output.
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

// expect inserts the Expect actions into the tasks of this process's ranks.
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
			if !e.End { // after the Expect actions that are there already
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

// observe connects the trace to actions on other streams than Compute, which report when they ran,
// and notes for it what else is in their buckets.
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

// event returns the number, in a step of the rank, of the compute event at the end of a task.
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
