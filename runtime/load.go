// This file loads programs: it turns the schedule of each rank into tasks, lists of actions with
// all arguments of the device calls made (action.go has one kind of action after another; outline.go
// has what ranks and micro-batches share). It also computes the number of every event that ranks wait
// for, which is the same in every step.

package runtime

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
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
	actions []*action // other micro-batches may have some of them, too
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
	if err := e.alloc(prog, true); err != nil { // before anything that takes time
		return err
	}
	p := &program{src: prog, byName: map[string]*input{}, outputs: Outputs{}}
	p.run = job{of: p, do: func(r *rank) error { return r.step(p, p.start) }}
	p.finish = job{of: p, do: func(r *rank) error { return r.last(p) }}
	l := newLoader(e, p)
	l.inputs()
	l.number()
	p.tasks = make([][]task, len(prog.Schedules))
	for _, r := range e.here {
		tasks, err := l.schedule(&prog.Schedules[r.id])
		if err != nil {
			return fmt.Errorf("runtime: program %s, rank %d: %w", prog.Graph.Name, r.id, err)
		}
		p.tasks[r.id] = tasks
	}
	if e.meets && len(prog.Stages) > 1 {
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
			err := r.device.Alloc(Space(space), bytes)
			if short, ok := errors.AsType[*MemoryError](err); ok { // which names the rank
				return short
			}
			if err != nil {
				return fmt.Errorf("runtime: rank %d: %w", r.id, err)
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

// loader builds the tasks of this process's ranks of one program.
type loader struct {
	exec     *Executor
	program  *program
	outlines map[alike]*outline
	orders   map[ordered]*order
	wires    map[wire]int
	members  map[meeting][]Member // shared by all members of a collective
	landings map[*ir.Node]landing // by send
	last     ir.Phase             // the phase of the pass after which a micro-batch's slot is free
	uses     map[*ir.Value]int
	time     int // the axis of micro-batches, -1 if there is none

	messages map[message]*Transfer // receives by message, if transfers are meetings
}

func newLoader(e *Executor, p *program) *loader {
	return &loader{
		exec: e, program: p, outlines: map[alike]*outline{}, orders: map[ordered]*order{}, wires: map[wire]int{}, members: map[meeting][]Member{},
		landings: map[*ir.Node]landing{}, last: codegen.Releases(p.src.Plan, p.src.Training()), uses: uses(p.src.Graph),
		time: p.src.Mesh.Axis(partition.AxisMB), messages: map[message]*Transfer{},
	}
}

// message is the message of one micro-batch on a wire.
type message struct{ wire, microBatch int }

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
	type pass struct {
		phase ir.Phase
		chunk int
	}
	away := map[pass]*posted{} // the last send of the last task of the same phase and chunk, which the next such task waits for
	var last *posted
	made := map[variant][]*action{}
	var all []*action // each once
	for i, t := range s.Tasks {
		of, o, to := pass{t.Phase, t.Chunk}, l.outline(s, t), &tasks[i]
		*to = task{Task: t, before: count, awaitSends: away[of], bucketsDone: o.bucketsDone}
		if i == 0 {
			to.actions = l.prepare(s, stage, t)
		}
		to.actions = slices.Grow(to.actions, o.calls)
		rows := l.rows(s, t)
		for u := range o.units {
			unit := &o.units[u]
			as := unit.variant(stage, t, rows)
			actions, known := made[as]
			if !known || unit.own {
				var err error
				if actions, err = l.unit(s, stage, t, unit); err != nil {
					return nil, err
				}
				made[as] = actions
				all = append(all, actions...)
			}
			to.actions = append(to.actions, actions...)
			if recv := actions[0].transfer; l.exec.meets && recv != nil && recv.Node.Op == ir.OpRecv {
				l.messages[message{recv.Wire, t.MicroBatch}] = recv
			}
		}
		for stream, n := range o.events {
			count[stream] += n
		}
		if to.after = count; o.sent != nil {
			last = &posted{count[Transfers], t, o.sent}
			away[of] = last
		}
	}
	tasks[len(tasks)-1].endSends = last // the next step may overwrite what is being sent
	return tasks, l.announce(s, all)
}

// unit makes the actions of a unit, and tells a device that can fuse kernels which ones follow each other.
func (l *loader) unit(s *codegen.Schedule, stage *codegen.Stage, t codegen.Task, u *unit) ([]*action, error) {
	var actions []*action
	var run []*Kernel
	for _, c := range u.calls {
		var bucket *action
		for _, in := range c.bucket {
			a, err := l.action(s, stage, t, in)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", t, in.Node.Name, err)
			}
			if bucket == nil {
				bucket = &a
				continue
			}
			bucket.collective.More = append(bucket.collective.More, a.collective)
			bucket.bytes += a.bytes
		}
		bucket.awaitBuckets, bucket.awaitExchanges = c.awaitBuckets, c.awaitExchanges
		if bucket.kernel != nil {
			run = append(run, bucket.kernel)
		}
		l.observe(s, t, bucket)
		actions = append(actions, bucket)
	}
	if f, ok := l.exec.local(s.Rank).device.(Fuser); ok && len(run) > 0 {
		if err := f.Fuse(run, l.uses); err != nil {
			return nil, fmt.Errorf("%s: %w", t, err)
		}
	}
	return actions, nil
}

// announce tells a device that wants to know it which collectives and transfers it will make.
func (l *loader) announce(s *codegen.Schedule, actions []*action) error {
	p, ok := l.exec.local(s.Rank).device.(Preparer)
	if !ok {
		return nil
	}
	var collectives []*Collective
	var transfers []*Transfer
	for _, a := range actions {
		switch {
		case a.collective != nil:
			collectives = append(collectives, a.collective)
		case a.transfer != nil:
			transfers = append(transfers, a.transfer)
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
			recv := l.messages[message{l.wires[wire{e.Send, e.From, r.id}], e.MicroBatch}]
			actions := &l.program.tasks[r.id][e.Task].actions
			at := -1
			if !e.End { // after the Expect actions that are there already
				at = slices.IndexFunc(*actions, func(a *action) bool { return !a.expects && (e.Before == nil || a.node == e.Before) })
			}
			if at < 0 {
				at = len(*actions)
			}
			*actions = slices.Insert(*actions, at, &action{node: recv.Node, transfer: recv, expects: true})
		}
	}
	return nil
}

// observe connects the trace to an action on another stream than Compute, which reports when it ran,
// and notes for it what else is in its bucket.
func (l *loader) observe(s *codegen.Schedule, t codegen.Task, a *action) {
	trace := l.exec.opts.Trace
	if trace == nil || a.collective == nil && a.transfer == nil {
		return
	}
	if a.collective != nil {
		for _, more := range a.collective.More {
			a.with = append(a.with, more.Node.Name)
		}
	}
	if a.stream() == Compute {
		return
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
