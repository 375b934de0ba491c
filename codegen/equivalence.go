package codegen

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Verify proves that a program computes the graph it was made from ([CheckEquivalent]) and that it is sound
// ([Check]). The error is a [CheckError].
func Verify(p *Program, traced *ir.Graph) error {
	if err := CheckEquivalent(p, traced); err != nil {
		return err
	}
	return Check(p)
}

// CheckEquivalent proves that all ranks together compute the traced (unpartitioned) graph. It looks only at the
// program, not at the partitioned graph that it was generated from. It executes the tasks of each rank,
// instruction by instruction, over the buffers that they name, with expressions in place of numbers. A buffer
// holds an expression over parameters and inputs, the placement of the part that the rank holds, and the
// micro-batches that are in it. It proves that
//
//   - at the end every parameter, on every rank that holds it, is the expression that the traced graph updates
//     it by, and every output is the traced one: the same op, attributes, operands and result at every step;
//   - every operand is placed as its instruction assumes, and that is a legal rule of the op's dimension
//     signature. So each partial sum is completed exactly once;
//   - everything that is summed over micro-batches has each of them exactly once before it is read, and the
//     micro-batches of all ranks make up the batch;
//   - the parts that ranks hold tile the whole value, without gap or overlap;
//   - the members of each collective, and both ends of each transfer, mean the same value.
//
// Three local facts are assumed here and tested elsewhere: each rule of each signature is true of its op (the
// tests of ir/interp, against the definition of the op), a kernel computes its op on parts, and a collective
// changes placements as declared (runtime/backendtest). That buffers do not overlap in memory and that no rank
// waits for ever is proven by [Check].
//
// The error is a [CheckError] that names a rank. Ranks that run the same code on the same tasks differ only in
// the slices they hold, so one of them is executed for all.
func CheckEquivalent(p *Program, traced *ir.Graph) error {
	return checkEquivalent(p, traced, func(s *Schedule, _ Task) *Stage { return p.Stages[s.Stage] })
}

// equivalence is the state of one proof.
type equivalence struct {
	prog     *Program
	code     func(*Schedule, Task) *Stage // the code that a rank runs in a task
	exprs    *expressions
	timeAt   int                       // index of the time axis, or -1
	legal    map[*ir.Node]bool         // nodes for which VerifyNode has passed
	classes  []*class                  // in order of their first rank
	classOf  []*class                  // by rank
	messages map[messageKey]*content   // messages sent so far
	last     map[*ir.Node]*application // see results
	args     []*expr                   // of the instruction that is executed
}

// class is a set of ranks that run the same instructions in the same tasks. Its first rank stands for all.
type class struct {
	*Schedule       // of its first rank
	ranks     int   // number of ranks
	at        place // next instruction
	memory    map[*Stage]*memory
	alone     bool    // no other class runs on its stage
	events    []event // its communication, in order; not if it is alone, for then it is compared with no other
	waits     wait    // what it waits for
}

// wait is what a class cannot proceed without: a message from another class.
type wait struct {
	what  string
	from  *class
	moved bool // the message was sent to another stage
}

// messageKey identifies a message between classes. Each rank sends to the rank of its own coordinates in another
// stage.
type messageKey struct {
	send       string // the sending instruction
	from       *class
	stage      int // of the receivers
	microBatch int
}

// event is one communication of a class, with its operand.
type event struct {
	instr string
	op    ir.Op
	attr  ir.Attr
	task  Task
	expr  *expr
	spec  ir.ShardSpec
	to    int // stage of the receivers of a send
}

// met notes that a class communicates. to is the stage of the receivers of a send.
func (c *class) met(n *ir.Node, t Task, x *content, to int) {
	if !c.alone {
		c.events = append(c.events, event{n.Name, n.Op, n.Attr, t, x.expr, x.spec, to})
	}
}

func checkEquivalent(p *Program, traced *ir.Graph, code func(*Schedule, Task) *Stage) error {
	e := &equivalence{
		prog: p, code: code, exprs: newExpressions(p.Plan.Lone(p.Batch)), timeAt: p.Mesh.Axis(partition.AxisMB),
		legal: map[*ir.Node]bool{}, messages: map[messageKey]*content{}, last: map[*ir.Node]*application{},
	}
	of := e.exprs.trace(traced)
	if err := checkWorld(p); err != nil {
		return err
	}
	if err := e.classify(); err != nil {
		return err
	}
	if err := e.walk(); err != nil {
		return err
	}
	if err := e.ends(traced, of); err != nil {
		return err
	}
	if err := e.meetings(); err != nil {
		return err
	}
	return checkTiling(p)
}

// classify groups the ranks into classes and loads the memory of each class: parameters, step inputs and
// constants exist before the step, if the runtime is told to load them.
func (e *equivalence) classify() error {
	type signature struct {
		stage, microBatches int
		first               *Stage
		tasks               string
	}
	byKey := map[signature]*class{}
	type list struct {
		first *Task
		n     int
	}
	texts := map[list]string{} // most ranks of a stage share their tasks
	onStage := map[int]*class{}
	for r := range e.prog.Schedules {
		s := &e.prog.Schedules[r]
		if len(s.Tasks) == 0 {
			return &CheckError{Rank: r, Stage: s.Stage, Msg: "runs nothing"}
		}
		tasks := list{&s.Tasks[0], len(s.Tasks)}
		text, ok := texts[tasks]
		if !ok {
			text = fmt.Sprint(s.Tasks)
			texts[tasks] = text
		}
		key := signature{s.Stage, s.MicroBatches, e.code(s, s.Tasks[0]), text}
		c := byKey[key]
		if c == nil {
			c = &class{Schedule: s, memory: map[*Stage]*memory{}, alone: onStage[s.Stage] == nil}
			if other := onStage[s.Stage]; other != nil {
				other.alone = false
			}
			byKey[key], onStage[s.Stage] = c, c
			e.classes = append(e.classes, c)
		}
		c.ranks++
		e.classOf = append(e.classOf, c)
	}
	for _, c := range e.classes {
		for _, t := range c.Tasks {
			if err := e.load(c, e.code(c.Schedule, t)); err != nil {
				return err
			}
		}
	}
	return nil
}

// load gives a class the memory of a stage as it is before the step.
func (e *equivalence) load(c *class, st *Stage) error {
	if c.memory[st] != nil {
		return nil
	}
	m := &memory{cells: make([][]content, len(st.Buffers)), near: st.near()}
	loaded, err := st.loaded()
	if err != nil {
		err.Rank = c.Rank
		return c.like(err)
	}
	for _, id := range loaded {
		b := &st.Buffers[id]
		if err := e.prog.Mesh.VerifyNode(b.Value.Def); err != nil {
			return c.like(&CheckError{Rank: c.Rank, Stage: c.Stage, Instr: b.Value.Def.Name, Value: b.Value.Name(), Msg: err.Error()})
		}
		*m.cell(id, 0, 1) = content{expr: e.note(e.exprs.leaf(b.Value), c, Task{}, b.Value.Def.Name), typ: b.Value.Type, spec: b.Value.Spec, microBatch: once}
	}
	c.memory[st] = m
	return nil
}

// note records where an expression was first computed.
func (e *equivalence) note(x *expr, c *class, t Task, instr string) *expr {
	if !x.known && x.made.rank < 0 {
		x.made = site{c.Rank, c.Stage, t, instr}
	}
	return x
}

func (e *equivalence) fail(c *class, t Task, n *ir.Node, v *ir.Value, format string, args ...any) error {
	err := &CheckError{Rank: c.Rank, Stage: c.Stage, Instr: n.Name, Msg: t.String() + ": " + fmt.Sprintf(format, args...)}
	if v != nil {
		err.Value = v.Name()
	}
	return c.like(err)
}

// like adds to an error the number of other ranks that run the same code.
func (c *class) like(err *CheckError) error {
	if c.ranks > 1 {
		err.Msg += fmt.Sprintf(" (and %d more ranks like it)", c.ranks-1)
	}
	return err
}

// walk runs all classes to their ends. A class that waits for a message yields to the others.
func (e *equivalence) walk() error {
	for moved := true; moved; {
		moved = false
		for _, c := range e.classes {
			for c.at.task < len(c.Tasks) {
				t := c.Tasks[c.at.task]
				body := e.code(c.Schedule, t).Run(t)
				ready := true
				for ready && c.at.instr < len(body) {
					if in := &body[c.at.instr]; c.Runs(in, t) {
						var err error
						if ready, err = e.step(c, t, in); err != nil {
							return err
						}
						moved = moved || ready
					}
					if ready {
						c.at.instr++
					}
				}
				if !ready {
					break
				}
				c.at = place{task: c.at.task + 1}
			}
		}
	}
	return e.stuck()
}

// stuck reports a class that has not reached its end. If several wait for each other, it prefers one whose
// message went elsewhere, then one whose sender has finished.
func (e *equivalence) stuck() error {
	var worst *class
	for _, c := range e.classes {
		if c.at.task == len(c.Tasks) {
			continue
		}
		from := c.waits.from
		if worst == nil || c.waits.moved && !worst.waits.moved || !worst.waits.moved && from.at.task == len(from.Tasks) {
			worst = c
		}
	}
	if worst == nil {
		return nil
	}
	t := worst.Tasks[worst.at.task]
	n := e.code(worst.Schedule, t).Run(t)[worst.at.instr].Node
	return e.fail(worst, t, n, n.Results[0], "%s", worst.waits.what)
}

// step executes one instruction. ready is false if it has to wait for a message.
func (e *equivalence) step(c *class, t Task, in *Instr) (ready bool, err error) {
	n := in.Node
	if !e.legal[n] {
		if err := e.prog.Mesh.VerifyNode(n); err != nil {
			return false, e.fail(c, t, n, n.Results[0], "%v", err)
		}
		e.legal[n] = true
	}
	args := e.args[:0]
	switch n.Op {
	case ir.OpInput:
		args = append(args, e.exprs.leaf(n.Results[0]))
	case ir.OpRecv:
		got, err := e.receive(c, t, n)
		if got == nil || err != nil {
			return false, err
		}
		args = append(args, got.expr)
	default:
		if len(in.Args) != len(n.Args) {
			return false, e.fail(c, t, n, nil, "has %d operands, its node has %d", len(in.Args), len(n.Args))
		}
		for i, a := range n.Args {
			x, err := e.read(c, t, in, a, in.Args[i])
			if err != nil {
				return false, err
			}
			args = append(args, x.expr)
			if i == 0 && n.Op == ir.OpSend {
				return true, e.send(c, t, n, x)
			}
			if i == 0 && Collective(n.Op) {
				at := t
				if in.Last {
					at.MicroBatch = once // members may run different numbers of micro-batches
				}
				c.met(n, at, x, c.Stage)
			}
		}
	}
	if len(in.Results) != len(n.Results) || len(in.Accum) != len(n.Results) {
		return false, e.fail(c, t, n, nil, "has %d results, its node has %d", len(in.Results), len(n.Results))
	}
	e.args = args
	made := args
	if n.Op != ir.OpInput {
		made = e.results(n, args)
	}
	for i, r := range n.Results {
		if err := e.write(c, t, in, i, r, e.note(made[i], c, t, n.Name)); err != nil {
			return false, err
		}
	}
	return true, nil
}

// application is an op applied to operands.
type application struct{ args, results []*expr }

// results returns the expressions of all results of a node. From one micro-batch to the next they are mostly the same.
func (e *equivalence) results(n *ir.Node, args []*expr) []*expr {
	last := e.last[n]
	if last == nil {
		last = &application{}
		e.last[n] = last
	} else if slices.Equal(last.args, args) {
		return last.results
	}
	last.args = append(last.args[:0], args...)
	last.results = last.results[:0]
	for i := range n.Results {
		last.results = append(last.results, e.exprs.result(n, i, args))
	}
	return last.results
}

// send delivers a message. It goes to the ranks of the same coordinates in the stage that the node names.
func (e *equivalence) send(c *class, t Task, n *ir.Node, x *content) error {
	to := e.prog.Peer(c.Schedule, n)
	if to < 0 || to >= len(e.classOf) {
		return e.fail(c, t, n, n.Args[0], "is sent to rank %d of %d", to, len(e.classOf))
	}
	stage := e.prog.Schedules[to].Stage
	sent := *x // a copy: the buffer may be overwritten before the message is read
	c.met(n, t, x, stage)
	e.messages[messageKey{n.Name, c, stage, microBatchOf(t)}] = &sent
	return nil
}

// receive returns the message that a receive waits for, or nil if it has not been sent yet.
func (e *equivalence) receive(c *class, t Task, n *ir.Node) (*content, error) {
	v, name := n.Results[0], n.Args[0].Def.Name
	from := e.prog.Peer(c.Schedule, n)
	if from < 0 || from >= len(e.classOf) {
		return nil, e.fail(c, t, n, v, "is received from rank %d of %d", from, len(e.classOf))
	}
	x := e.messages[messageKey{name, e.classOf[from], c.Stage, microBatchOf(t)}]
	if x == nil {
		c.waits = wait{what: fmt.Sprintf("rank %d never sends %s", from, name), from: e.classOf[from]}
		for to := range e.prog.Stages {
			if e.messages[messageKey{name, e.classOf[from], to, microBatchOf(t)}] != nil {
				c.waits.what += fmt.Sprintf(" to stage %d, but to stage %d", c.Stage, to)
				c.waits.moved = true
			}
		}
		return nil, nil
	}
	if !x.typ.Equal(v.Type) {
		return nil, e.fail(c, t, n, v, "is received as %s, rank %d sends it as %s", v.Type, from, x.typ)
	}
	if x.spec != v.Spec {
		rank := len(v.Type.Shape)
		return nil, e.fail(c, t, n, v, "is received as placed %s, rank %d sends it placed %s",
			v.Spec.Format(e.prog.Mesh, rank), from, x.spec.Format(e.prog.Mesh, rank))
	}
	return x, nil
}

// ends compares what every class holds at the end with the updates and outputs of the traced graph.
func (e *equivalence) ends(traced *ir.Graph, of map[*ir.Value]*expr) error {
	want := map[string]*expr{}
	for _, u := range traced.Updates {
		want[u.Param.Name()] = of[u.New]
	}
	outputs := map[string]*expr{}
	for _, o := range traced.Outputs {
		outputs[o.Name] = of[o.Value]
	}
	found, made := map[string]bool{}, map[string]bool{}
	for _, c := range e.classes {
		for _, st := range e.stages(c) {
			for _, name := range sorted(st.Params) {
				found[name] = true
				id := st.Params[name]
				next, updated := want[name]
				if !updated {
					next = e.exprs.leaf(st.Buffers[id].Value)
				}
				if err := e.end(c, st, id, "the next value of "+name, name, next, st.Buffers[id].Value.Spec); err != nil {
					return err
				}
			}
			for _, name := range sorted(st.Outputs) {
				made[name] = true
				if outputs[name] == nil {
					return c.like(&CheckError{Rank: c.Rank, Stage: c.Stage, Value: name, Msg: "is an output that the traced graph does not have"})
				}
				if err := e.end(c, st, st.Outputs[name], "output "+name, name, outputs[name], ir.ShardSpec{}); err != nil {
					return err
				}
			}
		}
	}
	for _, u := range traced.Updates {
		if !found[u.Param.Name()] {
			return &CheckError{Rank: 0, Value: u.Param.Name(), Msg: "is held by no rank"}
		}
	}
	for _, o := range traced.Outputs {
		if !made[o.Name] {
			return &CheckError{Rank: 0, Value: o.Name, Msg: "is an output that no rank makes"}
		}
	}
	return nil
}

// stages lists the stages whose code a class runs, in order of first use.
func (e *equivalence) stages(c *class) []*Stage {
	var all []*Stage
	for _, t := range c.Tasks {
		if st := e.code(c.Schedule, t); !slices.Contains(all, st) {
			all = append(all, st)
		}
	}
	return all
}

// end compares the final contents of one buffer with what they should be.
func (e *equivalence) end(c *class, st *Stage, id int, what, name string, want *expr, spec ir.ShardSpec) error {
	wrong := func(at site, value, format string, args ...any) error {
		return c.like(&CheckError{Rank: at.rank, Stage: at.stage, Instr: at.instr, Value: value, Msg: fmt.Sprintf(format, args...)})
	}
	here := site{rank: c.Rank, stage: c.Stage, instr: want.name} // what should have written it
	held := &content{}
	if id >= 0 && id < len(st.Buffers) {
		held = c.memory[st].cell(id, 0, 1) // an output of a step with one micro-batch may be in a slot
	}
	if held.expr == nil && held.terms == nil {
		return wrong(here, name, "%s is never written", what)
	}
	held, err := e.total(c, held)
	if err != nil {
		return wrong(here, name, "%s %v", what, err)
	}
	if held.expr != want {
		at, why := difference(want, held.expr)
		if at.known { // a value of the traced graph, but in the wrong place
			return wrong(here, name, "%s %s", what, why)
		}
		return wrong(at.made, at.name, "%s; so %s is wrong", why, what)
	}
	got := held.spec
	if axes := e.prog.Mesh.Axes; e.timeAt >= 0 && axes[e.timeAt].Size == 1 && got[e.timeAt].Kind == ir.Shard {
		got[e.timeAt] = spec[e.timeAt] // one micro-batch is the whole batch
	}
	if got != spec {
		rank := len(st.Buffers[id].Value.Type.Shape)
		return wrong(here, name, "%s is placed %s, want %s", what, held.spec.Format(e.prog.Mesh, rank), spec.Format(e.prog.Mesh, rank))
	}
	return nil
}
