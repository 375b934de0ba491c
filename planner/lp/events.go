package lp

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
)

// This file turns the tasks of all positions into events and the constraints between them. It runs the positions'
// schedules symbolically: instead of times it computes expressions of events and durations.

// expression is the time of an event, or of the start of the step for event -1, plus durations, each some number of
// times.
type expression struct {
	event int
	spend []spend
}

type spend struct{ duration, times int }

// plus returns the expression with a duration added.
func (e expression) plus(duration int) expression {
	if duration < 0 {
		return e
	}
	e.spend = slices.Clone(e.spend)
	if k := slices.IndexFunc(e.spend, func(s spend) bool { return s.duration == duration }); k >= 0 {
		e.spend[k].times++
		return e
	}
	e.spend = append(e.spend, spend{duration, 1})
	return e
}

// precedence says that an event is no earlier than an expression.
type precedence struct {
	event int
	after expression
}

// event adds an event that is no earlier than the given times.
func (p *Program) event(name string, after ...expression) expression {
	p.events = append(p.events, name)
	for _, x := range after {
		p.order = append(p.order, precedence{len(p.events) - 1, x})
	}
	return expression{event: len(p.events) - 1}
}

// arrival is the transfer of a micro-batch over a wire. release is a position's end with a micro-batch.
type (
	arrival struct {
		wire
		microBatch int
	}
	release struct{ position, microBatch int }
)

// scheduler turns the tasks of all positions into events. It takes positions in turn, and advances each until it
// waits for something that has no expression yet.
type scheduler struct {
	*Program
	reader   *reader
	spans    map[spanKey]int // durations
	arrivals map[arrival]expression
	released map[release]expression
}

type spanKey struct {
	position int
	pass
	segment, mark int // mark -1 is the transfer at the end of the segment
}

// schedule states all constraints of order: a position's tasks follow each other, a receive follows its send, and a
// send follows the release of the slot that it needs.
func (p *Program) schedule(r *reader) error {
	s := &scheduler{Program: p, reader: r, spans: map[spanKey]int{}, arrivals: map[arrival]expression{}, released: map[release]expression{}}
	var all []*process
	for at := range p.Choices {
		for key, bodies := range r.bodies[at] {
			for _, body := range bodies {
				if !alike(body, bodies[0]) {
					panic(fmt.Sprintf("BUG: what position %d transfers in its %s pass depends on the cut", at, key.phase))
				}
			}
		}
		all = append(all, &process{scheduler: s, position: at, tasks: codegen.Order(&p.plan, at, r.microBatches, true), now: expression{event: -1}, away: map[ir.Phase]expression{}})
	}
	for moved := true; moved; {
		moved = false
		for _, x := range all {
			for x.step() {
				moved = true
			}
		}
	}
	for _, x := range all {
		if len(x.tasks) > 0 {
			return fmt.Errorf("lp: position %d waits forever in %v", x.position, x.tasks[0])
		}
		if p.ends = append(p.ends, x.now); x.sent != nil {
			p.ends = append(p.ends, *x.sent)
		}
	}
	return nil
}

// alike reports whether two bodies make the same transfers.
func alike(a, b []segment) bool {
	return slices.EqualFunc(a, b, func(x, y segment) bool {
		if x.transfer == nil || y.transfer == nil {
			return x.transfer == y.transfer
		}
		return x.transfer.wire == y.transfer.wire && x.transfer.send == y.transfer.send && x.transfer.posted == y.transfer.posted && x.transfer.room == y.transfer.room
	})
}

// duration returns the index of the duration of a segment after a mark, or of its transfer; -1 if it is 0 for every
// choice.
func (s *scheduler) duration(key spanKey) int {
	d, known := s.spans[key]
	if known {
		return d
	}
	name := fmt.Sprintf("%c%d_%d", phaseLetter(key.phase), key.position, key.segment)
	switch {
	case key.mark < 0:
		name += "t"
	default:
		name += fmt.Sprintf("m%d", key.mark)
	}
	if key.last {
		name += "l"
	}
	x := duration{name: name, position: key.position}
	d = -1
	for _, body := range s.reader.bodies[key.position][key.pass] {
		segment := &body[key.segment]
		var t cost.Picoseconds
		switch {
		case key.mark < 0:
			t = segment.transfer.time
		case key.mark < len(segment.since):
			t = max(0, segment.since[key.mark]) // what follows a mark is no earlier than the mark
		}
		if x.times = append(x.times, t); t > 0 {
			d = len(s.durations)
		}
	}
	if d >= 0 {
		s.durations = append(s.durations, x)
	}
	s.spans[key] = d
	return d
}

func phaseLetter(p ir.Phase) byte {
	switch p {
	case ir.Forward:
		return 'F'
	case ir.Backward:
		return 'B'
	case ir.WeightGrad:
		return 'W'
	}
	return 'U'
}

// process is a position that runs through its tasks.
type process struct {
	*scheduler
	position int
	tasks    []codegen.Task // those that are left
	segment  int            // of the first task
	now      expression
	marks    []expression // of the first task

	posted []post                  // sends that have no event yet, in order
	sent   *expression             // the end of the last send that has an event
	away   map[ir.Phase]expression // by phase, the end of the last send that its tasks have posted, if none has waited for it
}

// post is a send that a position has handed to its stream of transfers.
type post struct {
	*transfer
	phase      ir.Phase
	label      string
	microBatch int
	duration   int
	after      expression
}

// post adds events for the sends that a position has posted, as far as the releases that they wait for are known, and
// reports whether it added any.
func (x *process) post() (moved bool) {
	for len(x.posted) > 0 {
		p := &x.posted[0]
		awaited, known, waits := x.awaited(p.transfer, p.microBatch)
		if !known {
			return moved
		}
		after := []expression{p.after}
		if x.sent != nil {
			after = append(after, *x.sent)
		}
		if waits {
			after = append(after, awaited)
		}
		end := x.event(p.label, after...).plus(p.duration)
		x.arrivals[arrival{p.wire, p.microBatch}] = end
		x.sent, x.away[p.phase] = &end, end
		x.posted, moved = x.posted[1:], true
	}
	return moved
}

// step goes to the end of the next segment, and reports whether it could.
func (x *process) step() bool {
	moved := x.post()
	if len(x.tasks) == 0 {
		return moved
	}
	task := x.tasks[0]
	key := spanKey{x.position, passOf(task, x.reader.microBatches), x.segment, 0}
	body := x.reader.bodies[x.position][key.pass][0]
	if x.marks == nil {
		if slices.ContainsFunc(x.posted, func(p post) bool { return p.phase == task.Phase }) {
			return moved
		}
		if away, some := x.away[task.Phase]; some {
			x.now = x.event(fmt.Sprintf("%c%d_%d_a", phaseLetter(task.Phase), x.position, task.MicroBatch), x.now, away)
			delete(x.away, task.Phase)
		}
		x.marks = []expression{x.now}
	}
	label := fmt.Sprintf("%c%d_%d_%d", phaseLetter(task.Phase), x.position, task.MicroBatch, x.segment)
	t := body[x.segment].transfer
	var wait []expression
	if t != nil && !t.posted {
		awaited, known, waits := x.awaited(t, task.MicroBatch)
		if !known {
			return moved
		}
		if waits {
			wait = []expression{awaited}
		}
	}
	// The segment ends after every mark that matters.
	var after []expression
	for mark, from := range x.marks {
		key.mark = mark
		d := x.duration(key)
		if mark == len(x.marks)-1 || d >= 0 {
			after = append(after, from.plus(d))
		}
	}
	switch after = append(after, wait...); {
	case len(after) > 1 || len(after[0].spend) > 12: // a longer sum is better written once, as an event
		x.now = x.event(label, after...)
	default:
		x.now = after[0]
	}
	if t == nil {
		if task.Phase == codegen.Releases(&x.plan, true) {
			x.released[release{x.position, task.MicroBatch}] = x.now
		}
		x.tasks, x.segment, x.marks = x.tasks[1:], 0, nil
		return true
	}
	key.mark = -1
	switch {
	case t.posted:
		x.posted = append(x.posted, post{t, task.Phase, label + "s", task.MicroBatch, x.duration(key), x.now})
	case t.send:
		x.now = x.now.plus(x.duration(key))
		x.arrivals[arrival{t.wire, task.MicroBatch}] = x.now
	default:
		x.now = x.now.plus(x.duration(key))
	}
	x.marks = append(x.marks, x.now)
	x.segment++
	return true
}

// awaited returns what a transfer of a micro-batch waits for, whether that is known yet, and whether it waits at all.
func (x *process) awaited(t *transfer, microBatch int) (e expression, known, waits bool) {
	if !t.send {
		e, known = x.arrivals[arrival{t.wire, microBatch}]
		return e, known, true
	}
	before := microBatch - t.room
	if t.room == 0 || before < 0 {
		return e, true, false
	}
	e, known = x.released[release{t.wire.to, before}]
	return e, known, true
}

// Time returns the least value of the objective, in whole picoseconds, for a choice of every position, whatever its
// memory. It is the longest path through the events. It fails if the choices are not a cut of the blocks.
func (p *Program) Time(picked []int) (cost.Picoseconds, error) {
	blocks := 0
	for at, k := range picked[:min(len(picked), len(p.Choices))] {
		blocks += p.Choices[at][k].Blocks
	}
	if len(picked) != len(p.Choices) || blocks != p.blocks {
		return 0, fmt.Errorf("lp: %d choices hold %d blocks; want a choice for each of %d positions, with %d blocks", len(picked), blocks, len(p.Choices), p.blocks)
	}
	times := make([]cost.Picoseconds, len(p.events))
	value := func(e expression) cost.Picoseconds {
		var t cost.Picoseconds
		if e.event >= 0 {
			t = times[e.event]
		}
		for _, s := range e.spend {
			d := &p.durations[s.duration]
			t += cost.Picoseconds(s.times) * d.times[picked[d.position]]
		}
		return t
	}
	for _, x := range p.order { // every event comes after those that it waits for
		times[x.event] = max(times[x.event], value(x.after))
	}
	var end cost.Picoseconds
	for _, e := range p.ends {
		end = max(end, value(e))
	}
	return end, nil
}
